"""The documents: no link leads nowhere, and every decision is in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from godwit.broker.jobs.model import Happening

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be linked by, as GitHub makes it."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in LINK.findall(text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = [page for page in sorted(folder.glob("*.md")) if page.name != "README.md"]
    for number, page in enumerate(pages, start=1):
        title = page.read_text(encoding="utf-8").splitlines()[0]
        assert page.name.startswith(f"{number:04d}-")
        assert title.startswith(f"# {number}. ")
        assert f"[{number:04d}]({page.name}) | {title.partition('. ')[2]} |" in index


def test_every_field_of_an_event_of_jobs_is_explained() -> None:
    page = (ROOT / "docs" / "JOBS.md").read_text(encoding="utf-8")
    table = page.partition("| field |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == set(
        Happening.__struct_fields__
    )
