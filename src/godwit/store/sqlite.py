"""The log in a file of SQLite's: blocks of batches, and beside them what a broker must know after a restart.

    log.sqlite        the tables of schema_*.sql; pages of 16 KiB, so that a block of 1 MiB is written in few pieces
    log.sqlite-wal    what was committed since the last checkpoint

An append is one transaction: its batches as one block or a few, with the changes that belong to them. With
synchronous=FULL it has reached the disk when it returns. Exactly one connection writes, and it alone checkpoints: never
by itself (wal_autocheckpoint=0), because a commit must not wait for it. Others read the file (godwit.store.reader).

The file says what it is (application_id) and in which version (user_version). An older one is brought forward, in one
transaction; a newer one, or somebody else's, is refused and left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw
import msgspec

from godwit.errors import DiskError, LogDamagedError
from godwit.limits import MIB
from godwit.store import sql
from godwit.store.block import encode_blocks
from godwit.store.connection import BUSY_TIMEOUT_MS, connect, telling, transaction
from godwit.store.kept import apply, load_state
from godwit.store.meta import Meta, load_meta, new_stamp, set_meta
from godwit.store.pages import PAGE_BYTES
from godwit.store.port import Change, Entry, Slice, State
from godwit.store.scan import Scanner
from godwit.store.schema import APPLICATION_ID, BLOCKS, check_schema, refuse_other, tables, version_of
from godwit.store.sql import QUERIES

QUICK_CHECK_BYTES: Final = 256 * MIB
"""A longer file is not read whole at its start ..."""
CHECKED_BLOCKS: Final = 10_000
"""... but only seen to have its newest blocks in order."""


class SqliteStore:
    """See godwit.store.port. To be used by one thread at a time."""

    def __init__(self, path: Path, connection: apsw.Connection, files: Sequence[Path]) -> None:
        """Use `open`."""
        self.path = path
        self.connection = connection
        """For retention, which works in the writer's thread, between its commits."""
        self._files = files
        """Those that must stay where they are."""
        self._identities = _identities(files)
        self._scanner = Scanner(connection)
        meta = load_meta(connection)
        self.log_id, self.created_us, self.stamp = meta.log_id, meta.created_us, meta.stamp
        ends = self._scanner.ends()
        self._next_offset = ends.next_offset
        self.last_received_us = ends.until_us
        """No entry may be older: times of the log never go backwards, whatever the system's clock did."""

    @classmethod
    def open(cls, path: str | Path, *, new_log_id: bytes, now_us: int, vfs: str | None = None) -> SqliteStore:
        """Open the file, or make it; bring it to the current version; see that it is sound."""
        path = Path(path)
        if vfs is None:
            refuse_other(path)
            _create(path)
        with telling(path, "opened"):
            flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
            connection = connect(path, flags, vfs)
            try:
                _prepare(connection, path, new_log_id, now_us)
                load_state(connection)  # only to see that it can be believed: whoever needs it asks for it
                store = cls(path, connection, () if vfs else (path, Path(f"{path}-wal")))
                _secure(connection)
            except BaseException:
                with suppress(apsw.Error):  # the first error says more
                    connection.close()
                raise
            # Only now, so that a file that was refused stays as it is.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        return store

    @property
    def first_offset(self) -> int:
        with telling(self.path, "read"):
            return self._scanner.ends().first_offset

    @property
    def next_offset(self) -> int:
        return self._next_offset

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        first_offset = self._next_offset
        if not entries and not changes:
            return first_offset
        rows = encode_blocks(entries, first_offset, self.stamp)
        with self.transaction() as connection:
            connection.executemany(QUERIES["insert_block"], map(msgspec.structs.astuple, rows))
            apply(connection, changes)
        if rows:
            self._next_offset = rows[-1].end_offset
            self.last_received_us = rows[-1].until_us
        return first_offset

    @contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """All or nothing, on disk when it is left. StorageError when that cannot be, and nothing has changed."""
        if _identities(self._files) != self._identities:
            # The system lets us write on to files that have lost their names: all of it would be gone with the process.
            raise DiskError(
                f"the log {self.path} cannot be written: it was moved or deleted while it was in use. "
                "Stop the broker, put the file and its -wal back, and start again"
            )
        with telling(self.path, "written"), transaction(self.connection):
            yield self.connection

    def state(self) -> State:
        with telling(self.path, "read"):
            return load_state(self.connection)

    def read(self, offset: int, max_bytes: int) -> Slice:
        with telling(self.path, "read"):
            return self._scanner.read(offset, max_bytes)

    def offset_at(self, time_us: int) -> int:
        with telling(self.path, "read"):
            return self._scanner.offset_at(time_us)

    def checkpoint(self, *, truncate: bool) -> None:
        """Copy from the WAL what nobody reads there any more; then, if nothing is left in it, cut it to nothing.

        It waits for nobody: what a reader holds up is done by a later one.
        """
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_PASSIVE
        self.connection.set_busy_timeout(0)
        try:
            with telling(self.path, "written"), suppress(apsw.BusyError):
                self.connection.wal_checkpoint(mode=mode)
        finally:
            self.connection.set_busy_timeout(BUSY_TIMEOUT_MS)

    @property
    def wal_bytes(self) -> int:
        """What the WAL takes on the disk; 0 behind a VFS, whose files only SQLite can find."""
        try:
            return self._files[-1].stat().st_size if self._files else 0
        except OSError:  # it is gone, or its folder is: the next append says so
            return 0

    @property
    def size_bytes(self) -> int:
        """What the file takes, with pages that are free to be used again, once all of the WAL is in it."""
        with telling(self.path, "read"):
            return int(self.connection.pragma("page_count")) * int(self.connection.pragma("page_size"))

    def close(self) -> None:
        """The WAL goes into the file, if that can be."""
        with telling(self.path, "closed"):
            self.connection.close()


def _create(path: Path) -> None:
    """For its owner alone, whatever others may do in the folder. SQLite gives the files beside it the same rights."""
    with suppress(OSError):  # it is there, or SQLite says why it cannot be
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _identities(files: Sequence[Path]) -> list[tuple[int, int]]:
    """Which files these are, whatever their names."""
    try:
        return [(found.st_dev, found.st_ino) for found in map(Path.stat, files)]
    except OSError:
        return []


def _prepare(connection: apsw.Connection, path: Path, new_log_id: bytes, now_us: int) -> None:
    """Make of the file, which may be empty, a log of the current version, or refuse it untouched."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    version = version_of(connection, path)
    if version == 0:
        connection.pragma("page_size", PAGE_BYTES)
    else:
        check_schema(connection, path, version)
        _check(connection, path)
    mode = connection.pragma("journal_mode", "wal")
    if mode != "wal":
        raise DiskError(f"the log {path} cannot be opened: its disk does not allow a write-ahead log ({mode})")
    connection.pragma("synchronous", "FULL")
    connection.pragma("secure_delete", 0)
    connection.wal_autocheckpoint(0)
    if version < len(sql.MIGRATIONS):
        with transaction(connection):
            for script in sql.MIGRATIONS[version:]:
                connection.execute(script)
            if version == 0:
                set_meta(connection, Meta(new_log_id, now_us, new_stamp(connection)))
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", len(sql.MIGRATIONS))


def _secure(connection: apsw.Connection) -> None:
    """What a killed process wrote and did not sync can be read by now, and a power cut would still take it.

    So before anybody relies on what was found, all of it goes into the file, which syncs both, and a commit begins the
    WAL anew: none stands behind something there that an earlier sync has failed to save. Where somebody reads and the
    WAL cannot be emptied, the sync of the commit has to do.
    """
    with suppress(apsw.BusyError):
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    with transaction(connection):
        connection.pragma("user_version", len(sql.MIGRATIONS))


def _check(connection: apsw.Connection, path: Path) -> None:
    """That SQLite finds its way. Whether a block holds what was written is seen when it is read."""
    checked: list[str] = ["1"]  # all of them, up to the first fault
    disorder = None
    if connection.pragma("page_count") * connection.pragma("page_size") >= QUICK_CHECK_BYTES:
        checked = [f'"{name}"' for name in tables() if name != BLOCKS]
        disorder = connection.execute(QUERIES["select_disorder"], (CHECKED_BLOCKS,)).get
    checks = (connection.execute(f"PRAGMA quick_check({what})").fetchone() for what in checked)
    faults = [str(found) for check in checks for found in check or () if found != "ok"]
    if disorder is not None:
        faults.append(f"the block {disorder} stands in the wrong place")
    if faults:
        raise LogDamagedError(
            f"the log {path} cannot be opened: it is damaged ({faults[0]}). "
            "Save what is intact with `godwit log recover`, or restore a backup"
        )
