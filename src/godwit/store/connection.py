"""Connections to a log's SQLite file: settings, transactions, and the translation of SQLite's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw
import msgspec

from godwit.errors import DiskError, LogDamagedError, StorageError

BUSY_TIMEOUT_MS: Final = 5000
"""How long a statement waits for a lock of a foreign program. Godwit's own programs hold none that long."""
CACHE_KIB: Final = 16 * 1024
SQLITE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite creates beside a file."""
SIGNAL_STEPS: Final = 10_000
"""Virtual machine steps, or checked pages, between two looks for signals: a few milliseconds."""


class DamagedRowError(Exception):
    """A row of a table is not what was written."""


def connect(path: str | Path, flags: int, vfs: str | None) -> apsw.Connection:
    """Open a file with the common settings. Only the flag SQLITE_OPEN_CREATE creates a missing file.

    Args:
        path: The file, or a URI if the flags say so.
        flags: Flags of SQLite's open call.
        vfs: Name of a SQLite file system; None for that of the machine.
    """
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    if vfs is not None:
        # A VFS written in Python has no shared memory, without which WAL works for one connection at a time only.
        connection.pragma("locking_mode", "EXCLUSIVE")
    # The file may come from an untrusted source (see godwit.store.schema).
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("cell_size_check", 1)
    connection.pragma("mmap_size", 0)  # a bad sector is then an error and does not kill the process
    return connection


def allow_interrupts(connection: apsw.Connection) -> None:
    """Let Python handle signals during a long statement, so that Ctrl-C interrupts it."""
    connection.set_progress_handler(lambda: False, SIGNAL_STEPS)


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Commit at the end of the block, or roll back if it raises.

    The write lock is taken at the start, so the transaction cannot fail for lack of it later.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


@contextmanager
def snapshot(connection: apsw.Connection) -> Iterator[None]:
    """Let all reads in the block see the file as of one commit.

    The block must be short: the write-ahead log cannot be reused past the snapshot. Nested snapshots use the outer one.
    """
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        roll_back(connection)


def roll_back(connection: apsw.Connection) -> None:
    """Roll back unless SQLite has done so already, as it does after some errors."""
    if connection.in_transaction:
        with suppress(apsw.Error):  # the error that led here is more informative
            connection.execute("ROLLBACK")


@contextmanager
def translate_errors(path: str | Path, action: str) -> Iterator[None]:
    """Raise errors of SQLite as subclasses of StorageError.

    Args:
        path: The log's file.
        action: A participle for the message "the log PATH cannot be ...", such as "read".
    """
    try:
        yield
    except (apsw.Error, DamagedRowError, msgspec.MsgspecError) as error:
        raise translated(path, action, error) from error


@contextmanager
def translate_full_disk(folder: Path) -> Iterator[None]:
    """Raise a full disk as a DiskError about the folder of a copy: reading the original cannot fill a disk."""
    try:
        yield
    except apsw.FullError as error:
        raise DiskError(
            f"there is no room for the copy in {folder}: the disk is full. Free some space there"
        ) from error


def translated(path: str | Path, action: str, error: Exception) -> StorageError:
    """Return the StorageError for an error of SQLite; see translate_errors."""
    what = f"the log {path} cannot be {action}"
    match error:
        case apsw.FullError():
            return DiskError(
                f"{what}: the disk is full. Free some space, or let the log keep less (max_age, max_bytes)"
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return DiskError(f"{what}: it is read-only. Check the rights of its folder, and how the disk is mounted")
        case apsw.CantOpenError():
            return DiskError(f"{what}: the file or its folder is missing, or the rights are. Check both")
        case apsw.BusyError() | apsw.LockedError():
            return DiskError(f"{what}: another program holds it locked. End that program")
        case apsw.IOError():
            return DiskError(f"{what}: the disk failed ({error}). Check the disk and the system's log")
        # The statements are tested, so an invalid one (SQLError) means that the schema of the file is damaged.
        case (
            apsw.CorruptError()
            | apsw.NotADBError()
            | apsw.SQLError()
            | apsw.ConstraintError()
            | DamagedRowError()
            | msgspec.MsgspecError()
        ):
            return LogDamagedError(
                f"{what}: it is damaged ({error}). Save what is intact with `godwit log recover`, or restore a backup"
            )
    return StorageError(f"{what}: {error}")
