"""The child processes of `godwit demo`: broker, rooms, subscriber, controller and workers, and their checks.

Each process ends when its pipe to the demo is closed, even if the demo is killed.

A job is a list of numbers and its result is their sum: enough to see that no job is lost, done wrong or done twice
when a worker is killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import msgspec

from godwit.cli.house import ROOMS, RoomReading, Sensor, sensors
from godwit.errors import BufferFullError, GodwitError, SocketError
from godwit.transport.events import Address

if TYPE_CHECKING:
    from godwit.client.message import Message
    from godwit.net.client import AsyncClient
    from godwit.net.tasks import Task


TICK_S: Final = 0.02


class ChildFailure(msgspec.Struct, frozen=True):
    """The last message of a process that failed."""

    text: str


class ParentPipe:
    """The child's end of its pipe to the demo. `on_closed` is called when the demo closes it, and does not return."""

    def __init__(self, pipe: Pipe, on_closed: Callable[[], NoReturn]) -> None:
        self._pipe = pipe
        self._on_closed = on_closed
        self._received_words: set[str] = set()

    def send(self, message: object) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            self._on_closed()

    def has_received(self, word: str) -> bool:
        """Return whether the demo has ever sent this word."""
        try:
            while self._pipe.poll():
                self._received_words.add(self._pipe.recv())
        except (EOFError, OSError):
            self._on_closed()
        return word in self._received_words

    async def wait_for(self, word: str) -> None:
        """Wait until the demo sends this word."""
        while not self.has_received(word):
            await asyncio.sleep(TICK_S)

    async def wait_closed(self) -> None:
        """Wait until the demo closes the pipe, which ends the process."""
        await self.wait_for("")


def run_child(connection: Pipe, work: Callable[[ParentPipe], Coroutine[Any, Any, None]]) -> None:
    """Run the work until it is done or the demo closes the pipe. An error is sent as the last message."""
    from godwit.net import loop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the demo ends this process itself
    # No clean shutdown: no process waits for it any more.
    pipe = ParentPipe(connection, on_closed=lambda: os._exit(0))

    async def watched() -> None:
        closed = asyncio.create_task(pipe.wait_closed())  # the work may wait for a broker that is gone
        try:
            await work(pipe)
        finally:
            closed.cancel()

    try:
        loop.run(watched())
    except GodwitError as error:
        pipe.send(ChildFailure(str(error)))


# -- checks -----------------------------------------------------------------------------------------------------------


PREFIX: Final = "home"
LATE_S: Final = 0.25
"""A message that took longer had to wait for a retransmission, at the delay of the demo's network."""
DELAYS_MS: Final = (20, 30, 40, 50, 75, 100, 150, 250, 500, 1000, 2500, 5000, 10_000)
"""Upper bounds of the histogram of delays; one more class counts longer delays."""


def topic_of(room: str) -> str:
    return f"{PREFIX}/{room}/temperature"


def running_digest(digest: hashlib._Hash, payloads: Sequence[bytes]) -> None:
    """Add payloads to a digest that does not depend on how the messages are divided into batches."""
    digest.update(b"\n".join(payloads) + b"\n")


class SentRoom(msgspec.Struct, frozen=True):
    """The messages that one room published."""

    room: str
    sent: int
    digest: str
    """SHA-256 over all payloads, each followed by a newline."""


class RoomReport(msgspec.Struct, frozen=True):
    """The messages that arrived from one room."""

    room: str
    received: int
    missing: int
    """Skipped sequence numbers."""
    misplaced: int
    """Messages that were repeated, out of order, or from another room."""
    celsius: float
    """Latest temperature."""
    digest: str


class DelayHistogram(msgspec.Struct, frozen=True):
    """Delays of messages from the publisher's call to the subscriber's."""

    counts: tuple[int, ...] = (0,) * (len(DELAYS_MS) + 1)
    longest_s: float = 0.0

    def within_ms(self, share: float) -> float:
        """Return the bound that this share of the messages did not exceed."""
        wanted = sum(self.counts) * share
        total = 0
        for bound_ms, number in zip(DELAYS_MS, self.counts, strict=False):
            total += number
            if total >= wanted:
                return min(float(bound_ms), self.longest_s * 1000)
        return self.longest_s * 1000


class SubscriberReport(msgspec.Struct, frozen=True):
    """The results of the subscriber so far."""

    at_s: float = 0.0
    rooms: tuple[RoomReport, ...] = ()
    received_bytes: int = 0
    late: int = 0
    """Messages that took longer than LATE_S."""
    missed: int = 0
    """Messages that the broker reported as not delivered."""
    delays: DelayHistogram = DelayHistogram()
    retained: dict[str, str] = {}
    """SHA-256 of the retained payload that the late subscriber received, by topic."""
    problem: str = ""

    @property
    def received(self) -> int:
        return sum(room.received for room in self.rooms)


class RoomCheck:
    """Checks every message of one room in the order of arrival."""

    def __init__(self, room: str) -> None:
        self._decoder = msgspec.json.Decoder(RoomReading)
        self._digest = hashlib.sha256()
        self._room = room
        self._expected = 0
        self._received = 0
        self._missing = 0
        self._misplaced = 0
        self._celsius = 0.0

    def check(self, payloads: Sequence[bytes]) -> None:
        """Check the next payloads.

        Raises:
            msgspec.DecodeError: A payload is not a reading.
        """
        running_digest(self._digest, payloads)
        decode = self._decoder.decode
        for payload in payloads:
            reading = decode(payload)
            self._received += 1
            if reading.number < self._expected or reading.room != self._room:
                self._misplaced += 1
                continue
            self._missing += reading.number - self._expected
            self._expected = reading.number + 1
            self._celsius = reading.celsius

    def report(self) -> RoomReport:
        return RoomReport(
            self._room, self._received, self._missing, self._misplaced, self._celsius, self._digest.hexdigest()
        )


class SubscriberCheck:
    """Checks all messages that the subscriber receives."""

    def __init__(self) -> None:
        self._checks: dict[str, RoomCheck] = {}
        self._bytes = 0
        self._late = 0
        self._delays: Counter[int] = Counter()
        self._longest_s = 0.0
        self.missed = 0
        self.retained: dict[str, str] = {}
        self.problem = ""

    def check(self, messages: Sequence[Message], now_us: int) -> None:
        """Check the next messages, which were delivered at `now_us`."""
        by_topic: dict[str, list[bytes]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message.payload)
            self._bytes += len(message.payload)
            delay_s = max(now_us - message.published_us, 0) / 1e6
            self._delays[bisect(DELAYS_MS, delay_s * 1000)] += 1
            if delay_s > LATE_S:
                self._late += 1
            if delay_s > self._longest_s:
                self._longest_s = delay_s
        for topic, payloads in by_topic.items():
            room = self._checks.get(topic)
            if room is None:
                room = self._checks[topic] = RoomCheck(room_of(topic))
            try:
                room.check(payloads)
            except msgspec.DecodeError as error:
                self.problem = f"a message of {topic} is not a reading: {error}"

    def check_retained(self, message: Message) -> None:
        """Check a message of the late subscriber."""
        self.retained[message.topic] = hashlib.sha256(message.payload).hexdigest()
        if not message.retained:
            self.problem = f"the late subscriber received a message of {message.topic} that was not retained"

    def report(self, now_s: float) -> SubscriberReport:
        return SubscriberReport(
            at_s=now_s,
            rooms=tuple(check.report() for _, check in sorted(self._checks.items())),
            received_bytes=self._bytes,
            late=self._late,
            missed=self.missed,
            delays=DelayHistogram(tuple(self._delays[place] for place in range(len(DELAYS_MS) + 1)), self._longest_s),
            retained=dict(self.retained),
            problem=self.problem,
        )


def room_of(topic: str) -> str:
    return topic.removeprefix(f"{PREFIX}/").removesuffix("/temperature")


def message_problems(rooms: Sequence[SentRoom], last_digests: dict[str, str], seen: SubscriberReport) -> list[str]:
    """Return the faults of the arrived messages: an empty list if each arrived once, in order and unchanged.

    `last_digests` has the SHA-256 of each retained payload by topic.
    """
    found = [seen.problem] if seen.problem else []
    arrived = {room.room: room for room in seen.rooms}
    for room in rooms:
        there = arrived.pop(room.room, None)
        received = 0 if there is None else there.received
        if received != room.sent:
            found.append(f"{room.room}: {received:,} of {room.sent:,} messages arrived")
        if there is None:
            continue
        if there.missing:
            found.append(f"{room.room}: {there.missing:,} messages are missing in between")
        if there.misplaced:
            found.append(f"{room.room}: {there.misplaced:,} messages arrived twice or out of order")
        if received == room.sent and there.digest != room.digest:
            found.append(f"{room.room}: the arrived bytes differ from the sent bytes")
    found += [f"{name or 'a room'}: no room with this name sent messages" for name in arrived]
    if seen.missed:
        found.append(f"the broker did not deliver {seen.missed:,} messages")
    found += [
        f"{room_of(topic)}: the late subscriber did not receive the last temperature"
        for topic, digest in last_digests.items()
        if seen.retained.get(topic) != digest
    ]
    return found


# -- the broker -------------------------------------------------------------------------------------------------------


LEASE_S: Final = 3.0
"""Time without a sign of life after which a worker is replaced: short enough to be seen in the demo."""


class BrokerAddresses(NamedTuple):
    """Addresses of the broker and of its archive, which is empty if the archive is not installed."""

    address: Address
    archive: str
    mqtt_port: int


def broker_main(connection: Pipe, data: str) -> None:
    """Run the broker's process: send its addresses, and serve until the pipe is closed."""
    run_child(connection, lambda pipe: run_broker(pipe, Path(data)))


async def run_broker(pipe: ParentPipe, data: Path) -> None:
    from godwit.broker.settings import Settings
    from godwit.net.archive_process import missing_archive_packages
    from godwit.net.service import Service
    from godwit.server.configuration import ArchiveSection, Configuration, MqttSection

    has_archive = not missing_archive_packages()  # else the demo ends without tables and a report
    configuration = Configuration(
        listen=["127.0.0.1:0"],  # any free port of this machine
        settings=Settings(lease_s=LEASE_S, sys_interval_s=1.0),
        data=data,
        archive=ArchiveSection(is_on=has_archive, listen="127.0.0.1:0"),
        mqtt=MqttSection(listen=("127.0.0.1:0",)),
    )
    async with Service(configuration) as service:
        while has_archive and not service.archive_url:
            pipe.has_received("")  # exits if the pipe is closed
            await asyncio.sleep(TICK_S)
        mqtt_port = int(service.mqtt_urls[0].rpartition(":")[2])
        pipe.send(BrokerAddresses(service.addresses[0], service.archive_url, mqtt_port))
        await pipe.wait_closed()


# -- the web console --------------------------------------------------------------------------------------------------


CONSOLE_PORTS: Final = (8080, 0)
"""The usual port, or any free one."""


def console_main(connection: Pipe, broker: str) -> None:
    """Run the process of the web console: send its address, and serve until the pipe is closed."""
    run_child(connection, lambda pipe: run_console(pipe, broker))


async def run_console(pipe: ParentPipe, broker: str) -> None:
    from godwit.console.server import ConsoleServer

    server = ConsoleServer(broker)
    for port in CONSOLE_PORTS:
        try:
            await server.start("127.0.0.1", port)
            break
        except SocketError:
            if port == CONSOLE_PORTS[-1]:
                raise
    pipe.send(server.url)
    await pipe.wait_closed()


# -- the rooms --------------------------------------------------------------------------------------------------------


REPORT_S: Final = 0.1
MAX_LAG_S: Final = 1.0
"""Rooms that were delayed for longer skip the readings in between."""
BEFORE_US: Final = 7 * 86_400 * 1_000_000
"""How long before now the readings start. They are one second apart, and must not end in the future."""
FAULTS_PER_READING: Final = 1 / 4_000
"""Rate of faults of each sensor, which the pipeline then detects."""


MQTT_WINDOW: Final = 500
"""Unconfirmed messages of the room that uses MQTT."""


class RoomsReport(msgspec.Struct, frozen=True):
    """The results of the rooms so far."""

    rooms: tuple[SentRoom, ...] = ()
    resent: int = 0
    """Fragments sent again by all clients."""
    round_trip_s: float = 0.0
    """The longest smoothed round trip of the clients."""
    last_digests: dict[str, str] = {}
    """SHA-256 of the retained messages by topic, once everything is confirmed."""
    mqtt_rooms: int = 0
    """Rooms that use MQTT."""

    @property
    def sent(self) -> int:
        return sum(room.sent for room in self.rooms)


class CountedRoom:
    """A sensor, and a digest of the messages that were published for it."""

    def __init__(self, sensor: Sensor) -> None:
        self._sensor = sensor
        self._digest = hashlib.sha256()
        self._sent = 0
        self._topic = topic_of(sensor.room)

    async def send(self, count: int) -> None:
        """Publish up to this many readings."""
        readings = [self._sensor.read() for _ in range(count)]
        payloads = [msgspec.json.encode(reading) for reading in readings if reading is not None]
        for payload in payloads:
            await self._publish(payload)
        self._count(payloads)

    async def finish(self) -> tuple[str, str]:
        """Publish one more, retained reading. Return its topic and digest when everything is confirmed."""
        while (reading := self._sensor.read()) is None:
            pass  # a sensor that skips readings soon continues
        payload = msgspec.json.encode(reading)
        await self._publish_last(payload)
        self._count([payload])
        return self._topic, hashlib.sha256(payload).hexdigest()

    async def _publish(self, payload: bytes) -> None:
        raise NotImplementedError

    async def _publish_last(self, payload: bytes) -> None:
        raise NotImplementedError

    def _count(self, payloads: list[bytes]) -> None:
        if payloads:
            running_digest(self._digest, payloads)
            self._sent += len(payloads)

    def sent(self) -> SentRoom:
        return SentRoom(self._sensor.room, self._sent, self._digest.hexdigest())


class DemoRoom(CountedRoom):
    """One device: its sensor and its client."""

    def __init__(self, sensor: Sensor, client: AsyncClient) -> None:
        super().__init__(sensor)
        self.client = client
        self._publisher = client.publisher(self._topic, qos=2)

    async def _publish(self, payload: bytes) -> None:
        while True:
            try:
                self._publisher.send(payload)
                return
            except BufferFullError:
                await self._publisher.ready()

    async def _publish_last(self, payload: bytes) -> None:
        await self._publisher.flush()
        await self.client.publish(self._topic, payload, qos=2, retain=True)


class MqttRoom(CountedRoom):
    """A device that speaks MQTT, with paho-mqtt. Its connection is TCP, so the bad network is not between."""

    def __init__(self, sensor: Sensor, port: int) -> None:
        """Connect to a port of this machine. Raises OSError if that fails."""
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        super().__init__(sensor)
        self._confirmed = 0
        self._published = 0
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=sensor.room)
        self._client.max_inflight_messages_set(MQTT_WINDOW)
        self._client.on_publish = self._on_publish
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _on_publish(self, *_: object) -> None:
        self._confirmed += 1

    async def _publish(self, payload: bytes) -> None:
        await self._wait_for_room(MQTT_WINDOW)
        self._published += 1
        self._client.publish(self._topic, payload, qos=1)

    async def _publish_last(self, payload: bytes) -> None:
        self._published += 1
        self._client.publish(self._topic, payload, qos=1, retain=True)
        await self._wait_for_room(1)

    async def _wait_for_room(self, window: int) -> None:
        """Wait until fewer messages than this are unconfirmed."""
        while self._published - self._confirmed >= window:
            await asyncio.sleep(TICK_S / 4)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def rooms_main(connection: Pipe, broker: str, seed: int, rate: float, mqtt_port: int | None) -> None:
    """Run the rooms' process: connect, publish from `go` to `finish`, and report all the time.

    `mqtt_port`: where the last room connects with MQTT; None: it is a native client as the others.
    """
    run_child(connection, lambda pipe: run_rooms(pipe, broker, seed, rate, mqtt_port))


async def run_rooms(pipe: ParentPipe, broker: str, seed: int, rate: float, mqtt_port: int | None = None) -> None:
    from godwit.net.client import connect

    async with AsyncExitStack() as stack:
        rooms: list[CountedRoom] = []
        start_us = time.time_ns() // 1000 - BEFORE_US
        for sensor in sensors(len(ROOMS), seed, start_us=start_us, faults_per_reading=FAULTS_PER_READING):
            if mqtt_port is not None and len(rooms) == len(ROOMS) - 1:
                room = MqttRoom(sensor, mqtt_port)
                stack.callback(room.close)
                rooms.append(room)
                continue
            client = await stack.enter_async_context(connect(broker, name=sensor.room))
            rooms.append(DemoRoom(sensor, client))
        pipe.send(_report(rooms, {}))
        await pipe.wait_for("go")
        await _send(pipe, rooms, rate)
        digests = dict([await room.finish() for room in rooms])
        pipe.send(_report(rooms, digests))
        await pipe.wait_closed()


async def _send(pipe: ParentPipe, rooms: list[CountedRoom], rate: float) -> None:
    began = time.monotonic()
    turns = 0
    next_report = 0.0
    while not pipe.has_received("finish"):
        due = int((time.monotonic() - began) * rate)
        if due - turns > rate * MAX_LAG_S:
            began = time.monotonic() - turns / rate
            due = turns
        for room in rooms:
            await room.send(due - turns)
        turns = due
        if time.monotonic() >= next_report:
            next_report = time.monotonic() + REPORT_S
            pipe.send(_report(rooms, {}))
        await asyncio.sleep(TICK_S)


def _report(rooms: list[CountedRoom], digests: dict[str, str]) -> RoomsReport:
    statistics = [room.client.statistics for room in rooms if isinstance(room, DemoRoom)]
    return RoomsReport(
        rooms=tuple(room.sent() for room in rooms),
        resent=sum(one.fragments_resent for one in statistics),
        round_trip_s=max(one.round_trip_s for one in statistics),
        last_digests=digests,
        mqtt_rooms=sum(isinstance(room, MqttRoom) for room in rooms),
    )


# -- the subscriber ---------------------------------------------------------------------------------------------------


FILTER: Final = f"{PREFIX}/+/temperature"


def subscriber_main(connection: Pipe, broker: str) -> None:
    """Run the subscriber's process: report once it is subscribed, then ten times per second."""
    run_child(connection, lambda pipe: run_subscriber(pipe, broker))


async def run_subscriber(pipe: ParentPipe, broker: str) -> None:
    from godwit.net.client import connect

    checks = SubscriberCheck()
    async with connect(broker, name="display") as client:

        def on_gap(count: int | None) -> None:
            checks.missed += 1 if count is None else count

        async with client.subscribe(FILTER, on_gap=on_gap) as messages:

            async def receive() -> None:
                async for batch in messages.batches():
                    checks.check(batch, time.time_ns() // 1000)

            receiving = asyncio.create_task(receive())
            late: asyncio.Task[None] | None = None
            try:
                while True:
                    pipe.send(checks.report(time.monotonic()))
                    await asyncio.sleep(REPORT_S)
                    if late is None and pipe.has_received("late"):
                        late = asyncio.create_task(_subscribe_late(broker, checks))
                    for task in (receiving, late):
                        if task is not None and task.done():
                            task.result()  # raises its exception
            finally:
                receiving.cancel()
                if late is not None:
                    late.cancel()


async def _subscribe_late(broker: str, checks: SubscriberCheck) -> None:
    """Subscribe once more at the end, to receive the last temperature of each room."""
    from godwit.net.client import connect

    async with connect(broker) as client, client.subscribe(FILTER) as messages:
        async for message in messages:
            checks.check_retained(message)


# -- jobs -------------------------------------------------------------------------------------------------------------


KIND: Final = "sum"
WORKERS: Final = ("anna", "bert")
CAPACITY: Final = 2
TASK_S: Final = 0.1
"""Duration of a task."""
SUBMIT_EVERY_S: Final = 0.15
FOR_ALL_EVERY: Final = 10
"""Every job with this number is for all workers."""
NUMBERS: Final = 50


class WorkReport(msgspec.Struct, frozen=True):
    """The results of the jobs so far."""

    submitted: int = 0
    done: int = 0
    wrong: int = 0
    """Jobs that failed or have a wrong result."""
    replaced: int = 0
    """Tasks that another worker took over."""
    by_worker: dict[str, int] = {}
    """Finished tasks by name of the worker."""
    is_complete: bool = False
    """Whether all jobs are submitted and have ended."""


# -- jobs: a worker ---------------------------------------------------------------------------------------------------


def worker_main(connection: Pipe, broker: str, name: str) -> None:
    """Run a worker's process: report when it is ready, and work until the pipe is closed."""
    run_child(connection, lambda pipe: run_worker(pipe, broker, name))


async def run_worker(pipe: ParentPipe, broker: str, name: str) -> None:
    from godwit.net.worker import Worker

    worker = Worker(broker, name=name, capacity=CAPACITY)

    @worker.handles(KIND)
    async def add(task: Task) -> bytes:
        await asyncio.sleep(TASK_S)
        return msgspec.json.encode(sum(msgspec.json.decode(task.payload, type=list[int])))

    running = asyncio.create_task(worker.run())
    try:
        await worker.ready()
        pipe.send("ready")
        await pipe.wait_closed()
    finally:
        running.cancel()


# -- jobs: the controller ---------------------------------------------------------------------------------------------


def controller_main(connection: Pipe, broker: str, seed: int) -> None:
    """Run the controller's process: connect, submit jobs from `go` to `finish`, and report all the time."""
    run_child(connection, lambda pipe: run_controller(pipe, broker, seed))


async def run_controller(pipe: ParentPipe, broker: str, seed: int) -> None:
    from godwit.net.client import connect

    async with connect(broker, name="controller") as client:
        jobs = DemoJobs(client, Random(f"{seed} jobs"))
        pipe.send(jobs.report())
        await pipe.wait_for("go")
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not pipe.has_received("finish"):
                if time.monotonic() >= began + jobs.submitted * SUBMIT_EVERY_S:
                    group.create_task(jobs.submit())
                pipe.send(jobs.report())
                await asyncio.sleep(max(TICK_S, SUBMIT_EVERY_S / 2))
            reporting = asyncio.create_task(_report_continuously(pipe, jobs))
        reporting.cancel()
        pipe.send(jobs.report(is_complete=True))
        await pipe.wait_closed()


async def _report_continuously(pipe: ParentPipe, jobs: DemoJobs) -> None:
    while True:
        pipe.send(jobs.report())
        await asyncio.sleep(SUBMIT_EVERY_S)


class DemoJobs:
    """All jobs of the demo, each checked against its sum."""

    def __init__(self, client: AsyncClient, rng: Random) -> None:
        self.submitted = 0
        self._client = client
        self._rng = rng
        self._done = self._wrong = self._replaced = 0
        self._by_worker: dict[str, int] = {}

    async def submit(self) -> None:
        """Submit one job and follow it to its end."""
        self.submitted += 1
        numbers = [self._rng.randrange(1_000) for _ in range(NUMBERS)]
        workers = "all" if self.submitted % FOR_ALL_EVERY == 0 else 1
        job = await self._client.submit(KIND, msgspec.json.encode(numbers), workers=workers)  # type: ignore[arg-type]
        is_right = True
        async for update in job:
            if update.what == "reassigned":
                self._replaced += 1
            elif update.what == "result":
                is_right &= update.result == msgspec.json.encode(sum(numbers))
                name = update.worker or ""
                self._by_worker[name] = self._by_worker.get(name, 0) + 1
        self._done += job.state == "done"
        self._wrong += job.state != "done" or not is_right

    def report(self, *, is_complete: bool = False) -> WorkReport:
        return WorkReport(self.submitted, self._done, self._wrong, self._replaced, dict(self._by_worker), is_complete)


def work_problems(work: WorkReport) -> list[str]:
    """Return the faults of the jobs: an empty list if every job was done with the right result."""
    found = []
    if work.wrong:
        found.append(f"{work.wrong:,} of {work.submitted:,} jobs failed or had a wrong result")
    if work.done + work.wrong < work.submitted or not work.is_complete:
        found.append(f"{work.submitted - work.done - work.wrong:,} of {work.submitted:,} jobs were not done in time")
    return found
