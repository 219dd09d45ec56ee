"""Makes a new log of what is intact in a damaged one: same id, same offsets.

It reads the file without SQLite (godwit.store.pages, btree, salvage), so it works on what SQLite refuses. Every block
of the log whose checksum holds is saved, and every row beside it whose seal holds. What is lost is told, and stays
told: each lost range becomes a block without a body, which readers report as damaged when they come to it.

Offsets are not given out twice. Where the log ended, its witness knows (godwit.store.witness). If there is none, and
the end is lost, the new log continues after a range that is wider than what can have been there. It is the same with
the numbers of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from godwit.limits import MIB
from godwit.store.block import STAMP_BYTES, Row, decode_topics, encode_topics, make_row
from godwit.store.btree import BrokenPageError, Cell, Tree, record
from godwit.store.connection import connect, naming_full, telling, transaction
from godwit.store.draft import Progress, drafting
from godwit.store.epochs import TABLE as EPOCHS
from godwit.store.kept import apply, is_sealed, marks_of
from godwit.store.meta import Meta, load_meta, set_meta
from godwit.store.opening import LOST_JOBS
from godwit.store.pages import PageFile
from godwit.store.ranges import Ranges
from godwit.store.salvage import MAX_NUMBER, Salvage, find_stamp
from godwit.store.schema import BLOCKS, META, state_tables, tables
from godwit.store.sql import MIGRATIONS, QUERIES, parse_queries
from godwit.store.sqlite import SqliteStore
from godwit.store.witness import SUFFIX, WitnessRecord, read_witness
from godwit.wire.changes import NextJob
from godwit.wire.marks import BROKER_WIDE

LOST_END: Final = 2**24
"""So many offsets are left out where the end of a log is not known: a leaf of the tree holds blocks of fewer."""

_SQL: Final = parse_queries(Path(__file__).with_name("recover.sql").read_text(encoding="utf-8"))
_PIECE_BYTES: Final = 16 * MIB
_SCHEMA_ROOT: Final = 1
_NEXT_JOB: Final = "next_job"
_QUIET_FEEDS: Final = "quiet_feeds"


class Recovered(msgspec.Struct, frozen=True):
    """What could be saved."""

    log_id: bytes
    has_old_id: bool
    """Whether the log's own id is known, by itself or by its witness. If not, it has the new one, and offsets of the
    old log mean nothing in it."""
    next_offset: int
    blocks: int
    messages: int
    missing: list[tuple[int, int]]
    """Ranges of offsets that are lost, begin and end."""
    kept_rows: int
    """What was saved beside the log: topics, retained messages, sessions, subscriptions, ..."""
    lost_tables: list[str]
    """Where something beside the log was not readable: sessions may be gone, cursors stand further back, ..."""


def recover(path: Path, out: Path, *, new_log_id: bytes, now_us: int, progress: Progress) -> Recovered:
    """Write what is intact of a log to a file that is not there yet. Nobody may write the log meanwhile.

    The damaged file is left as it is. The new id is for a log whose own cannot be read.
    """
    with telling(path, "recovered"), PageFile(path) as file, drafting(out, like=path) as draft, naming_full(out.parent):
        SqliteStore.open(draft, new_log_id=new_log_id, now_us=now_us).close()
        Path(f"{draft}{SUFFIX}").unlink()
        connection = connect(draft, apsw.SQLITE_OPEN_READWRITE, None)
        try:
            # Nothing is lost if this is cut short: the file gets its name only when it is on the disk.
            connection.pragma("journal_mode", "OFF")
            connection.pragma("synchronous", "OFF")
            with PageFile(path, is_doubting=True) as doubted:
                return _Recovery(file, doubted, connection, read_witness(path)).run(new_log_id, now_us, progress)
        finally:
            connection.close()


class _Recovery:
    """From the pages of a log into an empty one."""

    def __init__(
        self, file: PageFile, doubted: PageFile, connection: apsw.Connection, witness: WitnessRecord | None
    ) -> None:
        self._file = file
        self._doubted = doubted
        self._connection = connection
        self._witness = witness
        fresh: list[tuple[Any, ...]] = connection.execute(_SQL["select_roots"]).fetchall()
        found = self._read_roots()
        self._roots: dict[str, int] = {**dict(fresh), **found}
        # What says that a subscription has everything is left out: a row that is older than the newest block that was
        # saved would make it pass over messages.
        self._tables = [name for name in state_tables() if name in _expected(found) and name != _QUIET_FEEDS]
        self._taken = Ranges()
        self._blocks = 0
        self._messages = 0

    def run(self, new_log_id: bytes, now_us: int, progress: Progress) -> Recovered:
        kept_rows, lost_tables = self._keep_tables()
        kept_rows -= self._drop_torn_jobs(has_lost_next=_NEXT_JOB in lost_tables)
        marks = marks_of(self._connection)
        root = self._roots[BLOCKS]
        meta = self._read_meta()
        witness = self._witness
        if witness is not None and not witness.is_of(meta.setdefault("log_id", witness.log_id)):
            self._witness = None  # it is that of another log
        stamp = meta.get("stamp") or find_stamp(self._file, root) or find_stamp(self._doubted, root)
        stamp = stamp or load_meta(self._connection).stamp  # then nothing is found, but for what is kept beside the log
        salvage = Salvage(self._file, root, stamp, marks, self._taken)
        self._save(salvage.rows(progress))
        if self._doubted.is_other_view(self._file):
            self._save(Salvage(self._doubted, root, stamp, marks, self._taken).rows(lambda *_: None))
        end = max(self._taken.end, self._said_end(meta), *[end for _, end in salvage.damaged], 0)
        missing = self._missing(salvage, 0 if "marks" in lost_tables else marks.get(BROKER_WIDE, 0), end)
        next_offset = max(end, *[end for _, end in missing], 0)
        has_old_id = "log_id" in meta
        log_id = meta.get("log_id", new_log_id)
        with transaction(self._connection):
            if EPOCHS in lost_tables:  # the others would seem longer than they were: readers must not rely on them
                self._connection.execute(_SQL["delete_epochs"])
            for begin, stop in missing:
                received_us = self._connection.execute(_SQL["select_time_before"], (begin,)).get
                self._insert(make_row(begin, stop, received_us, received_us, encode_topics([]), b""))
            self._connection.execute(_SQL["delete_meta"])
            set_meta(self._connection, Meta(log_id, meta.get("created_us", now_us), stamp), next_offset)
        return Recovered(log_id, has_old_id, next_offset, self._blocks, self._messages, missing, kept_rows, lost_tables)

    # -- beside the log -----------------------------------------------------------------------------------------------

    def _read_roots(self) -> dict[str, int]:
        """Where tables begin. The file says so; if it does not, or not well, they are where they are in a new file."""
        found: dict[str, int] = {}
        for values in _records(Tree(self._file, _SCHEMA_ROOT)):
            match values:
                case ("table", str(name), _, int(root), _):
                    found[name] = root
        return found if len(set(found.values())) == len(found) else {}

    def _keep_tables(self) -> tuple[int, list[str]]:
        """Save the rows that are what was written; how many, and of which tables some were not."""
        kept_rows = 0
        lost_tables = []
        with transaction(self._connection):
            for table in self._tables:
                columns = self._connection.execute(_SQL["count_columns"], (table,)).get
                insert = f'INSERT OR IGNORE INTO "{table}" VALUES ({", ".join("?" * columns)})'
                is_whole = True
                tree = Tree(self._file, self._roots[table])
                for values in _records(tree):
                    if len(values) == columns and is_sealed(values) and self._keep_row(insert, values):
                        kept_rows += 1
                    else:
                        is_whole = False
                if not is_whole or not tree.is_whole:
                    lost_tables.append(table)
        return kept_rows, lost_tables

    def _keep_row(self, insert: str, values: tuple[Any, ...]) -> bool:
        try:
            self._connection.execute(insert, values)
        except apsw.ConstraintError:  # a value of another type than its column, which nobody has written
            return False
        return True

    def _drop_torn_jobs(self, *, has_lost_next: bool) -> int:
        """What is left of jobs that are not whole; how many rows that were. No number is given to a job twice."""
        connection = self._connection
        with transaction(connection):
            before = connection.total_changes()
            connection.execute(_SQL["delete_impossible_jobs"], (MAX_NUMBER,) * 4)
            known = int(connection.execute(_SQL["select_known_job"]).get)
            connection.execute(_SQL["delete_torn_jobs"])
            dropped = connection.total_changes() - before
            if known or has_lost_next:
                apply(connection, [NextJob(known + 1 + (LOST_JOBS if has_lost_next else 0))])
        return dropped

    def _read_meta(self) -> dict[str, Any]:
        """What can be read of it: log_id, created_us, stamp, end_offset."""
        meta: dict[str, Any] = {}
        for values in _records(Tree(self._file, self._roots[META])):
            match values:
                case ("end_offset", int(end), _) if 0 <= end <= MAX_NUMBER:
                    meta["end_offset"] = end
                case ("log_id", bytes(log_id), _) if is_sealed(values):
                    meta["log_id"] = log_id
                case ("created_us", int(created_us), _) if is_sealed(values):
                    meta["created_us"] = created_us
                case ("stamp", bytes(stamp), _) if is_sealed(values) and len(stamp) == STAMP_BYTES:
                    meta["stamp"] = stamp
        return meta

    def _said_end(self, meta: dict[str, Any]) -> int:
        """How far the log went at least, by what is known beside it."""
        known: int = self._connection.execute(_SQL["select_known_end"], (MAX_NUMBER,)).get
        return max(known, int(meta.get("end_offset", 0)))

    # -- the log ------------------------------------------------------------------------------------------------------

    def _save(self, rows: Iterator[Row]) -> None:
        """In transactions of a bounded size."""
        while True:
            piece_bytes = 0
            with transaction(self._connection):
                for row in rows:
                    self._insert(row)
                    self._blocks += 1
                    self._messages += sum(share.messages for share in decode_topics(row.topics))
                    piece_bytes += len(row.body)
                    if piece_bytes >= _PIECE_BYTES:
                        break
                else:
                    return

    def _insert(self, row: Row) -> None:
        self._connection.execute(QUERIES["insert_block"], msgspec.structs.astuple(row))

    def _missing(self, salvage: Salvage, begin: int, end: int) -> list[tuple[int, int]]:
        """Ranges that were in the log and are lost. Where that is not sure, they count as lost."""
        witnessed = 0 if self._witness is None else self._witness.reserved
        if salvage.is_all_known:
            missing = [(first, stop) for first, stop in sorted(salvage.damaged) if self._taken.add(first, stop)]
            return [*missing, (end, witnessed)] if end < witnessed else missing
        is_end_known = salvage.is_end_known or (self._witness is not None and self._witness.is_exact)
        end = max(end, witnessed)
        return self._taken.gaps(begin, end if is_end_known else end + LOST_END)


def _expected(found: dict[str, int]) -> list[str]:
    """The tables that must be there: those of an older version, if the file has exactly these, else all."""
    older = (tables(version) for version in range(1, len(MIGRATIONS)))
    return next((names for names in older if set(names) == set(found)), tables())


def _records(tree: Tree) -> Iterator[tuple[Any, ...]]:
    """The rows of a table; nothing in the place of one that cannot be read."""
    for cell in tree.cells():
        try:
            yield _values(cell)
        except BrokenPageError:
            yield ()


def _values(cell: Cell) -> tuple[Any, ...]:
    """A key that is an INTEGER PRIMARY KEY is not in the record: it is the row's number."""
    values = record(cell.payload)
    if values and values[0] is None:
        values[0] = cell.rowid
    return tuple(values)
