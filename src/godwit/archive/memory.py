"""The memory of the archive's process: freed memory is kept for the next chunk, and all of it is bounded.

Each chunk of a reading takes some megabytes and gives them back. By default glibc returns them to the system at once,
and the next chunk gets each page anew: a tenth to a fifth of the archive's time.

Flight takes in and unpacks what clients send before anybody can look at it, and a few kilobytes of compressed Arrow
become gigabytes. The bound makes that an error of one call, or at worst the end of this process: the broker starts
another.
"""

from __future__ import annotations

import ctypes
import resource
from typing import Final

from godwit.limits import MIB

KEPT_BYTES: Final = 32 * MIB
"""Of each arena, which is about one for each thread that reads the log."""
LARGEST_KEPT_BYTES: Final = 16 * MIB
"""What is larger goes back to the system at once."""

MAX_MEMORY_BYTES: Final = 3072 * MIB
"""Stacks count too, with 8 MiB for each thread: of readings, uploads and questions there may be 224."""

_M_TRIM_THRESHOLD: Final = -1  # numbers from glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Whether it could be arranged: with glibc it can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES))


def bound_memory(max_bytes: int = MAX_MEMORY_BYTES) -> None:
    """This process gets no more than this from the system; a lower bound that it has already stays."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
