"""axe-core finds no serious problem on any page and in any dialog, dark or light, wide or narrow."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect
from tests.console.browser import World, client_of, console_world, go, needs_chromium, run
from tests.pipeline.lakes import lake_of_0_5_0

from godwit.broker.access import Access, Rule
from godwit.console.server import ConsoleServer

pytestmark = needs_chromium
SERIOUS = ("serious", "critical")
SIZES = [(theme, width) for theme in ("light", "dark") for width in (1280, 390)]
RULE = Rule(
    clients=("operator", "sensor-1"),
    allow=frozenset({"subscribe", "publish", "create", "kick", "submit"}),
    topics=("#", "$sys/#", "$jobs/#"),
)
ACCESS = Access(
    secrets={"operator": b"the secret", "sensor-1": b"another"},
    rules=(RULE,),
    allows_anonymous=False,
)


class Checks:
    """The serious problems that axe-core has found in a window."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: dict[str, list[str]] = {}
        self.count = 0

    async def run(self, name: str) -> None:
        """Check the window as it is."""
        script = (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
        await self.page.evaluate(f"window.axe || {script}")
        report: Any = await self.page.evaluate("axe.run({resultTypes: ['violations'], preload: false})")
        assert report["passes"], "it has checked nothing"
        self.count += 1
        for one in report["violations"]:
            if one["impact"] in SERIOUS:
                self.problems[f"{name}: {one['id']}"] = [node["html"][:200] for node in one["nodes"]]

    async def run_dialog(self, name: str) -> None:
        """Check the dialog that was opened last, and close it."""
        dialogs = self.page.get_by_role("dialog")
        await expect(dialogs.last).to_be_visible()
        count = await dialogs.count()
        await self.run(name)
        await self.page.keyboard.press("Escape")
        await expect(dialogs).to_have_count(count - 1)


async def visit(checks: Checks, world: World) -> None:
    """Log in, and check each page with its dialogs."""
    page = checks.page
    await checks.run("login")
    for secret in ("wrong", "the secret"):
        await page.get_by_label("Name").fill("operator")
        await page.get_by_label("Secret").fill(secret)
        await page.get_by_role("button", name="Log in").click()
        if secret == "wrong":
            await expect(page.get_by_role("alert")).to_contain_text("does not accept")
            await checks.run("refused login")
    await expect(page.get_by_role("img", name="Messages:")).to_be_visible()
    await checks.run("Overview")
    await go(page, "Topics")
    await page.get_by_role("row").filter(has_text="home").click()
    await page.get_by_role("row").filter(has_text="room1").click()
    tail = page.get_by_role("list", name="Messages")
    await expect(tail).to_contain_text("21.5")
    await checks.run("Topics")
    await tail.get_by_role("button").first.click()
    await checks.run_dialog("message")
    await go(page, "Clients")
    await page.get_by_role("grid").get_by_role("row").filter(has_text="sensor-1").click()
    await page.get_by_role("button", name="Kick client").click()
    await checks.run_dialog("kick")
    await checks.run_dialog("client")
    await checks.run("Clients")
    await go(page, "Jobs")
    await page.get_by_role("grid").get_by_role("row").filter(has_text="resize").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Timeline")
    await checks.run_dialog("job")
    await checks.run("Jobs")
    await go(page, "Log")
    await expect(page.get_by_text("No rules: messages are kept")).to_be_visible()
    await checks.run("Log")
    await go(page, "Pipeline")
    await expect(page.get_by_role("img", name="home/one")).to_be_visible()
    await expect(page.get_by_role("table", name="Messages in quarantine")).to_be_visible()
    await checks.run("Pipeline")
    await page.get_by_role("button", name="Requeue").click()
    await checks.run_dialog("requeue")


def test_no_serious_problem(tmp_path: Path) -> None:
    async def scenario() -> None:
        lake = lake_of_0_5_0(tmp_path)
        async with (
            console_world(tmp_path / "data", access=ACCESS, lake=lake.address) as world,
            client_of(world, "sensor-1", secret=b"another") as client,
        ):
            await client.publish("home/room1", b"21.5", retain=True, headers={"site": "7"})
            await client.submit("resize", b"x")
            problems: dict[str, Any] = {}
            for theme, width in SIZES:
                page = await world.open(width=width, theme=theme, bypass_csp=True)
                checks = Checks(page)
                await visit(checks, world)
                assert checks.count == 13
                problems |= {f"{theme} {width} {name}": nodes for name, nodes in checks.problems.items()}
                await page.context.close()
            assert problems == {}

    run(scenario)


def test_no_serious_problem_without_a_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_world(tmp_path / "data") as world:
            lonely = ConsoleServer("127.0.0.1:1")
            await lonely.start("127.0.0.1", 0)
            world.own.append(lonely.url)
            try:
                for theme, width in SIZES:
                    page = await world.open("about:blank", width=width, theme=theme, bypass_csp=True)
                    checks = Checks(page)
                    await page.goto(lonely.url)
                    await expect(page.get_by_role("heading", name="Waiting for the broker")).to_be_visible()
                    await checks.run("waiting")
                    assert checks.problems == {}
                    await page.context.close()
            finally:
                await lonely.stop()
            page = await world.open("/#/topics", bypass_csp=True)
            await expect(page.get_by_text("There are no topics yet.")).to_be_visible()
            await world.service.stop()
            await expect(page.get_by_role("alert").filter(has_text="The broker does not answer")).to_be_visible()
            checks = Checks(page)
            await checks.run("banner")
            assert checks.problems == {}

    run(scenario)
