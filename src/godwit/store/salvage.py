"""Finds the blocks of a damaged file. Nothing around a block need be whole: its checksum proves that it is what was
written, and its stamp, which no publisher knows, that it is the log's own and does not lie within a message.

First the table is walked as far as its tree leads. Then every page in use is searched for blocks that the tree no
longer leads to, because an interior page, a leaf or a cell is damaged. Where the stamp stands, a block begins, and its
head says how long it is. Its rest follows in the same page, or in a chain of overflow pages, whose first number stands
behind the part in the leaf.

What retention deleted may still lie about in pages. It is told apart by the marks: what the tree does not lead to and
stands below the mark of its topic stays deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from godwit.store.block import (
    HEAD_BYTES,
    MAGIC,
    DamagedBlockError,
    Row,
    are_numbers_sealed,
    claimed_bytes,
    decode_block,
    encode_block,
    row_of,
    stamp_of,
)
from godwit.store.btree import (
    LEAF,
    MIN_LOCAL_BYTES,
    OVERFLOW_BYTES,
    BrokenPageError,
    Cell,
    Tree,
    cells_of,
    follow,
    pointer,
    record,
)
from godwit.store.draft import Progress
from godwit.store.pages import PAGE_BYTES, PageFile
from godwit.store.ranges import Ranges
from godwit.wire.marks import lost_below

MAX_NUMBER: Final = 2**62
"""Offsets and times above it are in no log of ours, and SQLite could not count on from them."""

_POINTER_BYTES: Final = 4
_MAX_TRIES: Final = 64
"""Chains that are followed for one begin of a block whose cell does not tell where its chain starts."""


class _Found(NamedTuple):
    row: Row
    overflow: list[int]
    local_end: int
    """Where in the page the part of it that stands there ends."""


class Salvage:
    """One look at a file. `rows` gives each block that is intact and not in `taken` yet, and adds it there."""

    def __init__(self, file: PageFile, root: int, stamp: bytes, marks: Mapping[str, int], taken: Ranges) -> None:
        self._file = file
        self._tree = Tree(file, root)
        self._lead = MAGIC + stamp  # what all blocks begin with
        self._marks = marks
        self._taken = taken
        self._overflow: set[int] = set()  # pages that belong to rows, intact or not
        self._local: dict[int, list[tuple[int, int]]] = {}  # leaf -> parts of it that belong to rows
        self.damaged: list[tuple[int, int]] = []
        """What rows say of themselves whose block is not intact."""
        self._has_silent_rows = False  # which do not even say what they are
        self._is_last_silent = False

    @property
    def is_all_known(self) -> bool:
        """Whether what is in neither `taken` nor `damaged` is not in the log, once `rows` came to its end."""
        return self._tree.is_whole and not self._has_silent_rows

    @property
    def is_end_known(self) -> bool:
        """Whether nothing is lost behind all that was found."""
        return self._tree.is_end_whole and not self._is_last_silent

    def rows(self, progress: Progress) -> Iterator[Row]:
        total_bytes = self._file.page_count * PAGE_BYTES
        for cell in self._tree.cells():
            if (row := self._reached(cell)) is not None and self._taken.add(row.first_offset, row.end_offset):
                yield row
            progress((len(self._tree.pages) + len(self._overflow)) * PAGE_BYTES, total_bytes)
        for row in self.rows_in(self._unclaimed()):
            yield row
            progress((len(self._tree.pages) + len(self._overflow)) * PAGE_BYTES, total_bytes)
        progress(total_bytes, total_bytes)

    def rows_in(self, pages: Iterable[int]) -> Iterator[Row]:
        """Yield the same, but only blocks that begin in one of these pages, wherever the tree leads."""
        for row in self._lost(sorted(pages, key=self._is_no_leaf)):
            if (kept := self._not_deleted(row)) is not None and self._taken.add(kept.first_offset, kept.end_offset):
                yield kept

    # -- what the tree leads to ---------------------------------------------------------------------------------------

    def _reached(self, cell: Cell) -> Row | None:
        """The block of a row. It is the row's last value, so it ends where the row does."""
        at = cell.payload.find(self._lead)
        row = _row(cell.payload[at:]) if at >= 0 else None
        lost = _range_of(cell) if row is None else None
        if lost is not None:
            self.damaged.append(lost)
        self._is_last_silent = row is None and lost is None
        if self._is_last_silent:  # nothing of it is believed, not even where it stands
            self._has_silent_rows = True
        else:
            self._overflow.update(cell.overflow)
            self._local.setdefault(cell.page, []).append((cell.local_at, cell.local_end))
        return row

    # -- what it does not lead to -------------------------------------------------------------------------------------

    def _unclaimed(self) -> list[int]:
        """Pages that may begin a block nobody knows of. Leaves first: then the pages of their chains are known."""
        others = self._file.free_pages() | self._overflow | self._tree.interior
        pages = [number for number in range(1, self._file.page_count + 1) if number not in others]
        return sorted(pages, key=self._is_no_leaf)

    def _is_no_leaf(self, number: int) -> bool:
        return (self._file.page(number) or b"\0")[0] != LEAF

    def _lost(self, pages: Iterable[int]) -> Iterator[Row]:
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
        """The block that begins here, if there is one."""
        size_bytes = claimed_bytes(page[at : at + HEAD_BYTES])
        if size_bytes and (row := _row(page[at : at + size_bytes])) is not None:
            return _Found(row, [], at + size_bytes)
        tries = 0
        for end, first in self._chains(page, at, size_bytes):
            head = page[at:end]
            wanted_bytes = size_bytes or claimed_bytes(head + follow(self._file, first, HEAD_BYTES)[0])
            if not len(head) < wanted_bytes <= self._file.page_count * PAGE_BYTES:
                continue
            rest, overflow = follow(self._file, first, wanted_bytes - len(head))
            if (row := _row(head + rest)) is not None:
                return _Found(row, overflow, end)
            tries += 1
            if tries == _MAX_TRIES:
                break
        return None

    def _chains(self, page: bytes, at: int, size_bytes: int) -> Iterator[tuple[int, int]]:
        """Where the part in this page may end, and the overflow page that may follow.

        A row leaves in its leaf what does not fill whole overflow pages, or the least if that is too much; then it
        depends on the bytes before the block, which may not be known. An overflow page carries on to its end.
        """
        ends = range(at + HEAD_BYTES - 1, at, -1)  # the block's head goes across the border
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

    def _not_deleted(self, row: Row) -> Row | None:
        """Without the batches that retention had deleted; None if nothing is left."""
        try:
            entries = decode_block(row.body)
            kept = [pair for pair in entries if pair[0] >= lost_below(self._marks, [pair[1].topic])]
            return row if len(kept) == len(entries) else encode_block(kept, stamp_of(row.body)) if kept else None
        except DamagedBlockError:
            return None


def rows_of_wal(path: Path, stamp: bytes, marks: Mapping[str, int], begin: int, end: int) -> list[Row]:
    """Return the intact blocks between two offsets that the write-ahead log holds, behind a damage or before it."""
    taken = Ranges()
    taken.add(0, begin)
    with PageFile(path, is_doubting=True) as file:
        found = Salvage(file, 1, stamp, marks, taken).rows_in(file.wal_pages)
        return [row for row in found if row.end_offset <= end]


def find_stamp(file: PageFile, root: int) -> bytes | None:
    """The stamp of a log that does not tell it any more, from the first block that is intact in its row.

    Rows are where the tree leads to, or else where a page of its own says that its cells are. Nothing that somebody
    published gets to either: an overflow page, which holds bytes of messages alone, begins with the number of another
    page, and not with the kind of a leaf, unless the log is longer than 3 TB.
    """
    leaves = (number for number in range(1, file.page_count + 1) if (file.page(number) or b"\0")[0] == LEAF)
    cells = (cell for number in leaves for cell in cells_of(file, number))
    for cell in chain(Tree(file, root).cells(), cells):
        if (seen := _values(cell)) is not None and seen.body.startswith(MAGIC):
            row = _row(seen.body)
            if row is not None and row.first_offset == seen.first_offset:
                return stamp_of(row.body)
    return None


def _row(body: bytes) -> Row | None:
    try:
        row = row_of(body)
    except DamagedBlockError:
        return None
    return row if _is_possible(row) else None


def _is_possible(row: Row) -> bool:
    return row.first_offset < row.end_offset and max(row.end_offset, row.received_us, row.until_us) <= MAX_NUMBER


def _values(cell: Cell) -> Row | None:
    """What stands in a row of the log; None if it is not made up like one."""
    try:
        values = record(cell.payload)
    except BrokenPageError:
        return None
    match values:
        case [None, int(end_offset), int(received_us), int(until_us), int(seal), bytes(topics), bytes(body)]:
            return Row(cell.rowid, end_offset, received_us, until_us, seal, topics, body)
    return None


def _range_of(cell: Cell) -> tuple[int, int] | None:
    """The offsets of a row whose block is not intact, if what it says of itself is."""
    row = _values(cell)
    if row is None or not are_numbers_sealed(row) or not _is_possible(row):
        return None
    return row.first_offset, row.end_offset
