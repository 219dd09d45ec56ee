"""The ring against a plain list."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from godwit.store.memory import STEPS, MemoryStore, entry_bytes
from godwit.store.port import Slice
from godwit.wire.batch import Entry

LOG_ID = bytes(range(16))


def make_entry(**changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "topic": "a/b",
        "publisher": "me",
        "flags": 0x41,
        "published_us": 1,
        "received_us": 1,
        "sequence": None,
        "epoch": 0,
        "count": 1,
        "rest": b"",
    }
    return Entry(**fields | changes)


def sized(size_bytes: int, **changes: Any) -> Entry:
    """Return an entry whose cost is `size_bytes`."""
    return make_entry(rest=bytes(size_bytes - entry_bytes(make_entry())), **changes)


def newest(rows: list[tuple[int, Entry]], max_bytes: int) -> list[tuple[int, Entry]]:
    """Return the last rows that fit into `max_bytes`."""
    count = 0
    for _, entry in reversed(rows):
        max_bytes -= entry_bytes(entry)
        if max_bytes < 0:
            break
        count += 1
    return rows[len(rows) - count :]


def after(rows: list[tuple[int, Entry]], max_bytes: int, more_bytes: int) -> list[tuple[int, Entry]]:
    """Return the rows that a ring keeps when `more_bytes` arrive: all if there is room, else a step less than fits."""
    if sum(entry_bytes(entry) for _, entry in rows) + more_bytes <= max_bytes:
        return rows
    return newest(rows, max_bytes - max_bytes // STEPS - more_bytes)


class RingMachine(RuleBasedStateMachine):
    """A list of (offset, entry), from which the oldest are removed while the sum of the rest is too large."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, Entry]] = []
        self.now_us = 1000

    @initialize(max_bytes=st.integers(1, 12), first_offset=st.sampled_from([0, 7, 2**40]))
    def begin(self, max_bytes: int, first_offset: int) -> None:
        self.max_bytes = max_bytes * 1000
        self.next_offset = first_offset
        self.store = MemoryStore(self.max_bytes, log_id=LOG_ID, first_offset=first_offset)

    @property
    def first_offset(self) -> int:
        return self.rows[0][0] if self.rows else self.next_offset

    def size_bytes(self) -> int:
        return sum(entry_bytes(entry) for _, entry in self.rows)

    @rule(
        shapes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4000), st.integers(0, 3)), max_size=6),
        times=st.just(1) | st.integers(1, 400),
    )
    def append(self, shapes: list[tuple[int, int, int]], times: int) -> None:
        entries = []
        for count, size_bytes, wait_us in shapes * times:
            self.now_us += wait_us
            entries.append(make_entry(count=count, rest=bytes(size_bytes), received_us=self.now_us))
        more_bytes = sum(map(entry_bytes, entries))
        floor = self.store.floor_after(more_bytes)
        assert self.store.append(entries) == self.next_offset
        if entries:  # a last append that was larger than the ring stays until there is another
            self.rows = after(self.rows, self.max_bytes, more_bytes)
        for entry in entries:
            self.rows.append((self.next_offset, entry))
            self.next_offset += entry.count
        assert floor == self.first_offset, "it was foreseen"

    @rule(more_bytes=st.integers(0, 20_000))
    def foresee(self, more_bytes: int) -> None:
        kept = after(self.rows, self.max_bytes, more_bytes) if more_bytes else self.rows
        assert self.store.floor_after(more_bytes) == (kept[0][0] if kept else self.next_offset)

    @rule(back=st.integers(-3, 60), max_bytes=st.integers(0, 9000))
    def read(self, back: int, max_bytes: int) -> None:
        offset = max(0, self.next_offset - back)
        found = [(start, entry) for start, entry in self.rows if start + entry.count > offset]
        taken = found[:1]
        for row in found[1:]:
            if sum(entry_bytes(entry) for _, entry in [*taken, row]) > max_bytes:
                break
            taken.append(row)
        stop = taken[-1][0] + taken[-1][1].count if taken else max(offset, self.next_offset)
        assert self.store.read(offset, max_bytes) == Slice(taken, stop)

    @rule(max_bytes=st.integers(0, 9000))
    def read_everything_in_slices(self, max_bytes: int) -> None:
        found: list[tuple[int, Entry]] = []
        offset = 0
        while part := self.store.read(offset, max_bytes).entries:
            found += part
            offset = self.store.read(offset, max_bytes).next_offset
        assert found == self.rows

    @rule(back_us=st.integers(-2, 50))
    def look_up_a_time(self, back_us: int) -> None:
        time_us = self.now_us - back_us
        expected = next((offset for offset, entry in self.rows if entry.received_us >= time_us), self.next_offset)
        assert self.store.offset_at(time_us) == expected

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def agrees(self) -> None:
        assert self.store.first_offset == self.first_offset
        assert self.store.next_offset == self.next_offset
        assert len(self.store) == len(self.rows)
        assert self.store.size_bytes == self.size_bytes()


TestRingMachine = RingMachine.TestCase


def test_an_empty_log_that_begins_later() -> None:
    store = MemoryStore(log_id=LOG_ID, first_offset=10)
    assert store.read(3, 1000) == Slice([], 10)
    assert store.append([make_entry()]) == 10


def test_the_oldest_make_room_and_what_came_last_stays() -> None:
    store = MemoryStore(3000, log_id=LOG_ID)
    store.append([sized(1000), sized(1000), sized(1000)])
    assert store.first_offset == 0
    assert store.floor_after(1) == 1
    assert store.floor_after(1000 - 3000 // STEPS) == 1
    assert store.floor_after(1001 - 3000 // STEPS) == 2
    assert store.floor_after(3000) == 3
    store.append([sized(1001)])
    assert store.first_offset == 2
    store.append([sized(100_000)])
    assert (store.first_offset, store.next_offset, len(store)) == (4, 5, 1)
    assert store.append([]) == 5
    assert store.floor_after(0) == 4
    assert store.floor_after(1) == 5
    assert store.read(0, 10).entries[0][0] == 4
    store.append([sized(2000), sized(2000)])
    assert (store.first_offset, store.next_offset, store.size_bytes) == (5, 7, 4000)
    store.append([sized(500)])
    assert store.first_offset == 6


@pytest.mark.parametrize("size_bytes", [0, 10, 200])
def test_the_memory_stays_below_what_it_counts(size_bytes: int) -> None:
    """Entries as a broker makes them: their own times and bytes, names that the channel has too."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = MemoryStore(1_000_000, log_id=LOG_ID)
        for number in range(20_000):
            now_us = 1_700_000_000_000_000 + number
            rest = (b"%d" % number).ljust(size_bytes, b".")
            store.append([make_entry(published_us=now_us - 5, received_us=now_us, sequence=10**6 + number, rest=rest)])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store) < 3000
    # The rows of what is gone are dropped in one go, at most as many again: 24 bytes of lists and two numbers each.
    assert after - before < 1_000_000 + len(store) * 100
