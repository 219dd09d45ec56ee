"""Measurements, always side by side with a peer or a limit in the same run. docs/BENCHMARKS.md keeps the figures."""
