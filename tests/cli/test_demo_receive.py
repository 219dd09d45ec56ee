"""The receiver's checks: a message that is missing, repeated or out of place is found."""

from __future__ import annotations

import hashlib
import multiprocessing
from random import Random
from typing import cast

import msgspec
import pytest

from godwit.cli import demo_receive
from godwit.cli.demo_receive import Receiver, Report, RoomCheck, running_digest
from godwit.sim.rooms import Climate, Thermometer
from godwit.transport.connection import Connection
from godwit.transport.events import Closed, PathChanged, Received
from godwit.wire.batch import Batch, encode_batch


def payloads(count: int, room: str = "kitchen") -> list[bytes]:
    sensor = Thermometer(room, Climate(20.0, 1.0), Random(1), start_us=0)
    return [msgspec.json.encode(sensor.read()) for _ in range(count)]


class FakeConnection:
    """Notes what is given back."""

    def __init__(self) -> None:
        self.consumed: list[tuple[int, int]] = []

    def consume(self, channel: int, body_bytes: int) -> None:
        self.consumed.append((channel, body_bytes))


def received(connection: FakeConnection, body: bytes, *, channel: int = 1, last: bool = False) -> Received:
    return Received(cast("Connection", connection), channel, 0, body, True, last)


def test_all_in_order() -> None:
    check = RoomCheck()
    messages = payloads(10)
    check.take(messages[:3])
    check.take(messages[3:])
    report = check.report()
    assert (report.room, report.received, report.missing, report.misplaced) == ("kitchen", 10, 0, 0)
    assert report.digest == hashlib.sha256(b"\n".join(messages) + b"\n").hexdigest()
    assert report.celsius == msgspec.json.decode(messages[-1])["celsius"]


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
    check = RoomCheck()
    check.take([messages[number] for number in order])
    report = check.report()
    assert (report.missing, report.misplaced) == (missing, misplaced)


def test_another_room_or_a_message_behind_the_end_is_misplaced() -> None:
    check = RoomCheck()
    check.take(payloads(2))
    check.take(payloads(3, "cellar")[2:])
    assert check.report().misplaced == 1
    check.ended = True
    check.take(payloads(3)[2:])
    assert check.report().misplaced == 2


def test_the_receiver_adds_up() -> None:
    receiver = Receiver()
    connection = FakeConnection()
    messages = payloads(4)
    one, other = (encode_batch(Batch(part, 0)) for part in (messages[:3], messages[3:]))
    receiver.on_events([received(connection, one)], 1.0)
    receiver.on_events([PathChanged(cast("Connection", connection), ("127.0.0.1", 1))], 1.1)
    receiver.on_events([received(connection, other, last=True)], 1.5)
    receiver.on_events([received(connection, encode_batch(Batch(payloads(1, "cellar"), 0)), channel=2)], 1.6)
    receiver.on_events([Closed(cast("Connection", connection), 0, "bye", "peer")], 1.7)
    report = receiver.report(2.0, {"checksum": 3})
    assert connection.consumed[:2] == [(1, len(one)), (1, len(other))]
    assert [(room.room, room.received, room.ended) for room in report.rooms] == [
        ("kitchen", 4, True),
        ("cellar", 1, False),
    ]
    assert (report.received, report.records, report.moves) == (5, 3, 1)
    assert report.active_s == pytest.approx(0.6)
    assert report.longest_pause_s == pytest.approx(0.5)
    assert (report.dropped, report.problem) == ({"checksum": 3}, "")


@pytest.mark.parametrize("body", [b"", b"\x01", encode_batch(Batch([b"no JSON"], 0))])
def test_what_cannot_be_read_is_a_problem(body: bytes) -> None:
    receiver = Receiver()
    receiver.on_events([received(FakeConnection(), body)], 0.0)
    assert "record 0 of channel 1 cannot be read" in receiver.report(0.0, {}).problem


def test_a_connection_that_breaks_is_a_problem() -> None:
    receiver = Receiver()
    receiver.on_events([Closed(cast("Connection", FakeConnection()), 3, "silence", "timeout")], 0.0)
    assert "ended (timeout): silence" in receiver.report(0.0, {}).problem


def test_the_process_reports_until_the_pipe_is_closed() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=demo_receive.main, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        assert here.poll(20.0)
        host, port = here.recv()
        assert host == "127.0.0.1"
        assert port > 0
        assert here.poll(20.0)
        report = here.recv()
        assert isinstance(report, Report)
        assert report.received == 0
        here.close()
        process.join(timeout=10.0)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
