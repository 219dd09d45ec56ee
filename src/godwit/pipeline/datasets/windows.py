"""gold/windows: statistics of each topic's readings by minute and by hour, for each quantity and name."""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from godwit.pipeline.datasets import readings
from godwit.pipeline.gold_table import GoldColumn, GoldTable
from godwit.pipeline.lake import TIMESTAMP, TableSpec

LENGTHS_S: Final = (60, 3600)
_KEYS: Final = ("broker", "topic", "quantity", "name", "window_s", "window_start")


def _percentile(percent: int, doc: str) -> GoldColumn:
    derived = f"kll_sketch_get_quantile_double(sketch, {percent / 100}e0)"
    return GoldColumn(f"p{percent}", pa.float64(), doc, derived=derived)


SPEC: Final = TableSpec(
    "gold/windows",
    "one row per (broker, topic, quantity, name, window length, window start)",
    (
        GoldColumn("broker", pa.string()),
        GoldColumn("topic", pa.string()),
        GoldColumn("quantity", pa.string()),
        GoldColumn("window_s", pa.int32(), "60 or 3600"),
        GoldColumn("window_start", TIMESTAMP),
        GoldColumn("unit", pa.string(), aggregate="first(unit)", combine="first(unit)"),
        GoldColumn("count", pa.int64(), aggregate="count(*)", combine="sum(count)"),
        GoldColumn("mean", pa.float64(), aggregate="avg(value)", combine="first(whole_mean)"),
        GoldColumn(
            "squares",
            pa.float64(),
            "the sum of the squared distances from the mean",
            aggregate="var_pop(value) * count(*)",
            combine="sum(squares) + sum(count * power(mean - whole_mean, 2))",
        ),
        GoldColumn("deviation", pa.float64(), "of the population", derived="sqrt(squares / count)"),
        GoldColumn("min", pa.float64(), aggregate="min(value)", combine="min(min)"),
        GoldColumn("max", pa.float64(), aggregate="max(value)", combine="max(max)"),
        _percentile(50, "the median, estimated from the sketch"),
        _percentile(95, "the 95th percentile, estimated from the sketch"),
        _percentile(99, "the 99th percentile, estimated from the sketch"),
        GoldColumn(
            "sketch",
            pa.binary(),
            "KLL of Apache DataSketches",
            aggregate="kll_sketch_agg_double(value)",
            combine="kll_merge_agg_double(sketch)",
        ),
        GoldColumn("name", pa.string(), "which sensor or field of the messages; empty for the only one", missing=""),
    ),
    keys=_KEYS,
    checks={
        "it counts at least one reading": "count >= 1",
        "mean and percentiles lie between the least and the greatest": (
            "mean BETWEEN min - 1e-9 * abs(min) AND max + 1e-9 * abs(max) AND min <= p50 AND p50 <= p95 "
            "AND p95 <= p99 AND p99 <= max"
        ),
        "its deviation is a number": "deviation >= 0 AND NOT isnan(deviation)",
        "it begins where windows of its length begin": (
            "unix_micros(window_start) % (window_s * CAST(1000000 AS BIGINT)) = 0"
        ),
    },
    time="window_start",
    expires_by="window_start",
    is_merged=True,
)


def _prepare(lengths_s: tuple[int, ...], rows: DataFrame) -> DataFrame:
    """Return each reading once for each length, with the window that it belongs to."""
    rows = rows.withColumn("name", sf.coalesce("name", sf.lit("")))
    rows = rows.withColumn("window_s", sf.explode(sf.array(*[sf.lit(length_s) for length_s in lengths_s])))
    start = sf.timestamp_seconds(sf.floor(sf.unix_seconds("event_time") / sf.col("window_s")) * sf.col("window_s"))
    return rows.withColumn("window_start", start)


def _prepare_combine(rows: DataFrame) -> DataFrame:
    """Add the mean of all rows with the same keys, so that `squares` needs no difference of large numbers."""
    group = Window.partitionBy(*_KEYS)
    whole_mean = sf.sum(sf.col("count") * sf.col("mean")).over(group) / sf.sum("count").over(group)
    return rows.withColumn("whole_mean", whole_mean)


_ROWS: Final = """
    SELECT
        * REPLACE (coalesce(name, '') AS name),
        make_timestamptz(time_us - (time_us % length_us + length_us) % length_us) AS window_start
    FROM (
        SELECT *, epoch_us(event_time) AS time_us, window_s * 1000000 AS length_us
        FROM source CROSS JOIN (SELECT unnest({lengths_s}::BIGINT[]) AS window_s)
    )"""
_PARTS: Final = f"""
    SELECT *, sum(count * mean) OVER same / sum(count) OVER same AS whole_mean
    FROM parts WINDOW same AS (PARTITION BY {", ".join(_KEYS)})"""


def _table(name: str, lengths_s: tuple[int, ...]) -> GoldTable:
    return GoldTable(
        SPEC,
        name,
        readings.SPEC,
        source_time="event_time",
        rows_sql=_ROWS.format(lengths_s=list(lengths_s)),
        parts_sql=_PARTS,
        prepare=partial(_prepare, lengths_s),
        prepare_combine=_prepare_combine,
    )


TABLE: Final = _table("windows", LENGTHS_S)
BY_LENGTH: Final = tuple(_table(f"windows of {length_s} s", (length_s,)) for length_s in LENGTHS_S)
"""One for each length, merged separately: the current hour changes with each step and its past
minutes do not, so they should not share files."""
