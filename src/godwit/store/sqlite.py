"""A log in a SQLite file: blocks of batches, and beside them the state that a broker needs after a restart.

    log.sqlite          the tables of schema.sql; pages of 16 KiB, so that a block of 1 MiB is written in few pieces
    log.sqlite-wal      commits since the last checkpoint
    log.sqlite-witness  how far the log was confirmed (godwit.store.witness), to notice missing commits at a start

An append is one transaction: its batches as one or a few blocks, with the changes that belong to them. With
synchronous=FULL it is on disk when it returns. Exactly one connection writes, and it alone checkpoints: only when asked
(wal_autocheckpoint=0), because a commit must not wait for it. Others read the file (godwit.store.reader).

The file contains what it is (application_id) and its version (user_version). An older log is upgraded in one
transaction; a newer one, or a file that is not a log, is refused and left unchanged.

Opening a log brings it to the current version, checks it, compares it with its witness, and repairs it. Read-only steps
come first, so that a refused file remains unchanged. The comparison finds confirmed messages that the log has lost.
Their blocks are restored if they are still intact in the write-ahead log; the rest becomes a lost range, a block
without a body, which readers report when they reach it. Offsets of lost messages are never assigned again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Final, Self

import apsw
import msgspec

from godwit.errors import DiskError, LogDamagedError
from godwit.limits import MIB
from godwit.store.block import BlockRow, encode_blocks, encode_topic_index, make_row
from godwit.store.connection import BUSY_TIMEOUT_MS, connect, transaction, translate_errors
from godwit.store.folder import LOG_FILES, sign_of_log
from godwit.store.legacy import upgrade
from godwit.store.port import Change, Entry, OffsetRanges, Slice
from godwit.store.reader import BlockScanner, EpochRow, LogEnds, insert_epoch, load_epochs
from godwit.store.recover import LOST_JOBS, rows_of_wal
from godwit.store.schema import (
    BLOCKS,
    QUERIES,
    VERSION,
    check_schema,
    create_schema,
    refuse_foreign_file,
    set_version,
    tables,
    version_of,
)
from godwit.store.sqlite_pages import FRAME_BYTES, PAGE_BYTES, WAL_HEAD_BYTES
from godwit.store.state import (
    LogMeta,
    apply_changes,
    load_floors,
    load_meta,
    load_state,
    new_secret,
    store_meta,
    unsettle_subscriptions,
)
from godwit.store.witness import (
    SUFFIX,
    WalCondition,
    Witness,
    WitnessRecord,
    count_frames,
    read_salts,
    read_witness,
)
from godwit.wire.changes import NextJobRow, StoredState
from godwit.wire.epochs import EPOCH_ID_BYTES, Epoch

QUICK_CHECK_BYTES: Final = 256 * MIB
"""A longer file is not read whole at its start; only the order of its newest blocks is checked."""
CHECKED_BLOCKS: Final = 10_000
WITNESSED_VERSION: Final = 3
"""The first version of the schema whose logs have a witness."""
EXTENSION_BYTES: Final = MIB
"""The write-ahead log is lengthened by this much at a time, because a commit may wait for that."""
MAX_DAMAGED_WALS: Final = 100
"""Copies of damaged write-ahead logs in one folder."""


class SqliteStore:
    """A durable log (see godwit.store.port). It must be used by one thread at a time. Errors are StorageError."""

    is_replica: ClassVar = False
    """Whether missing commits are fetched from elsewhere (godwit.store.replica), so that an older file is intact."""

    def __init__(
        self, path: Path, connection: apsw.Connection, witness: Witness, files: Sequence[Path], epoch_id: bytes
    ) -> None:
        """Use `open`."""
        self.path = path
        self.connection = connection
        """For retention, which works in the writer's thread, between its commits."""
        self._files = files
        """Files that must not be moved while the log is open."""
        self._inodes = _inodes(files)
        self._scanner = BlockScanner(connection)
        meta = load_meta(connection)
        self.log_id, self.created_us, self.log_secret = meta.log_id, meta.created_us, meta.stamp
        ends = self._scanner.ends()
        self._next_offset = ends.next_offset
        self._epoch_id = epoch_id
        self._has_begun = False
        """Whether the epoch of this opening is in the log, with its first message."""
        self._epochs = [row.epoch for row in load_epochs(connection)]
        self.last_received_us = ends.until_us
        """The receive time of an entry must not be earlier, even if the system's clock was set back."""
        self.findings: list[str] = []
        """Problems found when it was opened, as sentences for the operator."""
        self._witness = witness
        self._frames: int | None = None
        """Length of the write-ahead log after a commit that the witness has not recorded yet."""
        self._is_secured = False
        """Whether the data found at the start is known to be on disk."""
        self._is_closed = False
        connection.set_wal_hook(self._on_commit)

    @classmethod
    def open(cls, path: str | Path, *, new_log_id: bytes, now_us: int, vfs: str | None = None) -> Self:
        """Open or create a log, upgrade it to the current version, check and repair it.

        Args:
            path: The file.
            new_log_id: Random for each opening: the id of the log if it is new, and its first bytes are the id of the
                epoch that this opening begins.
            now_us: Current time.
            vfs: Name of a SQLite file system; None for that of the machine.

        Raises:
            LogDamagedError: The log is damaged or incomplete in a way that only `recover` can handle.
            LogVersionError: The file is of a newer version, or not a log.
            DiskError: The disk failed or is full.
        """
        path = Path(path)
        if vfs is None:
            refuse_foreign_file(path)
            refuse_missing(path, is_replica=cls.is_replica)
            _create(path)
        with translate_errors(path, "opened"):
            opening = _Opening(path, new_log_id=new_log_id, now_us=now_us, vfs=vfs, is_replica=cls.is_replica)
            try:
                opening.run()
                files = () if vfs else (path, Path(f"{path}-wal"))
                store = cls(path, opening.connection, opening.witness, files, new_log_id[:EPOCH_ID_BYTES])
                store._begin(opening.findings)
            except BaseException:
                opening.close()
                raise
            # Not earlier, so that a refused file remains unchanged.
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
        with translate_errors(self.path, "read"):
            return self._scanner.ends().first_offset

    @property
    def next_offset(self) -> int:
        return self._next_offset

    def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        """Append entries and apply changes in one transaction; see Store.append."""
        first_offset = self._next_offset
        if not entries and not changes:
            return first_offset
        rows = encode_blocks(entries, first_offset, self.log_secret)
        with self._changing(rows[-1].end_offset if rows else first_offset) as connection:
            connection.executemany(QUERIES["insert_block"], map(msgspec.structs.astuple, rows))
            if rows and not self._has_begun:
                insert_epoch(connection, EpochRow(first_offset, self._epoch_id, rows[0].received_us))
            if changes:
                apply_changes(connection, changes)
        if rows:
            if not self._has_begun:
                self._has_begun = True
                self._epochs.append(Epoch(self._epoch_id, first_offset))
            self._next_offset = rows[-1].end_offset
            self.last_received_us = rows[-1].until_us
        self._attest()
        return first_offset

    @contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """Make changes of the caller one transaction, which is on disk when the block ends.

        Raise StorageError if that fails; then nothing has changed.
        """
        with self._changing(self._next_offset) as connection:
            yield connection
        self._attest()

    @contextmanager
    def _changing(self, end_offset: int) -> Iterator[apsw.Connection]:
        """Begin a transaction after which the log ends at this offset."""
        if _inodes(self._files) != self._inodes:
            # Writes to a file without a name succeed, but are lost when the process ends.
            raise DiskError(
                f"the log {self.path} cannot be written: it was moved or deleted while it was in use. "
                "Stop the broker, put the file and its -wal back, and start again"
            )
        with translate_errors(self.path, "written"):
            if not self._is_secured:
                self._secure()
            self._witness.reserve(end_offset)
            with transaction(self.connection):
                yield self.connection

    def _on_commit(self, connection: apsw.Connection, name: str, frames: int) -> int:
        self._frames = frames
        return apsw.SQLITE_OK

    def _attest(self) -> None:
        """Record the last commit in the witness."""
        frames, self._frames = self._frames, None
        if frames is None:
            return  # the transaction changed nothing
        # The commit is durable whatever happens here. A witness that fails to be written fails the next commit.
        with suppress(apsw.Error):
            self._witness.confirm(self._next_offset, self.last_received_us, frames)

    def _secure(self) -> None:
        """Sync what a killed process wrote without a sync, which a power failure would still lose.

        A checkpoint moves everything into the main file and syncs both files, and a commit restarts the WAL, so no
        later commit depends on data that an earlier sync failed to save. If another process reads and the WAL cannot
        be emptied, the sync of that commit has to suffice.
        """
        self._witness.begin(self.log_id, count_frames(self.connection))
        self._checkpoint(truncate=True)
        with transaction(self.connection):
            self.connection.pragma("user_version", VERSION)
        self._attest()
        self._witness.sync()
        self._is_secured = True

    @property
    def epochs(self) -> list[Epoch]:
        return self._epochs if self._has_begun else [*self._epochs, Epoch(self._epoch_id, self._next_offset)]

    def state(self) -> StoredState:
        """Return the state rows; see Store.state."""
        with translate_errors(self.path, "read"):
            return load_state(self.connection)

    def read(self, offset: int, max_bytes: int) -> Slice:
        """Return entries; see Store.read."""
        with translate_errors(self.path, "read"):
            return self._scanner.read(offset, max_bytes)

    def offset_at(self, time_us: int) -> int:
        """Return the first offset received at or after a time; see Store.offset_at."""
        with translate_errors(self.path, "read"):
            return self._scanner.offset_at(time_us)

    def checkpoint(self, *, truncate: bool) -> None:
        """Copy commits from the WAL into the main file, without waiting for readers.

        Args:
            truncate: Truncate the WAL if all of it was copied. Pages that a reader still needs are left to a later
                checkpoint.
        """
        with translate_errors(self.path, "written"):
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

    def probe(self) -> None:
        """Write to the file without changing anything. Raise StorageError if that fails."""
        with self.transaction() as connection:
            connection.pragma("user_version", connection.pragma("user_version"))

    def sync_witness(self) -> None:
        """Sync the record of the last commit. To be called once a second while there are commits."""
        with translate_errors(self.path, "written"):
            self._witness.sync()

    @property
    def wal_bytes(self) -> int:
        """Size of the WAL; 0 with a VFS, whose files only SQLite can find."""
        try:
            return self._files[-1].stat().st_size if self._files else 0
        except OSError:  # the file or its folder is missing: the next append reports it
            return 0

    def extend_wal(self, least_bytes: int) -> bool:
        """Lengthen the WAL by zeros, a piece at a time, and sync it. Return whether it has this size now.

        A commit that overwrites takes a fraction of the time of one that makes the file longer, whose new length is
        written to the disk too. SQLite does not take zeros for a frame: the salts are wrong.
        """
        size_bytes = self.wal_bytes
        if not 0 < size_bytes < least_bytes:  # 0: a commit makes the file, with the right permissions
            return True
        file = os.open(self._files[-1], os.O_WRONLY)
        try:
            piece_bytes = min(least_bytes - size_bytes, EXTENSION_BYTES)
            os.pwrite(file, bytes(piece_bytes), size_bytes)
            os.fsync(file)
        finally:
            os.close(file)
        return size_bytes + piece_bytes >= least_bytes

    @property
    def size_bytes(self) -> int:
        """Size of the main file, including free pages, once all of the WAL is in it."""
        with translate_errors(self.path, "read"):
            return int(self.connection.pragma("page_count")) * int(self.connection.pragma("page_size"))

    def close(self) -> None:
        """Checkpoint if possible and close all files. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        with translate_errors(self.path, "closed"):
            try:
                if self._is_secured:
                    with suppress(apsw.Error):  # the WAL then keeps its content
                        self._checkpoint(truncate=True)
                self.connection.close()
            except BaseException:
                self._witness.close(is_final=False)
                raise
            self._witness.close(is_final=self._is_secured)


def _create(path: Path) -> None:
    """Create the file readable by its owner only. SQLite gives the files beside it the same permissions."""
    with suppress(OSError):  # it exists, or SQLite reports the reason
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _inodes(files: Sequence[Path]) -> list[tuple[int, int]]:
    """Return what identifies these files apart from their names; nothing if one is missing."""
    try:
        return list(map(attrgetter("st_dev", "st_ino"), map(os.stat, files)))
    except OSError:
        return []


# -- opening ----------------------------------------------------------------------------------------------------------


class _Opening:
    """One attempt to open a log. After `run`, use `connection` and `witness`; if it raises, call `close`."""

    connection: apsw.Connection
    witness: Witness

    def __init__(self, path: Path, *, new_log_id: bytes, now_us: int, vfs: str | None, is_replica: bool) -> None:
        self._is_replica = is_replica
        self.findings: list[str] = []
        """Problems, as sentences for the operator."""
        self._path = path
        self._new_log_id = new_log_id
        self._now_us = now_us
        self._vfs = vfs
        self._version = 0
        """Version of the file; 0 if it was empty."""
        self._condition: WalCondition = "complete"
        self._frames = 0
        """Frames of the write-ahead log that SQLite accepted."""

    def run(self) -> None:
        """Open, upgrade, check and repair the log. Raise LogDamagedError, LogVersionError or an error of SQLite."""
        self._connect()
        record = read_witness(self._path, self._vfs)
        if record is not None:
            self._condition = self._judge(record)
        self._prepare()
        self.witness = Witness(self._path, self._vfs)
        log_id = load_meta(self.connection).log_id
        if record is None:
            if self._version >= WITNESSED_VERSION:
                self.findings.append(self._without_witness())
        elif record.is_of(log_id):
            if not self._is_replica:
                self._compare(record)
        elif record.confirmed:
            self.findings.append(
                f"{self._path} is not the log that was last used in this folder, which had messages up to offset "
                f"{record.confirmed - 1:,}: its id is {log_id.hex()}, and was {record.log_id.hex()}"
            )

    def close(self) -> None:
        """Close everything that was opened."""
        with suppress(apsw.Error, AttributeError):  # the error that led here is more informative
            self.witness.close(is_final=False)
        with suppress(apsw.Error, AttributeError):
            self.connection.close()

    def _connect(self) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        self.connection = connect(self._path, flags, self._vfs)
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _prepare(self) -> None:
        """Make the file, which may be empty, a log of the current version, or refuse it unchanged."""
        connection, path = self.connection, self._path
        self._version = version = version_of(connection, path)
        if version == 0:
            connection.pragma("page_size", PAGE_BYTES)
        else:
            check_schema(connection, path, version)
            _check_pages(connection, path)
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise DiskError(f"the log {path} cannot be opened: its disk does not allow a write-ahead log ({mode})")
        connection.pragma("synchronous", "FULL")
        connection.pragma("secure_delete", 0)
        connection.wal_autocheckpoint(0)
        if version < VERSION:
            with transaction(connection):
                if version == 0:
                    create_schema(connection)
                    store_meta(connection, LogMeta(self._new_log_id, self._now_us, new_secret(connection)))
                else:
                    upgrade(connection, version)
                    set_version(connection)
        load_state(connection)  # only checks that all rows are valid: the broker loads them later

    # -- the comparison with the witness ------------------------------------------------------------------------------

    def _without_witness(self) -> str:
        what = "is damaged" if self.witness.is_damaged else "is missing"
        return (
            f"{self._path}{SUFFIX} {what}: whether the log is complete up to the last confirmed message cannot be "
            "checked this time. A new one is begun"
        )

    def _judge(self, record: WitnessRecord) -> WalCondition:
        """Judge the write-ahead log before its content is used or copied into the main file."""
        version_of(self.connection, self._path)  # makes SQLite read the file
        self._frames = count_frames(self.connection)
        condition = record.judge(read_salts(f"{self._path}-wal", self._vfs), self._frames)
        if condition == "torn":
            raise LogDamagedError(
                f"the log {self._path} cannot be opened: {self._path.name}-wal is damaged, and what is left of it does "
                "not fit to the file. Save what is intact with `godwit log recover`, or restore a backup"
            )
        if condition == "needless":
            self.connection.close()
            note = self._copy_damaged_wal()
            _truncate(f"{self._path}-wal", self._vfs)
            self._connect()
            self._frames = 0
            self.findings.append(
                f"{self._path}-wal was damaged and is empty now. Nothing is lost: {self._path.name} has all of it{note}"
            )
        return condition

    def _compare(self, record: WitnessRecord) -> None:
        ends = BlockScanner(self.connection).ends()
        missing = record.missing_after(record.log_id, ends.next_offset)
        if missing is not None:
            self._repair(*missing, ends)
        elif self._condition == "short":
            self._skip_job_numbers()
            self.findings.append(
                f"{self._path}-wal is shorter than it was: no message is missing, but sessions, cursors, retained "
                "messages and jobs may be older than what was last confirmed, unless another program has moved it "
                f"into {self._path.name}"
            )

    def _repair(self, begin: int, end: int, ends: LogEnds) -> None:
        rows, note = self._save_blocks(begin, end)
        taken = OffsetRanges()
        saved = [row for row in rows if taken.add(row.first_offset, row.end_offset)]
        lost = taken.gaps(begin, end)
        with transaction(self.connection):
            unsettle_subscriptions(self.connection, begin)
            until_us = ends.until_us
            for row in sorted([*saved, *(_lost_row(*each) for each in lost)], key=lambda row: row.first_offset):
                if not row.body:
                    row = make_row(row.first_offset, row.end_offset, until_us, until_us, row.topics, b"")
                until_us = row.until_us
                self.connection.execute(QUERIES["insert_block"], msgspec.structs.astuple(row))
        self._skip_job_numbers()
        self.findings.append(
            f"offsets {_text(begin, end)} of the log {self._path} were confirmed and are missing: its files were "
            f"damaged, cut short or replaced by older ones. {_saved_text(saved, lost)}. Sessions, cursors, retained "
            f"messages and jobs may be older than what was last confirmed{_repeats_text(saved)}{note}"
        )

    def _save_blocks(self, begin: int, end: int) -> tuple[list[BlockRow], str]:
        """Return the blocks of a range that are intact in the write-ahead log, and a note about a copy of it."""
        wal = Path(f"{self._path}-wal")
        used_bytes = WAL_HEAD_BYTES + self._frames * FRAME_BYTES
        if self._vfs is not None or not wal.exists() or wal.stat().st_size <= used_bytes:
            return [], ""
        secret, floors = load_meta(self.connection).stamp, load_floors(self.connection)
        self.connection.close()  # while SQLite has the file open, no other descriptor of it may be closed
        rows = rows_of_wal(self._path, secret, floors, begin, end)
        note = self._copy_damaged_wal()
        self._connect()
        self._prepare()
        return rows, note

    def _copy_damaged_wal(self) -> str:
        """Copy a damaged write-ahead log, whose file SQLite will overwrite, and return a sentence with its name."""
        wal = Path(f"{self._path}-wal")
        names = [f"{wal.name}.damaged{f'-{number}' if number > 1 else ''}" for number in range(1, MAX_DAMAGED_WALS + 1)]
        copy = next((path for name in names if not os.path.lexists(path := wal.with_name(name))), None)
        if self._vfs is not None or copy is None:
            return ""
        try:
            shutil.copy2(wal, copy)
        except OSError:  # there is no room, and its intact blocks were saved
            copy.unlink(missing_ok=True)
            return ""
        return f". The damaged file is kept as {copy.name}"

    def _skip_job_numbers(self) -> None:
        """Skip job numbers that lost commits may have assigned."""
        next_job = load_state(self.connection).next_job
        with transaction(self.connection):
            apply_changes(self.connection, [NextJobRow(next_job + LOST_JOBS)])


def refuse_missing(path: Path, *, is_replica: bool = False) -> None:
    """Raise LogDamagedError if the file of a log is missing or empty, and its folder shows that there was a log.

    A new one would reuse its offsets. The witness is created after the log, so an unreadable one is a sign too, and so
    is one without confirmed messages: there may have been sessions and jobs.
    """
    with suppress(OSError):
        if path.stat().st_size:
            return
    record = read_witness(path)
    if is_replica and record is not None and not record.confirmed:
        return  # the cluster has everything
    remedy = "Put it back, or restore a backup"
    if record is not None:
        found = (
            f"messages up to offset {record.confirmed - 1:,} were confirmed in it"
            if record.confirmed
            else "it had no messages, but sessions and jobs may have been in it"
        )
        remedy += ". To continue without them, run `godwit log recover`"
    elif os.path.lexists(f"{path}{SUFFIX}"):
        found = f"{path.name}{SUFFIX} beside it is unreadable, so its last offset is unknown"
    elif (sign := sign_of_log(path)) is not None:
        found = f"{sign} in its folder shows that there was a log, whose last offset is unknown"
    else:
        return
    if is_replica:
        remedy = (
            f"Put it back; or move {LOG_FILES} of this folder away, and the node fetches everything from the cluster, "
            "or from a backup of another node with `godwit cluster seed`"
        )
    else:
        remedy += f"; to begin a new log, move {LOG_FILES} of this folder away, and keep its other files"
    raise LogDamagedError(f"{path} is missing or empty, and {found}. {remedy}")


def _check_pages(connection: apsw.Connection, path: Path) -> None:
    """Raise LogDamagedError unless SQLite's pages are in order. Blocks are checked when they are read."""
    checked: list[str] = ["1"]  # all tables, up to the first fault
    disorder = None
    if connection.pragma("page_count") * connection.pragma("page_size") >= QUICK_CHECK_BYTES:
        checked = [f'"{name}"' for name in tables() if name != BLOCKS]
        disorder = connection.execute(QUERIES["select_disorder"], (CHECKED_BLOCKS,)).get
    checks = (connection.execute(f"PRAGMA quick_check({what})").fetchone() for what in checked)
    faults = [" ".join(str(found).split()) for check in checks for found in check or () if found != "ok"]
    if disorder is not None:
        faults.append(f"the block {disorder} is in the wrong place")
    if faults:
        raise LogDamagedError(
            f"the log {path} cannot be opened: it is damaged ({faults[0]}). "
            "Save what is intact with `godwit log recover`, or restore a backup"
        )


def _lost_row(begin: int, end: int) -> BlockRow:
    return make_row(begin, end, 0, 0, encode_topic_index([]), b"")


def _text(begin: int, end: int) -> str:
    return f"{begin:,}" if end == begin + 1 else f"{begin:,} to {end - 1:,}"


def _saved_text(saved: list[BlockRow], lost: list[tuple[int, int]]) -> str:
    """Return a sentence about the restored and the lost blocks of a range."""
    if not lost:
        return "All of them were found intact in the write-ahead log and put back"
    ranges = ", ".join(_text(*each) for each in lost[:8]) + (f" and {len(lost) - 8:,} more ranges" if lost[8:] else "")
    text = f"Offsets {ranges} are lost for good: they are never used again, and readers get a gap there"
    return f"The others were found intact in the write-ahead log and put back. {text}" if saved else text


def _repeats_text(saved: list[BlockRow]) -> str:
    """Return a sentence about restored messages that are not recognized if they are sent again.

    The rows by which repeats are recognized are older than these blocks. They could be raised only by guessing, and a
    mark that is too high would lose messages.
    """
    if not saved:
        return ""
    return (
        ". Of the messages that were put back, those of QoS 2, of bridges and of Spark queries are stored a second "
        "time if they are sent again"
    )


def _truncate(wal_path: str, vfs: str | None) -> None:
    """Truncate a write-ahead log that is not needed, and that no connection has open."""
    flags = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE
    file = apsw.VFSFile(vfs or "", wal_path, [flags, 0])
    try:
        file.xTruncate(0)
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
    finally:
        file.xClose()
