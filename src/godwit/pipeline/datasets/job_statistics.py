"""gold/job_statistics: results and times of jobs by kind and hour, from the events that brokers log on `$jobs/KIND`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from godwit.pipeline.datasets import bronze
from godwit.pipeline.gold_table import GoldColumn, GoldTable
from godwit.pipeline.lake import TIMESTAMP, TableSpec

TOPICS: Final = "$jobs/"
_EVENT: Final = "event string, job bigint, task int, worker string, at_us bigint, waited_us bigint, ran_us bigint"


def _count(name: str, event: str, doc: str = "") -> GoldColumn:
    """Return a column that counts one kind of event."""
    return GoldColumn(name, pa.int64(), doc, aggregate=f"count_if(event = '{event}')", combine=f"sum({name})")


COUNTS: Final = (
    _count("jobs_submitted", "submitted"),
    _count("jobs_done", "done"),
    _count("jobs_failed", "job_failed"),
    _count("jobs_cancelled", "cancelled"),
    _count("tasks_leased", "leased"),
    _count("tasks_finished", "finished"),
    _count("tasks_failed", "task_failed", "after the last attempt"),
    _count("attempts_failed", "failed"),
    _count("tasks_returned", "returned", "given back by their workers"),
    _count("tasks_lost", "lost", "with their workers"),
)


def _times(name: str, count: str, doc: str) -> tuple[GoldColumn, ...]:
    """Return mean, 95th percentile and maximum of the input `<name>_s`, which `count` rows have."""
    return (
        GoldColumn(
            f"{name}_s_mean",
            pa.float64(),
            doc,
            aggregate=f"avg({name}_s)",
            combine=f"sum({name}_s_mean * {count}) / nullif(sum({count}), 0)",
        ),
        GoldColumn(
            f"{name}_s_p95",
            pa.float64(),
            derived=f"if(kll_sketch_get_n_double({name}_sketch) = 0, null, "
            f"kll_sketch_get_quantile_double({name}_sketch, 0.95e0))",
        ),
        GoldColumn(f"{name}_s_max", pa.float64(), aggregate=f"max({name}_s)", combine=f"max({name}_s_max)"),
    )


def _sketch(name: str) -> GoldColumn:
    return GoldColumn(
        f"{name}_sketch",
        pa.binary(),
        "KLL of Apache DataSketches",
        aggregate=f"kll_sketch_agg_double({name}_s)",
        combine=f"kll_merge_agg_double({name}_sketch)",
    )


SPEC: Final = TableSpec(
    "gold/job_statistics",
    "one row per (broker, kind of job, hour received)",
    (
        GoldColumn("broker", pa.string()),
        GoldColumn("kind", pa.string()),
        GoldColumn("hour", TIMESTAMP),
        *COUNTS,
        *_times("run", "tasks_finished", "of the attempts that finished"),
        *_times("wait", "tasks_leased", "from when a task was ready until it was leased to a worker"),
        _sketch("run"),
        _sketch("wait"),
    ),
    keys=("broker", "kind", "hour"),
    checks={
        "no count is negative": " AND ".join(f"{one.name} >= 0" for one in COUNTS),
        "tasks that finished have run for some time": "tasks_finished = 0 OR run_s_mean <= run_s_max",
    },
    time="hour",
    expires_by="hour",
    is_merged=True,
)


def _prepare(messages: DataFrame) -> DataFrame:
    """Parse the events."""
    rows = messages.where(sf.col("topic").startswith(TOPICS)).select(
        "broker",
        sf.substring("topic", len(TOPICS) + 1, 1_000_000).alias("kind"),
        sf.date_trunc("hour", "received").alias("hour"),
        sf.from_json(sf.col("payload").cast("string"), _EVENT).alias("json"),
    )
    return rows.select(
        "broker",
        "kind",
        "hour",
        sf.col("json.event").alias("event"),
        sf.expr("if(json.event = 'finished', json.ran_us / 1e6D, null)").alias("run_s"),
        sf.expr("if(json.event = 'leased', json.waited_us / 1e6D, null)").alias("wait_s"),
    )


_ROWS: Final = f"""
    SELECT
        broker,
        substring(topic, {len(TOPICS) + 1}) AS kind,
        make_timestamptz(epoch_us(received) // 3600000000 * 3600000000) AS hour,
        event,
        if(event = 'finished', TRY_CAST(json_extract_string(json, '$.ran_us') AS BIGINT) / 1e6, NULL) AS run_s,
        if(event = 'leased', TRY_CAST(json_extract_string(json, '$.waited_us') AS BIGINT) / 1e6, NULL) AS wait_s
    FROM (
        SELECT *, json_extract_string(json, '$.event') AS event
        FROM (
            SELECT *, if(json_valid(TRY(decode(payload))), TRY(decode(payload)), NULL) AS json
            FROM source WHERE starts_with(topic, '{TOPICS}')
        )
    )"""

TABLE: Final = GoldTable(
    SPEC,
    "job_statistics",
    bronze.SPEC,
    source_time="received",
    rows_sql=_ROWS,
    prepare=_prepare,
    topics_from=TOPICS,
)
