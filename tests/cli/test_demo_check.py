"""The demo's checks: a message that is missing, repeated, changed or out of place is found."""

from __future__ import annotations

import hashlib
from random import Random

import msgspec
import pytest
from tests.cli.fake_client import message

from godwit.cli.demo_check import (
    DELAYS_MS,
    Delays,
    RoomCheck,
    RoomReport,
    SentRoom,
    Watch,
    WatchReport,
    problems,
    room_of,
    running_digest,
    topic_of,
)
from godwit.cli.house import Climate, Thermometer
from godwit.client.message import Message


def payloads(count: int, room: str = "kitchen") -> list[bytes]:
    sensor = Thermometer(room, Climate(20.0, 1.0), Random(1), start_us=0)
    return [msgspec.json.encode(sensor.read()) for _ in range(count)]


def digest(parts: list[bytes]) -> str:
    return hashlib.sha256(b"\n".join(parts) + b"\n").hexdigest()


def test_all_in_order() -> None:
    check = RoomCheck("kitchen")
    messages = payloads(10)
    check.take(messages[:3])
    check.take(messages[3:])
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
    check.take([messages[number] for number in order])
    report = check.report()
    assert (report.missing, report.misplaced) == (missing, misplaced)


def test_a_reading_of_another_room_is_misplaced() -> None:
    check = RoomCheck("kitchen")
    check.take(payloads(2))
    check.take(payloads(3, "cellar")[2:])
    assert check.report().misplaced == 1


def test_a_watch_sorts_by_topic_and_measures_delays() -> None:
    watch = Watch()
    kitchen, cellar = payloads(2), payloads(1, "cellar")
    topics = [topic_of("kitchen")] * 2 + [topic_of("cellar")]
    messages = [message(topic, payload) for topic, payload in zip(topics, kitchen + cellar, strict=True)]
    published_us = messages[0].published_us
    watch.take(messages[:2], published_us + 35_000)
    watch.take(messages[2:], published_us + 400_000)
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
    assert Delays().within_ms(0.99) == 0.0
    above = Delays((0,) * len(DELAYS_MS) + (1,), 20.0)
    assert above.within_ms(0.5) == 20_000
    assert Delays((1,) + (0,) * len(DELAYS_MS), 0.004).within_ms(0.5) == 4


def test_a_payload_that_is_no_reading() -> None:
    watch = Watch()
    watch.take([message(topic_of("kitchen"), b"21.5")], 0)
    assert "a message of home/kitchen/temperature cannot be read" in watch.report(0.0).problem


def test_what_the_late_subscriber_gets_must_be_retained() -> None:
    watch = Watch()
    good = Message("home/a/temperature", b"1", "a", 0, 0, 2, True, 1)
    watch.keep(good)
    assert watch.report(0.0).retained == {good.topic: hashlib.sha256(b"1").hexdigest()}
    assert watch.report(0.0).problem == ""
    watch.keep(msgspec.structs.replace(good, retained=False))
    assert "was not retained" in watch.report(0.0).problem


def seen(*rooms: RoomReport, missed: int = 0, problem: str = "", retained: str = "cd") -> WatchReport:
    return WatchReport(rooms=rooms, missed=missed, problem=problem, retained={topic_of("kitchen"): retained})


def room(name: str, received: int, *, missing: int = 0, misplaced: int = 0, digest: str = "ab") -> RoomReport:
    return RoomReport(name, received, missing, misplaced, 20.0, digest)


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (seen(), "kitchen: 0 of 100 messages arrived"),
        (seen(room("kitchen", 99, missing=1)), "kitchen: 1 messages are missing in between"),
        (seen(room("kitchen", 101, misplaced=1)), "kitchen: 1 messages came twice or out of order"),
        (seen(room("kitchen", 100, digest="x")), "kitchen: the bytes that arrived are not those that were sent"),
        (seen(room("kitchen", 100), room("garage", 1)), "garage: nobody sent this"),
        (seen(room("kitchen", 100), problem="it broke"), "it broke"),
        (seen(room("kitchen", 100), missed=2), "the broker gave 2 messages up"),
        (seen(room("kitchen", 100), retained="x"), "kitchen: the late subscriber did not get the last temperature"),
    ],
)
def test_problems_are_found(report: WatchReport, problem: str) -> None:
    assert problem in problems([SentRoom("kitchen", 100, "ab")], {topic_of("kitchen"): "cd"}, report)


def test_no_problem() -> None:
    report = seen(room("kitchen", 100))
    assert problems([SentRoom("kitchen", 100, "ab")], {topic_of("kitchen"): "cd"}, report) == []


def test_names() -> None:
    assert topic_of("living room") == "home/living room/temperature"
    assert room_of(topic_of("living room")) == "living room"
