"""gold/traffic: how much each publisher sends."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from godwit.pipeline.lake import TableSpec
from godwit.pipeline.merging import Merging

_TIME: Final = pa.timestamp("us", tz="UTC")
_KEYS: Final = ("broker", "publisher", "hour")

SPEC: Final = TableSpec(
    "gold/traffic",
    "one row per (broker, publisher, hour received)",
    pa.schema(
        [
            ("broker", pa.string()),
            ("publisher", pa.string()),
            ("hour", _TIME),
            ("messages", pa.int64()),
            ("payload_bytes", pa.int64()),
            ("topics", pa.int64()),  # about: from the sketch
            ("topics_sketch", pa.binary()),
            ("first_received", _TIME),
            ("last_received", _TIME),
        ]
    ),
    keys=_KEYS,
    checks={
        "it counts at least one message, of at least one topic": "messages >= 1 AND topics >= 1 AND payload_bytes >= 0",
        "first and last lie in its hour": (
            "first_received >= hour AND first_received <= last_received AND last_received < hour + INTERVAL 1 HOUR"
        ),
    },
    time="hour",
)


def partials(messages: DataFrame) -> DataFrame:
    """Of bronze messages."""
    rows = messages.withColumn("hour", sf.date_trunc("hour", "received"))
    return _finished(
        rows.groupBy(*_KEYS).agg(
            sf.count("*").alias("messages"),
            sf.sum(sf.length("payload")).alias("payload_bytes"),
            sf.hll_sketch_agg("topic").alias("topics_sketch"),
            sf.min("received").alias("first_received"),
            sf.max("received").alias("last_received"),
        )
    )


def merged(rows: DataFrame) -> DataFrame:
    """Of rows of this table with the same keys."""
    return _finished(
        rows.groupBy(*_KEYS).agg(
            sf.sum("messages").alias("messages"),
            sf.sum("payload_bytes").alias("payload_bytes"),
            sf.hll_union_agg("topics_sketch").alias("topics_sketch"),
            sf.min("first_received").alias("first_received"),
            sf.max("last_received").alias("last_received"),
        )
    )


def _finished(rows: DataFrame) -> DataFrame:
    return rows.withColumn("topics", sf.hll_sketch_estimate("topics_sketch"))


MERGING: Final = Merging(SPEC, "traffic", partials, merged)
