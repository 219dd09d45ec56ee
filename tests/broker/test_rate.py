"""The token bucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from godwit.broker.quotas import Bucket


def test_a_burst_then_the_rate() -> None:
    bucket = Bucket(10, 5, 0)
    assert all(bucket.take(1, 0) for _ in range(5))
    assert not bucket.take(1, 0)
    assert bucket.due_us == 100_001
    assert bucket.take(1, 200_000)


def test_it_holds_no_more_than_its_burst() -> None:
    bucket = Bucket(10, 5, 0)
    assert not bucket.take(6, 10**9)


def test_time_that_goes_backwards_gives_nothing() -> None:
    bucket = Bucket(1, 1, 1_000_000)
    assert bucket.take(1, 1_000_000)
    assert not bucket.take(1, 0)
    assert bucket.due_us > 1_000_000


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10**7)), max_size=50))
def test_never_more_than_rate_and_burst(steps: list[tuple[int, int]]) -> None:
    bucket = Bucket(3, 7, 0)
    now_us = taken = 0
    for count, wait_us in steps:
        now_us += wait_us
        if bucket.take(count, now_us):
            taken += count
    assert taken <= 7 + 3 * now_us / 1e6 + 1e-6


def test_what_is_there_can_be_looked_at_without_taking_it() -> None:
    bucket = Bucket(1, 2, 0)
    assert bucket.has(2, 0)
    assert not bucket.has(3, 0)
    assert bucket.take(2, 0)
    assert not bucket.has(1, 999_999)
    assert bucket.has(1, 1_000_000)
