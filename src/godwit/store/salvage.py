"""Finds the blocks of a damaged file. A block proves itself by its checksum, so nothing around it need be whole.

First the table is walked as far as its tree leads. Then every page in use is searched for blocks that the tree no
longer leads to, because an interior page, a leaf or a cell is damaged. Where a block begins, its head says how long it
is. Its rest follows in the same page, or in a chain of overflow pages, whose first number stands behind the part in the
leaf.

What retention deleted may still lie about in pages. It is told apart by the marks: what the tree does not lead to and
stands below the mark of its topic stays deleted.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
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
)
from godwit.store.btree import (
    LEAF,
    MIN_LOCAL_BYTES,
    OVERFLOW_BYTES,
    BrokenPageError,
    Cell,
    Tree,
    follow,
    pointer,
    record,
)
from godwit.store.draft import Progress
from godwit.store.pages import PAGE_BYTES, PageFile
from godwit.wire.marks import lost_below

_POINTER_BYTES: Final = 4
_MAX_TRIES: Final = 64
"""Chains that are followed for one begin of a block whose cell does not tell where its chain starts."""


class Ranges:
    """Offsets that were found. No range overlaps another."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, begin: int, end: int) -> bool:
        """Unless some of it is there already."""
        at = bisect_right(self._ranges, (begin, end))
        if at and self._ranges[at - 1][1] > begin:
            return False
        if at < len(self._ranges) and self._ranges[at][0] < end:
            return False
        insort(self._ranges, (begin, end))
        return True

    @property
    def end(self) -> int:
        return self._ranges[-1][1] if self._ranges else 0

    def gaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        """What is missing from one offset to another."""
        missing = []
        for start, stop in [*self._ranges, (end, end)]:
            if begin < start:
                missing.append((begin, start))
            begin = max(begin, stop)
        return missing


class _Found(NamedTuple):
    row: Row
    overflow: list[int]
    local_end: int
    """Where in the page the part of it that stands there ends."""


class Salvage:
    """One look at a file. `rows` gives each block that is intact and not in `taken` yet, and adds it there."""

    def __init__(self, file: PageFile, root: int, marks: Mapping[str, int], taken: Ranges) -> None:
        self._file = file
        self._tree = Tree(file, root)
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
        for row in self._lost(self._unclaimed()):
            if (kept := self._not_deleted(row)) is not None and self._taken.add(kept.first_offset, kept.end_offset):
                yield kept
            progress((len(self._tree.pages) + len(self._overflow)) * PAGE_BYTES, total_bytes)
        progress(total_bytes, total_bytes)

    # -- what the tree leads to ---------------------------------------------------------------------------------------

    def _reached(self, cell: Cell) -> Row | None:
        """The block of a row. It is the row's last value, so it ends where the row does."""
        payload = cell.payload
        row = None
        at = payload.find(MAGIC)
        while at >= 0 and row is None:
            if claimed_bytes(payload[at : at + HEAD_BYTES]) == len(payload) - at:
                row = _row(payload[at:])
            at = payload.find(MAGIC, at + 1)
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
        return sorted(pages, key=lambda number: (self._file.page(number) or b"\0")[0] != LEAF)

    def _lost(self, pages: Iterable[int]) -> Iterator[Row]:
        for number in pages:
            page = self._file.page(number)
            if page is None or number in self._overflow:
                continue
            claimed = self._local.get(number, [])
            at = page.find(MAGIC)
            while at >= 0:
                end = next((end for begin, end in claimed if begin <= at < end), None)
                if end is None and (found := self._assemble(page, at)) is not None:
                    self._overflow.update(found.overflow)
                    end = found.local_end
                    yield found.row
                at = page.find(MAGIC, at + 1 if end is None else end)

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
            return row if len(kept) == len(entries) else encode_block(kept) if kept else None
        except DamagedBlockError:
            return None


def _row(body: bytes) -> Row | None:
    try:
        return row_of(body)
    except DamagedBlockError:
        return None


def _range_of(cell: Cell) -> tuple[int, int] | None:
    """The offsets of a row whose block is not intact, if what it says of itself is."""
    try:
        values = record(cell.payload)
    except BrokenPageError:
        return None
    match values:
        case [_, int(end_offset), int(received_us), int(until_us), int(seal), bytes(topics), bytes(body)]:
            row = Row(cell.rowid, end_offset, received_us, until_us, seal, topics, body)
            return (row.first_offset, row.end_offset) if are_numbers_sealed(row) else None
    return None
