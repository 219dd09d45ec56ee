"""axe-core finds no serious problem on any page, dark or light."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from tests.console.browser import client_of, console_world, needs_chromium, run

pytestmark = needs_chromium
SERIOUS = ("serious", "critical")


@cache
def axe_script(folder: str) -> str | None:
    """Return the source of axe-core from the package registry of Node.js, or None if it is out of reach."""
    if shutil.which("npm") is None:
        return None
    command = ["npm", "pack", "axe-core@4", "--silent"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError):
        return None
    (package,) = Path(folder).glob("axe-core-*.tgz")
    with tarfile.open(package) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


def test_no_serious_problem(tmp_path: Path) -> None:
    script = axe_script(str(tmp_path))
    if script is None:
        pytest.skip("axe-core is missing: npm is not installed, or its registry is out of reach")

    async def scenario() -> None:
        async with console_world(tmp_path / "data") as world, client_of(world, "sensor-1") as client:
            await client.publish("home/room1", b"21.5", retain=True)
            await client.submit("resize", b"x")
            found: dict[str, Any] = {}
            for theme, width in (("light", 1280), ("dark", 390)):
                page = await world.open(width=width, theme=theme, bypass_csp=True)
                await page.evaluate(script)
                for name in ("Overview", "Topics", "Clients", "Jobs", "Log"):
                    await page.get_by_role("navigation").get_by_role("link", name=name).click()
                    await expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
                    if name == "Topics":
                        await page.get_by_role("row").filter(has_text="home").click()
                        await page.get_by_role("row").filter(has_text="room1").click()
                        await expect(page.get_by_role("list", name="Messages")).to_contain_text("21.5")
                    elif name in ("Clients", "Jobs"):
                        text = "sensor-1" if name == "Clients" else "resize"
                        await page.get_by_role("grid").get_by_role("row").filter(has_text=text).click()
                        await expect(page.get_by_role("dialog")).to_be_visible()
                    report = await page.evaluate("axe.run()")
                    found |= {
                        f"{theme} {name} {one['id']}": [node["html"][:200] for node in one["nodes"]]
                        for one in report["violations"]
                        if one["impact"] in SERIOUS
                    }
                    if await page.get_by_role("dialog").count():
                        await page.keyboard.press("Escape")
            assert found == {}

    run(scenario)
