"""Clients with the addresses of two brokers, killed and stopped in turn: every confirmed message is in a log."""

from __future__ import annotations

import random
import signal
import time
from itertools import zip_longest
from pathlib import Path

import pytest
from tests.system.pour import number_of
from tests.system.stage import Broker, Stage, Worker, needs_linux, run
from tests.system.test_killed_broker import confirmed_more, kill, told

from godwit.store.reader import LogReader
from godwit.wire.batch import payloads_of

SEED = 61_007
QOS = (1, 2)


def counts(data: Path) -> dict[str, bytearray]:
    """Return how often each number is in the log, by topic. There are a hundred million of them after many rounds."""
    found: dict[str, bytearray] = {}
    reader = LogReader.open(data / "log.sqlite")
    try:
        offset, end = 0, reader.next_offset()
        while offset < end:
            piece = reader.read(offset, 8 << 20)
            for _, entry in piece.entries:
                times = found.setdefault(entry.topic, bytearray())
                for number in map(number_of, payloads_of(entry)):
                    if number >= len(times):
                        times.extend(bytes(number + 1 - len(times)))
                    times[number] = min(255, times[number] + 1)
            offset = piece.next_offset
    finally:
        reader.close()
    return found


@needs_linux
@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.soak)])
def test_clients_move_between_two_brokers(tmp_path: Path, rounds: int) -> None:
    rng = random.Random(SEED + rounds)
    print(f"seed {SEED + rounds}")
    folders = [tmp_path / "one", tmp_path / "two"]

    async def test() -> None:
        async with Stage() as stage:
            brokers = [await stage.broker(data=folder) for folder in folders]
            addresses = [broker.address for broker in brokers]
            both = ",".join(addresses)
            publishers = {
                f"poured/pub{number}": await stage.worker("pour", f"pub{number}", broker=both, qos=qos)
                for number, qos in enumerate(QOS)
            }
            for publisher in publishers.values():
                await publisher.hear("ready")
                publisher.tell("go")
            for number in range(rounds):
                await confirmed_more(publishers)
                victim = number % 2
                await lose(stage, brokers, victim, folders, addresses, publishers, is_paused=rng.random() < 0.4)
            for publisher in publishers.values():
                publisher.tell("halt")
            sent = {}
            for topic, publisher in publishers.items():
                word = await publisher.hear("confirmed", within_s=120)
                assert word["confirmed"] == word["sent"]
                sent[topic] = word["sent"]
            for broker in brokers:
                await broker.stop()
            logs = [counts(folder) for folder in folders]
            for qos, (topic, count) in zip(QOS, sent.items(), strict=True):
                there = [log.get(topic, bytearray()) for log in logs]
                assert max(map(len, there)) == count
                lost = [number for number, times in enumerate(zip_longest(*there, fillvalue=0)) if not any(times)]
                assert lost == [], f"{topic}: {len(lost)} are in no log"
                assert all(map(any, there)), "one of the brokers was never used"
                if qos == 2:
                    assert all(max(one) == 1 for one in there), f"{topic}: doubled in one log"

    run(test, within_s=240 + 40 * rounds)


async def lose(
    stage: Stage,
    brokers: list[Broker],
    victim: int,
    folders: list[Path],
    addresses: list[str],
    publishers: dict[str, Worker],
    *,
    is_paused: bool,
) -> None:
    """Kill or stop a broker until all publishers have gone on with the other one, then let it return."""
    begun = time.monotonic()
    if is_paused:
        brokers[victim].signal(signal.SIGSTOP)
    else:
        await kill(brokers[victim])
    await told(publishers)
    await confirmed_more(publishers)
    print(f"broker {victim} {'stopped' if is_paused else 'killed'}: {time.monotonic() - begun:.1f} s until it went on")
    if is_paused:
        brokers[victim].signal(signal.SIGCONT)
    else:
        brokers[victim] = await stage.broker(data=folders[victim], listen=(addresses[victim],))
