"""The documentation site: it builds without a warning, needs no network, and has all pages that the code makes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import ROOT

from godwit.cli.main import COMMANDS, load_own_command
from godwit.errors import Code
from godwit_tools import command_reference, configuration_reference, error_pages, site

FIGURES = ROOT / "docs" / "figures"
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
"""Elements that make a browser load something."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    return folder


class Loads(HTMLParser):
    """Collects the addresses that a page loads by itself, and the classes of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.classes.update((found.get("class") or "").split())
        if address := found.get(LOADED.get(tag, "")):
            self.addresses.add(address)


def test_no_page_loads_anything_from_another_host(built: Path) -> None:
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        loads = Loads(page.read_text(encoding="utf-8"))
        assert loads.addresses
        for address in loads.addresses:
            assert "//" not in address, (page, address)
            if page.name != "404.html":  # its links are those of a server's root
                assert (page.parent / address.partition("#")[0].partition("?")[0]).exists(), (page, address)
        assert "mermaid" not in loads.classes, page  # the theme would load a script to draw it


def test_no_style_sheet_loads_anything_from_another_host(built: Path) -> None:
    sheets = sorted(built.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", text), sheet


def test_an_address_of_another_host_is_found() -> None:
    found = Loads("<script src='https://example.com/a.js'></script><a href='https://example.com'>a link</a>")
    assert found.addresses == {"https://example.com/a.js"}


def test_search_works_from_files(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"tutorial.html", "errors/NOT_ALLOWED.html", "reference/command-line.html"} <= places
    script = (built / "search" / "search_index.js").read_text(encoding="utf-8")
    assert script.startswith("var __index = {")  # for pages that were opened from a folder
    assert "assets/iframe-worker.js" in Loads((built / "index.html").read_text(encoding="utf-8")).addresses


def test_every_example_has_a_page(built: Path) -> None:
    for example in (ROOT / "examples").glob("*.py"):
        assert (built / "examples" / f"{example.name}.html").is_file()


def test_programs_that_draw_figures_are_not_in_the_site(built: Path) -> None:
    assert not [path for path in built.rglob("*.py") if path.is_file()]


# -- pages made from the code -----------------------------------------------------------------------------------------


def test_the_reference_has_every_command_and_option() -> None:
    page = command_reference.page()

    def check(command: Any, name: str) -> None:
        assert re.search(rf"^#+ {name}$", page, re.MULTILINE), name
        for parameter in command.params:
            for option in getattr(parameter, "opts", ()):
                assert option == "--help" or not option.startswith("--") or option in page, (name, option)
        for subname, subcommand in getattr(command, "commands", {}).items():
            if not subcommand.hidden:
                check(subcommand, f"{name} {subname}")

    for name in COMMANDS:
        check(load_own_command(name), f"godwit {name}")


def test_every_key_of_the_configuration_has_a_meaning() -> None:
    """Add a comment to the key in examples/broker.toml."""
    texts = configuration_reference.meanings(configuration_reference.EXAMPLE.read_text(encoding="utf-8"))
    assert {key for key in configuration_reference.key_names() if not texts.get(key)} == set()


def test_meanings_are_comments_behind_or_above_a_key() -> None:
    text = (
        '# Whole\n# table.\n[log]\n# Above.\ndata = "a # b"\nmax_bytes = 1  # behind\n\n# Both.\nother = 2 # of them\n'
    )
    found = configuration_reference.meanings(text)
    assert (found["log"], found["log.data"], found["log.other"]) == ("Whole table.", "Above", "Both; of them")


def test_every_code_and_every_exception_is_explained() -> None:
    assert set(error_pages.CODES) == set(Code)
    assert set(error_pages.EXCEPTIONS) == {kind.__name__ for kind in error_pages.exceptions()}
    pages = error_pages.pages()
    assert len(pages) == 1 + len(Code) + len(error_pages.exceptions())
    assert "does not reconnect" in pages["errors/KICKED.md"]
    assert "reconnects by itself" in pages["errors/SHUTDOWN.md"]
    assert "[`AccessError`](AccessError.md)" in pages["errors/NOT_ALLOWED.md"]


def test_links_to_files_become_links_to_pages() -> None:
    text = "[a](../examples/publish.py) [b](GUIDE.md#errors) [c](#x) [d](https://example.com)\n```\n[e](nowhere)\n```\n"
    assert site.with_site_links(text, "docs/SPARK.md", "SPARK.md") == text.replace(
        "../examples/publish.py", "examples/publish.py.md"
    )
    changed = site.with_site_links("[a](docs/JOBS.md) [b](README.md)", "CONTRIBUTING.md", "project/contributing.md")
    assert changed == "[a](../JOBS.md) [b](../index.md)"
    with pytest.raises(site.DeadLinkError, match=r"docs/SPARK.md links to ../src/x.py"):
        site.with_site_links("[a](../src/x.py)", "docs/SPARK.md", "SPARK.md")


def test_codes_in_tables_are_links_to_their_pages() -> None:
    row = "| 102 | NOT_ALLOWED | the client may not do this |"
    assert site.with_code_links(row, "PROTOCOL.md") == row.replace(
        "NOT_ALLOWED", "[NOT_ALLOWED](errors/NOT_ALLOWED.md)"
    )
    assert site.with_code_links("| 102 | OTHER | |", "PROTOCOL.md") == "| 102 | OTHER | |"


def test_pipes_in_code_of_tables_are_plain() -> None:
    assert site.with_plain_pipes("| `int \\| None` | a \\| b |\n`c \\| d`") == "| `int | None` | a \\| b |\n`c \\| d`"


def test_diagrams_of_states_become_tables() -> None:
    text = "```mermaid\nstateDiagram-v2\n    [*] --> waiting\n    waiting --> done: result\n    done --> [*]\n```\n"
    assert site.as_tables(text).splitlines()[2:] == ["| | waiting | creation |", "| waiting | done | result |"]


def test_the_pictures_are_those_that_the_code_draws() -> None:
    """`python docs/figures/concepts.py` draws them."""
    spec = importlib.util.spec_from_file_location("concepts", FIGURES / "concepts.py")
    assert spec is not None
    assert spec.loader is not None
    concepts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(concepts)
    for name, draw in concepts.PICTURES.items():
        assert (FIGURES / name).read_text(encoding="utf-8") == draw().svg(), name
