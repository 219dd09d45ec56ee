"""A file that is there whole or not at all: written beside its place under another name, and then put there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from godwit.errors import DiskError, StorageError
from godwit.store.witness import SUFFIX

Progress: TypeAlias = Callable[[int, int], None]
"""Bytes done, and bytes to do. It may raise, to end what it is told of."""

BESIDE: Final = ("-wal", "-shm", "-journal")
"""What SQLite writes beside a file."""


@contextmanager
def drafting(out: Path, *, like: Path) -> Iterator[Path]:
    """Gives an empty file to write to. If all goes well it becomes `out`; if not, nothing is left of it.

    It belongs to the owner of the other file, with the same rights: what root repairs the broker must be able to use.
    """
    if out.exists():
        raise StorageError(f"{out} is there already: give another name, or move it away")
    draft = out.with_name(f"{out.name}.draft")
    try:
        _remove(draft)
        draft.touch(mode=0o600)
        _take_rights(draft, like)
        yield draft
        put(draft, out)
    except OSError as error:
        _remove(draft)
        raise DiskError(f"{out} cannot be written: {error.strerror or error}") from error
    except BaseException:
        _remove(draft)
        raise


def put(draft: Path, place: Path) -> None:
    """What the draft holds is on the disk before it gets its name, and the name before this returns."""
    sync(draft)
    draft.replace(place)
    sync(place.parent)


def _take_rights(draft: Path, like: Path) -> None:
    status = like.stat()
    with suppress(PermissionError):  # nobody but root can give files away
        os.chown(draft, status.st_uid, status.st_gid)
    draft.chmod(stat.S_IMODE(status.st_mode))


def sync(path: Path) -> None:
    """A file, or the names in a folder."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _remove(draft: Path) -> None:
    for ending in ("", *BESIDE, SUFFIX):
        draft.with_name(draft.name + ending).unlink(missing_ok=True)
