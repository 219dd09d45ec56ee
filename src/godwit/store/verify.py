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
from godwit.store.block import DamagedBlockError, open_block
from godwit.store.connection import telling
from godwit.store.draft import Progress
from godwit.store.folder import is_in_use
from godwit.store.kept import DamagedRowError, load_state
from godwit.store.reader import LogReader

MAX_PROBLEMS: Final = 100
"""More are not listed."""

_PIECE_BYTES: Final = 8 * MIB
_PIECE_BLOCKS: Final = 128
_PROGRESS_STEPS: Final = 10_000


class Verdict(msgspec.Struct, frozen=True):
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
    """Ranges of offsets that are lost, begin and end."""
    problems: list[str]
    """What else is wrong: with it a broker does not start."""

    @property
    def is_sound(self) -> bool:
        return not self.damaged and not self.problems


def verify(path: Path, progress: Progress) -> Verdict:
    """Raises LogDamagedError and others if the file cannot even be opened."""
    reader = LogReader.open(path)
    try:
        first_offset, next_offset = reader.first_offset(), reader.next_offset()
        size_bytes = path.stat().st_size
        blocks = messages = read_bytes = 0
        damaged: list[tuple[int, int]] = []
        offset = first_offset
        while offset < next_offset:
            piece = reader.rows(offset, next_offset, _PIECE_BLOCKS, _PIECE_BYTES)
            damaged += piece.damaged
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
            problems = _problems(reader.connection, is_alone=not is_in_use(path.parent))
    finally:
        reader.close()
    progress(size_bytes, size_bytes)
    return Verdict(reader.log_id, first_offset, next_offset, blocks, messages, size_bytes, _joined(damaged), problems)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, and as few as possible."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _problems(connection: apsw.Connection, *, is_alone: bool) -> list[str]:
    found: list[str] = []
    connection.set_progress_handler(lambda: False, _PROGRESS_STEPS)  # lets Python look for signals
    try:
        for check in _checks(connection, is_alone):
            found += [str(problem) for (problem,) in connection.execute(check) if problem != "ok"]
        load_state(connection)
    except (apsw.CorruptError, DamagedRowError) as error:
        found.append(str(error))
    return found[:MAX_PROBLEMS]


def _checks(connection: apsw.Connection, is_alone: bool) -> Iterator[str]:
    if is_alone:
        yield f"PRAGMA integrity_check({MAX_PROBLEMS})"
        return
    for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        if table != "blocks":
            yield f'PRAGMA integrity_check("{table}")'
