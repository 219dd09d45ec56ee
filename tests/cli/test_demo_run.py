"""The demo's transfer: what counts as a failure, and what becomes of it when a part of it breaks."""

from __future__ import annotations

import multiprocessing

import msgspec
import pytest

from godwit.cli import demo_run
from godwit.cli.demo_receive import Report, RoomReport
from godwit.cli.demo_run import BATCH_MESSAGES, Demo, Picture, SentRoom, Settings, Source
from godwit.errors import GodwitError
from godwit.net import loop
from godwit.sim.rooms import Reading, house
from godwit.transport.connection import Statistics
from godwit.wire.batch import decode_batch


def room(name: str, received: int, *, missing: int = 0, misplaced: int = 0, digest: str = "ab") -> RoomReport:
    return RoomReport(name, received, missing, misplaced, 20.0, digest, True)


def picture(*rooms: RoomReport, problem: str = "") -> Picture:
    return Picture(
        settings=Settings(1.0, 0.0, 1),
        elapsed_s=1.0,
        finishing=True,
        rooms=(SentRoom("kitchen", 100, "ab"),),
        report=Report(rooms=rooms, received_bytes=10_000, active_s=2.0, problem=problem),
        network={},
        statistics=Statistics(),
        moved_at_s=(),
        recent_bits_per_s=0.0,
    )


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (picture(), "kitchen: 0 of 100 messages arrived"),
        (picture(room("kitchen", 99, missing=1)), "kitchen: 1 messages are missing in between"),
        (picture(room("kitchen", 101, misplaced=1)), "kitchen: 1 messages came twice or out of order"),
        (picture(room("kitchen", 100, digest="cd")), "kitchen: the bytes that arrived are not those that were sent"),
        (picture(room("kitchen", 100), room("garage", 1)), "garage: nobody sent this"),
        (picture(room("kitchen", 100), problem="it broke"), "it broke"),
    ],
)
def test_problems_are_found(seen: Picture, problem: str) -> None:
    assert problem in seen.problems()


def test_no_problem() -> None:
    seen = picture(room("kitchen", 100))
    assert seen.problems() == []
    assert seen.sent == 100
    assert seen.goodput_bits_per_s == pytest.approx(40_000.0)


def test_a_source_packs_readings_into_batches() -> None:
    sensor = house(1, start_us=1_000_000_000)[0]
    source = Source(sensor, channel=3)
    for first in (0, BATCH_MESSAGES):
        batch, _ = decode_batch(source.batch())
        readings = [msgspec.json.decode(payload, type=Reading) for payload in batch.payloads]
        assert [reading.number for reading in readings] == list(range(first, first + BATCH_MESSAGES))
        assert batch.deltas_us is not None
        assert [batch.published_us + delta for delta in batch.deltas_us] == [one.time_us for one in readings]
    assert (source.channel, source.sent().room, source.sent().sent) == (3, sensor.room, 2 * BATCH_MESSAGES)


def test_a_short_transfer() -> None:
    pictures: list[Picture] = []
    last = loop.run(Demo(Settings(1.2, 0.02, 7), pictures.append).run())
    assert last.problems() == []
    assert last.sent == last.report.received > BATCH_MESSAGES
    assert last.report.moves == len(last.moved_at_s) == 1
    assert last.network["to_target"]["lost"] > 0
    assert last.statistics.fragments_resent > 0
    assert pictures
    assert multiprocessing.active_children() == []


def test_a_receiver_that_dies_is_an_error() -> None:
    def kill_it(picture: Picture) -> None:
        if picture.report.received:
            for child in multiprocessing.active_children():
                child.kill()

    with pytest.raises(GodwitError, match="the receiving process ended by itself"):
        loop.run(Demo(Settings(30.0, 0.0, 1), kill_it).run())
    assert multiprocessing.active_children() == []


def test_what_does_not_arrive_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "END_PATIENCE_S", -1.0)
    with pytest.raises(GodwitError, match="messages have arrived"):
        loop.run(Demo(Settings(1.0, 0.0, 1), lambda picture: None).run())
    assert multiprocessing.active_children() == []


def test_a_network_that_lets_nothing_through_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.transport.dial.HANDSHAKE_TIMEOUT_S", 0.5)
    with pytest.raises(GodwitError, match=r"the sender's connection ended \(timeout\)"):
        loop.run(Demo(Settings(30.0, 1.0, 1), lambda picture: None).run())
