"""The sending half: credit, turns between channels, channel 0, unreliable records, the buffer, the end of a channel."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.world import World, examples, send_all

from godwit.errors import ChannelError, RecordTooLargeError, SendBufferFullError
from godwit.limits import (
    CONTROL_QUEUE_BYTES,
    CONTROL_WINDOW_BYTES,
    MAX_CHANNELS,
    MAX_CONTROL_RECORD_BYTES,
    MAX_UNRELIABLE_BYTES,
    RECORD_COST_BYTES,
    UNRELIABLE_QUEUE_BYTES,
)
from godwit.transport.arq import GoBackN, SelectiveRepeat
from godwit.transport.config import EndpointConfig
from godwit.transport.send_channels import Fragment, SendChannels, UnreliableRecord
from godwit.wire import packet as wire
from godwit.wire.parameters import Parameters

ROOM = 1183
"""What a base datagram has for frames."""


def peer(channel: int = 10_000, connection: int = 30_000, record: int = 100_000, channels: int = 100) -> Parameters:
    return EndpointConfig(
        channel_window_bytes=channel,
        connection_window_bytes=connection,
        max_record_bytes=record,
        max_channels=channels,
    ).parameters(b"")


def half(
    limits: Parameters | None = None,
    *,
    buffer: int = 10**7,
    window: int | None = None,
    max_channels: int = MAX_CHANNELS,
) -> SendChannels:
    policy = SelectiveRepeat() if window is None else GoBackN(window)
    send_channels = SendChannels(policy, send_buffer_bytes=buffer, max_channels=max_channels)
    assert send_channels.handle_limits(limits or peer()) == ""
    return send_channels


def send(send_channels: SendChannels, channel: int, body: bytes, *, reliable: bool = True, last: bool = False) -> None:
    send_channels.send(channel, body, reliable=reliable, last=last)


def drain(send_channels: SendChannels, room: int = ROOM, most: int = 10_000) -> list[Fragment | UnreliableRecord]:
    """Everything that may go now, one frame a packet."""
    got: list[Fragment | UnreliableRecord] = []
    while len(got) < most and send_channels.has_frames():
        item = send_channels.next_frame(room, packet_is_empty=True)
        assert item is not None
        got.append(item)
    return got


def fragments(items: list[Fragment | UnreliableRecord]) -> list[tuple[int, int, int, int]]:
    """(channel, record, start, stop)"""
    return [
        (one.record.channel.id, one.record.number, one.start, one.stop) for one in items if isinstance(one, Fragment)
    ]


def arrived(send_channels: SendChannels, items: list[Fragment | UnreliableRecord]) -> bool:
    """These have arrived. Whether the application should hear of room."""
    return send_channels.handle_completed([one.record for one in items if isinstance(one, Fragment) and one.settle()])


# -- cutting ----------------------------------------------------------------------------------------------------------


@examples(1)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=6), st.integers(100, 1500), st.booleans())
def test_records_are_cut_to_the_room_and_covered_exactly(sizes: list[int], room: int, positions: bool) -> None:
    send_channels = half(peer(channel=10**6, connection=10**6), window=4096 if positions else None)
    channel = send_channels.open_channel()
    for size in sizes:
        send(send_channels, channel, bytes(size))
    items = drain(send_channels, room)
    assert send_channels.unsent_bytes == 0
    covered: dict[int, int] = {}
    for item in items:
        assert isinstance(item, Fragment)
        assert item.header_bytes() + item.body_bytes() <= room
        assert covered.get(item.record.number, 0) == item.start
        covered[item.record.number] = item.stop
        assert (item.position >= 0) is positions
    assert [covered[number] for number in range(len(sizes))] == sizes


def test_a_record_is_not_begun_in_a_small_rest_of_a_packet() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(1000))
    assert send_channels.next_frame(200, packet_is_empty=False) is None
    item = send_channels.next_frame(400, packet_is_empty=False)
    assert isinstance(item, Fragment)
    assert item.stop == 400 - 13
    whole = half()
    send(whole, whole.open_channel(), bytes(100))
    assert isinstance(whole.next_frame(200, packet_is_empty=False), Fragment)
    send(whole, 1, bytes(100))
    assert whole.next_frame(5, packet_is_empty=True) is None


def test_a_fragment_is_cut_anew_when_the_path_shrinks() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(1400))
    (item,) = drain(send_channels, 1455)
    assert isinstance(item, Fragment)
    item.packet = 0
    send_channels.policy.handle_lost(0, [item])
    assert send_channels.next_frame(ROOM, packet_is_empty=False) is None
    again = drain(send_channels, ROOM)
    assert fragments(again) == [(channel, 0, 0, 1170), (channel, 0, 1170, 1400)]
    assert not arrived(send_channels, [item])
    assert send_channels.queued_bytes == 1400 + RECORD_COST_BYTES
    arrived(send_channels, again)
    assert send_channels.queued_bytes == 0


def test_bulk_gives_a_long_record_in_whole_packets() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(5000))
    record = send_channels.next_bulk(1170)
    assert record is not None
    send_channels.mark_cut(record, 2340)
    assert record.cut_bytes == 2340
    assert send_channels.next_bulk(1170) is record
    send_channels.mark_cut(record, 2340)
    assert send_channels.next_bulk(1170) is None  # what is left does not fill a packet
    assert fragments(drain(send_channels)) == [(channel, 0, 4680, 5000)]
    assert send_channels.unsent_bytes == 0


def test_bulk_waits_for_what_goes_first() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(5000))
    send(send_channels, 0, b"control")
    assert send_channels.next_bulk(1000) is None
    drain(send_channels, most=1)
    assert send_channels.next_bulk(1000) is not None
    send(send_channels, send_channels.open_channel(), b"unreliable", reliable=False)
    assert send_channels.next_bulk(1000) is None
    assert isinstance(drain(send_channels, most=1)[0], UnreliableRecord)
    (item,) = drain(send_channels, most=1)
    assert isinstance(item, Fragment)
    item.packet = 0
    send_channels.policy.handle_lost(0, [item])
    assert send_channels.next_bulk(1000) is None
    positioned = half(window=15)
    send(positioned, positioned.open_channel(), bytes(5000))
    assert positioned.next_bulk(1000) is None


def test_the_order_of_what_goes_next() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    send(send_channels, channel, b"lost")
    (lost,) = drain(send_channels)
    assert isinstance(lost, Fragment)
    lost.packet = 0
    send(send_channels, channel, b"data")
    send(send_channels, send_channels.open_channel(), b"unreliable", reliable=False)
    send(send_channels, 0, b"control")
    send_channels.policy.handle_lost(0, [lost])
    got = [one.body if isinstance(one, UnreliableRecord) else one.record.body for one in drain(send_channels)]
    assert got == [b"lost", b"control", b"unreliable", b"data"]


# -- turns ------------------------------------------------------------------------------------------------------------


def test_channels_take_turns_record_by_record() -> None:
    send_channels = half()
    channels = [send_channels.open_channel() for _ in range(3)]
    for channel in channels:
        for _ in range(3):
            send(send_channels, channel, b"x")
    assert [item[0] for item in fragments(drain(send_channels))] == channels * 3


@pytest.mark.parametrize("window", [None, 4096])
def test_a_long_record_holds_up_no_other_channel(window: int | None) -> None:
    send_channels = half(peer(channel=10**6, connection=10**6), window=window)
    long, short = send_channels.open_channel(), send_channels.open_channel()
    send(send_channels, long, bytes(100_000))
    drain(send_channels, most=3)
    for _ in range(5):
        send(send_channels, short, b"quick")
    got = fragments(drain(send_channels, most=20))
    assert sum(channel == short for channel, *_ in got) == 5


@pytest.mark.parametrize("window", [None, 4096])
def test_a_long_record_is_not_starved_by_shorter_ones(window: int | None) -> None:
    send_channels = half(peer(channel=10**8, connection=10**8), window=window, buffer=10**9)
    long, *others = (send_channels.open_channel() for _ in range(4))
    send(send_channels, long, bytes(100_000))
    for _ in range(200):
        for channel in others:
            send(send_channels, channel, bytes(3000))
    got = fragments(drain(send_channels, most=600))
    assert sum(stop - start for channel, _, start, stop in got if channel == long) == 100_000


def test_two_long_records_share_the_trains() -> None:
    send_channels = half(peer(channel=10**6, connection=10**6))
    one, other = send_channels.open_channel(), send_channels.open_channel()
    send(send_channels, one, bytes(100_000))
    send(send_channels, other, bytes(100_000))
    turns: Counter[int] = Counter()
    for _ in range(20):
        record = send_channels.next_bulk(1000)
        assert record is not None
        send_channels.mark_cut(record, 3000)
        turns[record.channel.id] += 1
    assert min(turns[one], turns[other]) >= 8


def test_many_channels_are_served_evenly_on_a_connection() -> None:
    world = World(bytes_per_s=1.25e6)
    client, _ = world.connect()
    channels = [client.open_channel() for _ in range(10)]
    for channel in channels:
        for _ in range(20):
            client.send(channel, bytes(5000))
    world.run_until(lambda: len(world.server.records) >= 100)
    counts = [len(world.server.bodies(channel)) for channel in channels]
    assert max(counts) - min(counts) <= 3


# -- credit -----------------------------------------------------------------------------------------------------------


def test_a_channel_sends_as_much_as_its_credit() -> None:
    send_channels = half(peer(channel=10_000, connection=100_000))
    channel = send_channels.open_channel()
    for _ in range(20):
        send(send_channels, channel, bytes(872))
    assert len(drain(send_channels)) == 10
    assert send_channels.blocked == {channel: 10_000}
    send_channels.handle_credit(channel, 9_999)
    assert not send_channels.has_frames()
    send_channels.handle_credit(channel, 12_000)
    assert send_channels.blocked == {}
    assert len(drain(send_channels)) == 2
    assert send_channels.blocked == {channel: 12_000}
    send_channels.handle_credit(channel, 11_000)  # an old word that arrives late
    assert not send_channels.has_frames()
    send_channels.handle_credit(channel, 2**64 - 1)
    assert len(drain(send_channels)) == 8


def test_the_connection_sends_as_much_as_its_credit() -> None:
    send_channels = half(peer(channel=10_000, connection=15_000))
    channels = [send_channels.open_channel() for _ in range(3)]
    for channel in channels:
        for _ in range(9):
            send(send_channels, channel, bytes(872))
    assert len(drain(send_channels)) == 15
    assert send_channels.blocked == {0: 15_000}
    send_channels.handle_credit(0, 14_000)
    assert not send_channels.has_frames()
    send_channels.handle_credit(0, 20_000)
    assert len(drain(send_channels)) == 5
    send_channels.handle_credit(0, 10**6)
    assert len(drain(send_channels)) == 7


def test_what_has_begun_can_always_end() -> None:
    """The connection's credit is used up by records that have begun: they must go on, or nothing ever would."""
    send_channels = half(peer(channel=10_000, connection=15_000))
    channels = [send_channels.open_channel() for _ in range(4)]
    for channel in channels:
        send(send_channels, channel, bytes(7000))
    done: Counter[int] = Counter()
    for _ in range(100):
        record = send_channels.next_bulk(1000)
        if record is None:
            break
        send_channels.mark_cut(record, 1000)
        done[record.channel.id] += 1000
    assert sorted(done.values()) == [7000, 7000]
    assert send_channels.blocked.keys() == {0}


def test_a_record_longer_than_the_window_goes_when_all_before_it_was_consumed() -> None:
    send_channels = half(peer(channel=10_000, connection=30_000))
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(872))
    send(send_channels, channel, bytes(50_000))
    drain(send_channels)
    assert send_channels.blocked == {channel: 10_000}
    send_channels.handle_credit(channel, 10_999)
    drain(send_channels)
    assert send_channels.blocked == {channel: 10_999}
    send_channels.handle_credit(channel, 11_000)  # all consumed on the channel, but not on the connection
    assert drain(send_channels) == []
    assert send_channels.blocked == {0: 30_000}
    send_channels.handle_credit(0, 31_000)
    assert sum(item.body_bytes() for item in drain(send_channels)) == 50_000


def test_credit_for_channels_that_are_not_there_changes_nothing() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    for other in (77, 2**32 - 1):
        send_channels.handle_credit(other, 10**9)
    send(send_channels, channel, bytes(9_000))
    send(send_channels, channel, bytes(9_000))
    drain(send_channels)
    assert send_channels.blocked == {channel: 10_000}


def test_control_needs_no_credit_but_is_bounded_by_what_is_unacknowledged() -> None:
    send_channels = half(peer(channel=1200, connection=1200, record=10**6))
    for _ in range(5):
        send(send_channels, 0, bytes(MAX_CONTROL_RECORD_BYTES - RECORD_COST_BYTES))
    items = drain(send_channels)
    in_flight = sum(item.body_bytes() for item in items)
    assert in_flight <= CONTROL_WINDOW_BYTES < in_flight + MAX_CONTROL_RECORD_BYTES
    assert not send_channels.blocked
    arrived(send_channels, items)
    assert drain(send_channels)


def test_control_counts_from_the_oldest_record_that_has_not_arrived() -> None:
    """The receiver holds all that come behind a lost one, although they are acknowledged."""
    send_channels = half(peer(record=10**6), buffer=10**7)
    for _ in range(6):
        send(send_channels, 0, bytes(MAX_CONTROL_RECORD_BYTES - RECORD_COST_BYTES))
    items = drain(send_channels)
    first = [item for item, (_, record, *_) in zip(items, fragments(items), strict=True) if record == 0]
    rest = items[len(first) :]
    arrived(send_channels, rest)
    assert not drain(send_channels)
    arrived(send_channels, first)
    assert drain(send_channels)


def test_data_that_waits_does_not_block_control() -> None:
    send_channels = half(buffer=5000)
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(4000))
    with pytest.raises(SendBufferFullError):
        send(send_channels, channel, bytes(4000))
    send(send_channels, 0, b"still goes")
    assert fragments(drain(send_channels, most=1))[0][0] == 0


def test_records_queued_before_the_limits_are_known_get_their_credit_then() -> None:
    send_channels = SendChannels(SelectiveRepeat(), send_buffer_bytes=10**6)
    channel = send_channels.open_channel()
    for _ in range(20):
        send(send_channels, channel, bytes(872))
    assert send_channels.handle_limits(peer(channel=10_000)) == ""
    assert len(drain(send_channels)) == 10


@pytest.mark.parametrize("beyond", ["record", "channels"])
def test_what_is_queued_beyond_the_limits_is_told(beyond: str) -> None:
    send_channels = SendChannels(SelectiveRepeat(), send_buffer_bytes=10**6)
    for _ in range(3):
        channel = send_channels.open_channel()
    send(send_channels, channel, bytes(5000))
    word = send_channels.handle_limits(peer(record=4000) if beyond == "record" else peer(channels=2))
    assert ("5000 bytes" if beyond == "record" else "3 channels") in word


# -- the buffer -------------------------------------------------------------------------------------------------------


def test_a_full_buffer_refuses_until_half_of_it_is_free() -> None:
    send_channels = half(buffer=10_000)
    channel = send_channels.open_channel()
    for _ in range(10):
        send(send_channels, channel, bytes(872))
    with pytest.raises(SendBufferFullError):
        send(send_channels, channel, bytes(872))
    items = drain(send_channels)
    assert len(items) == 10
    assert [arrived(send_channels, [item]) for item in items] == [False] * 4 + [True] + [False] * 5
    assert send_channels.queued_bytes == 0
    assert not arrived(send_channels, items)


def test_room_is_told_only_to_those_who_were_refused() -> None:
    send_channels = half(buffer=10_000)
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(5000))
    assert not arrived(send_channels, drain(send_channels))


def test_control_has_a_buffer_of_its_own() -> None:
    send_channels = half(peer(record=10**6))
    for _ in range(10):
        send(send_channels, 0, bytes(100_000))
    with pytest.raises(SendBufferFullError):
        send(send_channels, 0, bytes(100_000))
    assert CONTROL_QUEUE_BYTES - 101_000 < send_channels.queued_bytes <= CONTROL_QUEUE_BYTES
    send(send_channels, send_channels.open_channel(), b"data has its own")
    told = False
    while send_channels.queued_bytes:
        told |= arrived(send_channels, drain(send_channels))
    assert told


def test_what_is_too_large() -> None:
    send_channels = half(peer(record=5000))
    channel = send_channels.open_channel()
    with pytest.raises(RecordTooLargeError):
        send(send_channels, channel, bytes(5001))
    with pytest.raises(RecordTooLargeError):
        send(half(peer(record=10**6)), 0, bytes(MAX_CONTROL_RECORD_BYTES + 1))
    with pytest.raises(RecordTooLargeError):
        send(send_channels, channel, bytes(MAX_UNRELIABLE_BYTES + 1), reliable=False)
    assert send_channels.buffered_bytes == 0


# -- unreliable records -----------------------------------------------------------------------------------------------


def test_of_too_many_unreliable_records_the_oldest_are_dropped() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    for number in range(1000):
        send(send_channels, channel, number.to_bytes(4, "big") * 250, reliable=False)
    kept = [item for item in drain(send_channels) if isinstance(item, UnreliableRecord)]
    assert sum(len(item.body) + RECORD_COST_BYTES for item in kept) <= UNRELIABLE_QUEUE_BYTES
    assert [item.number for item in kept] == list(range(1000 - len(kept), 1000))
    assert send_channels.unreliable_dropped == 1000 - len(kept) > 0
    assert send_channels.buffered_bytes == 0


def test_behind_a_reliable_record_an_unreliable_one_goes_reliably_until_that_has_arrived() -> None:
    send_channels = half()
    channel, other = send_channels.open_channel(), send_channels.open_channel()
    send(send_channels, channel, b"labels")
    send(send_channels, channel, b"one", reliable=False)
    send(send_channels, other, b"elsewhere", reliable=False)
    got = drain(send_channels)
    assert fragments(got) == [(channel, 0, 0, 6), (channel, 1, 0, 3)]
    send(send_channels, channel, b"two", reliable=False)
    assert fragments(drain(send_channels)) == [(channel, 2, 0, 3)]
    arrived(send_channels, [one for one in got if isinstance(one, Fragment) and one.record.number == 0])
    # What only followed it does not make those behind it reliable: else a steady stream would never come back.
    send(send_channels, channel, b"three", reliable=False)
    assert drain(send_channels) == [UnreliableRecord(channel, 0, b"three")]


def test_a_reliable_record_is_not_overtaken_while_one_before_it_holds_it_up() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    send(send_channels, channel, b"first")
    send(send_channels, channel, b"follows", reliable=False)
    first, follows = drain(send_channels)
    arrived(send_channels, [first])
    send(send_channels, channel, b"labels")
    arrived(send_channels, drain(send_channels))
    send(send_channels, channel, b"two", reliable=False)
    assert fragments(drain(send_channels)) == [(channel, 3, 0, 3)]
    arrived(send_channels, [follows])
    send(send_channels, channel, b"three", reliable=False)
    assert drain(send_channels) == [UnreliableRecord(channel, 0, b"three")]


def test_what_follows_reliably_and_was_not_sent_yet_is_not_overtaken() -> None:
    send_channels = half(peer(channel=2000))
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(1800))
    send(send_channels, channel, b"waits for credit", reliable=False)
    arrived(send_channels, drain(send_channels))
    send(send_channels, channel, b"behind it", reliable=False)
    assert not send_channels.has_frames()
    send_channels.handle_credit(channel, 4000)
    assert fragments(drain(send_channels)) == [(channel, 1, 0, 16), (channel, 2, 0, 9)]


def test_what_follows_reliably_is_dropped_when_the_buffer_is_full() -> None:
    send_channels = half(buffer=5000)
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(4500))
    send(send_channels, channel, bytes(1000), reliable=False)
    assert send_channels.unreliable_dropped == 1
    assert not send_channels.wants_writable
    with pytest.raises(RecordTooLargeError, match="unreliable"):
        send(send_channels, channel, bytes(MAX_UNRELIABLE_BYTES + 1), reliable=False)
    with pytest.raises(ChannelError, match="unreliable"):
        send(send_channels, channel, b"", reliable=False, last=True)
    assert len(drain(send_channels)) == 4


def test_what_was_never_sent() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    seen = [send_channels.waiting_bytes]
    send(send_channels, 0, b"", reliable=False)
    seen.append(send_channels.waiting_bytes)
    drain(send_channels)
    send(send_channels, channel, bytes(2000))
    seen.append(send_channels.waiting_bytes)
    send_channels.next_frame(1000, packet_is_empty=True)
    seen.append(send_channels.waiting_bytes)
    drain(send_channels)
    seen.append(send_channels.waiting_bytes)
    left_bytes = 2001 - (1000 - wire.FRAGMENT_HEADER.size)
    assert seen == [0, RECORD_COST_BYTES, 2001, left_bytes, 0]


def test_an_unreliable_record_that_does_not_fit_waits_for_the_next_packet() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    send(send_channels, channel, bytes(1000), reliable=False)
    assert send_channels.buffered_bytes == 1000 + RECORD_COST_BYTES
    assert send_channels.next_frame(900, packet_is_empty=False) is None
    item = send_channels.next_frame(ROOM, packet_is_empty=True)
    assert isinstance(item, UnreliableRecord)
    assert send_channels.next_frame(ROOM, packet_is_empty=True) is None


@pytest.mark.parametrize("with_length", [True, False])
def test_the_frame_of_an_unreliable_record(with_length: bool) -> None:
    record = UnreliableRecord(3, 2**32 + 5, b"body")
    encoded = b"".join(record.encode(with_length=with_length))
    (frame,) = wire.decode_frames(encoded)
    assert isinstance(frame, wire.DataFrame)
    assert (frame.channel, frame.record, frame.body) == (3, 5, b"body")
    assert frame.flags & wire.UNRELIABLE
    assert len(encoded) == record.header_bytes() + record.body_bytes() + (2 if with_length else 0)


# -- channels ---------------------------------------------------------------------------------------------------------


def test_an_ended_channel_is_closed_for_sending_and_freed_when_all_arrived() -> None:
    send_channels = half(peer(channels=1))
    channel = send_channels.open_channel()
    send(send_channels, channel, b"first")
    send(send_channels, channel, b"last", last=True)
    for reliable in (True, False):
        with pytest.raises(ChannelError):
            send(send_channels, channel, b"more", reliable=reliable)
    with pytest.raises(ChannelError):
        send_channels.open_channel()
    items = drain(send_channels)
    assert [b"".join(item.encode(with_length=False))[0] & wire.END for item in items] == [0, wire.END]
    # The other side still counts the channel as open until its end has arrived there.
    with pytest.raises(ChannelError):
        send_channels.open_channel()
    arrived(send_channels, items[1:])
    with pytest.raises(ChannelError):
        send_channels.open_channel()
    arrived(send_channels, items[:1])
    assert send_channels.open_channel() == channel + 1


def test_what_no_channel_does() -> None:
    send_channels = half()
    for channel in (1, 77):
        with pytest.raises(ChannelError):
            send(send_channels, channel, b"")
    with pytest.raises(ChannelError, match="channel 0"):
        send(send_channels, 0, b"", last=True)
    channel = send_channels.open_channel()
    with pytest.raises(ChannelError, match="unreliable"):
        send(send_channels, channel, b"", reliable=False, last=True)
    assert drain(send_channels) == []


def test_confirms_are_news_once() -> None:
    send_channels = half()
    channel = send_channels.open_channel()
    assert [send_channels.handle_confirm(channel, sequence) for sequence in (0, 0, 5, 3, 5, 6)] == [
        True, False, True, False, False, True,
    ]  # fmt: skip
    assert not send_channels.handle_confirm(0, 1)
    assert not send_channels.handle_confirm(channel + 1, 1)


def test_confirms_of_many_channels_cost_bounded_memory() -> None:
    send_channels = half(peer(channels=2**20), max_channels=2**20)
    for _ in range(MAX_CHANNELS + 10):
        assert send_channels.handle_confirm(send_channels.open_channel(), 1)
    assert not send_channels.handle_confirm(MAX_CHANNELS + 10, 1)


# -- on a connection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_channels_come_and_go_at_the_limit_of_the_other_side(loss: float) -> None:
    for seed in range(3):
        world = World(seed, server=EndpointConfig(accepts=True, max_channels=2), loss=loss)
        client, _ = world.connect()
        done = 0
        while done < 40:
            try:
                channel = client.open_channel()
            except ChannelError:
                world.run(0.01)
                continue
            client.send(channel, bytes(2000))
            client.send(channel, b"end", last=True)
            done += 1
        world.run_until(lambda: len(world.server.records) == 80)  # noqa: B023
        assert world.server.connection.state.value == "open"


def test_a_sender_without_credit_waits_for_its_receiver() -> None:
    world = World(server=EndpointConfig(accepts=True, channel_window_bytes=20_000, connection_window_bytes=40_000))
    world.server.consumes = False
    client, server = world.connect()
    channel = send_all(world, client, [bytes(872)] * 100)
    world.run(5.0)
    assert len(world.server.records) == 20
    assert server.buffered_bytes == 20_000
    for record in world.server.records:
        server.consume(channel, len(record.body))
    world.server.consumes = True
    world.run_until(lambda: len(world.server.records) == 100, 1.0)


@pytest.mark.parametrize("lag_s", [0.0, 0.003, 0.05])
def test_records_around_the_window_do_not_wait_for_timers(lag_s: float) -> None:
    """The receiver gives credit back in steps, the sender needs all of it: they must find together at once."""
    world = World(server=EndpointConfig(accepts=True, channel_window_bytes=32_000, connection_window_bytes=64_000))
    client, server = world.connect()
    world.run(0.5)
    world.server.consumes = False
    sizes = [100, 40_000, 1, 50_000, 20_000, 20_000, 31_872, 0, 90_000]
    channel = send_all(world, client, [bytes(size) for size in sizes])
    start = world.now
    taken = 0
    while taken < len(sizes):
        world.run_until(lambda: len(world.server.records) > taken, 5.0)  # noqa: B023
        world.run(lag_s)
        server.consume(channel, len(world.server.records[taken].body))
        taken += 1
    assert world.now - start < 0.9 + len(sizes) * (lag_s + 0.02)


def test_a_lost_word_of_credit_is_said_again() -> None:
    for seed in range(5):
        world = World(seed, server=EndpointConfig(
            accepts=True, channel_window_bytes=5000, connection_window_bytes=5000
        ), loss=0.3)  # fmt: skip
        client, _ = world.connect()
        send_all(world, client, [bytes(1000)] * 60)
        world.run_until(lambda: len(world.server.records) == 60, 60.0)  # noqa: B023


def test_records_that_fill_the_connections_credit_from_many_channels() -> None:
    world = World(server=EndpointConfig(accepts=True, channel_window_bytes=32_000, connection_window_bytes=64_000))
    client, _ = world.connect()
    for _ in range(8):
        send_all(world, client, [bytes(30_000), bytes(70_000)])
    world.run_until(lambda: len(world.server.records) == 16, 20.0)


# -- a record that is alone -------------------------------------------------------------------------------------------


def test_the_only_record_is_taken_whole() -> None:
    send_channels = half()
    channel, other = send_channels.open_channel(), send_channels.open_channel()
    assert send_channels.next_lone(100) is None
    for number, body in enumerate((b"", bytes(100))):
        send(send_channels, channel, body)
        record = send_channels.next_lone(100)
        assert record is not None
        assert (record.number, record.body, record.cut_bytes) == (number, body, len(body))
        assert send_channels.waiting_bytes == 0
        assert not send_channels.has_frames()
    send(send_channels, channel, bytes(101))
    assert send_channels.next_lone(100) is None
    assert send_channels.next_lone(101) is not None
    send(send_channels, channel, b"")
    send(send_channels, other, b"")
    assert send_channels.next_lone(100) is None
    assert len(drain(send_channels)) == 2
    send(send_channels, 0, b"control")
    assert send_channels.next_lone(100) is None
    send(send_channels, channel, b"")
    assert send_channels.next_lone(100) is None
    drain(send_channels)
    send(send_channels, channel, bytes(2000))
    send_channels.next_frame(1000, packet_is_empty=True)
    assert send_channels.next_lone(2000) is None


def test_the_only_record_needs_credit() -> None:
    send_channels = half(peer(channel=1500, connection=2000))
    one, other = send_channels.open_channel(), send_channels.open_channel()
    for channel, taken in ((one, True), (one, False)):
        send(send_channels, channel, bytes(700))
        assert (send_channels.next_lone(1000) is not None) is taken
    assert not send_channels.has_frames()
    assert send_channels.blocked == {one: 1500}
    send_channels.handle_credit(one, 3000)
    assert send_channels.next_lone(1000) is not None
    send(send_channels, other, bytes(700))
    assert send_channels.next_lone(1000) is None
    assert not send_channels.has_frames()
    assert send_channels.blocked == {0: 2000}


def test_what_waits_for_credit_on_other_channels_still_counts_as_unsent() -> None:
    send_channels = half(peer(channel=2000))
    full, other = send_channels.open_channel(), send_channels.open_channel()
    send(send_channels, full, bytes(1500))
    send(send_channels, full, bytes(700))
    drain(send_channels)
    waiting_bytes = send_channels.unsent_bytes
    assert waiting_bytes == 701
    send(send_channels, other, b"short")
    assert send_channels.next_lone(100) is not None
    assert send_channels.unsent_bytes == waiting_bytes
