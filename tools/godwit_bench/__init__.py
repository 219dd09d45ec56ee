"""Benchmarks, each side by side with a peer or a limit in the same run. docs/BENCHMARKS.md has the figures."""
