"""Lists of things, for people (aligned columns) and for programs (one JSON object a line)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from godwit.cli.text import safe, safe_json

GAP: Final = 2
"""Between two columns."""
LEAST_NAME_WIDTH: Final = 16


@dataclass(frozen=True)
class Column:
    """A column, and what becomes of it where a terminal has too little room."""

    title: str
    short_title: str = ""
    right: bool = False
    shorten: Callable[[str], str] | None = None
    """Makes the cells shorter, and keeps what matters."""
    drop: int | None = None
    """Left out if even that is not enough, 1 first. None: it stays, as long as there is room for the name."""
    least_width: int | None = None
    """May be cut down to this, with an ellipsis, before others are left out. None: it is not cut."""
    is_name: bool = False
    """What a row is about: it stays whole as long as it can."""


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Columns on stdout, each row on one line: as wide as they are, or what fits the terminal."""
    columns = [replace(column, title=safe(column.title)) for column in columns]  # a query may make titles of data
    cells = [[Text(safe(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        console = Console()
        console.print(fitted(columns, cells, console.width))
        return
    table = _table([column.title for column in columns], columns, cells)
    wide = Console(width=sum(_widths([column.title for column in columns], cells)) + GAP * len(columns))
    with wide.capture() as captured:
        wide.print(table)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def fitted(columns: Sequence[Column], cells: Sequence[Sequence[Text]], width: int) -> Table:
    """The table made as narrow as it has to be: shorter, then with fewer columns, then with cut names."""
    titles = [column.title for column in columns]
    if _total(_widths(titles, cells)) > width:
        titles = [column.short_title or column.title for column in columns]
        cells = [[_shortened(column, cell) for column, cell in zip(columns, row, strict=True)] for row in cells]
    widths = _widths(titles, cells)
    limits = [min(own, column.least_width or own) for column, own in zip(columns, widths, strict=True)]
    kept = list(range(len(columns)))
    minor = sorted((column.drop, i) for i, column in enumerate(columns) if column.drop is not None)
    for _, i in minor:
        if _total([limits[i] for i in kept]) > width:
            kept.remove(i)
    floors = [min(limit, LEAST_NAME_WIDTH) if columns[i].is_name else limit for i, limit in enumerate(limits)]
    for i in [i for i in reversed(kept) if not columns[i].is_name]:
        if _total([floors[i] for i in kept]) > width:
            kept.remove(i)
    spare = width - _total([limits[i] for i in kept])
    for i in kept:  # what was cut gets what is left; the name gives what is missing
        more = min(spare, widths[i] - limits[i]) if spare > 0 else spare if columns[i].is_name else 0
        limits[i] = max(limits[i] + more, 1)
        spare -= more
    cut = [[_cut(row[i], limits[i]) for i in kept] for row in cells]
    return _table([titles[i] for i in kept], [columns[i] for i in kept], cut)


def show_objects(objects: Sequence[object]) -> None:
    """One JSON object a line."""
    for each in objects:
        typer.echo(safe_json(msgspec.json.encode(each)).decode())


def _table(titles: Sequence[str], columns: Sequence[Column], cells: Sequence[Sequence[Text]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for title, column in zip(titles, columns, strict=True):
        table.add_column(Text(title), justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*row)
    return table


def _shortened(column: Column, cell: Text) -> Text:
    return cell if column.shorten is None else Text(column.shorten(cell.plain))


def _cut(cell: Text, width: int) -> Text:
    if cell.cell_len > width:
        cell = cell.copy()
        cell.truncate(width, overflow="ellipsis")
    return cell


def _widths(titles: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    return [max([len(title), *(row[column].cell_len for row in cells)]) for column, title in enumerate(titles)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
