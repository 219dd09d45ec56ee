"""One publisher, one broker, one subscriber: a fake system with known figures, and short runs of the real ones.

The tests check that messages arrive, never how fast.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection as Pipe

import pytest

from godwit.errors import GodwitError
from godwit_bench import peers, small_senders
from godwit_bench.pairs import (
    BURST,
    Pair,
    bursts,
    count_in_loop,
    count_in_thread,
    counted,
    godwit_pair,
    godwit_system,
    measure,
    nats_pair,
    report_and_wait,
    zenoh_pair,
)
from godwit_bench.processes import READY, ProcessGroup


def broker(_: ProcessGroup) -> str:
    return "nowhere"


def publish(pipe: Pipe, address: str, seconds: float) -> None:
    assert (address, seconds) == ("nowhere", 0.5)
    report_and_wait(pipe, 1000)


def subscribe(pipe: Pipe, address: str) -> None:
    """Receive a hundred messages at once, the others 0.2 s later."""
    assert address == "nowhere"
    looks: list[float] = []

    def count() -> int:
        looks.append(time.perf_counter())
        return 100 if looks[-1] < looks[0] + 0.2 else 1000

    count_in_thread(pipe, count)


def lose(pipe: Pipe, _: str) -> None:
    for pause_s in counted(pipe, lambda: 999, patience_s=0.2):
        time.sleep(pause_s)


def receive_nothing(pipe: Pipe, _: str) -> None:
    for pause_s in counted(pipe, lambda: 0, patience_s=0.2):
        time.sleep(pause_s)


def measured(pair: Pair, seconds: float) -> tuple[float, float]:
    """Return the rate, and how long the whole measurement took: the rate is that of a part of this time."""
    began = time.perf_counter()
    return measure(pair, seconds), time.perf_counter() - began


def test_the_rate_is_that_of_the_subscriber() -> None:
    rate, took_s = measured(Pair(broker, publish, subscribe), 0.5)
    assert 1000 / took_s <= rate <= 5000  # 1000 messages in 0.2 s, or more on a busy machine


def test_messages_that_do_not_arrive_are_an_error() -> None:
    with pytest.raises(GodwitError, match="1000 messages were published, and 999 arrived"):
        measure(Pair(broker, publish, lose), 0.5)


def test_a_system_that_promises_less_may_lose_some() -> None:
    rate, took_s = measured(Pair(broker, publish, lose, may_lose=True), 0.5)
    assert rate >= 999 / took_s
    with pytest.raises(GodwitError, match="1000 messages were published, and 0 arrived"):
        measure(Pair(broker, publish, receive_nothing, may_lose=True), 0.5)


def test_the_time_is_that_from_the_first_message_to_the_last() -> None:
    here, there = multiprocessing.Pipe()
    counts = iter([0, 1, 9, 10])
    looks = counted(there, lambda: next(counts, 10))
    next(looks)
    assert here.recv() == READY
    here.send(10)
    pauses = [0.2, 0.1, 0.1, 0.0]  # before the looks: nothing, 1, 9, all
    began = time.perf_counter()
    for pause_s in pauses:
        time.sleep(pause_s)
        next(looks, None)
    took_s = time.perf_counter() - began
    arrived, elapsed_s = here.recv()
    assert arrived == 10
    assert 0.2 <= elapsed_s <= took_s - 0.2  # without the first pause


def test_a_subscriber_in_an_event_loop() -> None:
    here, there = multiprocessing.Pipe()
    here.send(3)
    asyncio.run(count_in_loop(there, lambda: 3))
    assert here.recv() == READY
    assert here.recv()[0] == 3


def test_bursts_end_with_the_time_or_the_most() -> None:
    assert sum(len(burst) for burst in bursts(60, most=250)) == 300
    began = time.perf_counter()
    sizes = [len(burst) for burst in bursts(0.05)]
    assert time.perf_counter() - began >= 0.05
    assert set(sizes) == {BURST}


def test_messages_come_through_godwit() -> None:
    rate, took_s = measured(godwit_pair(), 0.1)
    assert rate >= BURST / took_s  # at least one burst arrived, in a part of this time


def test_small_senders_come_through() -> None:
    assert small_senders.measure(godwit_system(), 20, 0.2) > 0


SERVER = peers.find("nats-server")


@pytest.mark.skipif(SERVER is None, reason="needs the program nats-server")
def test_messages_come_through_nats() -> None:
    assert SERVER is not None
    rate, took_s = measured(nats_pair(SERVER), 0.1)
    assert rate >= BURST / took_s


def test_messages_come_through_zenoh() -> None:
    rate, took_s = measured(zenoh_pair(), 0.1)
    assert rate >= BURST / took_s
