"""A publisher's packed batches: those that wait for the transport, and those that the broker has not confirmed."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from godwit.limits import RECORD_COST_BYTES

Packed: TypeAlias = tuple[int, int, bytes]
"""The sequence of a batch's first message, how many there are, the record."""


class Backlog:
    """In the order of their sequences: what was sent stands before what waits."""

    __slots__ = ("_sent", "_waiting", "next_record", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.next_record = 0
        """On the present channel."""
        self._waiting: deque[Packed] = deque()
        self._sent: deque[tuple[int, Packed]] = deque()
        """With their record numbers on the present channel."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._sent)

    @property
    def first_waiting(self) -> Packed | None:
        return self._waiting[0] if self._waiting else None

    @property
    def first_sequence(self) -> int | None:
        """Of the oldest batch."""
        if self._sent:
            return self._sent[0][1][0]
        return self._waiting[0][0] if self._waiting else None

    @property
    def last_record(self) -> int | None:
        """The number of the newest record that was sent and is not confirmed."""
        return self._sent[-1][0] if self._sent else None

    def add(self, packed: Packed) -> None:
        self._waiting.append(packed)
        self.waiting_bytes += len(packed[2])

    def take(self) -> Packed:
        """The first that waits is done with."""
        packed = self._waiting.popleft()
        self.waiting_bytes -= len(packed[2])
        return packed

    def mark_sent(self) -> None:
        """The first that waits was handed to the transport, and is kept until it is confirmed."""
        self._sent.append((self.next_record, self.take()))
        self.next_record += 1

    def confirm(self, record: int) -> int:
        """Everything up to this record is safe. Gives what that frees."""
        sent = self._sent
        freed_bytes = 0
        while sent and sent[0][0] <= record:
            freed_bytes += cost_bytes(sent.popleft()[1])
        return freed_bytes

    def on_disconnected(self) -> None:
        """What was sent waits again, before everything else and as it was."""
        while self._sent:
            packed = self._sent.pop()[1]
            self._waiting.appendleft(packed)
            self.waiting_bytes += len(packed[2])

    def trim(self, most_bytes: int) -> tuple[int, int]:
        """Drops the oldest of what waits, but for one, down to so many bytes. Gives messages dropped, bytes freed."""
        count = freed_bytes = 0
        while self.waiting_bytes > most_bytes and len(self._waiting) > 1:
            packed = self.take()
            count += packed[1]
            freed_bytes += cost_bytes(packed)
        return count, freed_bytes

    def clear(self) -> int:
        """Drops everything. Gives what that frees."""
        self.on_disconnected()
        freed_bytes = sum(map(cost_bytes, self._waiting))
        self._waiting.clear()
        self.waiting_bytes = 0
        return freed_bytes


def cost_bytes(packed: Packed) -> int:
    """What it takes of the client's buffer."""
    return len(packed[2]) + RECORD_COST_BYTES
