"""The archive's program: `python -m godwit.archive --log FILE --stages DIR --listen HOST:PORT`."""

from __future__ import annotations

import signal
import sys


def run() -> int:
    """Run the archive process."""
    # Before the imports, which take a while: Ctrl-C in a terminal is for the broker, and the archive ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from godwit.archive.process import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
