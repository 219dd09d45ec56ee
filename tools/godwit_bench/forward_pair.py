"""One publisher, one broker, one subscriber, a process each: how many messages a second come through.

Every system is measured in the same way: the publisher publishes for a while as fast as its library lets it, and then
rests; the subscriber counts the messages that its library hands over, until all are there. What counts is the time
from the first to the last at the subscriber.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Final

import msgspec

from godwit.errors import GodwitError
from godwit_bench.stage import GIVE_UP_S, READY, Stage, hear

MESSAGE_BYTES: Final = 100
DATAGRAM_BYTES: Final = 1400
TOPIC: Final = "bench/topic"
LOOK_S: Final = 0.002
"""How often a subscriber looks at its count: not for each message, which would cost as much as the message."""
PATIENCE_S: Final = 3.0
"""When nothing has come for so long, nothing will."""
BURST: Final = 100
"""So many messages are published between two looks at the clock."""


class Pair(msgspec.Struct, frozen=True):
    """A system under test."""

    broker: Callable[[Stage], str]
    """Starts it and gives its address once it is reachable."""
    publish: Callable[[Pipe, str, float], None]
    """Publishes for so many seconds, says how many messages it were; runs in a process of its own."""
    subscribe: Callable[[Pipe, str], None]
    """Says READY, hears how many will come, says what arrived; runs in a process of its own."""
    may_lose: bool = False
    """It promises no more than at most once. What is lost is not counted, and no reason to fail."""


def measure(pair: Pair, seconds: float) -> float:
    """Messages a second."""
    with Stage() as stage:
        address = pair.broker(stage)
        subscriber = stage.start(pair.subscribe, address)
        hear(subscriber, str)
        published = hear(stage.start(pair.publish, address, seconds), int)
        subscriber.send(published)
        arrived, elapsed_s = hear(subscriber, tuple)
    if arrived != published and not (pair.may_lose and arrived):
        raise GodwitError(f"{published} messages were published, and {arrived} arrived")
    return float(arrived / elapsed_s)


# -- for the publishers -----------------------------------------------------------------------------------------------


def bursts(seconds: float, most: float = float("inf")) -> Iterator[range]:
    """Ranges to publish a message for each number of, until the time is up."""
    sent = 0
    ends = time.perf_counter() + seconds
    while sent < most and time.perf_counter() < ends:
        yield range(BURST)
        sent += BURST


def rest(pipe: Pipe, messages: int) -> None:
    """Says how many it were, and stays: a client that leaves might take the last ones along."""
    pipe.send(messages)
    pipe.poll(GIVE_UP_S)


# -- for the subscribers ----------------------------------------------------------------------------------------------


def counted(pipe: Pipe, count: Callable[[], int], patience_s: float = PATIENCE_S) -> Iterator[float]:
    """Gives how long to pause before it is asked again; at the end it has told how many arrived in which time."""
    pipe.send(READY)
    arrived = 0
    began = ended = heard_at = now = time.perf_counter()
    expected: int | None = None
    while expected is None or (arrived < expected and now < heard_at + patience_s):
        yield LOOK_S
        now = time.perf_counter()
        latest = count()
        if latest != arrived:
            arrived = latest
            ended = heard_at = now
        elif not arrived:
            began = now
        if expected is None and pipe.poll():
            expected = pipe.recv()
            heard_at = now
    pipe.send((arrived, ended - began))


async def count_in_loop(pipe: Pipe, count: Callable[[], int]) -> None:
    for pause_s in counted(pipe, count):
        await asyncio.sleep(pause_s)


def count_in_thread(pipe: Pipe, count: Callable[[], int]) -> None:
    """For a library that calls back from threads of its own."""
    for pause_s in counted(pipe, count):
        time.sleep(pause_s)
