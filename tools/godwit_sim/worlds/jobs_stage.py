"""What stands between the server and its disk in the world of jobs: a log that takes its time, as a thread's does."""

from __future__ import annotations

from collections import deque
from random import Random

from godwit.broker.effects import Append, Committed, Failed
from godwit.errors import StorageError
from godwit_sim.worlds.durable_stage import TrimmedLog, WatchedDurableStore


class LateLog(TrimmedLog):
    """Answers appends a little later, while the broker goes on. When one fails, those behind it do too."""

    def __init__(self, store: WatchedDurableStore, rng: Random, commit_s: float) -> None:
        super().__init__(store)
        self._rng = rng
        self._commit_us = int(commit_s * 1e6)
        self._under_way: deque[tuple[int, Append]] = deque()

    def append(self, effect: Append, now_us: int) -> None:
        begins_us = max(now_us, self._under_way[-1][0] if self._under_way else 0)
        self._under_way.append((begins_us + self._rng.randint(0, self._commit_us), effect))

    def work(self, now_us: int) -> None:
        while self._under_way and self._under_way[0][0] <= now_us:
            _, effect = self._under_way.popleft()
            try:
                first_offset = self.store.append(effect.entries, effect.changes)
            except StorageError as error:
                failed = 1 + len(self._under_way)
                self._under_way.clear()
                for _ in range(failed):
                    self.broker.handle(Failed(str(error)), now_us)
            else:
                self.broker.handle(Committed(first_offset), now_us)
        super().work(now_us)

    @property
    def due_us(self) -> int | None:
        due_us = super().due_us
        if due_us is None and self._under_way:
            return self._under_way[0][0]
        return due_us

    @property
    def held_bytes(self) -> int:
        return sum(len(entry.rest) for _, effect in self._under_way for entry in effect.entries)
