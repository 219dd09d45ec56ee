"""The pages of the console, in Chromium, with a real broker and real traffic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.async_api import Page, expect
from tests.console.browser import (
    PATIENCE_MS,
    World,
    client_of,
    console_world,
    go,
    needs_chromium,
    run,
    until,
)
from tests.pipeline.lakes import lake_of_0_5_0

import godwit
from godwit.broker.access import Access, Rule
from godwit.errors import KickedError
from godwit.pipeline.datasets import readings

pytestmark = needs_chromium


def test_a_message_is_published_and_seen(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_world(tmp_path / "data") as world, client_of(world, "sensor-1") as client:
            await client.publish("home/kitchen/temperature", {"celsius": 20.5}, retain=True)
            page = await world.open("/#/topics")
            await expect(page.get_by_text("1 topics")).to_be_visible()
            grid = page.get_by_role("grid", name="Topics")
            for level in ("home", "kitchen", "temperature"):
                await grid.get_by_role("row").filter(has_text=level).last.click()
            await expect(page.locator(".retained-value")).to_contain_text('{"celsius":20.5}')
            await expect(page.locator(".last-value")).to_contain_text('{"celsius":20.5}')
            tail = page.get_by_role("list", name="Messages")
            await expect(tail).to_contain_text("retained")
            await expect(grid).to_contain_text('{"celsius":20.5}')  # its last values are watched now

            await client.publish("home/kitchen/temperature", {"celsius": 21.5})
            await expect(tail).to_contain_text('{"celsius":21.5}')
            await expect(grid).to_contain_text('{"celsius":21.5}')  # the last value in the tree
            form = page.get_by_role("form", name="Publish")
            await form.get_by_label("Payload", exact=True).fill('{"celsius": 22.25}')
            await form.get_by_label("Payload is").select_option("json")
            async with client.subscribe("home/kitchen/temperature") as messages:
                await form.get_by_role("button", name="Publish").click()
                message = await anext(aiter(messages))
                while message.retained:
                    message = await anext(aiter(messages))
                assert message.json() == {"celsius": 22.25}
            await expect(form.get_by_role("status")).to_contain_text("Stored.")
            await expect(page.get_by_role("img", name="Values: last 22.3")).to_be_visible()

            await tail.get_by_role("button").filter(has_text="22.25").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_role("button", name="JSON").click()
            await expect(dialog.get_by_label("Payload", exact=True)).to_have_text('{\n  "celsius": 22.25\n}')
            await dialog.get_by_role("button", name="Hexadecimal").click()
            await expect(dialog.get_by_label("Payload", exact=True)).to_contain_text("7b 22 63")
            await dialog.get_by_role("button", name="Close").click()

            # The facts about the topic follow its messages, and names with blanks and commas are one topic.
            await expect(page.locator(".last-value")).to_contain_text("22.25")
            await client.publish("home/kitchen/left, upper shelf", b"17", retain=True)
            await grid.get_by_role("row").filter(has_text="left, upper shelf").click()
            await expect(tail.get_by_role("button").filter(has_text="17")).to_have_count(1)
            await page.get_by_label("Topic filter of the tail").fill("plant/#, home/kitchen/temperature")
            await page.get_by_role("button", name="Follow").click()
            await expect(tail).to_contain_text("retained")

            await page.get_by_role("button", name="Pause").click()
            await client.publish("home/kitchen/temperature", {"celsius": 23})
            await expect(page.get_by_text("Paused, 1 new messages")).to_be_visible()
            await expect(tail.get_by_role("button").filter(has_text="23}")).to_have_count(0)
            await page.get_by_role("button", name="Pause").click()
            await expect(tail.get_by_role("button").filter(has_text="23}")).to_have_count(1)
            await form.get_by_label("Payload is").select_option("hex")
            await form.get_by_label("Payload", exact=True).fill("zz")
            await form.get_by_role("button", name="Publish").click()
            await expect(form.get_by_role("status")).to_contain_text("This is not hexadecimal")

    run(scenario)


def test_a_client_is_kicked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            console_world(tmp_path / "data") as world,
            client_of(world, "victim") as client,
            client.subscribe("home/#", "alerts/#"),
            client.subscribe("other"),
        ):
            page = await world.open("/#/clients")
            await page.get_by_role("columnheader", name="Lag").get_by_role("button").click()
            await expect(page.get_by_role("columnheader", name="Lag")).to_have_attribute("aria-sort", "descending")
            await page.get_by_label("Search clients").fill("victim")
            await page.get_by_role("row").filter(has_text="victim").click()
            dialog = page.get_by_role("dialog", name="victim")
            await expect(dialog).to_contain_text("selective-repeat")
            await expect(dialog.get_by_role("row")).to_have_count(3)
            await dialog.get_by_role("row").filter(has_text="other").get_by_role("button", name="Remove").click()
            confirm = page.get_by_role("dialog", name="Remove this subscription?")
            await confirm.get_by_role("button", name="Remove subscription").click()
            await expect(page.get_by_role("dialog")).to_have_count(0)

            async def is_removed() -> bool:
                async with client_of(world) as other:
                    found = await other.clients()
                return [["alerts/#", "home/#"]] in [one.subscriptions for one in found]

            await until(is_removed)
            since_us = next(one.since_us for one in await client.clients() if one.name == "victim")
            await page.get_by_role("row").filter(has_text="victim").click()
            await page.get_by_role("button", name="Disconnect").click()
            confirm = page.get_by_role("dialog", name="Disconnect this client?")
            await confirm.get_by_role("button", name="Disconnect client").click()

            async def is_back() -> bool:
                found = [one for one in await client.clients() if one.name == "victim"]
                return found[0].since_us > since_us and len(found[0].subscriptions) == 1

            await until(is_back)
            await page.get_by_role("row").filter(has_text="victim").click()
            await page.get_by_role("button", name="Kick client").click()
            confirm = page.get_by_role("dialog", name="Kick this client?")
            await confirm.get_by_role("button", name="Keep").click()
            client.require_open()
            await page.get_by_role("button", name="Kick client").click()
            await confirm.get_by_label("Reason").fill("a test")
            await confirm.get_by_role("button", name="Kick client").click()
            await until(lambda: client.state == "closed")
            with pytest.raises(KickedError, match="a test"):
                client.require_open()
            await expect(page.get_by_text("No client matches.")).to_be_visible()

    run(scenario)


def test_a_job_is_submitted_and_watched(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_world(tmp_path / "data") as world:
            worker = godwit.Worker(world.address, name="anna")
            may_end = asyncio.Event()

            @worker.handles("resize")
            async def resize(task: godwit.Task) -> bytes:
                task.progress(0.5, "half of it")
                await may_end.wait()
                return b"done"

            @worker.handles("break")
            async def break_it(task: godwit.Task) -> bytes:
                raise godwit.TaskFailed("<b>it broke</b>", final=True)

            running = asyncio.create_task(worker.run())
            page = await world.open("/#/jobs")
            await expect(page.get_by_role("region", name="Workers").first).to_contain_text("anna")
            form = page.get_by_role("form", name="Submit a job")
            await form.get_by_label("Kind").fill("resize")
            await form.get_by_label("Payload", exact=True).fill("a picture")
            await form.get_by_role("button", name="Submit").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog).to_contain_text("Progress, 50 %")
            await expect(dialog).to_contain_text("half of it")
            may_end.set()
            await expect(dialog.locator(".job-state")).to_have_text("done")
            await expect(dialog).to_contain_text("The job is done")
            await dialog.get_by_role("button", name="Close").click()

            await form.get_by_label("Kind").fill("break")
            await form.get_by_role("button", name="Submit").click()
            await expect(dialog.locator(".job-state")).to_have_text("failed")
            await expect(dialog).to_contain_text("<b>it broke</b>")
            await dialog.get_by_role("button", name="Retry").click()
            await expect(page.get_by_text("is a repetition of")).to_be_visible()
            await expect(dialog.locator(".job-state")).to_have_text("failed")
            await dialog.get_by_role("button", name="Close").click()

            await form.get_by_label("Kind").fill("unknown-work")
            await form.get_by_role("button", name="Submit").click()
            await expect(dialog.locator(".job-state")).to_have_text("waiting")
            await dialog.get_by_role("button", name="Cancel job").click()
            confirm = page.get_by_role("dialog", name="Cancel this job?")
            await confirm.get_by_role("button", name="Cancel job").click()
            await expect(confirm).to_have_count(0)
            await expect(dialog.locator(".job-state")).to_have_text("cancelled")
            await dialog.get_by_role("button", name="Close").click()
            await expect(page.get_by_role("grid", name="Jobs").get_by_role("row")).to_have_count(5)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(scenario)


def test_the_log_is_replayed_from_a_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_world(tmp_path / "data") as world, client_of(world, "sensor-1") as client:
            for number in range(300):
                await client.publish("home/count", str(number))
            page = await world.open("/#/log")
            next_offset = page.locator(".tile", has_text="Next offset").locator(".value")
            await expect(next_offset).to_have_text("300")
            await expect(page.get_by_text("No rules: messages are kept until the disk is full.")).to_be_visible()
            form = page.get_by_role("form", name="Replay")
            await form.get_by_label("Topic filter").fill("home/#")
            await form.get_by_role("button", name="Replay").click()
            tail = page.get_by_role("list", name="Messages")
            await expect(tail.get_by_role("button").filter(has_text="299")).to_have_count(1)
            await expect(page.get_by_text("Replaying from")).to_be_visible()
            await expect(page.get_by_role("img", name="Values: last 299")).to_be_visible()

    run(scenario)


def test_rights_are_enforced_by_the_broker(tmp_path: Path) -> None:
    rule = Rule(clients=("anna",), allow=frozenset({"subscribe", "publish", "create"}), topics=("home/#",))
    access = Access(secrets={"anna": b"right secret"}, rules=(rule,))

    async def scenario() -> None:
        async with console_world(tmp_path / "data", access=access) as world:
            page = await world.open()  # clients without a name may connect, but do nothing
            await page.get_by_role("button", name="Continue without a name").click()
            await go(page, "Clients")
            await expect(page.get_by_text("needs the right to kick")).to_be_visible()
            await page.get_by_role("button", name="Log in").click()
            await page.get_by_label("Name").fill("anna")
            await page.get_by_label("Secret").fill("right secret")
            await page.get_by_role("button", name="Log in").click()
            await go(page, "Clients")
            await expect(page.get_by_text("needs the right to kick")).to_be_visible()
            await go(page, "Topics")
            form = page.get_by_role("form", name="Publish")
            await form.get_by_label("Topic").fill("secret/plans")
            await form.get_by_role("button", name="Publish").click()
            await expect(form.get_by_role("status")).to_contain_text("anna may not")
            await form.get_by_label("Topic").fill("home/room")
            await form.get_by_role("button", name="Publish").click()
            await expect(form.get_by_role("status")).to_contain_text("Stored.")
            await page.get_by_label("Topic filter of the tail").fill("secret/#")
            await page.get_by_role("button", name="Follow").click()
            await expect(page.get_by_role("region", name="Live tail")).to_contain_text("may not")

    run(scenario)


def test_pages_fit_narrow_screens_and_many_topics(tmp_path: Path) -> None:
    names = [f"site{number // 1000}/device{number}/temperature" for number in range(10_000)]

    async def scenario() -> None:
        lake = lake_of_0_5_0(tmp_path)
        async with console_world(tmp_path / "data", topics=tuple(names), lake=lake.address) as world:
            page = await world.open(width=390, theme="dark")
            navigation = page.get_by_role("navigation")
            for name in ("Overview", "Topics", "Clients", "Jobs", "Log", "Pipeline"):
                await go(page, name)
                width = await page.evaluate("document.documentElement.scrollWidth")
                assert width <= 390, f"{name} is {width} pixels wide"
                assert await page.locator(".side").evaluate("one => one.clientHeight") < 120
                assert await navigation.evaluate("one => one.scrollWidth <= one.clientWidth"), "a link is cut off"
            await go(page, "Topics")
            await expect(page.get_by_text("10,000 topics")).to_be_visible()
            grid = page.get_by_role("grid", name="Topics")
            await page.get_by_label("Search topics").fill("device")
            await expect(grid).to_have_attribute("aria-rowcount", "10001")
            began = asyncio.get_running_loop().time()
            await grid.evaluate("one => { one.scrollTop = one.scrollHeight }")
            await expect(grid).to_contain_text("site9/device9999/temperature")
            print(f"scrolled to the end of 10,000 topics in {asyncio.get_running_loop().time() - began:.2f} s")
            assert await grid.get_by_role("row").count() < 60  # only visible rows exist

    run(scenario)


def test_everything_works_with_the_keyboard(tmp_path: Path) -> None:
    access = Access(
        secrets={"operator": b"the secret"},
        rules=(
            Rule(
                clients=("operator",),
                allow=frozenset({"subscribe", "publish", "create", "kick"}),
                topics=("#", "$sys/#"),
            ),
        ),
        allows_anonymous=False,
    )

    async def scenario() -> None:
        async with console_world(tmp_path / "data", access=access, topics=("home/a", "home/b", "yard/c")) as world:
            page = await world.open()
            keys = page.keyboard
            await expect(page.get_by_label("Name")).to_be_focused()
            await keys.type("operator")
            await keys.press("Tab")
            await keys.type("the secret")
            await keys.press("Enter")
            await expect(page.get_by_text("Logged in as operator")).to_be_visible()
            await press_until(page, "Tab", page.get_by_role("link", name="Topics"))
            await keys.press("Enter")
            await expect(page.get_by_role("main")).to_be_focused()
            grid = page.get_by_role("grid", name="Topics")
            await press_until(page, "Tab", grid)
            await expect(grid).to_contain_text("yard")
            await keys.press("ArrowDown")
            await keys.press("ArrowRight")
            await expect(grid.get_by_role("row")).to_have_count(5)
            await keys.press("ArrowDown")
            await keys.press("ArrowDown")
            await keys.press("Enter")
            await expect(page.get_by_role("form", name="Publish").get_by_label("Topic")).to_have_value("home/b")
            payload = page.get_by_role("form", name="Publish").get_by_label("Payload", exact=True)
            await press_until(page, "Tab", payload)
            await keys.type("typed")
            await press_until(page, "Tab", page.get_by_role("button", name="Publish"))
            await keys.press("Enter")
            tail = page.get_by_role("list", name="Messages")
            await expect(tail).to_contain_text("typed")
            await press_until(page, "Tab", tail.get_by_role("button").first)
            await keys.press("Enter")
            await expect(page.get_by_role("dialog")).to_contain_text("typed")
            await keys.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)
            await expect(tail.get_by_role("button").first).to_be_focused()

    run(scenario)


def test_clients_jobs_and_the_log_work_with_the_keyboard(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_world(tmp_path / "data") as world, client_of(world, "victim") as client:
            await client.publish("home/a", b"before")
            page = await world.open("/#/clients")
            keys = page.keyboard
            grid = page.get_by_role("grid", name="Clients")
            await expect(grid).to_contain_text("victim")
            await press_until(page, "Tab", page.get_by_label("Search clients"))
            await keys.type("victim")
            await expect(grid.get_by_role("row")).to_have_count(2)
            await press_until(page, "Tab", grid)
            await keys.press("ArrowDown")
            await keys.press("Enter")
            await press_until(page, "Tab", page.get_by_role("button", name="Kick client"))
            await keys.press("Enter")
            await press_until(page, "Tab", page.get_by_role("button", name="Keep"))
            await keys.press("Enter")
            await expect(page.get_by_role("button", name="Kick client")).to_be_focused()
            await keys.press("Enter")
            confirm = page.get_by_role("dialog", name="Kick this client?")
            await press_until(page, "Tab", confirm.get_by_role("button", name="Kick client"))
            await keys.press("Enter")
            await until(lambda: client.state == "closed")
            await expect(page.get_by_role("dialog")).to_have_count(0)

            await press_until(page, "Shift+Tab", page.get_by_role("link", name="Jobs"))
            await keys.press("Enter")
            form = page.get_by_role("form", name="Submit a job")
            await press_until(page, "Tab", form.get_by_label("Kind"))
            await keys.type("resize")
            await keys.press("Enter")
            dialog = page.get_by_role("dialog")
            await expect(dialog.locator(".job-state")).to_have_text("waiting")
            await press_until(page, "Tab", dialog.get_by_role("button", name="Cancel job"))
            await keys.press("Enter")
            confirm = page.get_by_role("dialog", name="Cancel this job?")
            await press_until(page, "Tab", confirm.get_by_role("button", name="Cancel job"))
            await keys.press("Enter")
            await expect(confirm).to_have_count(0)
            await expect(dialog.locator(".job-state")).to_have_text("cancelled")
            await keys.press("Escape")
            await expect(dialog).to_have_count(0)

            await press_until(page, "Shift+Tab", page.get_by_role("link", name="Log"))
            await keys.press("Enter")
            await press_until(page, "Tab", page.get_by_role("button", name="Replay"))
            await keys.press("Enter")
            await expect(page.get_by_role("list", name="Messages")).to_contain_text("before")

    run(scenario)


def test_the_pipeline_works_with_the_keyboard(tmp_path: Path) -> None:
    """All parts of the page can be reached; the focus stays where it is while the page reads the tables again."""

    async def scenario() -> None:
        lake = lake_of_0_5_0(tmp_path)
        async with console_world(tmp_path / "data", lake=lake.address) as world:
            page = await world.open()
            keys = page.keyboard
            await press_until(page, "Tab", page.get_by_role("link", name="Pipeline"))
            await keys.press("Enter")
            quarantine = page.get_by_role("region", name="Quarantine", exact=True)
            messages = quarantine.get_by_role("table", name="Messages in quarantine").get_by_role("row")
            await expect(messages).to_have_count(1 + 2)
            names = ("Queries", "Last changes of bronze", "Quarantine by reason", "Messages in quarantine", "Tables")
            for name in names:
                await press_until(page, "Tab", page.get_by_role("region", name=name, exact=True).last)
            reason = quarantine.get_by_role("table", name="Quarantine by reason").get_by_role("button").first
            await press_until(page, "Shift+Tab", reason)
            await keys.press("Enter")
            await expect(reason).to_have_attribute("aria-pressed", "true")
            await expect(reason).to_be_focused()
            await keys.press("Space")
            await expect(reason).to_have_attribute("aria-pressed", "false")

            # A further message comes into quarantine, and the tables are shown anew: the focus is where it was.
            row = lake.table(readings.QUARANTINE).arrow().to_pylist()[0]
            more = pa.Table.from_pylist([{**row, "offset": 120}], readings.QUARANTINE.schema)
            lake.table(readings.QUARANTINE).append_arrow(more, {"test": 1})
            await expect(messages).to_have_count(1 + 3)
            await expect(reason).to_be_focused()

            await press_until(page, "Shift+Tab", quarantine.get_by_role("button", name="Requeue"))
            await keys.press("Enter")
            dialog = page.get_by_role("dialog", name="Decode the quarantine again?")
            await press_until(page, "Tab", dialog.get_by_role("button", name="Keep"))
            await keys.press("Enter")
            await expect(dialog).to_have_count(0)
            await expect(quarantine.get_by_role("button", name="Requeue")).to_be_focused()

    run(scenario)


async def press_until(page: Page, key: str, target: object) -> None:
    """Press a key until the focus is there."""
    for _ in range(60):
        if await target.evaluate("one => one === document.activeElement"):  # type: ignore[attr-defined]
            return
        await page.keyboard.press(key)
    raise AssertionError(f"the focus does not reach {target}")


def test_a_broker_that_goes_away_is_announced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_world(tmp_path / "data") as world:
            page = await world.open("/#/topics")
            await expect(page.get_by_text("There are no topics yet.")).to_be_visible()
            await restart(world, page)

    run(scenario)


async def restart(world: World, page: Page) -> None:
    """Stop the broker, and start it again."""
    from dataclasses import replace

    from godwit.net.service import Service

    address = world.address
    configuration = world.service.configuration
    await world.service.stop()
    banner = page.get_by_role("alert").filter(has_text="The broker does not answer")
    await expect(banner).to_be_visible(timeout=PATIENCE_MS)
    settings = replace(configuration.settings, topics=("after/restart",))
    world.service = Service(replace(configuration, listen=[address], settings=settings))
    await world.service.start()
    try:
        await expect(banner).to_be_hidden(timeout=PATIENCE_MS)
        await expect(page.get_by_role("grid", name="Topics")).to_contain_text("after")
    finally:
        await world.service.stop()


@pytest.mark.java
def test_the_quarantine_is_requeued(tmp_path: Path) -> None:
    """One of two messages moves to silver and its windows after a change of the configuration."""
    lake = lake_of_0_5_0(tmp_path)
    before = lake.table(readings.QUARANTINE).arrow().to_pylist()
    odd = {**before[0], "offset": 120, "payload": b'{"odd": 21.5}', "reason": "no quantity"}
    lake.table(readings.QUARANTINE).append_arrow(pa.Table.from_pylist([odd], readings.QUARANTINE.schema), {"test": 1})

    async def scenario() -> None:
        async with console_world(tmp_path / "data", lake=lake.address) as world:
            page = await world.open("/#/pipeline")
            quarantine = page.get_by_role("region", name="Quarantine", exact=True)
            messages = quarantine.get_by_role("table", name="Messages in quarantine").get_by_role("row")
            await expect(messages).to_have_count(1 + 3)
            await expect(messages.filter(has_text="odd")).to_contain_text("no quantity")
            outcome = quarantine.get_by_role("status")

            async def requeue() -> None:
                await quarantine.get_by_role("button", name="Requeue").click()
                dialog = page.get_by_role("dialog", name="Decode the quarantine again?")
                await dialog.get_by_role("button", name="Decode again").click()
                await expect(dialog).to_have_count(0)

            config = Path(lake.address) / "pipeline.toml"
            config.write_text("[[pipeline.decoder]]\nfilter = 7\n")
            await requeue()
            await expect(outcome).to_contain_text("Decoding failed.")
            await expect(outcome).to_contain_text("pipeline.toml")
            config.write_text(
                '[[pipeline.decoder]]\nfilter = "home/one"\ndecoder = "json"\nfields = {odd = "temperature"}\n'
            )
            await requeue()
            await expect(quarantine.get_by_role("button", name="Requeue")).to_be_disabled()
            await expect(outcome).to_contain_text("Decoding the quarantine again")
            text = "The quarantine was decoded again. 1 message left quarantine, 2 remain"
            await expect(outcome).to_contain_text(text, timeout=4 * PATIENCE_MS)  # it starts Spark
            await expect(quarantine.get_by_role("button", name="Requeue")).to_be_enabled()
            await expect(messages).to_have_count(1 + 2)
            tables = page.get_by_role("region", name="Tables").get_by_role("row")
            await expect(tables.filter(has_text="silver/readings")).to_contain_text("119")

    run(scenario)
    (found,) = [row for row in lake.table(readings.SPEC).arrow().to_pylist() if row["offset"] == 120]
    assert (found["quantity"], found["value"]) == ("temperature", 21.5)
    assert lake.table(readings.QUARANTINE).arrow().to_pylist() == before


def test_the_tables_and_the_quarantine_of_a_lake(tmp_path: Path) -> None:
    async def scenario() -> None:
        lake = lake_of_0_5_0(tmp_path)
        async with console_world(tmp_path / "data", lake=lake.address) as world:
            page = await world.open("/#/pipeline")
            tables = page.get_by_role("region", name="Tables").get_by_role("row")
            await expect(tables.filter(has_text="bronze/messages")).to_contain_text("120")
            await expect(tables.filter(has_text="silver/readings")).to_contain_text("118")
            await expect(page.get_by_text("The lag is unknown")).to_be_visible()  # this broker has no archive
            await expect(page.get_by_role("img", name="home/one")).to_be_visible()
            quarantine = page.get_by_role("region", name="Quarantine", exact=True)
            reasons = quarantine.get_by_role("table", name="Quarantine by reason").get_by_role("button")
            await expect(reasons).not_to_have_count(0)
            messages = quarantine.get_by_role("table", name="Messages in quarantine").get_by_role("row")
            await expect(messages).to_have_count(3)
            await quarantine.get_by_role("button", name="Requeue").click()
            await page.get_by_role("dialog").get_by_role("button", name="Keep").click()
            await expect(quarantine.get_by_role("status")).to_have_text("")
        async with console_world(tmp_path / "data") as world:
            page = await world.open("/#/pipeline")
            await expect(page.get_by_text("start it with --lake").first).to_be_visible()

    run(scenario)
