"""The delay: from publishing until a look at the table sees the row. What is seen while all warms up does not count."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

from godwit.errors import GodwitError
from godwit.pipeline.datasets import bronze
from godwit.pipeline.lake import Lake, LakeTable
from godwit_bench import spark_delay
from godwit_bench.spark_delay import WARM_BATCHES, percentile, watch


def batch(number: int, age_s: float) -> pa.Table:
    row = dict.fromkeys(bronze.SPEC.schema.names) | {"offset": number, "published": int((time.time() - age_s) * 1e6)}
    return pa.Table.from_pylist([row], bronze.SPEC.schema)


class Writer:
    """Adds a row to the table at every other look."""

    def __init__(self, table: LakeTable) -> None:
        self.table = table
        self.looks = 0

    def __call__(self) -> None:
        self.looks += 1
        if self.looks % 2:
            number = self.looks // 2
            self.table.append_arrow(batch(number, 100.0 if number < WARM_BATCHES else 5.0), {"query": number})


def test_rows_are_timed_once_it_is_warm(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table(bronze.SPEC)
    found = watch(table, 0.5, on_look=Writer(table))
    assert found
    assert 5.0 <= min(found) <= max(found) < 50.0
    assert len(found) <= table.rows - WARM_BATCHES


def test_a_pipeline_that_writes_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_delay, "LONGEST_S", 0.05)
    with pytest.raises(GodwitError, match="bronze got 0 batches"):
        watch(Lake(str(tmp_path)).table(bronze.SPEC), 0.05, on_look=lambda: None)


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.95) == 95.0
    assert percentile([7.0], 0.95) == 7.0
