"""Convert blocks of the log to Arrow, without a loop over messages.

A block has columns of its batches and of its messages' lengths, and all bodies one after the other. The running sum of
the byte-swapped lengths and the bodies are the column `payload`; values of a batch are repeated for each of its
messages. Several blocks are converted at once: the same column of all of them is joined first, hence many small blocks
cost little more than one large block.

Only plain types are used, which every reader of Arrow knows: no dictionaries, no large or view types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.errors import LogDamagedError
from godwit.limits import KIB
from godwit.store.block import BlockLayout, decode_names
from godwit.wire.batch import HAS_EXTENSION, QOS_SHIFT, RETAIN
from godwit.wire.extension import NO_PROPERTIES, Properties, decode_properties

LOG_ID: Final = b"godwit.log_id"
"""Key of the log id in the metadata of the schema; the value is in hexadecimal digits."""
MAX_TIME_US: Final = 253_402_300_799_999_999
"""The end of the year 9999, where the times of Python and Spark end. A publisher's clock may be later."""
SHORT_BYTES: Final = 2 * KIB
"""Below this size, copying a piece of a block is faster than a memoryview of it."""
ROW_BYTES: Final = 40
"""Size of a row as Arrow without its payload and names."""

_LAST_OFFSET: Final = 2**62
_TIME: Final = pa.timestamp("us", "UTC")
_FIELDS: Final[dict[str, pa.DataType]] = {
    "offset": pa.int64(),
    "topic": pa.string(),
    "publisher": pa.string(),
    "published": _TIME,
    "received": _TIME,
    "qos": pa.int8(),
    "retained": pa.bool_(),
    "payload": pa.binary(),
    "extension": pa.binary(),
    "headers": pa.map_(pa.string(), pa.string()),
    "content_type": pa.string(),
    "reply_to": pa.string(),
    "correlation": pa.binary(),
    "expires": _TIME,
    "origin_log": pa.string(),
    "origin_offset": pa.int64(),
}
ALL_COLUMNS: Final = tuple(_FIELDS)
PROPERTY_COLUMNS: Final = (
    "headers", "content_type", "reply_to", "correlation", "expires", "origin_log", "origin_offset",
)  # fmt: skip
"""The properties of messages. They are decoded from the extension of a batch, once for all its messages."""
EXTENSION_COLUMNS: Final = frozenset(("extension", *PROPERTY_COLUMNS))
COLUMNS: Final = tuple(name for name in ALL_COLUMNS if name not in EXTENSION_COLUMNS)
"""The columns of a request that does not name any. Readers such as Spark have a fixed schema: none is added here."""

_Numbers: TypeAlias = "npt.NDArray[Any]"
Choice: TypeAlias = Callable[[Sequence[str]], Sequence[bool]]
"""Takes topics and returns for each whether it is wanted."""


def schema_of(log_id: bytes, columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the Arrow schema of some columns of a log."""
    return pa.schema([(name, _FIELDS[name]) for name in columns], {LOG_ID: log_id.hex()})


class OpenBlock(NamedTuple):
    """A block and its layout."""

    body: bytes
    at: BlockLayout


class MessageColumns:
    """The messages of one or more consecutive blocks as columns, from which record batches are made."""

    def __init__(
        self, blocks: Sequence[OpenBlock], choice: Choice | None = None, *, with_extensions: bool = False
    ) -> None:
        """Read the columns of blocks. Raise LogDamagedError if they do not fit each other.

        Args:
            blocks: At least one.
            choice: Selects topics; messages of the others are left out.
            with_extensions: Read the extensions, for EXTENSION_COLUMNS.
        """
        joined = _JoinedBlocks(blocks)
        offset = blocks[0].at.first_offset
        self._counts = joined.u32("count_at", joined.batches)
        self._offsets = joined.offsets()
        self._published = joined.times("published_at")
        self._received = joined.times("received_at")
        self._flags = np.frombuffer(joined.column("flags_at", joined.batches), np.uint8)
        self._names, self._topics, self._publishers = joined.names()
        self._lengths = joined.u32("length_at", joined.messages)
        self._deltas = joined.deltas()
        self._data = joined.bodies()
        if int(self._counts.sum()) != len(self._lengths) or int(self._lengths.sum()) != self._data.size:
            raise _contradiction(offset)
        self._extensions: Any = None
        self._properties: list[Properties] | None = None
        if with_extensions:
            lengths = joined.u32("extension_bytes_at", joined.batches)
            data = joined.extensions()
            if int(lengths.sum()) != data.size:
                raise _contradiction(offset)
            has_one = np.packbits((self._flags & HAS_EXTENSION) != 0, bitorder="little")
            buffers = [pa.py_buffer(has_one), pa.py_buffer(_stops(lengths)), data]
            self._extensions = pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
        if choice is not None:
            self._choose(blocks, choice)
        self._row_ends = np.cumsum(self._counts, dtype=np.int64)
        self._stops = _stops(self._lengths)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._lengths)

    def row_of(self, offset: int) -> int:
        """Return the first row whose offset is not below this one."""
        after = int(np.searchsorted(self._offsets, offset, "right"))  # batches that begin at or before it
        if not after:
            return 0
        into = min(offset - int(self._offsets[after - 1]), int(self._counts[after - 1]))
        return int(self._row_ends[after - 1] - self._counts[after - 1]) + into

    def offset_of(self, row: int) -> int:
        """Return the offset of a row."""
        batch = int(np.searchsorted(self._row_ends, row, "right"))
        return int(self._offsets[batch]) + row - int(self._row_ends[batch] - self._counts[batch])

    def properties(self) -> list[Properties]:
        """Return the properties of each batch."""
        if self._properties is None:
            self._properties = [
                NO_PROPERTIES if one is None else decode_properties(one) for one in self._extensions.to_pylist()
            ]
        return self._properties

    def cuts(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield runs of these rows that take at most `max_bytes` as Arrow, or have one row. Names are repeated."""
        if start >= stop:
            return
        name_bytes = np.diff(np.frombuffer(self._names.buffers()[1], np.int32))
        extension_bytes: _Numbers = np.zeros(1, np.int32)
        if self._extensions is not None:
            extension_bytes = pc.fill_null(pc.binary_length(self._extensions), 0).to_numpy()
        longest = ROW_BYTES + 2 * int(name_bytes.max()) + int(extension_bytes.max())
        if (stop - start) * longest + self._data.size <= max_bytes:
            yield start, stop
            return
        batch_bytes = name_bytes[self._topics] + name_bytes[self._publishers] + extension_bytes + ROW_BYTES
        ends = np.cumsum(np.repeat(batch_bytes, self._counts) + self._lengths, dtype=np.int64)
        while start < stop:
            before = int(ends[start - 1]) if start else 0
            until = min(max(start + 1, int(np.searchsorted(ends, before + max_bytes, "right"))), stop)
            yield start, until
            start = until

    def record_batch(self, schema: pa.Schema, start: int, stop: int) -> pa.RecordBatch:
        """Return these rows, in the columns of the schema."""
        first = int(np.searchsorted(self._row_ends, start, "right"))
        last = int(np.searchsorted(self._row_ends, stop, "left")) + 1
        view = _RowRange(self, slice(first, last), start, stop)
        return pa.RecordBatch.from_arrays([getattr(view, name)() for name in schema.names], schema=schema)

    def _choose(self, blocks: Sequence[OpenBlock], choice: Choice) -> None:
        """Keep only the batches of wanted topics."""
        is_wanted = np.zeros(len(self._names), bool)
        base = 0
        for body, at in blocks:
            lengths = np.frombuffer(body, ">u4", at.topics, at.name_bytes_at).tolist()
            names = decode_names(body[at.names_at : at.names_at + sum(lengths)], lengths)
            is_wanted[base : base + at.topics] = choice(names)
            base += at.topics + at.publishers
        keep = is_wanted[self._topics]
        if keep.all():
            return
        rows = np.repeat(keep, self._counts)
        payloads = pa.Array.from_buffers(
            pa.binary(), len(rows), [None, pa.py_buffer(_stops(self._lengths)), self._data]
        ).filter(pa.array(rows))
        self._data = payloads.buffers()[2] or pa.py_buffer(b"")
        self._lengths = self._lengths[rows]
        self._deltas = None if self._deltas is None else self._deltas[rows]
        self._extensions = None if self._extensions is None else self._extensions.filter(pa.array(keep))
        for name in ("_counts", "_offsets", "_published", "_received", "_flags", "_topics", "_publishers"):
            setattr(self, name, getattr(self, name)[keep])


class _RowRange:
    """Consecutive rows and their batches. Each public method returns the column of its name."""

    def __init__(self, rows: MessageColumns, batches: slice, start: int, stop: int) -> None:
        self._rows = rows
        self._batches = batches
        self._start = start
        self._stop = stop
        self._ends = rows._row_ends[batches]
        self._counts = rows._counts[batches]
        if len(self._counts):
            self._counts = self._counts.copy()
            self._counts[0] = self._ends[0] - start
            self._counts[-1] -= self._ends[-1] - stop

    def offset(self) -> Any:
        first = self._rows._offsets[self._batches] - (self._ends - self._rows._counts[self._batches])
        return self._numbers("offset", self._repeated(first) + np.arange(self._start, self._stop))

    def topic(self) -> Any:
        return self._rows._names.take(pa.array(self._repeated(self._rows._topics[self._batches])))

    def publisher(self) -> Any:
        return self._rows._names.take(pa.array(self._repeated(self._rows._publishers[self._batches])))

    def published(self) -> Any:
        times = self._repeated(self._rows._published[self._batches])
        if self._rows._deltas is not None:
            times = np.minimum(times + self._rows._deltas[self._start : self._stop], MAX_TIME_US)
        return self._numbers("published", times)

    def received(self) -> Any:
        return self._numbers("received", self._repeated(self._rows._received[self._batches]))

    def qos(self) -> Any:
        qos = (self._rows._flags[self._batches] >> QOS_SHIFT).view(np.int8)
        return self._numbers("qos", self._repeated(qos))

    def retained(self) -> Any:
        is_retained = (self._rows._flags[self._batches] & RETAIN) != 0
        return self._numbers("retained", np.packbits(self._repeated(is_retained), bitorder="little"))

    def payload(self) -> Any:
        buffers = [None, pa.py_buffer(self._rows._stops), self._rows._data]
        return pa.Array.from_buffers(pa.binary(), self._stop - self._start, buffers, offset=self._start)

    def extension(self) -> Any:
        batches = np.arange(len(self._rows._counts))[self._batches]
        return self._rows._extensions.take(pa.array(self._repeated(batches)))

    def headers(self) -> Any:
        """Names with their values; of a repeated name the last one, because the keys of a map are unique."""
        return self._property("headers", lambda one: list(dict(one.headers).items()) if one.headers else None)

    def content_type(self) -> Any:
        return self._property("content_type", lambda one: one.content_type)

    def reply_to(self) -> Any:
        return self._property("reply_to", lambda one: one.reply_topic)

    def correlation(self) -> Any:
        return self._property("correlation", lambda one: one.correlation)

    def expires(self) -> Any:
        """The time from which a message counts as expired, by the broker's clock."""
        received = self._rows._received[self._batches].tolist()
        times = [
            None if one.lifetime_us is None else min(received_us + one.lifetime_us, MAX_TIME_US)
            for one, received_us in zip(self._rows.properties()[self._batches], received, strict=True)
        ]
        return self._taken(pa.array(times, _FIELDS["expires"]))

    def origin_log(self) -> Any:
        """The log from which a bridge brought a message, in hexadecimal digits as in the schema."""
        return self._property("origin_log", lambda one: None if one.origin is None else one.origin[0].hex())

    def origin_offset(self) -> Any:
        """The offset of a message in that log. The origin of a batch is that of its first message."""
        origins = [one.origin for one in self._rows.properties()[self._batches]]
        offsets = [None if origin is None or origin[1] > _LAST_OFFSET else origin[1] for origin in origins]
        before = self._repeated(self._ends - self._rows._counts[self._batches])  # rows before the batch
        places = np.arange(self._start, self._stop, dtype=np.int64) - before
        return pc.add(self._taken(pa.array(offsets, _FIELDS["origin_offset"])), pa.array(places))

    def _property(self, name: str, value: Callable[[Properties], Any]) -> Any:
        found = [value(one) for one in self._rows.properties()[self._batches]]
        return self._taken(pa.array(found, _FIELDS[name]))

    def _taken(self, values: Any) -> Any:
        """Repeat an Arrow array of values of batches for each of their messages."""
        return values.take(pa.array(self._repeated(np.arange(len(values)))))

    def _repeated(self, values: _Numbers) -> _Numbers:
        """Repeat values of batches for each of their messages."""
        if len(values) == self._stop - self._start:
            return values  # one message per batch
        return np.repeat(values, self._counts)

    def _numbers(self, name: str, values: _Numbers) -> Any:
        return pa.Array.from_buffers(_FIELDS[name], self._stop - self._start, [None, pa.py_buffer(values)])


class _JoinedBlocks:
    """The columns of several blocks, each joined to one, with a few calls per block and none per message."""

    def __init__(self, blocks: Sequence[OpenBlock]) -> None:
        self._ats = [at for _, at in blocks]
        self._bodies = [body for body, _ in blocks]
        self._views = [memoryview(body) for body in self._bodies]
        self.batches = [at.batches for at in self._ats]
        self.messages = [at.messages for at in self._ats]

    def column(self, name: str, counts: Sequence[int], width: int = 1) -> bytes | memoryview:
        """Return the bytes of a column of all blocks."""
        begins = map(attrgetter(name), self._ats)
        is_short = sum(counts) * width <= SHORT_BYTES * len(counts)
        sources: Sequence[bytes | memoryview] = self._bodies if is_short else self._views
        parts = [
            source[begin : begin + count * width] for source, begin, count in zip(sources, begins, counts, strict=True)
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def u32(self, name: str, counts: Sequence[int]) -> _Numbers:
        """Return a column of numbers below 2**31, as all counts within a block are."""
        numbers: _Numbers = np.frombuffer(self.column(name, counts, 4), ">i4")
        return numbers.astype(np.int32)

    def times(self, name: str) -> _Numbers:
        numbers: _Numbers = np.frombuffer(self.column(name, self.batches, 8), ">u8")
        times = numbers.astype(np.uint64)
        return np.minimum(times, np.uint64(MAX_TIME_US), out=times).view(np.int64)

    def offsets(self) -> _Numbers:
        firsts = np.repeat([at.first_offset for at in self._ats], self.batches)
        return firsts + self.u32("offset_delta_at", self.batches)

    def deltas(self) -> _Numbers | None:
        """Return the time deltas, zero for blocks without; None if no block has any."""
        if not any(at.has_deltas for at in self._ats):
            return None
        parts = [
            np.frombuffer(source, ">u4", at.messages, at.delta_at) if at.has_deltas else np.zeros(at.messages, ">u4")
            for source, at in zip(self._bodies, self._ats, strict=True)
        ]
        return np.concatenate(parts).astype(np.int64)

    def names(self) -> tuple[Any, _Numbers, _Numbers]:
        """Return all names of all blocks, and the index of the topic and the publisher of each batch."""
        names = [at.topics + at.publishers for at in self._ats]
        lengths = self.u32("name_bytes_at", names)
        data = pa.py_buffer(self.column("names_at", [at.names_bytes for at in self._ats]))
        table = pa.Array.from_buffers(pa.string(), len(lengths), [None, pa.py_buffer(_stops(lengths)), data])
        bases = np.cumsum([0, *names[:-1]], dtype=np.int32)
        topics = self.u32("topic_at", self.batches)
        topics += np.repeat(bases, self.batches)
        publishers = self.u32("publisher_at", self.batches)
        publishers += np.repeat(bases + np.array([at.topics for at in self._ats], np.int32), self.batches)
        return table, topics, publishers

    def bodies(self) -> pa.Buffer:
        """Return all bodies one after the other; those of a single block without a copy."""
        return pa.py_buffer(self.column("bodies_at", [at.bodies_bytes for at in self._ats]))

    def extensions(self) -> pa.Buffer:
        """Return all extensions one after the other."""
        return pa.py_buffer(self.column("extensions_at", [at.extensions_bytes for at in self._ats]))


def _contradiction(offset: int) -> LogDamagedError:
    return LogDamagedError(
        f"columns of blocks from offset {offset} on do not fit each other, although their checksums are right: "
        "run `godwit log verify`"
    )


def _stops(lengths: _Numbers) -> _Numbers:
    """Return the end of each value after a leading zero: Arrow's offsets."""
    stops = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, dtype=np.int32, out=stops[1:])
    return stops
