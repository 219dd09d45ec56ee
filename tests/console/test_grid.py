"""The table of the console in a real browser, with replies that arrive when the test lets them."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Page, expect
from tests.console.browser import console_world, needs_chromium, run, until

pytestmark = needs_chromium
MAKE = """async () => {
  const { Grid } = await import("/static/grid.js");
  window.asked = [];
  window.opened = [];
  window.search = "";
  window.grid = new Grid({
    label: "Rows",
    columns: [{ title: "Row", width: "200px", cell: (row) => row.name }],
    key: (row) => row.name,
    fetch: () => new Promise((resolve, reject) => asked.push({ search, resolve, reject })),
    onopen: (row) => opened.push(row.name),
    empty: "nothing",
  });
  document.body.replaceChildren(grid.frame);
}"""
ANSWER = """([index, count]) => {
  const rows = Array.from({ length: count }, (_, number) => ({ name: `${asked[index].search} ${number}` }));
  asked[index].resolve({ rows, total: count });
}"""
FAIL = "(index) => asked[index].reject(new Error('too late'))"


async def grid_in(page: Page) -> None:
    await page.evaluate(MAKE)


async def search(page: Page, text: str) -> None:
    """Begin at the top with another search. The reply is still to come."""
    await page.evaluate("(text) => { window.search = text; grid.refresh(true); }", text)


async def settled(page: Page) -> None:
    """Wait until the window has handled all replies that were let go."""
    await page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 0))")


def test_replies_to_an_earlier_search_are_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_world(tmp_path) as world:
            page = await world.open()
            await grid_in(page)
            rows = page.get_by_role("grid", name="Rows").get_by_role("row")
            for text in ("first", "second", "third"):
                await search(page, text)
            assert await page.evaluate("asked.map((one) => one.search)") == ["first", "second", "third"]
            await page.evaluate(ANSWER, [0, 5])  # too late, and before the reply that counts
            await settled(page)
            assert await page.evaluate("[grid.pages.size, grid.total]") == [0, 0]
            await page.evaluate(ANSWER, [2, 3])
            await expect(rows).to_have_count(4)  # with the head
            await page.evaluate(FAIL, 1)  # too late, and after it
            await settled(page)
            await expect(rows).to_have_text(["Row", "third 0", "third 1", "third 2"])
            assert await page.get_by_role("alert").count() == 0

    run(scenario)


def test_the_active_row_does_not_move_to_another_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with console_world(tmp_path) as world:
            page = await world.open()
            await grid_in(page)
            table = page.get_by_role("grid", name="Rows")
            active = page.locator(".grid-row.active")
            await search(page, "old")
            await page.evaluate(ANSWER, [0, 5])
            await expect(table.get_by_role("row")).to_have_count(6)
            await search(page, "new")
            await table.press("ArrowDown")
            await table.press("ArrowDown")
            await expect(active).to_have_text("old 1")  # the rows from before can be used until the new ones arrive
            await page.evaluate(ANSWER, [1, 5])
            await expect(table).to_contain_text("new 1")
            await expect(active).to_have_count(0)
            assert await table.get_attribute("aria-activedescendant") is None
            await table.press("Enter")
            assert await page.evaluate("opened") == []
            await page.evaluate("() => void grid.refresh()")  # the same search again keeps the row
            await table.press("ArrowDown")
            await until(lambda: page.evaluate("asked.length === 3"))
            await page.evaluate(ANSWER, [2, 5])
            await settled(page)
            await expect(active).to_have_text("new 0")

    run(scenario)
