"""The command line, with one file for each group of commands. The installed `godwit` script calls `main`."""

import logging

from godwit.cli.interrupts import quick_interrupts

with quick_interrupts():
    from godwit.cli.main import main

__all__ = ["main"]


class _TrustNotices(logging.Handler):
    """Prints warnings about the keys of brokers, such as one that is new, unless log records are printed anyway."""

    def emit(self, record: logging.LogRecord) -> None:
        if all(isinstance(one, logging.NullHandler) for one in logging.getLogger("godwit").handlers):
            from godwit.cli.connection import print_notice

            print_notice(record.getMessage())


# Commands, and the processes that they start from here, print notices of their own instead of log records.
logging.getLogger("godwit").addHandler(logging.NullHandler())
logging.getLogger("godwit.net.security.trust").addHandler(_TrustNotices(logging.WARNING))
