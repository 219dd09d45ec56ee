"""Sensors whose readings follow from their numbers, with a jump now and then that a detector must tell."""

from __future__ import annotations

import asyncio
import json
import random

from tests.system.worker import Orders, say, say_state

from godwit.errors import BufferFullError
from godwit.net.client import connect

USUAL = 20.0
JUMP = 40.0
FIRST_JUMP = 250
"""The detector has to know a series before it tells anything."""
JUMPS_APART = 1_000
"""What happens often is not unusual."""
TOPICS_APART = 20
"""Readings by which the next sensor jumps later."""


def topic_of(sensor: int) -> str:
    return f"halls/{sensor}/temperature"


def value_of(sensor: int, number: int) -> float:
    """The reading of this number."""
    since = number - FIRST_JUMP - TOPICS_APART * sensor
    jump = JUMP if since >= 0 and since % JUMPS_APART == 0 else 0.0
    return round(random.Random(f"{sensor} {number}").gauss(USUAL, 0.2) + jump, 3)


def body(sensor: int, number: int) -> bytes:
    return json.dumps({"temperature": value_of(sensor, number), "unit": "°C", "number": number}).encode()


def number_of(payload: bytes) -> int:
    return int(json.loads(payload)["number"])


async def measure(orders: Orders, *, broker: str, name: str, sensors: list[int], interval_s: float) -> None:
    """Publish a reading of each sensor every `interval_s` seconds at QoS 2, also after reconnects.

    Orders: `go` begins, `halt` ends and says `confirmed` with the number of readings of each sensor, `stop` ends.
    """
    async with connect(broker, name=name, on_state=say_state) as client, asyncio.TaskGroup() as group:
        publishers = [
            client.publisher(topic_of(sensor), qos=2, identity=f"{name}-{sensor}", epoch=1) for sensor in sensors
        ]

        async def go() -> None:
            number = 0
            while True:
                for sensor, publisher in zip(sensors, publishers, strict=True):
                    while True:
                        try:
                            publisher.send(body(sensor, number))
                            break
                        except BufferFullError:
                            await publisher.ready()
                    await asyncio.sleep(interval_s / len(sensors))
                number += 1

        say("ready", client=client.name)
        going: asyncio.Task[None] | None = None
        while (order := await orders.next()) != "stop":
            if order == "go":
                going = group.create_task(go())
            else:
                assert going is not None
                going.cancel()
                await asyncio.wait([going])
                for publisher in publishers:
                    await publisher.flush()
                say("confirmed", counts=[publisher.next_sequence for publisher in publishers])
