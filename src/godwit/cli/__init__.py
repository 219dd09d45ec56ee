"""The command line, with one file for each group of commands. The installed `godwit` script calls `main`."""

from godwit.cli.interrupts import quick_interrupts

with quick_interrupts():
    from godwit.cli.main import main

__all__ = ["main"]
