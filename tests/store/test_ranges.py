"""Ranges of offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from godwit.store.ranges import Ranges, joined


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))))
def test_joined_ranges_hold_the_same_offsets(ranges: list[tuple[int, int]]) -> None:
    found = joined(ranges)
    assert {offset for begin, end in found for offset in range(begin, end)} == {
        offset for begin, end in ranges for offset in range(begin, end)
    }
    ends = [number for one in found for number in one]
    assert ends == sorted(set(ends))  # in order, none empty, none touching


def test_ranges() -> None:
    ranges = Ranges()
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
