"""The benchmark of consumer groups: a fake system with known figures, Godwit and JetStream, and a short real run.

The tests check that messages are received once and acknowledged, never how fast.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit_bench import groups, peers
from godwit_bench.groups import GroupSystem, Progress, godwit_group, measure
from godwit_bench.processes import READY, ProcessGroup


def broker(processes: ProcessGroup) -> str:
    return "nowhere"


async def fill(address: str, messages: int) -> None:
    assert address == "nowhere"


def consume(pipe: Pipe, address: str) -> None:
    pipe.send(READY)
    pipe.recv()
    pipe.send(Progress(50, time.perf_counter() + 100.0))
    pipe.poll(None)  # members remain until they are stopped


def consume_too_much(pipe: Pipe, address: str) -> None:
    pipe.send(READY)
    pipe.recv()
    pipe.send(Progress(51, time.perf_counter()))
    pipe.poll(None)


async def nothing_left(address: str) -> int:
    return 0


def test_messages_a_second(tmp_path: Path) -> None:
    assert 0.9 < measure(GroupSystem(broker, fill, consume, nothing_left), tmp_path, 100, 2) <= 1.0


def test_a_repeated_message_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GodwitError, match="102 of 100 messages were received, and 0 are not acknowledged"):
        measure(GroupSystem(broker, fill, consume_too_much, nothing_left), tmp_path, 100, 2)


def test_messages_are_received_and_acknowledged_godwit(tmp_path: Path) -> None:
    assert measure(godwit_group(), tmp_path, 300, 2) > 0


SERVER = peers.find("nats-server") or ""


@pytest.mark.skipif(not SERVER, reason="needs the program nats-server")
def test_a_short_real_run(tmp_path: Path) -> None:
    report = groups.run(folder=tmp_path, rounds=1, messages=400, members=2)
    assert [result.name for result in report.results] == ["godwit", "jetstream_pull", "jetstream_push"]
    assert all(result.value for result in report.results)
    (ratio,) = report.ratios
    assert ratio.name == "vs_jetstream"
    assert ratio.value
