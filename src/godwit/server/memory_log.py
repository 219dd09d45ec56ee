"""The log in memory: appends wait, for a limited time, while they would push out what a connected subscriber needs.

The time that publishers wait for slow subscribers comes from one reserve for all, of `hold_back_s`, which refills by a
second per minute. Subscribers that acknowledge nothing, however many come one after another, hold publishers back no
longer than that: 20 s in 10 minutes by default, 10 s in each 10 minutes after them.

A subscriber that was waited for and advanced is *steady*: its next step, a 64th of the ring, may take a tenth of
`hold_back_s` without a charge to the reserve, and is waited for even if the reserve is empty. So a subscriber that
acknowledges steadily is waited for as long as necessary, whatever others do. If it stops, it is no longer steady.
"""

from __future__ import annotations

from collections import deque

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Losing
from godwit.broker.ports import Outbound
from godwit.broker.subscription import BrokerSubscription
from godwit.server.direct_log import DirectLog
from godwit.store.memory import MemoryStore, entry_bytes
from godwit.store.port import Entry

READ_BYTES = 1024 * 1024
STEPS_OF_RESERVE = 10
"""A steady subscriber may take this fraction of `hold_back_s` for a step, a 64th of the ring: a second by default."""
REFILL_TIMES = 60
"""The reserve takes this many times as long to refill as it lasted."""
MOST_HELD_RINGS = 4
LEAST_HELD_BYTES = 64 * 1024 * 1024
"""No subscriber is waited for while more than this and more than MOST_HELD_RINGS rings are held in appends."""


class MemoryLog(DirectLog):
    """See godwit.server.log. It notifies the broker with Losing before the ring deletes anything."""

    store: MemoryStore
    keeps_state = False

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._waiting: deque[tuple[Append, int]] = deque()
        """With their length in the log."""
        self._held_since_us: int | None = None
        self._held_until_us = 0
        """When the last of the subscribers is given up, unless it advances before."""
        self._waited_for: dict[BrokerSubscription, Outbound] = {}
        """The subscribers that publishers wait for, with their outbounds: another connection has another one."""
        self._reserve_us = 0
        self._reserve_at_us = 0
        """When the reserve was last updated."""
        self._held_bytes = 0

    def begin(self, broker: Broker) -> None:
        super().begin(broker)
        self._reserve_us = self._most_reserve_us

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def is_idle(self) -> bool:
        return not self._reads and not self._waiting

    @property
    def due_us(self) -> int | None:
        if self._reads:
            return 0
        return None if self._held_since_us is None else self._held_until_us

    @property
    def _most_reserve_us(self) -> int:
        return int(self.broker.settings.hold_back_s * 1e6)

    def append(self, effect: Append, now_us: int) -> None:
        size_bytes = sum([entry_bytes(entry) for entry in effect.entries])
        self._waiting.append((effect, size_bytes))
        self._held_bytes += size_bytes
        self._append_waiting(now_us)

    def work(self, now_us: int) -> None:
        if self._waiting:
            self._append_waiting(now_us)
        super().work(now_us)

    def _append_waiting(self, now_us: int) -> None:
        """Append as many waiting appends as the ring allows now, in order."""
        while self._waiting:
            effect, size_bytes = self._waiting[0]
            floor = self.store.floor_after(size_bytes)
            if floor > self.store.first_offset and not self._may_delete(floor, now_us):
                return
            self._waiting.popleft()
            self._held_bytes -= size_bytes
            super().append(effect, now_us)

    def _may_delete(self, floor: int, now_us: int) -> bool:
        broker = self.broker
        late = broker.overrun(floor)
        if late and self._must_wait_for(late, now_us):
            return False
        self._end_hold(now_us)
        losing = self._below(floor) if broker.needs_below(floor) else []
        broker.handle(Losing(losing, floor), now_us)
        return True

    def _must_wait_for(self, late: list[BrokerSubscription], now_us: int) -> bool:
        """Return whether publishers wait for any of these subscribers. Stops waiting for those whose time is over."""
        if self._held_since_us is None:
            self._held_since_us = now_us
            refill_us = (now_us - self._reserve_at_us) // REFILL_TIMES
            self._reserve_us = min(self._reserve_us + refill_us, self._most_reserve_us)
        self._waited_for.update((subscription, subscription.outbound) for subscription in late)
        most_bytes = max(MOST_HELD_RINGS * self.broker.settings.ring_bytes, LEAST_HELD_BYTES)
        until_us = {one: self._held_since_us + self._allowed_us(one) for one in late}
        over = late if self.held_bytes > most_bytes else [one for one in late if until_us[one] <= now_us]
        self.broker.abandon(over)
        self._held_until_us = max(until_us.values())
        return len(over) < len(late)

    def _allowed_us(self, subscription: BrokerSubscription) -> int:
        step_us = self._most_reserve_us // STEPS_OF_RESERVE
        return max(self._reserve_us, step_us) if subscription.is_steady else self._reserve_us

    def _end_hold(self, now_us: int) -> None:
        """Charge the wait to the reserve, except one step if all subscribers that were waited for have advanced."""
        if self._held_since_us is None:
            return
        waited_us = now_us - self._held_since_us
        have_advanced = True
        for one, outbound in self._waited_for.items():
            if one.peer is not None and one.outbound is outbound and not one.is_abandoned:
                one.is_steady = True
            else:
                have_advanced = False
        if have_advanced:
            waited_us -= min(waited_us, self._most_reserve_us // STEPS_OF_RESERVE)
        self._reserve_us -= min(waited_us, self._reserve_us)
        self._reserve_at_us = now_us
        self._held_since_us = None
        self._waited_for.clear()

    def _below(self, floor: int) -> list[tuple[int, Entry]]:
        entries: list[tuple[int, Entry]] = []
        offset = self.store.first_offset
        while offset < floor:
            found = self.store.read(offset, READ_BYTES)
            entries += [(first, entry) for first, entry in found.entries if first < floor]
            offset = found.next_offset
        return entries
