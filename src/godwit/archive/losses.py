"""What is gone of a range: below the log's beginning, below a mark of retention, in damaged blocks. Never silent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from godwit.errors import StorageError
from godwit.wire.retention_floors import lost_below

Ranges: TypeAlias = list[tuple[int, int]]
"""Of offsets: begin and end."""

_SHOWN: Final = 3


class DataLossError(StorageError):
    """Messages of the range that was asked for are gone, or were never there."""

    def __init__(self, lost: Ranges, why: str) -> None:
        told = ", ".join(f"{begin} to {end - 1}" for begin, end in lost[:_SHOWN])
        if len(lost) > _SHOWN:
            told += f" and {len(lost) - _SHOWN} more ranges"
        super().__init__(
            f"messages at the offsets {told} cannot be read: {why}. "
            "To read what is there, ask again with fail_on_data_loss set to false"
        )
        self.lost = lost

    @property
    def details(self) -> bytes:
        """For programs."""
        return json.dumps({"kind": "data_loss", "lost": self.lost}).encode()


class ReplacedLogError(StorageError):
    """The range is meant in another history of the log: an older copy was put back."""

    def __init__(self, same_below: int, end: int) -> None:
        super().__init__(
            f"the log has other messages from offset {same_below} on than when the offsets up to {end} were read: an "
            "older copy of it was put back"
        )
        self.same_below = same_below

    @property
    def details(self) -> bytes:
        """For programs."""
        return json.dumps({"kind": "replaced", "same_below": self.same_below}).encode()


def gone_below(first_offset: int, marks: Mapping[str, int], filters: Sequence[str]) -> int:
    """Up to where retention may have deleted messages that these filters ask for; no filters ask for everything."""
    reached = lost_below(marks, filters) if filters else max(marks.values(), default=0)
    return max(first_offset, reached)
