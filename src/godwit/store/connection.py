"""Connections to the log's file: how they are opened, transactions, and SQLite's troubles in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw
import msgspec

from godwit.errors import DiskError, LogDamagedError, StorageError
from godwit.store.kept import DamagedRowError

BUSY_TIMEOUT_MS: Final = 5000
"""So long a statement waits for another program that holds the file locked, as none of ours does."""
CACHE_KIB: Final = 16 * 1024
SIGNAL_STEPS: Final = 10_000
"""Steps of SQLite's, or pages that it checks: some milliseconds."""


def connect(path: str | Path, flags: int, vfs: str | None) -> apsw.Connection:
    """With the settings that hold for everybody. A file that is not there is created only if the flags say so."""
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    if vfs is not None:
        # A VFS written in Python has no shared memory, without which WAL works for one connection at a time only.
        connection.pragma("locking_mode", "EXCLUSIVE")
    # A file may come from anywhere (see godwit.store.schema).
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("cell_size_check", 1)
    connection.pragma("mmap_size", 0)  # a bad sector is an error then, and not the end of the process
    return connection


def heed_signals(connection: apsw.Connection) -> None:
    """Let Python look for signals during a long statement: Ctrl-C ends it then."""
    connection.set_progress_handler(lambda: False, SIGNAL_STEPS)


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """All of it, or none. It takes the right to write at once, so that it cannot fail for want of it in the middle."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


@contextmanager
def snapshot(connection: apsw.Connection) -> Iterator[None]:
    """What is read within it is of one moment. To be left soon: the WAL cannot be reused past it."""
    if connection.in_transaction:  # it is within another one, whose moment counts
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        roll_back(connection)


def roll_back(connection: apsw.Connection) -> None:
    """If SQLite has not done so by itself, as it does after some errors."""
    if connection.in_transaction:
        with suppress(apsw.Error):  # the error that led here says more
            connection.execute("ROLLBACK")


@contextmanager
def telling(path: str | Path, doing: str) -> Iterator[None]:
    """Errors of SQLite as errors of ours, with a sentence: `doing` continues 'cannot'."""
    try:
        yield
    except (apsw.Error, DamagedRowError, msgspec.MsgspecError) as error:
        raise explain(path, doing, error) from error


@contextmanager
def naming_full(folder: Path) -> Iterator[None]:
    """What is read does not fill a disk: it is that of the copy."""
    try:
        yield
    except apsw.FullError as error:
        raise DiskError(
            f"there is no room for the copy in {folder}: the disk is full. Free some space there"
        ) from error


def explain(path: str | Path, doing: str, error: Exception) -> StorageError:
    """The error of ours that it is."""
    what = f"the log {path} cannot be {doing}"
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
        # Our statements are right, so that one which is not (SQLError) meets a schema that is not ours any more.
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
