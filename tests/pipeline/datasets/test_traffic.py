"""How much each publisher sends, in a real Spark session."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import SparkSession
from tests.pipeline.rows import NOON, day, local, messages

from godwit.pipeline.datasets import traffic
from godwit.pipeline.merging import rebuilt


def test_traffic_of_each_hour(spark: SparkSession) -> None:
    sent = [*day(), (10_000, "home/three", "b", 7199.0, b"12345")]
    found = rebuilt(traffic.MERGING, messages(spark, sent)).orderBy("publisher", "hour").collect()
    second = local(NOON + timedelta(hours=1))
    of_b = [row for row in found if row.publisher == "b"]
    assert [(row.messages, row.topics, row.payload_bytes) for row in of_b] == [
        (180, 1, 180 * len(b'{"t": 1000000.25}')), (181, 2, 180 * len(b'{"t": 1000000.25}') + 5),
    ]  # fmt: skip
    assert (of_b[1].hour, of_b[1].last_received - second) == (second, timedelta(seconds=3599))
    assert {row.publisher: row.messages for row in found if row.hour == second} == {"$broker": 18, "a": 160, "b": 181}
