"""Clients that flood, stall or lie hurt no other, and cost the broker bounded memory."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.system.hostile import PAYLOAD_BYTES
from tests.system.stage import MIB, Broker, Memory, Stage, Worker, needs_linux, processor_s, run

SEED = 20_274
RING_BYTES = 8 * MIB
CONFIGURATION = f"""
[limits]
ring_bytes = {RING_BYTES}
client_memory_bytes = 1048576
hold_back_s = 1
"""
MOST_BYTES = 120 * MIB
"""A broker without clients has about 45; then the ring, and a window or two for each connection."""
HONEST = 2
SHORT, LONG = 1_000, 10_000
ENOUGH = {
    # what a test sees at least of each attack while it goes on
    "messages": 4 * RING_BYTES // PAYLOAD_BYTES,
    "requests": 10_000,
    "garbage": 5_000,
    "hellos": 5_000,
    "stalling": 0,
    "freezing": 0,
    "lies": 15,
}
ATTACKS: dict[str, list[str]] = {
    "messages": ["messages"],
    "requests": ["requests"],
    "garbage": ["garbage"],
    "hellos": ["hellos"],
    "stalling": ["stalling", "freezing", "messages"],
    "lies": ["lies", "lies"],
    "all at once": list(ENOUGH),
}


async def attacker(stage: Stage, broker: Broker, kind: str, seed: int) -> Worker:
    """One that waits for the word to begin."""
    shared: dict[str, Any] = {"broker": broker.address}
    name = f"{kind} {seed}"
    if kind in ("stalling", "freezing"):
        return await stage.worker("stall", name, filters=["#"], **shared)
    if kind == "lies":
        return await stage.worker("lie", name, seed=seed, enough=ENOUGH[kind], **shared)
    return await stage.worker("flood", name, kind=kind, seed=seed, enough=ENOUGH[kind], **shared)


@needs_linux
@pytest.mark.parametrize(
    ("attack", "messages"),
    [("all at once", SHORT), *[pytest.param(attack, LONG, marks=pytest.mark.soak) for attack in ATTACKS]],
)
def test_honest_clients_are_not_hurt(tmp_path: Path, attack: str, messages: int) -> None:
    configuration = tmp_path / "broker.toml"
    configuration.write_text(CONFIGURATION, encoding="utf-8")
    print(f"seed {SEED}")

    async def test() -> None:
        async with Stage() as stage:
            broker = await stage.broker("--config", str(configuration))
            shared: dict[str, Any] = {"broker": broker.address, "seed": SEED}
            subscribers = [
                await stage.worker("subscribe", f"sub{number}", filters=["honest/#"], **shared)
                for number in range(HONEST)
            ]
            publishers = [
                await stage.worker("publish", f"pub{number}", topic=f"honest/{number}", interval_s=0.01, **shared)
                for number in range(HONEST)
            ]
            kinds = ATTACKS[attack]
            hostile = [await attacker(stage, broker, kind, SEED + number) for number, kind in enumerate(kinds)]
            for subscriber in subscribers:
                await subscriber.hear("subscribed")
            for worker in (*publishers, *hostile):
                await worker.hear("ready")
            for kind, worker in zip(kinds, hostile, strict=True):
                worker.tell("begin")
                await worker.hear("begun")
                if kind == "freezing":
                    worker.signal(signal.SIGSTOP)  # does not even read its socket any more

            began = time.monotonic()
            for publisher in publishers:
                publisher.tell(f"send {messages}")
            for subscriber in subscribers:
                subscriber.tell(f"until {json.dumps({f'honest/{n}': messages for n in range(HONEST)})}")
            for subscriber in subscribers:
                word = await subscriber.hear("complete", within_s=240)
                assert (word["received"], word["repeats"]) == (HONEST * messages, 0)
                assert subscriber.heard("gap") == []
            for publisher in publishers:
                assert (await publisher.hear("confirmed"))["reached"] >= HONEST
            print(f"{attack}: {HONEST} x {messages} messages to {HONEST} in {time.monotonic() - began:.1f} s")
            for kind, worker in zip(kinds, hostile, strict=True):
                if ENOUGH[kind]:
                    await worker.hear("enough", within_s=240)
            print(f"{attack}: all of it in {time.monotonic() - began:.1f} s")
            memory = Memory.of(broker)
            print(f"broker: {memory}, {processor_s(broker):.1f} s of the processor")
            assert not _offline([*subscribers, *publishers])
            assert memory.peak_bytes < MOST_BYTES
            for kind, worker in zip(kinds, hostile, strict=True):
                worker.signal(signal.SIGCONT)
                worker.tell("stop")
                if kind == "lies":
                    print(await worker.hear("lied"))
            await _is_well(stage, broker)

    run(test, within_s=300)


def _offline(workers: list[Worker]) -> list[dict[str, Any]]:
    return [word for worker in workers for word in worker.heard("state") if word["state"] != "online"]


async def _is_well(stage: Stage, broker: Broker) -> None:
    """Newcomers are served as ever, nothing went wrong inside, and it stops as it should."""
    ping = await stage.godwit("ping", "--broker", broker.address, "--count", "3", "--interval", "0")
    assert await ping.ended() == 0, ping.said()
    await broker.stop()
    assert not [line for line in broker.lines if "Traceback" in line or "Error" in line]
