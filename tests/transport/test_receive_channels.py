"""Fragments become records, whole, once and in order, however they come; memory stays within the credit given."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.world import examples

from godwit.errors import DecodeError, UsageError
from godwit.limits import CONTROL_WINDOW_BYTES, MAX_CONTROL_RECORD_BYTES, RECORD_COST_BYTES
from godwit.transport.config import EndpointConfig
from godwit.transport.receive_channels import MAX_GAPS, LimitError, ReceiveChannels

Record = tuple[int, int, bytes, bool]
"""(channel, number, body, last)"""
Piece = tuple[int, int, int, bytes, bool]
"""(channel, record, offset, body, last)"""


def half(**settings: int) -> ReceiveChannels:
    return ReceiveChannels(EndpointConfig(accepts=True, **settings), Counter())  # type: ignore[arg-type]


def feed(
    receive_channels: ReceiveChannels, pieces: Iterable[Piece], *, ends: frozenset[int] = frozenset()
) -> list[Record]:
    """`ends`: the channels whose record with the highest number is their last."""
    got: list[Record] = []
    for channel, number, offset, body, last in pieces:
        got += receive_channels.handle_fragment(
            channel, number & 0xFFFFFFFF, offset, body, is_last=last, ends_channel=last and channel in ends
        )
    return got


def refused_reason(
    receive_channels: ReceiveChannels, pieces: Iterable[Piece], *, ends: frozenset[int] = frozenset()
) -> str:
    """One of these goes too far. Gives what is said about it."""
    with pytest.raises(LimitError) as caught:
        feed(receive_channels, pieces, ends=ends)
    return str(caught.value)


def whole(channel: int, number: int, body: bytes) -> Piece:
    return channel, number, 0, body, True


# -- reassembly -------------------------------------------------------------------------------------------------------


@st.composite
def cut(draw: st.DrawFn, channel: int, number: int, body: bytes) -> list[Piece]:
    """One or more ways to cut a record that cover it, with overlaps: as if it had been cut anew in between."""
    size = len(body)
    pieces: list[Piece] = []
    for _ in range(draw(st.integers(1, 3))):
        places = sorted(draw(st.sets(st.integers(1, max(size - 1, 1)), max_size=6)) | {0, size})
        for start, stop in itertools.pairwise(places):
            pieces.append((channel, number, start, body[start:stop], stop == size))
    if size == 0:
        pieces = [whole(channel, number, b"")]
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, size))
        stop = draw(st.integers(start, size))
        if start < stop:
            pieces.append((channel, number, start, body[start:stop], stop == size))
    return pieces + draw(st.lists(st.sampled_from(pieces), max_size=3))


@examples(2)
@given(st.data())
def test_any_cutting_in_any_order_gives_each_record_once_and_in_order(data: st.DataObject) -> None:
    sent = {
        channel: data.draw(st.lists(st.binary(max_size=40), min_size=1, max_size=4), label=f"records of {channel}")
        for channel in range(data.draw(st.integers(1, 3), label="channels"))
    }
    pieces = [
        piece
        for channel, bodies in sent.items()
        for number, body in enumerate(bodies)
        for piece in data.draw(cut(channel, number, body))
    ]
    receive_channels = half()
    got = feed(receive_channels, data.draw(st.permutations(pieces), label="order"))
    for channel, bodies in sent.items():
        mine = [record for record in got if record[0] == channel]
        assert mine == [(channel, number, body, False) for number, body in enumerate(bodies)]
    for channel, _, body, _ in got:
        receive_channels.consume(channel, len(body))
    assert receive_channels.held_bytes == 0


@examples(0.5)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5000), st.integers(1, 1500), st.booleans())
def test_a_long_record_in_fragments_of_one_size(seed: int, size: int, step: int, backwards: bool) -> None:
    body = random.Random(seed).randbytes(size)
    pieces = [(1, 0, at, body[at : at + step], at + step >= size) for at in range(0, size, step)]
    receive_channels = half()
    assert feed(receive_channels, reversed(pieces) if backwards else pieces) == [(1, 0, body, False)]


def test_records_wait_for_those_before_them() -> None:
    receive_channels = half()
    assert feed(receive_channels, [whole(1, n, b"%d" % n) for n in (3, 1, 2)]) == []
    assert feed(receive_channels, [whole(2, 0, b"other channel")]) == [(2, 0, b"other channel", False)]
    assert feed(receive_channels, [whole(1, 0, b"0")]) == [(1, n, b"%d" % n, False) for n in range(4)]


def test_a_gap_in_one_channel_delays_no_other() -> None:
    receive_channels = half()
    feed(receive_channels, [whole(1, 1, b"late")])
    got = feed(receive_channels, [whole(2, n, b"x") for n in range(5)])
    assert len(got) == 5


def test_the_first_bytes_win() -> None:
    receive_channels = half()
    got = feed(receive_channels, [(1, 0, 0, b"aaaa", False), (1, 0, 2, b"bbbb", False), (1, 0, 5, b"ccc", True)])
    assert got == [(1, 0, b"aaaabbcc", False)]


def test_repeats_are_counted() -> None:
    dropped: Counter[str] = Counter()
    receive_channels = ReceiveChannels(EndpointConfig(), dropped)
    feed(receive_channels, [whole(1, 0, b"a"), whole(1, 0, b"a"), whole(1, 2, b"c"), whole(1, 2, b"c")])
    assert dropped["repeated_fragment"] == 2
    held = receive_channels.held_bytes
    for _ in range(1000):
        feed(receive_channels, [whole(1, 2, b"c")])
    assert receive_channels.held_bytes == held


def test_an_empty_end_fills_no_gap() -> None:
    receive_channels = half()
    assert feed(receive_channels, [(1, 0, 10, b"", True)]) == []
    assert feed(receive_channels, [(1, 0, 10, b"", True), (1, 0, 0, b"01234", False)]) == []
    assert feed(receive_channels, [(1, 0, 5, b"56789", False)]) == [(1, 0, b"0123456789", False)]


# -- the end of a channel ---------------------------------------------------------------------------------------------


def test_an_ended_channel_is_never_used_again() -> None:
    dropped: Counter[str] = Counter()
    receive_channels = ReceiveChannels(EndpointConfig(), dropped)
    end = frozenset({1})
    assert feed(receive_channels, [whole(1, 0, b"bye")], ends=end) == [(1, 0, b"bye", True)]
    assert receive_channels.is_ended(1)
    assert not receive_channels.is_ended(2)
    assert feed(receive_channels, [whole(1, 0, b"bye"), whole(1, 1, b"again"), whole(1, 0, b"new")]) == []
    assert dropped["ended_channel"] == 3
    receive_channels.consume(1, 3)
    assert receive_channels.held_bytes == 0


def test_the_end_waits_for_the_records_before_it() -> None:
    receive_channels = half()
    assert feed(receive_channels, [whole(1, 1, b"end")], ends=frozenset({1})) == []
    assert not receive_channels.is_ended(1)
    assert feed(receive_channels, [whole(1, 0, b"first")]) == [(1, 0, b"first", False), (1, 1, b"end", True)]
    assert receive_channels.is_ended(1)


def test_many_channels_one_after_another_cost_nothing() -> None:
    receive_channels = half(max_channels=3)
    for channel in range(1, 5000):
        assert feed(receive_channels, [whole(channel, 0, b"x")], ends=frozenset({channel}))
        receive_channels.consume(channel, 1)
    assert receive_channels.held_bytes == 0
    assert all(receive_channels.is_ended(channel) for channel in range(1, 5000))


def test_every_other_channel_may_end() -> None:
    receive_channels = half(max_channels=4000)
    for channel in range(1, 8001):
        feed(receive_channels, [whole(channel, 0, b"")], ends=frozenset({channel} if channel % 2 else ()))
    assert receive_channels.is_ended(7999)


def test_channels_that_are_not_numbered_one_after_another() -> None:
    receive_channels = half(max_channels=10)
    assert "not consecutive" in refused_reason(
        receive_channels, ((channel, 0, 0, b"", True) for channel in range(1, 100, 2)), ends=frozenset(range(100))
    )


@pytest.mark.parametrize("channels", [1, 5])
def test_as_many_open_channels_as_allowed(channels: int) -> None:
    receive_channels = half(max_channels=channels)
    feed(receive_channels, [whole(channel, 0, b"") for channel in range(1, channels + 1)])
    feed(receive_channels, [whole(0, 0, b"control is not counted")])
    with pytest.raises(LimitError, match=f"{channels} open channels"):
        feed(receive_channels, [whole(channels + 1, 0, b"")])


@pytest.mark.parametrize(
    "pieces",
    [
        [whole(0, 0, b"control ends")],
        [whole(1, 1, b"more"), whole(1, 0, b"end")],
        [(1, 1, 3, b"a part of more", False), whole(1, 0, b"end")],
    ],
)
def test_ends_that_cannot_be(pieces: list[Piece]) -> None:
    receive_channels = half()
    feed(receive_channels, pieces[:-1])
    with pytest.raises(DecodeError, match="must not end") as caught:
        feed(receive_channels, pieces[-1:], ends=frozenset({0, 1}))
    assert caught.value.reason == "fragment"


# -- limits -----------------------------------------------------------------------------------------------------------

SMALL = {"max_record_bytes": 2000, "channel_window_bytes": 4000, "connection_window_bytes": 8000}


@pytest.mark.parametrize(
    "pieces",
    [
        [(1, 0, 10, b"abc", True), (1, 0, 13, b"d", False)],
        [(1, 0, 13, b"d", False), (1, 0, 10, b"abc", True)],
        [(1, 0, 0, b"0123456789", False), (1, 0, 3, b"4", True)],
        [(1, 0, 10, b"abc", True), (1, 0, 10, b"ab", True)],
        [(1, 0, 10, b"abc", True), (1, 0, 0, b"x" * 20, False)],
        [(1, 0, 10, b"abc", True), (1, 0, 20, b"", True)],
    ],
)
def test_ends_twice_or_goes_on_after_its_end(pieces: list[Piece]) -> None:
    with pytest.raises(DecodeError) as caught:
        feed(half(), pieces)
    assert caught.value.reason == "fragment"
    assert not isinstance(caught.value, LimitError)


def test_longer_than_the_longest_record() -> None:
    assert len(feed(half(**SMALL), [whole(1, 0, bytes(2000))])) == 1
    for piece in (whole(1, 0, bytes(2001)), (1, 0, 2000, b"x", False), (1, 0, 2**31 - 5, b"x", True)):
        with pytest.raises(LimitError, match="2000 bytes"):
            feed(half(**SMALL), [piece])


def test_control_records_have_a_bound_of_their_own() -> None:
    assert len(feed(half(), [whole(0, 0, bytes(MAX_CONTROL_RECORD_BYTES))])) == 1
    with pytest.raises(LimitError):
        feed(half(), [whole(0, 0, bytes(MAX_CONTROL_RECORD_BYTES + 1))])


@pytest.mark.parametrize("size", [0, 1, 100, 2000])
@pytest.mark.parametrize("channels", [0, 1, 3])
def test_no_more_is_held_than_was_credited(size: int, channels: int) -> None:
    """`channels` 0: everything on channel 0, which has its own window."""
    receive_channels = half(**SMALL)
    limit = 8000 + 2000 + RECORD_COST_BYTES if channels > 1 else 4000 + 2000 + RECORD_COST_BYTES
    if channels == 0:
        limit = CONTROL_WINDOW_BYTES + 2000 + RECORD_COST_BYTES
    flood = (whole(n % channels + 1 if channels else 0, n // max(channels, 1) + 1, bytes(size)) for n in range(100_000))
    assert "credit" in refused_reason(receive_channels, flood)
    assert receive_channels.held_bytes <= limit
    assert receive_channels.held_bytes > limit - size - 2 * RECORD_COST_BYTES


def test_what_is_consumed_may_come_again() -> None:
    receive_channels = half(**SMALL)
    for number in range(200):
        assert feed(receive_channels, [whole(1, number, bytes(1500))])
        receive_channels.consume(1, 1500)
    assert receive_channels.held_bytes == 0


@pytest.mark.parametrize("first", [1, 0])
def test_a_flood_of_one_byte_fragments(first: int) -> None:
    """Each beyond a gap, in one record or one in each of many."""
    receive_channels = half(max_record_bytes=300_000, channel_window_bytes=300_000, connection_window_bytes=300_000)
    tracemalloc.start()
    refused_reason(
        receive_channels, ((1, 0, 2 * n, b"x", False) if first else (1, n, 2, b"x", False) for n in range(1, 150_000))
    )
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10 * 600_000


def tiny(receive_channels: ReceiveChannels, size: int, *, gap_first: bool) -> int:
    """A record in fragments of two bytes, in order but perhaps for the first. Gives the memory that it takes."""
    tracemalloc.start()
    at = 0
    if gap_first:
        receive_channels.handle_fragment(1, 0, 2, b"xx", is_last=False, ends_channel=False)
    while at < size:
        receive_channels.handle_fragment(1, 0, at, at.to_bytes(4, "big")[2:], is_last=False, ends_channel=False)
        at += 2
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held


@pytest.mark.parametrize("gap_first", [False, True])
def test_a_long_record_in_tiny_fragments_costs_little_more_than_its_bytes(gap_first: bool) -> None:
    size = 60_000
    assert tiny(half(max_record_bytes=2 * size), size, gap_first=gap_first) < 5 * size


def test_memory_is_bounded_by_the_credit_when_records_wait_for_a_gap() -> None:
    """Whole records of some bytes each, all waiting for record 0, which never comes."""
    receive_channels = half(max_record_bytes=100_000, channel_window_bytes=100_000, connection_window_bytes=100_000)
    tracemalloc.start()
    refused_reason(receive_channels, (whole(1, number, number.to_bytes(8, "big")) for number in range(1, 10**6)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10 * 200_000


# -- credit -----------------------------------------------------------------------------------------------------------


def test_credit_is_given_back_in_larger_steps() -> None:
    receive_channels = half(**SMALL)
    given: list[tuple[int, int]] = []
    for number in range(60):
        feed(receive_channels, [whole(1, number, bytes(272))])
        receive_channels.consume(1, 272)
        given += receive_channels.next_credits(10)
    channel = [limit for which, limit in given if which == 1]
    connection = [limit for which, limit in given if which == 0]
    assert channel == sorted(set(channel))
    assert channel[-1] > 60 * 400 + 4000 - 1000 - 400
    assert connection[-1] > 60 * 400 + 8000 - 2000 - 400
    assert len(channel) <= 60 * 400 // 1000 + 1
    assert len(connection) <= 60 * 400 // 2000 + 1


def test_control_needs_no_credit() -> None:
    receive_channels = half(**SMALL)
    for number in range(1000):
        feed(receive_channels, [whole(0, number, bytes(1000))])
        receive_channels.consume(0, 1000)
    assert not receive_channels.pending_credits
    assert receive_channels.held_bytes == 0


def test_control_is_done_with_when_it_is_delivered() -> None:
    """It has no credit, so its sender cannot know how slow the application is: that must not end the connection."""
    receive_channels = half()
    for number in range(100):
        assert len(feed(receive_channels, [whole(0, number, bytes(100_000))])) == 1
    assert receive_channels.held_bytes == 0
    receive_channels.consume(0, 100_000)
    assert receive_channels.held_bytes == 0
    assert not receive_channels.pending_credits


def test_a_grant_is_repeated_on_demand() -> None:
    receive_channels = half(**SMALL)
    feed(receive_channels, [whole(1, 0, b"12")])
    receive_channels.consume(1, 2)
    assert receive_channels.next_credits(10) == []
    receive_channels.repeat_credit(1)
    receive_channels.repeat_credit(0)
    receive_channels.repeat_credit(77)
    assert receive_channels.pending_credits
    assert sorted(receive_channels.next_credits(10)) == [(0, 8130), (1, 4130)]
    assert not receive_channels.pending_credits


def test_grants_that_do_not_fit_wait() -> None:
    receive_channels = half(**SMALL)
    feed(receive_channels, [whole(channel, 0, b"") for channel in range(1, 6)])
    for channel in range(6):
        receive_channels.repeat_credit(channel)
    assert len(receive_channels.next_credits(4)) == 4
    assert len(receive_channels.next_credits(4)) == 2
    assert receive_channels.next_credits(4) == []


def test_a_record_is_consumed_once_and_only_after_it_came() -> None:
    receive_channels = half()
    with pytest.raises(UsageError, match="channel 1"):
        receive_channels.consume(1, 0)
    feed(receive_channels, [whole(1, 0, b"12345"), whole(1, 2, b"waits for record 1"), whole(2, 0, b"67890")])
    receive_channels.consume(1, 5)
    with pytest.raises(UsageError, match="consumed before"):
        receive_channels.consume(1, 5)
    receive_channels.consume(2, 5)
    with pytest.raises(UsageError):
        receive_channels.consume(3, 0)


def test_the_last_record_of_an_ended_channel_is_consumed_too() -> None:
    receive_channels = half()
    feed(receive_channels, [whole(1, 0, b"12345")], ends=frozenset({1}))
    receive_channels.consume(1, 5)
    assert receive_channels.held_bytes == 0
    with pytest.raises(UsageError):
        receive_channels.consume(1, 5)


def test_an_ended_channel_gets_no_credit() -> None:
    receive_channels = half(**SMALL)
    feed(receive_channels, [whole(1, 0, bytes(1500)), whole(1, 1, b"")])
    receive_channels.consume(1, 1500)
    assert receive_channels.pending_credits
    feed(receive_channels, [whole(1, 2, b"")], ends=frozenset({1}))
    assert [channel for channel, _ in receive_channels.next_credits(10) if channel] == []
    receive_channels.consume(1, 0)
    receive_channels.repeat_credit(1)
    assert not receive_channels.pending_credits


def test_a_record_full_of_gaps_is_refused_before_it_becomes_slow() -> None:
    receive_channels = half()
    downwards = ((1, 0, offset, b"x", False) for offset in range(4 * MAX_GAPS, 0, -2))
    assert "gaps" in refused_reason(receive_channels, downwards)


def test_what_was_not_received_cannot_be_consumed() -> None:
    receive_channels = half()
    with pytest.raises(UsageError, match="consume each reliable record once"):
        receive_channels.consume(1, 10)
    feed(receive_channels, [whole(1, 0, b"0123456789")])
    receive_channels.consume(1, 10)
    with pytest.raises(UsageError):
        receive_channels.consume(1, 10)


# -- whole records in order -------------------------------------------------------------------------------------------


def test_a_whole_record_in_order_is_taken_at_once() -> None:
    receive_channels = half()
    assert receive_channels.accept_whole(1, 0, 10) == -1  # a channel that is not known yet
    feed(receive_channels, [whole(1, 0, b"open")])
    assert receive_channels.accept_whole(1, 1, 10) == 1
    assert receive_channels.accept_whole(1, 1, 10) == -1
    assert receive_channels.accept_whole(1, 3, 10) == -1
    assert feed(receive_channels, [whole(1, 2, b"two")]) == [(1, 2, b"two", False)]
    assert receive_channels.held_bytes == 4 + 10 + 3 + 3 * RECORD_COST_BYTES
    for size in (4, 10, 3):
        receive_channels.consume(1, size)
    assert receive_channels.held_bytes == 0
    with pytest.raises(UsageError):
        receive_channels.consume(1, 0)


def test_what_is_held_back_or_begun_goes_the_long_way() -> None:
    receive_channels = half()
    feed(receive_channels, [whole(1, 0, b"open"), whole(1, 2, b"two")])
    assert receive_channels.accept_whole(1, 1, 3) == -1
    assert feed(receive_channels, [whole(1, 1, b"one")]) == [(1, 1, b"one", False), (1, 2, b"two", False)]
    feed(receive_channels, [(2, 0, 0, b"begun", False)])
    assert receive_channels.accept_whole(1, 3, 3) == -1
    feed(receive_channels, [whole(0, 0, b"control")])
    assert receive_channels.accept_whole(0, 1, 3) == -1


def test_the_number_of_a_whole_record_wraps_around() -> None:
    receive_channels = half()
    feed(receive_channels, [whole(1, 0, b"")])
    channel = receive_channels._channels[1]
    channel.expected = 2**32 - 1
    assert receive_channels.accept_whole(1, 2**32 - 1, 0) == 2**32 - 1
    assert receive_channels.accept_whole(1, 0, 0) == 2**32


def test_a_whole_record_keeps_to_the_credit() -> None:
    receive_channels = half(channel_window_bytes=1200, connection_window_bytes=1200, max_record_bytes=1200)
    feed(receive_channels, [whole(1, 0, b"")])
    assert receive_channels.accept_whole(1, 1, 1201) == -1
    taken = 0
    while receive_channels.accept_whole(1, 1 + taken, 100) >= 0:
        taken += 1
    assert (taken + 1) * RECORD_COST_BYTES + taken * 100 <= 2 * 1200 + RECORD_COST_BYTES
    assert "credit" in refused_reason(receive_channels, [whole(1, 1 + taken, bytes(100))])


def test_credit_that_is_waited_for_is_given_in_any_step() -> None:
    receive_channels = half(channel_window_bytes=4000, connection_window_bytes=8000)
    feed(receive_channels, [whole(1, number, bytes(10)) for number in range(20)])
    assert not receive_channels.consume(1, 10)
    receive_channels.handle_blocked(1)
    assert receive_channels.next_credits(10) == [(1, 4000 + 138)]
    assert receive_channels.consume(1, 10)
    assert receive_channels.next_credits(10) == [(1, 4000 + 2 * 138)]
    steps = 0
    while not receive_channels.consume(1, 10):
        steps += 1
    assert steps == 1000 // 138
