"""Checkers of what passes on the network: the three-times rule, timers, memory, and whether a time-out had cause.

They are observers of the network: they see datagrams and the instants at which nodes were called. Of a node they ask
only what any shell may ask: its next timer, its connections and its count of buffered bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from godwit.limits import AMPLIFICATION
from godwit.transport.events import Address
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, Observer
from godwit_sim.packets import addressed_to, answers, challenges

TIMER_ROUNDS = 300
"""A timer may ring again at the instant at which it rang, for another of its purposes, but not this often."""
TIMER_LATE_S = 1e-6


class AmplificationWatcher(Observer):
    """The three-times rule: what goes to an address that has proven nothing is at most three times what came from it.

    An address has proven itself once it gave back a cookie or a path challenge that had been sent to it.
    """

    NAME = "three times"

    def __init__(self, *servers: str) -> None:
        self._servers = servers
        self._given: dict[tuple[str, Address], set[bytes]] = {}
        self._proven: set[tuple[str, Address]] = set()
        self._received: dict[tuple[str, Address], int] = {}
        self._sent: dict[tuple[str, Address], int] = {}

    def started(self, host: Host, now: float) -> None:
        """A new process knows nothing of what was proven to the old one."""
        for book in (self._given, self._received, self._sent):
            for key in [key for key in book if key[0] == host.name]:
                del book[key]
        self._proven = {key for key in self._proven if key[0] != host.name}

    def arrived(self, host: Host, source: Address, datagram: bytes, now: float) -> None:
        key = (host.name, source)
        if host.name not in self._servers or key in self._proven:
            return
        self._received[key] = self._received.get(key, 0) + len(datagram)
        given = self._given.get(key)
        if given and any(answer in given for answer in answers(datagram)):
            self._proven.add(key)

    def sent(self, host: Host, source: Address, destination: Address, datagram: bytes, now: float) -> None:
        key = (host.name, destination)
        if host.name not in self._servers or key in self._proven:
            return
        sent = self._sent[key] = self._sent.get(key, 0) + len(datagram)
        received = self._received.get(key, 0)
        if sent > AMPLIFICATION * received:
            raise ViolationError(
                self.NAME, f"{host.name} sent {sent} bytes to {destination}, which proved nothing and sent {received}"
            )
        self._given.setdefault(key, set()).update(challenges(datagram))


class TimerWatcher(Observer):
    """No timer is forgotten, and none rings for ever.

    A node with a connection has a timer (its idle time-out at the least); after a timer was handled it moves on.
    """

    NAME = "timers"

    def __init__(self, has_work: Callable[[Host], bool]) -> None:
        self._has_work = has_work
        self._last: dict[str, tuple[float, int]] = {}

    def fired(self, host: Host, due: float, now: float) -> None:
        at, count = self._last.get(host.name, (-1.0, 0))
        count = count + 1 if at == now else 1
        self._last[host.name] = (now, count)
        if count > TIMER_ROUNDS:
            raise ViolationError(self.NAME, f"{host.name} asked {count} times for a timer at the same instant {now!r}")

    def rested(self, host: Host, now: float) -> None:
        assert host.node is not None
        due = host.node.next_timer()
        if due is None:
            if self._has_work(host):
                raise ViolationError(self.NAME, f"{host.name} has connections but no timer")
        elif not math.isfinite(due):
            raise ViolationError(self.NAME, f"{host.name} set its timer to {due}")


class MemoryWatcher(Observer):
    """What a node holds stays within the bound that its configuration gives."""

    NAME = "memory"

    def __init__(self, used_bytes: Callable[[Host], int], bound_bytes: Callable[[Host], int]) -> None:
        self._used_bytes = used_bytes
        self._bound_bytes = bound_bytes
        self.most_bytes: dict[str, int] = {}

    def rested(self, host: Host, now: float) -> None:
        used = self._used_bytes(host)
        bound = self._bound_bytes(host)
        self.most_bytes[host.name] = max(used, self.most_bytes.get(host.name, 0))
        if not 0 <= used <= bound:
            raise ViolationError(self.NAME, f"{host.name} says that it holds {used} bytes, bounded to {bound}")


class HeardWatcher(Observer):
    """When something new last arrived for each connection: a time-out before it was silent long enough is a fault."""

    NAME = "time-out"

    def __init__(self) -> None:
        self._heard: dict[tuple[str, int, Address], float] = {}
        self._known: set[tuple[str, int, int]] = set()

    def arrived(self, host: Host, source: Address, datagram: bytes, now: float) -> None:
        found = addressed_to(datagram)
        if found is None:
            return
        connection_id, number = found
        seen = (host.name, connection_id, number)
        if connection_id and seen not in self._known:  # a repeated packet is no sign of life
            self._known.add(seen)
            self._heard[host.name, connection_id, source] = now

    def timed_out(self, host: Host, connection_id: int, peer: Address, idle_timeout_s: float, now: float) -> None:
        """This connection says that its peer was silent for too long. Only its proven address counts."""
        heard = self._heard.get((host.name, connection_id, peer))
        if heard is not None and now - heard < idle_timeout_s - TIMER_LATE_S:
            raise ViolationError(
                self.NAME, f"{host.name} gave up {now - heard:.3f} s after a packet, idle time-out {idle_timeout_s} s"
            )
