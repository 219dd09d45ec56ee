"""The log in a file of SQLite's: blocks of batches, and beside them what a broker must know after a restart.

    log.sqlite          the tables of schema_*.sql; pages of 16 KiB, so that a block of 1 MiB is written in few pieces
    log.sqlite-wal      what was committed since the last checkpoint
    log.sqlite-witness  how far the log was confirmed (godwit.store.witness): what is missing at a start is noticed

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

import apsw
import msgspec

from godwit.errors import DiskError
from godwit.store import sql
from godwit.store.block import encode_blocks
from godwit.store.connection import BUSY_TIMEOUT_MS, telling, transaction
from godwit.store.kept import apply, load_state
from godwit.store.meta import load_meta
from godwit.store.opening import Opening, refuse_missing
from godwit.store.port import Change, Entry, Slice, State
from godwit.store.scan import Scanner
from godwit.store.schema import refuse_other
from godwit.store.sql import QUERIES
from godwit.store.witness import Witness


class SqliteStore:
    """See godwit.store.port. To be used by one thread at a time."""

    def __init__(self, path: Path, connection: apsw.Connection, witness: Witness, files: Sequence[Path]) -> None:
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
        self.findings: list[str] = []
        """What was wrong when it was opened, in sentences for the operator; empty if nothing was."""
        self._witness = witness
        self._frames: int | None = None
        """Length of the write-ahead log after a commit that the witness has not recorded yet."""
        self._is_secured = False
        """Whether what was found at the start is on the disk."""
        self._is_closed = False
        connection.set_wal_hook(self._on_commit)

    @classmethod
    def open(cls, path: str | Path, *, new_log_id: bytes, now_us: int, vfs: str | None = None) -> SqliteStore:
        """Open the file, or make it; bring it to the current version; see that it is sound."""
        path = Path(path)
        if vfs is None:
            refuse_other(path)
            refuse_missing(path)
            _create(path)
        with telling(path, "opened"):
            opening = Opening(path, new_log_id=new_log_id, now_us=now_us, vfs=vfs)
            try:
                opening.run()
                store = cls(path, opening.connection, opening.witness, () if vfs else (path, Path(f"{path}-wal")))
                store._begin(opening.findings)
            except BaseException:
                opening.close()
                raise
            # Only now, so that a file that was refused stays as it is.
            opening.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        return store

    def _begin(self, findings: list[str]) -> None:
        self.findings += findings
        try:
            self._secure()
        except apsw.FullError:
            self.findings.append(
                f"the disk of the log {self.path} is full: messages are refused until there is room. Free some space"
            )

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
        with self._changing(rows[-1].end_offset if rows else first_offset) as connection:
            connection.executemany(QUERIES["insert_block"], map(msgspec.structs.astuple, rows))
            apply(connection, changes)
        if rows:
            self._next_offset = rows[-1].end_offset
            self.last_received_us = rows[-1].until_us
        self._attest()
        return first_offset

    @contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """All or nothing, on disk when it is left. StorageError when that cannot be, and nothing has changed."""
        with self._changing(self._next_offset) as connection:
            yield connection
        self._attest()

    @contextmanager
    def _changing(self, end_offset: int) -> Iterator[apsw.Connection]:
        """Make a transaction after which the log ends at this offset."""
        if _identities(self._files) != self._identities:
            # The system lets us write on to files that have lost their names: all of it would be gone with the process.
            raise DiskError(
                f"the log {self.path} cannot be written: it was moved or deleted while it was in use. "
                "Stop the broker, put the file and its -wal back, and start again"
            )
        with telling(self.path, "written"):
            if not self._is_secured:
                self._secure()
            self._witness.reserve(end_offset)
            with transaction(self.connection):
                yield self.connection

    def _on_commit(self, connection: apsw.Connection, name: str, frames: int) -> int:
        self._frames = frames
        return apsw.SQLITE_OK

    def _attest(self) -> None:
        """Have the witness record the commit that was just made."""
        frames, self._frames = self._frames, None
        if frames is None:
            return  # it changed nothing
        # The commit counts whatever happens here. A witness that cannot be written fails the next one.
        with suppress(apsw.Error):
            self._witness.confirm(self._next_offset, self.last_received_us, frames)

    def _secure(self) -> None:
        """Bring what a killed process wrote and did not sync to the disk: a power cut would still take it.

        Before anything relies on it, all of it goes into the file, which syncs both, and a commit begins the WAL anew:
        none follows something there that an earlier sync has failed to save. Where another process reads and the WAL
        cannot be emptied, the sync of the commit has to do.
        """
        frames, _ = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        self._witness.begin(self.log_id, max(frames, 0))
        self._checkpoint(truncate=True)
        with transaction(self.connection):
            self.connection.pragma("user_version", len(sql.MIGRATIONS))
        self._attest()
        self._witness.sync()
        self._is_secured = True

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
        with telling(self.path, "written"):
            self._checkpoint(truncate=truncate)

    def _checkpoint(self, *, truncate: bool) -> None:
        witness, connection = self._witness, self.connection
        connection.set_busy_timeout(0)
        try:
            witness.begin_checkpoint()
            frames, backfilled = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            witness.end_checkpoint(frames, backfilled)
            if truncate and frames == backfilled:
                with suppress(apsw.BusyError):
                    witness.end_checkpoint(*connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))
        finally:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)

    def sync_witness(self) -> None:
        """Bring the record of the last commit to the disk: at least once a second while there are any."""
        with telling(self.path, "written"):
            self._witness.sync()

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
        """The WAL goes into the file, if that can be. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        with telling(self.path, "closed"):
            try:
                if self._is_secured:
                    with suppress(apsw.Error):  # then the WAL stays, with all that is in it
                        self._checkpoint(truncate=True)
                self.connection.close()
            except BaseException:
                self._witness.close(is_final=False)
                raise
            self._witness.close(is_final=self._is_secured)


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
