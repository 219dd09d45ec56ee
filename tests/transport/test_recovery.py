"""Loss by gap and by time, round trips and probes: the numbers of RFC 9002, worked out by hand."""

from __future__ import annotations

import pytest

from godwit.limits import (
    INITIAL_ROUND_TRIP_S,
    MAX_ACK_DELAY_S,
    MAX_PACKET_GAP_THRESHOLD,
    MAX_PROBE_INTERVAL_S,
    PACKET_GAP_THRESHOLD,
    TIME_THRESHOLD,
    TIMER_GRANULARITY_S,
)
from godwit.transport.congestion import Flight
from godwit.transport.recovery import MAX_REMEMBERED_LOSSES, RELAX_AFTER, Recovery, RoundTrip, SentRun
from godwit.transport.send_channels import Fragment, OutgoingChannel, OutgoingRecord


def run(number: int, sent_at: float = 0.0, count: int = 1) -> SentRun:
    fragment = Fragment(OutgoingRecord(OutgoingChannel(1, 0), 0, bytes(10_000), False), 0, 10 * count, number)
    return SentRun(number, 100, Flight(sent_at, 0, 0.0, 0.0, False), (fragment,), (), count)


def sent(recovery: Recovery, *numbers: int, at: float = 0.0) -> None:
    recovery.handle_sent([run(number, at) for number in numbers], at)


def numbers(runs: list[SentRun]) -> list[int]:
    return sorted(number for one in runs for number in range(one.number, one.last + 1))


def known(round_trip_s: float = 0.1) -> Recovery:
    return Recovery(round_trip_s, 0.0)


# -- the round trip ---------------------------------------------------------------------------------------------------


def test_before_the_first_sample() -> None:
    trip = RoundTrip(None)
    assert not trip.has_sample
    assert trip.smoothed_s == INITIAL_ROUND_TRIP_S
    assert trip.variation_s == INITIAL_ROUND_TRIP_S / 2
    assert trip.probe_timeout_s == pytest.approx(3 * INITIAL_ROUND_TRIP_S + MAX_ACK_DELAY_S)


def test_the_first_sample_counts_whole() -> None:
    trip = RoundTrip(None)
    trip.sample(0.060, 0.0, 0.0)
    assert (trip.smoothed_s, trip.variation_s, trip.latest_s) == (0.060, 0.030, 0.060)


def test_worked_out_by_hand() -> None:
    trip = RoundTrip(0.100)
    assert (trip.smoothed_s, trip.variation_s) == (0.100, 0.050)
    trip.sample(0.140, 0.0, 0.100)
    # variation = 3/4 * 50 + 1/4 * |100 - 140| = 47.5; smoothed = 7/8 * 100 + 1/8 * 140 = 105
    assert trip.variation_s == pytest.approx(0.0475)
    assert trip.smoothed_s == pytest.approx(0.105)
    trip.sample(0.085, 0.0, 0.085)
    # variation = 3/4 * 47.5 + 1/4 * 20 = 40.625; smoothed = 7/8 * 105 + 1/8 * 85 = 102.5
    assert trip.variation_s == pytest.approx(0.040625)
    assert trip.smoothed_s == pytest.approx(0.1025)
    assert trip.probe_timeout_s == pytest.approx(0.1025 + 4 * 0.040625 + MAX_ACK_DELAY_S)


def test_the_delay_of_the_acknowledgement_is_taken_off_if_it_leaves_a_possible_round_trip() -> None:
    trip = RoundTrip(0.100)
    trip.sample(0.110, 0.010, 0.100)
    assert trip.smoothed_s == pytest.approx(0.100)
    assert trip.latest_s == 0.110
    trip.sample(0.110, 0.050, 0.100)  # it would leave less than the shortest that was ever seen
    assert trip.smoothed_s == pytest.approx(0.100 * 7 / 8 + 0.110 / 8)
    trip.sample(0.110, 4000.0, 0.100)
    assert trip.smoothed_s > 0.1


def test_a_steady_path_is_still_given_a_millisecond() -> None:
    trip = RoundTrip(0.0002)
    for _ in range(200):
        trip.sample(0.0002, 0.0, 0.0002)
    assert trip.probe_timeout_s == pytest.approx(0.0002 + TIMER_GRANULARITY_S + MAX_ACK_DELAY_S, rel=1e-3)


# -- losses -----------------------------------------------------------------------------------------------------------


def test_a_packet_is_lost_when_one_three_newer_has_arrived() -> None:
    recovery = known()
    sent(recovery, *range(10))
    for newest, lost in ((2, []), (3, [0]), (4, [1]), (8, [5])):
        recovery.handle_ack([(newest, newest)])
        assert numbers(recovery.detect_losses(0.0)) == lost
    assert numbers(list(recovery.sent)) == [6, 7, 9]
    assert PACKET_GAP_THRESHOLD == 3


def test_a_number_that_was_skipped_does_not_count_as_a_newer_packet() -> None:
    recovery = known()
    sent(recovery, 10)
    recovery.sent.skip(11)
    sent(recovery, 12, 13, 14)
    recovery.handle_ack([(12, 13)])
    assert recovery.detect_losses(0.0) == []
    recovery.handle_ack([(14, 14)])
    assert numbers(recovery.detect_losses(0.0)) == [10]


def test_a_packet_is_lost_when_nine_eighths_of_a_round_trip_have_passed() -> None:
    recovery = known(0.080)
    sent(recovery, 0, 1, at=10.0)
    recovery.handle_ack([(1, 1)])
    assert recovery.detect_losses(10.0) == []
    assert recovery.loss_timer == pytest.approx(10.090)
    assert recovery.detect_losses(10.089) == []
    assert numbers(recovery.detect_losses(10.0901)) == [0]
    assert recovery.loss_timer is None


def test_the_latest_round_trip_counts_if_it_is_longer() -> None:
    recovery = known(0.080)
    recovery.round_trip.sample(0.160, 0.0, 0.080)
    sent(recovery, 0, 1, at=10.0)
    recovery.handle_ack([(1, 1)])
    recovery.detect_losses(10.0)
    assert recovery.loss_timer == pytest.approx(10.0 + 0.160 * 9 / 8)


def test_the_timer_is_that_of_the_oldest() -> None:
    recovery = known(0.080)
    sent(recovery, 0, at=10.0)
    sent(recovery, 1, at=10.02)
    sent(recovery, 2, at=10.03)
    recovery.handle_ack([(2, 2)])
    recovery.detect_losses(10.04)
    assert recovery.loss_timer == pytest.approx(10.09)


def test_what_is_newer_than_all_that_arrived_is_not_lost() -> None:
    recovery = known()
    sent(recovery, 0, 1, 2, at=10.0)
    assert recovery.detect_losses(1000.0) == []
    recovery.handle_ack([(0, 0)])
    assert recovery.detect_losses(1000.0) == []


def test_a_run_is_lost_packet_by_packet() -> None:
    recovery = known()
    recovery.handle_sent([run(0, count=10), run(10, count=10)], 0.0)
    acked, late = recovery.handle_ack([(12, 14), (2, 3)])
    assert (numbers(acked), late) == ([2, 3, 12, 13, 14], [])
    lost = recovery.detect_losses(0.0)
    assert [one.number for one in lost] == [0, 1, 4, 5, 6, 7, 8, 9, 10, 11]
    assert all(one.count == 1 for one in lost)
    assert numbers(list(recovery.sent)) == [15, 16, 17, 18, 19]
    assert recovery.sent.packets == 5


def test_ranges_that_claim_billions_cost_nothing() -> None:
    recovery = known()
    sent(recovery, 5, 6, 7)
    acked, _ = recovery.handle_ack([(2**40, 2**62), (10, 2**39), (0, 6)])
    assert numbers(acked) == [5, 6]
    assert numbers(recovery.detect_losses(0.0)) == [7]
    acked, late = recovery.handle_ack([(0, 2**62)])
    assert (acked, numbers(late)) == ([], [7])


def test_a_packet_that_was_only_overtaken_widens_the_gap() -> None:
    recovery = known(0.080)
    sent(recovery, *range(20), at=10.0)
    recovery.handle_ack([(5, 5)])
    assert numbers(recovery.detect_losses(10.0)) == [0, 1, 2]
    acked, late = recovery.handle_ack([(5, 5), (0, 0)])
    assert (acked, numbers(late)) == ([], [0])
    assert recovery.spurious == 1
    recovery.handle_ack([(9, 9)])
    # It was overtaken by five, so a gap of six is needed now: 3 and 4 are lost only to 9 and 10.
    assert numbers(recovery.detect_losses(10.0)) == [3]
    assert recovery.loss_timer == pytest.approx(10.0 + 0.080 * TIME_THRESHOLD)


def test_a_packet_that_was_only_slow_lengthens_the_patience() -> None:
    recovery = known(0.080)
    sent(recovery, 0, 1, at=10.0)
    recovery.handle_ack([(1, 1)])
    assert numbers(recovery.detect_losses(10.095)) == [0]
    _, late = recovery.handle_ack([(0, 1)])
    assert numbers(late) == [0]
    sent(recovery, *range(2, 8), at=11.0)
    recovery.handle_ack([(7, 7)])
    assert numbers(recovery.detect_losses(11.0)) == [2, 3, 4]  # the gap is as before
    assert recovery.loss_timer == pytest.approx(11.0 + 0.080 * (TIME_THRESHOLD + 1 / 8))


def test_thresholds_come_down_again_when_losses_are_real() -> None:
    recovery = known(0.080)
    sent(recovery, *range(20), at=10.0)
    recovery.handle_ack([(19, 19)])
    recovery.detect_losses(10.0)
    recovery.handle_ack([(0, 19)])  # all were late: the gap is 20 now
    number = 20
    for _ in range(4 * RELAX_AFTER):
        sent(recovery, *range(number, number + 30), at=10.0)
        recovery.handle_ack([(number + 29, number + 29)])
        assert recovery.detect_losses(10.0)
        number += 30
    sent(recovery, *range(number, number + 5), at=10.0)
    recovery.handle_ack([(number + 4, number + 4)])
    lost = numbers(recovery.detect_losses(10.0))
    assert [number, number + 1] == [one for one in lost if one >= number]


def test_the_thresholds_have_an_end() -> None:
    recovery = known(0.080)
    number = 0
    for _ in range(30):
        sent(recovery, *range(number, number + 200), at=10.0)
        recovery.handle_ack([(number + 199, number + 199)])
        recovery.detect_losses(10.0)
        recovery.handle_ack([(number, number + 199)])
        recovery.detect_losses(10.0)
        number += 200
    sent(recovery, *range(number, number + 200), at=10.0)
    recovery.handle_ack([(number + 199, number + 199)])
    assert len(recovery.detect_losses(10.0)) == 200 - MAX_PACKET_GAP_THRESHOLD
    assert recovery.loss_timer == pytest.approx(10.0 + 0.080 * TIME_THRESHOLD)


def test_only_so_many_losses_are_remembered() -> None:
    recovery = known()
    sent(recovery, *range(2000))
    recovery.handle_ack([(1999, 1999)])
    assert len(recovery.detect_losses(0.0)) == 1997
    _, late = recovery.handle_ack([(0, 1999)])
    assert len(late) == MAX_REMEMBERED_LOSSES


# -- probes -----------------------------------------------------------------------------------------------------------


def test_a_probe_is_due_when_nothing_is_heard_with_growing_patience() -> None:
    recovery = known(0.040)
    assert recovery.probe_timer is None
    sent(recovery, 0, at=10.0)
    wait = 0.040 + 4 * 0.020 + MAX_ACK_DELAY_S
    assert recovery.probe_timer == pytest.approx(10.0 + wait)
    sent(recovery, 1, at=10.1)
    assert recovery.probe_timer == pytest.approx(10.1 + wait)
    recovery.handle_probe(10.3)
    assert recovery.probe_timer == pytest.approx(10.3 + 2 * wait)
    recovery.handle_probe(10.6)
    assert recovery.probe_timer == pytest.approx(10.6 + 4 * wait)
    for _ in range(100):
        recovery.handle_probe(20.0)
    assert recovery.probe_timer == pytest.approx(20.0 + MAX_PROBE_INTERVAL_S)
    assert recovery.probes_sent == 102
    recovery.handle_ack([(0, 0)])
    assert recovery.probes_sent == 0
    assert recovery.probe_timer == pytest.approx(20.0 + wait)
    recovery.handle_ack([(1, 1)])
    assert recovery.probe_timer is None


def test_a_long_path_is_given_its_time_beyond_the_cap() -> None:
    recovery = known(1.5)
    sent(recovery, 0, at=10.0)
    assert recovery.probe_timer == pytest.approx(10.0 + 1.5 * 3 + MAX_ACK_DELAY_S)
    recovery.handle_probe(20.0)
    assert recovery.probe_timer == pytest.approx(20.0 + 1.5 * 3 + MAX_ACK_DELAY_S)


def test_the_oldest_packet_is_taken_out_of_its_run() -> None:
    recovery = known()
    assert recovery.oldest() is None
    recovery.handle_sent([run(3, count=5), run(8)], 0.0)
    oldest = recovery.oldest()
    assert oldest is not None
    assert (oldest.number, oldest.count) == (3, 1)
    assert recovery.oldest() is oldest
    assert numbers(list(recovery.sent)) == [3, 4, 5, 6, 7, 8]


# -- the usual case ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", [7, 9])
def test_all_that_is_under_way_arrives(newest: int) -> None:
    """What the short way does is what on_ack and detect_losses do."""
    one, other = known(), known()
    for recovery in (one, other):
        recovery.handle_probe(0.5)
        recovery.handle_sent_one(run(7, 1.0), 1.0)
    trip_s = one.handle_all_acked(newest, one.sent.oldest(), 1.2)
    acked, late = other.handle_ack([(0, newest)])
    assert (numbers(acked), late, other.detect_losses(1.2)) == ([7], [], [])
    assert trip_s == (pytest.approx(0.2) if newest == 7 else None)
    for recovery in (one, other):
        assert (recovery.largest_acked, recovery.probes_sent, len(recovery.sent)) == (newest, 0, 0)
        assert recovery.loss_timer is recovery.probe_timer is None


def test_a_packet_of_another_path_shows_no_round_trip() -> None:
    recovery = Recovery(None, 5.0)
    recovery.handle_sent_one(run(0, 4.0), 4.0)
    assert recovery.handle_all_acked(0, recovery.sent.oldest(), 5.1) is None
    recovery.handle_sent_one(run(1, 5.2), 5.2)
    assert recovery.handle_all_acked(0, recovery.sent.oldest(), 5.3) is None  # nothing newer than before
