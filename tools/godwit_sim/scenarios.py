"""Named scenarios: well-known difficult networks, each with a goodput that it must reach.

Each scenario is a bulk transfer in virtual time: clients that send as fast as they can to one server over one shared
line. All figures are measured from outside: payload at the receiving application, repeats on the line. The line has a
delay of 15 ms one way, 10 Mbit/s and a queue of 25 packets unless the scenario changes that. Goodput is payload counted
from the first data; the capacity is that of the line without its outages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from godwit.errors import SendBufferFullError
from godwit.impairment import HEADER_BYTES, ImpairedLink, LinkSettings
from godwit.limits import MIB
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Closed, Connected, Received, Writable
from godwit.wire.packet import UNRELIABLE, DataFrame
from godwit.wire.parameters import Arq
from godwit_sim.checkers import DeliveryChecker, ViolationError
from godwit_sim.network import Host, Network, Observer, frames_of

# -- transfers --------------------------------------------------------------------------------------------------------

SERVER: Address = ("192.0.2.1", 4000)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """The clients, the line, and the bytes to send."""

    up: LinkSettings
    down: LinkSettings
    each_bytes: int
    record_bytes: int = 16_384
    starts_s: tuple[float, ...] = (0.0,)
    """The time at which each client connects."""
    client: EndpointConfig = field(default_factory=EndpointConfig)
    server: EndpointConfig = field(default_factory=lambda: EndpointConfig(accepts=True))
    rebinds_s: tuple[float, ...] = ()
    """When every client's address changes."""
    until_s: float = 600.0
    """The transfer ends at this time even if it is not complete."""


@dataclass(slots=True)
class Progress:
    """The progress of one client's transfer."""

    label: str
    received_bytes: int = 0
    warm_s: float | None = None
    """When the first fifth had arrived."""
    warm_bytes: int = 0
    """The bytes received by then, in whole records."""
    finished_s: float | None = None
    closed: str | None = None


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The result of a transfer."""

    transfers: tuple[Progress, ...]
    complete: bool
    first_data_s: float
    last_data_s: float
    unique_line_bytes: int
    """The bytes of datagrams with new data, including all headers."""
    repeated_share: float
    """Repeated bytes of data as a share of all sent bytes of data."""
    violation: str | None

    @property
    def payload_bytes(self) -> int:
        return sum(transfer.received_bytes for transfer in self.transfers)

    @property
    def goodput_bits_per_s(self) -> float:
        """Return the payload divided by the time from the first data to the last delivery."""
        return self.payload_bytes * 8.0 / max(1e-9, self.last_data_s - self.first_data_s)


class _Line(Observer):
    """Count the data that the clients send, and the new data among it."""

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
    """Run a transfer from a plan and a seed."""

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
        # Timers of real event loops have a resolution of a millisecond.
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
        except Exception as error:  # an exception from the transport fails the transfer
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
        """Send until the buffer is full or all data is in it."""
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


# -- scenarios --------------------------------------------------------------------------------------------------------

LINE = LinkSettings(delay_s=0.015, bandwidth_bits_per_s=10e6, queue_packets=25)
MB = 1_000_000
ON_S, OFF_S = 5.0, 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    name: str
    what: str
    goodput_bits_per_s: float | None
    capacity_bits_per_s: float
    repeated_share: float
    floor: float | None
    """The least ratio of goodput to capacity (for `two-connections`: of the smaller share to the whole)."""
    ratio: float | None
    passed: bool
    note: str = ""


Runner = Callable[[int], list[Row]]
"""Run a scenario with this number of seeds (where it is a mean) and return its rows."""


def _run(name: str, what: str, plan: TransferPlan, *, floor: float | None, seeds: int = 1) -> Row:
    """Run a transfer that must complete and reach the floor; return the mean of several seeds."""
    results = [Transfer(plan, seed).run() for seed in range(1, seeds + 1)]
    goodput = sum(result.goodput_bits_per_s for result in results) / seeds
    capacity = sum(_capacity(plan, result) for result in results) / seeds
    note = "; ".join(dict.fromkeys(filter(None, map(_complaint, results))))
    ratio = goodput / capacity
    passed = not note and (floor is None or ratio >= floor)
    repeated = sum(result.repeated_share for result in results) / seeds
    return Row(name, what, goodput, capacity, repeated, floor, ratio, passed, note)


def _capacity(plan: TransferPlan, result: TransferResult) -> float:
    """Return the mean capacity of the line from the first data to the last."""
    assert plan.up.bandwidth_bits_per_s is not None
    first_s, last_s = result.first_data_s, max(result.last_data_s, result.first_data_s + 1e-9)
    dark_s = sum(max(0.0, min(end, last_s) - max(start, first_s)) for start, end in plan.up.outages)
    return plan.up.bandwidth_bits_per_s * (1.0 - dark_s / (last_s - first_s))


def _complaint(result: TransferResult) -> str:
    """Return why a transfer failed, or an empty string."""
    if result.violation is not None:
        return result.violation
    if result.complete:
        return ""
    closed = [f"{transfer.label} {transfer.closed}" for transfer in result.transfers if transfer.closed]
    missing = sum(transfer.finished_s is None for transfer in result.transfers)
    return f"{missing} of {len(result.transfers)} transfers incomplete" + (f" ({', '.join(closed)})" if closed else "")


def _handshake(name: str, what: str, line: LinkSettings, seeds: int) -> Row:
    starts_s = tuple(number * 0.1 for number in range(50))
    plan = TransferPlan(up=line, down=line, each_bytes=1000, starts_s=starts_s, until_s=120.0)
    row = _run(name, what, plan, floor=None, seeds=seeds)
    return replace(row, goodput_bits_per_s=None, ratio=None)


def handshake_loss(seeds: int) -> list[Row]:
    line = replace(LINE, loss=0.3, burst_max_packets=3)
    return [_handshake("handshake-loss", "50 connections of 1 KB, 30 % loss each way, bursts up to 3", line, seeds)]


def handshake_corruption(seeds: int) -> list[Row]:
    line = replace(LINE, corruption=0.3, burst_max_packets=3)
    return [_handshake("handshake-corruption", "the same with corruption in place of loss", line, seeds)]


def loss(seeds: int) -> list[Row]:
    line = replace(LINE, loss=0.02)
    plan = TransferPlan(up=line, down=line, each_bytes=2 * MB)
    return [_run("loss", f"2 MB under 2 % loss, mean of {seeds} seeds", plan, floor=0.8, seeds=seeds)]


def corruption(seeds: int) -> list[Row]:
    line = replace(LINE, corruption=0.02)
    plan = TransferPlan(up=line, down=line, each_bytes=2 * MB)
    return [_run("corruption", f"2 MB under 2 % corruption, mean of {seeds} seeds", plan, floor=0.8, seeds=seeds)]


def black_hole(seeds: int) -> list[Row]:
    period_s = ON_S + OFF_S
    outages = tuple((number * period_s + ON_S, (number + 1) * period_s) for number in range(40))
    line = replace(LINE, outages=outages)
    plan = TransferPlan(up=line, down=line, each_bytes=10 * MB)
    return [_run("black-hole", "10 MB, the line 5 s on and 2 s off", plan, floor=0.75)]


def port_change(seeds: int) -> list[Row]:
    rebinds_s = tuple(1.0 + 5.0 * number for number in range(60))
    plan = TransferPlan(up=LINE, down=LINE, each_bytes=10 * MB, rebinds_s=rebinds_s)
    return [_run("port-change", "10 MB, another port after 1 s and then every 5 s", plan, floor=0.8)]


def long_delay(seeds: int) -> list[Row]:
    """A satellite line and more: it holds 1.9 MB, so the windows must be larger."""
    line = replace(LINE, delay_s=0.75)
    client = EndpointConfig(channel_window_bytes=8 * MIB, connection_window_bytes=16 * MIB, send_buffer_bytes=16 * MIB)
    plan = TransferPlan(up=line, down=line, each_bytes=20 * MB, client=client, server=replace(client, accepts=True))
    return [_run("long-delay", "20 MB, 750 ms one way", plan, floor=0.45)]


def reordering(seeds: int) -> list[Row]:
    line = replace(LINE, reordering=0.1, reorder_delay_s=(0.001, 0.015))
    plan = TransferPlan(up=line, down=line, each_bytes=4 * MB)
    return [_run("reordering", "4 MB, 10 % of datagrams overtaken", plan, floor=0.85)]


def duplication(seeds: int) -> list[Row]:
    line = replace(LINE, duplication=0.05)
    plan = TransferPlan(up=line, down=line, each_bytes=4 * MB)
    return [_run("duplication", "4 MB, 5 % of datagrams twice", plan, floor=0.85)]


def two_connections(seeds: int) -> list[Row]:
    """Two connections send for all of the 60 s; the first one may not keep a larger share."""
    plan = TransferPlan(up=LINE, down=LINE, each_bytes=1000 * MB, starts_s=(0.0, 1.0), until_s=60.0)
    result = Transfer(plan, 1).run()
    shares = [transfer.received_bytes / max(1, result.payload_bytes) for transfer in result.transfers]
    goodput = result.payload_bytes * 8.0 / 60.0
    smaller = min(shares)
    passed = result.violation is None and smaller >= 0.4 and goodput >= 0.8 * 10e6
    note = result.violation or f"shares {shares[0]:.0%} and {shares[1]:.0%}"
    what = "two connections for 60 s, the second 1 s later: the smaller share"
    return [Row("two-connections", what, goodput, 10e6, result.repeated_share, 0.4, smaller, passed, note)]


def disciplines(seeds: int) -> list[Row]:
    """Selective repeat is faster than go-back-n, and that is faster than stop-and-wait, at any loss."""
    line = replace(LINE, loss=0.02)
    floors: Mapping[Arq, float] = {"selective-repeat": 0.8, "go-back-n": 0.25, "stop-and-wait": 0.02}
    rows: list[Row] = []
    for arq, floor in floors.items():
        plan = TransferPlan(up=line, down=line, each_bytes=2 * MB, client=EndpointConfig(arq=arq))
        row = _run(arq, f"2 MB under 2 % loss with {arq}", plan, floor=floor, seeds=min(seeds, 3))
        if rows and (row.ratio or 0.0) >= (rows[-1].ratio or 0.0):
            row = replace(row, passed=False, note=f"not slower than {rows[-1].name}")
        rows.append(row)
    return rows


SCENARIOS: Mapping[str, Runner] = {
    "handshake-loss": handshake_loss,
    "handshake-corruption": handshake_corruption,
    "loss": loss,
    "corruption": corruption,
    "black-hole": black_hole,
    "port-change": port_change,
    "long-delay": long_delay,
    "reordering": reordering,
    "duplication": duplication,
    "two-connections": two_connections,
    "disciplines": disciplines,
}

SEEDS = 20
"""The number of runs in a mean."""


def run_scenario(name: str, seeds: int = SEEDS) -> list[Row]:
    """Run one scenario and return its rows."""
    return SCENARIOS[name](seeds)
