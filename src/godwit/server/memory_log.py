"""The log in memory: appends wait while they would push out what a connected subscriber still needs, for a while.

The patience with slow subscribers is one for all: it runs down while publishers wait, comes back a little with every
step that was worth waiting for, and slowly with time. So one that takes its messages steadily is waited for as long as
need be, and one that only pretends holds the others up for a small part of the time, however often it comes again.
"""

from __future__ import annotations

from collections import deque

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Losing
from godwit.server.direct_log import DirectLog
from godwit.store.memory import MemoryStore, entry_bytes
from godwit.store.port import Entry

READ_BYTES = 1024 * 1024
STEPS_OF_PATIENCE = 10
"""A step that a late subscriber made gives this part of the patience back: a ring's 64th in a second, by default."""
SLOW_RETURN = 6
"""So many times as long as it lasted, patience takes to come back by itself."""
MOST_HELD_RINGS = 4
LEAST_HELD_BYTES = 64 * 1024 * 1024
"""Nobody is waited for while more than this and than so many rings are held: publishers may come again and again."""


class MemoryLog(DirectLog):
    """See godwit.server.log. It tells the broker with a Losing before the ring forgets anything."""

    store: MemoryStore
    keeps_state = False

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._waiting: deque[tuple[Append, int]] = deque()
        """With their bytes in the log."""
        self._held_since_us: int | None = None
        self._patience_us = 0
        self._patience_at_us = 0
        """When it was last worked out."""
        self._held_bytes = 0

    def begin(self, broker: Broker) -> None:
        super().begin(broker)
        self._patience_us = self._most_patience_us

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def due_us(self) -> int | None:
        due_us = super().due_us
        if due_us is None and self._held_since_us is not None:
            due_us = self._held_since_us + self._patience_us
        return due_us

    @property
    def _most_patience_us(self) -> int:
        return int(self.broker.settings.hold_back_s * 1e6)

    def append(self, effect: Append, now_us: int) -> None:
        size_bytes = sum([entry_bytes(entry) for entry in effect.entries])
        self._waiting.append((effect, size_bytes))
        self._held_bytes += size_bytes
        self._append_waiting(now_us)

    def work(self, now_us: int) -> None:
        self._append_waiting(now_us)
        super().work(now_us)

    def _append_waiting(self, now_us: int) -> None:
        """What may be appended now, in order."""
        while self._waiting:
            effect, size_bytes = self._waiting[0]
            floor = self.store.floor_after(size_bytes)
            if floor > self.store.first_offset and not self._may_forget(floor, now_us):
                return
            self._waiting.popleft()
            self._held_bytes -= size_bytes
            super().append(effect, now_us)

    def _may_forget(self, floor: int, now_us: int) -> bool:
        broker = self.broker
        late = broker.overrun(floor)
        if late:
            if self._held_since_us is None:
                self._held_since_us = now_us
                self._regain(now_us, (now_us - self._patience_at_us) // SLOW_RETURN)
            most_bytes = max(MOST_HELD_RINGS * broker.settings.ring_bytes, LEAST_HELD_BYTES)
            if now_us < self._held_since_us + self._patience_us and self.held_bytes <= most_bytes:
                return False
            broker.abandon(late)
        if self._held_since_us is not None:
            self._patience_us -= min(now_us - self._held_since_us, self._patience_us)
            self._regain(now_us, 0 if late else self._most_patience_us // STEPS_OF_PATIENCE)
            self._held_since_us = None
        losing = self._below(floor) if broker.needs_below(floor) else []
        broker.handle(Losing(losing, floor), now_us)
        return True

    def _regain(self, now_us: int, more_us: int) -> None:
        self._patience_us = min(self._patience_us + more_us, self._most_patience_us)
        self._patience_at_us = now_us

    def _below(self, floor: int) -> list[tuple[int, Entry]]:
        entries: list[tuple[int, Entry]] = []
        offset = self.store.first_offset
        while offset < floor:
            found = self.store.read(offset, READ_BYTES)
            entries += [(first, entry) for first, entry in found.entries if first < floor]
            offset = found.next_offset
        return entries
