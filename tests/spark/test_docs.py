"""docs/SPARK.md agrees with the code: options and their defaults, columns, quantities, tables."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from godwit.pipeline import payload
from godwit.pipeline.datasets import readings, windows
from godwit.pipeline.datasets.catalog import ALL
from godwit.pipeline.lake import TableSpec
from godwit.pipeline.payload import DEFAULT_UNITS, QUANTITIES
from godwit.spark.options import READING, WRITING, read_options, write_options
from godwit.spark.reader import SCHEMA

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "SPARK.md").read_text(encoding="utf-8")
GIVEN = {"archive": "localhost"}


def part(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def defaults(table: list[list[str]]) -> dict[str, str]:
    """Return the defaults that are literal values."""
    return {name.strip("`"): text.strip("`") for name, text, _ in table if re.fullmatch(r"`[^`]+`", text)}


def test_options_and_their_defaults() -> None:
    reading, writing = rows(part("read options")), rows(part("write options"))
    assert [row[0] for row in reading] == [f"`{name}`" for name in READING]
    assert [row[0] for row in writing] == [f"`{name}`" for name in WRITING]
    given = defaults(reading)
    assert given.keys() == {"archiveTimeout", "startingOffsets", "endingOffsets", "failOnDataLoss"}
    assert read_options(GIVEN | given, is_stream=False) == read_options(GIVEN, is_stream=False)
    given = defaults(writing)
    assert given.keys() == {"archiveTimeout", "publisher", "qos", "batch"}
    named = GIVEN | {"query": "q"}
    assert write_options(named | given) == write_options(named)


def test_columns_of_the_source() -> None:
    assert [row[:2] for row in rows(part("source columns"))] == [
        [one.name, one.dataType.simpleString()] for one in SCHEMA.fields
    ]


def test_quantities() -> None:
    assert rows(part("quantities")) == [
        [quantity, DEFAULT_UNITS[quantity], ", ".join(names)] for quantity, names in QUANTITIES.items()
    ]


def section(spec: TableSpec) -> str:
    """Return the section of a table, as it must be in docs/SPARK.md."""
    lines = [f"| {one.name} | {one.type} | {one.doc} |".replace("|  |", "| |") for one in spec.columns]
    return "\n".join([f"#### {spec.name}", "", spec.grain, "", "| column | type | |", "|---|---|---|", *lines])


def test_tables() -> None:
    """The failure shows the text to copy into docs/SPARK.md."""
    expected = "\n\n".join(section(spec) for spec in ALL)
    assert part("tables").strip() == expected, f"replace the part between the comments 'tables' by:\n\n{expected}"


def test_parameters() -> None:
    assert f"**Windows** are {windows.LENGTHS_S[0]} s and {windows.LENGTHS_S[1]} s long" in PAGE
    assert f"more than {readings.MAX_AHEAD_US // 60_000_000} minutes after it was received" in PAGE
    text = inspect.getsource(payload) + inspect.getsource(readings)
    reasons = set(re.findall(r'(?:_RejectedError|RejectedPayload)\("([^"]+)"', text))
    assert len(reasons) > 10
    assert not [reason for reason in reasons if f"`{reason}`" not in PAGE]
