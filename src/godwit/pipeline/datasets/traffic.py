"""gold/traffic: messages and bytes by publisher and hour."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from godwit.pipeline.datasets import bronze
from godwit.pipeline.gold_table import GoldColumn, GoldTable
from godwit.pipeline.lake import TIMESTAMP, TableSpec

SPEC: Final = TableSpec(
    "gold/traffic",
    "one row per (broker, publisher, hour received)",
    (
        GoldColumn("broker", pa.string()),
        GoldColumn("publisher", pa.string()),
        GoldColumn("hour", TIMESTAMP),
        GoldColumn("messages", pa.int64(), aggregate="count(*)", combine="sum(messages)"),
        GoldColumn("payload_bytes", pa.int64(), aggregate="sum(octet_length(payload))", combine="sum(payload_bytes)"),
        GoldColumn(
            "topics", pa.int64(), "distinct, estimated from the sketch", derived="hll_sketch_estimate(topics_sketch)"
        ),
        GoldColumn(
            "topics_sketch",
            pa.binary(),
            "HyperLogLog of Apache DataSketches",
            aggregate="hll_sketch_agg(topic)",
            combine="hll_union_agg(topics_sketch)",
        ),
        GoldColumn("first_received", TIMESTAMP, aggregate="min(received)", combine="min(first_received)"),
        GoldColumn("last_received", TIMESTAMP, aggregate="max(received)", combine="max(last_received)"),
    ),
    keys=("broker", "publisher", "hour"),
    checks={
        "it counts at least one message, of at least one topic": "messages >= 1 AND topics >= 1 AND payload_bytes >= 0",
        "first and last lie in its hour": (
            "first_received >= hour AND first_received <= last_received AND last_received < hour + INTERVAL 1 HOUR"
        ),
    },
    time="hour",
    expires_by="hour",
    is_merged=True,
)


def _prepare(messages: DataFrame) -> DataFrame:
    return messages.withColumn("hour", sf.date_trunc("hour", "received"))


_ROWS: Final = "SELECT *, make_timestamptz(epoch_us(received) // 3600000000 * 3600000000) AS hour FROM source"

TABLE: Final = GoldTable(SPEC, "traffic", bronze.SPEC, source_time="received", rows_sql=_ROWS, prepare=_prepare)
