"""gold/job_statistics: what became of the work that was handed out, from what brokers log on `$jobs/<kind>`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from godwit.pipeline.lake import TableSpec
from godwit.pipeline.merging import Merging

TOPICS: Final = "$jobs/"
_TIME: Final = pa.timestamp("us", tz="UTC")
_KEYS: Final = ("broker", "kind", "hour")
COUNTED: Final = {
    # column: the event that it counts
    "jobs_submitted": "submitted",
    "jobs_done": "done",
    "jobs_failed": "job_failed",
    "jobs_cancelled": "cancelled",
    "tasks_leased": "leased",
    "tasks_finished": "finished",
    "tasks_failed": "task_failed",
    "attempts_failed": "failed",
    "tasks_returned": "returned",
    "tasks_lost": "lost",
}
_EVENT: Final = "event string, job bigint, task int, worker string, at_us bigint, waited_us bigint, ran_us bigint"

SPEC: Final = TableSpec(
    "gold/job_statistics",
    "one row per (broker, kind of job, hour received)",
    pa.schema(
        [
            ("broker", pa.string()),
            ("kind", pa.string()),
            ("hour", _TIME),
            *[(name, pa.int64()) for name in COUNTED],
            ("run_s_mean", pa.float64()),
            ("run_s_p95", pa.float64()),
            ("run_s_max", pa.float64()),
            ("wait_s_mean", pa.float64()),
            ("wait_s_p95", pa.float64()),
            ("wait_s_max", pa.float64()),
            ("run_sketch", pa.binary()),
            ("wait_sketch", pa.binary()),
        ]
    ),
    keys=_KEYS,
    checks={
        "no count is negative": " AND ".join(f"{name} >= 0" for name in COUNTED),
        "tasks that finished have run for some time": "tasks_finished = 0 OR run_s_mean <= run_s_max",
    },
    time="hour",
)


def partials(messages: DataFrame) -> DataFrame:
    """Of bronze messages."""
    rows = messages.where(sf.col("topic").startswith(TOPICS)).select(
        "broker",
        sf.substring("topic", len(TOPICS) + 1, 1_000_000).alias("kind"),
        sf.date_trunc("hour", "received").alias("hour"),
        sf.from_json(sf.col("payload").cast("string"), _EVENT).alias("told"),
    )
    ran_s = sf.when(sf.col("told.event") == "finished", sf.col("told.ran_us") / 1e6)
    waited_s = sf.when(sf.col("told.event") == "leased", sf.col("told.waited_us") / 1e6)
    return _finished(
        rows.withColumn("ran_s", ran_s)
        .withColumn("waited_s", waited_s)
        .groupBy(*_KEYS)
        .agg(
            *[sf.count_if(sf.col("told.event") == event).alias(name) for name, event in COUNTED.items()],
            sf.avg("ran_s").alias("run_s_mean"),
            sf.max("ran_s").alias("run_s_max"),
            sf.avg("waited_s").alias("wait_s_mean"),
            sf.max("waited_s").alias("wait_s_max"),
            sf.kll_sketch_agg_double("ran_s").alias("run_sketch"),
            sf.kll_sketch_agg_double("waited_s").alias("wait_sketch"),
        )
    )


def merged(rows: DataFrame) -> DataFrame:
    """Of rows of this table with the same keys."""
    return _finished(
        rows.groupBy(*_KEYS)
        .agg(
            *[sf.sum(name).alias(f"{name}_all") for name in COUNTED],
            _mean("run_s_mean", "tasks_finished"),
            sf.max("run_s_max").alias("run_s_max"),
            _mean("wait_s_mean", "tasks_leased"),
            sf.max("wait_s_max").alias("wait_s_max"),
            sf.kll_merge_agg_double("run_sketch").alias("run_sketch"),
            sf.kll_merge_agg_double("wait_sketch").alias("wait_sketch"),
        )
        .withColumnsRenamed({f"{name}_all": name for name in COUNTED})
    )


def _mean(name: str, count: str) -> Column:
    return (sf.sum(sf.col(name) * sf.col(count)) / sf.nullif(sf.sum(count), sf.lit(0))).alias(name)


def _finished(rows: DataFrame) -> DataFrame:
    for name in ("run", "wait"):
        sketch = f"{name}_sketch"
        percentile = sf.kll_sketch_get_quantile_double(sketch, sf.lit(0.95))
        is_empty = sf.kll_sketch_get_n_double(sketch) == 0
        rows = rows.withColumn(f"{name}_s_p95", sf.when(~is_empty, percentile))
    return rows


MERGING: Final = Merging(SPEC, "job_statistics", partials, merged)
