"""Rows that a client stages, as batches for the log: Arrow in, entries out, without a loop over rows.

Columns: topic (string) and payload (binary or string) must be there; published (timestamp), qos (1 or 2) and retained
(boolean) may be. Rows of one topic, QoS and retain flag become batches; their order is kept. Rows of different topics
may change places, which no promise is about.

What a client sends is not trusted: its arrays are checked before they are touched. Types that say a value once and
refer to it often (dictionaries, views) are refused: a few bytes of them become gigabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.archive.columns import MAX_TIME_US
from godwit.archive.requests import BadRequestError
from godwit.broker.topics import check_topic, shown
from godwit.errors import BadTopicError
from godwit.limits import KIB, MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES
from godwit.wire.batch import HAS_DELTAS, LONE, QOS_SHIFT, RETAIN
from godwit.wire.entry import Entry
from godwit.wire.filters import RESERVED

BATCH_BYTES: Final = 64 * KIB
"""A batch is cut here, as a publisher cuts it; one longer message makes a longer batch."""
LENGTH_BYTES: Final = 4
"""What each message has in a batch beside its payload."""
MAX_DELTA_US: Final = 2**32 - 1

Integers: TypeAlias = "npt.NDArray[np.int64]"

assert BATCH_BYTES // LENGTH_BYTES < MAX_BATCH_MESSAGES

_TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "payload": pa.binary(),
    "published": pa.timestamp("us", "UTC"),
    "qos": pa.int8(),
    "retained": pa.bool_(),
}
_NEEDED: Final = ("topic", "payload")
_TEXT: Final = frozenset(("string", "large_string"))
_MAY_BE: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "topic": lambda kind: str(kind) in _TEXT,
    "payload": lambda kind: str(kind) in _TEXT or str(kind) in ("binary", "large_binary"),
    "published": lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
    "qos": pa.types.is_integer,
    "retained": pa.types.is_boolean,
}


def check_schema(schema: pa.Schema) -> None:
    """BadRequestError if rows of this schema cannot be staged."""
    for name in _NEEDED:
        if name not in schema.names:
            raise BadRequestError(f"the rows have no column {name}: give topic and payload")
    for name in schema.names:
        if name not in _TYPES:
            raise BadRequestError(f"the rows have a column {shown(name)}: only {', '.join(_TYPES)} can be staged")
        if schema.names.count(name) > 1:
            raise BadRequestError(f"the rows have the column {name} twice: give it once")
        kind = schema.field(name).type
        if not _MAY_BE[name](kind):
            raise BadRequestError(
                f"the column {name} is {kind}: it must be {_TYPES[name]}, or something like it without a dictionary "
                "or views"
            )


def staged_entries(pieces: Sequence[pa.RecordBatch], publisher: str, now_us: int, before: int = 0) -> list[Entry]:
    """The batches that these rows make, without the time received. BadRequestError says what is wrong with a row.

    Their schema was checked, and is the same. `before`: rows that came before these, to number them.
    """
    try:
        for piece in pieces:
            piece.validate(full=True)
        rows = pa.concat_batches(pieces) if len(pieces) > 1 else pieces[0]
    except pa.ArrowInvalid as error:
        raise BadRequestError(f"the rows are no valid Arrow data: {error}") from error
    if not rows.num_rows:
        return []
    codes, topics = _topics(_column(rows, "topic", before))
    payloads = _column(rows, "payload", before)
    published = _published(rows, now_us, before)
    flags = _flags(rows, before)
    kinds = codes << 8 | flags
    order = np.argsort(kinds, kind="stable")
    payloads = payloads.take(pa.array(order))
    return _cut(topics, kinds[order], published[order], payloads, publisher)


def _cut(topics: list[str], kinds: Integers, published: Integers, payloads: pa.Array, publisher: str) -> list[Entry]:
    """Batches of rows that are sorted by kind (topic and flags)."""
    count = len(kinds)
    _, offsets, data = payloads.buffers()
    stops = np.frombuffer(offsets, np.int32, count + 1, payloads.offset * LENGTH_BYTES).astype(np.int64)
    lengths = np.diff(stops)
    longest = int(lengths.max())
    if longest > MAX_MESSAGE_BYTES:
        raise BadRequestError(f"a payload is {longest} bytes long: at most {MAX_MESSAGE_BYTES} are allowed")
    places = (stops[:-1] - stops[0] + LENGTH_BYTES * np.arange(count)) // BATCH_BYTES
    is_cut = (np.diff(kinds) != 0) | (np.diff(places) != 0)
    cuts = [0, *_cut_by_time(published, np.flatnonzero(is_cut) + 1), count]
    bodies = memoryview(data) if data is not None else memoryview(b"")
    packed = lengths.astype(">u4").tobytes()
    entries = []
    for first, stop in pairwise(cuts):
        kind = int(kinds[first])
        body = bytes(bodies[stops[first] : stops[stop]])
        times = published[first:stop]
        base_us = int(times.min())
        flags = kind & 0xFF
        if stop - first == 1:
            flags |= LONE
            rest = body
        else:
            parts = [struct.pack(">I", stop - first), packed[first * LENGTH_BYTES : stop * LENGTH_BYTES]]
            if int(times.max()) != base_us:
                flags |= HAS_DELTAS
                parts.append((times - base_us).astype(">u4").tobytes())
            rest = b"".join((*parts, body))
        entries.append(Entry(topics[kind >> 8], publisher, flags, base_us, 0, None, 0, stop - first, rest))
    return entries


def _cut_by_time(published: Integers, cuts: Integers) -> Iterator[int]:
    """These cuts, and more where the times between two of them differ by more than a delta can hold."""
    begins = np.concatenate(([0], cuts))
    spans_us = np.maximum.reduceat(published, begins) - np.minimum.reduceat(published, begins)
    stops = np.append(cuts, len(published))
    for begin, stop, span_us in zip(begins.tolist(), stops.tolist(), spans_us.tolist(), strict=True):
        if begin:
            yield begin
        if span_us > MAX_DELTA_US:
            yield from _far_apart(published[begin:stop].tolist(), begin)


def _far_apart(times_us: Sequence[int], begin: int) -> Iterator[int]:
    """Where a batch has to end, because the next time is too far from one that it has."""
    earliest_us = latest_us = times_us[0]
    for place, time_us in enumerate(times_us, begin):
        earliest_us = min(earliest_us, time_us)
        latest_us = max(latest_us, time_us)
        if latest_us - earliest_us > MAX_DELTA_US:
            yield place
            earliest_us = latest_us = time_us


def _column(rows: pa.RecordBatch, name: str, before: int) -> Any:
    """The column in the type that it has in the log; it may have no nulls."""
    column = rows.column(name)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadRequestError(f"{name} is null in row {before + row}: leave such rows out, or fill it")
    try:
        return column.cast(_TYPES[name])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadRequestError(f"{name} cannot be made {_TYPES[name]} of {column.type}: {error}") from error


def _topics(column: Any) -> tuple[Integers, list[str]]:
    """A number for each row, and the names that the numbers stand for."""
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    for name in names:
        try:
            check_topic(name)
        except BadTopicError as error:
            raise BadRequestError(str(error)) from error
        if name.startswith(RESERVED):
            raise BadRequestError(f"topic {shown(name)} begins with $, as only the broker's own do: rename it")
    return encoded.indices.to_numpy().astype(np.int64), names


def _published(rows: pa.RecordBatch, now_us: int, before: int) -> Integers:
    if "published" not in rows.schema.names:
        return np.full(rows.num_rows, now_us, np.int64)
    times = _column(rows, "published", before).cast(pa.int64()).to_numpy()
    bad = np.flatnonzero((times < 0) | (times > MAX_TIME_US))
    if len(bad):
        raise BadRequestError(
            f"published is {int(times[bad[0]])} microseconds since 1970 in row {before + int(bad[0])}: "
            "it must lie between 1970 and 9999"
        )
    return np.asarray(times, np.int64)


def _flags(rows: pa.RecordBatch, before: int) -> Integers:
    """The flags of a batch that each row would need: its QoS and the retain flag."""
    flags = np.full(rows.num_rows, 1 << QOS_SHIFT, np.int64)
    if "qos" in rows.schema.names:
        qos = _column(rows, "qos", before).to_numpy()
        bad = np.flatnonzero((qos != 1) & (qos != 2))
        if len(bad):
            raise BadRequestError(
                f"qos is {int(qos[bad[0]])} in row {before + int(bad[0])}: "
                "what is staged goes into the log, with 1 or 2"
            )
        flags = qos.astype(np.int64) << QOS_SHIFT
    if "retained" in rows.schema.names:
        flags |= np.where(_column(rows, "retained", before).to_numpy(zero_copy_only=False), RETAIN, 0)
    return flags
