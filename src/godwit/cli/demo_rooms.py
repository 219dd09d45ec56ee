"""The process of `godwit demo` that holds the rooms: a client and a publisher for each, like so many devices."""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.cli.demo_check import SentRoom, running_digest, topic_of
from godwit.cli.demo_processes import TICK_S, Line, run_child
from godwit.cli.house import ROOMS, Sensor, sensors
from godwit.errors import BufferFullError

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient

REPORT_S: Final = 0.1
MAX_LAG_S: Final = 1.0
"""Rooms that were held up for longer do not make up for it."""
BEFORE_US: Final = 7 * 86_400 * 1_000_000
"""So long ago their story begins, in which every reading is a second after the last: its end is not in the future."""
FAULTS_PER_READING: Final = 1 / 4_000
"""Of each sensor, now and then: something for the pipeline to find."""


class RoomsReport(msgspec.Struct, frozen=True):
    """What the rooms have done so far."""

    rooms: tuple[SentRoom, ...] = ()
    resent: int = 0
    """Fragments, by all clients."""
    round_trip_s: float = 0.0
    """The longest of the clients' smoothed ones."""
    last_digests: dict[str, str] = {}
    """Of the retained messages, when all is confirmed."""

    @property
    def sent(self) -> int:
        return sum(room.sent for room in self.rooms)


class Room:
    """One device: its sensor, its client, and what it has published."""

    def __init__(self, sensor: Sensor, client: AsyncClient) -> None:
        self.client = client
        self._sensor = sensor
        self._publisher = client.publisher(topic_of(sensor.room), qos=2)
        self._digest = hashlib.sha256()
        self._sent = 0

    async def send(self, count: int) -> None:
        readings = [self._sensor.read() for _ in range(count)]
        payloads = [msgspec.json.encode(reading) for reading in readings if reading is not None]
        for payload in payloads:
            while True:
                try:
                    self._publisher.send(payload)
                    break
                except BufferFullError:
                    await self._publisher.ready()
        self._count(payloads)

    async def finish(self) -> tuple[str, str]:
        """One more, which the broker keeps. Its topic and digest, when everything is confirmed."""
        await self._publisher.flush()
        while (reading := self._sensor.read()) is None:
            pass  # it is silent for some readings only
        payload = msgspec.json.encode(reading)
        topic = topic_of(self._sensor.room)
        await self.client.publish(topic, payload, qos=2, retain=True)
        self._count([payload])
        return topic, hashlib.sha256(payload).hexdigest()

    def _count(self, payloads: list[bytes]) -> None:
        if payloads:
            running_digest(self._digest, payloads)
            self._sent += len(payloads)

    def sent(self) -> SentRoom:
        return SentRoom(self._sensor.room, self._sent, self._digest.hexdigest())


def main(pipe: Pipe, broker: str, seed: int, rate: float) -> None:
    """Of the process: connects, sends from `go` to `finish`, reports all the time."""
    run_child(pipe, lambda line: work(line, broker, seed, rate))


async def work(line: Line, broker: str, seed: int, rate: float) -> None:
    from godwit.net.client import connect

    async with AsyncExitStack() as stack:
        rooms = []
        start_us = time.time_ns() // 1000 - BEFORE_US
        for sensor in sensors(len(ROOMS), seed, start_us=start_us, faults_per_reading=FAULTS_PER_READING):
            client = await stack.enter_async_context(connect(broker, name=sensor.room))
            rooms.append(Room(sensor, client))
        line.say(_report(rooms, {}))
        await line.hears("go")
        await _send(line, rooms, rate)
        digests = dict([await room.finish() for room in rooms])
        line.say(_report(rooms, digests))
        await line.is_cut()


async def _send(line: Line, rooms: list[Room], rate: float) -> None:
    began = time.monotonic()
    turns = 0
    next_report = 0.0
    while not line.has_heard("finish"):
        due = int((time.monotonic() - began) * rate)
        if due - turns > rate * MAX_LAG_S:
            began = time.monotonic() - turns / rate
            due = turns
        for room in rooms:
            await room.send(due - turns)
        turns = due
        if time.monotonic() >= next_report:
            next_report = time.monotonic() + REPORT_S
            line.say(_report(rooms, {}))
        await asyncio.sleep(TICK_S)


def _report(rooms: list[Room], digests: dict[str, str]) -> RoomsReport:
    statistics = [room.client.statistics for room in rooms]
    return RoomsReport(
        rooms=tuple(room.sent() for room in rooms),
        resent=sum(one.fragments_resent for one in statistics),
        round_trip_s=max(one.round_trip_s for one in statistics),
        last_digests=digests,
    )
