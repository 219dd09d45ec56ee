"""The log of sent packets: runs are split where packets do not share their fate, and nothing is lost in it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.transport.congestion import Flight
from godwit.transport.recovery import MAX_OLD_SKIPPED, SentLog, SentRun
from godwit.transport.send_channels import Fragment, OutgoingChannel, OutgoingRecord

FLIGHT = Flight(1.0, 0, 0.0, 0.0, False)
BODY_BYTES = 10


def run(number: int, count: int = 1) -> SentRun:
    record = OutgoingRecord(OutgoingChannel(1, 0), 0, bytes(1000), False)
    start = 20
    fragment = Fragment(record, start, start + count * BODY_BYTES, number)
    return SentRun(number, 100, FLIGHT, (fragment,), (), count)


def numbers(runs: list[SentRun]) -> list[int]:
    return [number for one in runs for number in range(one.number, one.last + 1)]


def test_a_run_knows_its_packets() -> None:
    one = run(5, 4)
    assert (one.number, one.last, one.size_bytes) == (5, 8, 400)
    assert run(5).last == 5


@pytest.mark.parametrize("count", [1, 2, 3])
def test_split_shares_out_the_fragment(count: int) -> None:
    whole = run(5, 4)
    (old,) = whole.fragments
    first, rest = whole.split(count)
    assert (first.number, first.count, rest.number, rest.count) == (5, count, 5 + count, 4 - count)
    (one,), (other,) = first.fragments, rest.fragments
    assert (one.start, one.stop, one.packet) == (20, 20 + 10 * count, 5)
    assert (other.start, other.stop, other.packet) == (one.stop, 60, 5 + count)
    assert old.settled
    assert not one.settled
    assert not other.settled
    assert first.size_bytes + rest.size_bytes == 400
    assert first.flight is rest.flight is FLIGHT


runs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=10)
"""(how many numbers are left out before it, how long it is)"""


@given(runs, st.lists(st.tuples(st.integers(0, 70), st.integers(0, 30)), max_size=12))
def test_against_a_plain_set(made: list[tuple[int, int]], ranges: list[tuple[int, int]]) -> None:
    log = SentLog()
    plain: set[int] = set()
    number = 0
    pieces = {}
    for gap, count in made:
        number += gap
        log.append(run(number, count))
        plain |= set(range(number, number + count))
        pieces.update({number + n: 20 + BODY_BYTES * n for n in range(count)})
        number += count
    for first, length in ranges:
        taken = log.remove(first, first + length)
        expected = {n for n in plain if first <= n <= first + length}
        assert numbers(taken) == sorted(expected)
        for one in taken:
            # Each packet still carries its own part of the record.
            assert one.fragments[0].start == pieces[one.number]
            assert one.fragments[0].packet == one.number
            assert one.fragments[0].stop - one.fragments[0].start == BODY_BYTES * one.count
        plain -= expected
        assert log.packets == len(plain)
        assert numbers(list(log)) == sorted(plain)
        assert len(log) <= len(plain)
        if plain:
            assert log.oldest().number == min(plain)


def test_a_claim_of_billions_costs_nothing() -> None:
    log = SentLog()
    log.append(run(3))
    assert log.remove(4, 2**60) == []
    assert log.remove(0, 2) == []
    assert numbers(log.remove(0, 2**60)) == [3]
    assert log.remove(0, 2**60) == []
    assert log.packets == 0


def test_insert_puts_it_in_its_place() -> None:
    log = SentLog()
    for number in (5, 1, 9, 3):
        log.insert(run(number))
    assert [one.number for one in log] == [1, 3, 5, 9]
    log.keep_newest(3)
    assert [one.number for one in log] == [3, 5, 9]
    assert log.packets == 3


def test_singly_gives_each_packet_its_part() -> None:
    whole = run(10, count=4)
    (fragment,) = whole.fragments
    parts = whole.singly()
    assert [one.number for one in parts] == [10, 11, 12, 13]
    assert [one.count for one in parts] == [1] * 4
    pieces = [one.fragments[0] for one in parts]
    assert pieces[0].start == fragment.start
    assert pieces[-1].stop == fragment.stop
    assert all(left.stop == right.start for left, right in itertools.pairwise(pieces))
    assert fragment.settled
    assert not any(piece.settled for piece in pieces)
    alone = run(3)
    assert alone.singly() == [alone]


def test_a_log_can_be_emptied() -> None:
    log = SentLog()
    log.extend([run(3), run(4, 5)])
    log.clear()
    assert (len(log), log.packets, log.remove(0, 100)) == (0, 0, [])
    log.append(run(9))
    assert numbers(log.remove(0, 100)) == [9]


def test_skipped_numbers_are_remembered_while_older_packets_are_under_way() -> None:
    log = SentLog()
    log.append(run(5))
    for number in range(10, 1000, 10):
        log.skip(number)
    assert len(log.skipped) == 99
    assert [log.count_skipped(*span) for span in ((0, 9), (10, 10), (11, 30), (0, 2**40))] == [0, 1, 2, 99]
    log.remove(5, 5)
    log.skip(1000)
    assert log.skipped == list(range(1000 - 10 * (MAX_OLD_SKIPPED - 1), 1001, 10))
    log.clear()
    assert len(log.skipped) == MAX_OLD_SKIPPED
