"""The job with which `godwit bench pipeline` compares: bronze and silver from JSON lines, by Spark's own functions.

It is written for the one format of the benchmark's messages, and makes Parquet files without a transaction log.
"""

from __future__ import annotations

from typing import Final

from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

LINE: Final = (
    "broker string, offset bigint, topic string, publisher string, published bigint, received bigint, qos tinyint, "
    "retained boolean, payload string"
)
PAYLOAD: Final = "temperature double, humidity double, time double, device string"


def run(spark: SparkSession, lines: str, target: str) -> int:
    """Write bronze, silver and quarantine below `target` from JSON lines; return the number of messages."""
    messages = spark.read.schema(LINE).json(lines)
    messages = messages.withColumns(
        {
            "published": sf.timestamp_micros("published"),
            "received": sf.timestamp_micros("received"),
            "parsed": sf.from_json("payload", PAYLOAD),
        }
    ).persist(StorageLevel.MEMORY_AND_DISK)  # three tables are made from one pass over the lines
    bronze = messages.drop("parsed").withColumn("payload", sf.col("payload").cast("binary"))
    bronze.write.parquet(f"{target}/bronze")
    is_reading = "parsed.temperature IS NOT NULL OR parsed.humidity IS NOT NULL"
    readings = messages.where(is_reading).selectExpr(
        "broker",
        "offset",
        "topic",
        "publisher",
        "parsed.device AS device",
        "coalesce(timestamp_micros(cast(parsed.time * 1e6 AS bigint)), published) AS event_time",
        "received",
        "stack(2, 'temperature', parsed.temperature, '°C', 'humidity', parsed.humidity, '%') "
        "AS (quantity, value, unit)",
    )
    readings.where("value IS NOT NULL").write.parquet(f"{target}/silver")
    messages.where(f"NOT ({is_reading})").drop("parsed").write.parquet(f"{target}/quarantine")
    return int(spark.read.parquet(f"{target}/bronze").count())
