"""`godwit sensors` as a user sees it, and how it keeps time."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, cast

import pytest
from tests.cli.real import error_of, godwit, needs_posix, running, subscribed

from godwit.cli import sensors as sensors_command
from godwit.cli.house import sensors
from godwit.cli.sensors import SensorPlan, SensorPublisher
from godwit.errors import BufferFullError

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient


class FakePublisher:
    """Is full every tenth time."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.waits = 0
        self.flushed = False

    def send(self, payload: bytes) -> None:
        if (len(self.sent) + self.waits) % 10 == 9:
            raise BufferFullError("full")
        self.sent.append(payload)

    async def ready(self) -> None:
        self.waits += 1

    async def flush(self) -> None:
        self.flushed = True


class FakeClient:
    def __init__(self) -> None:
        self.publishers: dict[str, FakePublisher] = {}

    def publisher(self, topic: str, *, qos: int, retain: bool) -> FakePublisher:
        return self.publishers.setdefault(topic, FakePublisher())


def plan(**more: object) -> SensorPlan:
    return SensorPlan(**{  # type: ignore[arg-type]
        "rooms": 3, "rate": 100.0, "seed": 1, "faults_per_thousand": 0.0, "prefix": "home", "qos": 1, "retain": False,
        "count": None, "duration_s": None, **more,
    })  # fmt: skip


def run(chosen: SensorPlan) -> tuple[FakeClient, SensorPublisher, list[int]]:
    client = FakeClient()
    shown: list[int] = []

    async def main() -> SensorPublisher:
        source = SensorPublisher(cast("AsyncClient", client), sensors(chosen.rooms, 1, start_us=0), chosen)
        await source.run(shown.append)
        return source

    return client, asyncio.run(main()), shown


def test_the_rooms_take_turns_until_the_count_is_reached() -> None:
    client, source, shown = run(plan(count=50))
    assert source.sent == shown[-1] == 50
    assert list(client.publishers) == [f"home/{room}/temperature" for room in ("kitchen", "living room", "bedroom")]
    assert [len(one.sent) for one in client.publishers.values()] == [17, 17, 16]
    assert all(one.flushed and one.waits for one in client.publishers.values())
    readings = [json.loads(payload) for payload in client.publishers["home/kitchen/temperature"].sent]
    assert [reading["number"] for reading in readings] == list(range(17))
    assert set(readings[0]) == {"room", "number", "time_us", "celsius"}


def test_the_duration_and_the_rate_are_kept() -> None:
    _, source, _ = run(plan(duration_s=0.5))
    assert 100 < source.sent <= 155


def test_delayed_readings_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(self: FakePublisher) -> None:
        self.waits += 1
        time.sleep(0.05)  # the whole loop is blocked

    monkeypatch.setattr(FakePublisher, "ready", slow)
    monkeypatch.setattr(sensors_command, "MAX_LAG_S", 0.02)
    _, source, _ = run(plan(rate=20_000.0, duration_s=0.4, rooms=1))
    assert 10 < source.sent < 1000


def test_a_subscriber_gets_readings(address: str) -> None:
    with running("sub", "sensors/+/temperature", "--json", "--broker", address) as sub:
        subscribed(address, "sensors/+/temperature")
        result = godwit(
            "sensors", "--rooms", "7", "--rate", "50", "--count", "70", "--faults", "0", "--prefix", "sensors",
            "--broker", address,
        )  # fmt: skip
        assert result.returncode == 0
        assert result.stderr.decode() == (
            "publishing 7 rooms at sensors/+/temperature, 50 per second each\n70 readings confirmed\n"
        )
        messages = [json.loads(sub.out.line()) for _ in range(70)]
    topics = {message["topic"] for message in messages}
    assert {"sensors/living room/temperature", "sensors/room 7/temperature"} <= topics
    assert len(topics) == 7
    assert all(-20.0 < json.loads(message["payload"])["celsius"] < 40.0 for message in messages)


@needs_posix
def test_ctrl_c_ends_it(address: str) -> None:
    with running("sensors", "--rate", "5", "--broker", address) as command:
        assert "publishing 5 rooms" in command.err.line()
        assert command.interrupt() == 130
        assert re.fullmatch(
            r"interrupted: \d+ readings? sent, the last of them perhaps not confirmed", command.err.line()
        )
        assert command.err.rest() == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rooms", "0"], "--rooms 0 is out of range"),
        (["--rooms", "10001"], "--rooms 10001 is out of range"),
        (["--rate", "0"], "--rate 0 is out of range"),
        (["--rate", "nan"], "--rate nan is out of range"),
        (["--faults", "-1"], "--faults -1 is out of range"),
        (["--count", "0"], "--count 0 is out of range"),
        (["--duration", "0"], "--duration 0 is out of range"),
        (["--prefix", "a/#"], "wildcards are for subscriptions"),
        (["--qos", "9"], "unknown QoS 9"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], text: str) -> None:
    assert text in error_of("sensors", *arguments)
