"""Rows in the place of others: by a range of times, and by their keys."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from godwit.pipeline.lake import Lake, Table, TableSpec
from godwit.pipeline.replacing import between, remove, replace

SPEC = TableSpec("gold/x", "an hour", pa.schema([("hour", pa.timestamp("us", tz="UTC")), ("n", pa.int64())]), (), {})


def at(hour: int) -> datetime:
    return datetime(2026, 11, 15, hour, tzinfo=UTC)


def rows(**hours: int) -> pa.Table:
    """h3=7: the row of 3 o'clock has 7."""
    found = [{"hour": at(int(name[1:])), "n": n} for name, n in hours.items()]
    return pa.Table.from_pylist(found, SPEC.schema)


def content(table: Table) -> dict[int, int]:
    return {row["hour"].hour: row["n"] for row in table.arrow().to_pylist()}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    found = Lake(str(tmp_path)).table(SPEC)
    found.append_arrow(rows(h1=1, h2=1, h3=1, h4=1), {"q": 0})
    return found


def test_a_range_is_replaced_also_what_is_no_more(table: Table) -> None:
    replace(table, rows(h3=9), between("hour", at(2), at(4)))
    assert content(table) == {1: 1, 3: 9, 4: 1}
    replace(table, rows(), between("hour", at(4), None))
    assert content(table) == {1: 1, 3: 9}
    replace(table, rows(h2=5), between("hour", None, at(3)))
    assert content(table) == {2: 5, 3: 9}
    replace(table, rows(h7=7), None)
    assert content(table) == {7: 7}
    assert table.is_done({"q": 0})  # what streams have done stays done


def test_rows_are_removed_once(table: Table) -> None:
    assert remove(table, rows(h2=1, h3=8), {"r": 0})  # all columns must be the same
    assert content(table) == {1: 1, 3: 1, 4: 1}
    assert not remove(table, rows(h1=1), {"r": 0})
    assert content(table) == {1: 1, 3: 1, 4: 1}
    assert remove(table, rows(h1=0, h4=0).select(["hour"]), {"r": 1})
    assert content(table) == {3: 1}


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table(SPEC)
    replace(table, rows(), None)
    assert not remove(table, rows(h1=1), {"r": 0})
    assert table.version is None
    replace(table, rows(h1=1), between("hour", at(0), None))
    assert content(table) == {1: 1}
