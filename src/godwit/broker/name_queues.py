"""Clients that wait for a name that is in use, in the order in which they came."""

from __future__ import annotations

from typing import Final

import msgspec

from godwit.broker.failure import RequestFailure
from godwit.broker.session import Link
from godwit.wire.control import Login
from godwit.wire.control_base import Code

MAX_CLAIMANTS: Final = 8
"""Clients that wait for one name."""


class Claimant(msgspec.Struct):
    """A client that asks for a name that is in use."""

    link: Link
    login: Login


class _Queue(msgspec.Struct):
    claimants: list[Claimant]
    until_us: int


class NameQueues:
    """One queue for each name that a client waits for, until it is empty."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        """The one whose time is over first comes first: all last equally long."""
        self._names: dict[Link, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._queues

    def __len__(self) -> int:
        """Return how many clients wait."""
        return len(self._names)

    def begin(self, name: str, claimants: list[Claimant], until_us: int) -> None:
        """Begin a queue for a name that has none. `until_us`: when the holder of the name loses it."""
        self._queues[name] = _Queue(claimants, until_us)
        self._names.update((claimant.link, name) for claimant in claimants)

    def join(self, name: str, claimant: Claimant) -> Link | None:
        """Put a client at the end of a queue. Returns its former connection if this run of it is in the queue already:
        then it takes that place. RequestFailure if too many wait."""
        claimants = self._queues[name].claimants
        for place, other in enumerate(claimants):
            if other.login.instance == claimant.login.instance:
                claimants[place] = claimant
                del self._names[other.link]
                self._names[claimant.link] = name
                return other.link
        if len(claimants) >= MAX_CLAIMANTS:
            text = f"the name {name!r} is in use, and {MAX_CLAIMANTS} clients wait for it: choose another name"
            raise RequestFailure(Code.NAME_IN_USE, text)
        claimants.append(claimant)
        self._names[claimant.link] = name
        return None

    def leave(self, link: Link) -> None:
        """Take a connection out of the queue that it may be in."""
        name = self._names.pop(link, None)
        if name is not None:
            queue = self._queues[name]
            queue.claimants = [claimant for claimant in queue.claimants if claimant.link is not link]
            if not queue.claimants:
                del self._queues[name]

    def take(self, name: str) -> list[Claimant]:
        """End the queue of a name; return those that were in it, the first one first."""
        queue = self._queues.pop(name, None)
        claimants = queue.claimants if queue is not None else []
        for claimant in claimants:
            del self._names[claimant.link]
        return claimants

    def first_due(self) -> tuple[str, int] | None:
        """Return the name whose holder's time is over first, and when that is."""
        for name, queue in self._queues.items():
            return name, queue.until_us
        return None
