"""silver/readings: the numbers in messages, typed, with one unit for each quantity; and silver/quarantine.

The decoders of godwit.pipeline.decoders read the payloads. The event time of a reading is its own time, that of its
message, or else the time of publishing or of receipt. A message whose event time is more than five minutes after its
receipt goes to quarantine, as does one that no decoder reads. A message that is decoded and has no readings, such as a
definition or a status, is in neither table.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.pipeline.datasets.definitions import DefinitionRow
from godwit.pipeline.datasets.reading_columns import MessageTimes, ReadingColumns, read_columns
from godwit.pipeline.decoders.base import Definitions
from godwit.pipeline.decoders.content import EARLIEST_US
from godwit.pipeline.decoders.results import Decoded, Rejected
from godwit.pipeline.decoders.selection import DecoderRule, DecoderSet, decoder_set
from godwit.pipeline.lake import TIMESTAMP, TableColumn, TableSpec
from godwit.pipeline.quantities import GREATEST

SCHEMA_VERSION: Final = 2
"""Of silver/readings: it grows when the meaning of a field or a unit changes."""
MAX_AHEAD_US: Final = 5 * 60 * 1_000_000
NOT_READINGS: Final = ("$", "alerts/")
"""Prefixes of topics whose messages are not parsed."""

SPEC: Final = TableSpec(
    "silver/readings",
    "one row per number in a message: (broker, offset, position)",
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
        TableColumn("schema_version", pa.int32(), "2; grows when the meaning of a field or a unit changes"),
        TableColumn("name", pa.string(), "which sensor or field of the message; empty for the only one"),
        TableColumn("position", pa.int32(), "of the reading in its message, from 0; null in rows of version 1"),
        TableColumn("decoder", pa.string(), "the decoder that read it; null in rows of version 1"),
        TableColumn(
            "unit_source",
            pa.string(),
            "where the unit is stated: payload, decoder, definition, configuration, or default if it is not",
        ),
    ),
    keys=("broker", "offset", "quantity", "position"),  # the quantity tells rows of version 1 apart
    expires_by="received",
    checks={
        "its value is a number": f"NOT isnan(value) AND abs(value) <= {GREATEST:g}",
        "it has a quantity and a time": "quantity != '' AND event_time IS NOT NULL",
        "its time is at most five minutes after it was received": (
            f"unix_micros(event_time) - unix_micros(received) <= {MAX_AHEAD_US}"
        ),
        "it has a position, a decoder and the source of its unit": (
            "schema_version = 1 OR (position >= 0 AND decoder != '' AND unit_source != '' AND name IS NOT NULL)"
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
        TableColumn("detail", pa.string(), "the exact error, and how to configure a decoder for it"),
        TableColumn("payload", pa.binary()),
        TableColumn("schema_version", pa.int32()),
        TableColumn("decoder", pa.string(), "the decoder that rejected it; empty if none reads such payloads"),
        TableColumn("content_type", pa.string(), "of the message; null without one, and in older rows"),
    ),
    keys=("broker", "offset"),
    expires_by="received",
    checks={"it has a reason": "reason != '' AND detail != ''", "its payload is stored": "payload IS NOT NULL"},
)
COLUMNS_READ: Final = ("broker", "offset", "topic", "publisher", "published", "received", "payload")
"""The columns of messages that are needed to decode them."""
CONTENT_TYPE: Final = "content_type"
"""The column that helps to decode them, which messages need not have."""
_COLUMNS: Final = ("broker", "offset", "topic", "publisher", "received", "schema_version", "decoder")
_READING: Final = ("quantity", "device", "event_time", "value", "unit", "extra", "name", "position", "unit_source")
_REJECTED: Final = ("published", "reason", "detail", "payload", "content_type")
PARSED: Final = pa.schema(
    [
        (SPEC if name in SPEC.schema.names else QUARANTINE).schema.field(name)
        for name in (*_COLUMNS, *_READING, *_REJECTED)
    ]
)
_READINGS: Final = SPEC.schema
_QUARANTINE: Final = QUARANTINE.schema
"""Executors have the columns, and not the definitions of the tables."""
_TIMESTAMP: Final = TIMESTAMP
_EMPTY_QUARANTINE: Final = pa.RecordBatch.from_pylist([], schema=QUARANTINE.schema)
_LOADED: Final = "_godwit_decoders"
"""Name of a module that exists in workers only and stores their decoders between tasks."""


@dataclass(frozen=True)
class Decoding:
    """How messages are decoded."""

    rules: tuple[DecoderRule, ...] = ()
    """The configuration."""
    definitions: tuple[DefinitionRow, ...] = ()
    """From earlier messages, and from the messages to decode."""


def parse(messages: DataFrame, decoding: Decoding | None = None) -> DataFrame:
    """Parse rows of bronze. Return readings and rejected messages together; `reason` is null for a reading."""
    has_type = CONTENT_TYPE in messages.columns
    wanted = messages.select(*COLUMNS_READ, *([CONTENT_TYPE] if has_type else []))
    return wanted.mapInArrow(BatchDecoder(decoding or Decoding()), from_arrow_schema(PARSED))


def valid(parsed: DataFrame) -> DataFrame:
    """Return the rows of silver/readings from the result of `parse`."""
    return parsed.where("reason IS NULL").select(*SPEC.schema.names)


def rejected(parsed: DataFrame) -> DataFrame:
    """Return the rows of silver/quarantine from the result of `parse`."""
    return parsed.where("reason IS NOT NULL").select(*QUARANTINE.schema.names)


class BatchDecoder:
    """Parses record batches on an executor.

    It is sent with each task, while a worker runs many. So the decoders are sent as bytes, which a worker loads once.
    """

    def __init__(self, decoding: Decoding) -> None:
        self._decoders = cloudpickle.dumps(decoder_set(decoding.rules))  # type: ignore[no-untyped-call]
        self._definitions = pickle.dumps(decoding.definitions)
        self._digests = [hashlib.sha256(one).digest() for one in (self._decoders, self._definitions)]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Parse the batches of a partition."""
        decoders = self._load()
        for batch in batches:
            yield parse_batch(decoders, batch)

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows of silver/readings and of silver/quarantine for rows of bronze."""
        return split_batch(self._load(), batch)

    def _load(self) -> DecoderSet:
        """Return the decoders, those of an earlier task if they are the same."""
        loaded = sys.modules.setdefault(_LOADED, ModuleType(_LOADED))
        digests = getattr(loaded, "digests", [b"", b""])
        if digests[0] != self._digests[0]:
            loaded.decoders = pickle.loads(self._decoders)  # type: ignore[attr-defined]
            digests = [self._digests[0], b""]
        if digests[1] != self._digests[1]:
            loaded.decoders.definitions = Definitions(pickle.loads(self._definitions))
        loaded.digests = list(self._digests)  # type: ignore[attr-defined]
        found: DecoderSet = loaded.decoders
        return found


def parse_batch(decoders: DecoderSet, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the readings and the rejected messages of a batch of messages together."""
    parts = [_with_columns(rows, PARSED) for rows in split_batch(decoders, batch)]
    (joined,) = pa.Table.from_batches(parts).combine_chunks().to_batches() or parts[:1]
    return joined


def split_batch(decoders: DecoderSet, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the rows of silver/readings and of silver/quarantine for a batch of messages, by their positions in it."""
    topics = batch.column("topic")
    is_wanted = np.ones(batch.num_rows, bool)
    for prefix in NOT_READINGS:
        is_wanted &= ~pc.starts_with(topics, prefix).to_numpy(zero_copy_only=False)
    columns = _read_columns(decoders, batch, is_wanted)
    if columns is None:
        return _split_one_by_one(decoders, batch, is_wanted)
    found = _reading_rows(batch, columns)
    is_wanted[columns.rows] = False
    if not is_wanted.any():
        return found, _EMPTY_QUARANTINE
    others, rejected = _split_one_by_one(decoders, batch, is_wanted)
    if others.num_rows:
        both = pa.Table.from_batches([found, others])
        order = np.argsort(both.column("offset").to_numpy(), kind="stable")
        (found,) = both.take(pa.array(order)).combine_chunks().to_batches()
    return found, rejected


def _read_columns(decoders: DecoderSet, batch: pa.RecordBatch, is_wanted: Any) -> ReadingColumns | None:
    """Return the readings of the messages that are read by their shapes."""
    if CONTENT_TYPE in batch.schema.names and batch.column(CONTENT_TYPE).null_count < batch.num_rows:
        types = batch.column(CONTENT_TYPE).dictionary_encode()
        allowed = np.array([*[decoders.may_have_shape(one) for one in types.dictionary.to_pylist()], True])
        is_wanted = is_wanted & allowed[pc.fill_null(types.indices, len(allowed) - 1).to_numpy()]
    published_us, received_us = [
        batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False) for name in ("published", "received")
    ]
    times = MessageTimes(np.where(published_us >= EARLIEST_US, published_us, received_us), received_us + MAX_AHEAD_US)
    payloads = batch.column("payload")
    if payloads.type != pa.binary():
        payloads = payloads.cast(pa.binary())
    return read_columns(decoders, batch.column("topic"), payloads, is_wanted, times)


def _reading_rows(batch: pa.RecordBatch, columns: ReadingColumns) -> pa.RecordBatch:
    """Return rows of silver/readings."""
    count = columns.rows.size
    taken = pa.array(columns.rows)
    texts = pa.array(columns.fields)
    of_field = {
        name: pa.array([getattr(one, name) for one in columns.texts], pa.string()).take(texts)
        for name in ("quantity", "unit", "name", "unit_source", "decoder")
    }
    found = of_field | {
        "device": columns.devices,
        "event_time": pa.array(columns.times_us).cast(_TIMESTAMP),
        "value": pa.array(columns.values),
        "extra": columns.extras,
        "schema_version": pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int32()), count),
        "position": pa.array(columns.positions),
    }
    for name in ("broker", "offset", "topic", "publisher", "received"):
        found[name] = batch.column(name).take(taken)
    return pa.RecordBatch.from_arrays([found[one.name].cast(one.type) for one in _READINGS], schema=_READINGS)


def _with_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows in these columns. A column that they lack is null."""
    names = rows.schema.names
    columns = [rows.column(one.name) if one.name in names else pa.nulls(rows.num_rows, one.type) for one in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _split_one_by_one(
    decoders: DecoderSet, batch: pa.RecordBatch, is_wanted: Any
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Do as `split_batch` for the wanted messages, each by itself."""
    if not is_wanted.all():
        batch = batch.filter(pa.array(is_wanted))
    read: list[tuple[Any, ...]] = []
    rejected: list[tuple[Any, ...]] = []
    decode = decoders.decode_quickly
    times = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("published", "received")]
    plain = [batch.column(name).to_pylist() for name in ("broker", "offset", "topic", "publisher", "payload")]
    types = [None] * batch.num_rows
    if CONTENT_TYPE in batch.schema.names:
        types = batch.column(CONTENT_TYPE).to_pylist()
    for broker, offset, topic, publisher, payload, content_type, published_us, received_us in zip(
        *plain, types, *times, strict=True
    ):
        found, decoder = decode(topic, payload, received_us, broker, offset, content_type)
        common = (broker, offset, topic, publisher, received_us, SCHEMA_VERSION, decoder)
        if type(found) is Decoded:
            readings, message_us, device, extra = found
            latest_us = received_us + MAX_AHEAD_US
            if message_us is None:
                message_us = published_us if published_us >= EARLIEST_US else received_us
            is_ahead = False
            first = len(read)
            for position, (quantity, value, unit, name, time_us, unit_source) in enumerate(readings):
                if time_us is None:
                    time_us = message_us
                is_ahead = is_ahead or time_us > latest_us
                read.append((*common, quantity, device, time_us, value, unit, extra, name, position, unit_source))
            if not is_ahead:
                continue
            latest = max(row[len(_COLUMNS) + 2] for row in read[first:])
            del read[first:]
            ahead_s = (latest - received_us) // 1_000_000
            found = Rejected("time in the future", f"its time is {ahead_s} s after it was received")
        rejected.append((*common, published_us, found.reason, found.detail, payload, content_type))
    return _to_rows(read, (*_COLUMNS, *_READING), _READINGS), _to_rows(rejected, (*_COLUMNS, *_REJECTED), _QUARANTINE)


def _to_rows(rows: list[tuple[Any, ...]], names: tuple[str, ...], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows, whose values are in the order of these names, in the columns of the schema."""
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    arrays = [pa.array(columns.get(one.name, ()), one.type) for one in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
