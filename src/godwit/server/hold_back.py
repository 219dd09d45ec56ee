"""Appends wait while they would push out of the log what a connected subscriber still needs, for a limited time.

The patience with slow subscribers is one for all: it runs down while publishers wait, comes back a little with every
step that was worth waiting for, and slowly with time. So one that takes its messages steadily is waited for as long as
need be, and one that only pretends holds the others up for a small part of the time, however often it comes again.
"""

from __future__ import annotations

from collections import deque

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Committed, Losing
from godwit.store.memory import entry_bytes
from godwit.store.port import Entry, Store

READ_BYTES = 1024 * 1024
STEPS_OF_PATIENCE = 10
"""A step that a late subscriber made gives this part of the patience back: a ring's 64th in a second, by default."""
SLOW_RETURN = 6
"""So many times as long as it lasted, patience takes to come back by itself."""
MOST_HELD_RINGS = 4
LEAST_HELD_BYTES = 64 * 1024 * 1024
"""Nobody is waited for while more than this and than so many rings are held: publishers may come again and again."""


class HoldBack:
    """Feed: append, work. It answers the broker with Committed, and with Losing before the log forgets anything."""

    def __init__(self, broker: Broker, store: Store) -> None:
        self._broker = broker
        self._store = store
        self._waiting: deque[tuple[Append, int]] = deque()
        """With their bytes in the log."""
        self._held_since_us: int | None = None
        self._patience_us = self._most_patience_us
        self._patience_at_us = 0
        """When it was last worked out."""
        self.held_bytes = 0

    @property
    def due_us(self) -> int | None:
        """When `work` wants to be called, if nothing else happens before."""
        return None if self._held_since_us is None else self._held_since_us + self._patience_us

    @property
    def _most_patience_us(self) -> int:
        return int(self._broker.settings.hold_back_s * 1e6)

    def append(self, effect: Append, now_us: int) -> None:
        size_bytes = sum([entry_bytes(entry) for entry in effect.entries])
        self._waiting.append((effect, size_bytes))
        self.held_bytes += size_bytes
        self.work(now_us)

    def work(self, now_us: int) -> None:
        """Appends what may be appended now, in order."""
        while self._waiting:
            effect, size_bytes = self._waiting[0]
            floor = self._store.floor_after(size_bytes)
            if floor > self._store.first_offset and not self._may_forget(floor, now_us):
                return
            self._waiting.popleft()
            self.held_bytes -= size_bytes
            first_offset = self._store.append(effect.entries)
            self._broker.handle(Committed(first_offset), now_us)

    def _may_forget(self, floor: int, now_us: int) -> bool:
        broker = self._broker
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
        offset = self._store.first_offset
        while offset < floor:
            found = self._store.read(offset, READ_BYTES)
            entries += [(first, entry) for first, entry in found.entries if first < floor]
            offset = found.next_offset
        return entries
