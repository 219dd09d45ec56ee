"""Lists of things, for people (aligned columns) and for programs (one JSON object a line)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from godwit.cli.text import safe, safe_json


def show_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Columns on stdout. What does not fit a terminal is wrapped; where there is none, every row is one line."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    if sys.stdout.isatty():
        Console().print(table)
        return
    wide = Console(width=sum(_width(titles, rows)) + 2 * len(titles))
    with wide.capture() as captured:
        wide.print(table)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def show_objects(objects: Sequence[object]) -> None:
    """One JSON object a line."""
    for each in objects:
        typer.echo(safe_json(msgspec.json.encode(each)).decode())


def _width(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        max([len(title), *(Text(safe(row[column])).cell_len for row in rows)]) for column, title in enumerate(titles)
    ]
