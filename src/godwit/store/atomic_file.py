"""Write files atomically: a file appears under its name complete and synced to disk, or not at all.

The content is written to a temporary file in the same folder, which is synced and then renamed. This is the only place
in the project that does so.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from godwit.errors import DiskError, StorageError


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    file = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _sync_folder(path: Path) -> None:
    """Sync the names in a folder, where the system can: Windows and some network file systems cannot."""
    if sys.platform == "win32":
        return
    try:
        sync(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def move_into_place(temporary: Path, path: Path, *, is_new: bool = False) -> None:
    """Sync a temporary file and rename it to its final name, which is on disk when this returns.

    Args:
        temporary: A complete file in the same folder as `path`.
        path: The final name.
        is_new: Raise FileExistsError instead of replacing an existing file.
    """
    sync(temporary)
    if is_new:
        path.open("xb").close()  # reserves the name with an empty file, which is then replaced
    temporary.replace(path)
    _sync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Create or replace a small file that only its owner can read."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)  # left by a killed process
    temporary.touch(mode=0o600)
    temporary.write_bytes(data)
    move_into_place(temporary, path)


@contextmanager
def create_file(path: Path, *, like: Path, companions: Iterable[str] = (), replaces: bool = False) -> Iterator[Path]:
    """Create a file that does not exist yet, with the owner and permissions of another one.

    The context value is the name of an empty temporary file to write to. It is moved into place when the block ends,
    and removed if the block raises. Raise StorageError if the file exists, DiskError if it cannot be written.

    Args:
        path: The file to create.
        like: The file whose owner and permissions it gets: a log that root repairs must remain usable by the broker.
        companions: Suffixes of files that may appear beside the temporary file, and are removed with it.
        replaces: Replace the file if it exists.
    """
    if path.exists() and not replaces:
        raise StorageError(f"{path} is there already: give another name, or move it away")
    temporary = path.with_name(f"{path.name}.draft")
    suffixes = ("", *companions)
    try:
        _remove(temporary, suffixes)
        temporary.touch(mode=0o600)
        _copy_permissions(like, temporary)
        yield temporary
        move_into_place(temporary, path)
    except OSError as error:
        _remove(temporary, suffixes)
        raise DiskError(f"{path} cannot be written: {error.strerror or error}") from error
    except BaseException:
        _remove(temporary, suffixes)
        raise


def _copy_permissions(source: Path, target: Path) -> None:
    status = source.stat()
    with suppress(PermissionError):  # only root can change the owner of a file
        os.chown(target, status.st_uid, status.st_gid)
    target.chmod(stat.S_IMODE(status.st_mode))


def _remove(temporary: Path, suffixes: Iterable[str]) -> None:
    for suffix in suffixes:
        temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)
