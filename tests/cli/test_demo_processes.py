"""The demo's checks: a message that is missing, repeated, changed or out of place is found."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.cli.fake_client import message
from tests.cli.test_demo_run import PipeClosedError, close_pipe

from godwit.cli import demo_processes
from godwit.cli.demo_processes import (
    DELAYS_MS,
    DelayHistogram,
    DemoRoom,
    ParentPipe,
    RoomCheck,
    RoomReport,
    RoomsReport,
    SentRoom,
    SubscriberCheck,
    SubscriberReport,
    WorkReport,
    message_problems,
    room_of,
    running_digest,
    topic_of,
    work_problems,
)
from godwit.cli.house import ROOMS, Climate, RoomReading, Sensor, Thermometer, house, sensors
from godwit.client.message import Message
from godwit.net.address import format_address
from godwit.net.client import connect
from godwit.net.service import Service

# -- demo check -------------------------------------------------------------------------------------------------------


def payloads(count: int, room: str = "kitchen") -> list[bytes]:
    sensor = Thermometer(room, Climate(20.0, 1.0), Random(1), start_us=0)
    return [msgspec.json.encode(sensor.read()) for _ in range(count)]


def digest(parts: list[bytes]) -> str:
    return hashlib.sha256(b"\n".join(parts) + b"\n").hexdigest()


def test_all_in_order() -> None:
    check = RoomCheck("kitchen")
    messages = payloads(10)
    check.check(messages[:3])
    check.check(messages[3:])
    celsius = msgspec.json.decode(messages[-1])["celsius"]
    assert check.report() == RoomReport("kitchen", 10, 0, 0, celsius, digest(messages))


def test_the_digest_does_not_depend_on_the_batches() -> None:
    messages = payloads(6)
    one, other = hashlib.sha256(), hashlib.sha256()
    running_digest(one, messages)
    running_digest(other, messages[:1])
    running_digest(other, messages[1:])
    assert one.digest() == other.digest()


@pytest.mark.parametrize(
    ("order", "missing", "misplaced"),
    [
        ([0, 1, 3], 1, 0),  # one is missing
        ([2, 3], 2, 0),  # the first ones are missing
        ([0, 1, 1, 2], 0, 1),  # one came twice
        ([0, 2, 1, 3], 1, 1),  # two changed places
    ],
)
def test_what_is_wrong_is_counted(order: list[int], missing: int, misplaced: int) -> None:
    messages = payloads(4)
    check = RoomCheck("kitchen")
    check.check([messages[number] for number in order])
    report = check.report()
    assert (report.missing, report.misplaced) == (missing, misplaced)


def test_a_reading_of_another_room_is_misplaced() -> None:
    check = RoomCheck("kitchen")
    check.check(payloads(2))
    check.check(payloads(3, "cellar")[2:])
    assert check.report().misplaced == 1


def test_a_watch_sorts_by_topic_and_measures_delays() -> None:
    watch = SubscriberCheck()
    kitchen, cellar = payloads(2), payloads(1, "cellar")
    topics = [topic_of("kitchen")] * 2 + [topic_of("cellar")]
    messages = [message(topic, payload) for topic, payload in zip(topics, kitchen + cellar, strict=True)]
    published_us = messages[0].published_us
    watch.check(messages[:2], published_us + 35_000)
    watch.check(messages[2:], published_us + 400_000)
    report = watch.report(7.0)
    assert report.at_s == 7.0
    assert [(room.room, room.received) for room in report.rooms] == [("cellar", 1), ("kitchen", 2)]
    assert (report.received, report.received_bytes, report.late, report.problem) == (
        3,
        sum(map(len, kitchen + cellar)),
        1,
        "",
    )
    assert report.delays.longest_s == 0.4
    assert report.delays.within_ms(0.5) == 40
    assert report.delays.within_ms(1.0) == 400


def test_delays() -> None:
    assert DelayHistogram().within_ms(0.99) == 0.0
    above = DelayHistogram((0,) * len(DELAYS_MS) + (1,), 20.0)
    assert above.within_ms(0.5) == 20_000
    assert DelayHistogram((1,) + (0,) * len(DELAYS_MS), 0.004).within_ms(0.5) == 4


def test_a_payload_that_is_no_reading() -> None:
    watch = SubscriberCheck()
    watch.check([message(topic_of("kitchen"), b"21.5")], 0)
    assert "a message of home/kitchen/temperature is not a reading" in watch.report(0.0).problem


def test_what_the_late_subscriber_gets_must_be_retained() -> None:
    watch = SubscriberCheck()
    good = Message("home/a/temperature", b"1", "a", 0, 0, 2, True, 1)
    watch.check_retained(good)
    assert watch.report(0.0).retained == {good.topic: hashlib.sha256(b"1").hexdigest()}
    assert watch.report(0.0).problem == ""
    watch.check_retained(msgspec.structs.replace(good, retained=False))
    assert "was not retained" in watch.report(0.0).problem


def seen(*rooms: RoomReport, missed: int = 0, problem: str = "", retained: str = "cd") -> SubscriberReport:
    return SubscriberReport(rooms=rooms, missed=missed, problem=problem, retained={topic_of("kitchen"): retained})


def room(name: str, received: int, *, missing: int = 0, misplaced: int = 0, digest: str = "ab") -> RoomReport:
    return RoomReport(name, received, missing, misplaced, 20.0, digest)


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (seen(), "kitchen: 0 of 100 messages arrived"),
        (seen(room("kitchen", 99, missing=1)), "kitchen: 1 messages are missing in between"),
        (seen(room("kitchen", 101, misplaced=1)), "kitchen: 1 messages arrived twice or out of order"),
        (seen(room("kitchen", 100, digest="x")), "kitchen: the arrived bytes differ from the sent bytes"),
        (seen(room("kitchen", 100), room("garage", 1)), "garage: no room with this name sent messages"),
        (seen(room("kitchen", 100), problem="it broke"), "it broke"),
        (seen(room("kitchen", 100), missed=2), "the broker did not deliver 2 messages"),
        (seen(room("kitchen", 100), retained="x"), "kitchen: the late subscriber did not receive the last temperature"),
    ],
)
def test_problems_are_found(report: SubscriberReport, problem: str) -> None:
    assert problem in message_problems([SentRoom("kitchen", 100, "ab")], {topic_of("kitchen"): "cd"}, report)


def test_no_problem() -> None:
    report = seen(room("kitchen", 100))
    assert message_problems([SentRoom("kitchen", 100, "ab")], {topic_of("kitchen"): "cd"}, report) == []


def test_names() -> None:
    assert topic_of("living room") == "home/living room/temperature"
    assert room_of(topic_of("living room")) == "living room"


# -- demo broker ------------------------------------------------------------------------------------------------------


def broker_with(pipe: Connection, data: Path) -> None:
    with pytest.raises(PipeClosedError):
        asyncio.run(demo_processes.run_broker(ParentPipe(pipe, close_pipe), data))


def test_it_sends_its_addresses_and_ends_with_the_pipe(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = Pipe()
        thread = threading.Thread(target=broker_with, args=(there, tmp_path))
        thread.start()
        place: demo_processes.BrokerAddresses = await asyncio.to_thread(here.recv)
        assert place.archive.startswith("grpc://127.0.0.1:")
        async with connect(format_address(place.address), timeout_s=120) as client:
            assert await client.ping() > 0
        here.close()
        await asyncio.to_thread(thread.join, 120)
        assert not thread.is_alive()

    asyncio.run(main())


# -- demo rooms -------------------------------------------------------------------------------------------------------


def test_a_room_counts_what_it_sends() -> None:
    async def main() -> None:
        async with (
            Service() as service,
            connect(service.urls[0]) as client,
            client.subscribe("home/+/temperature") as messages,
        ):
            room = DemoRoom(sensors(1, 1, start_us=0)[0], client)
            await room.send(0)
            await room.send(30)
            topic, digest = await room.finish()
            payloads = []
            async for message in messages:
                payloads.append(message.payload)
                if len(payloads) == 31:
                    break
        assert (room.sent().room, room.sent().sent) == ("kitchen", 31)
        together = hashlib.sha256()
        running_digest(together, payloads)
        assert room.sent().digest == together.hexdigest()
        assert (topic, digest) == (topic_of("kitchen"), hashlib.sha256(payloads[-1]).hexdigest())

    asyncio.run(main())


def test_a_sensor_that_is_silent_sends_nothing() -> None:
    class Silent(Sensor):
        turn = 0

        def read(self) -> RoomReading | None:
            self.turn += 1
            return super().read() if self.turn % 3 == 0 else None

    async def main() -> None:
        async with Service() as service, connect(service.urls[0]) as client:
            sensor = sensors(1, 1, start_us=0)[0]
            sensor.__class__ = Silent
            room = DemoRoom(sensor, client)
            await room.send(10)
            assert room.sent().sent == 3
            await room.finish()
            assert room.sent().sent == 4

    asyncio.run(main())


def rooms_with(pipe: Connection, url: str, failures: list[BaseException]) -> None:
    try:
        asyncio.run(demo_processes.run_rooms(ParentPipe(pipe, close_pipe), url, 3, 500.0))
    except PipeClosedError:
        pass  # the pipe was closed, as it should be
    except BaseException as error:
        failures.append(error)


def test_from_go_to_finish() -> None:
    async def main() -> RoomsReport:
        here, there = Pipe()
        failures: list[BaseException] = []
        watch = SubscriberCheck()
        async with Service() as service, connect(service.urls[0]) as client:
            async with client.subscribe("home/+/temperature") as messages:
                thread = threading.Thread(target=rooms_with, args=(there, service.urls[0], failures))
                thread.start()
                report: RoomsReport = await asyncio.to_thread(here.recv)
                assert [room.sent for room in report.rooms] == [0] * len(ROOMS)
                here.send("go")
                while min(room.sent for room in report.rooms) <= 50:
                    report = await asyncio.to_thread(here.recv)
                here.send("finish")
                while not report.last_digests:
                    report = await asyncio.to_thread(here.recv)
                here.close()
                await asyncio.to_thread(thread.join)
                assert failures == []
                async for batch in messages.batches():
                    watch.check(batch, 0)
                    if watch.report(0.0).received == report.sent:
                        break
            async with client.subscribe("home/+/temperature") as late:
                async for message in late:
                    watch.check_retained(message)
                    if len(watch.retained) == len(ROOMS):
                        break
        assert message_problems(report.rooms, report.last_digests, watch.report(0.0)) == []
        return report

    report = asyncio.run(main())
    assert all(room.sent > 50 for room in report.rooms)
    assert report.round_trip_s > 0


# -- demo watch -------------------------------------------------------------------------------------------------------


def subscriber_with(pipe: Connection, url: str, failures: list[BaseException]) -> None:
    try:
        asyncio.run(demo_processes.run_subscriber(ParentPipe(pipe, close_pipe), url))
    except PipeClosedError:
        pass  # the pipe was closed, as it should be
    except BaseException as error:
        failures.append(error)


def test_it_takes_everything_and_then_comes_late() -> None:
    async def main() -> SubscriberReport:
        here, there = Pipe()
        failures: list[BaseException] = []
        async with Service() as service, connect(service.urls[0]) as client:
            thread = threading.Thread(target=subscriber_with, args=(there, service.urls[0], failures))
            thread.start()
            report: SubscriberReport = await asyncio.to_thread(here.recv)
            assert report == SubscriberReport(at_s=report.at_s)
            sensor = house(1, start_us=0)[0]
            for number in range(20):
                payload = msgspec.json.encode(sensor.read())
                await client.publish(topic_of(sensor.room), payload, retain=number == 19)
            while report.received < 20:
                report = await asyncio.to_thread(here.recv)
            here.send("late")
            while not report.retained:
                report = await asyncio.to_thread(here.recv)
            here.close()
            await asyncio.to_thread(thread.join)
        assert failures == []
        assert report.retained == {topic_of("kitchen"): hashlib.sha256(payload).hexdigest()}
        return report

    report = asyncio.run(main())
    (room,) = report.rooms
    assert (room.room, room.received, room.missing, room.misplaced) == ("kitchen", 20, 0, 0)
    assert (report.missed, report.problem) == (0, "")
    assert sum(report.delays.counts) == 20


# -- demo work --------------------------------------------------------------------------------------------------------


def in_thread(work: Callable[[ParentPipe], Coroutine[Any, Any, None]]) -> tuple[Connection, threading.Thread]:
    here, there = Pipe()

    def run() -> None:
        with suppress(PipeClosedError):  # the pipe was closed, as it should be
            asyncio.run(work(ParentPipe(there, close_pipe)))

    thread = threading.Thread(target=run)
    thread.start()
    return here, thread


def test_jobs_are_done_by_all_workers_and_checked() -> None:
    async def main() -> WorkReport:
        async with Service() as service:
            url = service.urls[0]
            ends = [
                in_thread(lambda line, name=name: demo_processes.run_worker(line, url, name))  # type: ignore[misc]
                for name in demo_processes.WORKERS
            ]
            for pipe, _ in ends:
                assert await asyncio.to_thread(pipe.recv) == "ready"
            here, thread = in_thread(lambda line: demo_processes.run_controller(line, url, 1))
            ends.append((here, thread))
            report: WorkReport = await asyncio.to_thread(here.recv)
            here.send("go")
            while report.submitted < 12:
                report = await asyncio.to_thread(here.recv)
            here.send("finish")
            while not report.is_complete:
                report = await asyncio.to_thread(here.recv)
            for pipe, thread in ends:
                pipe.close()
                await asyncio.to_thread(thread.join)
        return report

    report = asyncio.run(main())
    assert work_problems(report) == []
    assert report.by_worker.keys() == set(demo_processes.WORKERS)
    assert sum(report.by_worker.values()) == report.done + 1  # one job was for both


def test_wrong_results_are_reported() -> None:
    assert work_problems(WorkReport(submitted=5, done=5, is_complete=True)) == []
    assert work_problems(WorkReport(submitted=5, done=3, wrong=1, is_complete=True)) == [
        "1 of 5 jobs failed or had a wrong result",
        "1 of 5 jobs were not done in time",
    ]
