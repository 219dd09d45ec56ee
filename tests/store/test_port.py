"""The contract of a store, for both implementations, and ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.entries import LOG_ID, make_entry

from godwit.store.memory import MemoryStore
from godwit.store.port import ENTRY_COST_BYTES, OffsetRanges, Slice, Store, entry_bytes, joined
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry
from godwit.wire.changes import StoredState, TopicRow


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore(log_id=LOG_ID)
        return
    opened = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    yield opened
    opened.close()


def test_every_store_has_what_the_port_asks_for(store: Store) -> None:
    wanted = {name for name in vars(Store) if not name.startswith("_")}
    assert wanted == {"append", "epochs", "first_offset", "log_id", "next_offset", "offset_at", "read", "state"}
    assert wanted <= set(dir(store))


def test_an_empty_log(store: Store) -> None:
    assert store.log_id == LOG_ID
    assert (store.first_offset, store.next_offset) == (0, 0)
    assert store.append([]) == 0
    assert store.read(0, 1000) == Slice([], 0)
    assert store.read(5, 1000) == Slice([], 5)
    assert store.offset_at(0) == 0
    assert store.state() == StoredState()


def test_offsets_count_messages(store: Store) -> None:
    assert store.append([make_entry(b"1", b"2", b"3"), make_entry(b"4")]) == 0
    assert store.append([make_entry(b"5", b"6")]) == 4
    assert store.append([], [TopicRow("a")]) == 6
    assert (store.first_offset, store.next_offset) == (0, 6)
    assert [offset for offset, _ in store.read(0, 10**6).entries] == [0, 3, 4]


def test_a_batch_is_read_whole_from_any_of_its_offsets(store: Store) -> None:
    entries = [make_entry(b"1", b"2", b"3"), make_entry(b"4", b"5"), make_entry(b"6")]
    assert store.append(entries[:2]) == 0
    assert store.append(entries[2:]) == 5
    for offset in (0, 1, 2):
        assert store.read(offset, 0) == Slice([(0, entries[0])], 3)
    for offset in (3, 4):
        assert store.read(offset, 0) == Slice([(3, entries[1])], 5)
    assert store.read(2, 10**6) == Slice([(0, entries[0]), (3, entries[1]), (5, entries[2])], 6)
    assert store.read(6, 10**6) == Slice([], 6)


def test_a_read_ends_before_it_is_too_long(store: Store) -> None:
    entries = [make_entry(bytes(100), received_us=number) for number in range(20)]
    for entry in entries:
        store.append([entry])
    size = entry_bytes(entries[0])
    for count in (1, 2, 7, 20):
        assert len(store.read(0, count * size).entries) == count
        assert len(store.read(0, (count + 1) * size - 1).entries) == count
    assert len(store.read(0, 0).entries) == 1


def test_a_time_between_two_entries_gives_the_later_one(store: Store) -> None:
    store.append([make_entry(received_us=10), make_entry(*[b"x"] * 5, received_us=20), make_entry(received_us=20)])
    assert [store.offset_at(time_us) for time_us in (0, 10, 11, 20, 21)] == [0, 0, 1, 1, 7]
    store.append([make_entry(received_us=20)])
    store.append([make_entry(received_us=40), make_entry(received_us=50)])
    assert [store.offset_at(time_us) for time_us in (20, 21, 40, 41, 50, 51)] == [1, 8, 8, 9, 9, 10]


SHAPES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30), st.integers(0, 2)), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(SHAPES, max_size=8), st.integers(0, 2000), st.integers(1, 30))
def test_any_log_against_a_list(
    store: Store, appends: list[list[tuple[int, int, int]]], max_bytes: int, later_us: int
) -> None:
    """The store goes on from one example to the next: what is asked is asked of what this one added."""
    begin = store.next_offset
    rows: list[tuple[int, Entry]] = []
    now_us = newest = store.read(begin - 1, 0).entries[-1][1].received_us if begin else 5
    for shapes in appends:
        entries = []
        for count, size_bytes, wait_us in shapes:
            now_us += wait_us
            entries.append(make_entry(*[bytes(size_bytes)] * count, received_us=now_us))
        offset = store.append(entries)
        assert offset == (rows[-1][0] + rows[-1][1].count if rows else begin)
        for entry in entries:
            rows.append((offset, entry))
            offset += entry.count
    found: list[tuple[int, Entry]] = []
    offset = begin
    while (part := store.read(offset, max_bytes)).entries:
        assert part.next_offset == part.entries[-1][0] + part.entries[-1][1].count
        assert len(part.entries) == 1 or sum(entry_bytes(entry) for _, entry in part.entries) <= max_bytes
        found += part.entries
        offset = part.next_offset
    assert found == rows
    assert offset == store.next_offset
    time_us = newest + later_us
    assert store.offset_at(time_us) == next(
        (offset for offset, entry in rows if entry.received_us >= time_us), store.next_offset
    )


def test_a_slice_says_where_to_read_on() -> None:
    assert msgspec.structs.astuple(Slice([], 3)) == ([], 3, [])


@given(st.integers(0, 5000))
def test_what_an_entry_counts_for(size_bytes: int) -> None:
    assert entry_bytes(make_entry(bytes(size_bytes))) == size_bytes + 5 + ENTRY_COST_BYTES


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))))
def test_joined_ranges_hold_the_same_offsets(ranges: list[tuple[int, int]]) -> None:
    found = joined(ranges)
    assert {offset for begin, end in found for offset in range(begin, end)} == {
        offset for begin, end in ranges for offset in range(begin, end)
    }
    ends = [number for one in found for number in one]
    assert ends == sorted(set(ends))  # in order, none empty, none touching


def test_ranges() -> None:
    ranges = OffsetRanges()
    assert ranges.end == 0
    assert ranges.gaps(0, 5) == [(0, 5)]
    assert ranges.add(10, 20)
    assert not ranges.add(10, 20)
    assert not ranges.add(19, 25)
    assert not ranges.add(5, 11)
    assert not ranges.add(0, 100)
    assert not ranges.add(12, 13)
    assert ranges.add(20, 25)
    assert ranges.add(5, 10)
    assert ranges.add(30, 31)
    assert ranges.end == 31
    assert ranges.gaps(0, 40) == [(0, 5), (25, 30), (31, 40)]
    assert ranges.gaps(7, 31) == [(25, 30)]
