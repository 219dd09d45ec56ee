"""A bookmark: a position in a log that can be stored, and recognised when an older copy of the log was put back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from godwit.errors import UsageError
from godwit.wire.epochs import EPOCH_ID_BYTES, Epoch

MAX_EPOCHS: Final = 4
"""Epochs in a bookmark, so that its text stays short. Of a log that went back further nothing counts as read."""
_TEXT: Final = re.compile(r"(\d{1,19})@([0-9a-f]{32})((?:/[0-9a-f]{16}:\d{1,19}){0,4})")


class Bookmark(msgspec.Struct, frozen=True):
    """The first offset that was not read, in which log, and the epochs of what was read before it.

    `str` and `parse` convert it to a text and back, so that it can be stored with results.
    """

    offset: int
    log: bytes
    epochs: tuple[Epoch, ...]

    def __str__(self) -> str:
        parts = (f"/{epoch.id.hex()}:{epoch.first_offset}" for epoch in self.epochs)
        return f"{self.offset}@{self.log.hex()}{''.join(parts)}"

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        """Return the bookmark of a text that `str` made. Raise UsageError for any other text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise UsageError(f"{text[:80]!r} is not a bookmark: give the text of `subscription.bookmark`, unchanged")
        pairs = [pair.split(":") for pair in match[3].split("/")[1:]]
        epochs = tuple(Epoch(bytes.fromhex(id_), int(first_offset)) for id_, first_offset in pairs)
        numbers = [int(match[1]), *(epoch.first_offset for epoch in epochs)]
        if max(numbers) >= 2**63:
            raise UsageError(f"{text[:80]!r} is not a bookmark: {max(numbers)} is not an offset")
        return cls(numbers[0], bytes.fromhex(match[2]), epochs)


def make_bookmark(offset: int, log: bytes, epochs: Sequence[Epoch]) -> Bookmark:
    """Return the bookmark of an offset in the log with these epochs."""
    before = [epoch for epoch in epochs if epoch.first_offset < offset]
    return Bookmark(offset, log, tuple(before[-MAX_EPOCHS:]))


assert EPOCH_ID_BYTES == 8, "the pattern of a bookmark's text has ids of 16 digits"
