"""The documents: no link leads nowhere, and every decision is in the index."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from godwit import limits
from godwit.broker.jobs.model import JobEvent
from godwit_tools import site
from tests import module_tables

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be linked by, as GitHub makes it."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@cache
def generated() -> set[Path]:
    """The pages that exist in the built site only."""
    return {ROOT / "docs" / uri for uri in site.generated_pages()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in LINK.findall(text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() and not anchor and target in generated():
            continue
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
        JobEvent.__struct_fields__
    )


def test_the_limits_of_work_are_those_that_hold() -> None:
    page = (ROOT / "docs" / "JOBS.md").read_text(encoding="utf-8")
    rows = page.partition("## Limits\n")[2].partition("\n## ")[0].strip().splitlines()[2:]
    found = {title.strip(): value.strip() for title, value, *_ in (row.strip("|").split("|") for row in rows)}
    mib = limits.MIB
    assert found == {
        "payload of a job, result of a task": f"{limits.MAX_JOB_PAYLOAD_BYTES // mib} MiB each",
        "workers of one job": f"{limits.MAX_TASKS_OF_JOB:,}",
        "kinds of one worker; its capacity": f"{limits.MAX_KINDS}; {limits.MAX_CAPACITY:,} tasks at once",
        "delay, deadline, time limit, delay of retries": f"{limits.MAX_JOB_TIME_MS // 86_400_000} days",
        "retries; the pause between two of them": f"{limits.MAX_RETRIES:,}; {limits.MAX_RETRY_DELAY_S / 60:g} minutes",
        "workers lost with one task": f"{limits.MAX_LOSSES}",
        "a kind; a key": f"{limits.MAX_KIND_BYTES}; {limits.MAX_JOB_KEY_BYTES} bytes",
        "jobs that have not ended": f"{limits.MAX_JOBS:,}",
        "tasks of all jobs": f"{limits.MAX_TASKS:,}",
        "payloads and results of all jobs together": f"{limits.MAX_JOBS_BYTES // mib} MiB",
        "of these, jobs that have not ended, when another is submitted": f"{limits.MAX_SUBMITTED_BYTES // mib} MiB",
        "share of one controller": "half of the room that the others leave",
        "ended jobs": {3600.0: "kept for an hour"}[limits.JOB_KEEP_S],
        "report timeout of a worker": f"{limits.LEASE_S:g} s",
    }


def test_the_tables_of_modules_are_complete() -> None:
    """`python tests/module_tables.py` writes them."""
    page = module_tables.PAGE.read_text(encoding="utf-8")
    assert page == module_tables.with_tables(page)
    layers = {path.parent.name for path in (ROOT / "src" / "godwit").glob("*/*.py")}
    assert layers - {folder.partition("/")[0] for folder in module_tables.folders(page)} == {"cli"}
