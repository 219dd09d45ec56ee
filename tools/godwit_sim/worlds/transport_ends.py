"""The applications of the transport world: what sits above each end of a connection, sends, reads and keeps the books.

An end sends what its to-do list says when the time has come, waits for Writable when the buffer is full, holds each
record for a while before it takes it, and tells every checker what it did and saw.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

from godwit.errors import ConnectionClosedError, SendBufferFullError
from godwit.transport.connection import Connection
from godwit.transport.events import (
    ChannelConfirmed,
    Closed,
    Connected,
    Event,
    PathChanged,
    Received,
    Writable,
)
from godwit_sim.checkers import ConfirmChecker, DeliveryChecker, LifeChecker, ViolationError
from godwit_sim.network import Host, Network
from godwit_sim.worlds.transport_plan import CONTROL, ClientPlan, Sending


@dataclass(slots=True)
class Books:
    """The checkers of one world, and the to-do lists that outlive a connection."""

    seed: int
    network: Network
    delivery: DeliveryChecker = field(default_factory=DeliveryChecker)
    confirms: ConfirmChecker = field(default_factory=ConfirmChecker)
    life: LifeChecker = field(default_factory=LifeChecker)

    def content(self, label: str, direction: str, count: int, size_bytes: int) -> bytes:
        """The body of a record: nobody else's, so that a wrong one is noticed."""
        return Random(f"{self.seed} {label} {direction} {count}").randbytes(size_bytes)


class End:
    """One end of a connection, and the application on it."""

    def __init__(
        self,
        books: Books,
        host: Host,
        connection: Connection,
        label: str,
        side: str,
        todo: deque[Sending],
        reads_after_s: float,
        *,
        eager: bool = False,
    ) -> None:
        self.books = books
        self.host = host
        self.connection = connection
        self.label = label
        self.name = f"{label}@{side}"
        self.sends, self.gets = ("up", "down") if side == "client" else ("down", "up")
        self.todo = todo
        self.reads_after_s = reads_after_s
        self.connected = False
        self._eager = eager
        self.over = False
        """Closed, or its process is dead."""
        self._is_orphan = False
        self._channels: dict[int, int] = {CONTROL: 0}
        self._finished: set[int] = set()
        self._count = 0
        self._blocked = False
        books.life.opened(self.name)

    # -- sending ------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Sends what is due. Called by the network's clock, so the host is drained afterwards."""
        self._send_due()
        self.books.network.pump(self.host)

    def _send_due(self) -> None:
        network = self.books.network
        while self.todo and (self.connected or self._eager) and not self.over and not self._blocked:
            sending = self.todo[0]
            if sending.at_s > network.now:
                network.at(sending.at_s, self.work)
                return
            if not self._send(sending):
                return
            self.todo.popleft()

    def _send(self, sending: Sending) -> bool:
        body = self.books.content(self.label, self.sends, self._count, sending.size_bytes)
        try:
            channel = self._channels.get(sending.lane)
            if channel is None or channel in self._finished:
                channel = self._channels[sending.lane] = self.connection.open_channel()
            reliable = self.connection.send(channel, body, reliable=sending.reliable, last=sending.last)
        except SendBufferFullError:
            self._blocked = True
            return False
        except ConnectionClosedError:
            return False  # the Closed event is on its way
        self._count += 1
        self.books.delivery.sent((self.label, self.sends, channel), body, reliable=reliable, last=sending.last)
        if sending.last:
            self._finished.add(channel)
        return True

    def close(self, code: int, reason: str) -> None:
        """The application ends the connection."""
        if self.over:
            return
        self.books.life.asked(self.name, code, reason)
        self.connection.close(self.host.clock(self.books.network.now), code, reason)
        self.books.network.pump(self.host)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Any event of this end but Closed after its own bookkeeping, which `ended` does."""
        life = self.books.life
        match event:
            case Connected():
                life.connected(self.name)
                self.connected = True
                self._send_due()
            case Received(_, channel, record, body, reliable, last):
                life.active(self.name, "Received")
                self._received(channel, record, body, reliable, last, now)
            case ChannelConfirmed(_, channel, sequence, reached):
                life.active(self.name, "Confirmed")
                self.books.confirms.got((self.label, self.sends, channel), sequence, reached)
            case Writable():
                life.active(self.name, "Writable")
                if not self._blocked:
                    raise ViolationError("life", f"{self.name}: Writable, but no send had found the buffer full")
                self._blocked = False
                self._send_due()
            case PathChanged():
                life.active(self.name, "PathChanged")
            case Closed(_, code, reason, origin):
                life.closed(self.name, code, reason, origin)
                self.ended()

    def _received(self, channel: int, record: int, body: bytes, reliable: bool, last: bool, now: float) -> None:
        flow = (self.label, self.gets, channel)
        self.books.delivery.received(flow, body, reliable=reliable, last=last, record=record)
        if not reliable:
            return  # it cost no credit, so there is none to give back
        sequence = self.books.delivery.received_on(flow)
        if self.reads_after_s:
            self.books.network.at(now + self.reads_after_s, self._take_later, channel, len(body), sequence)
        else:
            self._take(channel, len(body), sequence)

    def _take_later(self, channel: int, body_bytes: int, sequence: int) -> None:
        if not self.over:
            self._take(channel, body_bytes, sequence)
            self.books.network.pump(self.host)

    def _take(self, channel: int, body_bytes: int, sequence: int) -> None:
        self.connection.consume(channel, body_bytes)
        if channel and sequence % 3 == 0:  # not every record, so that confirms are cumulative
            try:
                self.connection.confirm(channel, sequence, reached=sequence % 7)
            except ConnectionClosedError:
                return  # the Closed event is on its way
            self.books.confirms.given((self.label, self.gets, channel), sequence, sequence % 7)

    def ended(self) -> None:
        """This end is over: what was under way in either direction may be lost."""
        self.over = True
        if not self._is_orphan:
            self.books.delivery.forget(self.label)
            self.books.confirms.forget(self.label)

    def orphaned(self) -> None:
        """Its peer talks to another end under the same label: this one has nothing to say any more."""
        self._is_orphan = True
        self.todo = deque()

    def died(self) -> None:
        """The process is gone."""
        if not self.over:
            self.books.life.died(self.name)
            self.ended()


class Client:
    """A client machine through all its connections."""

    def __init__(self, number: int, plan: ClientPlan, host: Host) -> None:
        self.number = number
        self.plan = plan
        self.host = host
        self.todo_up = deque(replace(send, at_s=plan.start_s + send.at_s) for send in plan.sends_up)
        self.todo_down = deque(replace(send, at_s=plan.start_s + send.at_s) for send in plan.sends_down)
        self.connections = 0
        self.addresses = {host.address}
        """All that it ever had."""
        self.end: End | None = None

    @property
    def label(self) -> str:
        return f"c{self.number}.{self.connections}"


def describe_event(event: Event) -> str:
    details = " ".join(
        f"{name}={len(value) if isinstance(value, bytes) else value}"
        for name in event.__struct_fields__
        if name != "connection"
        for value in (getattr(event, name),)
    )
    return f"{type(event).__name__} {details}"
