"""The command line, one file a group of commands; `main` is what the installed `godwit` script calls."""

from godwit.cli.early import quick_interrupts

with quick_interrupts():
    from godwit.cli.main import main

__all__ = ["main"]
