"""Which messages of QoS 2 are known: for each publisher and topic the newest epoch and the next sequence."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import msgspec

from godwit.limits import MAX_PUBLISHERS_REMEMBERED, PUBLISHER_EXPIRY_S

Key: TypeAlias = tuple[str, str, str]
"""The client's name (empty for a nameless one), the identity it gave, the topic."""


class Progress(msgspec.Struct):
    epoch: int
    next_sequence: int
    last_us: int


class Identities:
    """Bounded: what was silent for longest goes first."""

    def __init__(self) -> None:
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
            self._known[key] = Progress(epoch, 0, now_us)
            self._bound(now_us)
        elif epoch > known.epoch:
            known.epoch = epoch
            known.next_sequence = 0
        return True

    def new_messages(self, key: Key, epoch: int, sequence: int, count: int, now_us: int) -> int | None:
        """How many at the front of a batch are known already; None if the epoch is over.

        The rest counts as known from now on.
        """
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Progress(epoch, 0, now_us)
            self._bound(now_us)
        if epoch < known.epoch:
            return None
        repeated = min(max(known.next_sequence - sequence, 0), count)
        known.next_sequence = max(known.next_sequence, sequence + count)
        known.last_us = now_us
        self._known.move_to_end(key)
        return repeated

    def _bound(self, now_us: int) -> None:
        known = self._known
        expired_us = now_us - PUBLISHER_EXPIRY_S * 1_000_000
        while known:
            oldest = next(iter(known))
            if known[oldest].last_us > expired_us and len(known) <= MAX_PUBLISHERS_REMEMBERED:
                return
            del known[oldest]
