"""Which messages of QoS 2 are known: for each publisher and topic the newest epoch and the next sequence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from godwit.broker.journal import Journal
from godwit.limits import MAX_PUBLISHERS_REMEMBERED, PUBLISHER_EXPIRY_S
from godwit.wire.changes import IdentityRow

Key: TypeAlias = tuple[str, str, str]
"""The client's name (empty for a nameless one), the identity it gave, the topic."""
MAX_BEGUN: Final = 20_000
"""Publishers that have sent nothing yet: the longest of them is forgotten."""


class Progress(msgspec.Struct):
    epoch: int
    next_sequence: int
    """What is below has arrived; the log may not have all of it yet."""
    last_us: int
    safe_epoch: int = 0
    safe_sequence: int = 0
    """What is below is in the log."""


class Identities:
    """Bounded: when there are too many, the owner with the most loses the one that was silent for longest. So nobody
    pushes out others who have few."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: OrderedDict[Key, Progress] = OrderedDict()
        """The one that was silent for longest first."""
        self._begun: OrderedDict[Key, int] = OrderedDict()
        """The epochs of those that have sent nothing yet: they retire older ones all the same, as well as it goes."""
        self._of_owner: dict[str, OrderedDict[Key, None]] = {}
        """The same, by owner."""
        self._owners_with: dict[int, dict[str, None]] = {}
        """Owners by how many they have."""
        self._most = 0
        """What the owner with the most has."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key) -> Progress | None:
        return self._known.get(key)

    def open(self, key: Key, epoch: int) -> bool:
        """A run of the publisher begins or goes on; False if a newer one is known. A new publisher becomes known with
        its first message."""
        known = self._known.get(key)
        if epoch < (known.epoch if known is not None else self._begun.get(key, 0)):
            return False
        if known is None:
            self._begun[key] = epoch
            self._begun.move_to_end(key)
            if len(self._begun) > MAX_BEGUN:
                self._begun.popitem(last=False)
        elif epoch > known.epoch:
            self._begin(key, known, epoch)
        return True

    def _add(self, key: Key, known: Progress) -> None:
        owner = key[0]
        self._known[key] = known
        self._of_owner.setdefault(owner, OrderedDict())[key] = None
        self._count(owner, 1)

    def _remove(self, key: Key) -> None:
        owner = key[0]
        del self._known[key], self._of_owner[owner][key]
        self._count(owner, -1)
        if not self._of_owner[owner]:
            del self._of_owner[owner]

    def _count(self, owner: str, change: int) -> None:
        now = len(self._of_owner[owner])
        before = now - change
        if before:
            del self._owners_with[before][owner]
            if not self._owners_with[before]:
                del self._owners_with[before]
        if now:
            self._owners_with.setdefault(now, {})[owner] = None
        if now > self._most or before == self._most not in self._owners_with:
            self._most = now

    def _begin(self, key: Key, known: Progress, epoch: int) -> None:
        known.epoch = epoch
        known.next_sequence = 0
        self._journal.identity(key, known)

    def new_messages(self, key: Key, epoch: int, sequence: int, count: int, now_us: int) -> int | None:
        """How many at the front of a batch are known already; None if the epoch is over.

        The rest counts as known from now on.
        """
        known = self._known.get(key)
        if known is None:
            if epoch < self._begun.get(key, 0):
                return None
            self._begun.pop(key, None)
            known = Progress(epoch, 0, now_us)
            self._add(key, known)
            self._bound(now_us)
        if epoch < known.epoch:
            return None
        if epoch > known.epoch:
            self._begin(key, known, epoch)
        repeated = min(max(known.next_sequence - sequence, 0), count)
        known.next_sequence = max(known.next_sequence, sequence + count)
        known.last_us = now_us
        self._known.move_to_end(key)
        self._of_owner[key[0]].move_to_end(key)
        self._journal.identity(key, known)
        return repeated

    def on_safe(self, key: Key, epoch: int, sequence: int) -> None:
        """What is below this sequence is in the log."""
        known = self._known.get(key)
        if known is not None:
            known.safe_epoch = epoch
            known.safe_sequence = sequence

    def rewind(self, keys: Iterable[Key]) -> None:
        """What is not in the log will not be: it is new when it comes again. A newer epoch stays the newest."""
        for key in keys:
            known = self._known.get(key)
            if known is not None:
                known.next_sequence = known.safe_sequence if known.safe_epoch == known.epoch else 0

    def restore(self, kept: IdentityRow) -> None:
        """One that was known before the broker was restarted; the longest silent come first."""
        key = (kept.owner, kept.publisher, kept.topic)
        self._add(key, Progress(kept.epoch, kept.next_sequence, kept.last_us, kept.epoch, kept.next_sequence))

    def _bound(self, now_us: int) -> None:
        """There is one more, which is the newest of all."""
        expired_us = now_us - PUBLISHER_EXPIRY_S * 1_000_000
        while True:
            oldest = next(iter(self._known))
            if self._known[oldest].last_us > expired_us:
                if len(self._known) <= MAX_PUBLISHERS_REMEMBERED:
                    return
                owner = next(iter(self._owners_with[self._most]))
                oldest = next(iter(self._of_owner[owner]))
            self._remove(oldest)
            self._journal.identity(oldest, None)
