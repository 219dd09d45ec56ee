"""The message log behind a small, synchronous interface (port.py): in memory, and durable in a SQLite file."""
