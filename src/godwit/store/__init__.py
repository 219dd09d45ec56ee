"""The log behind a small, synchronous port: in memory (a bounded ring, the reference)."""
