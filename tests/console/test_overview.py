"""The overview, logins and the protection of the console, in Chromium."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import expect
from tests.console.browser import client_of, console_world, needs_chromium, run

from godwit.broker.access import Access, Rule

pytestmark = needs_chromium


def test_the_overview_shows_live_figures(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_world(tmp_path / "data") as world, client_of(world, "sensor-1") as client:
            page = await world.open()
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            clients = page.locator(".tile", has_text="Clients").locator(".value")
            await expect(clients).to_have_text("2")
            chart = page.get_by_role("img", name="Messages:")
            for _ in range(40):
                await client.publish("home/room1", b"21.5")
            await expect(chart).not_to_have_attribute("aria-label", "Messages: in 0/s, out 0/s")
            for title in ("Data", "Commits of the log", "Round trips", "Packets lost", "Size of the log"):
                await expect(page.get_by_role("region", name=title)).to_be_visible()
            async with client_of(world, "sensor-2"):
                await expect(clients).to_have_text("3")
            await expect(clients).to_have_text("2")

    run(scenario)


def test_the_overview_shows_the_nodes_of_a_cluster(tmp_path: Path) -> None:
    """The figures are those of an active node; the browser test has no engine."""
    figures: dict[str, int | str] = {
        "cluster/name": "plant",
        "cluster/node": "one",
        "cluster/epoch": 4,
        "cluster/node/one/state": "active",
        "cluster/node/one/address": "10.0.0.1:50000",
        "cluster/node/one/behind": 0,
        "cluster/node/two/state": "standby",
        "cluster/node/two/behind": 12,
    }

    async def scenario() -> None:
        async with console_world(tmp_path / "data") as world:
            page = await world.open()
            await expect(page.get_by_role("region", name="Messages")).to_be_visible()
            card = page.get_by_role("region", name="Cluster")
            await expect(card).to_be_hidden()
            world.service.server.broker.add_figures(lambda: figures)
            await expect(card.get_by_role("row").filter(has_text="one")).to_contain_text("active")
            await expect(card.get_by_role("row").filter(has_text="two")).to_contain_text("12 records")
            await expect(card.get_by_text("standby", exact=True)).to_be_visible()
            figures["cluster/node/two/problem"] = "its file is not compared with the replicated log yet"
            await expect(card.get_by_text("standby, not ready")).to_be_visible()
            await expect(page.get_by_text("two: its file is not compared with the replicated log yet.")).to_be_visible()
            figures["cluster/node/two/state"] = "away"
            await expect(page.get_by_text("Nodes of the cluster are away")).to_be_visible()
            await expect(card.get_by_role("row").filter(has_text="two")).to_contain_text("away")

    run(scenario)


def test_a_login_has_the_rights_of_that_client(tmp_path: Path) -> None:
    access = Access(
        secrets={"anna": b"right secret", "operator": b"the operator's"},
        rules=(
            Rule(clients=("anna",), allow=frozenset({"subscribe", "publish", "create"}), topics=("home/#",)),
            Rule(clients=("operator",), allow=frozenset({"subscribe", "kick"}), topics=("#", "$sys/#")),
        ),
        allows_anonymous=False,
    )

    async def scenario() -> None:
        async with console_world(tmp_path / "data", access=access) as world:
            page = await world.open()
            await expect(page.get_by_role("heading", name="Log in")).to_be_visible()

            async def log_in(name: str, secret: str) -> None:
                await page.get_by_label("Name").fill(name)
                await page.get_by_label("Secret").fill(secret)
                await page.get_by_role("button", name="Log in").click()

            await log_in("anna", "wrong secret")
            await expect(page.get_by_role("alert")).to_have_text(
                "The broker does not accept this name with this secret."
            )
            await log_in("unknown", "right secret")
            await expect(page.get_by_role("alert")).to_have_text(
                "The broker does not accept this name with this secret."
            )
            await log_in("anna", "right secret")
            await expect(page.get_by_text("Logged in as anna")).to_be_visible()
            await expect(page.get_by_role("alert").filter(has_text="figures of the broker are missing")).to_be_visible()
            await page.get_by_role("button", name="Log out").click()
            await log_in("operator", "the operator's")
            await expect(page.locator(".tile", has_text="Clients").locator(".value")).to_have_text("1")
            (cookie,) = await page.context.cookies()
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")

    run(scenario)
