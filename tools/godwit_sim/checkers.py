"""Checkers of the transport: by the events of applications, and by the datagrams on the network.

Each raises ViolationError at the first violation. The checkers of records, confirms and connection lifecycles receive
sent and received records, and never read the transport's state. The watchers of amplification, timers, memory
and timeouts are observers of the network: they see datagrams and the times at which nodes were called. Of a node they
use only what any driver may use: its next timer, its connections and its count of buffered bytes.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from godwit.limits import AMPLIFICATION
from godwit.transport.events import Address
from godwit_sim.network import Host, Observer, addressed_to, answers, challenges, is_crypto

Flow: TypeAlias = tuple[str, str, int]
"""The connection's label, the direction ("up" from the client, "down" to it), and the channel."""


class ViolationError(Exception):
    """Something happened that must never happen, or did not happen that must."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text


# -- events of applications -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _FlowState:
    """The records in flight on one flow."""

    waiting: deque[tuple[int, bytes, bool]] = field(default_factory=deque)  # count, body, whether it is the last
    unreliable: Counter[bytes] = field(default_factory=Counter)
    sent: int = 0
    received: int = 0
    last_record: int | None = None
    ended: bool = False


class DeliveryChecker:
    """Check that reliable records arrive whole, once and in order per channel, and unreliable ones at most once."""

    NAME = "delivery"

    def __init__(self) -> None:
        self._flows: dict[Flow, _FlowState] = {}
        self._forgiven: set[str] = set()
        self.received_records = 0
        self.received_bytes = 0

    def sent(self, flow: Flow, body: bytes, *, reliable: bool = True, last: bool = False) -> None:
        flow_state = self._flows.setdefault(flow, _FlowState())
        if reliable:
            flow_state.waiting.append((flow_state.sent, body, last))
            flow_state.sent += 1
        else:
            flow_state.unreliable[body] += 1

    def received(
        self, flow: Flow, body: bytes, *, reliable: bool = True, last: bool = False, record: int | None = None
    ) -> None:
        flow_state = self._flows.get(flow)
        if flow_state is None:
            raise self._violation(flow, f"{len(body)} bytes on a channel on which nothing was sent")
        if reliable:
            self._received_reliable(flow, flow_state, body, last)
            if record is not None:
                if flow_state.last_record is not None and record <= flow_state.last_record:
                    raise self._violation(flow, f"record {record} after record {flow_state.last_record}")
                flow_state.last_record = record
        elif flow_state.unreliable[body] <= 0:
            raise self._violation(flow, f"an unreliable record of {len(body)} bytes never sent, or delivered twice")
        else:
            flow_state.unreliable[body] -= 1
        self.received_records += 1
        self.received_bytes += len(body)

    def _received_reliable(self, flow: Flow, flow_state: _FlowState, body: bytes, last: bool) -> None:
        if flow_state.ended:
            raise self._violation(flow, f"{len(body)} bytes after the channel's last record")
        if not flow_state.waiting:
            raise self._violation(flow, f"{len(body)} bytes more than were sent: delivered twice, or made up")
        count, expected, expected_last = flow_state.waiting[0]
        if body != expected:
            raise self._violation(flow, self._explain(flow_state, body, count, expected))
        if last is not expected_last:
            raise self._violation(flow, f"record {count} came with last={last}, sent with last={expected_last}")
        flow_state.waiting.popleft()
        flow_state.received += 1
        flow_state.ended = last

    @staticmethod
    def _explain(flow_state: _FlowState, body: bytes, count: int, expected: bytes) -> str:
        for later, waiting, _ in flow_state.waiting:
            if waiting == body:
                return f"record {later} came where record {count} was due: lost, or out of order"
        return f"record {count} came as {len(body)} bytes that differ from the {len(expected)} sent, or came twice"

    def forget(self, label: str) -> None:
        """Record that one end has closed: records in flight may be lost, but must be right if they arrive."""
        self._forgiven.add(label)

    def restart(self, label: str, direction: str) -> None:
        """Record that the sender starts over, as its peer had no connection: none of its records may have arrived."""
        for flow in [flow for flow in self._flows if flow[:2] == (label, direction)]:
            if self._flows[flow].received:
                raise self._violation(flow, "its connection was made twice, and both delivered")
            del self._flows[flow]
        self._forgiven.discard(label)

    def received_on(self, flow: Flow) -> int:
        """Return how many reliable records have arrived on this flow."""
        flow_state = self._flows.get(flow)
        return flow_state.received if flow_state else 0

    def outstanding(self) -> dict[Flow, int]:
        """Return the number of reliable records that have not arrived, by flow."""
        return {
            flow: len(flow_state.waiting)
            for flow, flow_state in self._flows.items()
            if flow_state.waiting and flow[0] not in self._forgiven
        }

    def complete(self) -> None:
        """Check liveness: all sent records have arrived."""
        for flow, count in self.outstanding().items():
            raise self._violation(flow, f"{count} records never arrived after the network had healed")

    def _violation(self, flow: Flow, text: str) -> ViolationError:
        label, direction, channel = flow
        return ViolationError(self.NAME, f"{label} {direction} channel {channel}: {text}")


class ConfirmChecker:
    """Check that confirms arrive as they were sent: cumulative, never decreasing, and the last one always."""

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
class _EndState:
    connected: bool = False
    closed: bool = False


class LifecycleChecker:
    """Check each end of a connection: Connected at most once, then events, then Closed once, for a valid reason.

    An end is named `label@client` or `label@server.N`, where N counts the server's runs. A reason given by the peer
    must equal the one that the peer's application gave; a reset requires that the peer's end is over. TimeoutWatcher
    checks timeouts.
    """

    NAME = "lifecycle"

    def __init__(self) -> None:
        self._states: dict[str, _EndState] = {}
        self._asked: dict[str, list[tuple[int, str]]] = {}
        self._lost_peer: set[str] = set()

    def opened(self, end: str) -> None:
        if end in self._states:
            raise ViolationError(self.NAME, f"{end}: opened twice")
        self._states[end] = _EndState()

    def connected(self, end: str) -> None:
        state = self._alive(end, "Connected")
        if state.connected:
            raise ViolationError(self.NAME, f"{end}: Connected twice")
        state.connected = True

    def active(self, end: str, what: str) -> None:
        """Record any event other than Connected and Closed."""
        if not self._alive(end, what).connected:
            raise ViolationError(self.NAME, f"{end}: {what} before Connected")

    def asked(self, end: str, code: int, reason: str) -> None:
        """Record that the application of this end closed it."""
        for name in dict.fromkeys((end, _side(end))):
            self._asked.setdefault(name, []).append((code, reason))

    def died(self, end: str) -> None:
        """Record that the process of this end died: no Closed event follows, and its peer may be reset."""
        self._states[end].closed = True
        self._lost_peer.add(_other(end))

    def closed(self, end: str, code: int, reason: str, origin: str) -> None:
        self._alive(end, "Closed").closed = True
        self._lost_peer.add(_other(end))
        reported = f"{end}: Closed by {origin!r} with code {code}, {reason!r}"
        asked, asked_there = self._asked.get(end, []), self._asked.get(_other(end), [])
        if origin == "local" and (code, reason) != (*asked, None)[0]:
            raise ViolationError(self.NAME, f"{reported}, but its application asked for {asked}")
        if origin == "peer" and (code, reason) not in asked_there:
            raise ViolationError(self.NAME, f"{reported}, but the other end asked for {asked_there}")
        # The application of a server does not know a sealed connection before a packet of the client has opened.
        is_known = any(_side(name) == _other(end) for name in self._states)
        if origin == "reset" and is_known and _side(end) not in self._lost_peer:
            raise ViolationError(self.NAME, f"{reported}, but the other end was neither closed nor dead")
        if origin not in ("local", "peer", "reset", "timeout", "refused"):
            raise ViolationError(self.NAME, f"{reported}: an unknown origin")

    def unclosed(self) -> list[str]:
        return [end for end, state in self._states.items() if not state.closed]

    def complete(self) -> None:
        """Check liveness: at the end of the run every end is closed."""
        for end in self.unclosed():
            raise ViolationError(self.NAME, f"{end}: never Closed")

    def _alive(self, end: str, what: str) -> _EndState:
        state = self._states.get(end)
        if state is None:
            raise ViolationError(self.NAME, f"{end}: {what} for an end that was never opened")
        if state.closed:
            raise ViolationError(self.NAME, f"{end}: {what} after Closed")
        return state


def _side(end: str) -> str:
    label, _, side = end.partition("@")
    return f"{label}@{side.partition('.')[0]}"


def _other(end: str) -> str:
    label, _, side = _side(end).partition("@")
    return f"{label}@{'server' if side == 'client' else 'client'}"


# -- observers of the network -----------------------------------------------------------------------------------------

TIMER_ROUNDS = 300
"""A timer may be due again at the same time, for another purpose, but not this often."""
TIMER_LATE_S = 1e-6


class AmplificationWatcher(Observer):
    """Check the three-times rule: an unverified address receives at most three times the bytes that came from it.

    An address is verified once it returned a cookie or a path challenge that had been sent to it.
    """

    NAME = "three times"

    def __init__(self, *servers: str) -> None:
        self._servers = servers
        self._given: dict[tuple[str, Address], set[bytes]] = {}
        self._proven: set[tuple[str, Address]] = set()
        self._received: dict[tuple[str, Address], int] = {}
        self._sent: dict[tuple[str, Address], int] = {}

    def started(self, host: Host, now: float) -> None:
        """Forget what the old process knew: a new process has verified no address."""
        for table in (self._given, self._received, self._sent):
            for key in [key for key in table if key[0] == host.name]:
                del table[key]
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
                self.NAME, f"{host.name} sent {sent} bytes to {destination}, which is not verified and sent {received}"
            )
        self._given.setdefault(key, set()).update(challenges(datagram))


class TimerWatcher(Observer):
    """Check that no timer is missing and that none is due forever.

    A node with a connection has a timer (at least its idle timeout); after a timer was handled it moves to a later
    time.
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

    def drained(self, host: Host, now: float) -> None:
        assert host.node is not None
        due = host.node.next_timer()
        if due is None:
            if self._has_work(host):
                raise ViolationError(self.NAME, f"{host.name} has connections but no timer")
        elif not math.isfinite(due):
            raise ViolationError(self.NAME, f"{host.name} set its timer to {due}")


class MemoryWatcher(Observer):
    """Check that the bytes buffered by a node stay within the bound of its configuration."""

    NAME = "memory"

    def __init__(self, used_bytes: Callable[[Host], int], bound_bytes: Callable[[Host], int]) -> None:
        self._used_bytes = used_bytes
        self._bound_bytes = bound_bytes
        self.most_bytes: dict[str, int] = {}

    def drained(self, host: Host, now: float) -> None:
        used = self._used_bytes(host)
        bound = self._bound_bytes(host)
        self.most_bytes[host.name] = max(used, self.most_bytes.get(host.name, 0))
        if not 0 <= used <= bound:
            raise ViolationError(self.NAME, f"{host.name} reports that it holds {used} bytes, bounded to {bound}")


class TimeoutWatcher(Observer):
    """Record when a new packet last arrived for each connection, and check that no timeout comes too early."""

    NAME = "time-out"

    def __init__(self) -> None:
        self._last_arrival_s: dict[tuple[str, int, Address], float] = {}
        self._known: set[tuple[str, int, int]] = set()

    def arrived(self, host: Host, source: Address, datagram: bytes, now: float) -> None:
        found = addressed_to(datagram)
        if found is None or is_crypto(datagram):
            return
        connection_id, number = found
        seen = (host.name, connection_id, number)
        if connection_id and seen not in self._known:  # a repeated packet does not count
            self._known.add(seen)
            self._last_arrival_s[host.name, connection_id, source] = now

    def timed_out(self, host: Host, connection_id: int, peer: Address, idle_timeout_s: float, now: float) -> None:
        """Check a connection that closed by timeout. Only packets from its verified address count."""
        last_s = self._last_arrival_s.get((host.name, connection_id, peer))
        if last_s is not None and now - last_s < idle_timeout_s - TIMER_LATE_S:
            raise ViolationError(
                self.NAME, f"{host.name} gave up {now - last_s:.3f} s after a packet, idle time-out {idle_timeout_s} s"
            )
