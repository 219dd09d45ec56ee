"""Gold that is merged: in pieces it is the same as all at once, and each batch counts once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.rows import Sent, day, messages, silver

from godwit.pipeline.datasets import devices, job_statistics, traffic, windows
from godwit.pipeline.lake import Lake
from godwit.pipeline.merging import Merging, merge, rebuilt


@pytest.mark.parametrize(
    "merging",
    [windows.MERGING, devices.MERGING, traffic.MERGING, job_statistics.MERGING],
    ids=lambda one: one.spec.name,
)
def test_in_pieces_it_is_the_same_as_at_once(spark: SparkSession, tmp_path: Path, merging: Merging) -> None:
    def rows_of(chosen: list[Sent]) -> DataFrame:
        return silver(spark, chosen) if merging is windows.MERGING else messages(spark, chosen)

    # Devices learn pauses between batches, so theirs are one after another; for the others any order will do.
    whole = day()
    parts = [whole[:400], whole[400:]] if merging is devices.MERGING else [whole[::2], whole[1::2]]
    table = Lake(str(tmp_path)).table(merging.spec)
    for number, part in enumerate(parts):
        assert merge(table, merging, rows_of(part), {"q": number})
        assert not merge(table, merging, rows_of(part), {"q": number})
    found = {tuple(row[key] for key in merging.spec.keys): row for row in table.arrow().to_pylist()}
    wanted = {
        tuple(row[key] for key in merging.spec.keys): row
        for row in rebuilt(merging, rows_of(whole)).toArrow().to_pylist()
    }
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        for name, value in row.items():
            if not name.endswith("sketch"):  # their bytes may differ in what does not matter
                assert found[key][name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


def test_a_batch_without_such_rows_leaves_the_table_alone(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table(job_statistics.SPEC)
    assert merge(table, job_statistics.MERGING, messages(spark, [(0, "home/one", "a", 0.0, b"1")]), {"q": 0})
    assert table.rows == 0
