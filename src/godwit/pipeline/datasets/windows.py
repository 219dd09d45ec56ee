"""gold/windows: what a topic's readings were like in each minute and each hour."""

from __future__ import annotations

from functools import partial, reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from godwit.pipeline.lake import TableSpec
from godwit.pipeline.merging import Merging

LENGTHS_S: Final = (60, 3600)
_TIME: Final = pa.timestamp("us", tz="UTC")
_KEYS: Final = ("broker", "topic", "quantity", "window_s", "window_start")

SPEC: Final = TableSpec(
    "gold/windows",
    "one row per (broker, topic, quantity, window length, window start)",
    pa.schema(
        [
            ("broker", pa.string()),
            ("topic", pa.string()),
            ("quantity", pa.string()),
            ("window_s", pa.int32()),
            ("window_start", _TIME),
            ("unit", pa.string()),
            ("count", pa.int64()),
            ("mean", pa.float64()),
            ("squares", pa.float64()),  # of the distances from the mean, summed: two of them can be joined
            ("deviation", pa.float64()),
            ("min", pa.float64()),
            ("max", pa.float64()),
            ("p50", pa.float64()),
            ("p95", pa.float64()),
            ("p99", pa.float64()),
            ("sketch", pa.binary()),  # KLL, of Apache DataSketches: percentiles that can be joined
        ]
    ),
    keys=_KEYS,
    checks={
        "it counts at least one reading": "count >= 1",
        "mean and percentiles lie between the least and the greatest": (
            "mean BETWEEN min - 1e-9 * abs(min) AND max + 1e-9 * abs(max) AND min <= p50 AND p50 <= p95 "
            "AND p95 <= p99 AND p99 <= max"
        ),
        "its deviation is a number": "deviation >= 0 AND NOT isnan(deviation)",
        "it begins where windows of its length begin": "unix_micros(window_start) % (window_s * 1000000L) = 0",
    },
    time="window_start",
)


def partials(readings: DataFrame) -> DataFrame:
    """Of silver readings."""
    parts = [_partials(readings, length_s) for length_s in LENGTHS_S]
    return _finished(reduce(DataFrame.unionByName, parts))


def _finished_of(length_s: int, readings: DataFrame) -> DataFrame:
    return _finished(_partials(readings, length_s))


def _partials(readings: DataFrame, length_s: int) -> DataFrame:
    start = sf.timestamp_seconds(sf.floor(sf.unix_seconds("event_time") / length_s) * length_s)
    rows = readings.select("broker", "topic", "quantity", "unit", "value", start.alias("window_start"))
    return (
        rows.withColumn("window_s", sf.lit(length_s))
        .groupBy(*_KEYS)
        .agg(
            sf.first("unit").alias("unit"),
            sf.count("*").alias("count"),
            sf.avg("value").alias("mean"),
            (sf.var_pop("value") * sf.count("*")).alias("squares"),
            sf.min("value").alias("min"),
            sf.max("value").alias("max"),
            sf.kll_sketch_agg_double("value").alias("sketch"),
        )
    )


def merged(rows: DataFrame) -> DataFrame:
    """Of rows of this table with the same keys."""
    # First the mean of all, then the distances from it: no difference of large numbers.
    same = Window.partitionBy(*_KEYS)
    whole = sf.sum("count").over(same)
    rows = rows.withColumn("whole_mean", sf.sum(sf.col("count") * sf.col("mean")).over(same) / whole)
    apart = sf.col("mean") - sf.col("whole_mean")
    joined = rows.groupBy(*_KEYS).agg(
        sf.first("unit").alias("unit"),
        sf.sum("count").alias("n"),
        sf.first("whole_mean").alias("mean"),
        (sf.sum("squares") + sf.sum(sf.col("count") * apart * apart)).alias("squares"),
        sf.min("min").alias("min"),
        sf.max("max").alias("max"),
        sf.kll_merge_agg_double("sketch").alias("sketch"),
    )
    return _finished(joined.withColumnRenamed("n", "count"))


def _finished(rows: DataFrame) -> DataFrame:
    """With what follows from the rest."""
    found = rows.withColumn("deviation", sf.sqrt(sf.col("squares") / sf.col("count")))
    for name, rank in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        found = found.withColumn(name, sf.kll_sketch_get_quantile_double("sketch", sf.lit(rank)))
    return found.withColumn("window_s", sf.col("window_s").cast("int"))


MERGING: Final = Merging(SPEC, "windows", partials, merged)
BY_LENGTH: Final = tuple(Merging(SPEC, f"windows of {one} s", partial(_finished_of, one), merged) for one in LENGTHS_S)
"""Each by itself, so that an hour, which changes all the time, is not in one file with its minutes, which do not."""
