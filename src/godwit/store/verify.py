"""Looks through a whole log: every block, everything beside it, and whether SQLite finds its own pages in order.

It may run while a broker works: it reads a few blocks at a time, and SQLite's check of its pages, which reads a file in
one piece and holds up the WAL meanwhile, is made of the small tables only. A log that nobody uses is checked whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw
import msgspec

from godwit.limits import MIB
from godwit.store.block import DamagedBlockError, encode_topics, open_block
from godwit.store.connection import telling
from godwit.store.draft import Progress
from godwit.store.epochs import load_epochs
from godwit.store.folder import is_in_use
from godwit.store.kept import DamagedRowError, load_state
from godwit.store.ranges import joined
from godwit.store.reader import LogReader
from godwit.store.schema import BLOCKS, tables
from godwit.store.sql import QUERIES
from godwit.store.witness import SUFFIX, WalCondition, WitnessRecord, count_frames, read_salts, read_witness

MAX_PROBLEMS: Final = 100
"""More are not listed."""

_PIECE_BYTES: Final = 8 * MIB
_PIECE_BLOCKS: Final = 128


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    log_id: bytes
    first_offset: int
    next_offset: int
    blocks: int
    """Those that are intact, and ..."""
    messages: int
    """... what they hold."""
    size_bytes: int
    damaged: list[tuple[int, int]]
    """Ranges of offsets that cannot be read, begin and end."""
    given_up: list[tuple[int, int]]
    """Ranges that were lost before: `recover` has put into the log that they are. Nothing can be done about them."""
    missing: tuple[int, int] | None
    """The range of offsets that were confirmed and that the log does not have any more, by its witness."""
    lacks_changes: bool
    """Whether commits are missing from the write-ahead log, by the witness."""
    problems: list[str]
    """What else is wrong: with it a broker does not start."""

    @property
    def is_sound(self) -> bool:
        return not (self.damaged or self.problems or self.missing or self.lacks_changes)


def verify(path: Path, progress: Progress) -> Verdict:
    """Raises LogDamagedError and others if the file cannot even be opened."""
    # In this order: a broker may be writing both.
    record = read_witness(path)
    is_alone = not is_in_use(path.parent)
    reader = LogReader.open(path)
    try:
        lacks_changes = is_alone and record is not None and _condition(reader, record) != "complete"
        first_offset, next_offset = reader.first_offset(), reader.next_offset()
        size_bytes = path.stat().st_size
        blocks = messages = read_bytes = 0
        damaged: list[tuple[int, int]] = []
        given_up: list[tuple[int, int]] = []
        offset = first_offset
        while offset < next_offset:
            piece = reader.rows(offset, next_offset, _PIECE_BLOCKS, _PIECE_BYTES)
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
        with telling(path, "checked"):
            problems = _problems(reader.connection, is_alone=is_alone)
        missing = None if record is None else record.missing_after(reader.log_id, next_offset)
        if record is not None and not record.is_of(reader.log_id):
            problems.append(f"{path.name}{SUFFIX} belongs to another log, with the id {record.log_id.hex()}")
    finally:
        reader.close()
    progress(size_bytes, size_bytes)
    return Verdict(
        log_id=reader.log_id,
        first_offset=first_offset,
        next_offset=next_offset,
        blocks=blocks,
        messages=messages,
        size_bytes=size_bytes,
        damaged=joined(damaged),
        given_up=joined(given_up),
        missing=missing,
        lacks_changes=lacks_changes,
        problems=problems,
    )


def _condition(reader: LogReader, record: WitnessRecord) -> WalCondition:
    return record.judge(read_salts(f"{reader.path}-wal", None), count_frames(reader.connection))


def _is_given_up(connection: apsw.Connection, lost: tuple[int, int]) -> bool:
    try:
        return bool(connection.execute(QUERIES["select_given_up"], (*lost, encode_topics([]))).get)
    except apsw.CorruptError:
        return False


def _problems(connection: apsw.Connection, *, is_alone: bool) -> list[str]:
    found: list[str] = []
    try:
        for check in _checks(is_alone):
            found += [str(problem) for (problem,) in connection.execute(check) if problem != "ok"]
        load_state(connection)
        load_epochs(connection)
    except (apsw.CorruptError, DamagedRowError, msgspec.MsgspecError) as error:
        found.append(str(error))
    return found[:MAX_PROBLEMS]


def _checks(is_alone: bool) -> Iterator[str]:
    if is_alone:
        yield f"PRAGMA integrity_check({MAX_PROBLEMS})"
        return
    for table in tables():
        if table != BLOCKS:
            yield f'PRAGMA integrity_check("{table}")'
