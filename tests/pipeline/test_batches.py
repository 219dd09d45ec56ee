"""Micro-batches into bronze, silver and quarantine: each message once, also if Spark plans a batch anew."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from tests.pipeline.rows import LOG, Sent, messages
from tests.pipeline.test_checkpoints import write_checkpoint

from godwit.pipeline.batches import Tables
from godwit.pipeline.checkpoints import TABLES
from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.lake import Lake, TableSpec


def offsets(lake: Lake, spec: TableSpec) -> list[int]:
    return sorted(lake.table(spec).arrow(["offset"])["offset"].to_pylist())


def test_a_batch_that_is_planned_anew_goes_on_from_the_marks(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path))
    sent: list[Sent] = [(at, "home/one", "a", float(at), b"warm" if at % 2 else b"21") for at in range(6)]

    def write(end: int) -> None:
        write_checkpoint(lake, TABLES, [f'{{"{LOG}": {end}}}'], done=0)
        Tables(lake).write(messages(spark, sent[:end]), 0)

    write(2)
    write(2)  # as after kill -9 before the commit
    write(5)  # as after a power cut that took the plan with it
    assert offsets(lake, bronze.SPEC) == [0, 1, 2, 3, 4]
    assert offsets(lake, readings.SPEC) == [0, 2, 4]
    assert offsets(lake, readings.QUARANTINE) == [1, 3]
    # Ended in the middle: bronze has the rest, the others do not.
    lake.table(bronze.SPEC).append(messages(spark, sent[5:]), {LOG: 6})
    write(6)
    assert offsets(lake, bronze.SPEC) == [0, 1, 2, 3, 4, 5]
    assert offsets(lake, readings.QUARANTINE) == [1, 3, 5]
