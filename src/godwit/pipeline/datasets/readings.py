"""silver/readings: the numbers in messages, typed, with one unit for each quantity; and what could not be read.

A message's event time is its payload's, else when it was published, else when it was received. One that lies more than
five minutes after it was received cannot be, and goes to quarantine with the rest of what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline import parsing
from godwit.pipeline.lake import TableSpec

_TIME: Final = pa.timestamp("us", tz="UTC")
MAX_AHEAD_US: Final = 5 * 60 * 1_000_000
NOT_READINGS: Final = ("$", "alerts/")
"""Topics that begin so hold something else."""

SPEC: Final = TableSpec(
    "silver/readings",
    "one row per number in a message: (broker, offset, quantity)",
    pa.schema(
        [
            ("broker", pa.string()),
            ("offset", pa.int64()),
            ("quantity", pa.string()),
            ("topic", pa.string()),
            ("publisher", pa.string()),
            ("device", pa.string()),
            ("event_time", _TIME),
            ("value", pa.float64()),
            ("unit", pa.string()),
            ("extra", pa.string()),
            ("received", _TIME),
            ("schema_version", pa.int32()),
        ]
    ),
    keys=("broker", "offset", "quantity"),
    checks={
        "its value is a number": f"NOT isnan(value) AND abs(value) <= {parsing.GREATEST:g}",
        "it has a quantity and a time": "quantity != '' AND event_time IS NOT NULL",
        "its time is at most five minutes after it was received": (
            f"unix_micros(event_time) - unix_micros(received) <= {MAX_AHEAD_US}"
        ),
    },
)
QUARANTINE: Final = TableSpec(
    "silver/quarantine",
    "one row per message that is no reading: (broker, offset)",
    pa.schema(
        [
            ("broker", pa.string()),
            ("offset", pa.int64()),
            ("topic", pa.string()),
            ("publisher", pa.string()),
            ("published", _TIME),
            ("received", _TIME),
            ("reason", pa.string()),
            ("detail", pa.string()),
            ("payload", pa.binary()),
            ("schema_version", pa.int32()),
        ]
    ),
    keys=("broker", "offset"),
    checks={"it says why": "reason != '' AND detail != ''", "the message is kept": "payload IS NOT NULL"},
)
_BOTH: Final = pa.schema([*SPEC.schema, *[one for one in QUARANTINE.schema if one.name not in SPEC.schema.names]])


def read(messages: DataFrame) -> DataFrame:
    """Readings and problems of messages, told apart by `reason`: null for a reading."""
    wanted = messages
    for prefix in NOT_READINGS:
        wanted = wanted.where(~messages.topic.startswith(prefix))
    wanted = wanted.select("broker", "offset", "topic", "publisher", "published", "received", "payload")
    return wanted.mapInArrow(_read, from_arrow_schema(_BOTH))


def good(both: DataFrame) -> DataFrame:
    """The readings of what `read` gave."""
    return both.where("reason IS NULL").select(*SPEC.schema.names)


def bad(both: DataFrame) -> DataFrame:
    """What goes to quarantine."""
    return both.where("reason IS NOT NULL").select(*QUARANTINE.schema.names)


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor."""
    for batch in batches:
        columns: dict[str, list[Any]] = {name: [] for name in _BOTH.names}
        times = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("published", "received")]
        plain = [batch.column(name).to_pylist() for name in ("broker", "offset", "topic", "publisher", "payload")]
        for broker, offset, topic, publisher, payload, published_us, received_us in zip(*plain, *times, strict=True):
            for row in _rows(broker, offset, topic, publisher, payload, published_us, received_us):
                for name, values in columns.items():
                    values.append(row.get(name))
        arrays = [pa.array(values, _BOTH.field(name).type) for name, values in columns.items()]
        yield pa.RecordBatch.from_arrays(arrays, schema=_BOTH)


def _rows(
    broker: str, offset: int, topic: str, publisher: str, payload: bytes, published_us: int, received_us: int
) -> list[dict[str, Any]]:
    common = {
        "broker": broker,
        "offset": offset,
        "topic": topic,
        "publisher": publisher,
        "received": received_us,
        "schema_version": parsing.SCHEMA_VERSION,
    }
    found = parsing.parse(payload, topic)
    if isinstance(found, parsing.Parsed):
        published_us = published_us if published_us >= parsing.EARLIEST_US else received_us
        time_us = found.time_us or published_us
        if time_us <= received_us + MAX_AHEAD_US:
            return [
                common
                | {"quantity": one.quantity, "value": one.value, "unit": one.unit}
                | {"device": found.device, "event_time": time_us, "extra": found.extra}
                for one in found.readings
            ]
        ahead_s = (time_us - received_us) // 1_000_000
        found = parsing.Problem("time in the future", f"its time is {ahead_s} s after it was received")
    problem = {"reason": found.reason, "detail": found.detail, "payload": payload, "published": published_us}
    return [common | problem]
