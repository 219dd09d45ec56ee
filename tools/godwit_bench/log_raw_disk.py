"""The disk without anything: a file that grows piece by piece, each piece synced before the next is written.

A piece is what a log would write that syncs about as often as this: 64 KiB. No log that promises the same for each such
piece can be quicker; one that waits for more to come together can.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

SYNC_BYTES: Final = 64 * 1024


def append_and_sync(folder: Path, seconds: float) -> float:
    """Bytes a second on the disk of this folder."""
    piece = os.urandom(SYNC_BYTES)
    written = 0
    with tempfile.NamedTemporaryFile(dir=folder, prefix="godwit-bench-", buffering=0) as file:
        began = now = time.perf_counter()
        while now < began + seconds:
            file.write(piece)
            _sync(file.fileno())
            written += SYNC_BYTES
            now = time.perf_counter()
    return written / (now - began)


_sync = getattr(os, "fdatasync", os.fsync)  # macOS and Windows have no fdatasync
