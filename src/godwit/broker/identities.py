"""Identities of publishers: which messages of QoS 2 are known, by the newest epoch and the next sequence of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from godwit.broker.dirty_state import DirtyState
from godwit.limits import MAX_PUBLISHERS_REMEMBERED, PUBLISHER_EXPIRY_S
from godwit.wire.changes import IdentityRow

PublisherKey: TypeAlias = tuple[str, str, str]
"""The client's name (empty for a nameless one), the identity that it gave, the topic."""
MAX_OPENED: Final = 20_000
"""Publishers that have sent nothing yet; beyond it the oldest is deleted."""


class PublisherProgress(msgspec.Struct):
    """How far one publisher has come on one topic."""

    epoch: int
    next_sequence: int
    """Everything below has arrived; the log may not have all of it yet."""
    last_us: int
    stored_epoch: int = 0
    stored_sequence: int = 0
    """Everything below is in the log."""


class Identities:
    """The known publishers, in bounded number: the owner with the most loses its least recently used one.

    So a client with many identities does not push out those of others.
    """

    def __init__(self, dirty: DirtyState) -> None:
        self._dirty = dirty
        self._known: OrderedDict[PublisherKey, PublisherProgress] = OrderedDict()
        """The least recently used one first."""
        self._opened: OrderedDict[PublisherKey, int] = OrderedDict()
        """The epochs of publishers that have sent nothing yet: they retire older epochs all the same."""
        self._of_owner: dict[str, OrderedDict[PublisherKey, None]] = {}
        """The known publishers by owner."""
        self._owners_with: dict[int, dict[str, None]] = {}
        """Owners by the number of their publishers."""
        self._most = 0
        """The largest of these numbers."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: PublisherKey) -> PublisherProgress | None:
        return self._known.get(key)

    def open(self, key: PublisherKey, epoch: int) -> bool:
        """A run of the publisher begins or continues; return False if a newer one is known.

        A new publisher becomes known with its first message.
        """
        known = self._known.get(key)
        if epoch < (known.epoch if known is not None else self._opened.get(key, 0)):
            return False
        if known is None:
            self._opened[key] = epoch
            self._opened.move_to_end(key)
            if len(self._opened) > MAX_OPENED:
                self._opened.popitem(last=False)
        elif epoch > known.epoch:
            self._begin(key, known, epoch)
        return True

    def _add(self, key: PublisherKey, known: PublisherProgress) -> None:
        owner = key[0]
        self._known[key] = known
        self._of_owner.setdefault(owner, OrderedDict())[key] = None
        self._count(owner, 1)

    def _remove(self, key: PublisherKey) -> None:
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

    def _begin(self, key: PublisherKey, known: PublisherProgress, epoch: int) -> None:
        known.epoch = epoch
        known.next_sequence = 0
        self._dirty.identity(key, known)

    def record_sequences(self, key: PublisherKey, epoch: int, sequence: int, count: int, now_us: int) -> int | None:
        """Record the sequences of a batch, and return how many messages at its front are repeats.

        Return None, and record nothing, if a newer epoch of the publisher has begun.
        """
        known = self._known.get(key)
        if known is None:
            if epoch < self._opened.get(key, 0):
                return None
            self._opened.pop(key, None)
            known = PublisherProgress(epoch, 0, now_us)
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
        self._dirty.identity(key, known)
        return repeated

    def on_stored(self, key: PublisherKey, epoch: int, sequence: int) -> None:
        """Everything below this sequence is in the log."""
        known = self._known.get(key)
        if known is not None:
            known.stored_epoch = epoch
            known.stored_sequence = sequence

    def rewind(self, keys: Iterable[PublisherKey]) -> None:
        """An append failed: messages that are not in the log are new when they come again. Epochs remain."""
        for key in keys:
            known = self._known.get(key)
            if known is not None:
                known.next_sequence = known.stored_sequence if known.stored_epoch == known.epoch else 0

    def restore(self, rows: Sequence[IdentityRow], now_us: int) -> None:
        """Add the publishers that were known before a restart or a takeover, the least recently used ones first.

        Their idle time begins anew: no broker may have run, or this one's clock may be years ahead of that of the
        broker before. Messages that a forgotten publisher sends again would be stored twice. Their number is limited.
        """
        for row in rows:
            progress = PublisherProgress(row.epoch, row.next_sequence, now_us, row.epoch, row.next_sequence)
            self._add((row.owner, row.publisher, row.topic), progress)

    def _bound(self, now_us: int) -> None:
        """Delete expired publishers, and one if there are too many. The newest of all has just been added."""
        expired_us = now_us - PUBLISHER_EXPIRY_S * 1_000_000
        while True:
            oldest = next(iter(self._known))
            if self._known[oldest].last_us > expired_us:
                if len(self._known) <= MAX_PUBLISHERS_REMEMBERED:
                    return
                owner = next(iter(self._owners_with[self._most]))
                oldest = next(iter(self._of_owner[owner]))
            self._remove(oldest)
            self._dirty.identity(oldest, None)
