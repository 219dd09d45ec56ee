"""Maintain a log: back it up while a broker writes it, replace it by a copy without free pages, and verify it.

Copies are made of rows and not of pages, a few blocks at a time, with statements that finish at once. SQLite's own
backup and VACUUM INTO read everything in one transaction: meanwhile the WAL of a busy broker could not be reused and
would grow by gigabytes; or they start over with every commit of another process. Blocks are only ever added at the end,
so a copy in pieces is consistent if its last piece is of one commit: the newest blocks, and all tables beside them.

Messages that retention deletes during the copy may be in it although they are below a retention floor: a floor only
promises that messages below it may be missing. Blocks are copied as they are, including damaged ones. The tables of a
copy are created by our own scripts: the schema in the file is never executed.

Verification may run while a broker works: it reads a few blocks at a time, and lets SQLite check the pages of the small
tables only, because a check of the whole file is one transaction and holds up the WAL. A log that is not in use is
checked whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import apsw
import msgspec

from godwit.errors import LogDamagedError, LogInUseError
from godwit.limits import MIB
from godwit.store.atomic_file import create_file, move_into_place
from godwit.store.block import DamagedBlockError, encode_topic_index, open_block
from godwit.store.connection import (
    SQLITE_SUFFIXES,
    DamagedRowError,
    allow_interrupts,
    connect,
    transaction,
    translate_errors,
    translate_full_disk,
)
from godwit.store.folder import is_data_folder, is_in_use
from godwit.store.port import ProgressCallback, joined
from godwit.store.reader import BlockScanner, LogReader, load_epochs
from godwit.store.schema import (
    BLOCKS,
    QUERIES,
    VERSION,
    check_schema,
    create_schema,
    parse_queries,
    read_sql,
    tables,
)
from godwit.store.sqlite_pages import PAGE_BYTES
from godwit.store.state import load_meta, load_state
from godwit.store.witness import (
    COMPANIONS,
    SUFFIX,
    WalCondition,
    WitnessRecord,
    count_frames,
    is_unreadable,
    read_salts,
    read_witness,
    write_witness,
)

PIECE_BYTES: Final = 16 * MIB
"""Copied by one statement."""
MAX_ROUNDS: Final = 8
"""How often a backup tries to catch up with a broker before it copies the rest in one transaction."""
MAX_PROBLEMS: Final = 100
"""Limit of problems in a VerifyReport."""

_SQL: Final = parse_queries(read_sql("copies.sql"))
_PIECE_BLOCKS: Final = 4096
_VERIFIED_BYTES: Final = 8 * MIB
_VERIFIED_BLOCKS: Final = 128


WitnessCondition: TypeAlias = Literal["intact", "damaged", "unreadable", "missing", "absent"]
"""Of a witness, which is needed to check the end of a log.

unreadable: this process may not read it, or the disk fails.
missing: a broker has worked in the folder, and it always writes one.
absent: the log is a copy of the file alone, which need not have one.
"""


class BackupReport(msgspec.Struct, frozen=True):
    """The content of a backup."""

    log_id: bytes
    blocks: int
    next_offset: int
    """Its end."""
    until_us: int
    """Receive time of its newest message."""
    size_bytes: int


class CompactReport(msgspec.Struct, frozen=True):
    """Size of a log before and after `compact`."""

    before_bytes: int
    after_bytes: int


def backup(path: Path, out: Path, progress: ProgressCallback) -> BackupReport:
    """Copy a log, which a broker may be writing, to a new file.

    Raises:
        LogDamagedError: The log lacks commits, or a damaged write-ahead log hides some. `recover` repairs that.
        StorageError: Reading or writing failed, or `out` exists.
    """
    record = read_witness(path)
    reader = LogReader.open(path)  # checks that it is a log of the current version
    condition = _wal_condition(reader, record)
    reader.close()
    # A broker changes both files: then the comparison means nothing, and it has made its own at its start.
    if condition != "complete" and not is_in_use(path.parent):
        raise _incomplete(path, "copied")
    with (
        translate_errors(path, "copied"),
        create_file(out, like=path, companions=COMPANIONS) as draft,
        translate_full_disk(out.parent),
    ):
        return _Copy(path, draft, progress, is_immutable=reader.is_immutable).run()


def compact(path: Path, progress: ProgressCallback) -> CompactReport:
    """Replace a log by a copy without free pages. The caller must hold the lock of its folder.

    Raises:
        LogDamagedError: The log is damaged. `recover` saves more than a copy would.
        LogInUseError: Another program wrote to the log meanwhile.
        DiskError: There is no room for the copy, or the disk failed.
    """
    record = read_witness(path)
    reader = LogReader.open(path)
    missing = None if record is None else record.missing_after(reader.log_id, reader.next_offset())
    condition = _wal_condition(reader, record)
    reader.close()
    if condition == "needless" or (condition != "complete" and missing is None):
        raise _incomplete(path, "compacted")
    if missing is not None:
        raise LogDamagedError(
            f"the log {path} cannot be compacted: offsets {missing[0]:,} to {missing[1] - 1:,} were confirmed and are "
            "missing. Save what is intact with `godwit log recover`, or start the broker, which does it too"
        )
    wal = Path(f"{path}-wal")
    with translate_errors(path, "compacted"):
        if record is not None:
            write_witness(path, record.log_id, record.confirmed, record.received_us)
        _check_and_checkpoint(path)
        before_bytes = path.stat().st_size
        compacted = path.with_name(f"{path.name}.compact")
        compacted.unlink(missing_ok=True)  # left by a killed run
        with create_file(compacted, like=path, companions=COMPANIONS) as draft:
            _Copy(path, draft, progress).run()
        # SQLite would take a WAL of the old file for that of the new one.
        if wal.exists() and wal.stat().st_size:
            compacted.unlink()
            raise LogInUseError(f"another program has written to the log {path} meanwhile: end it, and try again")
        for suffix in SQLITE_SUFFIXES:
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        move_into_place(compacted, path)
    return CompactReport(before_bytes, path.stat().st_size)


def _incomplete(path: Path, action: str) -> LogDamagedError:
    return LogDamagedError(
        f"the log {path} was not {action}: {path.name}-wal is damaged or shorter than it was. Run `godwit log "
        "recover`, which saves everything that is intact and reports the rest"
    )


def _check_and_checkpoint(path: Path) -> None:
    """Check the pages of a log, and move all of its WAL into the main file."""
    connection = connect(path, apsw.SQLITE_OPEN_READWRITE, None)
    try:
        allow_interrupts(connection)
        problem = connection.execute("PRAGMA quick_check(1)").get
        if problem != "ok":
            raise LogDamagedError(
                f"the log {path} cannot be compacted: it is damaged ({_line(problem)}). "
                "Save what is intact with `godwit log recover`, or restore a backup"
            )
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close()


class _Copy:
    """Copies a log into an empty file."""

    def __init__(self, path: Path, draft: Path, progress: ProgressCallback, *, is_immutable: bool = False) -> None:
        self._path = path
        self._progress = progress
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        self._connection = connect(draft, flags, None)
        self._source = f"{path.absolute().as_uri()}?{'immutable=1' if is_immutable else 'mode=ro'}"
        self._next_offset = 0
        self._copied_bytes = 0
        self._total_bytes = 0

    def run(self) -> BackupReport:
        try:
            self._prepare()
            for _ in range(MAX_ROUNDS):
                if not self._copy_round():
                    break
            self._finish()
            return BackupReport(
                log_id=load_meta(self._connection).log_id,
                blocks=int(self._connection.execute(_SQL["count_blocks"]).get),
                next_offset=self._next_offset,
                until_us=BlockScanner(self._connection).ends().until_us,
                size_bytes=self._connection.pragma("page_count") * PAGE_BYTES,
            )
        finally:
            self._connection.close()

    def _prepare(self) -> None:
        connection = self._connection
        # Interruptions are harmless: the file gets its name only when it is complete and synced.
        connection.pragma("page_size", PAGE_BYTES)
        connection.pragma("journal_mode", "OFF")
        connection.pragma("synchronous", "OFF")
        create_schema(connection)
        allow_interrupts(connection)
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 1)
        connection.execute(_SQL["attach"], (self._source,))
        check_schema(connection, self._path, VERSION, "source")
        self._total_bytes = connection.pragma("page_count", schema="source") * PAGE_BYTES

    def _copy_round(self) -> bool:
        """Copy the blocks that exist now, in pieces; return whether there was more than one piece."""
        pieces = 0
        last = self._connection.execute(_SQL["select_last"]).get
        while last is not None and self._next_offset <= last:
            rows: list[tuple[Any, ...]] = self._connection.execute(
                _SQL["select_sizes"], (self._next_offset, _PIECE_BLOCKS)
            ).fetchall()
            piece_bytes = 0
            for first_offset, end_offset, size_bytes in rows:
                stop, self._next_offset = first_offset, end_offset
                piece_bytes += size_bytes
                if piece_bytes >= PIECE_BYTES:
                    break
            if not rows:
                break
            self._connection.execute(_SQL["copy_blocks"], (rows[0][0], stop))
            self._copied_bytes += piece_bytes
            self._progress(min(self._copied_bytes, self._total_bytes), self._total_bytes)
            pieces += 1
        return pieces > 1

    def _finish(self) -> None:
        """Copy the newest blocks and the other tables, so that the copy is the log as of one commit."""
        connection = self._connection
        with transaction(connection):
            connection.execute(_SQL["delete_changed_blocks"])
            connection.execute(_SQL["copy_missing_blocks"])
            for table in tables():
                if table != BLOCKS:
                    connection.execute(f'INSERT INTO main."{table}" SELECT * FROM source."{table}"')
        self._next_offset = BlockScanner(connection).ends().next_offset
        connection.execute(_SQL["detach"])
        self._progress(self._total_bytes, self._total_bytes)


# -- verification -----------------------------------------------------------------------------------------------------


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The condition of a log."""

    log_id: bytes
    first_offset: int
    next_offset: int
    blocks: int
    """Intact blocks."""
    messages: int
    """Messages in intact blocks."""
    size_bytes: int
    damaged: list[tuple[int, int]]
    """Ranges of unreadable offsets, begin and end."""
    given_up: list[tuple[int, int]]
    """Ranges that were lost earlier and that the log contains as lost. Nothing can be done about them."""
    missing: tuple[int, int] | None
    """The range of offsets that were confirmed according to the witness, and that the log does not have."""
    lacks_changes: bool
    """Whether commits are missing from the write-ahead log according to the witness."""
    has_needless_wal: bool
    """Whether the write-ahead log is damaged, and everything that was in it is in the main file too."""
    problems: list[str]
    """Other problems, which keep a broker from starting."""
    witness: WitnessCondition = "intact"

    @property
    def is_intact(self) -> bool:
        """Whether nothing is wrong that was not known before, as far as that can be checked."""
        return not (self.damaged or self.problems or self.missing or self.lacks_changes or self.has_needless_wal)

    @property
    def is_sound(self) -> bool:
        """Whether it is intact, and has the witness that it must have."""
        return self.is_intact and self.witness in ("intact", "absent")


def verify(path: Path, progress: ProgressCallback, *, is_locked: bool = False) -> VerifyReport:
    """Check every block and row of a log. Raise a StorageError if it cannot be opened.

    Args:
        path: The file.
        progress: Called with the bytes done and the total.
        is_locked: The caller holds the lock of the folder, so that no broker works in it.
    """
    # The witness first: a broker may be writing both.
    record = read_witness(path)
    is_alone = is_locked or not is_in_use(path.parent)
    reader = LogReader.open(path)
    try:
        condition = _wal_condition(reader, record if is_alone else None)
        if condition == "needless":  # its older images of pages would hide newer ones
            reader.close()
            reader = LogReader.open_without_wal(path)
        first_offset, next_offset = reader.first_offset(), reader.next_offset()
        size_bytes = path.stat().st_size
        blocks = messages = read_bytes = 0
        damaged: list[tuple[int, int]] = []
        given_up: list[tuple[int, int]] = []
        offset = first_offset
        while offset < next_offset:
            piece = reader.rows(offset, next_offset, _VERIFIED_BLOCKS, _VERIFIED_BYTES)
            for lost in piece.damaged:
                (given_up if _is_given_up(reader.connection, lost) else damaged).append(lost)
            for row in piece.rows:
                read_bytes += len(row.body)
                try:
                    messages += open_block(row.body).messages
                    blocks += 1
                except DamagedBlockError:
                    damaged.append((row.first_offset, row.end_offset))
            offset = piece.next_offset
            progress(min(read_bytes, size_bytes), size_bytes)
        with translate_errors(path, "checked"):
            problems = _problems(reader.connection, is_alone=is_alone)
        missing = None if record is None else record.missing_after(reader.log_id, next_offset)
        if record is not None and not record.is_of(reader.log_id):
            problems.append(f"{path.name}{SUFFIX} belongs to another log, with the id {record.log_id.hex()}")
    finally:
        reader.close()
    progress(size_bytes, size_bytes)
    return VerifyReport(
        log_id=reader.log_id,
        first_offset=first_offset,
        next_offset=next_offset,
        blocks=blocks,
        messages=messages,
        size_bytes=size_bytes,
        damaged=joined(damaged),
        given_up=joined(given_up),
        missing=missing,
        lacks_changes=condition in ("short", "torn"),
        has_needless_wal=condition == "needless",
        problems=problems,
        witness="intact" if record is not None else _witness_condition(path),
    )


def is_whole(reader: LogReader) -> bool:
    """Return whether a log has its newest commits, as far as its witness shows. A broker checks that at its start."""
    record = read_witness(reader.path)
    is_complete = _wal_condition(reader, record) == "complete" and (
        record is None or record.missing_after(reader.log_id, reader.next_offset()) is None
    )
    return is_complete or is_in_use(reader.path.parent)


def _witness_condition(path: Path) -> WitnessCondition:
    if read_witness(path) is not None:
        return "intact"  # a broker has just created it
    if is_unreadable(path):
        return "unreadable"
    if os.path.lexists(f"{path}{SUFFIX}"):
        return "damaged"
    wal = Path(f"{path}-wal")
    is_copy = not is_data_folder(path.parent) and not (wal.exists() and wal.stat().st_size)
    return "absent" if is_copy else "missing"


def _wal_condition(reader: LogReader, record: WitnessRecord | None) -> WalCondition:
    """Judge the write-ahead log of a log that no broker uses. Without a witness of this log, nothing contradicts it."""
    if record is None or not record.is_of(reader.log_id):
        return "complete"
    return record.judge(read_salts(f"{reader.path}-wal", None), count_frames(reader.connection))


def _is_given_up(connection: apsw.Connection, lost: tuple[int, int]) -> bool:
    try:
        return bool(connection.execute(QUERIES["select_given_up"], (*lost, encode_topic_index([]))).get)
    except apsw.CorruptError:
        return False


def _problems(connection: apsw.Connection, *, is_alone: bool) -> list[str]:
    found: list[str] = []
    try:
        for check in _checks(is_alone):
            found += [_line(problem) for (problem,) in connection.execute(check) if problem != "ok"]
        load_state(connection)
        load_epochs(connection)
    except (apsw.CorruptError, DamagedRowError, msgspec.MsgspecError) as error:
        found.append(str(error))
    return found[:MAX_PROBLEMS]


def _line(problem: object) -> str:
    """Return a problem that SQLite found as one line."""
    return " ".join(str(problem).split())


def _checks(is_alone: bool) -> Iterator[str]:
    if is_alone:
        yield f"PRAGMA integrity_check({MAX_PROBLEMS})"
        return
    for table in tables():
        if table != BLOCKS:
            yield f'PRAGMA integrity_check("{table}")'
