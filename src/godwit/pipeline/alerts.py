"""Alarms as messages: each goes to the broker that its reading came from, under `alerts/` and the reading's topic.

    alerts/home/kitchen/temperature
    {"reason": "jump up", "quantity": "temperature", "value": 61.2, "expected": 21.4, "unit": "°C", "score": 3.1, ...}

The broker takes a batch of a query once: an alert stands in its log once, however often the batch is done again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from godwit.spark.archive import Archive, ArchiveError
from godwit.spark.options import WRITING, read_options

PREFIX: Final = "alerts/"
PUBLISHER: Final = "pipeline"
MAX_TOPIC_BYTES: Final = 1024
MAX_TOPIC_LEVELS: Final = 64
"""Limits of the broker's. A topic that has no room for the prefix is told in the payload only."""
MESSAGES: Final = pa.schema([("topic", pa.string()), ("payload", pa.string())])


def messages(alarms: list[dict[str, Any]]) -> pa.Table:
    """Of rows of gold/anomalies."""
    rows = [{"topic": topic(one["topic"]), "payload": payload(one)} for one in alarms]
    return pa.Table.from_pylist(rows, MESSAGES)


def topic(of_reading: str) -> str:
    full = PREFIX + of_reading
    has_room = len(full.encode()) <= MAX_TOPIC_BYTES and full.count("/") < MAX_TOPIC_LEVELS
    return full if has_room else PREFIX + "other"


def payload(alarm: Mapping[str, Any]) -> str:
    told = {
        "reason": alarm["reason"],
        "topic": alarm["topic"],
        "quantity": alarm["quantity"],
        "value": alarm["value"],
        "expected": round(alarm["expected"], 6),
        "unit": alarm["unit"],
        "score": round(alarm["score"], 2),
        "time": alarm["event_time"].isoformat(),
        "offset": alarm["offset"],
    }
    return json.dumps(told, ensure_ascii=False)


class Alerts:
    """Where alerts go to: the archives that readings come from, by the options they are read with."""

    def __init__(self, source: Mapping[str, str]) -> None:
        known = {name.lower() for name in WRITING}
        self._options = {name: text for name, text in source.items() if name.lower() in known - {"archive"}}
        self._place = read_options(source, is_stream=True).place
        self._addresses: dict[str, str] = {}
        """By the id of the broker's log."""

    def write(self, spark: SparkSession, alarms: list[dict[str, Any]], query: str, batch: int) -> None:
        """All alarms of a micro-batch, each to its broker, once."""
        for broker in sorted({one["broker"] for one in alarms}):
            rows = messages([one for one in alarms if one["broker"] == broker])
            options = self._options | {"archive": self._address(broker), "publisher": PUBLISHER}
            options |= {"query": query, "batch": str(batch)}
            # One partition, so that they stand in the log in their order.
            frame = spark.createDataFrame(rows).coalesce(1)
            frame.write.format("godwit").options(**options).mode("append").save()

    def _address(self, broker: str) -> str:
        if broker not in self._addresses:
            for address in self._place.addresses:
                self._addresses[Archive(address, self._place).info()["log_id"]] = address
        if broker not in self._addresses:
            raise ArchiveError(
                f"an alert is for log {broker}, and none of the archives has that log now: name its archive too"
            )
        return self._addresses[broker]
