"""A model of the workers: their volunteering over time, and which outcomes the broker received.

It observes the events that pass from the transport to the broker. The transport has a world of its own and is trusted
here. So the model knows, without asking the broker, which workers volunteered for which kinds, when the broker last
received a message from each, and which leases each reported or returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from godwit.broker.session import made_name
from godwit.errors import DecodeError
from godwit.transport.events import Closed, Connected, Received
from godwit.wire.control import Login, Work, decode_control
from godwit.wire.control_base import Code
from godwit.wire.jobs import Ref, Volunteer
from godwit.wire.work import ReportGroup, TaskOutcome, decode_from_client

MARGIN_S: Final = 0.000_01
"""This close to a change, either side of it is possible."""
CLEAN_CLOSE_CODES: Final = (Code.NORMAL, Code.SHUTDOWN)


@dataclass(slots=True, eq=False)
class VolunteerPeriod:
    """The time during which a worker volunteers with the same kinds and capacity."""

    name: str
    instance: bytes
    kinds: frozenset[str]
    capacity: int
    since_s: float
    until_s: float | None = None
    login_s: float = 0.0
    """When its connection logged in."""

    def may_be_present(self, now: float) -> bool:
        """Return whether the worker may have volunteered at this time."""
        return self.since_s - MARGIN_S <= now and (self.until_s is None or now <= self.until_s + MARGIN_S)

    def is_certainly_present(self, now: float) -> bool:
        return self.since_s + MARGIN_S < now and (self.until_s is None or now < self.until_s - MARGIN_S)


@dataclass(slots=True, eq=False)
class _WorkerConnection:
    """One connection at the broker."""

    connection: Any
    name: str = ""
    instance: bytes = b""
    login_s: float = 0.0
    """When it logged in; an earlier connection with the same name may exist for a while."""
    closed_s: float | None = None
    work_channel: int | None = None
    period: VolunteerPeriod | None = None
    has_volunteered: bool = False


@dataclass(slots=True)
class _Worker:
    """The history of a worker by its name, through all runs of its process."""

    periods: list[VolunteerPeriod] = field(default_factory=list)
    message_times_s: list[float] = field(default_factory=list)
    connections: list[_WorkerConnection] = field(default_factory=list)
    """All connections that logged in with this name."""
    returned: dict[Ref, float] = field(default_factory=dict)
    """Returned leases and the times of their return."""
    clean_closes_s: list[float] = field(default_factory=list)
    resumed: list[tuple[float, frozenset[Ref]]] = field(default_factory=list)
    """When it volunteered on a new connection, and the leases that it still had."""
    outcomes: dict[Ref, list[tuple[TaskOutcome, bytes]]] = field(default_factory=dict)


def client_name(login: Login) -> str:
    """Return the name of a worker or controller at the broker: its own, else one that is stable over reconnects."""
    return login.name if login.name is not None else made_name(login.instance)


class WorkerModel:
    """The workers. Input: handle_events, started, handle_broker_death. All other methods are queries."""

    def __init__(self, lease_s: float, grace_s: float) -> None:
        """`grace_s`: the least time that a worker has to reconnect after a restart of the broker."""
        self.lease_s = lease_s
        self._grace_s = max(lease_s, grace_s)
        self._open: dict[int, _WorkerConnection] = {}
        self._workers: dict[str, _Worker] = {}
        self._started_s: list[float] = []

    # -- input --------------------------------------------------------------------------------------------------------

    def started(self, now: float) -> None:
        """Record the start of a broker."""
        self._started_s.append(now)

    def handle_broker_death(self, now: float) -> None:
        """Record that the broker died and all its connections ended."""
        for conn in self._open.values():
            self._end(conn, now)
        self._open.clear()

    def handle_events(self, events: Sequence[Any], now: float) -> None:
        """Record events that the broker is about to receive from its transport."""
        for event in events:
            if isinstance(event, Connected):
                # The record holds a reference to the connection, so that its id is not used again.
                self._open[id(event.connection)] = _WorkerConnection(event.connection)
            elif isinstance(event, Received):
                self._received(self._open[id(event.connection)], event, now)
            elif isinstance(event, Closed):
                conn = self._open.pop(id(event.connection))
                self._end(conn, now)
                if event.origin == "peer" and event.code in CLEAN_CLOSE_CODES and conn.name:
                    self._worker(conn.name).clean_closes_s.append(now)

    def _worker(self, name: str) -> _Worker:
        return self._workers.setdefault(name, _Worker())

    def _end(self, conn: _WorkerConnection, now: float) -> None:
        conn.closed_s = now
        self._end_period(conn, now)

    def _end_period(self, conn: _WorkerConnection, now: float) -> None:
        if conn.period is not None:
            conn.period.until_s = now
            conn.period = None

    def _received(self, conn: _WorkerConnection, event: Received, now: float) -> None:
        try:
            if event.channel == 0:
                self._on_control(conn, decode_control(event.body), now)
            elif event.channel == conn.work_channel:
                self._on_work(conn, event.body, now)
            elif event.record == 0 and isinstance(decode_control(event.body), Work):
                conn.work_channel = event.channel
        except DecodeError:
            return  # a message that does not concern workers

    def _on_control(self, conn: _WorkerConnection, message: object, now: float) -> None:
        if isinstance(message, Login):
            conn.name, conn.instance, conn.login_s = client_name(message), message.instance, now
            self._worker(conn.name).connections.append(conn)
        elif isinstance(message, Volunteer):
            worker = self._worker(conn.name)
            worker.message_times_s.append(now)
            self._end_period(conn, now)
            if not conn.has_volunteered:
                conn.has_volunteered = True
                worker.resumed.append((now, frozenset(message.holding)))
            if message.kinds:
                kinds = frozenset(message.kinds)
                conn.period = VolunteerPeriod(
                    conn.name, conn.instance, kinds, message.capacity, now, login_s=conn.login_s
                )
                worker.periods.append(conn.period)

    def _on_work(self, conn: _WorkerConnection, record: bytes, now: float) -> None:
        head, payloads = decode_from_client(record)
        if not isinstance(head, ReportGroup):
            return
        worker = self._worker(conn.name)
        worker.message_times_s.append(now)
        for ref in head.returned:
            worker.returned.setdefault(ref, now)
        for outcome, payload in zip(head.outcomes, payloads, strict=True):
            worker.outcomes.setdefault(outcome.task, []).append((outcome, payload))

    # -- queries ------------------------------------------------------------------------------------------------------

    def outcomes(self, name: str, ref: Ref) -> list[tuple[TaskOutcome, bytes]]:
        """Return the outcomes that the worker reported for this lease, repeats included."""
        return self._worker(name).outcomes.get(ref, [])

    def was_restarted(self, since_s: float, until_s: float) -> bool:
        """Return whether a broker was started in this time."""
        return any(since_s - MARGIN_S <= at_s <= until_s + MARGIN_S for at_s in self._started_s)

    def longest_idle_s(self, name: str, since_s: float, until_s: float) -> float:
        """Return the longest time between messages of the worker in this period, counted from its last one before."""
        message_times_s = self._worker(name).message_times_s
        since_s += MARGIN_S
        last_s = max((at_s for at_s in message_times_s if at_s <= since_s), default=since_s)
        times_s = [last_s, *(at_s for at_s in message_times_s if since_s < at_s <= until_s), until_s]
        return max(later_s - earlier_s for earlier_s, later_s in pairwise(times_s))

    def count(self, kind: str, now: float) -> tuple[int, int]:
        """Return the least and the most workers that volunteered for the kind at that time."""
        return len(set(self.certain_workers(kind, now))), len({one.name for one in self._present(kind, now)})

    def certain_workers(self, kind: str, now: float) -> list[str]:
        """Return the workers that certainly volunteered: connected, active, and with an undisputed name."""
        return [
            one.name
            for one in self._present(kind, now)
            if one.is_certainly_present(now) and self._is_active(one, now) and not self._is_contested(one, now)
        ]

    def capacity(self, name: str, kind: str, now: float) -> int:
        """Return the most tasks that the worker accepts at that time; 0 if it did not volunteer for the kind."""
        return max((one.capacity for one in self._present(kind, now) if one.name == name), default=0)

    def instances(self, name: str, kind: str, now: float) -> set[bytes]:
        """Return the runs of the worker that may have received a task of this kind at that time."""
        return {one.instance for one in self._present(kind, now) if one.name == name}

    def _present(self, kind: str, now: float) -> Iterator[VolunteerPeriod]:
        for worker in self._workers.values():
            for one in worker.periods:
                if kind in one.kinds and one.may_be_present(now):
                    yield one

    def _is_active(self, period: VolunteerPeriod, now: float) -> bool:
        message_times_s = self._worker(period.name).message_times_s
        return any(now - self.lease_s + MARGIN_S < at_s < now for at_s in message_times_s)

    def _is_contested(self, period: VolunteerPeriod, now: float) -> bool:
        connections = self._worker(period.name).connections
        return any(
            period.login_s < conn.login_s <= now + MARGIN_S and (conn.closed_s is None or now <= conn.closed_s)
            for conn in connections
        )

    def may_return(self, name: str, ref: Ref, leased_s: float, now: float) -> bool:
        """Return whether the worker gave the lease up by then: returned it, closed, or reconnected without it."""
        worker = self._worker(name)
        since_s, until_s = leased_s - MARGIN_S, now + MARGIN_S
        return (
            worker.returned.get(ref, until_s + 1.0) <= until_s
            or any(since_s <= at_s <= until_s for at_s in worker.clean_closes_s)
            or any(since_s <= at_s <= until_s and ref not in holding for at_s, holding in worker.resumed)
        )

    def may_be_lost(self, name: str, instance: bytes, leased_s: float, now: float) -> bool:
        """Return whether the worker had been idle for long enough by then, or another run of it had logged in."""
        worker = self._worker(name)
        since_s, until_s = leased_s - MARGIN_S, now + MARGIN_S
        for conn in worker.connections:
            may_be_present = conn.login_s <= until_s and (conn.closed_s is None or since_s <= conn.closed_s)
            if may_be_present and conn.instance != instance:
                return True
        started_s = max(at_s for at_s in self._started_s if at_s <= until_s)
        grace_s = self._grace_s if started_s > leased_s else self.lease_s
        last_message_s = max((at_s for at_s in worker.message_times_s if at_s <= until_s), default=0.0)
        return until_s >= (last_message_s + self.lease_s if last_message_s > started_s else started_s + grace_s)
