"""Make the pictures of the web console in docs/figures, with a broker, simulated rooms, workers, Spark and Chromium.

python docs/figures/console.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests have the broker, the console and the browser

from playwright.async_api import expect
from tests.console.browser import World, client_of, console_world, until

import godwit
from godwit.cli.house import SECOND_US, sensors
from godwit.console.lake import ConsoleLake
from godwit.console.server import ConsoleServer

ROOMS, SEED, RUN_S = 5, 1, 60.0
SECONDS_PER_SHOT: Final = 3.0
HISTORY_MINUTES: Final = 36 * 60
"""Readings of each room for the page about the pipeline, one a minute until now."""


async def publish(world: World) -> None:
    """Publish the temperatures of the rooms, and a few other topics."""
    chance = random.Random(SEED)
    async with client_of(world, "house") as client, client_of(world, "press-4") as press:
        rooms = sensors(ROOMS, SEED, start_us=0)
        while True:
            for room in rooms:
                reading = room.read()
                if reading is not None:
                    payload = json.dumps({"celsius": round(reading.celsius, 2)})
                    await client.publish(f"home/{room.room}/temperature", payload, retain=True)
            await press.publish("plant/press/4/force", str(round(400 + 20 * chance.random(), 1)))
            await press.publish("plant/press/4/state", "running", retain=True)
            await asyncio.sleep(0.1 + 0.2 * chance.random())


async def subscribe(world: World, name: str, *filters: str) -> None:
    async with client_of(world, name) as client, client.subscribe(*filters) as messages:
        async for _ in messages:
            pass


async def work(world: World, name: str) -> None:
    worker = godwit.Worker(world.address, name=name, capacity=2)

    @worker.handles("resize")
    async def resize(task: godwit.Task) -> bytes:
        for step in range(10):
            task.progress(step / 10, f"row {step * 100} of 1000")
            await asyncio.sleep(0.8)
        return b"done"

    await worker.run()


async def submit(world: World) -> None:
    async with client_of(world, "gallery") as client:
        while True:
            await client.submit("resize", b"picture", workers=1)
            await asyncio.sleep(2.0)


async def fill(world: World, lake: Path) -> None:
    """Publish what the rooms measured in the last day and a half, and make tables of it."""
    start_us = time.time_ns() // 1000 - HISTORY_MINUTES * 60 * SECOND_US
    async with client_of(world, "house-history") as client:
        for room in sensors(4, SEED, start_us=start_us, step_us=60 * SECOND_US, faults_per_reading=0.0015):
            publisher = client.publisher(f"home/{room.room}/temperature")
            for _ in range(HISTORY_MINUTES):
                reading = room.read()
                if reading is not None:
                    await publisher.ready()
                    publisher.send(json.dumps({"time_us": reading.time_us, "celsius": round(reading.celsius, 2)}))
            await publisher.flush()
        for number in range(3):
            await client.publish("plant/oven/2", json.dumps({"reading": 180 + number, "mode": "bake"}))
        await client.publish("plant/oven/3", b"\xff\x01\x7f")
    await until(lambda: world.service.archive_url != "")
    command = ("pipeline", "run", "--once", "--archive", world.service.archive_url, "--lake", str(lake))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "godwit", *command)
    if await process.wait():
        raise SystemExit("the pipeline has failed: see above")


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as data:
        async with console_world(Path(data) / "log", interval_s=2.0, archive=True) as world:
            lake = Path(data) / "lake"
            await fill(world, lake)
            tasks = [
                asyncio.create_task(one)
                for one in (
                    publish(world),
                    subscribe(world, "display", "home/#"),
                    subscribe(world, "alarm", "plant/#"),
                    work(world, "anna"),
                    work(world, "bert"),
                    submit(world),
                )
            ]
            await asyncio.sleep(4 * SECONDS_PER_SHOT)
            # A console that begins when everything runs, so that its charts do not begin with zero clients.
            server = ConsoleServer(world.address, lake=ConsoleLake(str(lake), {"archive": world.service.archive_url}))
            await server.start("127.0.0.1", 0)
            world.own.append(server.url)
            page = await world.open("about:blank")
            await page.goto(f"{server.url}/#/overview")
            await asyncio.sleep(RUN_S)
            await page.screenshot(path=folder / "console-overview.png")
            await page.goto(f"{server.url}/#/topics")
            grid = page.get_by_role("grid", name="Topics")
            for level in ("home", "kitchen", "temperature"):
                await grid.get_by_role("row").filter(has_text=level).first.click()
                await asyncio.sleep(0.5)
            await expect(page.get_by_role("list", name="Messages")).to_contain_text("celsius")
            await asyncio.sleep(2 * SECONDS_PER_SHOT)
            await page.screenshot(path=folder / "console-topics.png")
            await page.goto(f"{server.url}/#/jobs")
            await page.mouse.move(0, 0)
            await expect(page.get_by_role("grid", name="Jobs")).to_contain_text("running")
            await asyncio.sleep(SECONDS_PER_SHOT)
            await page.screenshot(path=folder / "console-jobs.png")
            await page.set_viewport_size({"width": 1280, "height": 1500})
            await page.goto(f"{server.url}/#/pipeline")
            await expect(page.get_by_role("table", name="Messages in quarantine")).to_be_visible()
            await asyncio.sleep(SECONDS_PER_SHOT)
            await page.screenshot(path=folder / "console-pipeline.png")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent))
