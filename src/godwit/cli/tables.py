"""Lists as aligned columns for people and as one JSON object per line for programs."""

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
"""Blank columns between two columns of a table."""
LEAST_NAME_WIDTH: Final = 16


@dataclass(frozen=True)
class Column:
    """A column, and how it shrinks when the terminal is too narrow."""

    title: str
    short_title: str = ""
    right: bool = False
    shorten: Callable[[str], str] | None = None
    """Function that shortens a cell."""
    drop: int | None = None
    """Order in which columns are left out if that is not enough, 1 first. None: keep it while the name fits."""
    least_width: int | None = None
    """Width to which it may be cut, with an ellipsis, before other columns are left out. None: never cut."""
    is_name: bool = False
    """Whether this column identifies the row. It is cut last."""


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as aligned columns, one line each, fitted to the terminal if stdout is one."""
    columns = [
        replace(column, title=safe(column.title)) for column in columns
    ]  # the titles of a query can contain data
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
    """Return the table narrowed to `width`: with shorter cells, then fewer columns, then cut names."""
    titles = [column.title for column in columns]
    if _total(_widths(titles, cells)) > width:
        titles = [column.short_title or column.title for column in columns]
        cells = [[_shortened(column, cell) for column, cell in zip(columns, row, strict=True)] for row in cells]
    widths = _widths(titles, cells)
    limits = [min(own, column.least_width or own) for column, own in zip(columns, widths, strict=True)]
    shown_columns = list(range(len(columns)))
    minor = sorted((column.drop, i) for i, column in enumerate(columns) if column.drop is not None)
    for _, i in minor:
        if _total([limits[i] for i in shown_columns]) > width:
            shown_columns.remove(i)
    floors = [min(limit, LEAST_NAME_WIDTH) if columns[i].is_name else limit for i, limit in enumerate(limits)]
    for i in [i for i in reversed(shown_columns) if not columns[i].is_name]:
        if _total([floors[i] for i in shown_columns]) > width:
            shown_columns.remove(i)
    spare = width - _total([limits[i] for i in shown_columns])
    for i in shown_columns:  # widen cut columns with spare room; narrow the name if there is too little
        more = min(spare, widths[i] - limits[i]) if spare > 0 else spare if columns[i].is_name else 0
        limits[i] = max(limits[i] + more, 1)
        spare -= more
    cut = [[_cut(row[i], limits[i]) for i in shown_columns] for row in cells]
    return _table([titles[i] for i in shown_columns], [columns[i] for i in shown_columns], cut)


def show_objects(objects: Sequence[object]) -> None:
    """Print one JSON object per line."""
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
