"""Which messages of QoS 2 are known: for each publisher and topic the newest epoch and the next sequence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from godwit.broker.journal import Journal
from godwit.limits import MAX_PUBLISHERS_REMEMBERED, PUBLISHER_EXPIRY_S
from godwit.wire.changes import IdentityKept

Key: TypeAlias = tuple[str, str, str]
"""The client's name (empty for a nameless one), the identity it gave, the topic."""


class Progress(msgspec.Struct):
    epoch: int
    next_sequence: int
    """What is below has arrived; the log may not have all of it yet."""
    last_us: int
    safe_epoch: int = 0
    safe_sequence: int = 0
    """What is below is in the log."""


class Identities:
    """Bounded: what was silent for longest goes first."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: OrderedDict[Key, Progress] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key) -> Progress | None:
        return self._known.get(key)

    def open(self, key: Key, epoch: int, now_us: int) -> bool:
        """A run of the publisher begins or goes on; False if a newer one is known."""
        known = self._known.get(key)
        if known is not None and epoch < known.epoch:
            return False
        if known is None:
            self._add(key, epoch, now_us)
        elif epoch > known.epoch:
            self._begin(key, known, epoch)
        return True

    def _add(self, key: Key, epoch: int, now_us: int) -> Progress:
        known = self._known[key] = Progress(epoch, 0, now_us)
        self._journal.identity(key, known)
        self._bound(now_us)
        return known

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
            known = self._add(key, epoch, now_us)
        if epoch < known.epoch:
            return None
        if epoch > known.epoch:
            self._begin(key, known, epoch)
        repeated = min(max(known.next_sequence - sequence, 0), count)
        known.next_sequence = max(known.next_sequence, sequence + count)
        known.last_us = now_us
        self._known.move_to_end(key)
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

    def restore(self, kept: IdentityKept) -> None:
        """One that was known before the broker was restarted; the longest silent come first."""
        key = (kept.owner, kept.publisher, kept.topic)
        self._known[key] = Progress(kept.epoch, kept.next_sequence, kept.last_us, kept.epoch, kept.next_sequence)

    def _bound(self, now_us: int) -> None:
        known = self._known
        expired_us = now_us - PUBLISHER_EXPIRY_S * 1_000_000
        while known:
            oldest = next(iter(known))
            if known[oldest].last_us > expired_us and len(known) <= MAX_PUBLISHERS_REMEMBERED:
                return
            del known[oldest]
            self._journal.identity(oldest, None)
