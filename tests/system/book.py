"""Reads a broker's log off the disk and keeps account of what publishers of tests.system.pour wrote there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tests.system.pour import NUMBER_BYTES

from godwit.store.reader import LogReader
from godwit.wire.batch import QOS_SHIFT, Entry

READ_BYTES = 8 * 1024 * 1024


class Book:
    """What the log has of each topic. It is read on from where it was read to before.

    A hole in the offsets, a hole or a swap in a publisher's numbers and a repeat at QoS 2 are errors at once; repeats
    at QoS 1 are counted: there a message may be in the log again when its confirm was lost.
    """

    def __init__(self, path: Path, message_bytes: int = 100) -> None:
        self.next: dict[str, int] = {}
        """For each topic, the number behind the last that is there."""
        self.offset = 0
        self.repeats = 0
        self._path = path
        self._message_bytes = message_bytes

    def read(self) -> None:
        reader = LogReader.open(self._path)
        try:
            end = reader.next_offset()
            while self.offset < end:
                piece = reader.read(self.offset, READ_BYTES)
                assert not piece.damaged
                for offset, entry in piece.entries:
                    assert offset == self.offset, f"offset {offset} follows where {self.offset} was due"
                    self._take(entry)
                    self.offset += entry.count
        finally:
            reader.close()

    def _take(self, entry: Entry) -> None:
        bodies = entry.rest[-entry.count * self._message_bytes :]
        rows = np.frombuffer(bodies, np.uint8).reshape(entry.count, self._message_bytes)
        numbers = rows[:, :NUMBER_BYTES].copy().view(">u8").reshape(-1).astype(np.int64)
        assert (np.diff(numbers) == 1).all(), f"{entry.topic}: a batch is out of order"
        first, end = int(numbers[0]), int(numbers[-1]) + 1
        expected = self.next.get(entry.topic, 0)
        if entry.flags >> QOS_SHIFT == 2:
            assert first == expected, f"{entry.topic}: {first} stands where {expected} was due"
        else:
            assert first <= expected, f"{entry.topic}: {first} stands where {expected} was due"
            self.repeats += expected - first
        self.next[entry.topic] = max(expected, end)

    def check(self, confirmed: Mapping[str, int]) -> None:
        """What publishers were told to be safe is there."""
        missing = {topic: (count, self.next.get(topic, 0)) for topic, count in confirmed.items()}
        missing = {topic: both for topic, both in missing.items() if both[1] < both[0]}
        assert not missing, f"confirmed, and in the log: {missing}"
