"""A bulk transfer in virtual time: clients that send as fast as they may to one server over one shared line.

The scenarios and the ARQ curve are transfers with different settings. What is measured is measured from the outside:
payload at the receiving application, repeats on the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from godwit.errors import SendBufferFullError
from godwit.impairment import HEADER_BYTES, ImpairedLink, LinkSettings
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, Received, Writable
from godwit.wire.packet import UNRELIABLE, DataFrame
from godwit_sim.checkers import DeliveryChecker, ViolationError
from godwit_sim.network import Host, Network, Observer
from godwit_sim.packets import frames_of

SERVER: Address = ("192.0.2.1", 4000)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """Who sends how much over what."""

    up: LinkSettings
    down: LinkSettings
    each_bytes: int
    record_bytes: int = 16_384
    starts_s: tuple[float, ...] = (0.0,)
    """One client for each, connecting at that time."""
    client: EndpointConfig = field(default_factory=EndpointConfig)
    server: EndpointConfig = field(default_factory=lambda: EndpointConfig(accepts=True))
    rebinds_s: tuple[float, ...] = ()
    """When every client's address changes."""
    until_s: float = 600.0
    """It ends then even if it is not complete."""


@dataclass(slots=True)
class Progress:
    """One client's transfer."""

    label: str
    received_bytes: int = 0
    warm_s: float | None = None
    """When the first fifth had arrived."""
    warm_bytes: int = 0
    """How much that was: whole records."""
    finished_s: float | None = None
    closed: str | None = None


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What came of it."""

    transfers: tuple[Progress, ...]
    complete: bool
    first_data_s: float
    last_data_s: float
    unique_line_bytes: int
    """Of datagrams that carried something new, with all headers."""
    repeated_share: float
    """Bytes of data sent again, of all bytes of data sent."""
    violation: str | None

    @property
    def payload_bytes(self) -> int:
        return sum(transfer.received_bytes for transfer in self.transfers)

    @property
    def goodput_bits_per_s(self) -> float:
        """Payload over the time from the first data to the last delivery."""
        return self.payload_bytes * 8.0 / max(1e-9, self.last_data_s - self.first_data_s)


class _Line(Observer):
    """Counts what data the clients put on the line, and what of it for the first time."""

    def __init__(self) -> None:
        self.first_data_s: float | None = None
        self.unique_line_bytes = 0
        self.data_bytes = 0
        self.repeated_bytes = 0
        self._sent: set[tuple[str, int, int, int]] = set()

    def sent(self, host: Host, source: Address, destination: Address, datagram: bytes, now: float) -> None:
        if destination != SERVER:
            return
        fresh = False
        for frame in frames_of(datagram):
            if not isinstance(frame, DataFrame) or frame.flags & UNRELIABLE:
                continue
            if self.first_data_s is None:
                self.first_data_s = now
            place = (host.name, frame.channel, frame.record, frame.offset)
            self.data_bytes += len(frame.body)
            if place in self._sent:
                self.repeated_bytes += len(frame.body)
            else:
                self._sent.add(place)
                fresh = True
        if fresh:
            self.unique_line_bytes += len(datagram) + HEADER_BYTES


class Transfer:
    """Runs a plan from a seed."""

    def __init__(self, plan: TransferPlan, seed: int) -> None:
        self.plan = plan
        self.seed = seed
        self.network = Network()
        self._line = _Line()
        self.network.observers.append(self._line)
        self._delivery = DeliveryChecker()
        self._progress: dict[str, Progress] = {}
        self._labels: dict[Connection, str] = {}
        self._sent: dict[str, int] = {}
        self._channels: dict[str, int] = {}
        self._done = 0
        self._last_data_s = 0.0
        self._violation: str | None = None
        self._up = ImpairedLink(plan.up, Random(f"{seed} up"))
        self._down = ImpairedLink(plan.down, Random(f"{seed} down"))
        self._server = self.network.add_host(Host("server", SERVER, timer_step_s=0.001))
        self._clients = [self._add_client(number, start_s) for number, start_s in enumerate(plan.starts_s)]

    def _add_client(self, number: int, start_s: float) -> Host:
        label = f"c{number}"
        # Event loops do not ring exactly: real timers have steps of a millisecond.
        address = (f"10.0.{number // 250}.{number % 250 + 1}", 40_000)
        host = self.network.add_host(Host(label, address, timer_step_s=0.001))
        self.network.join(host, self._server, self._up)
        self.network.join(self._server, host, self._down)
        self._progress[label] = Progress(label)
        self.network.at(start_s, self._connect, host)
        for at_s in self.plan.rebinds_s:
            self.network.at(at_s, self._rebind, host)
        return host

    def run(self) -> TransferResult:
        self.network.start(self._server, self._endpoint(self._server, self.plan.server), self._serve)
        try:
            self.network.run(self.plan.until_s, lambda: self._done == len(self._clients))
        except ViolationError as error:
            self._violation = str(error)
        except Exception as error:  # whatever escapes from the transport has failed the transfer
            self._violation = f"{type(error).__name__} escaped: {error}"
        line = self._line
        return TransferResult(
            transfers=tuple(self._progress.values()),
            complete=all(progress.finished_s is not None for progress in self._progress.values()),
            first_data_s=line.first_data_s or 0.0,
            last_data_s=self._last_data_s,
            unique_line_bytes=line.unique_line_bytes,
            repeated_share=line.repeated_bytes / max(1, line.data_bytes),
            violation=self._violation,
        )

    def _endpoint(self, host: Host, config: EndpointConfig) -> Endpoint:
        return Endpoint(config, entropy=Random(f"{self.seed} entropy {host.name}").randbytes)

    def _connect(self, host: Host) -> None:
        endpoint = self._endpoint(host, self.plan.client)
        self.network.start(host, endpoint, self._send_more)
        connection = endpoint.connect(SERVER, host.clock(self.network.now), application=host.name.encode())
        self._labels[connection] = host.name
        self.network.pump(host)

    def _rebind(self, host: Host) -> None:
        ip, port = host.address
        self.network.rebind(host, (ip, port + 1))

    # -- the client's application -------------------------------------------------------------------------------------

    def _send_more(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            label = self._labels[event.connection]
            if isinstance(event, Connected):
                self._channels[label] = event.connection.open_channel()
                self._sent[label] = 0
                self._fill(event.connection, label)
            elif isinstance(event, Writable):
                self._fill(event.connection, label)
            elif isinstance(event, Closed):
                self._ended(label, event)

    def _fill(self, connection: Connection, label: str) -> None:
        """Sends until the buffer is full or everything is in it."""
        plan = self.plan
        channel = self._channels[label]
        while (sent := self._sent[label]) < plan.each_bytes:
            size = min(plan.record_bytes, plan.each_bytes - sent)
            body = Random(f"{self.seed} {label} {sent}").randbytes(size)
            try:
                connection.send(channel, body)
            except SendBufferFullError:
                return
            self._delivery.sent((label, "up", channel), body)
            self._sent[label] = sent + size

    # -- the server's application -------------------------------------------------------------------------------------

    def _serve(self, events: Sequence[Any], now: float) -> None:
        for event in events:
            if isinstance(event, Connected):
                self._labels[event.connection] = event.application.decode()
            elif isinstance(event, Received):
                self._take(event, now)
            elif isinstance(event, Closed):
                self._ended(self._labels[event.connection], event)

    def _take(self, event: Received, now: float) -> None:
        label = self._labels[event.connection]
        progress = self._progress[label]
        self._delivery.received((label, "up", event.channel), event.body, reliable=event.reliable, last=event.last)
        event.connection.consume(event.channel, len(event.body))
        progress.received_bytes += len(event.body)
        self._last_data_s = now
        if progress.warm_s is None and progress.received_bytes >= self.plan.each_bytes // 5:
            progress.warm_s = now
            progress.warm_bytes = progress.received_bytes
        if progress.received_bytes >= self.plan.each_bytes and progress.finished_s is None:
            progress.finished_s = now
            self._done += 1

    def _ended(self, label: str, event: Closed) -> None:
        self._progress[label].closed = f"{event.origin} {event.code} {event.reason}"
