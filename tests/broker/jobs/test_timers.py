"""Timers: in order, once, and nothing that was stopped stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from godwit.broker.jobs.timers import Timers


def test_they_come_in_order_and_once() -> None:
    timers: Timers[str] = Timers()
    for owner, at_us in (("b", 20), ("a", 10), ("c", 20)):
        timers.set(owner, at_us)
    assert timers.next_us() == 10
    assert timers.due(9) is None
    assert [timers.due(20) for _ in range(4)] == ["a", "b", "c", None]
    assert timers.next_us() is None


def test_the_last_time_that_was_set_counts() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.set("a", 30)
    timers.set("b", 20)
    timers.stop("b")
    timers.stop("nobody")
    assert timers.next_us() == 30
    assert timers.due(29) is None
    timers.set("a", 10)
    assert (timers.due(29), timers.due(99)) == ("a", None)


def test_what_was_stopped_is_not_kept() -> None:
    timers: Timers[int] = Timers()
    for owner in range(10_000):
        timers.set(owner, 10**15)
        timers.stop(owner)
        assert len(timers._heap) <= 200
    for owner in range(10_000):
        timers.set(owner, 10**15)
    for owner in range(10_000):
        timers.stop(owner)
    assert len(timers._heap) <= 200
    assert len(timers) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9) | st.none())))
def test_they_are_like_a_table_of_times(steps: list[tuple[int, int | None]]) -> None:
    timers: Timers[int] = Timers()
    table: dict[int, int] = {}
    for owner, at_us in steps:
        if at_us is None:
            timers.stop(owner)
            table.pop(owner, None)
        else:
            timers.set(owner, at_us)
            table[owner] = at_us
        assert timers.next_us() == min(table.values(), default=None)
        assert len(timers) == len(table)
    for now_us in range(10):
        due = set()
        while (owner_or_none := timers.due(now_us)) is not None:
            due.add(owner_or_none)
        assert due == {owner for owner, at_us in table.items() if at_us == now_us}


def test_who_waits_is_known() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 5)
    assert "a" in timers
    assert timers.due(5) == "a"
    assert "a" not in timers
