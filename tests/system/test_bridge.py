"""A bridge between two broker processes that are killed again and again: once, in order, with publisher and times."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.stage import Broker, Stage, needs_linux, run, until
from tests.system.test_killed_broker import kill

from godwit.store.reader import LogReader
from godwit.wire.batch import Entry, extension_of, payloads_of
from godwit.wire.extension import decode_properties

SEED = 73_019
QOS = (1, 2)


def configure(path: Path, hub: str, **more: str) -> Path:
    lines = [f'{key} = "{value}"' for key, value in {"name": "edge", "hub": hub, "prefix": "site", **more}.items()]
    path.write_text("\n".join(["[[bridge]]", *lines, 'filters = ["poured/#"]', ""]), encoding="utf-8")
    return path


def entries_of(data: Path, topics: str) -> Iterator[tuple[int, Entry]]:
    reader = LogReader.open(data / "log.sqlite")
    try:
        offset, end = 0, reader.next_offset()
        while offset < end:
            piece = reader.read(offset, 8 << 20)
            yield from ((first, entry) for first, entry in piece.entries if entry.topic.startswith(topics))
            offset = piece.next_offset
    finally:
        reader.close()


def sent_messages(edge: Path, topics: str) -> Iterator[tuple[object, ...]]:
    for offset, entry in entries_of(edge, topics):
        for place, payload in enumerate(payloads_of(entry)):
            yield f"site/{entry.topic}", entry.publisher, entry.flags >> 6, entry.flags & 4, offset + place, payload


def copied_messages(hub: Path) -> Iterator[tuple[object, ...]]:
    for _, entry in entries_of(hub, "site/"):
        origin = decode_properties(extension_of(entry)).origin
        assert origin is not None
        for place, payload in enumerate(payloads_of(entry)):
            yield entry.topic, entry.publisher, entry.flags >> 6, entry.flags & 4, origin[1] + place, payload


def check_copies(edge: Path, hub: Path, topics: str = "poured/") -> int:
    """Compare every message of the edge with its copy at the hub, in order. Return their number."""
    count = 0
    for one, other in zip(copied_messages(hub), sent_messages(edge, topics), strict=True):
        assert one == other
        count += 1
    reports = [json.loads(text) for _, entry in entries_of(hub, "$relay/") for text in payloads_of(entry)]
    assert reports == []
    return count


async def status(stage: Stage, broker: Broker) -> dict[str, object]:
    process = await stage.godwit("bridge", "status", "--json", "--broker", broker.address)
    line = await process.line('"name"')
    await process.ended()
    found: dict[str, object] = json.loads(line)
    return found


async def settled(stage: Stage, edge: Broker) -> dict[str, object]:
    """Wait until the hub has everything."""
    while True:
        found = await status(stage, edge)
        if found["state"] == "running" and found["lag"] == 0:
            return found
        await asyncio.sleep(0.2)


@needs_linux
@pytest.mark.parametrize("rounds", [4, pytest.param(200, marks=pytest.mark.soak)])
def test_both_ends_are_killed(tmp_path: Path, rounds: int) -> None:
    rng = random.Random(SEED + rounds)
    print(f"seed {SEED + rounds}")
    edge_data, hub_data = tmp_path / "edge", tmp_path / "hub"

    async def test() -> None:
        async with Stage() as stage:
            hub = await stage.broker(data=hub_data, name="hub")
            config = configure(tmp_path / "edge.toml", hub.address)
            edge = await stage.broker("--config", str(config), data=edge_data, name="edge")
            hub_address, edge_address = hub.address, edge.address
            publishers = {
                f"poured/pub{number}": await stage.worker("pour", f"pub{number}", broker=edge_address, qos=qos)
                for number, qos in enumerate(QOS)
            }
            for publisher in publishers.values():
                await publisher.hear("ready")
                publisher.tell("send 300")
            for number in range(rounds):
                for publisher in publishers.values():
                    await publisher.hear("confirmed", within_s=120)
                    publisher.tell(f"send {rng.choice((1, 300, 3000))}")
                await asyncio.sleep(rng.uniform(0, 0.3))
                if number % 2:
                    await kill(hub)
                    hub = await stage.broker(data=hub_data, listen=(hub_address,), name="hub")
                else:
                    await kill(edge)
                    arguments = ("--config", str(config))
                    edge = await stage.broker(*arguments, data=edge_data, listen=(edge_address,), name="edge")
            for publisher in publishers.values():
                await publisher.hear("confirmed", within_s=120)
            found = await settled(stage, edge)
            assert (found["direction"], found["missed"]) == ("out", 0)
            at_hub = await status(stage, hub)
            assert (at_hub["direction"], at_hub["position"]) == ("in", found["position"])
            await edge.stop()
            await hub.stop()
            print(f"{check_copies(edge_data, hub_data)} messages, {rounds} kills, all copied once and in order")

    run(test, within_s=240 + 20 * rounds)


@needs_linux
@pytest.mark.parametrize("messages", [20_000, pytest.param(5_000_000, marks=pytest.mark.soak)])
def test_a_backlog_is_sent_when_the_hub_appears(tmp_path: Path, messages: int) -> None:
    edge_data, hub_data = tmp_path / "edge", tmp_path / "hub"

    async def test() -> None:
        async with Stage() as stage:
            hub = await stage.broker(data=hub_data, name="hub")
            address = hub.address
            await hub.stop()
            config = configure(tmp_path / "edge.toml", address)
            edge = await stage.broker("--config", str(config), data=edge_data, name="edge")
            publisher = await stage.worker("pour", "pub", broker=edge.address, qos=1)
            await publisher.hear("ready")
            publisher.tell(f"send {messages}")
            await publisher.hear("confirmed", within_s=60 + messages / 5000)
            assert (await status(stage, edge))["state"] == "connecting"
            began = time.monotonic()
            hub = await stage.broker(data=hub_data, listen=(address,), name="hub")
            await settled(stage, edge)
            print(f"{messages} messages in {time.monotonic() - began:.1f} s")
            await edge.stop()
            await hub.stop()
            assert check_copies(edge_data, hub_data) == messages

    run(test, within_s=240 + messages / 1000)


@needs_linux
def test_a_loop_and_a_wrong_secret_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with Stage() as stage:
            one = await stage.broker(data=tmp_path / "one", name="one")
            config = configure(tmp_path / "two.toml", one.address)
            two = await stage.broker("--config", str(config), data=tmp_path / "two", name="two")
            await two.line("bridge edge sends to")
            await one.stop()
            back = configure(tmp_path / "one.toml", two.address, name="back")
            one = await stage.broker(
                "--config", str(back), data=tmp_path / "one", listen=(one.address,), name="one again"
            )
            # Both begin at the same time: one of the two is refused, with the reason.
            await until(
                lambda: any("would bring messages of this broker back" in line for line in (*one.lines, *two.lines)),
                "one bridge of the loop is refused",
            )
            guarded = tmp_path / "guarded.toml"
            guarded.write_text(
                'listen = ["127.0.0.1:0"]\n[access]\nanonymous = false\n[[access.client]]\nname = "edge"\n'
                'secret = "a secret of the hub"\n'
                '[[access.rule]]\nclients = ["edge"]\nallow = ["publish"]\ntopics = ["#"]\n',
                encoding="utf-8",
            )
            hub = await stage.broker("--config", str(guarded), data=tmp_path / "hub", name="guarded hub")
            for number, (secret, text) in enumerate(
                {"another secret": "is refused", "a secret of the hub": "may not relay"}.items()
            ):
                config = configure(tmp_path / f"{number}.toml", hub.address, secret=secret)
                edge = await stage.broker("--config", str(config), data=tmp_path / f"edge{number}", name="edge")
                await edge.line(text)
                edge.signal(signal.SIGKILL)

    run(test, within_s=240)
