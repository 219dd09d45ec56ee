"""Checkers of what applications see: records, confirms, and how connections begin and end.

They are told what the applications sent and received, and never look inside the transport. Each raises ViolationError
at the first thing that must not be. The checkers of what passes on the network are in watchers.py.

Checkers of what passes on the network: the three-times rule, timers, memory, and whether a time-out had cause.

They are observers of the network: they see datagrams and the instants at which nodes were called. Of a node they ask
only what any shell may ask: its next timer, its connections and its count of buffered bytes.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from godwit.limits import AMPLIFICATION
from godwit.transport.train import Address
from godwit_sim.network import Host, Observer, addressed_to, answers, challenges

Flow: TypeAlias = tuple[str, str, int]
"""The connection's label, the direction ("up" from the client, "down" to it), and the channel."""


class ViolationError(Exception):
    """Something happened that must never happen, or did not happen that must."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text


@dataclass(slots=True)
class _Lane:
    """What is under way on one flow."""

    waiting: deque[tuple[int, bytes, bool]] = field(default_factory=deque)  # the count, the body, whether it is last
    unreliable: Counter[bytes] = field(default_factory=Counter)
    sent: int = 0
    received: int = 0
    last_record: int | None = None
    ended: bool = False


class DeliveryChecker:
    """Reliable records arrive whole, once and in order on each channel; unreliable ones at most once and unharmed."""

    NAME = "delivery"

    def __init__(self) -> None:
        self._lanes: dict[Flow, _Lane] = {}
        self._forgiven: set[str] = set()
        self.received_records = 0
        self.received_bytes = 0

    def sent(self, flow: Flow, body: bytes, *, reliable: bool = True, last: bool = False) -> None:
        lane = self._lanes.setdefault(flow, _Lane())
        if reliable:
            lane.waiting.append((lane.sent, body, last))
            lane.sent += 1
        else:
            lane.unreliable[body] += 1

    def received(
        self, flow: Flow, body: bytes, *, reliable: bool = True, last: bool = False, record: int | None = None
    ) -> None:
        lane = self._lanes.get(flow)
        if lane is None:
            raise self._violation(flow, f"{len(body)} bytes on a channel on which nothing was sent")
        if reliable:
            self._received_reliable(flow, lane, body, last)
            if record is not None:
                if lane.last_record is not None and record <= lane.last_record:
                    raise self._violation(flow, f"record {record} after record {lane.last_record}")
                lane.last_record = record
        elif lane.unreliable[body] <= 0:
            raise self._violation(flow, f"an unreliable record of {len(body)} bytes never sent, or delivered twice")
        else:
            lane.unreliable[body] -= 1
        self.received_records += 1
        self.received_bytes += len(body)

    def _received_reliable(self, flow: Flow, lane: _Lane, body: bytes, last: bool) -> None:
        if lane.ended:
            raise self._violation(flow, f"{len(body)} bytes after the channel's last record")
        if not lane.waiting:
            raise self._violation(flow, f"{len(body)} bytes more than were sent: delivered twice, or made up")
        count, expected, expected_last = lane.waiting[0]
        if body != expected:
            raise self._violation(flow, self._explain(lane, body, count, expected))
        if last is not expected_last:
            raise self._violation(flow, f"record {count} came with last={last}, sent with last={expected_last}")
        lane.waiting.popleft()
        lane.received += 1
        lane.ended = last

    @staticmethod
    def _explain(lane: _Lane, body: bytes, count: int, expected: bytes) -> str:
        for later, waiting, _ in lane.waiting:
            if waiting == body:
                return f"record {later} came where record {count} was due: lost, or out of order"
        return f"record {count} came as {len(body)} bytes that differ from the {len(expected)} sent, or came twice"

    def forget(self, label: str) -> None:
        """The connection has ended at one end: what is under way may be lost, but what still comes must be right."""
        self._forgiven.add(label)

    def restart(self, label: str, direction: str) -> None:
        """The sender turned out to be talking to nobody and begins anew: nothing of it may have arrived."""
        for flow in [flow for flow in self._lanes if flow[:2] == (label, direction)]:
            if self._lanes[flow].received:
                raise self._violation(flow, "its connection was made twice, and both delivered")
            del self._lanes[flow]
        self._forgiven.discard(label)

    def received_on(self, flow: Flow) -> int:
        """How many reliable records have arrived on this flow."""
        lane = self._lanes.get(flow)
        return lane.received if lane else 0

    def outstanding(self) -> dict[Flow, int]:
        """The reliable records that have not arrived yet, counted by flow."""
        return {
            flow: len(lane.waiting)
            for flow, lane in self._lanes.items()
            if lane.waiting and flow[0] not in self._forgiven
        }

    def complete(self) -> None:
        """Liveness: everything that was sent has arrived."""
        for flow, count in self.outstanding().items():
            raise self._violation(flow, f"{count} records never arrived after the network had healed")

    def _violation(self, flow: Flow, text: str) -> ViolationError:
        label, direction, channel = flow
        return ViolationError(self.NAME, f"{label} {direction} channel {channel}: {text}")


class ConfirmChecker:
    """Confirms arrive as they were given: cumulative, never going back, and the last one for certain."""

    NAME = "confirm"

    def __init__(self) -> None:
        self._given: dict[Flow, dict[int, int]] = {}
        self._got: dict[Flow, int] = {}
        self._forgiven: set[str] = set()

    def given(self, flow: Flow, sequence: int, reached: int) -> None:
        self._given.setdefault(flow, {})[sequence] = reached

    def got(self, flow: Flow, sequence: int, reached: int) -> None:
        given = self._given.get(flow, {})
        if given.get(sequence) != reached:
            raise ViolationError(self.NAME, f"{flow}: sequence {sequence} reached {reached} was never confirmed")
        if sequence <= self._got.get(flow, -1):
            raise ViolationError(self.NAME, f"{flow}: sequence {sequence} after {self._got[flow]}")
        self._got[flow] = sequence

    def forget(self, label: str) -> None:
        self._forgiven.add(label)

    def outstanding(self) -> list[Flow]:
        return [
            flow
            for flow, given in self._given.items()
            if flow[0] not in self._forgiven and self._got.get(flow, -1) < max(given)
        ]

    def complete(self) -> None:
        for flow in self.outstanding():
            raise ViolationError(self.NAME, f"{flow}: confirmed up to {max(self._given[flow])}, which never arrived")


@dataclass(slots=True)
class _Life:
    connected: bool = False
    closed: bool = False


class LifeChecker:
    """An end of a connection is Connected at most once, then may receive, then is Closed exactly once, for a reason.

    An end is named `label@client` or `label@server.N`, where N counts the server's lives. A reason that the other end
    gave must have been given there, word for word; a reset needs an other end that is over. Whether a time-out had
    cause is the matter of watchers.HeardWatcher.
    """

    NAME = "life"

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._asked: dict[str, list[tuple[int, str]]] = {}
        self._lost_peer: set[str] = set()

    def opened(self, end: str) -> None:
        if end in self._lives:
            raise ViolationError(self.NAME, f"{end}: opened twice")
        self._lives[end] = _Life()

    def connected(self, end: str) -> None:
        life = self._alive(end, "Connected")
        if life.connected:
            raise ViolationError(self.NAME, f"{end}: Connected twice")
        life.connected = True

    def active(self, end: str, what: str) -> None:
        """Any other event than Connected and Closed."""
        if not self._alive(end, what).connected:
            raise ViolationError(self.NAME, f"{end}: {what} before Connected")

    def asked(self, end: str, code: int, reason: str) -> None:
        """The application of this end has closed it."""
        for name in dict.fromkeys((end, _side(end))):
            self._asked.setdefault(name, []).append((code, reason))

    def died(self, end: str) -> None:
        """The process of this end is gone: it owes no Closed, and its peer may be reset."""
        self._lives[end].closed = True
        self._lost_peer.add(_other(end))

    def closed(self, end: str, code: int, reason: str, origin: str) -> None:
        self._alive(end, "Closed").closed = True
        self._lost_peer.add(_other(end))
        told = f"{end}: Closed by {origin!r} with code {code}, {reason!r}"
        asked, asked_there = self._asked.get(end, []), self._asked.get(_other(end), [])
        if origin == "local" and (code, reason) != (*asked, None)[0]:
            raise ViolationError(self.NAME, f"{told}, but its application asked for {asked}")
        if origin == "peer" and (code, reason) not in asked_there:
            raise ViolationError(self.NAME, f"{told}, but the other end asked for {asked_there}")
        if origin == "reset" and _side(end) not in self._lost_peer:
            raise ViolationError(self.NAME, f"{told}, but the other end was neither closed nor dead")
        if origin not in ("local", "peer", "reset", "timeout", "refused"):
            raise ViolationError(self.NAME, f"{told}: an unknown origin")

    def unclosed(self) -> list[str]:
        return [end for end, life in self._lives.items() if not life.closed]

    def complete(self) -> None:
        """Liveness: at the end of the world every end is closed."""
        for end in self.unclosed():
            raise ViolationError(self.NAME, f"{end}: never Closed")

    def _alive(self, end: str, what: str) -> _Life:
        life = self._lives.get(end)
        if life is None:
            raise ViolationError(self.NAME, f"{end}: {what} for an end that nobody opened")
        if life.closed:
            raise ViolationError(self.NAME, f"{end}: {what} after Closed")
        return life


def _side(end: str) -> str:
    label, _, side = end.partition("@")
    return f"{label}@{side.partition('.')[0]}"


def _other(end: str) -> str:
    label, _, side = _side(end).partition("@")
    return f"{label}@{'server' if side == 'client' else 'client'}"


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
