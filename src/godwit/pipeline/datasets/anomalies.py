"""gold/anomalies: readings that deviate from their series, detected as they arrive and published as alerts.

Each series, that is a quantity of a topic of a broker, has its own detector, whose state Spark stores in the
checkpoint until the series has had no readings for STATE_TTL. The readings of a micro-batch are processed in the order
of their times. A repeated batch starts from the same states and finds the same alarms, which the table and the broker
accept once.

The table has one row per event: it is written when the event begins, and replaced when the event becomes worse and when
it has ended. Each of these alarms is also published to the broker that the reading came from, under `alerts/` and the
reading's topic:

    alerts/home/kitchen/temperature
    {"reason": "jump up", "quantity": "temperature", "value": 61.2, "expected": 21.4, "unit": "°C", "score": 0.83, ...}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
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
STATE_TTL: Final = timedelta(days=90)
"""A series without readings for this time is forgotten: its next reading begins a new one."""
_SERIES: Final = ("broker", "topic", "quantity")
_DETECTED: Final = (
    "broker string, topic string, quantity string, offset bigint, time_us bigint, value double, unit string, "
    "expected double, score double, reason string, state string, peak_us bigint, peak_value double, end_us bigint, "
    "alarm_offset bigint, alarm_us bigint, alarm_value double, alarm_expected double"
)
_TIMES: Final = {"event_time": "time_us", "peak_time": "peak_us", "end_time": "end_us", "alarm_time": "alarm_us"}
_MESSAGES: Final = pa.schema([("topic", pa.string()), ("payload", pa.string())])
_QUERY_PROPERTY: Final = "sql.streaming.queryId"

SPEC: Final = TableSpec(
    "gold/anomalies",
    "one row per event: (broker, offset, quantity) of the reading that began it",
    (
        TableColumn("broker", pa.string()),
        TableColumn("offset", pa.int64()),
        TableColumn("quantity", pa.string()),
        TableColumn("topic", pa.string()),
        TableColumn("event_time", TIMESTAMP),
        TableColumn("value", pa.float64()),
        TableColumn("unit", pa.string()),
        TableColumn("expected", pa.float64()),
        TableColumn("score", pa.float64(), "the highest so far, from 0 to 1; at least 1: written before Godwit 0.6"),
        TableColumn("reason", pa.string(), "that of the highest score"),
        TableColumn("state", pa.string(), "begin, worse or end"),
        TableColumn("peak_time", TIMESTAMP, "of the highest score so far"),
        TableColumn("peak_value", pa.float64()),
        TableColumn("end_time", TIMESTAMP, "of the last anomalous reading; null while the event lasts"),
    ),
    keys=("broker", "offset", "quantity"),
    checks={
        "it has a score and a reason": "score > 0 AND reason != ''",
        "it has an end time if it has ended": "state IS NULL OR (state = 'end') = (end_time IS NOT NULL)",
    },
)
_ALARM_COLUMNS: Final = ("alarm_time", "alarm_offset", "alarm_value", "alarm_expected")
"""Of the reading that raised the alarm: published, not stored."""


# -- the query --------------------------------------------------------------------------------------------------------


def start(
    spark: SparkSession, source: Mapping[str, str], lake: Lake, checkpoint: str, trigger: Mapping[str, Any]
) -> StreamingQuery:
    """Start the query that fills the table and publishes alerts.

    `source` are options of format("godwit"); `trigger` are arguments of DataStreamWriter.trigger.
    """
    # Without it, the time to live of the states makes Spark run empty batches without end.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    stream = spark.readStream.format("godwit").options(**source).load()
    alarms = detect(readings.valid(readings.parse(stream)))
    write = _batch_writer(lake, AlertPublisher(source))
    writer = alarms.writeStream.queryName(QUERY_NAME).outputMode("append").foreachBatch(write)
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def detect(stream: DataFrame) -> DataFrame:
    """Return a row for each alarm from a stream of readings: the columns of this table, and _ALARM_COLUMNS."""
    rows = stream.select(*_SERIES, "offset", sf.unix_micros("event_time").alias("time_us"), "value", "unit")
    # The time to live of the states needs this time mode.
    found = rows.groupBy(*_SERIES).transformWithState(_SeriesProcessor(), _DETECTED, "append", "ProcessingTime")
    times = {name: sf.timestamp_micros(column) for name, column in _TIMES.items()}
    return found.withColumns(times).select(*SPEC.schema.names, *_ALARM_COLUMNS)


class _SeriesProcessor(StatefulProcessor):
    """Runs the detectors on an executor, one series after another."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("detector", "state binary", STATE_TTL // timedelta(milliseconds=1))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803  # Spark's
        known = self._state.get()
        detector = Detector() if known is None else Detector.from_bytes(bytes(known[0]))
        broker, topic, quantity = key
        for row in sorted(rows, key=lambda one: (one.time_us, one.offset)):
            alarm = detector.update(row.time_us, row.value, row.offset)
            if alarm is not None:
                yield Row(
                    broker=broker,
                    topic=topic,
                    quantity=quantity,
                    offset=alarm.begin_position,
                    time_us=alarm.begin_us,
                    value=alarm.begin_value,
                    unit=row.unit,
                    expected=alarm.begin_expected,
                    score=alarm.score,
                    reason=alarm.reason,
                    state=alarm.state,
                    peak_us=alarm.peak_us,
                    peak_value=alarm.peak_value,
                    end_us=alarm.end_us,
                    alarm_offset=row.offset,
                    alarm_us=row.time_us,
                    alarm_value=row.value,
                    alarm_expected=alarm.expected,
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
        order = ("alarm_time", "broker", "alarm_offset", "quantity")
        alarms = found.toArrow().sort_by([(name, "ascending") for name in order]).to_pylist()
        if alarms:
            table.upsert(newest_rows(alarms), {query: batch})
            table.maintain(None, RETENTION_HOURS)
            publisher.publish(spark, alarms, query, batch)

    return write


def newest_rows(alarms: list[dict[str, Any]]) -> pa.Table:
    """Return the rows of this table for alarms in their order: one per event, from its last alarm."""
    events = {tuple(one[key] for key in SPEC.keys): one for one in alarms}
    return pa.Table.from_pylist(list(events.values()), SPEC.schema)


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
        """Publish the alarms of a micro-batch, rows of `detect`, each to its broker. A repeated call does nothing.

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
    """Return the messages, with topic and payload, for rows of `detect`."""
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
        "value": alarm["alarm_value"],
        "expected": round(alarm["alarm_expected"], 6),
        "unit": alarm["unit"],
        "score": round(alarm["score"], 3),
        "time": alarm["alarm_time"].isoformat(),
        "offset": alarm["alarm_offset"],
        "state": alarm["state"],
        "begin": alarm["event_time"].isoformat(),
        "begin_offset": alarm["offset"],
        "peak": alarm["peak_value"],
        "peak_time": alarm["peak_time"].isoformat(),
    }
    if alarm["end_time"] is not None:
        fields["end"] = alarm["end_time"].isoformat()
    return json.dumps(fields, ensure_ascii=False)
