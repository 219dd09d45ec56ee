"""Where queries stand, from checkpoints as Spark writes them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from godwit.pipeline.checkpoints import ANOMALIES, TABLES, check_checkpoints, check_whole, checkpoint_address, standing
from godwit.pipeline.datasets import anomalies, bronze
from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError

ONE, TWO = "1" * 32, "2" * 32


def write_checkpoint(lake: Lake, query: str, planned: list[str], done: int, at_s: int = 1_800_000_000) -> None:
    """The offsets of each batch, and how many of them are done."""
    folder = Path(checkpoint_address(lake, query))
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"2393b5ad"}')
    for number, offsets in enumerate(planned):
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offsets}')
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < done:
            commit = folder / "commits" / str(number)
            commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
            os.utime(commit, (at_s + number, at_s + number))


def test_the_last_batch_that_is_done_counts(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert standing(lake, TABLES) is None
    planned = [f'{{"{ONE}": {at}, "{TWO}": 7, "gaps": {{"{ONE}": 3}}}}' for at in range(12)]
    write_checkpoint(lake, TABLES, planned, done=11)
    found = standing(lake, TABLES)
    assert found is not None
    assert (found.batch, found.offsets) == (10, {ONE: 10, TWO: 7})
    assert found.done_us == 1_800_000_010 * 1_000_000
    assert found.is_half_done
    assert standing(lake, ANOMALIES) is None
    with pytest.raises(PipelineError, match="half done: finish it with godwit pipeline run --once"):
        check_whole(lake)
    write_checkpoint(lake, TABLES, planned, done=12)
    check_whole(lake)


def test_a_first_batch_may_be_half_done(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    check_whole(lake)
    write_checkpoint(lake, TABLES, [f'{{"{ONE}": 1}}'], done=0)
    assert standing(lake, TABLES) is None
    with pytest.raises(PipelineError, match="half done"):
        check_whole(lake)


def test_a_lake_without_its_checkpoint_is_not_filled_twice(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    check_checkpoints(lake)
    row = {"broker": ONE, "offset": 0, "received": datetime(2026, 11, 15, tzinfo=UTC)}
    lake.table(bronze.SPEC).append_arrow(pa.Table.from_pylist([row], bronze.SPEC.schema), {"q": 0})
    with pytest.raises(PipelineError, match="the checkpoint _checkpoints/tables is gone"):
        check_checkpoints(lake)
    write_checkpoint(lake, TABLES, [], done=0)
    check_checkpoints(lake)
    alarm = pa.Table.from_pylist([{"broker": ONE, "offset": 0, "quantity": "t"}], anomalies.SPEC.schema)
    lake.table(anomalies.SPEC).append_arrow(alarm, {"q": 0})
    with pytest.raises(PipelineError, match="rows in gold/anomalies, but the checkpoint _checkpoints/anomalies is"):
        check_checkpoints(lake)
