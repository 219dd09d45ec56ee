"""The pages of a log's file, read without SQLite: for files that SQLite refuses.

A page is what the main file has in its place, unless the write-ahead log beside it has a newer one. Of that log count
the frames that SQLite would take: with the salts of its header, a running checksum that holds, and up to the last
commit. A damage ends the checksum for all that follows, so there is a second way to look at the file: `is_doubting`
takes frames for which only the salts speak. What is read that way must prove itself by a checksum of its own, as blocks
do.

The formats are those of https://sqlite.org/fileformat2.html, sections 1.3 and 4.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from godwit.errors import DiskError

PAGE_BYTES: Final = 16_384
"""The size of a page in every log that we make: so nobody has to believe a damaged header."""

READS_A_PAGE: Final = 64
"""Pages are read at most so often, on the average. Chains that were made to lead to one another would have no end."""

_FREELIST: Final = struct.Struct(">II")  # the first trunk page, how many free pages there are
_FREELIST_AT: Final = 32
_WAL_HEAD: Final = struct.Struct(">8I")
_FRAME_HEAD: Final = struct.Struct(">6I")
WAL_HEAD_BYTES: Final = _WAL_HEAD.size
FRAME_BYTES: Final = _FRAME_HEAD.size + PAGE_BYTES
_WAL_MAGIC: Final = 0x377F0682
"""Its last bit says in which order the checksum takes the bytes of a word."""
_POINTER: Final = struct.Struct(">I")


class PageFile:
    """Number and bytes of pages, as of the last commit. Pages are counted from 1; who asks for others gets None.

    SQLite must not have the file open in this process: its locks end when any other descriptor of the file is closed.
    """

    def __init__(self, path: Path, *, is_doubting: bool = False) -> None:
        self._frames: dict[int, int] = {}  # page -> where its newest image begins in the write-ahead log
        self._wal: int | None = None
        try:
            self._main = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise DiskError(f"cannot open the log {path}: {error.strerror or error}") from error
        self.main_bytes = os.fstat(self._main).st_size
        self._main_pages = (self.main_bytes + PAGE_BYTES - 1) // PAGE_BYTES
        self.wal_bytes = 0
        try:
            self._wal = os.open(f"{path}-wal", os.O_RDONLY)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.close()
            raise DiskError(f"cannot open the write-ahead log beside {path}: {error.strerror or error}") from error
        else:
            self.wal_bytes = os.fstat(self._wal).st_size
            self._take_frames(self._wal, is_doubting)
        self.page_count = max(self._main_pages, *self._frames, 0)
        self._reads_left = READS_A_PAGE * (self.page_count + READS_A_PAGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._main)
        if self._wal is not None:
            os.close(self._wal)

    def page(self, number: int) -> bytes | None:
        """Always a whole page: what a cut file lacks, or the disk does not give, is zero."""
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
        except OSError:  # a sector that the disk cannot read any more
            data = b""
        return data.ljust(PAGE_BYTES, b"\0")

    def is_other_view(self, other: PageFile) -> bool:
        """Whether the two, of the same file, take pages from elsewhere."""
        return self._frames != other._frames

    @property
    def wal_pages(self) -> list[int]:
        """The pages whose newest image is in the write-ahead log."""
        return list(self._frames)

    def free_pages(self) -> set[int]:
        """The pages that hold nothing any more, if the list of them is whole; else none, as nothing is sure then."""
        first = self.page(1)
        if first is None:
            return set()
        trunk, expected = _FREELIST.unpack_from(first, _FREELIST_AT)
        found: set[int] = set()
        while trunk:
            data = self.page(trunk)
            if data is None or trunk in found:
                return set()
            trunk_number = trunk
            trunk, leaves = _FREELIST.unpack_from(data)
            if leaves > PAGE_BYTES // _POINTER.size - 2:
                return set()
            found.add(trunk_number)
            found.update(struct.unpack_from(f">{leaves}I", data, _FREELIST.size))
        return found if len(found) == expected and all(page <= self.page_count for page in found) else set()

    def _take_frames(self, wal: int, is_doubting: bool) -> None:
        pending: dict[int, int] = {}
        most = self._main_pages + self.wal_bytes // PAGE_BYTES  # each frame can make the file longer by a page
        for number, is_commit, at in _every_frame(wal) if is_doubting else _sound_frames(wal):
            if 0 < number <= most:
                pending[number] = at
            if is_commit:
                self._frames.update(pending)
                pending.clear()


def _every_frame(wal: int) -> Iterator[tuple[int, bool, int]]:
    """Yield page, whether it ends a commit, and the position of the image: of all frames with the current salts.

    These are in the header, and if that is damaged, in the first frame.
    """
    at = WAL_HEAD_BYTES
    salts = _header_salts(os.pread(wal, WAL_HEAD_BYTES, 0))
    while len(head := os.pread(wal, _FRAME_HEAD.size, at)) == _FRAME_HEAD.size:
        number, size_pages, salt_1, salt_2, _, _ = _FRAME_HEAD.unpack(head)
        salts = salts or (salt_1, salt_2)
        if salts == (salt_1, salt_2):
            yield number, size_pages != 0, at + _FRAME_HEAD.size
        at += FRAME_BYTES


def _sound_frames(wal: int) -> Iterator[tuple[int, bool, int]]:
    """The same, as long as checksums hold."""
    head = os.pread(wal, WAL_HEAD_BYTES, 0)
    salts = _header_salts(head)
    if salts is None:
        return
    order, check = _header_check(head)
    at = WAL_HEAD_BYTES
    while len(frame := os.pread(wal, FRAME_BYTES, at)) == FRAME_BYTES:
        number, size_pages, salt_1, salt_2, *said = _FRAME_HEAD.unpack_from(frame)
        check = _checksum(order, frame[:8], check)
        check = _checksum(order, frame[_FRAME_HEAD.size :], check)
        if (salt_1, salt_2) != salts or check != tuple(said):
            return
        yield number, size_pages != 0, at + _FRAME_HEAD.size
        at += FRAME_BYTES


def _header_salts(head: bytes) -> tuple[int, int] | None:
    """Return the salts in the header of a write-ahead log, or None if it is not one of ours, or damaged."""
    if len(head) < WAL_HEAD_BYTES:
        return None
    magic, _, size_bytes, _, salt_1, salt_2, *said = _WAL_HEAD.unpack(head)
    if magic & ~1 != _WAL_MAGIC or size_bytes != PAGE_BYTES or _header_check(head)[1] != tuple(said):
        return None
    return salt_1, salt_2


def _header_check(head: bytes) -> tuple[str, tuple[int, int]]:
    """Return the byte order of the checksums, and the checksum of the header, with which that of the frames begins."""
    order = ">" if head[3] & 1 else "<"
    return order, _checksum(order, head[:24], (0, 0))


def _checksum(order: str, data: bytes, start: tuple[int, int]) -> tuple[int, int]:
    """The running checksum of the write-ahead log: two sums over pairs of words, each into the other."""
    one, two = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    pairs = iter(words)
    for even, odd in zip(pairs, pairs, strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two
