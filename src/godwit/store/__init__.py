"""The log behind a small, synchronous port: in memory (a bounded ring, the reference), and in a file of SQLite's."""
