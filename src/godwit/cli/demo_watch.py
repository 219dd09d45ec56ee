"""The process of `godwit demo` that subscribes: takes every message, checks it, and reports."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, Final

from godwit.cli.demo_check import PREFIX, Watch
from godwit.cli.demo_processes import Line, run_child

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient

REPORT_S: Final = 0.1
FILTER: Final = f"{PREFIX}/+/temperature"


def main(pipe: Pipe, broker: str) -> None:
    """Of the process: reports once it is subscribed, then ten times a second, until nobody listens any more."""
    run_child(pipe, lambda line: work(line, broker))


async def work(line: Line, broker: str) -> None:
    from godwit.net.client import connect

    watch = Watch()
    async with connect(broker, name="display") as client:

        def on_gap(count: int | None) -> None:
            watch.missed += 1 if count is None else count

        async with client.subscribe(FILTER, on_gap=on_gap) as messages:

            async def take() -> None:
                async for batch in messages.batches():
                    watch.take(batch, time.time_ns() // 1000)

            taking = asyncio.create_task(take())
            late: asyncio.Task[None] | None = None
            try:
                while True:
                    line.say(watch.report(time.monotonic()))
                    await asyncio.sleep(REPORT_S)
                    if late is None and line.has_heard("late"):
                        late = asyncio.create_task(_come_late(broker, watch))
                    for task in (taking, late):
                        if task is not None and task.done():
                            task.result()  # raises what ended it
            finally:
                taking.cancel()
                if late is not None:
                    late.cancel()


async def _come_late(broker: str, watch: Watch) -> None:
    """Another subscriber, who comes when all is over: gets the last temperature of each room."""
    from godwit.net.client import connect

    async with connect(broker) as client:
        await _keep(client, watch)


async def _keep(client: AsyncClient, watch: Watch) -> None:
    async with client.subscribe(FILTER) as messages:
        async for message in messages:
            watch.keep(message)
