"""Entries and jobs as a broker makes them, for the tests of the log."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from godwit.wire.batch import HAS_ROUTE, HAS_SEQUENCE, Batch, Entry, decode_head, encode_batch, encode_joinable
from godwit.wire.changes import JobRow, TaskRow

LOG_ID = bytes(range(16))


def make_entry(*payloads: bytes, topic: str = "a/b", publisher: str = "me", received_us: int = 1, **more: Any) -> Entry:
    """A batch of these payloads; of one byte if there is none. `more`: fields of Batch, epoch, is_joinable."""
    epoch = more.pop("epoch", 0)
    encode = encode_joinable if more.pop("is_joinable", False) else encode_batch
    data = encode(Batch(list(payloads) or [b"x"], more.pop("published_us", 1), **more))
    head = decode_head(data)
    flags = head.flags & ~(HAS_SEQUENCE | HAS_ROUTE)
    rest = data[head.rest_at : head.end]
    return Entry(
        topic=topic,
        publisher=publisher,
        flags=flags,
        published_us=head.published_us,
        received_us=received_us,
        sequence=head.sequence,
        epoch=epoch,
        count=head.count,
        rest=rest,
    )


def make_job(job: int, *, state: str = "running", agreed: int | None = 1) -> JobRow:
    return JobRow(job, "controller", f"key-{job}", "resize", 1, 0, 1, 1, None, 3, 1000, None, state, agreed, None)


def make_task(job: int, number: int, result: bytes = b"") -> TaskRow:
    state = "finished" if result else "leased"
    return TaskRow(job, number, state, "anna", bytes(16), 1, 0, 0, 1, 1, ("anna", "zoë"), result)


NAMES = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["a/b", "a/c", "größe", ""])
NUMBERS = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 2**32 - 1)


@st.composite
def entries(draw: st.DrawFn, *, is_lone: bool = False) -> Entry:
    """Any batch that there can be."""
    payloads = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=1 if is_lone else 5))
    deltas = st.none() if is_lone else st.none() | st.tuples(*[SMALL] * len(payloads))
    extensions = st.none() if is_lone else st.none() | st.binary(max_size=10)
    return make_entry(
        *payloads,
        topic=draw(NAMES),
        publisher=draw(NAMES),
        received_us=draw(st.integers(0, 2**63 - 1)),
        published_us=draw(NUMBERS),
        qos=draw(st.integers(0, 2)),
        retain=draw(st.booleans()),
        sequence=draw(st.none() | NUMBERS),
        deltas_us=draw(deltas),
        extension=draw(extensions),
        epoch=draw(NUMBERS),
        is_joinable=not is_lone and draw(st.booleans()),
    )


LISTS = st.lists(entries(), min_size=1, max_size=8) | st.lists(entries(is_lone=True), min_size=1, max_size=8)
