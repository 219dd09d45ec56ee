"""The command line, with one file for each group of commands. The installed `godwit` script calls `main`."""

import logging

from godwit.cli.interrupts import quick_interrupts

with quick_interrupts():
    from godwit.cli.main import main

__all__ = ["main"]

# Commands, and the processes that they start from here, print notices of their own instead of log records.
logging.getLogger("godwit").addHandler(logging.NullHandler())
