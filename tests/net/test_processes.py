"""Real processes over loopback, with a relay between them that loses, repeats and reorders datagrams."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.net.running import lossy, run

from godwit.net.address import parse_broker, resolve
from godwit.net.connect import connect
from godwit.net.relay import Relay

PUBLISHERS = 4
SUBSCRIBERS = 4
MESSAGES_EACH = 5000

BROKER = """
import sys
from godwit.net.loop import run
from godwit.net.notices import NoticeWriter
from godwit.net.serve import serve
from godwit.server.configuration import Configuration

run(serve(Configuration(listen=["127.0.0.1:0"]), notices=NoticeWriter(sys.stdout)))
"""

PUBLISHER = """
import asyncio, sys, godwit

async def main(url, number, count):
    async with godwit.connect(url, name=f"publisher-{number}") as client:
        publisher = client.publisher(f"numbers/{number}")
        for n in range(count):
            try:
                publisher.send(b"%d" % n)
            except godwit.BufferFull:
                await publisher.ready()
                publisher.send(b"%d" % n)
            if n % 10 == 0:
                await asyncio.sleep(0)  # many small batches: more for the network to lose
        await publisher.flush()
        print("done", flush=True)

godwit.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""

SUBSCRIBER = """
import json, sys, godwit

async def main(url, count):
    seen = {}
    disorder = 0
    async with godwit.connect(url) as client, client.subscribe("numbers/+") as messages:
        print("ready", flush=True)
        async for message in messages:
            number = int(message.payload)
            expected = seen.get(message.topic, 0)
            if number == expected:
                seen[message.topic] = number + 1
            elif number > expected:
                disorder += 1  # an older one only is a repeat
            if sum(seen.values()) == count:
                break
        print(json.dumps({"seen": seen, "disorder": disorder, "missed": messages.missed}), flush=True)

godwit.run(main(sys.argv[1], int(sys.argv[2])))
"""


class Worker:
    """A Python program in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, program: str, *arguments: object) -> Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, *map(str, arguments), stdout=asyncio.subprocess.PIPE
        )
        return cls(process)

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    async def end(self) -> None:
        assert await self.process.wait() == 0


@asynccontextmanager
async def broker_behind(*, seed: int, loss: float, **settings: float) -> AsyncIterator[tuple[Worker, Relay, str]]:
    """A broker in its own process, and the bad way to it."""
    broker = await Worker.start(BROKER)
    try:
        target = resolve(*parse_broker((await broker.line()).split()[-1]))
        async with lossy(target, seed=seed, loss=loss, **settings) as relay:
            yield broker, relay, f"127.0.0.1:{relay.address[1]}"
    finally:
        broker.process.terminate()
        await broker.process.communicate()


def test_twenty_thousand_messages_from_four_publishers_to_four_subscribers() -> None:
    async def test() -> None:
        async with broker_behind(seed=11, loss=0.1, duplication=0.05, reordering=0.05, delay_s=0.001) as (
            _,
            relay,
            way,
        ):
            total = PUBLISHERS * MESSAGES_EACH
            subscribers = await asyncio.gather(*(Worker.start(SUBSCRIBER, way, total) for _ in range(SUBSCRIBERS)))
            assert [await worker.line() for worker in subscribers] == ["ready"] * SUBSCRIBERS
            publishers = await asyncio.gather(
                *(Worker.start(PUBLISHER, way, number, MESSAGES_EACH) for number in range(PUBLISHERS))
            )
            assert [await worker.line() for worker in publishers] == ["done"] * PUBLISHERS
            for worker in subscribers:
                report = json.loads(await worker.line())
                assert report == {
                    "seen": {f"numbers/{number}": MESSAGES_EACH for number in range(PUBLISHERS)},
                    "disorder": 0,
                    "missed": 0,
                }
            for worker in (*subscribers, *publishers):
                await worker.end()
            assert relay.dropped["to_target impairment"] > 30
            assert relay.dropped["to_client impairment"] > 30

    run(test, deadline_s=120)


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory where Linux tells it")
def test_a_file_of_200_mb_crosses_the_broker_in_bounded_memory(tmp_path: Path) -> None:
    source = tmp_path / "large.bin"
    content = random.Random(1)
    with source.open("wb") as file:
        for _ in range(200):
            file.write(content.randbytes(1_000_000))

    async def test() -> None:
        async with (
            broker_behind(seed=3, loss=0.02, delay_s=0.001) as (broker, _, way),
            connect(way) as sender,
            connect(way) as receiver,
            receiver.receive_files("files", folder=tmp_path / "in") as files,
        ):
            began = time.monotonic()
            sending = asyncio.create_task(sender.send_file("files", source))
            received = await anext(files)
            sent = await sending
            assert (received.size_bytes, received.sha256) == (200_000_000, sent.sha256)
            status = Path(f"/proc/{broker.process.pid}/status").read_text()
            peak_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
            print(f"200 MB in {time.monotonic() - began:.0f} s, the broker's peak: {peak_kib / 1024:.0f} MiB")
            assert peak_kib * 1024 < 200_000_000

    run(test, deadline_s=600)
