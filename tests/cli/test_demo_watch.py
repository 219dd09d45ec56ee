"""The subscriber of the demo, against a broker in this process."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import msgspec
from tests.cli.test_demo_processes import Cut, cut

from godwit.cli import demo_watch
from godwit.cli.demo_check import WatchReport, topic_of
from godwit.cli.demo_processes import Line
from godwit.cli.house import house
from godwit.net.client import connect
from godwit.net.service import Service


def work_with(pipe: Connection, url: str, failures: list[BaseException]) -> None:
    try:
        asyncio.run(demo_watch.work(Line(pipe, cut), url))
    except Cut:
        pass  # the pipe was closed, as it should be
    except BaseException as error:
        failures.append(error)


def test_it_takes_everything_and_then_comes_late() -> None:
    async def main() -> WatchReport:
        here, there = Pipe()
        failures: list[BaseException] = []
        async with Service() as service, connect(service.urls[0]) as client:
            thread = threading.Thread(target=work_with, args=(there, service.urls[0], failures))
            thread.start()
            report: WatchReport = await asyncio.to_thread(here.recv)
            assert report == WatchReport(at_s=report.at_s)
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
