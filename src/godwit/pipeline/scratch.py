"""A folder for what Java leaves behind, gone when its session is: at the latest when the next one begins.

A driver that is killed cannot tidy up. Whoever uses a folder holds a lock in it, so that others know which are left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "godwit-spark-"
_HELD: Final = "in-use"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """For the time of the block."""
    _sweep(Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name,
        (Path(name) / _HELD).open("wb") as held,
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        yield Path(name)


def _sweep(parent: Path) -> None:
    """Removes those that nobody uses any more."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody uses it, or removes it too
            if folder.lstat().st_uid == os.getuid():
                with (folder / _HELD).open("rb") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
