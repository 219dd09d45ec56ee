"""gold/anomalies: readings that deviate from their series, detected as they arrive and published as alerts.

godwit.pipeline.detection runs the detectors. The table has one row per event: it is written when the event begins, and
replaced when the event becomes worse and when it has ended. Each of these alarms is also published to the broker that
the reading came from, under `alerts/` and the reading's topic; the broker accepts each of them once.

    alerts/home/kitchen/temperature
    {"reason": "jump up", "quantity": "temperature", "value": 61.2, "expected": 21.4, "unit": "°C", "score": 0.83, ...}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline.detector import Alarm
from godwit.pipeline.lake import TIMESTAMP, TableColumn, TableSpec
from godwit.spark.archive import ArchiveError
from godwit.spark.options import WRITING, read_options, write_options
from godwit.spark.replicas import open_archive
from godwit.spark.sink import BatchWriter

ALERT_PREFIX: Final = "alerts/"
ALERT_PUBLISHER: Final = "pipeline"
MAX_TOPIC_BYTES: Final = 1024
MAX_TOPIC_LEVELS: Final = 64
"""The broker's limits. A topic that exceeds them with the prefix is only named in the payload."""
_MESSAGES: Final = pa.schema([("topic", pa.string()), ("payload", pa.string())])

SPEC: Final = TableSpec(
    "gold/anomalies",
    "one row per event: (broker, offset, quantity, name) of the reading that began it",
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
        TableColumn("name", pa.string(), "which sensor or field of the message; empty for the only one", missing=""),
    ),
    keys=("broker", "offset", "quantity", "name"),
    expires_by="event_time",
    checks={
        "it has a score and a reason": "score > 0 AND reason != ''",
        "it has an end time if it has ended": "state IS NULL OR (state = 'end') = (end_time IS NOT NULL)",
    },
)


def alarm_row(series: Mapping[str, Any], offset: int, unit: str, alarm: Alarm) -> dict[str, Any]:
    """Return an alarm of a series: its broker, topic, quantity and name. This runs on executors.

    It has the columns of the table, and for the message those of the reading that raised it, which begin with "alarm_".
    """
    return {
        "broker": series["broker"],
        "offset": alarm.begin_position,
        "quantity": series["quantity"],
        "topic": series["topic"],
        "event_time": _moment(alarm.begin_us),
        "value": alarm.begin_value,
        "unit": unit,
        "expected": alarm.begin_expected,
        "score": alarm.score,
        "reason": alarm.reason,
        "state": alarm.state,
        "peak_time": _moment(alarm.peak_us),
        "peak_value": alarm.peak_value,
        "end_time": None if alarm.end_us is None else _moment(alarm.end_us),
        "name": series["name"],
        "alarm_time": _moment(alarm.time_us),
        "alarm_offset": offset,
        "alarm_value": alarm.value,
        "alarm_expected": alarm.expected,
    }


def _moment(time_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)


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

    def publish(self, alarms: list[dict[str, Any]], query: str, batch: int) -> None:
        """Publish the alarms of a step, results of `alarm_row`, each to its broker. A repeated call does nothing.

        Raise ArchiveError if no archive has the log of an alarm.
        """
        for broker in sorted({one["broker"] for one in alarms}):
            rows = alert_messages([one for one in alarms if one["broker"] == broker])
            options = self._options | {"archive": self._address(broker), "publisher": ALERT_PUBLISHER}
            options |= {"query": query, "batch": str(batch)}
            writer = BatchWriter(write_options(options), from_arrow_schema(rows.schema))
            writer.commit([writer.write(iter(rows.to_batches()))])  # they are few: no job of Spark

    def _address(self, broker: str) -> str:
        if broker not in self._addresses:
            for address in self._access.addresses:
                self._addresses[open_archive(address, self._access).info()["log_id"]] = address
        if broker not in self._addresses:
            raise ArchiveError(
                f"an alert is for log {broker}, and none of the archives has that log now: name its archive too"
            )
        return self._addresses[broker]


def alert_messages(alarms: list[dict[str, Any]]) -> pa.Table:
    """Return the messages, with topic and payload, for results of `alarm_row`."""
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
    if alarm["name"]:
        fields["name"] = alarm["name"]
    if alarm["end_time"] is not None:
        fields["end"] = alarm["end_time"].isoformat()
    return json.dumps(fields, ensure_ascii=False)
