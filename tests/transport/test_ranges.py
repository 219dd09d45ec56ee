"""A set of spans behaves as a plain set of numbers, and is small while its members lie close together."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from godwit.transport.acknowledgement import RangeSet

numbers = st.integers(0, 60)
lengths = st.integers(1, 12)


class RangesAgainstASet(RuleBasedStateMachine):
    """Each operation is done to both."""

    def __init__(self) -> None:
        super().__init__()
        self.spans = RangeSet()
        self.plain: set[int] = set()

    @rule(start=numbers, length=lengths)
    def add(self, start: int, length: int) -> None:
        new = set(range(start, start + length))
        assert self.spans.add(start, start + length) is not new.issubset(self.plain)
        self.plain |= new

    @rule(start=numbers, length=st.integers(0, 70))
    def missing(self, start: int, length: int) -> None:
        gaps = self.spans.missing(start, start + length)
        assert {n for low, high in gaps for n in range(low, high)} == set(range(start, start + length)) - self.plain
        assert all(low < high for low, high in gaps)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(gaps))

    @rule(number=numbers)
    def contains(self, number: int) -> None:
        assert (number in self.spans) is (number in self.plain)

    @precondition(lambda self: self.plain)
    @rule()
    def drop_lowest(self) -> None:
        low, high = next(iter(self.spans))
        assert low == min(self.plain)
        self.spans.drop_lowest()
        self.plain -= set(range(low, high))

    @invariant()
    def same_members_in_separate_spans(self) -> None:
        spans = list(self.spans)
        assert {n for start, stop in spans for n in range(start, stop)} == self.plain
        assert all(start < stop for start, stop in spans)
        # Touching spans would be one.
        assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))
        assert len(self.spans) == len(spans)


TestRangesAgainstASet = RangesAgainstASet.TestCase


@given(st.permutations(range(50)))
def test_any_order_ends_in_one_span(order: list[int]) -> None:
    spans = RangeSet()
    for number in order:
        assert spans.add(number, number + 1)
    assert list(spans) == [(0, 50)]
    assert not spans.add(10, 20)


def test_large_numbers_cost_nothing() -> None:
    spans = RangeSet()
    spans.add(0, 2**62)
    assert spans.missing(2**61, 2**63) == [(2**62, 2**63)]
    assert 2**61 in spans
    assert 2**62 not in spans
    assert len(spans) == 1


def test_nothing_is_missing_from_nothing() -> None:
    spans = RangeSet()
    assert spans.missing(5, 5) == []
    assert spans.missing(5, 6) == [(5, 6)]
    assert list(spans) == []
    assert 0 not in spans
