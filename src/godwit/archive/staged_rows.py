"""Convert the rows that a client stages to batches for the log: Arrow to entries, without a loop over rows.

Columns: topic (string) and payload (binary or string) are required; published (timestamp), qos (1 or 2) and retained
(boolean) are optional. Rows of one topic, QoS and retain flag become batches in their order. Rows of different topics
may be reordered.

Rows are untrusted: their arrays are validated before use. Types that store a value once and refer to it often
(dictionaries, views) are refused, because a few bytes of them expand to gigabytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.archive.columns import MAX_TIME_US
from godwit.archive.requests import BadRequestError
from godwit.archive.stages import MAX_STAGE_BYTES, StageFile
from godwit.archive.tokens import require
from godwit.broker.access import TokenRights
from godwit.broker.topics import check_topic, shown
from godwit.errors import BadTopicError
from godwit.limits import KIB, MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES, MIB
from godwit.server.archive_pipe import MAX_COMMIT_BATCHES, join_blocks
from godwit.store.block import encode_blocks
from godwit.wire.batch import LENGTH_BYTES, MAX_DELTA_US, QOS_SHIFT, RETAIN, Entry, join_rest
from godwit.wire.filters import RESERVED

BATCH_BYTES: Final = 64 * KIB
"""Limit of a batch, as publishers use it; a longer message makes a longer batch."""

GATHERED_ROWS: Final = 65_536
"""Limit of rows that are converted at once."""
GATHERED_BYTES: Final = 8 * MIB
"""Limit of bytes of rows that are converted at once."""

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
    """Raise BadRequestError if rows of this schema cannot be staged."""
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
    """Return the batches of rows, without a receive time. Raise BadRequestError if a row is invalid.

    Args:
        pieces: Rows of one schema, which was checked.
        publisher: The publisher of the batches.
        now_us: The publish time of rows without one.
        before: The number of earlier rows, for the row numbers in errors.
    """
    try:
        for piece in pieces:
            piece.validate(full=True)
        rows = pa.concat_batches(pieces) if len(pieces) > 1 else pieces[0]
    except pa.ArrowInvalid as error:
        raise BadRequestError(f"the rows are not valid Arrow data: {error}") from error
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
    """Return the batches of rows that are sorted by kind (topic and flags)."""
    count = len(kinds)
    _, offsets, data = payloads.buffers()
    stops = np.frombuffer(offsets, np.int32, count + 1, payloads.offset * np.int32().itemsize).astype(np.int64)
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
        deltas = (times - base_us).astype(">u4").tobytes() if int(times.max()) != base_us else None
        lengths_of_batch = packed[first * LENGTH_BYTES : stop * LENGTH_BYTES]
        shape, rest = join_rest(stop - first, lengths_of_batch, deltas, body)
        entries.append(
            Entry(
                topic=topics[kind >> 8],
                publisher=publisher,
                flags=kind & 0xFF | shape,
                published_us=base_us,
                received_us=0,
                count=stop - first,
                rest=rest,
            )
        )
    return entries


def _cut_by_time(published: Integers, cuts: Integers) -> Iterator[int]:
    """Yield these cuts, and more where the times between two of them differ by more than a delta can hold."""
    begins = np.concatenate(([0], cuts))
    spans_us = np.maximum.reduceat(published, begins) - np.minimum.reduceat(published, begins)
    stops = np.append(cuts, len(published))
    for begin, stop, span_us in zip(begins.tolist(), stops.tolist(), spans_us.tolist(), strict=True):
        if begin:
            yield begin
        if span_us > MAX_DELTA_US:
            yield from _far_apart(published[begin:stop].tolist(), begin)


def _far_apart(times_us: Sequence[int], begin: int) -> Iterator[int]:
    """Yield where a batch has to end because the next time is too far from an earlier one."""
    earliest_us = latest_us = times_us[0]
    for place, time_us in enumerate(times_us, begin):
        earliest_us = min(earliest_us, time_us)
        latest_us = max(latest_us, time_us)
        if latest_us - earliest_us > MAX_DELTA_US:
            yield place
            earliest_us = latest_us = time_us


def _column(rows: pa.RecordBatch, name: str, before: int) -> Any:
    """Return a column in the type that it has in the log. Raise BadRequestError if it has nulls."""
    column = rows.column(name)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadRequestError(f"{name} is null in row {before + row}: leave such rows out, or fill it")
    try:
        return column.cast(_TYPES[name])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadRequestError(f"{name} cannot be made {_TYPES[name]} of {column.type}: {error}") from error


def _topics(column: Any) -> tuple[Integers, list[str]]:
    """Return a topic number for each row, and the names of the topics."""
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
    """Return the batch flags of each row: its QoS and the retain flag."""
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


class StageWriter:
    """Writes the rows of an upload to a stage, collecting small pieces to larger batches.

    Methods raise BadRequestError if a row is invalid, and TokenRightsError if the client's token does not allow its
    topic.
    """

    def __init__(self, stage: StageFile, publisher: str, rights: TokenRights) -> None:
        self._stage = stage
        self._rights = rights
        self._publisher = publisher
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._batches = 0
        self.count = 0
        """Rows in the stage."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, and write them when there are enough."""
        size_bytes = rows.get_total_buffer_size()
        if size_bytes > MAX_STAGE_BYTES:
            raise BadRequestError(
                f"a batch of rows is longer than the {MAX_STAGE_BYTES} bytes of a stage: send smaller ones"
            )
        if self._pending_rows + rows.num_rows > GATHERED_ROWS:
            self._flush()
        for start in range(0, rows.num_rows, GATHERED_ROWS):
            part = rows.slice(start, GATHERED_ROWS)
            self._pending.append(part)
            self._pending_rows += part.num_rows
            self._pending_bytes += size_bytes  # a slice keeps the whole buffer in memory
            if self._pending_rows >= GATHERED_ROWS or self._pending_bytes >= GATHERED_BYTES:
                self._flush()

    def finish(self) -> None:
        """Write the remaining rows, and make the stage complete."""
        self._flush()
        self._stage.finish()

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        self._pending_rows = self._pending_bytes = 0
        if not pending:
            return
        entries = staged_entries(pending, self._publisher, time.time_ns() // 1000, self.count)
        for topic in {entry.topic for entry in entries}:
            require(self._rights.publish_problem(topic))
        self._batches += len(entries)
        if self._batches > MAX_COMMIT_BATCHES:
            raise BadRequestError(
                f"these rows make more than {MAX_COMMIT_BATCHES} batches: rows of one topic share one, if their times "
                "published lie within an hour of the rows before; order them by time, or stage fewer"
            )
        self._stage.write(join_blocks([block.body for block in encode_blocks(entries, self.count)]))
        self.count += sum(entry.count for entry in entries)
