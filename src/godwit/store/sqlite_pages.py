"""Read a SQLite file without SQLite, for files that SQLite refuses: its pages, and the tables in them.

A page comes from the write-ahead log if that has a newer image of it, else from the main file. The frames of the
write-ahead log that count are those that SQLite would accept: with the salts of its header, a valid running checksum,
and up to the last commit. One damaged frame invalidates the checksum of all later frames, so a file can also be opened
with `is_lenient`, which accepts every frame with the right salts. Data read that way must have a checksum of its own,
as blocks and state rows do.

A table is a B-tree of pages. Interior pages hold the numbers of their children, leaf pages hold cells: the row's number
and its payload, continued in a chain of overflow pages if it is long. The payload is a record: types, then values. In a
table WITHOUT ROWID rows have no number, and interior pages hold rows too.

No number in the file is trusted: each is checked against the page that it points into, and each page is visited once.

Formats: https://sqlite.org/fileformat2.html, sections 1.3 and 4 (pages), 1.5 and 1.6 (tables), 2.1 (records).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

from godwit.errors import DiskError

PAGE_BYTES: Final = 16_384
"""The page size of every log, so that a damaged header need not be trusted for it."""
MAX_READS_PER_PAGE: Final = 64
"""Limit of page reads, on average. It ends the search in a file whose chains were crafted to refer to each other."""
LEAF: Final = 13
"""First byte of a leaf page of a table with row numbers."""
OVERFLOW_BYTES: Final = PAGE_BYTES - 4
"""Payload of an overflow page: its first four bytes are the number of the next one."""
MIN_LOCAL_BYTES: Final = (PAGE_BYTES - 12) * 32 // 255 - 23
"""The least number of bytes that a leaf page holds of a payload that does not fit into it."""

Value: TypeAlias = int | float | str | bytes | None

_MAGIC: Final = b"SQLite format 3\0"
_PAGE_COUNT_AT: Final = 28
_FREELIST: Final = struct.Struct(">II")  # first trunk page, number of free pages
_FREELIST_AT: Final = 32
_WAL_HEAD: Final = struct.Struct(">8I")
_FRAME_HEAD: Final = struct.Struct(">6I")
WAL_HEAD_BYTES: Final = _WAL_HEAD.size
FRAME_BYTES: Final = _FRAME_HEAD.size + PAGE_BYTES
_WAL_MAGIC: Final = 0x377F0682
"""Its last bit is the byte order of the checksums."""
_POINTER: Final = struct.Struct(">I")
_INTERIOR: Final = 5
_KEYED_LEAF: Final = 10  # of a table WITHOUT ROWID
_KEYED_INTERIOR: Final = 2
_FILE_HEAD_BYTES: Final = 100  # page 1 begins with the header of the file
_MAX_DEPTH: Final = 20
_MAX_PAGES: Final = 2**26
_INTEGER_BYTES: Final = (0, 1, 2, 3, 4, 6, 8)


class BrokenPageError(Exception):
    """A page, a cell or a record is malformed. The modules that recover a log catch it."""


def is_whole_file(path: Path) -> bool:
    """Return whether a log's file without a write-ahead log has its header, and the length that is in there."""
    with path.open("rb") as file:
        head = file.read(_FILE_HEAD_BYTES)
        size_bytes = os.fstat(file.fileno()).st_size
    if len(head) < _FILE_HEAD_BYTES or not head.startswith(_MAGIC):
        return False
    return pointer(head, _PAGE_COUNT_AT) * PAGE_BYTES == size_bytes


class PageFile:
    """The pages of a log's file as of the last commit, numbered from 1.

    SQLite must not have the file open in this process: closing any other descriptor of the file releases its locks.
    """

    def __init__(self, path: Path, *, is_lenient: bool = False, has_wal: bool = True) -> None:
        """Open a log's file and the write-ahead log beside it. Raise DiskError if that fails.

        Args:
            path: The main file.
            is_lenient: Accept frames of the write-ahead log whose checksum is wrong but whose salts are right.
            has_wal: Whether the write-ahead log counts.
        """
        self._frames: dict[int, int] = {}  # page -> position of its newest image in the write-ahead log
        self.frame_count = 0
        """Frames of the write-ahead log up to the last commit that counts."""
        self._wal: int | None = None
        try:
            self._main = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise DiskError(f"cannot open the log {path}: {error.strerror or error}") from error
        self.main_bytes = os.fstat(self._main).st_size
        self._main_pages = (self.main_bytes + PAGE_BYTES - 1) // PAGE_BYTES
        self.wal_bytes = 0
        try:
            self._wal = os.open(f"{path}-wal", os.O_RDONLY) if has_wal else None
        except FileNotFoundError:
            pass
        except OSError as error:
            self.close()
            raise DiskError(f"cannot open the write-ahead log beside {path}: {error.strerror or error}") from error
        if self._wal is not None:
            self.wal_bytes = os.fstat(self._wal).st_size
            self._read_frames(self._wal, is_lenient)
        self.page_count = max(self._main_pages, *self._frames, 0)
        """The highest number of a page. A write-ahead log can have few pages with high numbers: see `numbers`."""
        beyond = sorted(page for page in self._frames if page > self._main_pages)
        self.numbers = [*range(1, self._main_pages + 1), *beyond]
        """The pages that one of the two files has."""
        self.size_bytes = len(self.numbers) * PAGE_BYTES
        self._reads_left = MAX_READS_PER_PAGE * (len(self.numbers) + MAX_READS_PER_PAGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both files."""
        os.close(self._main)
        if self._wal is not None:
            os.close(self._wal)

    def page(self, number: int) -> bytes | None:
        """Return a page, or None if its number is out of range or the limit of reads is reached.

        Bytes that the file lacks, or that the disk fails to read, are zero.
        """
        if not 0 < number <= self.page_count or not self._reads_left:
            return None
        self._reads_left -= 1
        at = self._frames.get(number)
        try:
            if at is None:
                data = os.pread(self._main, PAGE_BYTES, (number - 1) * PAGE_BYTES)
            else:
                assert self._wal is not None
                data = os.pread(self._wal, PAGE_BYTES, at)
        except OSError:  # an unreadable sector
            data = b""
        return data.ljust(PAGE_BYTES, b"\0")

    def has_other_frames(self, other: PageFile) -> bool:
        """Return whether two views of the same file take pages from different frames."""
        return self._frames != other._frames

    @property
    def wal_pages(self) -> list[int]:
        """The pages whose newest image is in the write-ahead log."""
        return list(self._frames)

    def free_pages(self) -> set[int] | None:
        """Return the unused pages, or None if the list of them is damaged."""
        first = self.page(1)
        if first is None:
            return None
        trunk, expected = _FREELIST.unpack_from(first, _FREELIST_AT)
        found: set[int] = set()
        while trunk:
            data = self.page(trunk)
            if data is None or trunk in found:
                return None
            trunk_number = trunk
            trunk, leaves = _FREELIST.unpack_from(data)
            if leaves > PAGE_BYTES // _POINTER.size - 2:
                return None
            found.add(trunk_number)
            found.update(struct.unpack_from(f">{leaves}I", data, _FREELIST.size))
        return found if len(found) == expected and all(page <= self.page_count for page in found) else None

    def _read_frames(self, wal: int, is_lenient: bool) -> None:
        pending: dict[int, int] = {}
        valid = list(_valid_frames(wal))
        # The main file may be cut or missing: a page that it lacks is known by a frame with a valid checksum.
        pages = max([self._main_pages, *(number for number, _, _ in valid if number <= _MAX_PAGES)])
        most = pages + self.wal_bytes // PAGE_BYTES  # each frame can extend the file by a page
        for count, (number, is_commit, at) in enumerate(_frames_with_salts(wal) if is_lenient else valid, start=1):
            if 0 < number <= most:
                pending[number] = at
            if is_commit:
                self.frame_count = count
                self._frames.update(pending)
                pending.clear()


def _frames_with_salts(wal: int) -> Iterator[tuple[int, bool, int]]:
    """Yield page, whether it ends a commit, and position of the image of each frame with the current salts.

    The salts are those of the header, or of the first frame if the header is damaged.
    """
    at = WAL_HEAD_BYTES
    salts = _header_salts(os.pread(wal, WAL_HEAD_BYTES, 0))
    while len(head := os.pread(wal, _FRAME_HEAD.size, at)) == _FRAME_HEAD.size:
        number, size_pages, salt_1, salt_2, _, _ = _FRAME_HEAD.unpack(head)
        salts = salts or (salt_1, salt_2)
        if salts == (salt_1, salt_2):
            yield number, size_pages != 0, at + _FRAME_HEAD.size
        at += FRAME_BYTES


def _valid_frames(wal: int) -> Iterator[tuple[int, bool, int]]:
    """Yield the same for the frames before the first one with a wrong checksum."""
    head = os.pread(wal, WAL_HEAD_BYTES, 0)
    salts = _header_salts(head)
    if salts is None:
        return
    order, checksum = _header_checksum(head)
    at = WAL_HEAD_BYTES
    while len(frame := os.pread(wal, FRAME_BYTES, at)) == FRAME_BYTES:
        number, size_pages, salt_1, salt_2, *stored = _FRAME_HEAD.unpack_from(frame)
        checksum = _wal_checksum(order, frame[:8], checksum)
        checksum = _wal_checksum(order, frame[_FRAME_HEAD.size :], checksum)
        if (salt_1, salt_2) != salts or checksum != tuple(stored):
            return
        yield number, size_pages != 0, at + _FRAME_HEAD.size
        at += FRAME_BYTES


def _header_salts(head: bytes) -> tuple[int, int] | None:
    """Return the salts in the header of a write-ahead log, or None if it is damaged or has another page size."""
    if len(head) < WAL_HEAD_BYTES:
        return None
    magic, _, size_bytes, _, salt_1, salt_2, *stored = _WAL_HEAD.unpack(head)
    if magic & ~1 != _WAL_MAGIC or size_bytes != PAGE_BYTES or _header_checksum(head)[1] != tuple(stored):
        return None
    return salt_1, salt_2


def _header_checksum(head: bytes) -> tuple[str, tuple[int, int]]:
    """Return the byte order of the checksums, and the checksum of the header, from which that of the frames starts."""
    order = ">" if head[3] & 1 else "<"
    return order, _wal_checksum(order, head[:24], (0, 0))


def _wal_checksum(order: str, data: bytes, start: tuple[int, int]) -> tuple[int, int]:
    """Continue the running checksum of a write-ahead log: two sums over pairs of words, each added to the other."""
    one, two = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    pairs = iter(words)
    for even, odd in zip(pairs, pairs, strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two


# -- tables -----------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A row as stored, with the readable part of its payload."""

    rowid: int
    """0 in a table WITHOUT ROWID."""
    page: int
    local_at: int
    """Start of the payload in its page."""
    local_end: int
    """End of the part of the payload that is in its page."""
    payload: bytes
    is_whole: bool
    overflow: list[int]
    """The overflow pages that hold the rest of the payload."""


class Tree:
    """The B-tree of one table. Its sets of pages are complete when `cells` is exhausted."""

    def __init__(self, file: PageFile, root: int) -> None:
        self._file = file
        self._root = root
        self.pages: set[int] = set()
        """Visited pages, without overflow pages."""
        self.interior: set[int] = set()
        self.damaged_pages: list[int] = []

    @property
    def is_whole(self) -> bool:
        """Whether no page was damaged."""
        return not self.damaged_pages

    @property
    def is_end_whole(self) -> bool:
        """Whether the page with the last rows was readable, so that no later row is lost."""
        number = self._root
        while number not in self.damaged_pages:
            page = self._file.page(number)
            if page is None or number not in self.interior:
                return page is not None
            number = pointer(page, 8)
        return False

    def cells(self) -> Iterator[Cell]:
        """Yield the readable rows, in order."""
        yield from self._walk(self._root, 0)

    def _walk(self, number: int, depth: int) -> Iterator[Cell]:
        page = self._file.page(number)
        if page is None or number in self.pages or depth > _MAX_DEPTH:
            self.damaged_pages.append(number)
            return
        self.pages.add(number)
        start = _FILE_HEAD_BYTES if number == 1 else 0
        try:
            positions = _cell_positions(page, start)
        except BrokenPageError:
            self.damaged_pages.append(number)
            return
        kind = page[start]
        if kind in (_INTERIOR, _KEYED_INTERIOR):
            self.interior.add(number)
            for child in [*(pointer(page, at) for at in positions), pointer(page, start + 8)]:
                yield from self._walk(child, depth + 1)
        if kind != _INTERIOR:
            found, is_damaged = _cells_at(self._file, number, page, kind, positions)
            yield from found
            if is_damaged:
                self.damaged_pages.append(number)


def leaf_cells(file: PageFile, number: int) -> list[Cell]:
    """Return the readable rows of a leaf page of any table with row numbers; none if it is another page."""
    return _page_cells(file, number, (LEAF,))


def keyed_cells(file: PageFile, number: int) -> list[Cell]:
    """Return the readable rows of a page of any table WITHOUT ROWID; none if it is another page."""
    return _page_cells(file, number, (_KEYED_LEAF, _KEYED_INTERIOR))


def _page_cells(file: PageFile, number: int, kinds: tuple[int, ...]) -> list[Cell]:
    page = file.page(number)
    if page is None or page[0] not in kinds:
        return []
    try:
        positions = _cell_positions(page, 0)
    except BrokenPageError:
        return []
    return _cells_at(file, number, page, page[0], positions)[0]


def _cells_at(file: PageFile, number: int, page: bytes, kind: int, positions: Sequence[int]) -> tuple[list[Cell], bool]:
    """Return the readable cells of a page, and whether one of them is damaged."""
    cells = []
    is_damaged = False
    for at in positions:
        with suppress(BrokenPageError):
            skipped_bytes = _POINTER.size if kind == _KEYED_INTERIOR else 0
            cells.append(_cell(file, number, page, at + skipped_bytes, is_keyed=kind != LEAF))
            is_damaged = is_damaged or not cells[-1].is_whole
    return cells, is_damaged or len(cells) < len(positions)


def _cell(file: PageFile, number: int, page: bytes, at: int, is_keyed: bool) -> Cell:
    """Return the row whose cell begins at this position."""
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
    if size_bytes > file.size_bytes:
        raise BrokenPageError("a row longer than its file")
    rest, overflow = read_chain(file, pointer(page, end), size_bytes - local)
    return Cell(rowid, number, at, end, page[at:end] + rest, local + len(rest) == size_bytes, overflow)


def _local_bytes(size_bytes: int, is_keyed: bool) -> int:
    """Return the number of bytes of a payload that are in its cell."""
    most = (PAGE_BYTES - 12) * 64 // 255 - 23 if is_keyed else PAGE_BYTES - 35
    if size_bytes <= most:
        return size_bytes
    fitting = MIN_LOCAL_BYTES + (size_bytes - MIN_LOCAL_BYTES) % OVERFLOW_BYTES
    return fitting if fitting <= most else MIN_LOCAL_BYTES


def read_chain(file: PageFile, number: int, size_bytes: int) -> tuple[bytes, list[int]]:
    """Return up to `size_bytes` from a chain of overflow pages, and the pages read."""
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
    """Return the values of a row. Raise BrokenPageError if the payload is not a record."""
    head_bytes, at = varint(payload, 0)
    if head_bytes > len(payload):
        raise BrokenPageError("a record whose header is longer than the record")
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
    """Return a number of one to nine bytes, and the position after it."""
    value = 0
    for end in range(at, at + 8):
        if end >= len(data):
            raise BrokenPageError("a number without an end")
        byte = data[end]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, end + 1
    if at + 8 >= len(data):
        raise BrokenPageError("a number without an end")
    return value << 8 | data[at + 8], at + 9


def pointer(page: bytes, at: int) -> int:
    """Return the page number at this position."""
    (number,) = _POINTER.unpack_from(page, at)
    return int(number)


def _cell_positions(page: bytes, start: int) -> Sequence[int]:
    """Return the positions of the cells of a page."""
    kind = page[start]
    if kind not in (_INTERIOR, _KEYED_INTERIOR, LEAF, _KEYED_LEAF):
        raise BrokenPageError("not a page of a table")
    count = int.from_bytes(page[start + 3 : start + 5], "big")
    first = start + (12 if kind in (_INTERIOR, _KEYED_INTERIOR) else 8)
    if first + 2 * count > PAGE_BYTES:
        raise BrokenPageError("more cells than a page holds")
    positions = struct.unpack_from(f">{count}H", page, first)
    if any(not first + 2 * count <= at <= PAGE_BYTES - _POINTER.size for at in positions):
        raise BrokenPageError("a cell outside its page")
    return positions


def _value_bytes(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    if kind in (10, 11):
        raise BrokenPageError("a reserved type")
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
