"""docs/SPARK.md says what the code says: options and their defaults, columns, quantities, tables."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from godwit.pipeline import parsing
from godwit.pipeline.datasets import readings, windows
from godwit.pipeline.datasets.catalog import ALL
from godwit.pipeline.parsing import DEFAULT_UNITS, QUANTITIES
from godwit.spark.options import READING, WRITING, read_options, write_options
from godwit.spark.reading import SCHEMA

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "SPARK.md").read_text(encoding="utf-8")
GIVEN = {"archive": "localhost"}


def part(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def defaults(table: list[list[str]]) -> dict[str, str]:
    """Those that are given as a value."""
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


def test_tables() -> None:
    sections = re.split(r"^#### ", part("tables"), flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections] == [spec.name for spec in ALL]
    for spec, section in zip(ALL, sections, strict=True):
        assert section.splitlines()[2] == spec.grain
        assert [row[:2] for row in rows(section)] == [[one.name, str(one.type)] for one in spec.schema]


def test_parameters() -> None:
    assert f"**Windows** are {windows.LENGTHS_S[0]} s and {windows.LENGTHS_S[1]} s long" in PAGE
    assert f"more than {readings.MAX_AHEAD_US // 60_000_000} minutes after it was received" in PAGE
    text = inspect.getsource(parsing) + inspect.getsource(readings)
    reasons = set(re.findall(r'(?:_BadError|Problem)\("([^"]+)"', text))
    assert len(reasons) > 10
    assert not [reason for reason in reasons if f"`{reason}`" not in PAGE]
