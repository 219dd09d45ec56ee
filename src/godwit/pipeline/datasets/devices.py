"""gold/devices: which topics are alive, how often they speak, and when they were silent.

By the time received: a device's own clock may be wrong. A gap is a pause of more than five times the topic's usual one.
Messages of one micro-batch are put in order; between batches the first message of the later one is compared with the
last one known.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from godwit.pipeline.lake import TableSpec
from godwit.pipeline.merging import Merging

GAP_FACTOR: Final = 5
MIN_GAP_S: Final = 1.0
"""A shorter pause is none, however fast a topic is."""
_TIME: Final = pa.timestamp("us", tz="UTC")
_KEYS: Final = ("broker", "topic")

SPEC: Final = TableSpec(
    "gold/devices",
    "one row per (broker, topic)",
    pa.schema(
        [
            ("broker", pa.string()),
            ("topic", pa.string()),
            ("publisher", pa.string()),  # the last one
            ("messages", pa.int64()),
            ("first_received", _TIME),
            ("last_received", _TIME),
            ("interval_s", pa.float64()),  # the usual pause: the mean
            ("longest_gap_s", pa.float64()),
            ("gaps", pa.int64()),
        ]
    ),
    keys=_KEYS,
    checks={
        "it was heard, first and last": "messages >= 1 AND first_received <= last_received",
        "its gaps are among its pauses": "gaps BETWEEN 0 AND messages - 1 AND longest_gap_s >= 0",
    },
)


def partials(messages: DataFrame) -> DataFrame:
    """Of bronze messages. What the broker itself says is no device."""
    rows = messages.where("NOT startswith(topic, '$')").select(*_KEYS, "publisher", "received", "offset")
    order = Window.partitionBy(*_KEYS).orderBy("offset")
    seconds = sf.unix_micros("received") / 1e6
    rows = rows.withColumn("pause_s", seconds - sf.lag(seconds).over(order))
    usual = Window.partitionBy(*_KEYS)
    rows = rows.withColumn("usual_s", sf.avg("pause_s").over(usual))
    is_gap = sf.col("pause_s") > sf.greatest(sf.col("usual_s") * GAP_FACTOR, sf.lit(MIN_GAP_S))
    return rows.groupBy(*_KEYS).agg(
        sf.max_by("publisher", "offset").alias("publisher"),
        sf.count("*").alias("messages"),
        sf.min("received").alias("first_received"),
        sf.max("received").alias("last_received"),
        sf.avg("pause_s").alias("interval_s"),
        sf.coalesce(sf.max("pause_s"), sf.lit(0.0)).alias("longest_gap_s"),
        sf.count_if(is_gap).alias("gaps"),
    )


def merged(rows: DataFrame) -> DataFrame:
    """Of rows of this table with the same keys: the pauses between them count too."""
    order = Window.partitionBy(*_KEYS).orderBy("first_received", "last_received")
    first_s, last_s = sf.unix_micros("first_received") / 1e6, sf.unix_micros("last_received") / 1e6
    rows = rows.withColumn("between_s", sf.greatest(first_s - sf.lag(last_s).over(order), sf.lit(0.0)))
    span_s = (sf.unix_micros(sf.max("last_received")) - sf.unix_micros(sf.min("first_received"))) / 1e6
    count = sf.sum("messages")
    joined = rows.groupBy(*_KEYS).agg(
        sf.max_by("publisher", "last_received").alias("publisher"),
        count.alias("n"),
        sf.min("first_received").alias("first"),
        sf.max("last_received").alias("last"),
        sf.when(count > 1, span_s / (count - 1)).alias("usual_s"),
        sf.greatest(sf.max("longest_gap_s"), sf.max("between_s")).alias("longest_gap_s"),
        sf.sum("gaps").alias("known_gaps"),
        sf.collect_list("between_s").alias("between"),
    )
    limit_s = sf.greatest(sf.col("usual_s") * GAP_FACTOR, sf.lit(MIN_GAP_S))
    new_gaps = sf.size(sf.filter("between", lambda pause_s: pause_s > limit_s))
    return joined.select(
        *_KEYS,
        "publisher",
        sf.col("n").alias("messages"),
        sf.col("first").alias("first_received"),
        sf.col("last").alias("last_received"),
        sf.col("usual_s").alias("interval_s"),
        sf.coalesce("longest_gap_s", sf.lit(0.0)).alias("longest_gap_s"),
        (sf.col("known_gaps") + new_gaps).alias("gaps"),
    )


MERGING: Final = Merging(SPEC, "devices", partials, merged)
