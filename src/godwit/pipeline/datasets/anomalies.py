"""gold/anomalies: readings that deviate from their series, detected as they arrive and published as alerts.

Each series, that is a quantity and name of a topic of a broker, has its own detector, whose state Spark stores in the
checkpoint. The readings of a micro-batch are processed in the order of their times. A repeated batch starts from the
same states and finds the same alarms, which the table and the broker accept once.

An alarm is published to the broker that its reading came from, under `alerts/` and the reading's topic:

    alerts/home/kitchen/temperature
    {"reason": "jump up", "quantity": "temperature", "value": 61.2, "expected": 21.4, "unit": "°C", "score": 3.1, ...}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from godwit.pipeline.datasets import readings
from godwit.pipeline.detector import Detector
from godwit.pipeline.lake import TIMESTAMP, Lake, TableColumn, TableSpec
from godwit.spark.archive import Archive, ArchiveError
from godwit.spark.options import WRITING, read_options

QUERY_NAME: Final = "anomalies"
RETENTION_HOURS: Final = 24
"""For this time after a change, readers can still use the files of their snapshot."""
ALERT_PREFIX: Final = "alerts/"
ALERT_PUBLISHER: Final = "pipeline"
MAX_TOPIC_BYTES: Final = 1024
MAX_TOPIC_LEVELS: Final = 64
"""The broker's limits. A topic that exceeds them with the prefix is only named in the payload."""
_SERIES: Final = ("broker", "topic", "quantity")
_NAME_SEPARATOR: Final = "\n"
"""Between quantity and name in the key of a series. The key has the columns of version 0.5, as Spark stores it."""
_DETECTED: Final = (
    "broker string, topic string, quantity string, name string, offset bigint, time_us bigint, value double, "
    "unit string, expected double, score double, reason string"
)
_MESSAGES: Final = pa.schema([("topic", pa.string()), ("payload", pa.string())])
_QUERY_PROPERTY: Final = "sql.streaming.queryId"

SPEC: Final = TableSpec(
    "gold/anomalies",
    "one row per alarm: (broker, offset, quantity, name) of the reading that raised it",
    (
        TableColumn("broker", pa.string()),
        TableColumn("offset", pa.int64()),
        TableColumn("quantity", pa.string()),
        TableColumn("topic", pa.string()),
        TableColumn("event_time", TIMESTAMP),
        TableColumn("value", pa.float64()),
        TableColumn("unit", pa.string()),
        TableColumn("expected", pa.float64()),
        TableColumn("score", pa.float64(), "as a multiple of the detector's limit: at least 1"),
        TableColumn("reason", pa.string()),
        TableColumn("name", pa.string(), "which sensor or field of the message; empty for the only one", missing=""),
    ),
    keys=("broker", "offset", "quantity", "name"),
    checks={"it is beyond the limit, and has a reason": "score >= 1 AND reason != ''"},
)


# -- the query --------------------------------------------------------------------------------------------------------


def start(
    spark: SparkSession,
    source: Mapping[str, str],
    lake: Lake,
    checkpoint: str,
    trigger: Mapping[str, Any],
    decoding: readings.Decoding | None = None,
) -> StreamingQuery:
    """Start the query that fills the table and publishes alerts.

    `source` are options of format("godwit"); `trigger` are arguments of DataStreamWriter.trigger; `decoding` tells how
    messages are decoded.
    """
    stream = spark.readStream.format("godwit").options(**source).load()
    alarms = detect(readings.valid(readings.parse(stream, decoding)))
    write = _batch_writer(lake, AlertPublisher(source))
    writer = alarms.writeStream.queryName(QUERY_NAME).outputMode("append").foreachBatch(write)
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def detect(stream: DataFrame) -> DataFrame:
    """Return rows of this table from a stream of readings."""
    name = sf.coalesce("name", sf.lit(""))
    series = sf.when(name == "", sf.col("quantity")).otherwise(sf.concat_ws(_NAME_SEPARATOR, "quantity", name))
    stream = stream.withColumn("quantity", series)
    rows = stream.select(*_SERIES, "offset", sf.unix_micros("event_time").alias("time_us"), "value", "unit")
    found = rows.groupBy(*_SERIES).transformWithState(_SeriesProcessor(), _DETECTED, "append", "none")
    return found.withColumn("event_time", sf.timestamp_micros("time_us")).select(*SPEC.schema.names)


class _SeriesProcessor(StatefulProcessor):
    """Runs the detectors on an executor, one series after another."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("detector", "state binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803  # Spark's
        known = self._state.get()
        detector = Detector() if known is None else Detector.from_bytes(bytes(known[0]))
        broker, topic, series = key
        quantity, _, name = series.partition(_NAME_SEPARATOR)
        for row in sorted(rows, key=lambda one: (one.time_us, one.offset)):
            alarm = detector.update(row.time_us, row.value)
            if alarm is not None:
                yield Row(
                    broker=broker,
                    topic=topic,
                    quantity=quantity,
                    name=name,
                    offset=row.offset,
                    time_us=row.time_us,
                    value=row.value,
                    unit=row.unit,
                    expected=alarm.expected,
                    score=alarm.score,
                    reason=alarm.reason,
                )
        self._state.update((detector.to_bytes(),))

    def close(self) -> None:
        """Spark requires this method; there is nothing to close."""


def _batch_writer(lake: Lake, publisher: AlertPublisher) -> Callable[[DataFrame, int], None]:
    table = lake.table(SPEC)

    def write(found: DataFrame, batch: int) -> None:
        spark = found.sparkSession
        query = spark.sparkContext.getLocalProperty(_QUERY_PROPERTY)
        assert query is not None, "foreachBatch runs within a streaming query"
        # Evaluated once only: each evaluation runs the detectors again. Alarms are few and fit on the driver.
        order = ("event_time", "broker", "offset", "quantity", "name")
        rows = found.toArrow().sort_by([(key, "ascending") for key in order])
        if rows.num_rows:
            table.append_arrow(rows, {query: batch})
            table.maintain(None, RETENTION_HOURS)
            publisher.publish(spark, rows.to_pylist(), query, batch)

    return write


# -- alerts -----------------------------------------------------------------------------------------------------------


class AlertPublisher:
    """Publishes alarms through the archives that the readings come from."""

    def __init__(self, source: Mapping[str, str]) -> None:
        """`source`: the options of format("godwit") by which readings are read."""
        known = {name.lower() for name in WRITING}
        self._options = {name: text for name, text in source.items() if name.lower() in known - {"archive"}}
        self._access = read_options(source, is_stream=True).access
        self._addresses: dict[str, str] = {}
        """By the id of the broker's log."""

    def publish(self, spark: SparkSession, alarms: list[dict[str, Any]], query: str, batch: int) -> None:
        """Publish the alarms of a micro-batch, rows of this table, each to its broker. A repeated call does nothing.

        Raise ArchiveError if no archive has the log of an alarm.
        """
        for broker in sorted({one["broker"] for one in alarms}):
            rows = alert_messages([one for one in alarms if one["broker"] == broker])
            options = self._options | {"archive": self._address(broker), "publisher": ALERT_PUBLISHER}
            options |= {"query": query, "batch": str(batch)}
            # One partition keeps their order in the log.
            frame = spark.createDataFrame(rows).coalesce(1)
            frame.write.format("godwit").options(**options).mode("append").save()

    def _address(self, broker: str) -> str:
        if broker not in self._addresses:
            for address in self._access.addresses:
                self._addresses[Archive(address, self._access).info()["log_id"]] = address
        if broker not in self._addresses:
            raise ArchiveError(
                f"an alert is for log {broker}, and none of the archives has that log now: name its archive too"
            )
        return self._addresses[broker]


def alert_messages(alarms: list[dict[str, Any]]) -> pa.Table:
    """Return the messages, with topic and payload, for rows of this table."""
    rows = [{"topic": _alert_topic(one["topic"]), "payload": _alert_payload(one)} for one in alarms]
    return pa.Table.from_pylist(rows, _MESSAGES)


def _alert_topic(reading_topic: str) -> str:
    full = ALERT_PREFIX + reading_topic
    fits = len(full.encode()) <= MAX_TOPIC_BYTES and full.count("/") < MAX_TOPIC_LEVELS
    return full if fits else ALERT_PREFIX + "other"


def _alert_payload(alarm: Mapping[str, Any]) -> str:
    fields = {
        "reason": alarm["reason"],
        "topic": alarm["topic"],
        "quantity": alarm["quantity"],
        **({"name": alarm["name"]} if alarm.get("name") else {}),
        "value": alarm["value"],
        "expected": round(alarm["expected"], 6),
        "unit": alarm["unit"],
        "score": round(alarm["score"], 2),
        "time": alarm["event_time"].isoformat(),
        "offset": alarm["offset"],
    }
    return json.dumps(fields, ensure_ascii=False)
