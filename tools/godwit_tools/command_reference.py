"""Make the reference of the command line from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from godwit.cli.main import SECTIONS, build_app, load_own_command, plain_notes

HEAD: Final = """# Command line

All commands of `godwit`, made from the program. `godwit COMMAND --help` prints the same.
"""


def page() -> str:
    """Return the page, in Markdown."""
    return "\n".join([HEAD, *_root(), *(line for section in SECTIONS for line in _section(section))])


def _root() -> Iterator[str]:
    import typer

    yield "## godwit\n"
    root = typer.main.get_command(build_app())
    yield from _parameters(root, _context(root, "godwit"))


def _section(section: Any) -> Iterator[str]:
    yield f"## {section.title}\n"
    for name, _, _ in section.commands:
        yield from _command(load_own_command(name), f"godwit {name}", level=3)


def _command(command: Any, name: str, level: int) -> Iterator[str]:
    """Yield the lines of a command, and of its subcommands."""
    context = _context(command, name)
    yield f"{'#' * level} {name}\n"
    yield f"{_prose(command.help or '')}\n"
    subcommands = getattr(command, "commands", {})
    if not subcommands or command.invoke_without_command:
        yield f"`{' '.join((name, *command.collect_usage_pieces(context)))}`\n"
        yield from _parameters(command, context)
    if command.epilog:
        yield f"{_example(command.epilog)}\n"
    for one, subcommand in subcommands.items():
        if not subcommand.hidden:
            yield from _command(subcommand, f"{name} {one}", level + 1)


def _parameters(command: Any, context: Any) -> Iterator[str]:
    rows = []
    for parameter in command.get_params(context):
        if parameter.name != "help" and (record := parameter.get_help_record(context)):
            name = record[0].strip()
            rows.append(f"| `{name}` | {_cell(record[1])} |")
    if rows:
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows, ""])


def _context(command: Any, name: str) -> Any:
    return command.context_class(command, info_name=name)


def _cell(text: str) -> str:
    """Return a help text for a cell of a table."""
    return _prose(plain_notes(" ".join(text.split()))).replace("|", "\\|")


def _prose(text: str) -> str:
    """Return a help text as Markdown: signs of filters and file names are shown as they are."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_<#])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _example(epilog: str) -> str:
    """Return the example of a help text, with the command in a code span."""
    title, colon, example = " ".join(epilog.split()).partition(": ")
    return f"{title}: `{example}`" if colon else _prose(title)
