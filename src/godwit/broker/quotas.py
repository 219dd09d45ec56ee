"""Limits on what one client may use: rates (Bucket, DeferredCredit) and amounts (Usage).

An amount counts for a client by its name. Names that are not proved are free to choose, so clients without a proved
name count together as one on a broker whose access rules list names; on one that lists none, only the nameless clients
do. A retained message carries its publisher's name, also in the log, so its quota outlives a restart. A topic does not:
it counts for the client that created it and, after a restart, for the first one that publishes to it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from godwit.broker.access import Access
from godwit.broker.ports import Peer

ANONYMOUS: Final = "anonymous-"
"""Prefix of the names that the broker chooses: no client may choose such a name."""
UNPROVED: Final = ""
"""The owner of everything that clients without a proved name use."""


class Bucket:
    """A token bucket: up to `burst` tokens, `per_s` more every second. It may be overdrawn, see `due_us`."""

    __slots__ = ("_burst", "_per_s", "_tokens", "_updated_us")

    def __init__(self, per_s: float, burst: float, now_us: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._updated_us = now_us

    def take(self, count: int, now_us: int) -> bool:
        """Take `count` tokens; return False if there were not enough."""
        elapsed_s = max(0, now_us - self._updated_us) / 1e6
        self._updated_us = max(now_us, self._updated_us)
        self._tokens = min(self._burst, self._tokens + elapsed_s * self._per_s) - count
        return self._tokens >= 0

    def has(self, count: int, now_us: int) -> bool:
        """Return whether there are at least `count` tokens, without taking them."""
        self.take(0, now_us)
        return self._tokens >= count

    @property
    def due_us(self) -> int:
        """When it is no longer overdrawn."""
        return self._updated_us + max(0, int(-self._tokens / self._per_s * 1e6) + 1 if self._tokens < 0 else 0)


class DeferredCredit:
    """Credit that publishers get back only when their rate allows it, because they have exceeded it."""

    def __init__(self) -> None:
        self.waiting: dict[Peer, list[Callable[[], None]]] = {}
        """The actions that return credit, by connection."""

    def add(self, peer: Peer, give_back: Callable[[], None]) -> None:
        """Call `give_back` when the peer's rate allows it, unless its connection has ended by then."""
        self.waiting.setdefault(peer, []).append(give_back)

    def pay(self, now_us: int) -> int | None:
        """Return all credit that is due; return when the next is due, or None."""
        next_us: int | None = None
        for peer in list(self.waiting):
            due_us = peer.bucket.due_us if peer.bucket is not None and peer.is_open else 0
            if due_us > now_us:
                next_us = min(due_us, next_us or due_us)
                continue
            actions = self.waiting.pop(peer)
            if peer.is_open:
                for give_back in actions:
                    give_back()
        return next_us


class Usage:
    """How much each owner uses of something."""

    def __init__(self) -> None:
        self._amounts: dict[str, int] = {}

    def of(self, owner: str) -> int:
        return self._amounts.get(owner, 0)

    def add(self, owner: str, amount: int) -> None:
        """Add an amount, or subtract it if it is negative."""
        amount += self._amounts.pop(owner, 0)
        if amount:
            self._amounts[owner] = amount

    def clear(self) -> None:
        self._amounts.clear()


def owner_of(name: str, access: Access) -> str:
    """Return the name that something of this client counts for, or UNPROVED."""
    if access.secrets or access.certificates:
        return name if access.is_listed(name) else UNPROVED
    return UNPROVED if name.startswith(ANONYMOUS) else name


def over_quota(owner: str, what: str, limit: int, key: str, advice: str) -> str:
    """Return the text of the error: the owner, the quota, its size, and the remedy."""
    who = f"client {owner!r}" if owner else "all clients together that have not proved a name"
    return f"{who} may have at most {limit:,} {what} on this broker: {advice}, or have its operator raise limits.{key}"
