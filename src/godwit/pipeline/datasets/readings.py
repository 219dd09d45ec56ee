"""silver/readings: the numbers in messages, typed, with one unit for each quantity; and silver/quarantine.

The event time of a message is the time in its payload, else the time of publishing, else the time of receipt. A message
whose event time is more than five minutes after its receipt goes to quarantine, as does one that cannot be parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline import payload as payloads
from godwit.pipeline.lake import TIMESTAMP, TableColumn, TableSpec

MAX_AHEAD_US: Final = 5 * 60 * 1_000_000
NOT_READINGS: Final = ("$", "alerts/")
"""Prefixes of topics whose messages are not parsed."""

SPEC: Final = TableSpec(
    "silver/readings",
    "one row per number in a message: (broker, offset, quantity)",
    (
        TableColumn("broker", pa.string()),
        TableColumn("offset", pa.int64()),
        TableColumn("quantity", pa.string()),
        TableColumn("topic", pa.string()),
        TableColumn("publisher", pa.string()),
        TableColumn("device", pa.string(), "if the payload names one"),
        TableColumn("event_time", TIMESTAMP),
        TableColumn("value", pa.float64(), "in `unit`"),
        TableColumn("unit", pa.string(), "one for each quantity"),
        TableColumn("extra", pa.string(), "JSON of the other fields"),
        TableColumn("received", TIMESTAMP),
        TableColumn("schema_version", pa.int32(), "1; grows when the meaning of a field or a unit changes"),
    ),
    keys=("broker", "offset", "quantity"),
    checks={
        "its value is a number": f"NOT isnan(value) AND abs(value) <= {payloads.GREATEST:g}",
        "it has a quantity and a time": "quantity != '' AND event_time IS NOT NULL",
        "its time is at most five minutes after it was received": (
            f"unix_micros(event_time) - unix_micros(received) <= {MAX_AHEAD_US}"
        ),
    },
)
QUARANTINE: Final = TableSpec(
    "silver/quarantine",
    "one row per message that is not a reading: (broker, offset)",
    (
        TableColumn("broker", pa.string()),
        TableColumn("offset", pa.int64()),
        TableColumn("topic", pa.string()),
        TableColumn("publisher", pa.string()),
        TableColumn("published", TIMESTAMP),
        TableColumn("received", TIMESTAMP),
        TableColumn("reason", pa.string(), "one of the above, to count by"),
        TableColumn("detail", pa.string(), "the exact error"),
        TableColumn("payload", pa.binary()),
        TableColumn("schema_version", pa.int32()),
    ),
    keys=("broker", "offset"),
    checks={"it has a reason": "reason != '' AND detail != ''", "its payload is stored": "payload IS NOT NULL"},
)
_INPUT: Final = ("broker", "offset", "topic", "publisher", "published", "received", "payload")
_READINGS: Final = SPEC.schema
_REJECTED: Final = QUARANTINE.schema
"""Executors have the schemas, and not the definitions of the tables."""
PARSED: Final = pa.schema([*SPEC.schema, *[one for one in QUARANTINE.schema if one.name not in SPEC.schema.names]])


def parse(messages: DataFrame) -> DataFrame:
    """Parse rows of bronze. Return readings and rejected messages together; `reason` is null for a reading."""
    wanted = messages.select(*_INPUT)
    return wanted.mapInArrow(parse_batches, from_arrow_schema(PARSED))


def valid(parsed: DataFrame) -> DataFrame:
    """Return the rows of silver/readings from the result of `parse`."""
    return parsed.where("reason IS NULL").select(*SPEC.schema.names)


def rejected(parsed: DataFrame) -> DataFrame:
    """Return the rows of silver/quarantine from the result of `parse`."""
    return parsed.where("reason IS NOT NULL").select(*QUARANTINE.schema.names)


def decode_batch(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the rows of silver/readings and of silver/quarantine for rows of bronze. This runs on executors."""
    columns: dict[str, list[Any]] = {name: [] for name in _READINGS.names}
    rejected: dict[str, list[Any]] = {name: [] for name in _REJECTED.names}
    times = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("published", "received")]
    plain = [batch.column(name).to_pylist() for name in ("broker", "offset", "topic", "publisher", "payload")]
    for broker, offset, topic, publisher, payload, published_us, received_us in zip(*plain, *times, strict=True):
        if topic.startswith(NOT_READINGS):
            continue
        for row in _rows(broker, offset, topic, publisher, payload, published_us, received_us):
            target = rejected if "reason" in row else columns
            for name, values in target.items():
                values.append(row.get(name))
    return _to_batch(columns, _READINGS), _to_batch(rejected, _REJECTED)


def _to_batch(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(values, schema.field(name).type) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def parse_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parse messages on an executor."""
    for batch in batches:
        for found in decode_batch(batch):
            nulls = {one.name: pa.nulls(found.num_rows, one.type) for one in PARSED}
            columns = nulls | dict(zip(found.schema.names, found.columns, strict=True))
            yield pa.RecordBatch.from_arrays(list(columns.values()), schema=PARSED)


def _rows(
    broker: str, offset: int, topic: str, publisher: str, payload: bytes, published_us: int, received_us: int
) -> list[dict[str, Any]]:
    """Return one row for each reading of a message, or one row with the reason why there is none."""
    common = {
        "broker": broker,
        "offset": offset,
        "topic": topic,
        "publisher": publisher,
        "received": received_us,
        "schema_version": payloads.SCHEMA_VERSION,
    }
    found = payloads.parse(payload, topic)
    if isinstance(found, payloads.ParsedPayload):
        published_us = published_us if published_us >= payloads.EARLIEST_US else received_us
        time_us = found.time_us or published_us
        if time_us <= received_us + MAX_AHEAD_US:
            return [
                common
                | {"quantity": one.quantity, "value": one.value, "unit": one.unit}
                | {"device": found.device, "event_time": time_us, "extra": found.extra}
                for one in found.readings
            ]
        ahead_s = (time_us - received_us) // 1_000_000
        found = payloads.RejectedPayload("time in the future", f"its time is {ahead_s} s after it was received")
    rejection = {"reason": found.reason, "detail": found.detail, "payload": payload, "published": published_us}
    return [common | rejection]
