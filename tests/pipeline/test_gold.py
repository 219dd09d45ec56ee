"""Gold follows bronze and silver: each message once, wherever a step was ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.rows import LOG, day, messages
from tests.pipeline.test_checkpoints import write_checkpoint

from godwit.pipeline import gold
from godwit.pipeline.checkpoints import TABLES
from godwit.pipeline.checks import checked
from godwit.pipeline.datasets import bronze, readings, traffic, windows
from godwit.pipeline.gold import Gold, Step
from godwit.pipeline.lake import Lake


def test_it_follows_step_by_step(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, sent = Lake(str(tmp_path)), day()
    assert Gold(lake).step(spark) == Step(0, 0)
    ends = (300, 500, len(sent))
    for batch, (begin, end) in enumerate(zip((0, *ends), ends, strict=False)):
        frame = messages(spark, sent[begin:end])
        both = readings.read(frame).localCheckpoint()
        lake.table(bronze.SPEC).append(frame, "q", batch)
        lake.table(readings.SPEC).append(readings.good(both), "q", batch)
        lake.table(readings.QUARANTINE).append(readings.bad(both), "q", batch)
    planned = [f'{{"{LOG}": {end}}}' for end in ends]
    write_checkpoint(lake, TABLES, planned, done=2)  # the third is not: silver may lack it
    monkeypatch.setattr(gold, "STEP_OFFSETS", 400)
    assert Gold(lake).step(spark) == Step(400, 100)
    assert sum(lake.table(traffic.SPEC).arrow()["messages"].to_pylist()) == 400

    # Ended after the first table of a step: that one is ahead, and takes nothing twice.
    def once(self: Gold, *more: Any) -> None:
        taking(self, *more)
        raise KeyboardInterrupt

    taking = Gold._take
    with monkeypatch.context() as patch:
        patch.setattr(Gold, "_take", once)
        with pytest.raises(KeyboardInterrupt):
            Gold(lake).step(spark)
    assert Gold(lake).marks({LOG: 0}) == {LOG: 400}
    counts = lake.table(windows.SPEC).arrow(["window_s", "count"]).to_pylist()
    assert sum(row["count"] for row in counts if row["window_s"] == 60) == 500
    write_checkpoint(lake, TABLES, planned, done=3)
    Gold(lake).catch_up(spark)
    assert Gold(lake).step(spark) == Step(0, 0)
    assert not [one for one in checked(spark, lake) if one.wrong]
