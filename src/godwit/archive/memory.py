"""Keeping freed memory for the next chunk.

Each chunk of a reading takes some megabytes and gives them back. By default glibc returns them to the system at once,
and the next chunk gets each page anew: a tenth to a fifth of the archive's time.
"""

from __future__ import annotations

import ctypes
from typing import Final

from godwit.limits import MIB

KEPT_BYTES: Final = 32 * MIB
"""Of each arena, which is about one for each thread that reads the log."""
LARGEST_KEPT_BYTES: Final = 16 * MIB
"""What is larger goes back to the system at once."""

_M_TRIM_THRESHOLD: Final = -1  # numbers from glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Whether it could be arranged: with glibc it can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES))
