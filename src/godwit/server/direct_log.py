"""A log whose store answers at once, in the server's own thread: for simulations and for stores in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Committed, Failed, Found, Locate, Located, Read
from godwit.errors import StorageError
from godwit.store.port import Store
from godwit.wire.changes import StoredState
from godwit.wire.epochs import Epoch

READS_PER_TURN: Final = 4
"""For subscriptions that are behind; then live traffic has its turn."""


class DirectLog:
    """See godwit.server.log."""

    broker: Broker
    keeps_state = True

    def __init__(self, store: Store) -> None:
        self.store = store
        self._reads: deque[Read] = deque()

    @property
    def log_id(self) -> bytes:
        return self.store.log_id

    @property
    def first_offset(self) -> int:
        return self.store.first_offset

    @property
    def next_offset(self) -> int:
        return self.store.next_offset

    @property
    def epochs(self) -> Sequence[Epoch]:
        return self.store.epochs

    def state(self) -> StoredState:
        return self.store.state()

    def begin(self, broker: Broker) -> None:
        self.broker = broker

    def append(self, effect: Append, now_us: int) -> None:
        try:
            first_offset = self.store.append(effect.entries, effect.changes)
        except StorageError as error:
            self.broker.handle(Failed(str(error)), now_us)
        else:
            self.broker.handle(Committed(first_offset), now_us)

    def read(self, effect: Read) -> None:
        self._reads.append(effect)

    def locate(self, effect: Locate, now_us: int) -> None:
        self.broker.handle(Located(effect, self.store.offset_at(effect.time_us)), now_us)

    def work(self, now_us: int) -> None:
        for _ in range(min(len(self._reads), READS_PER_TURN)):
            read = self._reads.popleft()
            found = self.store.read(read.offset, read.max_bytes)
            self.broker.handle(Found(read, found.entries, found.next_offset, found.damaged), now_us)

    @property
    def is_idle(self) -> bool:
        return not self._reads

    @property
    def due_us(self) -> int | None:
        return 0 if self._reads else None

    @property
    def held_bytes(self) -> int:
        return 0
