"""Honest publishers and subscribers: numbered messages whose content follows from a seed, checked one by one."""

from __future__ import annotations

import asyncio
import json
import os
import random

from tests.system.worker import Orders, say, say_state

from godwit.client.message import Message
from godwit.errors import BufferFullError
from godwit.net.client import connect
from godwit.net.publisher import AsyncPublisher
from godwit.net.subscription import AsyncSubscription

SMALL_BYTES = 200
LARGE_BYTES = 6_000
LARGE_SHARE = 0.02
LARGEST_BURST = 30
FLUSH_SHARE = 0.1
PROGRESS_MESSAGES = 100


def body(seed: int, topic: str, number: int) -> bytes:
    """Return the number and then random bytes that depend on the seed. Some payloads need many datagrams."""
    rng = random.Random(f"{seed} {topic} {number}")
    size = LARGE_BYTES if rng.random() < LARGE_SHARE else SMALL_BYTES
    return b"%d " % number + rng.randbytes(rng.randrange(size))


def number_of(payload: bytes) -> int:
    return int(payload.partition(b" ")[0])


# -- publish ----------------------------------------------------------------------------------------------------------


async def publish(
    orders: Orders, *, broker: str, name: str, topic: str, seed: int, qos: int = 1, interval_s: float = 0.0
) -> None:
    """Orders: `send N` publishes N more messages and says `confirmed`; `stop` ends.

    Sent in bursts of seeded length; `interval_s` lies between them.
    """
    rng = random.Random(f"{seed} {topic} bursts")
    sent = 0
    async with connect(broker, name=name, on_state=say_state) as client:
        publisher = client.publisher(topic, qos=qos)
        say("ready", client=client.name)
        while (order := await orders.next()) != "stop":
            upto = sent + int(order.removeprefix("send "))
            say("sending", upto=upto)
            while sent < upto:
                burst = min(rng.randint(1, LARGEST_BURST), upto - sent)
                for number in range(sent, sent + burst):
                    await _send(publisher, body(seed, topic, number))
                sent += burst
                if rng.random() < FLUSH_SHARE:
                    await publisher.flush()
                await asyncio.sleep(interval_s)
            await publisher.flush()
            say("confirmed", sent=sent, reached=publisher.reached)


async def _send(publisher: AsyncPublisher, payload: bytes) -> None:
    while True:
        try:
            publisher.send(payload)
            return
        except BufferFullError:
            await publisher.ready()


# -- subscribe --------------------------------------------------------------------------------------------------------


class Ledger:
    """What came of each topic. A hole, a swap or a wrong byte ends the worker; repeats are counted."""

    def __init__(self, seed: int, log: str | None) -> None:
        self.next: dict[str, int] = {}
        self.received = 0
        self.repeats = 0
        self.wanted: dict[str, int] | None = None
        """When this much of each topic is there, the test is told."""
        self._seed = seed
        self._log = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def take(self, message: Message) -> None:
        topic = message.topic
        number = number_of(message.payload)
        if topic not in self.next:
            # A session that is resumed begins where it was: the test looks at this number.
            say("first", topic=topic, number=number)
            self.next[topic] = number
        expected = self.next[topic]
        if message.payload != body(self._seed, topic, number):
            raise AssertionError(f"{topic} {number}: the bytes are not those that were published")
        if number > expected:
            raise AssertionError(f"{topic}: {number} came where {expected} was due")
        self.received += 1
        self.repeats += number < expected
        self.next[topic] = max(expected, number + 1)
        if self._log is not None:  # in the kernel's hands before the next one is asked for: survives kill -9
            os.write(self._log, b"%d\n" % number)
        if self.received % PROGRESS_MESSAGES == 0:
            self.tell("progress")
        self.look()

    def look(self) -> None:
        if self.wanted is not None and all(self.next.get(topic, 0) >= count for topic, count in self.wanted.items()):
            self.wanted = None
            self.tell("complete")

    def tell(self, word: str) -> None:
        say(word, next=self.next, repeats=self.repeats, received=self.received)


async def subscribe(
    orders: Orders,
    *,
    broker: str,
    name: str | None,
    filters: list[str],
    seed: int,
    log: str | None = None,
    interval_s: float = 0.0,
) -> None:
    """Says `subscribed`, then `first`, `progress` and `gap` as they come. `interval_s` makes it a slow one.

    Orders: `tell` has it say `told`; `until {topic: count, ...}` makes it report `complete` once it has received these;
    `stop` ends it, and the broker keeps its session if it has a name.
    """
    ledger = Ledger(seed, log)
    async with (
        connect(broker, name=name, on_state=say_state) as client,
        client.subscribe(*filters, on_gap=lambda count: say("gap", count=count), keep=True) as messages,
        asyncio.TaskGroup() as group,
    ):
        say("subscribed", client=client.name)
        listening = group.create_task(_listen(messages, ledger, interval_s))
        while (order := await orders.next()) != "stop":
            if order == "tell":
                ledger.tell("told")
            else:
                ledger.wanted = json.loads(order.removeprefix("until "))
                ledger.look()
        listening.cancel()


async def _listen(messages: AsyncSubscription, ledger: Ledger, interval_s: float) -> None:
    async for message in messages:
        ledger.take(message)
        if interval_s:
            await asyncio.sleep(interval_s)
