"""Hooks of the documentation site (mkdocs.yml): pages that are made from the code, and links to files outside docs/.

Generated pages exist in the built site only, so they follow the code without a second copy in the repository:

    reference/command-line.md   the commands with their options
    reference/configuration.md  the keys of the broker's configuration
    errors/*.md                 a page for each reason code and each exception
    examples/*.md               the programs and files in examples/
    project/*.md                CONTRIBUTING.md and CHANGELOG.md
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from godwit.errors import Code
from godwit_tools import command_reference, configuration_reference, error_pages

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"
_PROJECT: Final = {"CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md"}
_FENCE: Final = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
_STATES: Final = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LANGUAGES: Final = {".py": "python", ".toml": "toml", ".yml": "yaml"}


class DeadLinkError(Exception):
    """A page links to a file that the site does not have."""


def generated_pages() -> dict[str, str]:
    """Return the text of each generated page by its path in the site, links as in the built site."""
    pages = {
        "reference/command-line.md": command_reference.page(),
        "reference/configuration.md": configuration_reference.page(),
        **error_pages.pages(),
        **_example_pages(),
    }
    for name, uri in _PROJECT.items():
        pages[uri] = with_site_links((ROOT / name).read_text(encoding="utf-8"), name, uri)
    return pages


def site_uri(path: str) -> str | None:
    """Return the page of the site that shows a file of the repository, or None."""
    if path.startswith("docs/"):
        uri = path.removeprefix("docs/")
        return f"{uri}/README.md" if (ROOT / path).is_dir() else uri
    if path == "README.md":
        return "index.md"
    if path.startswith("examples"):
        return _example_uri(ROOT / path) if (ROOT / path).is_file() else "examples/index.md"
    return _PROJECT.get(path)


def with_site_links(text: str, source: str, uri: str) -> str:
    """Replace links to files of the repository by links to the pages that show them.

    Args:
        text: The page, in Markdown.
        source: Its path in the repository.
        uri: Its path in the site.

    Raises:
        DeadLinkError: The site has no page for a linked file.
    """

    def replaced(match: re.Match[str]) -> str:
        link, hash_, anchor = match[2].partition("#")
        if not link or "://" in link or link.startswith("mailto:"):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        found = site_uri(target)
        if found is None:
            raise DeadLinkError(f"{source} links to {link}, which is not a page of the site: link to a page, or add it")
        return f"{match[1]}{posixpath.relpath(found, posixpath.dirname(uri) or '.')}{hash_}{anchor}{match[3]}"

    return _outside_code(text, lambda prose: _LINK.sub(replaced, prose))


def as_tables(text: str) -> str:
    """Replace Mermaid diagrams of states by tables: drawing them would need a script from another host."""
    return _STATES.sub(lambda match: _transitions(match[1]), text)


def _transitions(diagram: str) -> str:
    rows = ["| from | to | by |", "|---|---|---|"]
    for line in diagram.splitlines():
        if match := re.fullmatch(r"\s*(\S+) --> (\S+?)(?:: (.*))?", line):
            before, after, event = match.groups()
            if before == "[*]":
                rows.append(f"| | {after} | creation |")
            elif after != "[*]":
                rows.append(f"| {before} | {after} | {event} |")
    return "\n".join(rows)


def with_code_links(text: str, uri: str) -> str:
    """Link the names of reason codes in tables of codes to their pages."""
    folder = posixpath.relpath("errors", posixpath.dirname(uri) or ".")
    names = "|".join(code.name for code in Code)
    return re.sub(rf"^(\| \d+ \| )({names})( \|)", rf"\1[\2]({folder}/\2.md)\3", text, flags=re.MULTILINE)


def with_plain_pipes(text: str) -> str:
    """Remove the backslash before a pipe in a code span of a table: GitHub needs it, and mkdocs would show it."""
    return re.sub(
        r"^\|.*$", lambda row: re.sub(r"`[^`]*`", lambda span: span[0].replace("\\|", "|"), row[0]), text, flags=re.M
    )


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


# -- examples ---------------------------------------------------------------------------------------------------------


def _example_uri(path: Path) -> str:
    return f"examples/{path.relative_to(EXAMPLES).as_posix().replace('/', '-')}.md"


def _example_pages() -> dict[str, str]:
    files = sorted(path for path in EXAMPLES.rglob("*.*") if path.suffix in _LANGUAGES and path.is_file())
    pages, rows = {}, []
    for path in files:
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        pages[_example_uri(path)] = f"# {name}\n\n```{_LANGUAGES[path.suffix]}\n{text}```\n"
        rows.append(f"| [{name}]({posixpath.basename(_example_uri(path))}) | {_purpose(path, text)} |")
    table = "\n".join(rows)
    head = "Programs to start with. All of them run in the tests of the project."
    pages["examples/index.md"] = f"# Examples\n\n{head}\n\n| file | purpose |\n|---|---|\n{table}\n"
    return pages


def _purpose(path: Path, text: str) -> str:
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].replace("\n", " ")
    first = text.partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") else ""


# -- hooks of mkdocs --------------------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Build reproducibly: the pages carry no date."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages, and leave out the programs that draw the figures."""
    from mkdocs.structure.files import File

    for uri, text in generated_pages().items():
        files.append(File.generated(config, uri, content=text))
    for file in [file for file in files if file.src_uri.endswith(".py")]:
        files.remove(file)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of pages that are files of the repository."""
    if page.file.abs_src_path is None:  # generated
        return markdown
    uri = page.file.src_uri
    return with_plain_pipes(with_code_links(with_site_links(as_tables(markdown), f"docs/{uri}", uri), uri))
