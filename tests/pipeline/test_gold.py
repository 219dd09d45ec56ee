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
from godwit.pipeline.merging import merge


def test_it_follows_step_by_step(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, sent = Lake(str(tmp_path / "a lake, w\N{LATIN SMALL LETTER I WITH DIAERESIS}ld #1")), day()
    assert Gold(lake).step(spark) == Step(0, 0)
    ends = (300, 500, len(sent))
    frames = [messages(spark, sent[begin:end]) for begin, end in zip((0, *ends), ends, strict=False)]
    silver = [readings.good(readings.read(frame)).localCheckpoint() for frame in frames]
    for end, frame, good in zip(ends, frames, silver, strict=True):
        lake.table(bronze.SPEC).append(frame, {LOG: end})
        if end < len(sent):  # the third batch is half done
            lake.table(readings.SPEC).append(good, {LOG: end})
    planned = [f'{{"{LOG}": {end}}}' for end in ends]
    write_checkpoint(lake, TABLES, planned, done=2)
    monkeypatch.setattr(gold, "STEP_OFFSETS", 400)
    assert Gold(lake).step(spark) == Step(400, 100)
    assert sum(lake.table(traffic.SPEC).arrow()["messages"].to_pylist()) == 400

    # Ended after the first table of a step: that one is ahead, and takes nothing twice.
    def once(*arguments: Any) -> None:
        merge(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gold, "merge", once)
        with pytest.raises(KeyboardInterrupt):
            Gold(lake).step(spark)
    assert Gold(lake).marks([LOG]) == {LOG: 400}
    counts = lake.table(windows.SPEC).arrow(["window_s", "count"]).to_pylist()
    assert {length: sum(row["count"] for row in counts if row["window_s"] == length) for length in (60, 3600)} == {
        60: 500,
        3600: 400,
    }
    lake.table(readings.SPEC).append(silver[-1], {LOG: ends[-1]})
    write_checkpoint(lake, TABLES, planned, done=3)
    Gold(lake).catch_up(spark)
    assert Gold(lake).step(spark) == Step(0, 0)
    assert not [one for one in checked(spark, lake) if one.wrong]


def test_a_log_that_begins_late_is_no_detour(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path))
    begin = 10**15
    frame = messages(spark, [(begin + number, "home/one", "a", float(number), b"1") for number in range(3)])
    other = "b" * 32  # of which no message was wanted
    for spec, rows in ((bronze.SPEC, frame), (readings.SPEC, readings.good(readings.read(frame)))):
        lake.table(spec).append(rows, {LOG: begin + 3, other: 10**12})
    write_checkpoint(lake, TABLES, [f'{{"{LOG}": {begin + 3}, "{other}": {10**12}}}'], done=1)
    assert Gold(lake).step(spark) == Step(3, 0)
    assert lake.table(traffic.SPEC).arrow(["messages"]).to_pylist() == [{"messages": 3}]
