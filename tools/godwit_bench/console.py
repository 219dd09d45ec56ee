"""`godwit bench console`: the same broker with an open web console and scraped metrics, and alone.

The broker forwards messages of 100 bytes from one publisher to one subscriber, each of the three in a process. Beside
it run the console, and a window that shows its overview and reads the metrics once a second: a program in the place of
a browser, which usually runs on another machine. Rounds are interleaved; the ratio is computed per round.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Final

import aiohttp

from godwit.broker.settings import Settings
from godwit.console.server import ConsoleServer
from godwit.net.loop import collect_garbage_rarely
from godwit.net.loop import run as run_loop
from godwit.net.service import Service
from godwit.server.configuration import Configuration, MetricsSection
from godwit_bench import pairs
from godwit_bench.pairs import DATAGRAM_BYTES, pair_with
from godwit_bench.processes import HOST, READY, ProcessGroup, receive_reply
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio

ALONE: Final = "alone"
WATCHED: Final = "with_console"
SCRAPE_S: Final = 1.0
FIGURES_S: Final = 2.0
"""As `godwit broker --console` sets it."""


def run(*, rounds: int, seconds: float, on_round: Callable[[str], None]) -> Report:
    """Measure both, interleaved, and return the medians."""
    systems = {ALONE: pair_with(_broker), WATCHED: pair_with(_watched_broker)}
    measures: dict[str, Callable[[], float]] = {
        name: partial(pairs.measure, pair, seconds) for name, pair in systems.items()
    }
    figures = interleaved(measures, rounds, on_round)
    unit = f"messages/s of {pairs.MESSAGE_BYTES} B"
    results = [Result(name, statistics.median(values), unit) for name, values in figures.items()]
    ratio = median_ratio(figures[WATCHED], figures[ALONE])
    ratios = [Ratio("with_console_vs_alone", ratio, "the same broker without a console and scrapes")]
    return Report("console", machine(), results, ratios)


def _broker(processes: ProcessGroup) -> str:
    return receive_reply(processes.start(_serve), tuple)[0]  # type: ignore[no-any-return]


def _watched_broker(processes: ProcessGroup) -> str:
    address, metrics = receive_reply(processes.start(_serve), tuple)
    console = receive_reply(processes.start(_serve_console, address), str)
    receive_reply(processes.start(_watch, console, metrics), str)
    return str(address)


def _serve(pipe: Pipe) -> None:
    run_loop(_serve_forever(pipe))


async def _serve_forever(pipe: Pipe) -> None:
    collect_garbage_rarely()  # as `godwit broker` does
    settings = Settings(max_datagram_bytes=DATAGRAM_BYTES, sys_interval_s=FIGURES_S)
    metrics = MetricsSection(listen=f"{HOST}:0")
    async with Service(Configuration(listen=[f"{HOST}:0"], settings=settings, metrics=metrics)) as service:
        pipe.send((f"{HOST}:{service.addresses[0][1]}", service.metrics_url))
        await asyncio.Event().wait()


def _serve_console(pipe: Pipe, broker: str) -> None:
    run_loop(_serve_console_forever(pipe, broker))


async def _serve_console_forever(pipe: Pipe, broker: str) -> None:
    server = ConsoleServer(broker)
    await server.start(HOST, 0)
    pipe.send(server.url)
    await asyncio.Event().wait()


def _watch(pipe: Pipe, console: str, metrics: str) -> None:
    run_loop(_watch_forever(pipe, console, metrics))


async def _watch_forever(pipe: Pipe, console: str, metrics: str) -> None:
    """Show the overview, and read the metrics."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        login = ""
        while login != "none":
            async with browser.get(f"{console}/api/session") as reply:
                session = await reply.json()
            login = session["login"]
            await asyncio.sleep(0.05)
        async with browser.ws_connect(f"{console}/ws", origin=console) as window:
            await window.send_str(session["token"])
            await window.send_json({"id": 1, "do": "overview", "with": {}})
            while "id" not in await window.receive_json():
                pass
            reading = asyncio.create_task(_read(window))
            pipe.send(READY)
            while not reading.done():
                async with browser.get(f"{metrics}/metrics") as reply:
                    await reply.read()
                await asyncio.sleep(SCRAPE_S)


async def _read(window: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in window:
        pass
