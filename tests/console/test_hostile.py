"""Hostile texts as topics, names, payloads, headers, jobs and rows of a lake: pages show them and run nothing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from playwright.async_api import Page, expect
from tests.console.browser import World, client_of, console_world, go, needs_chromium, run, until
from tests.pipeline.lakes import NOON, lake_of_0_5_0

import godwit
from godwit.pipeline.datasets import anomalies, readings, windows
from godwit.pipeline.lake import Lake

pytestmark = needs_chromium
SCRIPT = "<script>window.ran=1;alert(1)</script>"
NAMES = [
    SCRIPT,
    "<img src=x onerror=window.ran=1>",
    "\u202eevil\u202c\u2066x\u200b",
    "[bold red]x[/] [link=file:///x]y[/link]",
    "'\"&amp;<b>`${window.ran=1}`",
    "{{constructor.constructor('window.ran=1')()}}",
    "javascript:window.ran=1",
]
"""Texts that are allowed as levels of topics, kinds of work and names of clients."""
ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b31m\r\n\t\x00"
BIG = json.dumps({"big": ["x" * 100] * 10_000, "deep": SCRIPT}).encode()
PAYLOADS = [
    *(text.encode() for text in [*NAMES, ESCAPES]),
    b"\xff\xfe invalid \xc3\x28",
    BIG,
    b"[" * 5_000,
    b'{"__proto__": 1, "constructor": 2, "<b>": 3}',
]
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that a page shows by their numbers."""
INJECTED = (
    "script:not([src='/static/console.js']), iframe, object, embed, img:not([src='/static/icon.svg']), a[href^='j']"
)
ATTRIBUTES = (
    "[...document.querySelectorAll('*')].flatMap(one => one.getAttributeNames()).filter(name => /^on/.test(name))"
)


def seen(text: str) -> str:
    """Return a text as pages show it."""
    return HIDDEN.sub(lambda match: f"{ord(match[0]):04X}", text)


def hostile_lake(folder: Path) -> Lake:
    """Return a lake with such texts in the quarantine, and in a series with an anomaly."""
    lake = lake_of_0_5_0(folder)

    def add(spec: Any, rows: list[dict[str, Any]]) -> None:
        lake.table(spec).append_arrow(pa.Table.from_pylist(rows, spec.schema), {"test": 1})

    (first, *_) = lake.table(readings.QUARANTINE).arrow().to_pylist()
    add(
        readings.QUARANTINE,
        [
            {**first, "offset": 1000 + place, "topic": f"q/{text}", "publisher": text, "reason": text,
             "detail": text + ESCAPES, "payload": PAYLOADS[place % len(PAYLOADS)]}
            for place, text in enumerate([*NAMES, ESCAPES])
        ],
    )  # fmt: skip
    known = lake.table(windows.SPEC).arrow().to_pylist()
    add(windows.SPEC, [{**row, "topic": text, "unit": text} for row in known for text in NAMES[:3]])
    events = [
        {"broker": known[0]["broker"], "offset": place, "quantity": known[0]["quantity"], "topic": text,
         "event_time": NOON + timedelta(minutes=40), "value": 99.0, "unit": text, "expected": 5.0, "score": 0.9,
         "reason": text, "state": "begin", "peak_time": NOON, "peak_value": 99.0, "name": known[0]["name"]}
        for place, text in enumerate(NAMES[:3])
    ]  # fmt: skip
    add(anomalies.SPEC, events)
    return lake


@asynccontextmanager
async def hostile_worker(world: World) -> AsyncIterator[None]:
    """Run a worker whose name, progress and errors are hostile."""
    worker = godwit.Worker(world.address, name=f"worker {SCRIPT}")
    for kind in NAMES:

        @worker.handles(kind)
        async def fail(task: godwit.Task) -> bytes:
            task.progress(0.5, SCRIPT + ESCAPES)
            raise godwit.TaskFailed(f"{task.kind} {ESCAPES}", final=True)

    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def check(page: Page, *texts: str) -> None:
    """Check that a page shows these texts, has no element or script of them, and no hidden character."""
    body = page.locator("body")
    for text in texts:
        await expect(body).to_contain_text(seen(text))
    assert await page.locator(INJECTED).count() == 0
    assert await page.evaluate(ATTRIBUTES) == []
    assert await page.evaluate("typeof window.ran") == "undefined"
    found = HIDDEN.findall(await page.evaluate("document.body.innerText + document.title"))
    assert found == [], f"hidden characters: {found}"


async def close_dialog(page: Page) -> None:
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def visit_topics(page: Page, client: godwit.AsyncClient) -> None:
    await go(page, "Topics")
    await page.get_by_label("Topic filter of the tail").fill("x/#")
    await page.get_by_role("button", name="Follow").click()

    async def is_followed() -> bool:
        return any(["x/#"] in one.subscriptions for one in await client.clients())

    await until(is_followed)
    for number, payload in enumerate(PAYLOADS):
        headers = {f"h{place} {text}": text for place, text in enumerate(NAMES)}
        content_type = NAMES[number % len(NAMES)]
        topic = f"x/{NAMES[number % len(NAMES)]}"
        await client.publish(topic, payload, retain=True, headers=headers, content_type=content_type)
    tail = page.get_by_role("list", name="Messages")
    await expect(tail.get_by_role("button")).to_have_count(len(PAYLOADS))
    await check(page, *(f"x/{text}" for text in NAMES), "001B[31mred001B]0;title0007", "ff fe 20 69")
    for form in ("json", "hex", "text"):
        await page.get_by_label("Payload as").select_option(form)
        await check(page, f"x/{SCRIPT}")
    for place in range(len(PAYLOADS)):
        await tail.get_by_role("button").nth(place).click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text(seen(f"h2 {NAMES[2]}"))
        for form in ("JSON", "Hexadecimal", "Text"):
            await dialog.get_by_role("button", name=form).click()
        await expect(dialog.get_by_label("Payload", exact=True)).not_to_have_text("…")
        await check(page)
        await close_dialog(page)
    await page.get_by_label("Number to draw").select_option(index=0)
    await page.get_by_label("Search topics").fill("x/")
    grid = page.get_by_role("grid", name="Topics")
    await expect(grid.get_by_role("row")).to_have_count(1 + len(NAMES))
    await check(page, *NAMES)
    for text in NAMES:
        await grid.get_by_role("row").filter(has_text=seen(f"x/{text}")).click()
        await expect(page.get_by_role("heading", name=seen(f"x/{text}"))).to_be_visible()
        await check(page)


async def visit_clients(page: Page) -> None:
    await go(page, "Clients")
    for text in NAMES:
        await page.get_by_label("Search clients").fill(text)
        await page.get_by_role("grid").get_by_role("row").filter(has_text=seen(f"c {text}")).click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text(seen(f"s/{text}"))
        await check(page, f"c {text}")
        await close_dialog(page)
    await page.get_by_role("grid").get_by_role("row").last.click()
    await page.get_by_role("button", name="Disconnect").click()
    await page.get_by_label("Reason").fill(SCRIPT)
    await check(page, f"c {NAMES[-1]}")
    await page.get_by_role("button", name="Disconnect client").click()
    await expect(page.locator(".toast")).to_contain_text("was disconnected")
    await check(page)


async def visit_jobs(page: Page, client: godwit.AsyncClient) -> None:
    jobs = [await client.submit(kind, ESCAPES.encode()) for kind in NAMES]
    for one in jobs:

        async def has_failed(number: int = one.number) -> bool:
            return (await client.job_info(number))[0].state == "failed"

        await until(has_failed)
    await go(page, "Jobs")
    grid = page.get_by_role("grid", name="Jobs")
    await expect(grid.get_by_role("row")).to_have_count(1 + len(NAMES))
    await check(page, *NAMES, f"worker {SCRIPT}")
    for text in NAMES:
        await grid.get_by_role("row").filter(has_text=seen(text)).click()
        await expect(page.get_by_role("dialog")).to_contain_text(seen(f"{text} \x1b[31mred"))
        await check(page)
        await close_dialog(page)
    form = page.get_by_role("form", name="Submit a job")
    await form.get_by_label("Kind").fill(f"{SCRIPT}#")
    await form.get_by_role("button", name="Submit").click()
    await expect(form.get_by_role("status")).to_contain_text("wildcard")
    await check(page)


async def visit_pipeline(page: Page) -> None:
    await go(page, "Pipeline")
    quarantine = page.get_by_role("region", name="Quarantine", exact=True)
    for text in [*NAMES, ESCAPES]:
        await expect(quarantine).to_contain_text(seen(text).replace("\n", "000A").replace("\t", "0009"))
    for text in NAMES[:3]:
        await expect(page.get_by_role("region", name=seen(text))).to_contain_text("1 anomalies, marked")
    await check(page)
    await quarantine.get_by_role("button", name=SCRIPT).click()
    await expect(quarantine.get_by_role("table", name="Messages in quarantine").get_by_role("row")).to_have_count(2)
    await check(page)


def test_every_page_shows_hostile_texts_and_runs_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        lake = hostile_lake(tmp_path)
        async with (
            console_world(tmp_path / "data", lake=lake.address) as world,
            hostile_worker(world),
            client_of(world, "publisher") as client,
        ):
            others = [await client_of(world, f"c {text}") for text in NAMES]
            opened = [other.subscribe(f"s/{text}") for other, text in zip(others, NAMES, strict=True)]
            for subscription in opened:
                await subscription.__aenter__()
            page = await world.open()
            await expect(page.locator(".tile", has_text="Clients").locator(".value")).to_have_text(re.compile(r"\d"))
            await check(page)
            await visit_topics(page, client)
            await visit_clients(page)
            await visit_jobs(page, client)
            await go(page, "Log")
            await page.get_by_label("Topic filter").fill(f"x/{NAMES[2]}")
            await page.get_by_role("button", name="Replay").click()
            await expect(page.get_by_role("list", name="Messages").get_by_role("button")).not_to_have_count(0)
            await check(page, f"x/{NAMES[2]}")
            await visit_pipeline(page)
            await go(page, "Overview")
            await check(page)
            await page.goto(f"{world.server.url}/#/{SCRIPT}?filter={SCRIPT}&search={SCRIPT}")
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            await check(page)
            for other in others:
                await other.close()

    run(scenario)
