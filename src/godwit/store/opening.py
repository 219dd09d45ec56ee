"""Opening a log for writing: bring it to the current version, check it, compare it with its witness, repair it.

Steps that only look come first, so that a file that is refused stays as it is. The comparison finds confirmed messages
that the log does not have any more (see godwit.store.witness). Blocks of these that are still intact in the write-ahead
log are put back; the rest becomes a lost range, a block without a body, which readers report when they come to it.
Offsets of lost messages are never given out again.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw
import msgspec

from godwit.errors import DiskError, LogDamagedError
from godwit.limits import MIB
from godwit.store import sql
from godwit.store.block import Row, encode_topics, make_row
from godwit.store.connection import connect, transaction
from godwit.store.kept import apply, load_state, marks_of, unsettle
from godwit.store.meta import Meta, load_meta, new_stamp, set_meta
from godwit.store.pages import FRAME_BYTES, PAGE_BYTES, WAL_HEAD_BYTES
from godwit.store.ranges import Ranges
from godwit.store.salvage import rows_of_wal
from godwit.store.scan import Ends, Scanner
from godwit.store.schema import APPLICATION_ID, BLOCKS, check_schema, tables, version_of
from godwit.store.sql import QUERIES
from godwit.store.witness import (
    SUFFIX,
    WalCondition,
    Witness,
    WitnessRecord,
    count_frames,
    read_salts,
    read_witness,
)
from godwit.wire.changes import NextJob

QUICK_CHECK_BYTES: Final = 256 * MIB
"""A longer file is not read whole at its start ..."""
CHECKED_BLOCKS: Final = 10_000
"""... but only seen to have its newest blocks in order."""
LOST_JOBS: Final = 2**32
"""How many job numbers are left out where the next one is not known."""
WITNESSED_VERSION: Final = 3
"""The first version of the schema whose logs have a witness."""
MAX_KEPT: Final = 100
"""Damaged write-ahead logs that are kept in one folder."""


class Opening:
    """One attempt. `run`, then use `connection` and `witness`; `close` if that is not to be."""

    connection: apsw.Connection
    witness: Witness

    def __init__(self, path: Path, *, new_log_id: bytes, now_us: int, vfs: str | None) -> None:
        self.findings: list[str] = []
        """What was wrong, in sentences for the operator."""
        self._path = path
        self._new_log_id = new_log_id
        self._now_us = now_us
        self._vfs = vfs
        self._version = 0
        """Of the schema that was found; 0 if the file was empty."""
        self._condition: WalCondition = "complete"
        self._frames = 0
        """Of the write-ahead log, that SQLite accepted."""

    def run(self) -> None:
        """Raise LogDamagedError, LogVersionError or an error of SQLite's if the log cannot be used."""
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
            self._compare(record)
        elif record.confirmed:
            self.findings.append(
                f"{self._path} is not the log that was last used in this folder, which had messages up to offset "
                f"{record.confirmed - 1:,}: its id is {log_id.hex()}, and was {record.log_id.hex()}"
            )

    def close(self) -> None:
        """Let go of everything that was opened."""
        with suppress(apsw.Error, AttributeError):  # the error that led here says more
            self.witness.close(is_final=False)
        with suppress(apsw.Error, AttributeError):
            self.connection.close()

    def _connect(self) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        self.connection = connect(self._path, flags, self._vfs)
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _prepare(self) -> None:
        """Make of the file, which may be empty, a log of the current version, or refuse it untouched."""
        connection, path = self.connection, self._path
        self._version = version = version_of(connection, path)
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
                    set_meta(connection, Meta(self._new_log_id, self._now_us, new_stamp(connection)))
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", len(sql.MIGRATIONS))
        load_state(connection)  # only to see that it can be believed: the broker asks for it later

    # -- the comparison with the witness ------------------------------------------------------------------------------

    def _without_witness(self) -> str:
        what = "is damaged" if self.witness.is_damaged else "is missing"
        return (
            f"{self._path}{SUFFIX} {what}: whether the log is complete up to the last confirmed message cannot be "
            "checked this time. A new one is begun"
        )

    def _judge(self, record: WitnessRecord) -> WalCondition:
        """See what became of the write-ahead log, before anything of it is believed or copied into the file."""
        version_of(self.connection, self._path)  # has SQLite look at the file
        self._frames = count_frames(self.connection)
        condition = record.judge(read_salts(f"{self._path}-wal", self._vfs), self._frames)
        if condition == "torn":
            raise LogDamagedError(
                f"the log {self._path} cannot be opened: {self._path.name}-wal is damaged, and what is left of it does "
                "not fit to the file. Save what is intact with `godwit log recover`, or restore a backup"
            )
        if condition == "needless":
            self.connection.close()
            kept = self._keep_wal()
            _empty(f"{self._path}-wal", self._vfs)
            self._connect()
            self._frames = 0
            self.findings.append(
                f"{self._path}-wal was damaged and is empty now. Nothing is lost: {self._path.name} has all of it{kept}"
            )
        return condition

    def _compare(self, record: WitnessRecord) -> None:
        ends = Scanner(self.connection).ends()
        missing = record.missing_after(record.log_id, ends.next_offset)
        if missing is not None:
            self._repair(*missing, ends)
        elif self._condition == "short":
            self._leave_out_jobs()
            self.findings.append(
                f"{self._path}-wal is shorter than it was: no message is missing, but sessions, cursors, retained "
                "messages and jobs may be older than what was last confirmed, unless another program has moved it "
                f"into {self._path.name}"
            )

    def _repair(self, begin: int, end: int, ends: Ends) -> None:
        rows, kept = self._save_blocks(begin, end)
        taken = Ranges()
        saved = [row for row in rows if taken.add(row.first_offset, row.end_offset)]
        lost = taken.gaps(begin, end)
        with transaction(self.connection):
            unsettle(self.connection, begin)
            until_us = ends.until_us
            for row in sorted([*saved, *(_lost_row(*each) for each in lost)], key=lambda row: row.first_offset):
                if not row.body:
                    row = make_row(row.first_offset, row.end_offset, until_us, until_us, row.topics, b"")
                until_us = row.until_us
                self.connection.execute(QUERIES["insert_block"], msgspec.structs.astuple(row))
        self._leave_out_jobs()
        self.findings.append(
            f"offsets {_text(begin, end)} of the log {self._path} were confirmed and are missing: its files were "
            f"damaged, cut short or replaced by older ones. {_saved_text(saved, lost)}. Sessions, cursors, retained "
            f"messages and jobs may be older than what was last confirmed{kept}"
        )

    def _save_blocks(self, begin: int, end: int) -> tuple[list[Row], str]:
        """Return the blocks of a range that are still intact in the write-ahead log, and what became of that file."""
        wal = Path(f"{self._path}-wal")
        used_bytes = WAL_HEAD_BYTES + self._frames * FRAME_BYTES
        if self._vfs is not None or not wal.exists() or wal.stat().st_size <= used_bytes:
            return [], ""
        stamp, marks = load_meta(self.connection).stamp, marks_of(self.connection)
        self.connection.close()  # no other descriptor of the file may be closed while SQLite has it open
        rows = rows_of_wal(self._path, stamp, marks, begin, end)
        kept = self._keep_wal()
        self._connect()
        self._prepare()
        return rows, kept

    def _keep_wal(self) -> str:
        """Copy a damaged write-ahead log, whose file SQLite will use again; return a sentence that says where."""
        wal = Path(f"{self._path}-wal")
        names = [f"{wal.name}.damaged{f'-{number}' if number > 1 else ''}" for number in range(1, MAX_KEPT + 1)]
        kept = next((place for name in names if not os.path.lexists(place := wal.with_name(name))), None)
        if self._vfs is not None or kept is None:
            return ""
        try:
            shutil.copy2(wal, kept)
        except OSError:  # there is no room, and what is intact in it was saved
            kept.unlink(missing_ok=True)
            return ""
        return f". The damaged file is kept as {kept.name}"

    def _leave_out_jobs(self) -> None:
        """Skip job numbers that may have been given out by lost commits."""
        next_job = load_state(self.connection).next_job
        with transaction(self.connection):
            apply(self.connection, [NextJob(next_job + LOST_JOBS)])


def refuse_missing(path: Path) -> None:
    """Raise LogDamagedError if the file of a log that had messages is gone: a new one would use their offsets again."""
    record = read_witness(path)
    try:
        is_there = path.stat().st_size > 0
    except OSError:
        is_there = False
    if record is not None and record.confirmed and not is_there:
        raise LogDamagedError(
            f"{path} is missing or empty, and messages up to offset {record.confirmed - 1:,} were confirmed in it. "
            "Put it back, or restore a backup. To continue without these messages, run `godwit log recover`; to begin "
            f"a new log, move {path.name}{SUFFIX} away"
        )


def _check(connection: apsw.Connection, path: Path) -> None:
    """Raise LogDamagedError unless SQLite's pages are in order. Whether a block is intact is seen when it is read."""
    checked: list[str] = ["1"]  # all tables, up to the first fault
    disorder = None
    if connection.pragma("page_count") * connection.pragma("page_size") >= QUICK_CHECK_BYTES:
        checked = [f'"{name}"' for name in tables() if name != BLOCKS]
        disorder = connection.execute(QUERIES["select_disorder"], (CHECKED_BLOCKS,)).get
    checks = (connection.execute(f"PRAGMA quick_check({what})").fetchone() for what in checked)
    faults = [str(found) for check in checks for found in check or () if found != "ok"]
    if disorder is not None:
        faults.append(f"the block {disorder} is in the wrong place")
    if faults:
        raise LogDamagedError(
            f"the log {path} cannot be opened: it is damaged ({faults[0]}). "
            "Save what is intact with `godwit log recover`, or restore a backup"
        )


def _lost_row(begin: int, end: int) -> Row:
    return make_row(begin, end, 0, 0, encode_topics([]), b"")


def _text(begin: int, end: int) -> str:
    return f"{begin:,}" if end == begin + 1 else f"{begin:,} to {end - 1:,}"


def _saved_text(saved: list[Row], lost: list[tuple[int, int]]) -> str:
    """Say what became of a range."""
    if not lost:
        return "All of them were found intact in the write-ahead log and put back"
    ranges = ", ".join(_text(*each) for each in lost[:8]) + (f" and {len(lost) - 8:,} more ranges" if lost[8:] else "")
    text = f"Offsets {ranges} are lost for good: they are never used again, and readers get a gap there"
    return f"The others were found intact in the write-ahead log and put back. {text}" if saved else text


def _empty(wal_path: str, vfs: str | None) -> None:
    """Cut a write-ahead log that is not needed, and that no connection has open, to nothing."""
    flags = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE
    file = apsw.VFSFile(vfs or "", wal_path, [flags, 0])
    try:
        file.xTruncate(0)
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
    finally:
        file.xClose()
