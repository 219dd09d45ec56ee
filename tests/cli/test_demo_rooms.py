"""The rooms of the demo, against a broker in this process."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from tests.cli.test_demo_processes import Cut, cut

from godwit.cli import demo_rooms
from godwit.cli.demo_check import Watch, problems, running_digest, topic_of
from godwit.cli.demo_processes import Line
from godwit.cli.demo_rooms import Room, RoomsReport
from godwit.cli.house import ROOMS, RoomReading, Sensor, sensors
from godwit.net.client import connect
from godwit.net.service import Service


def test_a_room_counts_what_it_sends() -> None:
    async def main() -> None:
        async with (
            Service() as service,
            connect(service.urls[0]) as client,
            client.subscribe("home/+/temperature") as messages,
        ):
            room = Room(sensors(1, 1, start_us=0)[0], client)
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
            room = Room(sensor, client)
            await room.send(10)
            assert room.sent().sent == 3
            await room.finish()
            assert room.sent().sent == 4

    asyncio.run(main())


def work_with(pipe: Connection, url: str, failures: list[BaseException]) -> None:
    try:
        asyncio.run(demo_rooms.work(Line(pipe, cut), url, 3, 500.0))
    except Cut:
        pass  # the pipe was closed, as it should be
    except BaseException as error:
        failures.append(error)


def test_from_go_to_finish() -> None:
    async def main() -> RoomsReport:
        here, there = Pipe()
        failures: list[BaseException] = []
        watch = Watch()
        async with Service() as service, connect(service.urls[0]) as client:
            async with client.subscribe("home/+/temperature") as messages:
                thread = threading.Thread(target=work_with, args=(there, service.urls[0], failures))
                thread.start()
                report: RoomsReport = await asyncio.to_thread(here.recv)
                assert [room.sent for room in report.rooms] == [0] * len(ROOMS)
                here.send("go")
                await asyncio.sleep(0.5)
                here.send("finish")
                while not report.last_digests:
                    report = await asyncio.to_thread(here.recv)
                here.close()
                await asyncio.to_thread(thread.join)
                assert failures == []
                async for batch in messages.batches():
                    watch.take(batch, 0)
                    if watch.report(0.0).received == report.sent:
                        break
            async with client.subscribe("home/+/temperature") as late:
                async for message in late:
                    watch.keep(message)
                    if len(watch.retained) == len(ROOMS):
                        break
        assert problems(report.rooms, report.last_digests, watch.report(0.0)) == []
        return report

    report = asyncio.run(main())
    assert all(room.sent > 50 for room in report.rooms)
    assert report.round_trip_s > 0
