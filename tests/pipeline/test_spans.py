"""Spans hold all times, are few, and leave wide gaps out."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from godwit.pipeline.spans import FAR, MAX_SPANS, as_condition, spans

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def days(*numbers: float) -> list[datetime]:
    return [NOON + timedelta(days=number) for number in numbers]


def test_a_wrong_clock_has_a_span_of_its_own() -> None:
    assert spans(days(0, -9000, 0.5, 1)) == [(days(-9000)[0], days(-9000)[0]), (NOON, days(1)[0])]
    assert spans([]) == []
    assert as_condition("t", spans(days(0))).count("2026-11-15T12:00:00+00:00") == 2


@given(st.lists(st.integers(0, 400), min_size=1))
def test_all_are_held_by_few(numbers: list[int]) -> None:
    times = days(*[number / 3 for number in numbers])
    found = spans(times)
    assert len(found) <= MAX_SPANS
    assert all(any(begin <= at <= end for begin, end in found) for at in times)
    edges = [edge for span in found for edge in span]
    assert edges == sorted(edges)
    assert set(edges) <= set(times)
    assert all(later[0] - earlier[1] > FAR for earlier, later in itertools.pairwise(found))
