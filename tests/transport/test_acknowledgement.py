"""What arrived is told in ranges, in time, and a repeat is recognised for ever."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.limits import MAX_ACK_DELAY_S, MAX_ACK_RANGES
from godwit.transport.acknowledgement import (
    MAX_REPORTS,
    MAX_TRACKED_RANGES,
    PROMPT_PACKETS,
    SHORTEST_INTERVAL_S,
    Acknowledger,
)


def made(*, at_once: bool = False, max_unacknowledged: int = 10) -> Acknowledger:
    return Acknowledger(at_once=at_once, max_unacknowledged=max_unacknowledged)


def told(acknowledger: Acknowledger, now: float = 0.0) -> set[int]:
    ack = acknowledger.next_frame(now, None)
    assert 1 <= len(ack.ranges) <= MAX_ACK_RANGES
    below = 2**32
    for first, last in ack.ranges:
        assert first <= last < below - 1
        below = first
    return {number for first, last in ack.ranges for number in range(first, last + 1)}


@given(st.lists(st.integers(0, 25), min_size=1, max_size=40))
def test_tells_exactly_what_arrived(order: list[int]) -> None:
    acknowledger = made()
    seen: set[int] = set()
    for number in order:
        assert acknowledger.handle_packet(number, 0.0) is (number not in seen)
        seen.add(number)
        assert acknowledger.largest == max(seen)
    assert acknowledger.packets == len(seen)
    assert told(acknowledger) == seen


@given(st.integers(0, 2**32), st.lists(st.integers(0, 400), min_size=1, max_size=300))
def test_a_repeat_is_never_taken_for_new(base: int, order: list[int]) -> None:
    """However many gaps there are and are forgotten."""
    acknowledger = made()
    taken: set[int] = set()
    for number in order + order:
        if acknowledger.handle_packet(base + number, 0.0):
            assert number not in taken
            taken.add(number)


def test_old_gaps_are_forgotten() -> None:
    acknowledger = made()
    for number in range(0, 10 * MAX_TRACKED_RANGES, 2):
        assert acknowledger.handle_packet(number, 0.0)
    assert not acknowledger.handle_packet(1, 0.0)
    assert acknowledger.handle_packet(10 * MAX_TRACKED_RANGES - 3, 0.0)
    assert len(told(acknowledger)) <= MAX_TRACKED_RANGES + 1  # two of the packets are neighbours


def test_one_packet_waits_a_little_two_do_not() -> None:
    acknowledger = made()
    acknowledger.handle_packet(0, 5.0)
    assert not acknowledger.is_waiting  # no packet asked for one
    acknowledger.handle_eliciting(1, 5.0, in_order=True)
    assert acknowledger.due_at == 5.0 + MAX_ACK_DELAY_S
    acknowledger.handle_packet(1, 5.001)
    acknowledger.handle_eliciting(1, 5.001, in_order=True)
    assert acknowledger.due_at == 5.001
    assert PROMPT_PACKETS == 2


def test_after_a_frame_the_next_packet_waits_again() -> None:
    acknowledger = made()
    acknowledger.handle_run(2, 5.0)
    told(acknowledger, 5.002)
    assert not acknowledger.is_waiting
    acknowledger.handle_packet(2, 5.003)
    acknowledger.handle_eliciting(1, 5.003, in_order=True)
    assert acknowledger.due_at == 5.003 + MAX_ACK_DELAY_S


def test_a_very_fast_sender_is_not_answered_for_every_train() -> None:
    acknowledger = made(max_unacknowledged=10)
    acknowledger.handle_run(4, 5.0)
    told(acknowledger, 5.0)
    acknowledger.handle_run(4, 5.0001)
    assert acknowledger.due_at == pytest.approx(5.0 + SHORTEST_INTERVAL_S)
    acknowledger.handle_run(6, 5.0002)  # these are a part of the receive buffer: the sender must be notified
    assert acknowledger.due_at == 5.0002


def test_what_is_out_of_order_stays_urgent() -> None:
    acknowledger = made()
    acknowledger.handle_run(2, 5.0)
    told(acknowledger, 5.0)
    acknowledger.handle_packet(7, 5.0001)
    acknowledger.handle_eliciting(1, 5.0001, in_order=False)
    acknowledger.handle_packet(8, 5.0001)
    acknowledger.handle_eliciting(1, 5.0001, in_order=True)
    assert acknowledger.due_at == 5.0001


def test_what_is_out_of_order_is_told_at_once() -> None:
    acknowledger = made()
    acknowledger.handle_packet(5, 5.0)
    acknowledger.handle_eliciting(1, 5.0, in_order=False)
    assert acknowledger.due_at == 5.0


def test_the_disciplines_that_wait_are_told_at_once() -> None:
    acknowledger = made(at_once=True)
    acknowledger.handle_packet(0, 5.0)
    acknowledger.handle_eliciting(1, 5.0, in_order=True)
    assert acknowledger.due_at == 5.0


def test_a_run_counts_as_its_packets() -> None:
    one, other = made(), made()
    for acknowledger in (one, other):
        acknowledger.handle_packet(0, 1.0)
        acknowledger.handle_packet(3, 1.0)
    one.handle_run(4, 2.0)
    for number in range(4, 8):
        other.handle_packet(number, 2.0)
        other.handle_eliciting(1, 2.0, in_order=True)
    assert one.due_at == other.due_at == 2.0
    assert one.packets == other.packets == 6
    assert one.largest == other.largest == 7
    assert one.next_frame(3.0, 9) == other.next_frame(3.0, 9)


def test_a_run_from_the_very_first() -> None:
    acknowledger = made()
    acknowledger.handle_run(3, 0.0)
    assert told(acknowledger) == {0, 1, 2}
    assert not acknowledger.handle_packet(2, 0.0)


def test_the_delay_is_that_of_the_newest() -> None:
    acknowledger = made()
    acknowledger.handle_packet(9, 1.0)
    acknowledger.handle_packet(4, 1.5)
    assert acknowledger.next_frame(2.0, None).delay_us == 1_000_000
    assert acknowledger.next_frame(1e9, None).delay_us == 2**32 - 1
    assert acknowledger.next_frame(0.0, None).delay_us == 0


def test_numbers_and_positions_are_truncated() -> None:
    acknowledger = made(at_once=True)
    acknowledger.handle_packet(2**32 + 5, 0.0)
    ack = acknowledger.next_frame(0.0, 2**32 + 7)
    assert (ack.ranges, ack.next_position) == (((5, 5),), 7)


@pytest.mark.parametrize("seed", range(5))
def test_everything_is_told_several_times(seed: int) -> None:
    """Frames get lost: what arrived is in enough of them, as long as gaps are few."""
    rng = random.Random(seed)
    acknowledger = made()
    times: dict[int, int] = {}
    for number in range(500):
        if rng.random() < 0.03:
            continue
        acknowledger.handle_packet(number, 0.0)
        times.setdefault(number, 0)
        if number % 2:
            for one in told(acknowledger):
                times[one] += 1
    settled = [count for number, count in times.items() if number < 450]
    assert min(settled) >= MAX_REPORTS


def test_what_is_new_is_told_even_if_it_is_much() -> None:
    acknowledger = made()
    news = set(range(0, 100, 2))
    for number in news:
        acknowledger.handle_packet(number, 0.0)
    assert told(acknowledger) == news
    assert len(told(acknowledger)) < len(news)  # said once: now the newest are enough


def test_old_news_is_left_out_and_a_latecomer_said_again() -> None:
    acknowledger = made()
    for number in (0, 1, 2, 4, 5, 6):
        acknowledger.handle_packet(number, 0.0)
    for number in range(8, 60):
        acknowledger.handle_packet(number, 0.0)
        ack = told(acknowledger)
    assert 0 not in ack
    acknowledger.handle_packet(3, 0.0)
    assert 3 in told(acknowledger)


# -- packets that come one by one -------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["next", "gap", "say"]), max_size=60))
def test_one_by_one_is_the_same(steps: list[str]) -> None:
    """on_next and take_range against on_run and frame."""
    one, other = made(), made()
    now = 1.0
    for step in steps:
        now += 0.001
        if step == "next":
            one.handle_next(now)
            other.handle_run(1, now)
        elif step == "gap":
            for acknowledger in (one, other):
                acknowledger.handle_packet(acknowledger.largest + 2, now)
                acknowledger.handle_eliciting(1, now, in_order=False)
        elif one.is_waiting:
            frame = other.next_frame(now, None)
            assert one.has_gaps is (len(frame.ranges) > 1)
            if one.has_gaps:
                assert one.next_frame(now, None) == frame
            else:
                delay_us, first, last = one.next_range(now)
                assert (delay_us, ((first, last),)) == (frame.delay_us, frame.ranges)
        assert (one.largest, one.packets, one.due_at) == (other.largest, other.packets, other.due_at)


def test_gaps_that_were_told_do_not_count_for_ever() -> None:
    acknowledger = made()
    for number in (0, 1, 5):
        acknowledger.handle_packet(number, 0.0)
    frames = 0
    while acknowledger.has_gaps:
        acknowledger.handle_packet(acknowledger.largest + 1, 0.0)
        acknowledger.next_frame(0.0, None)
        frames += 1
    assert frames == MAX_REPORTS + 1


@pytest.mark.parametrize(("now", "delay_us"), [(10.0, 0), (10.5, 500_000), (9.0, 0), (1e6, 0xFFFFFFFF)])
def test_the_delay_fits_its_field(now: float, delay_us: int) -> None:
    acknowledger = made()
    acknowledger.handle_next(10.0)
    assert acknowledger.next_range(now) == (delay_us, 0, 0)
    acknowledger = made()
    acknowledger.handle_next(10.0)
    assert acknowledger.next_frame(now, None).delay_us == delay_us


def test_a_keep_alive_is_acknowledged_at_once_and_other_pings_as_usual() -> None:
    acknowledger = made()
    acknowledger.handle_next(5.0)
    acknowledger.handle_ping(5.0)  # the first packet of a connection
    assert acknowledger.due_at == 5.0 + MAX_ACK_DELAY_S
    acknowledger.next_frame(5.005, None)
    for now, due_at in ((5.5, 5.5 + MAX_ACK_DELAY_S), (15.5, 15.5)):
        acknowledger.handle_next(now)
        acknowledger.handle_ping(now)
        assert acknowledger.due_at == due_at
        acknowledger.next_frame(due_at, None)
