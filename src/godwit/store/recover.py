"""Make a new log of everything that is intact in a damaged one, with the same id and the same offsets.

The file is read without SQLite (godwit.store.sqlite_pages), so this works on files that SQLite refuses. Every block and
every state row with a valid checksum is saved. Each lost range of offsets becomes a block without a body, which readers
report as damaged when they reach it.

Offsets are never assigned twice. The witness (godwit.store.witness) knows where the log ended. If it is missing, and
the end of the log is lost, the new log continues after a range that is wider than what can have been lost. The same
holds for job numbers.

Blocks are found in two ways. First the table is walked as far as its tree leads. Then every page in use is searched for
blocks that the tree does not lead to, because an interior page, a leaf or a cell is damaged. A block begins where the
log secret is found, and its header contains its length. It continues in the same page, or in a chain of overflow pages
whose first number follows the part in the leaf. The checksum proves that a block is intact; the secret, which no
publisher knows, proves that it is the log's own and not part of a message.

Pages may still contain blocks that retention has deleted. A block that the tree does not lead to and that is below the
retention floor of its topic remains deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from godwit.limits import MIB
from godwit.store.atomic_file import create_file
from godwit.store.block import (
    HEAD_BYTES,
    MAGIC,
    SECRET_BYTES,
    BlockRow,
    DamagedBlockError,
    claimed_bytes,
    decode_block,
    decode_topic_index,
    encode_block,
    encode_topic_index,
    has_valid_numbers,
    make_row,
    row_of,
    secret_of,
)
from godwit.store.connection import (
    DamagedRowError,
    connect,
    transaction,
    translate_errors,
    translate_full_disk,
)
from godwit.store.legacy import QUIET, legacy_row, legacy_tables
from godwit.store.port import OffsetRanges, ProgressCallback
from godwit.store.schema import (
    BLOCKS,
    EPOCHS,
    FLOORS,
    LEGACY_VERSIONS,
    META,
    PLACE,
    QUERIES,
    STATE,
    create_schema,
    initial_roots,
    tables,
)
from godwit.store.sqlite_pages import (
    LEAF,
    MIN_LOCAL_BYTES,
    OVERFLOW_BYTES,
    PAGE_BYTES,
    BrokenPageError,
    Cell,
    PageFile,
    Tree,
    keyed_cells,
    leaf_cells,
    pointer,
    read_chain,
    record,
)
from godwit.store.state import (
    LogMeta,
    apply_changes,
    collect_state,
    decode_row,
    has_valid_checksum,
    load_floors,
    load_state,
    new_secret,
    store_meta,
)
from godwit.store.witness import COMPANIONS, WalCondition, WitnessRecord, read_salts, read_witness
from godwit.wire.changes import JobPayloadRow, JobRow, NextJobRow, StateRow, SubscriptionRow, TaskRow
from godwit.wire.retention_floors import BROKER_WIDE, lost_below

LOST_END: Final = 2**24
"""Number of offsets that are skipped where the end of a log is unknown: a leaf of the tree holds fewer messages."""
LOST_JOBS: Final = 2**32
"""Number of job numbers that are skipped where the next one is unknown."""
MAX_NUMBER: Final = 2**62
"""Highest plausible offset, time or job number. SQLite could not count on from much higher ones."""

_PIECE_BYTES: Final = 16 * MIB
_SCHEMA_ROOT: Final = 1
_NEXT_JOB: Final = "next_job"
_POINTER_BYTES: Final = 4
_MAX_TRIES: Final = 64
"""Chains that are tried for the start of a block whose cell does not contain the start of its chain."""


class RecoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was saved."""

    log_id: bytes
    has_old_id: bool
    """Whether the log's own id is known, from the log or its witness. If not, it has the new one, and positions of
    readers of the old log are invalid."""
    next_offset: int
    blocks: int
    messages: int
    missing: list[tuple[int, int]]
    """Ranges of lost offsets, begin and end."""
    kept_rows: int
    """Rows saved beside the messages: topics, retained messages, sessions, subscriptions, ..."""
    lost_tables: list[str]
    """Tables with unreadable rows: sessions may be missing, cursors may be further back, ..."""
    lacks_changes: bool
    """Whether commits are lost: all rows beside the messages may be older than the confirmed ones."""
    was_replica: bool
    """Whether it was the file of a cluster's node. The new log is a log of its own: it has no place in the cluster."""


def recover(path: Path, out: Path, *, new_log_id: bytes, now_us: int, progress: ProgressCallback) -> RecoverReport:
    """Write everything that is intact in a log to a new file. The damaged file is not changed.

    Args:
        path: The damaged log, which no other program may write meanwhile.
        out: The new log, which must not exist.
        new_log_id: The id of the new log if the old one is unreadable.
        now_us: Its creation time if the old one is unreadable.
        progress: Called with the bytes done and the total.

    Raises:
        StorageError: `out` exists.
        DiskError: A file cannot be read or written.
    """
    witness = read_witness(path)
    condition = _wal_condition(path, witness)
    with (
        translate_errors(path, "recovered"),
        PageFile(path, has_wal=condition != "needless") as file,
        create_file(out, like=path, companions=COMPANIONS) as draft,
        translate_full_disk(out.parent),
    ):
        connection = connect(draft, apsw.SQLITE_OPEN_READWRITE, None)
        try:
            connection.pragma("page_size", PAGE_BYTES)
            # Interruptions are harmless: the file gets its name only when it is complete and synced.
            connection.pragma("journal_mode", "OFF")
            connection.pragma("synchronous", "OFF")
            create_schema(connection)
            with PageFile(path, is_lenient=True) as lenient:
                return _Recovery(file, lenient, connection, witness, condition).run(new_log_id, now_us, progress)
        finally:
            connection.close()


def _wal_condition(path: Path, witness: WitnessRecord | None) -> WalCondition:
    """Judge the write-ahead log as a broker does when it opens the log."""
    if witness is None:
        return "complete"
    with PageFile(path) as file:
        return witness.judge(read_salts(f"{path}-wal", None), file.frame_count)


class _Recovery:
    """Copies the intact parts of a log into an empty one."""

    def __init__(
        self,
        file: PageFile,
        lenient: PageFile,
        connection: apsw.Connection,
        witness: WitnessRecord | None,
        condition: WalCondition,
    ) -> None:
        self._file = file
        self._lenient = lenient
        self._connection = connection
        self._witness = witness
        self._condition = condition
        self._taken = OffsetRanges()
        self._blocks = 0
        self._messages = 0
        self._known_end = 0
        """An offset that the log reached, according to the rows beside the messages."""

    def run(self, new_log_id: bytes, now_us: int, progress: ProgressCallback) -> RecoverReport:
        roots, rows, lost_tables = self._read_tables()
        kept_rows = self._save_state(rows, has_lost_next_job=bool({STATE, _NEXT_JOB} & set(lost_tables)))
        for table in (FLOORS, EPOCHS):
            kept_rows += self._save_table(table, roots.get(table), lost_tables)
        floors = load_floors(self._connection)
        root = roots[BLOCKS]
        meta = self._read_meta(roots[META])
        witness = self._witness
        if witness is not None and not witness.is_of(meta.setdefault("log_id", witness.log_id)):
            self._witness = None  # it belongs to another log
        secret = meta.get("stamp") or find_secret(self._file, root) or find_secret(self._lenient, root)
        secret = secret or new_secret(self._connection)  # without the secret no block is found
        search = BlockSearch(self._file, root, secret, floors, self._taken)
        self._save_blocks(search.rows(progress))
        if self._lenient.has_other_frames(self._file):
            more = BlockSearch(self._lenient, root, secret, floors, self._taken)
            # The tree in a needless write-ahead log is an older one, and leads to blocks that retention has deleted.
            is_older = self._condition == "needless"
            self._save_blocks(more.rows_in(self._lenient.wal_pages) if is_older else more.rows(lambda *_: None))
        known_end = max(self._known_end, int(meta.get("end_offset", 0)))
        end = max(self._taken.end, known_end, *[end for _, end in search.damaged], 0)
        missing = self._missing(search, 0 if FLOORS in lost_tables else floors.get(BROKER_WIDE, 0), end)
        next_offset = max(end, *[end for _, end in missing], 0)
        lacks_changes = self._condition in ("short", "torn") or (
            self._witness is not None and end < self._witness.confirmed
        )
        has_old_id = "log_id" in meta
        log_id = meta.get("log_id", new_log_id)
        with transaction(self._connection):
            if EPOCHS in lost_tables:  # with rows missing, the other epochs would seem longer than they were
                self._connection.execute(QUERIES["delete_epochs"])
            for begin, stop in missing:
                received_us = self._connection.execute(QUERIES["select_time_before"], (begin,)).get
                self._insert(make_row(begin, stop, received_us, received_us, encode_topic_index([]), b""))
            store_meta(self._connection, LogMeta(log_id, meta.get("created_us", now_us), secret), next_offset)
            if lacks_changes:  # they may have assigned job numbers
                next_job = load_state(self._connection).next_job
                apply_changes(self._connection, [NextJobRow(next_job + LOST_JOBS)])
        return RecoverReport(
            log_id=log_id,
            has_old_id=has_old_id,
            next_offset=next_offset,
            blocks=self._blocks,
            messages=self._messages,
            missing=missing,
            kept_rows=kept_rows,
            lost_tables=lost_tables,
            lacks_changes=lacks_changes,
            was_replica=PLACE in meta,
        )

    # -- beside the messages ------------------------------------------------------------------------------------------

    def _read_tables(self) -> tuple[dict[str, int], list[StateRow], list[str]]:
        """Return the root pages of the tables, the intact state rows, and the tables with damaged ones.

        If the file does not contain its schema, or contains nonsense, tables are assumed to be where they are in a new
        file: of this version, or of an earlier one if that yields more rows.
        """
        found: dict[str, int] = {}
        for values in _records(Tree(self._file, _SCHEMA_ROOT)):
            match values:
                case ("table", str(name), _, int(root), _):
                    found[name] = root
        if len(set(found.values())) < len(found):
            found = {}
        legacy = next((version for version in LEGACY_VERSIONS if set(tables(version)) == set(found)), None)
        if legacy is not None:
            return found, *self._read_legacy_state(found, legacy)
        roots = {**initial_roots(), **found}
        rows, lost = self._read_state(roots[STATE])
        if not found:
            older = initial_roots(LEGACY_VERSIONS[-1])
            older_rows, older_lost = self._read_legacy_state(older, LEGACY_VERSIONS[-1])
            if len(older_rows) > len(rows):
                return older, older_rows, older_lost
        return roots, rows, lost

    def _read_state(self, root: int) -> tuple[list[StateRow], list[str]]:
        tree = Tree(self._file, root)
        rows: dict[tuple[Any, ...], StateRow] = {}
        damaged = [values for values in _records(tree) if not _add_state_row(rows, values)]
        if not damaged and tree.is_whole:
            return list(rows.values()), []
        # Search the pages that the tree does not lead to any more. Free pages contain outdated rows.
        free_pages = self._file.free_pages()
        if free_pages is not None:
            for number in set(self._file.numbers) - {_SCHEMA_ROOT} - free_pages - tree.pages:
                for cell in keyed_cells(self._file, number):
                    _add_state_row(rows, _values(cell))
        return list(rows.values()), [STATE]

    def _read_legacy_state(self, roots: Mapping[str, int], version: int) -> tuple[list[StateRow], list[str]]:
        rows: list[StateRow] = []
        lost = []
        for table in legacy_tables(version):
            if table == QUIET:
                continue
            tree = Tree(self._file, roots[table])
            is_whole = True
            for values in _records(tree):
                try:
                    if not values or not has_valid_checksum(values):
                        raise DamagedRowError
                    row = legacy_row(table, values[:-1], {})
                    rows.append(msgspec.convert(row, type(row), strict=True, from_attributes=True))
                except (DamagedRowError, TypeError, ValueError, msgspec.MsgspecError):
                    is_whole = False
            if not is_whole or not tree.is_whole:
                lost.append(table)
        return rows, lost

    def _save_state(self, rows: list[StateRow], *, has_lost_next_job: bool) -> int:
        """Store the rows that are usable without the lost ones, and return their number.

        Subscriptions are not stored as quiet: a row may be older than the newest saved block, and the subscription
        would skip messages. A job that has lost its payload cannot run, and one that is done and has lost a task has
        not all its results. A job that is not done runs a lost task again.
        """
        state = collect_state(rows)
        numbered: list[JobRow | JobPayloadRow | TaskRow] = [*state.jobs, *state.payloads, *state.tasks]
        numbers = [state.next_job - 1, *(row.job for row in numbered)]
        known_job = max((number for number in numbers if number <= MAX_NUMBER), default=0)
        payloads = {row.job for row in state.payloads}
        tasks = Counter(row.job for row in state.tasks)
        jobs = {
            row.job
            for row in state.jobs
            if row.job <= MAX_NUMBER and row.job in payloads and (row.state != "done" or row.agreed == tasks[row.job])
        }
        changes: list[StateRow] = [
            msgspec.structs.replace(row, quiet_from=None, is_settled=False) if isinstance(row, SubscriptionRow) else row
            for row in rows
            if not isinstance(row, NextJobRow)
            and (row.job in jobs if isinstance(row, JobRow | JobPayloadRow | TaskRow) else True)
        ]
        has_next_job = any(isinstance(row, NextJobRow) and row.job <= MAX_NUMBER for row in rows)
        count = len(changes) + has_next_job
        if known_job or has_lost_next_job:
            skipped = LOST_JOBS if has_lost_next_job and not has_next_job else 0
            changes.append(NextJobRow(known_job + 1 + skipped))
        with transaction(self._connection):
            apply_changes(self._connection, changes)
        positions = [row.resume_at for row in state.subscriptions] + [row.offset + 1 for row in state.retained]
        self._reach(*positions)
        return count

    def _reach(self, *offsets: int) -> None:
        self._known_end = max([self._known_end, *(offset for offset in offsets if offset <= MAX_NUMBER)])

    def _save_table(self, table: str, root: int | None, lost_tables: list[str]) -> int:
        """Copy the valid rows of a table, and return their number."""
        if root is None:  # a table that the version of the file did not have
            return 0
        columns = 3 if table == FLOORS else 4
        insert = f'INSERT OR IGNORE INTO "{table}" VALUES ({", ".join("?" * columns)})'
        count = 0
        is_whole = True
        tree = Tree(self._file, root)
        with transaction(self._connection):
            for values in _records(tree):
                if len(values) == columns and has_valid_checksum(values) and self._try_insert(insert, values):
                    count += 1
                    self._reach(values[1] if table == FLOORS else values[0] + 1)
                else:
                    is_whole = False
        if not is_whole or not tree.is_whole:
            lost_tables.append(table)
        return count

    def _try_insert(self, insert: str, values: tuple[Any, ...]) -> bool:
        try:
            self._connection.execute(insert, values)
        except apsw.ConstraintError:  # a value of another type than its column, so it was not written by a broker
            return False
        return True

    def _read_meta(self, root: int) -> dict[str, Any]:
        """Return the readable ones of log_id, created_us, stamp and end_offset, and the place if there is one."""
        meta: dict[str, Any] = {}
        for values in _records(Tree(self._file, root)):
            match values:
                case ("end_offset", int(end), _) if 0 <= end <= MAX_NUMBER:
                    meta["end_offset"] = end
                case ("log_id", bytes(log_id), _) if has_valid_checksum(values):
                    meta["log_id"] = log_id
                case ("created_us", int(created_us), _) if has_valid_checksum(values):
                    meta["created_us"] = created_us
                case ("stamp", bytes(secret), _) if has_valid_checksum(values) and len(secret) == SECRET_BYTES:
                    meta["stamp"] = secret
                case (key, bytes(place), _) if key == PLACE:
                    meta[PLACE] = place
        return meta

    # -- messages -----------------------------------------------------------------------------------------------------

    def _save_blocks(self, rows: Iterator[BlockRow]) -> None:
        """Store blocks in transactions of a limited size."""
        while True:
            piece_bytes = 0
            with transaction(self._connection):
                for row in rows:
                    self._insert(row)
                    self._blocks += 1
                    self._messages += sum(share.messages for share in decode_topic_index(row.topics))
                    piece_bytes += len(row.body)
                    if piece_bytes >= _PIECE_BYTES:
                        break
                else:
                    return

    def _insert(self, row: BlockRow) -> None:
        self._connection.execute(QUERIES["insert_block"], msgspec.structs.astuple(row))

    def _missing(self, search: BlockSearch, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges that are lost, or may be."""
        witnessed = 0 if self._witness is None else self._witness.reserved
        if search.is_all_known:
            missing = [(first, stop) for first, stop in sorted(search.damaged) if self._taken.add(first, stop)]
            return [*missing, (end, witnessed)] if end < witnessed else missing
        is_end_known = search.is_end_known or (self._witness is not None and self._witness.is_exact)
        end = max(end, witnessed)
        return self._taken.gaps(begin, end if is_end_known else end + LOST_END)


def _records(tree: Tree) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, and an empty tuple for an unreadable one."""
    return map(_values, tree.cells())


def _values(cell: Cell) -> tuple[Any, ...]:
    """Return the values of a row, or an empty tuple if it is unreadable."""
    try:
        values = record(cell.payload)
    except BrokenPageError:
        return ()
    if values and values[0] is None:
        values[0] = cell.rowid  # an INTEGER PRIMARY KEY is the row's number and not in the record
    return tuple(values)


def _add_state_row(rows: dict[tuple[Any, ...], StateRow], values: tuple[Any, ...]) -> bool:
    """Add a row of the table `state` under its key, unless there is one, and return whether it is valid."""
    try:
        row = decode_row(*values)
    except (DamagedRowError, TypeError):
        return False
    rows.setdefault(values[:2], row)
    return True


# -- searching blocks -------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    row: BlockRow
    overflow: list[int]
    local_end: int
    """End of the part of the block that is in its first page."""


class BlockSearch:
    """One search through a file. `rows` yields each intact block that is not in `taken` yet, and adds it there."""

    def __init__(
        self, file: PageFile, root: int, secret: bytes, floors: Mapping[str, int], taken: OffsetRanges
    ) -> None:
        self._file = file
        self._tree = Tree(file, root)
        self._lead = MAGIC + secret  # the first bytes of every block
        self._floors = floors
        self._taken = taken
        self._overflow: set[int] = set()  # overflow pages of rows, intact or not
        self._local: dict[int, list[tuple[int, int]]] = {}  # leaf page -> parts of it that belong to rows
        self.damaged: list[tuple[int, int]] = []
        """Offsets of rows whose block is damaged."""
        self._has_unknown_rows = False  # rows whose offsets are unreadable too
        self._is_last_unknown = False

    @property
    def is_all_known(self) -> bool:
        """Whether offsets in neither `taken` nor `damaged` are not in the log, once `rows` is exhausted."""
        return self._tree.is_whole and not self._has_unknown_rows

    @property
    def is_end_known(self) -> bool:
        """Whether no block after the last one found is lost."""
        return self._tree.is_end_whole and not self._is_last_unknown

    def rows(self, progress: ProgressCallback) -> Iterator[BlockRow]:
        """Yield the intact blocks of the whole file."""
        total_bytes = self._file.size_bytes
        for cell in self._tree.cells():
            if (row := self._row_in(cell)) is not None and self._taken.add(row.first_offset, row.end_offset):
                yield row
            progress((len(self._tree.pages) + len(self._overflow)) * PAGE_BYTES, total_bytes)
        for row in self.rows_in(self._other_pages()):
            yield row
            progress((len(self._tree.pages) + len(self._overflow)) * PAGE_BYTES, total_bytes)
        progress(total_bytes, total_bytes)

    def rows_in(self, pages: Iterable[int]) -> Iterator[BlockRow]:
        """Yield the intact blocks that begin in one of these pages, without using the tree."""
        for row in self._search(sorted(pages, key=self._is_not_leaf)):
            if (rest := self._without_deleted(row)) is not None and self._taken.add(rest.first_offset, rest.end_offset):
                yield rest

    # -- blocks that the tree leads to --------------------------------------------------------------------------------

    def _row_in(self, cell: Cell) -> BlockRow | None:
        """Return the block of a row. It is the row's last value, so it ends where the row does."""
        at = cell.payload.find(self._lead)
        row = _intact_row(cell.payload[at:]) if at >= 0 else None
        lost = _range_of(cell) if row is None else None
        if lost is not None:
            self.damaged.append(lost)
        self._is_last_unknown = row is None and lost is None
        if self._is_last_unknown:  # then its position is not trusted either
            self._has_unknown_rows = True
        else:
            self._overflow.update(cell.overflow)
            self._local.setdefault(cell.page, []).append((cell.local_at, cell.local_end))
        return row

    # -- other blocks -------------------------------------------------------------------------------------------------

    def _other_pages(self) -> list[int]:
        """Return the pages that may begin an unknown block, leaves first, so that their chains are known then."""
        others = (self._file.free_pages() or set()) | self._overflow | self._tree.interior
        pages = [number for number in self._file.numbers if number not in others]
        return sorted(pages, key=self._is_not_leaf)

    def _is_not_leaf(self, number: int) -> bool:
        return (self._file.page(number) or b"\0")[0] != LEAF

    def _search(self, pages: Iterable[int]) -> Iterator[BlockRow]:
        for number in pages:
            page = self._file.page(number)
            if page is None or number in self._overflow:
                continue
            claimed = self._local.get(number, [])
            at = page.find(self._lead)
            while at >= 0:
                end = next((end for begin, end in claimed if begin <= at < end), None)
                if end is None and (found := self._assemble(page, at)) is not None:
                    self._overflow.update(found.overflow)
                    end = found.local_end
                    yield found.row
                at = page.find(self._lead, at + 1 if end is None else end)

    def _assemble(self, page: bytes, at: int) -> _Found | None:
        """Return the block that begins here, if it is intact."""
        size_bytes = claimed_bytes(page[at : at + HEAD_BYTES])
        if size_bytes and (row := _intact_row(page[at : at + size_bytes])) is not None:
            return _Found(row, [], at + size_bytes)
        tries = 0
        for end, first in self._chains(page, at, size_bytes):
            head = page[at:end]
            wanted_bytes = size_bytes or claimed_bytes(head + read_chain(self._file, first, HEAD_BYTES)[0])
            if not len(head) < wanted_bytes <= self._file.size_bytes:
                continue
            rest, overflow = read_chain(self._file, first, wanted_bytes - len(head))
            if (row := _intact_row(head + rest)) is not None:
                return _Found(row, overflow, end)
            tries += 1
            if tries == _MAX_TRIES:
                break
        return None

    def _chains(self, page: bytes, at: int, size_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield candidates for the end of the part in this page, with the overflow page that would follow.

        A leaf holds the part of a row that does not fill whole overflow pages, or the minimum if that is too much; the
        latter depends on the bytes before the block, which may be unknown. An overflow page is filled to its end.
        """
        ends = range(at + HEAD_BYTES - 1, at, -1)  # the header of the block crosses the end of the page
        if size_bytes:
            ends = range(at + MIN_LOCAL_BYTES, at, -1)
            yield from self._chain(page, at + size_bytes % OVERFLOW_BYTES)
        first = pointer(page, 0)
        if 0 < first <= self._file.page_count:
            yield PAGE_BYTES, first
        for end in ends:
            yield from self._chain(page, end)

    def _chain(self, page: bytes, end: int) -> Iterator[tuple[int, int]]:
        if end + _POINTER_BYTES <= PAGE_BYTES and 0 < (first := pointer(page, end)) <= self._file.page_count:
            yield end, first

    def _without_deleted(self, row: BlockRow) -> BlockRow | None:
        """Return a block without the batches that retention had deleted; None if nothing is left."""
        try:
            entries = decode_block(row.body)
            rest = [pair for pair in entries if pair[0] >= lost_below(self._floors, [pair[1].topic])]
            return row if len(rest) == len(entries) else encode_block(rest, secret_of(row.body)) if rest else None
        except DamagedBlockError:
            return None


def rows_of_wal(path: Path, secret: bytes, floors: Mapping[str, int], begin: int, end: int) -> list[BlockRow]:
    """Return the intact blocks between two offsets in the write-ahead log, also those behind a damaged frame."""
    taken = OffsetRanges()
    taken.add(0, begin)
    with PageFile(path, is_lenient=True) as file:
        found = BlockSearch(file, 1, secret, floors, taken).rows_in(file.wal_pages)
        return [row for row in found if row.end_offset <= end]


def find_secret(file: PageFile, root: int) -> bytes | None:
    """Return the secret of a log whose metadata is lost, from the first intact block in its row.

    Rows are found by the tree, or else in pages that look like leaves. Published data is in neither position: an
    overflow page, which holds bytes of messages, begins with the number of another page, and this does not look like a
    leaf unless the log is longer than 3 TB.
    """
    leaves = (number for number in file.numbers if (file.page(number) or b"\0")[0] == LEAF)
    cells = (cell for number in leaves for cell in leaf_cells(file, number))
    for cell in chain(Tree(file, root).cells(), cells):
        if (stored := _stored_row(cell)) is not None and stored.body.startswith(MAGIC):
            row = _intact_row(stored.body)
            if row is not None and row.first_offset == stored.first_offset:
                return secret_of(row.body)
    return None


def _intact_row(body: bytes) -> BlockRow | None:
    try:
        row = row_of(body)
    except DamagedBlockError:
        return None
    return row if _is_plausible(row) else None


def _is_plausible(row: BlockRow) -> bool:
    return row.first_offset < row.end_offset and max(row.end_offset, row.received_us, row.until_us) <= MAX_NUMBER


def _stored_row(cell: Cell) -> BlockRow | None:
    """Return a row of the table `blocks` as it is stored; None if its values have other types."""
    match _values(cell):
        case (
            int(first_offset),
            int(end_offset),
            int(received_us),
            int(until_us),
            int(check),
            bytes(topics),
            bytes(body),
        ):
            return BlockRow(first_offset, end_offset, received_us, until_us, check, topics, body)
    return None


def _range_of(cell: Cell) -> tuple[int, int] | None:
    """Return the offsets of a row whose block is damaged, if its numbers are valid."""
    row = _stored_row(cell)
    if row is None or not has_valid_numbers(row) or not _is_plausible(row):
        return None
    return row.first_offset, row.end_offset
