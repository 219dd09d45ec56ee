"""Tables of a SQLite file, walked page by page without SQLite: what is damaged is passed over, the rest is found.

A table is a tree of pages. Interior pages hold the numbers of their children, leaves hold cells: the row's number and
its payload, whose end stands in a chain of overflow pages if it is long. The payload is a record: types, then values.

Nothing here believes a number of the file: every one is checked against the page it points into, every page is visited
once. The formats are those of https://sqlite.org/fileformat2.html, sections 1.5 and 1.6, and 2.1 for records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from godwit.store.pages import PAGE_BYTES, PageFile

Value: TypeAlias = int | float | str | bytes | None

LEAF: Final = 13
"""The first byte of a page with rows of a table."""
OVERFLOW_BYTES: Final = PAGE_BYTES - 4
"""What an overflow page carries: its first four bytes are the number of the next."""
MIN_LOCAL_BYTES: Final = (PAGE_BYTES - 12) * 32 // 255 - 23
"""What stands in the leaf at least of a payload that is too long for it."""

_INTERIOR: Final = 5
_KEYED_LEAF: Final = 10  # of a table WITHOUT ROWID, whose interior pages hold rows too
_KEYED_INTERIOR: Final = 2
_HEAD_BYTES: Final = 100  # page 1 begins with the head of the file
_POINTER: Final = struct.Struct(">I")
_MAX_DEPTH: Final = 20
_INTEGER_BYTES: Final = (0, 1, 2, 3, 4, 6, 8)


class BrokenPageError(Exception):
    """A page, a cell or a record that is not what it should be. Never leaves the modules that recover."""


class Cell(NamedTuple):
    """A row as it stands in the file; what can be read of its payload."""

    rowid: int
    """0 in a table WITHOUT ROWID."""
    page: int
    local_at: int
    """Where in its page the payload begins ..."""
    local_end: int
    """... and where the part that stands there ends."""
    payload: bytes
    is_whole: bool
    overflow: list[int]
    """The pages that the rest came from."""


class Tree:
    """One table. What is said of its pages is complete when `cells` came to its end."""

    def __init__(self, file: PageFile, root: int) -> None:
        self._file = file
        self._root = root
        self.pages: set[int] = set()
        """All that were visited, without those of overflow."""
        self.interior: set[int] = set()
        self.damaged_pages: list[int] = []

    @property
    def is_whole(self) -> bool:
        return not self.damaged_pages

    @property
    def is_end_whole(self) -> bool:
        """Whether the page with the last rows was read: then nothing that came behind these is lost."""
        number = self._root
        while number not in self.damaged_pages:
            page = self._file.page(number)
            if page is None or number not in self.interior:
                return page is not None
            number = pointer(page, 8)
        return False

    def cells(self) -> Iterator[Cell]:
        yield from self._walk(self._root, 0)

    def _walk(self, number: int, depth: int) -> Iterator[Cell]:
        page = self._file.page(number)
        if page is None or number in self.pages or depth > _MAX_DEPTH:
            self.damaged_pages.append(number)
            return
        self.pages.add(number)
        start = _HEAD_BYTES if number == 1 else 0
        kind = page[start]
        is_interior = kind in (_INTERIOR, _KEYED_INTERIOR)
        try:
            places = _places(page, start)
        except BrokenPageError:
            self.damaged_pages.append(number)
            return
        if is_interior:
            self.interior.add(number)
            for child in [*(pointer(page, at) for at in places), pointer(page, start + 8)]:
                yield from self._walk(child, depth + 1)
        if kind != _INTERIOR:
            yield from self._rows(number, page, places, skipped_bytes=_POINTER.size if is_interior else 0)

    def _rows(self, number: int, page: bytes, places: Sequence[int], skipped_bytes: int) -> Iterator[Cell]:
        is_damaged = False
        is_keyed = page[_HEAD_BYTES if number == 1 else 0] != LEAF
        for at in places:
            try:
                cell = _cell(self._file, number, page, at + skipped_bytes, is_keyed)
            except BrokenPageError:
                is_damaged = True
            else:
                is_damaged = is_damaged or not cell.is_whole
                yield cell
        if is_damaged:
            self.damaged_pages.append(number)


def cells_of(file: PageFile, number: int) -> list[Cell]:
    """The rows of one leaf that can be read, whichever table it belongs to."""
    page = file.page(number)
    found = []
    try:
        places = _places(page, 0) if page is not None and page[0] == LEAF else ()
    except BrokenPageError:
        places = ()
    for at in places:
        with suppress(BrokenPageError):
            found.append(_cell(file, number, page or b"", at, is_keyed=False))
    return found


def _cell(file: PageFile, number: int, page: bytes, at: int, is_keyed: bool) -> Cell:
    """The row whose cell begins here."""
    size_bytes, at = varint(page, at)
    rowid = 0
    if not is_keyed:
        rowid, at = varint(page, at)
        rowid -= rowid >> 63 << 64  # two's complement
    local = _local_bytes(size_bytes, is_keyed)
    end = at + local
    if end + (_POINTER.size if local < size_bytes else 0) > PAGE_BYTES:
        raise BrokenPageError("a cell longer than its page")
    if local == size_bytes:
        return Cell(rowid, number, at, end, page[at:end], True, [])
    if size_bytes > file.page_count * PAGE_BYTES:
        raise BrokenPageError("a row longer than its file")
    rest, overflow = follow(file, pointer(page, end), size_bytes - local)
    return Cell(rowid, number, at, end, page[at:end] + rest, local + len(rest) == size_bytes, overflow)


def _local_bytes(size_bytes: int, is_keyed: bool) -> int:
    """How much of a payload stands in its cell."""
    most = (PAGE_BYTES - 12) * 64 // 255 - 23 if is_keyed else PAGE_BYTES - 35
    if size_bytes <= most:
        return size_bytes
    fitting = MIN_LOCAL_BYTES + (size_bytes - MIN_LOCAL_BYTES) % OVERFLOW_BYTES
    return fitting if fitting <= most else MIN_LOCAL_BYTES


def follow(file: PageFile, number: int, size_bytes: int) -> tuple[bytes, list[int]]:
    """What a chain of overflow pages carries, as far as it leads, and its pages."""
    parts: list[bytes] = []
    pages: list[int] = []
    visited: set[int] = set()
    while size_bytes > 0:
        page = file.page(number)
        if page is None or number in visited:
            break
        visited.add(number)
        pages.append(number)
        parts.append(page[4 : 4 + size_bytes])
        size_bytes -= len(parts[-1])
        number = pointer(page, 0)
    return b"".join(parts), pages


def record(payload: bytes) -> list[Value]:
    """The values of a row."""
    head_bytes, at = varint(payload, 0)
    if head_bytes > len(payload):
        raise BrokenPageError("a record whose head is longer than the record")
    value_at = head_bytes
    values: list[Value] = []
    while at < head_bytes:
        kind, at = varint(payload, at)
        size_bytes = _value_bytes(kind)
        data = payload[value_at : value_at + size_bytes]
        if len(data) < size_bytes:
            raise BrokenPageError("a record that ends within a value")
        values.append(_value(kind, data))
        value_at += size_bytes
    return values


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for end in range(at, at + 8):
        if end >= len(data):
            raise BrokenPageError("a number that does not end")
        byte = data[end]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, end + 1
    if at + 8 >= len(data):
        raise BrokenPageError("a number that does not end")
    return value << 8 | data[at + 8], at + 9


def pointer(page: bytes, at: int) -> int:
    """The number of a page that stands here."""
    (number,) = _POINTER.unpack_from(page, at)
    return int(number)


def _places(page: bytes, start: int) -> Sequence[int]:
    """Where the cells of a page begin."""
    kind = page[start]
    if kind not in (_INTERIOR, _KEYED_INTERIOR, LEAF, _KEYED_LEAF):
        raise BrokenPageError("not a page of a table")
    count = int.from_bytes(page[start + 3 : start + 5], "big")
    first = start + (12 if kind in (_INTERIOR, _KEYED_INTERIOR) else 8)
    if first + 2 * count > PAGE_BYTES:
        raise BrokenPageError("more cells than a page holds")
    places = struct.unpack_from(f">{count}H", page, first)
    if any(not first + 2 * count <= at <= PAGE_BYTES - _POINTER.size for at in places):
        raise BrokenPageError("a cell outside of its page")
    return places


def _value_bytes(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    if kind in (10, 11):
        raise BrokenPageError("a type that no file has")
    return 8 if kind == 7 else 0 if kind in (8, 9) else _INTEGER_BYTES[kind]


def _value(kind: int, data: bytes) -> Value:
    if kind == 0:
        return None
    if kind in (8, 9):
        return kind - 8
    if kind < 7:
        return int.from_bytes(data, "big", signed=True)
    if kind == 7:
        (number,) = struct.unpack(">d", data)
        return float(number)
    if kind % 2 == 0:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BrokenPageError("a text that is not UTF-8") from error
