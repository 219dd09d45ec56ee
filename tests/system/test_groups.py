"""Members of a consumer group and their broker are killed again and again: no message is lost, each is acknowledged."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.system.sharing import processed
from tests.system.stage import PATIENCE_S, Broker, Process, Stage, Worker, needs_linux, run

from godwit.net.client import AsyncClient, connect
from godwit.wire.control import GroupInfo

SEED = 61_018
GROUP = "billing"
LONGEST_PAUSE_S = 0.5
LAST_MESSAGES = 500


@needs_linux
@pytest.mark.parametrize(
    ("messages", "members", "kills"),
    [(3000, 3, 3), pytest.param(200_000, 8, 60, marks=pytest.mark.soak)],
    ids=["quick", "long"],
)
def test_every_message_is_acknowledged_by_the_group(tmp_path: Path, messages: int, members: int, kills: int) -> None:
    rng = random.Random(SEED + kills)
    print(f"seed {SEED + kills}")
    data, files = tmp_path / "data", tmp_path / "files"
    files.mkdir()

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker(data=data)
            address = broker.address
            publisher = await stage.worker("pour", "pub", broker=address, qos=2)
            await publisher.hear("ready")
            started = 0

            async def member() -> Worker:
                nonlocal started
                started += 1
                name = f"member-{started}"
                found = await stage.worker(
                    "share", name, broker=address, group=GROUP, filter="poured/#", path=str(files / name)
                )
                await found.hear("ready", within_s=PATIENCE_S)
                return found

            crew = [await member() for _ in range(members)]
            for number in range(kills):
                publisher.tell(f"send {messages // kills}")
                await asyncio.sleep(rng.uniform(0, LONGEST_PAUSE_S))
                if number % 3 == 2:
                    await kill(broker)
                    broker = await stage.broker(data=data, listen=(address,))
                else:
                    victim = rng.randrange(len(crew))
                    await kill(crew[victim])
                    crew[victim] = await member()
                await publisher.hear("confirmed", within_s=120)
            sent = messages // kills * kills
            async with connect(address) as client:
                await acknowledged(client, sent, members)
            found = Counter(processed(files))
            assert set(found) == set(range(sent))
            repeats = sum(found.values()) - sent
            # Nothing is killed from here on: then each message is processed once.
            publisher.tell(f"send {LAST_MESSAGES}")
            await publisher.hear("confirmed", within_s=120)
            async with connect(address) as client:
                info = await acknowledged(client, sent + LAST_MESSAGES, members)
            assert info.missed == 0
            again = Counter(processed(files)) - found
            assert again == Counter(range(sent, sent + LAST_MESSAGES))
            for one in crew:
                one.tell("stop")
                await one.hear("left", within_s=PATIENCE_S)
            print(f"{sent} messages, {started - members} members and {kills // 3} brokers killed, {repeats} repeats")
            await broker.stop()

    run(test, within_s=240 + 10 * kills)


async def acknowledged(client: AsyncClient, end: int, members: int) -> GroupInfo:
    """Wait until the group has acknowledged everything below an offset, and its members are connected.

    Members that were killed may be noticed late, and others connect again after the broker was.
    """
    ends = time.monotonic() + 180
    while True:
        (info,) = await client.groups()
        if info.position == end and not info.in_flight and info.member_count == members:
            return info
        assert time.monotonic() < ends, f"the group has not acknowledged all up to {end}: {info}"
        await asyncio.sleep(0.05)


async def kill(process: Process | Broker) -> None:
    process.signal(signal.SIGKILL)
    await process.ended()
