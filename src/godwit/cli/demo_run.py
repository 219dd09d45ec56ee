"""The transfer behind `godwit demo`: a sender and a bad network in this process, a receiver in another.

    sender -> UDP socket ~ relay that loses, damages, repeats, delays ~ UDP socket -> receiver, which checks everything

Everything is real (sockets, clocks, two processes) except the faults of the network, which come from a seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from random import Random
from typing import Final

import msgspec

from godwit.cli import demo_receive
from godwit.cli.demo_receive import Report, running_digest
from godwit.errors import GodwitError
from godwit.limits import KIB
from godwit.net.drive import EndpointDriver
from godwit.net.relay import Direction, Impairment, Relay
from godwit.net.udp import UdpSocket
from godwit.sim.link import Link, LinkSettings
from godwit.sim.rooms import Thermometer, house
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection, Statistics
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Closed, Connected, Event
from godwit.transport.train import Address
from godwit.wire.batch import Batch, encode_batch

LINE_BITS_PER_S: Final = 20e6
DELAY_S: Final = 0.015
QUEUE_PACKETS: Final = 50
"""What the line holds in a round trip, about."""
CORRUPTION: Final = 0.005
DUPLICATION: Final = 0.01
REORDERING: Final = 0.02
BURST_MEAN_PACKETS: Final = 2.0

BATCH_MESSAGES: Final = 100
AHEAD_BYTES: Final = 384 * KIB
"""What waits or is under way: well above what the path holds, so that the line never starves."""
TICK_S: Final = 0.01
SHOW_S: Final = 0.1
RECENT_S: Final = 1.5
MOVE_EVERY_S: Final = 15.0
"""The address changes that often when the demo runs for ever; else once, half-way."""
START_PATIENCE_S: Final = 20.0
END_PATIENCE_S: Final = 30.0


class Settings(msgspec.Struct, frozen=True):
    """What a user can choose. Without `seconds` it goes on until it is stopped."""

    seconds: float | None
    loss: float
    seed: int

    def link(self) -> LinkSettings:
        """One direction of the bad network; both are alike."""
        return LinkSettings(
            delay_s=DELAY_S,
            bandwidth_bits_per_s=LINE_BITS_PER_S,
            queue_packets=QUEUE_PACKETS,
            loss=self.loss,
            corruption=CORRUPTION,
            burst_mean_packets=BURST_MEAN_PACKETS,
            duplication=DUPLICATION,
            reordering=REORDERING,
        )


class SentRoom(msgspec.Struct, frozen=True):
    """What was sent on one channel."""

    room: str
    sent: int
    digest: str


class Picture(msgspec.Struct, frozen=True):
    """Everything that there is to show at one moment."""

    settings: Settings
    elapsed_s: float
    finishing: bool
    """Nothing new is sent any more; the rest is under way."""
    rooms: tuple[SentRoom, ...]
    report: Report
    network: Mapping[Direction, Counter[str]]
    """What the link of each direction counted."""
    statistics: Statistics
    moved_at_s: tuple[float, ...]
    recent_bits_per_s: float

    @property
    def sent(self) -> int:
        return sum(room.sent for room in self.rooms)

    @property
    def goodput_bits_per_s(self) -> float:
        return self.report.received_bytes * 8.0 / max(self.report.active_s, 1e-3)

    def problems(self) -> list[str]:
        """What is wrong with what arrived; empty when every message arrived once, in order and as it was sent."""
        problems = [self.report.problem] if self.report.problem else []
        arrived = {room.room: room for room in self.report.rooms}
        for room in self.rooms:
            there = arrived.pop(room.room, None)
            received = 0 if there is None else there.received
            if received != room.sent:
                problems.append(f"{room.room}: {received:,} of {room.sent:,} messages arrived")
            if there is None:
                continue
            if there.missing:
                problems.append(f"{room.room}: {there.missing:,} messages are missing in between")
            if there.misplaced:
                problems.append(f"{room.room}: {there.misplaced:,} messages came twice or out of order")
            if received == room.sent and there.digest != room.digest:
                problems.append(f"{room.room}: the bytes that arrived are not those that were sent")
        problems += [f"{name or 'a room'}: nobody sent this" for name in arrived]
        return problems


class Source:
    """One room's sensor on one channel: packs its readings into batches."""

    def __init__(self, sensor: Thermometer, channel: int) -> None:
        self.channel = channel
        self._sensor = sensor
        self._digest = hashlib.sha256()
        self._sent = 0

    def batch(self) -> bytes:
        """The next messages, counted as sent."""
        readings = [self._sensor.read() for _ in range(BATCH_MESSAGES)]
        payloads = [msgspec.json.encode(reading) for reading in readings]
        running_digest(self._digest, payloads)
        self._sent += len(payloads)
        base_us = readings[0].time_us
        return encode_batch(Batch(payloads, base_us, deltas_us=tuple(one.time_us - base_us for one in readings)))

    def sent(self) -> SentRoom:
        return SentRoom(self._sensor.room, self._sent, self._digest.hexdigest())


class Sender:
    """The application of the sending endpoint: keeps some batches ahead of the network, in turn for every room."""

    def __init__(self, seed: int, start_us: int) -> None:
        self._sensors = house(seed, start_us=start_us)
        self._sources: deque[Source] = deque()
        self.connection: Connection | None = None
        self.connected = False
        self.closed: Closed | None = None

    def on_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Connected):
                self.connected = True
                self._sources.extend(Source(sensor, event.connection.open_channel()) for sensor in self._sensors)
            elif isinstance(event, Closed):
                self.closed = event

    def fill(self) -> None:
        if self.connection is None or not self.connected:
            return
        while self.connection.buffered_bytes < AHEAD_BYTES:
            source = self._sources[0]
            self._sources.rotate(-1)
            self.connection.send(source.channel, source.batch())

    def finish(self) -> None:
        """One more batch a room, marked as its last."""
        if self.connection is not None:
            for source in self._sources:
                self.connection.send(source.channel, source.batch(), last=True)

    @property
    def channels(self) -> int:
        return len(self._sources)

    def rooms(self) -> tuple[SentRoom, ...]:
        return tuple(source.sent() for source in sorted(self._sources, key=lambda source: source.channel))


class Demo:
    """One run, from the first socket to the last report."""

    def __init__(self, settings: Settings, show: Callable[[Picture], None]) -> None:
        self._settings = settings
        self._show = show
        self._links: dict[Direction, Link] = {}
        self._sender = Sender(settings.seed, start_us=time.time_ns() // 1000)
        self._report = Report()
        self._recent: deque[tuple[float, int]] = deque()
        self._moved_at_s: list[float] = []
        self._began = 0.0
        self._shown_at = 0.0
        self._stopped = False
        self._finishing = False

    async def run(self) -> Picture:
        """The last picture. Raises GodwitError when the transfer cannot be brought to its end."""
        with self._stopped_by_interrupt(), _receiving_process() as (process, pipe):
            target: Address = await _first_word(process, pipe)
            async with Relay.open(("127.0.0.1", 0), target, impair=self._impair) as relay:
                udp = UdpSocket("127.0.0.1")
                config = EndpointConfig(receive_buffer_bytes=udp.receive_buffer_bytes)
                endpoint = Endpoint(config, entropy=os.urandom)
                driver = EndpointDriver(endpoint, udp, self._sender.on_events)
                try:
                    self._began = driver.clock()
                    self._sender.connection = endpoint.connect(relay.address, driver.clock())
                    await self._transfer(driver, relay, process, pipe)
                    self._sender.connection.close(driver.clock(), reason="all has arrived")
                finally:
                    driver.close()
        return self._picture(driver.clock())

    async def _transfer(self, driver: EndpointDriver[Event], relay: Relay, process: BaseProcess, pipe: Pipe) -> None:
        gives_up_at = 0.0
        while not self._has_arrived():
            now = driver.clock()
            if self._is_over(now) and not self._finishing:
                self._finishing = True
                gives_up_at = now + END_PATIENCE_S
                self._sender.finish()
            elif not self._finishing:
                self._sender.fill()
                self._move_when_due(relay, now)
            driver.flush()
            self._hear(process, pipe)
            if self._finishing and now > gives_up_at:
                raise GodwitError(
                    f"{self._report.received:,} of {self._picture(now).sent:,} messages have arrived "
                    f"{END_PATIENCE_S:g} s after the last one was sent: choose a smaller --loss"
                )
            if now - self._shown_at >= SHOW_S:
                self._shown_at = now
                self._show(self._picture(now))
            await asyncio.sleep(TICK_S)

    def _is_over(self, now: float) -> bool:
        seconds = self._settings.seconds
        return self._stopped or (self._sender.connected and seconds is not None and now - self._began >= seconds)

    def _has_arrived(self) -> bool:
        rooms = self._report.rooms
        if self._stopped and not self._sender.connected:
            return True
        return self._finishing and len(rooms) == self._sender.channels and all(room.ended for room in rooms)

    def _move_when_due(self, relay: Relay, now: float) -> None:
        """The NAT forgets the sender, which gets another port, and goes on as if nothing had happened."""
        seconds = self._settings.seconds
        elapsed_s = now - self._began
        due = len(self._moved_at_s) + 1
        if elapsed_s >= MOVE_EVERY_S * due if seconds is None else elapsed_s >= seconds / 2 and due == 1:
            relay.rebind()
            self._moved_at_s.append(elapsed_s)

    def _hear(self, process: BaseProcess, pipe: Pipe) -> None:
        try:
            while pipe.poll():
                self._report = pipe.recv()
                self._recent.append((self._report.at_s, self._report.received_bytes))
        except (EOFError, OSError):
            raise _died(process) from None
        while self._recent and self._recent[0][0] < self._report.at_s - RECENT_S:
            self._recent.popleft()
        if self._report.problem:
            raise GodwitError(self._report.problem)
        if self._sender.closed is not None:
            closed = self._sender.closed
            raise GodwitError(f"the sender's connection ended ({closed.origin}): {closed.reason}")

    def _impair(self, direction: Direction, _client: Address) -> Impairment:
        link = Link(self._settings.link(), Random(f"{self._settings.seed} {direction}"))
        self._links[direction] = link
        return link

    def _picture(self, now: float) -> Picture:
        recent = self._recent
        rate = 0.0
        if len(recent) > 1:
            rate = (recent[-1][1] - recent[0][1]) * 8.0 / (recent[-1][0] - recent[0][0])
        connection = self._sender.connection
        return Picture(
            settings=self._settings,
            elapsed_s=now - self._began,
            finishing=self._finishing,
            rooms=self._sender.rooms(),
            report=self._report,
            network={direction: link.counters.copy() for direction, link in self._links.items()},
            statistics=Statistics() if connection is None else connection.statistics,
            moved_at_s=tuple(self._moved_at_s),
            recent_bits_per_s=rate,
        )

    @contextmanager
    def _stopped_by_interrupt(self) -> Iterator[None]:
        """Without an end of its own, the first Ctrl-C is the end; the next, or one before that, breaks off."""
        if self._settings.seconds is not None:
            yield
            return
        breaks_off = signal.getsignal(signal.SIGINT)
        running = asyncio.get_running_loop()

        def stop() -> None:
            self._stopped = True

        def on_interrupt(*_: object) -> None:
            signal.signal(signal.SIGINT, breaks_off)
            running.call_soon_threadsafe(stop)

        signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, breaks_off)


# -- the other process ------------------------------------------------------------------------------------------------


@contextmanager
def _receiving_process() -> Iterator[tuple[BaseProcess, Pipe]]:
    """It ends when the pipe is closed, also if this process is killed."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=demo_receive.main, args=(there,), daemon=True)
    with _interrupts_wait():
        process.start()
    there.close()
    try:
        yield process, here
    finally:
        here.close()
        process.join(timeout=2.0)
        process.kill()
        process.join()


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C waits until the end of the block here, and for good in a process that is started in it.

    A terminal sends it to both; the other one would answer with a traceback before it can say that it does not care.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # Else the first start of a process does this, and lets the waiting signals through.
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _first_word(process: BaseProcess, pipe: Pipe) -> Address:
    """The address that the receiver listens at."""
    ends = time.monotonic() + START_PATIENCE_S
    while not pipe.poll():
        if time.monotonic() > ends:
            raise GodwitError(f"the receiving process did not start within {START_PATIENCE_S:g} s: try again")
        await asyncio.sleep(TICK_S)
    try:
        address: Address = pipe.recv()
    except EOFError:
        raise _died(process) from None
    return address


def _died(process: BaseProcess) -> GodwitError:
    process.join(timeout=2.0)
    return GodwitError(f"the receiving process ended by itself (exit code {process.exitcode}): try again")
