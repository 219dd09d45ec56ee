"""Brokers and clients in one event loop, over real sockets, for the tests of net."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import uvloop
from tests.ports import free_port

from godwit.broker.settings import Settings
from godwit.impairment import ImpairedLink, LinkSettings
from godwit.net.client import AsyncClient, connect
from godwit.net.loop import LoopThread
from godwit.net.relay import Direction, Impairment, Relay
from godwit.net.service import Service
from godwit.server.configuration import Configuration
from godwit.transport.events import Address

DEADLINE_S = 120.0
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
both_loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])


def run(
    test: Callable[[], Awaitable[None]],
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
    *,
    deadline_s: float = DEADLINE_S,
) -> None:
    """Runs a test, which has to end in time."""

    async def main() -> None:
        async with asyncio.timeout(deadline_s):
            await test()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def spawn(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process that is killed when the test ends, also after a failure.

    uvloop waits for its processes when it is closed, so that a failed test would hang.
    """
    process = await asyncio.create_subprocess_exec(*command, **options)
    test = asyncio.current_task()
    assert test is not None
    test.add_done_callback(partial(_kill_left, process))
    return process


def _kill_left(process: asyncio.subprocess.Process, _: object) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()


class Notices:
    """Remembers what a broker tells, and lets a test wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, Any]]] = []
        self._changed = asyncio.Event()

    def write(self, kind: str, text: str, fields: dict[str, Any]) -> None:
        self.seen.append((kind, text, fields))
        self._changed.set()

    def texts(self, kind: str) -> list[str]:
        return [text for found, text, _ in self.seen if found == kind]

    async def until(self, kind: str, count: int = 1) -> list[str]:
        """Wait until `count` lines of a kind were written."""
        while len(self.texts(kind)) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.texts(kind)


def configuration(*listen: str, **settings: Any) -> Configuration:
    return Configuration(listen=list(listen or ("127.0.0.1:0",)), settings=Settings(**settings))


def service(**settings: Any) -> Service:
    """A broker on a free port, which no other program takes while it is restarted; `async with` it."""
    return Service(configuration(f"127.0.0.1:{free_port()}", **settings))


async def restarted(old: Service) -> Service:
    """Another broker at the same address, with an empty log."""
    await old.stop()
    listen = [url.removeprefix("udp://") for url in old.urls]
    new = Service(replace(old.configuration, listen=listen))
    await new.start()
    return new


@asynccontextmanager
async def broker_and_client(name: str | None = None, **settings: Any) -> AsyncIterator[tuple[Service, AsyncClient]]:
    async with service(**settings) as running, connect(running.urls[0], name=name) as client:
        yield running, client


@asynccontextmanager
async def lossy(target: Address, *, seed: int, **settings: Any) -> AsyncIterator[Relay]:
    """A bad way to the target."""
    seeds = random.Random(seed)

    def impair(direction: Direction, client: Address) -> Impairment:
        return ImpairedLink(LinkSettings(**settings), random.Random(seeds.randrange(2**32)))

    async with Relay.open(("127.0.0.1", 0), target, impair=impair) as relay:
        yield relay


async def turns(count: int = 3) -> None:
    """Lets everything happen that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


@contextmanager
def broker_in_thread(**settings: Any) -> Iterator[str]:
    """Run a broker for programs without an event loop, and yield its URL."""
    thread = LoopThread("broker")

    async def start() -> Service:
        running = service(**settings)
        await running.start()
        return running

    running = thread.call(start(), DEADLINE_S)
    try:
        yield running.urls[0]
    finally:
        thread.call(running.stop(), DEADLINE_S)
        thread.stop()
