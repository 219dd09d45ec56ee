"""The layout of the report in a browser: no number breaks, no tile is alone in its row, nothing is cut off.

The report itself has no scripts. The test adds one to a copy of it, which measures the elements.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.test_demo_view import course
from tests.pipeline.report.lakes import put, window
from tests.pipeline.report.test_page import fill

from godwit.cli.demo_view import write_demo_report
from godwit.pipeline.datasets import windows
from godwit.pipeline.lake import Lake

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MEASURE = """
const tiles = [...document.querySelectorAll('.numbers > div')];
const rows = {};
for (const tile of tiles) (rows[Math.round(tile.getBoundingClientRect().top)] ??= []).push(tile);
const numbers = [...document.querySelectorAll('.numbers b')];
const cut = [...document.querySelectorAll('.plot, .row, .events li, .pair .panel, figcaption b')];
document.body.dataset.found = JSON.stringify({
  width: innerWidth,
  page: document.documentElement.scrollWidth,
  tiles: Object.values(rows).map(row => row.length),
  broken: numbers.filter(b => b.scrollWidth > b.clientWidth + 1 || b.getClientRects().length > 1).length,
  cut: cut.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.className + ': ' + one.textContent),
  result: document.querySelector('.pair').getBoundingClientRect().bottom,
});
"""


def find_browser() -> str | None:
    return os.environ.get("GODWIT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)


def measured(page: Path, width: int, profile: Path) -> dict[str, object]:
    """Return the measurements of a page in a window of this width."""
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium was found: install one, or set GODWIT_BROWSER to its path")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    copy = profile / f"{width}.html"
    copy.write_text(text.replace("</body>", f"<script>{MEASURE}</script></body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    command = [browser, *flags, f"--window-size={width},900", "--dump-dom", copy.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search(r'data-found="([^"]*)"', dom)
    assert found is not None, dom[-2000:]
    answer = json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("width", [500, 800, 1400])
def test_nothing_breaks_at_any_width(tmp_path: Path, width: int) -> None:
    lake = Lake(str(tmp_path / "lake"))
    fill(lake, topic="home/a rather long name of a room/temperature", publisher="a-device-with-a-long-name")
    put(lake, windows.SPEC, [window("home/many", 0, 3600, count=123_456_789)], batch=1)
    page = tmp_path / "page.html"
    write_demo_report(course(messages=12_345_678), page, tmp_path / "lake")
    found = measured(page, width, tmp_path)
    assert found["width"] == width
    assert found["page"] == width, "the page is not wider than the window"
    assert found["broken"] == 0
    assert found["cut"] == []
    tiles = found["tiles"]
    assert tiles in ([6], [3, 3], [2, 2, 2]), "all rows of tiles are full"
    if width == 1400:
        result = found["result"]
        assert isinstance(result, float | int)
        assert result < 900, "the network and the result are on the first screen"
