"""Thousands of topics and of real clients in one session of the console: rows and replies stay bounded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, WebSocket, expect
from tests.console.browser import PATIENCE_S, World, client_of, console_world, needs_chromium, run, until

pytestmark = needs_chromium
TOPICS = 10_000
MAX_SHOWN = 60
"""Rows that exist in the window, of a table with thousands."""
MAX_PAGE = 100
"""Rows that a table requests at a time."""
MAX_REPLY_BYTES = 200_000
SWARM = """
import sys, time
from godwit_bench.client_swarm import Swarm
port, count, patience_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
with Swarm(port, count, seed=1) as swarm:
    swarm.connect_first(time.monotonic() + patience_s)
    print("ready", flush=True)
    swarm.run_until(lambda: False, time.monotonic() + 10 * patience_s)
"""


class Replies:
    """The replies with rows that a window has received."""

    def __init__(self, page: Page) -> None:
        self.rows: list[int] = []
        self.sizes: list[int] = []
        page.on("websocket", self._watch)

    def _watch(self, socket: WebSocket) -> None:
        socket.on("framereceived", self._add)

    def _add(self, frame: str | bytes) -> None:
        reply: Any = json.loads(frame)
        if isinstance(reply.get("is"), dict) and "rows" in reply["is"]:
            self.rows.append(len(reply["is"]["rows"]))
            self.sizes.append(len(frame))


@asynccontextmanager
async def swarm(world: World, count: int) -> AsyncIterator[None]:
    """Connect clients of the native protocol, each with a name and a subscription, from another process."""
    port = world.address.rpartition(":")[2]
    command = [sys.executable, "-c", SWARM, port, str(count), str(4 * PATIENCE_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            async with client_of(world) as client:

                async def are_online() -> bool:
                    assert process.poll() is None, "the clients have ended"
                    return sum(bool(one.address) for one in await client.clients()) >= count

                await until(are_online, patience_s=4 * PATIENCE_S)
            yield
        finally:
            process.kill()


async def measure(name: str, began: float, grid: Locator, first: str, last: str) -> None:
    """Print how long the first row of a table, further pages and the end take to appear."""
    await expect(grid).to_contain_text(first)
    first_s, began = time.monotonic() - began, time.monotonic()
    for _ in range(9):
        await grid.press("PageDown")
    await expect(grid.get_by_role("row", selected=False).last).to_be_visible()
    page_s, began = time.monotonic() - began, time.monotonic()
    await grid.press("End")
    await expect(grid).to_contain_text(last)
    print(f"{name}: first row {first_s:.2f} s, nine pages {page_s:.2f} s, end {time.monotonic() - began:.2f} s")
    assert await grid.get_by_role("row").count() < MAX_SHOWN


@pytest.mark.parametrize("clients", [500, pytest.param(5_000, marks=pytest.mark.soak)])
def test_thousands_of_topics_and_clients(tmp_path: Path, clients: int) -> None:
    names = [f"site{number // 1000}/device{number:04}/temperature" for number in range(TOPICS)]

    async def scenario() -> None:
        async with (
            console_world(tmp_path / "data", topics=tuple(names), interval_s=2.0) as world,
            swarm(world, clients),
        ):
            page = await world.open("about:blank")
            replies = Replies(page)
            began = time.monotonic()
            await page.goto(f"{world.server.url}/#/topics")
            topics = page.get_by_role("grid", name="Topics")
            await page.get_by_label("Search topics").fill("device")
            await measure("topics", began, topics, "site0/device0000/temperature", "site9/device9999/temperature")
            await expect(topics).to_have_attribute("aria-rowcount", str(TOPICS + 1))
            began = time.monotonic()
            await page.get_by_role("navigation").get_by_role("link", name="Clients").click()
            grid = page.get_by_role("grid", name="Clients")
            await page.get_by_label("Search clients").fill("idle-")
            last = max(f"idle-{number}" for number in range(clients))  # in the order of texts
            await measure("clients", began, grid, "idle-0", last)
            await expect(grid).to_have_attribute("aria-rowcount", str(clients + 1))
            await page.get_by_label("Search clients").fill(f"idle-{clients - 1}")
            await expect(grid.get_by_role("row")).to_have_count(2)
            await grid.get_by_role("row").last.click()
            await expect(page.get_by_role("dialog")).to_contain_text(f"bench/idle/idle-{clients - 1}")
            assert replies.rows, "no table was requested"
            assert max(replies.rows) <= MAX_PAGE
            assert max(replies.sizes) <= MAX_REPLY_BYTES

    run(scenario)
