"""gold/devices: for each topic, when it sent messages, how often, and with which gaps.

All times are times of receipt, because a device's own clock may be wrong. A gap is a pause of more than GAP_FACTOR
times the topic's mean pause. The messages of one step are ordered by offset; between steps, the first message of the
later one is compared with the last message of the earlier one.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from godwit.pipeline.datasets import bronze
from godwit.pipeline.gold_table import GoldColumn, GoldTable
from godwit.pipeline.lake import TIMESTAMP, TableSpec

GAP_FACTOR: Final = 5
MIN_GAP_S: Final = 1.0
"""A shorter pause is never a gap, however often a topic sends."""
FIRST: Final = "first_received"
"""The column by which a repair knows whether all messages of a device are still in bronze."""
_KEYS: Final = ("broker", "topic")

SPEC: Final = TableSpec(
    "gold/devices",
    "one row per (broker, topic)",
    (
        GoldColumn("broker", pa.string()),
        GoldColumn("topic", pa.string()),
        GoldColumn(
            "publisher",
            pa.string(),
            "of the last message",
            aggregate="max_by(publisher, offset)",
            combine="max_by(publisher, last_received)",
        ),
        GoldColumn("messages", pa.int64(), aggregate="count(*)", combine="sum(messages)"),
        GoldColumn(FIRST, TIMESTAMP, aggregate="min(received)", combine="min(first_received)"),
        GoldColumn("last_received", TIMESTAMP, aggregate="max(received)", combine="max(last_received)"),
        GoldColumn(
            "interval_s",
            pa.float64(),
            "the mean pause between two messages",
            aggregate="avg(pause_s)",
            combine="first(mean_s)",
        ),
        GoldColumn(
            "longest_gap_s",
            pa.float64(),
            aggregate="coalesce(max(pause_s), 0e0)",
            combine="coalesce(greatest(max(longest_gap_s), max(between_s)), 0e0)",
        ),
        GoldColumn(
            "gaps",
            pa.int64(),
            "pauses of more than five times the mean one, and of more than a second",
            aggregate="count_if(is_gap)",
            combine="sum(gaps) + count_if(is_gap)",
        ),
    ),
    keys=_KEYS,
    expires_by="last_received",
    is_merged=True,
    checks={
        "it has messages, first and last": "messages >= 1 AND first_received <= last_received",
        "its gaps are among its pauses": "gaps BETWEEN 0 AND messages - 1 AND longest_gap_s >= 0",
    },
)


def _prepare(messages: DataFrame) -> DataFrame:
    """Add the pause before each message. The broker's own topics are left out."""
    group = Window.partitionBy(*_KEYS)
    at_us = sf.unix_micros("received")
    rows = messages.where("NOT startswith(topic, '$')")
    rows = rows.withColumn("pause_s", (at_us - sf.lag(at_us).over(group.orderBy("offset"))) / 1e6)
    return rows.withColumn("is_gap", _is_gap(sf.col("pause_s"), sf.avg("pause_s").over(group)))


def _prepare_combine(rows: DataFrame) -> DataFrame:
    """Add the pause between the last message of one row and the first message of the next."""
    group = Window.partitionBy(*_KEYS)
    first_us, last_us = sf.unix_micros("first_received"), sf.unix_micros("last_received")
    between_us = first_us - sf.lag(last_us).over(group.orderBy("first_received", "last_received"))
    rows = rows.withColumn("between_s", sf.greatest(between_us / 1e6, sf.lit(0.0)))
    pauses = sf.sum("messages").over(group) - 1
    span_us = sf.max(sf.unix_micros("last_received")).over(group) - sf.min(sf.unix_micros("first_received")).over(group)
    rows = rows.withColumn("mean_s", sf.when(pauses > 0, span_us / 1e6 / pauses))
    return rows.withColumn("is_gap", _is_gap(sf.col("between_s"), sf.col("mean_s")))


def _is_gap(pause_s: Column, mean_s: Column) -> Column:
    return pause_s > sf.greatest(mean_s * GAP_FACTOR, sf.lit(MIN_GAP_S))


_GAP: Final = f"greatest({{mean_s}} * {GAP_FACTOR}, {MIN_GAP_S}) AS is_gap"
_ROWS: Final = f"""
    SELECT *, pause_s > {_GAP.format(mean_s="avg(pause_s) OVER (PARTITION BY broker, topic)")}
    FROM (
        SELECT *, (epoch_us(received) - lag(epoch_us(received)) OVER (
            PARTITION BY broker, topic ORDER BY "offset")) / 1e6 AS pause_s
        FROM source WHERE NOT starts_with(topic, '$')
    )"""
_PARTS: Final = f"""
    SELECT *, between_s > {_GAP.format(mean_s="mean_s")}
    FROM (
        SELECT
            *,
            greatest((epoch_us(first_received) - lag(epoch_us(last_received)) OVER (
                same ORDER BY first_received, last_received)) / 1e6, 0) AS between_s,
            (max(epoch_us(last_received)) OVER same - min(epoch_us(first_received)) OVER same) / 1e6
                / nullif(sum(messages) OVER same - 1, 0) AS mean_s
        FROM parts WINDOW same AS (PARTITION BY broker, topic)
    )"""

TABLE: Final = GoldTable(
    SPEC,
    "devices",
    bronze.SPEC,
    source_time="received",
    rows_sql=_ROWS,
    parts_sql=_PARTS,
    prepare=_prepare,
    prepare_combine=_prepare_combine,
)
