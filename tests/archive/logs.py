"""Batches and logs for the tests of the archive, and what must come out of them, worked out message by message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from godwit.archive.columns import COLUMNS, MAX_TIME_US
from godwit.store.block import BlockRow, encode_block
from godwit.wire.batch import (
    HAS_ROUTE,
    HAS_SEQUENCE,
    Batch,
    Entry,
    decode_batch,
    decode_head,
    encode_batch,
    encode_head,
)
from godwit.wire.extension import Properties, decode_properties, encode_properties, expiry_of

LOG_ID = bytes(range(16))
NOW_US = 1_700_000_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def make_entry(
    topic: str = "home/room1",
    payloads: Sequence[bytes] = (b"21.5",),
    *,
    publisher: str = "sensor",
    received_us: int = NOW_US,
    sequence: int | None = None,
    epoch: int = 0,
    **fields: Any,
) -> Entry:
    """`fields`: of a Batch."""
    batch = Batch(list(payloads), fields.pop("published_us", NOW_US), **fields)
    data = encode_batch(batch)
    head = decode_head(data)
    flags = head.flags & ~(HAS_SEQUENCE | HAS_ROUTE)
    rest = data[head.rest_at :]
    return Entry(
        topic=topic,
        publisher=publisher,
        flags=flags,
        published_us=batch.published_us,
        received_us=received_us,
        sequence=sequence,
        epoch=epoch,
        count=len(payloads),
        rest=rest,
    )


def rows_of(entries: Sequence[tuple[int, Entry]], *, with_extensions: bool = False) -> list[dict[str, Any]]:
    """What the archive must give for these, one message after the other."""
    rows = []
    for offset, entry in entries:
        batch, _ = decode_batch(encode_head(entry.flags, entry.published_us, None, None) + entry.rest)
        for number, payload in enumerate(batch.payloads):
            delta_us = batch.deltas_us[number] if batch.deltas_us else 0
            values = (
                offset + number,
                entry.topic,
                entry.publisher,
                _time(entry.published_us + delta_us),
                _time(entry.received_us),
                batch.qos,
                batch.retain,
                payload,
            )
            row = dict(zip(COLUMNS, values, strict=True))
            rows.append(row | _extension_columns(entry, batch.extension) if with_extensions else row)
    return rows


def _extension_columns(entry: Entry, extension: bytes | None) -> dict[str, Any]:
    found = decode_properties(extension)
    expires_us = expiry_of(entry)
    return {
        "extension": extension,
        "headers": list(dict(found.headers).items()) or None,
        "content_type": found.content_type,
        "reply_to": found.reply_topic,
        "correlation": found.correlation,
        "expires": None if expires_us is None else _time(expires_us),
        "origin_log": None,
        "origin_offset": None,
    }


def listed(*batches: pa.RecordBatch) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def _time(time_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=min(time_us, MAX_TIME_US))


# -- random ones ------------------------------------------------------------------------------------------------------

TOPICS = ["a", "a/b", "a/b/c", "d", "$jobs/x", "größe/λ"]
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)
properties = st.builds(
    Properties,
    headers=st.lists(st.tuples(st.sampled_from(["a", "b"]) | texts, texts), max_size=3).map(tuple),
    content_type=st.none() | texts,
    reply_topic=st.none() | texts,
    correlation=st.none() | st.binary(max_size=5),
    lifetime_us=st.none() | st.integers(0, 10**12),
)
times = st.one_of(st.integers(0, 2**51), st.integers(0, 2**64 - 1))


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    payloads = draw(st.lists(st.binary(max_size=12), min_size=1, max_size=5))
    deltas = st.lists(st.integers(0, 2**32 - 1), min_size=len(payloads), max_size=len(payloads)).map(tuple)
    return make_entry(
        draw(st.sampled_from(TOPICS)),
        payloads,
        publisher=draw(st.sampled_from(["", "p", "sensor-7", "ø"])),
        received_us=draw(times),
        sequence=draw(st.none() | st.integers(0, 2**64 - 1)),
        epoch=draw(st.integers(0, 2**64 - 1)),
        published_us=draw(times),
        qos=draw(st.sampled_from([0, 1, 2])),
        retain=draw(st.booleans()),
        deltas_us=draw(st.none() | deltas),
        extension=draw(st.none() | st.binary(max_size=5) | properties.map(encode_properties)),
    )


@st.composite
def blocks(draw: st.DrawFn) -> list[tuple[BlockRow, list[tuple[int, Entry]]]]:
    """Some blocks that follow one another, with holes in them and between them."""
    found = []
    offset = draw(st.integers(0, 2**40))
    for batches in draw(st.lists(st.lists(entries(), min_size=1, max_size=5), min_size=1, max_size=4)):
        rows = []
        for entry in batches:
            offset += draw(st.sampled_from([0, 0, 0, 1, 7]))
            rows.append((offset, entry))
            offset += entry.count
        found.append((encode_block(rows), rows))
    return found
