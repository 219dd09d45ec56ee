"""A broker is killed again and again while publishers give it all they have: what it confirmed is on the disk."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest
from tests.system.book import Book
from tests.system.stage import Broker, Memory, Stage, Worker, needs_linux, run

SEED = 20_281
QOS = (1, 1, 2, 2)
"""One publisher each."""
LONGEST_LIFE_S = 1.0
"""At full rate; a broker is killed at a random moment of it."""
EARLY_SHARE = 0.25
"""Share of brokers that are killed again while they start: an interrupted recovery must lose nothing either."""
LONGEST_START_S = 0.6


@needs_linux
@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.soak)])
def test_what_was_confirmed_survives_every_kill(tmp_path: Path, rounds: int) -> None:
    rng = random.Random(SEED + rounds)
    print(f"seed {SEED + rounds}")
    data = tmp_path / "data"

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=data)
            address = broker.address
            publishers = {
                f"poured/pub{number}": await stage.worker("pour", f"pub{number}", broker=address, qos=qos)
                for number, qos in enumerate(QOS)
            }
            for publisher in publishers.values():
                await publisher.hear("ready")
                publisher.tell("go")
            book = Book(data / "log.sqlite")
            for number in range(1, rounds + 1):
                await confirmed_more(publishers)
                await asyncio.sleep(rng.uniform(0, LONGEST_LIFE_S))
                await kill(broker)
                confirmed = await told(publishers)
                if rng.random() < EARLY_SHARE:
                    starting = await stage.starting_broker(listen=(address,), name="hasty broker", data=data)
                    await asyncio.sleep(rng.uniform(0, LONGEST_START_S))
                    await kill(starting)
                broker = await stage.broker(data=data, listen=(address,))
                book.read()
                book.check(confirmed)
                print(f"kill {number}: {sum(confirmed.values())} confirmed, {book.offset} in the log, all there")

            for publisher in publishers.values():
                publisher.tell("halt")
            for topic, publisher in publishers.items():
                word = await publisher.hear("confirmed", within_s=120)
                assert word["confirmed"] == word["sent"]
                confirmed[topic] = word["sent"]
            book.read()
            assert book.next == confirmed
            print(f"{book.offset} messages in the log, {book.repeats} of QoS 1 twice; broker: {Memory.of(broker)}")
            await broker.stop()

    run(test, within_s=240 + 20 * rounds)


async def kill(broker: Broker) -> None:
    broker.signal(signal.SIGKILL)
    await broker.ended()


async def told(publishers: dict[str, Worker]) -> dict[str, int]:
    """What each knows to be confirmed."""
    for publisher in publishers.values():
        publisher.tell("tell")
    return {topic: (await publisher.hear("told"))["confirmed"] for topic, publisher in publishers.items()}


async def confirmed_more(publishers: dict[str, Worker]) -> None:
    """Wait until the broker has confirmed a message of every publisher: all are connected and publishing."""
    before = await told(publishers)
    while any(count <= before[topic] for topic, count in (await told(publishers)).items()):
        await asyncio.sleep(0.02)
