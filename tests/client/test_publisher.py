"""A publisher: cutting batches, holding them until they are confirmed, sending them again."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.stubs import StubConnection

from godwit.client.batches import Payload
from godwit.client.events import ClientEvent, Confirmed, Expired, Refused
from godwit.client.publisher import (
    OFFLINE_UNRELIABLE_BYTES,
    ROUTE_BYTES,
    TOGETHER_US,
    UNRELIABLE_AHEAD_BYTES,
    Publisher,
    Publishers,
)
from godwit.errors import BufferFullError, RecordTooLargeError, UsageError
from godwit.limits import MAX_BATCH_MESSAGES, MAX_UNRELIABLE_BYTES, MIB, RECORD_COST_BYTES
from godwit.wire.batch import LONE, Batch, decode_batches
from godwit.wire.control import PublishOpen, decode_control
from godwit.wire.control_base import Code, Qos
from godwit.wire.extension import Properties, decode_properties, encode_properties

NOW_US = 1_700_000_000_000_000


class Bench(NamedTuple):
    """A publisher on its connection."""

    publisher: Publisher
    publishers: Publishers
    connection: StubConnection
    events: list[ClientEvent]

    def batches(self) -> list[Batch]:
        """Return the batches on channel 1 that were handed to the transport."""
        return [batch for record in self.connection.bodies(1) for batch in decode_batches(record)]


def bench(qos: Qos = 1, *, online: bool = True, buffer_bytes: int = MIB, train_bytes: int = 1000) -> Bench:
    events: list[ClientEvent] = []
    publishers = Publishers(buffer_bytes, events, "run")
    connection = StubConnection(train_bytes)
    if online:
        publishers.attach(connection.real, 16 * MIB)
    return Bench(publishers.publisher("t", qos, None, 0, 0), publishers, connection, events)


class Sending(NamedTuple):
    payload: bytes
    published_us: int
    retain: bool


SENDINGS = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=60), st.integers(0, 3000).map(bytes)),
        st.sampled_from([0, 0, 0, 1, 400, TOGETHER_US, 5_000, 2**32, -1, -3_000]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from(["", "", "", "cut", "confirm", "reconnect"]),
    ),
    max_size=60,
)


@given(SENDINGS, st.sampled_from([0, 1, 2]), st.integers(200, 3000), st.booleans())
def test_every_message_is_in_one_batch_in_order_with_its_time(
    steps: list[tuple[bytes, int, bool, str]], qos: Qos, train_bytes: int, starts_online: bool
) -> None:
    publisher, publishers, connection, _ = bench(qos, online=starts_online, train_bytes=train_bytes)
    asked: list[Sending] = []
    seen: list[bytes] = []
    now_us = NOW_US
    if not starts_online and qos == 0:
        publishers.attach(connection.real, MIB)  # offline, old messages are dropped
    for payload, more_us, retain, then in steps:
        now_us += more_us
        assert publisher.send(payload, now_us, retain) == len(asked)
        asked.append(Sending(payload, now_us, retain))
        if then == "cut":
            publishers.cut_open_batches()
        elif then == "confirm" and publishers.state.connection is not None:
            publishers.handle_confirmed(1, (publisher._sent[-1][0] if publisher._sent else 1) // 2, 5)
        elif then == "reconnect" and qos:
            publishers.detach()
            seen += _new(seen, connection)
            connection = StubConnection(train_bytes)
            publishers.attach(connection.real, MIB)
    if publishers.state.connection is None:
        publishers.attach(connection.real, MIB)
    publishers.cut_open_batches()
    seen += _new(seen, connection)
    got: list[Sending] = []
    for record in seen:
        (batch,) = decode_batches(record)
        assert batch.sequence == (len(got) if qos != 1 else None)
        assert bool(record[0] & LONE) == (len(batch.payloads) == 1)
        if len(batch.payloads) > 1 and qos == 0:
            assert len(record) <= MAX_UNRELIABLE_BYTES
        deltas = batch.deltas_us or (0,) * len(batch.payloads)
        got += [
            Sending(payload, batch.published_us + delta, batch.retain)
            for payload, delta in zip(batch.payloads, deltas, strict=True)
        ]
    assert [(one.payload, one.retain) for one in got] == [(one.payload, one.retain) for one in asked]
    for one, other in zip(got, asked, strict=True):
        assert 0 <= other.published_us - one.published_us <= TOGETHER_US
    if qos:
        publishers.handle_confirmed(1, publisher._sent[-1][0] if publisher._sent else 0, 5)
    assert publisher.confirmed_sequence == publisher.next_sequence == len(asked)
    assert publisher.is_idle
    assert publishers.state.held_bytes == 0


def _new(seen: list[bytes], connection: StubConnection) -> list[bytes]:
    """The records on this connection that were not on an earlier one. They must be the same bytes."""
    bodies = connection.bodies(1)
    overlap = next(
        size for size in range(min(len(seen), len(bodies)), -1, -1) if seen[len(seen) - size :] == bodies[:size]
    )
    return bodies[overlap:]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=200), st.integers(500, 4000))
def test_batches_are_as_full_as_a_train(sizes: list[int], train_bytes: int) -> None:
    one = bench(train_bytes=train_bytes)
    for size in sizes:
        one.publisher.send(bytes(size), NOW_US)
    records = one.connection.bodies(1)
    assert all(len(record) <= train_bytes for record in records if not record[0] & LONE)
    longest = max(sizes) + 4 + 21 + ROUTE_BYTES
    assert all(len(record) > train_bytes - longest for record in records)


def test_first_record_opens_the_channel() -> None:
    one = bench(2)
    one.publisher.send(b"x", NOW_US)
    assert one.connection.sent == []
    one.publishers.cut_open_batches()
    message = decode_control(one.connection.sent[0].body)
    assert message == PublishOpen(topic="t", qos=2, publisher="run", epoch=0)
    assert one.connection.sent[1].reliable


def test_messages_within_a_millisecond_share_a_time_others_have_their_own() -> None:
    one = bench()
    for more_us in (0, 300, 1000):
        one.publisher.send(b"a", NOW_US + more_us)
    one.publishers.cut_open_batches()
    for more_us in (0, 300, 1001, 1002, 5_000_000):
        one.publisher.send(b"b", NOW_US + more_us)
    one.publishers.cut_open_batches()
    first, second = one.batches()
    assert first.deltas_us is None
    assert second.deltas_us == (0, 0, 1001, 1002, 5_000_000)


def test_a_clock_that_goes_back_begins_a_batch() -> None:
    one = bench()
    one.publisher.send(b"a", NOW_US)
    one.publisher.send(b"b", NOW_US - 1)
    one.publisher.send(b"c", NOW_US - 1 + 2**32)
    one.publishers.cut_open_batches()
    assert [batch.published_us for batch in one.batches()] == [NOW_US, NOW_US - 1, NOW_US - 1 + 2**32]


def test_a_batch_has_a_bounded_number_of_messages() -> None:
    one = bench(train_bytes=10 * MIB, buffer_bytes=64 * MIB)
    for _ in range(MAX_BATCH_MESSAGES + 3):
        one.publisher.send(b"", NOW_US)
    one.publishers.cut_open_batches()
    first, second = [len(batch.payloads) for batch in one.batches()]
    assert MAX_BATCH_MESSAGES - 20 < first <= MAX_BATCH_MESSAGES
    assert first + second == MAX_BATCH_MESSAGES + 3


def test_qos_0_goes_in_single_datagrams_and_long_ones_reliably() -> None:
    one = bench(0)
    longest = MAX_UNRELIABLE_BYTES - 17
    for size in (longest, longest + 1, 10, 20):
        one.publisher.send(bytes(size), NOW_US)
    one.publishers.cut_open_batches()
    assert [(record.reliable, len(record.body)) for record in one.connection.sent[1:]] == [
        (False, MAX_UNRELIABLE_BYTES),
        (True, MAX_UNRELIABLE_BYTES + 1),
        (False, 17 + 4 + 2 * 4 + 30),
    ]
    assert one.publisher.confirmed_sequence == 4
    assert one.events == [Confirmed(one.publisher, 4, 0)]
    assert one.publishers.state.held_bytes == 0


def test_qos_0_waits_while_the_transport_has_much_to_send() -> None:
    one = bench(0)
    one.connection.unsent_bytes = UNRELIABLE_AHEAD_BYTES + 1
    one.publisher.send(b"x", NOW_US)
    one.publishers.cut_open_batches()
    assert len(one.connection.sent) == 1
    assert one.publishers.state.waiting_for_transport
    assert one.publisher.confirmed_sequence == 0
    one.connection.unsent_bytes = 0
    one.publishers.retry_blocked()
    assert len(one.connection.sent) == 2
    assert not one.publishers.state.waiting_for_transport


def test_qos_0_keeps_only_the_newest_while_there_is_no_broker() -> None:
    one = bench(0, online=False)
    for place in range(200):
        one.publisher.send(b"%d" % place + bytes(1100), NOW_US)
    one.publishers.attach(one.connection.real, MIB)
    one.publishers.cut_open_batches()
    got = one.batches()
    assert one.publisher.dropped == 200 - len(got)
    assert 50 < len(got) < 60
    assert sum(len(batch.payloads[0]) for batch in got) < OFFLINE_UNRELIABLE_BYTES + 2 * 1200
    assert got[-1].payloads[0].startswith(b"199")
    assert one.publishers.state.held_bytes == 0


def test_an_extension_has_a_batch_of_its_own() -> None:
    one = bench(2)
    one.publisher.send(b"before", NOW_US)
    assert one.publisher.send(b"chunk", NOW_US, extension=b"about it") == 1
    one.publisher.send(b"behind", NOW_US)
    one.publishers.cut_open_batches()
    before, chunk, behind = one.batches()
    assert (chunk.payloads, chunk.extension, chunk.sequence) == ([b"chunk"], b"about it", 1)
    assert (before.extension, behind.extension, behind.sequence) == (None, None, 2)
    one.publishers.handle_confirmed(1, 3, 0)
    assert one.publishers.state.held_bytes == 0


def test_confirms_are_cumulative_and_reported_once() -> None:
    one = bench()
    for payload in (b"a", b"b", b"c"):
        one.publisher.send(payload, NOW_US)
        one.publishers.cut_open_batches()
    one.publishers.handle_confirmed(1, 0, 0)
    assert one.events == []
    one.publishers.handle_confirmed(1, 2, 7)
    assert one.events == [Confirmed(one.publisher, 2, 7)]
    assert (one.publisher.confirmed_sequence, one.publisher.reached) == (2, 7)
    one.publishers.handle_confirmed(1, 2, 9)
    assert len(one.events) == 1
    one.publishers.handle_confirmed(1, 3, 1)
    assert one.events == [Confirmed(one.publisher, 3, 1)]  # the first was not fetched yet
    assert one.publisher.is_idle


def test_a_record_above_the_limit_of_the_broker_fails_alone() -> None:
    one = bench(train_bytes=50)
    one.connection.longest_bytes = 100
    for size in (10, 500, 20):
        one.publisher.send(bytes(size), NOW_US)
        one.publishers.cut_open_batches()
    assert one.events == [Refused(one.publisher, Code.TOO_LARGE, "too long", 1, 2)]
    one.publishers.handle_confirmed(1, 2, 0)
    assert one.publisher.confirmed_sequence == 3
    one.publisher.send(bytes(500), NOW_US)
    one.publishers.cut_open_batches()
    assert one.events[-2:] == [
        Refused(one.publisher, Code.TOO_LARGE, "too long", 3, 4),
        Confirmed(one.publisher, 4, 0),
    ]
    assert one.publishers.state.held_bytes == 0


@pytest.mark.parametrize("payload", [5, None, [b"x"], (1, 2)])
def test_a_payload_is_bytes_or_a_text(payload: object) -> None:
    one = bench()
    one.publisher.send(b"x", NOW_US)
    with pytest.raises((UsageError, TypeError)):
        one.publisher.send(payload, NOW_US)  # type: ignore[arg-type]
    assert one.publisher.next_sequence == 1


def test_other_kinds_of_bytes_are_copied() -> None:
    one = bench()
    changing = bytearray(b"abc")
    one.publisher.send(b"x", NOW_US)
    one.publisher.send(changing, NOW_US)
    one.publisher.send(memoryview(b"def"), NOW_US)
    one.publisher.send("gr\u00fcn", NOW_US)
    changing[0] = 0
    one.publishers.cut_open_batches()
    assert one.batches()[0].payloads == [b"x", b"abc", b"def", b"gr\xc3\xbcn"]


def test_too_long_a_message_is_refused_at_once() -> None:
    one = bench()
    one.publishers.state.max_message_bytes = 10
    with pytest.raises(RecordTooLargeError, match="accepts at most 10"):
        one.publisher.send(bytes(11), NOW_US)
    assert one.publisher.send(bytes(10), NOW_US, extension=bytes(6)) == 0  # the limit is for the payload
    assert one.publisher.send(bytes(10), NOW_US) == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_limit_below_the_size_of_a_batch_holds_for_every_message(qos: Qos) -> None:
    one = bench(qos, train_bytes=5000)
    one.publisher.send(b"begun before", NOW_US)
    one.publishers.attach(one.connection.real, 50)
    for _ in range(3):
        one.publisher.send(bytes(50), NOW_US)
        with pytest.raises(RecordTooLargeError):
            one.publisher.send(bytes(51), NOW_US)
    one.publishers.cut_open_batches()
    assert sum(len(batch.payloads) for batch in one.batches()) == 4


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_was_packed_before_the_limit_was_known_fails_alone(qos: Qos) -> None:
    one = bench(qos, online=False)
    for size in (100, 30_000, 30_001, 200):
        one.publisher.send(bytes(size), NOW_US)
    one.publishers.attach(one.connection.real, 30_000)
    one.publishers.cut_open_batches()
    assert [(event.first_sequence, event.sequence) for event in one.events if isinstance(event, Refused)] == [(2, 3)]
    assert [len(batch.payloads[0]) for batch in one.batches()] == [100, 30_000, 200]


def test_qos_0_above_the_limit_of_the_broker_fails_alone() -> None:
    one = bench(0)
    one.connection.longest_bytes = 2000
    one.publisher.send(bytes(3000), NOW_US)
    assert [type(event) for event in one.events] == [Refused, Confirmed]
    assert one.publishers.state.held_bytes == 0


def test_a_failed_send_changes_nothing() -> None:
    one = bench(online=False, buffer_bytes=5000)
    while one.publisher.next_sequence < 15:
        one.publisher.send(bytes(300), NOW_US)
    with pytest.raises(BufferFullError, match="5000"):
        one.publisher.send(bytes(1000), NOW_US)
    sent = one.publisher.next_sequence
    assert sent == 15
    assert one.publishers.state.held_bytes <= 5000
    one.publishers.attach(one.connection.real, MIB)
    one.publishers.cut_open_batches()
    assert sum(len(batch.payloads) for batch in one.batches()) == sent


def test_closing_waits_for_the_confirm_then_ends_the_channel() -> None:
    one = bench()
    one.publisher.send(b"x", NOW_US)
    one.publisher.close()
    one.publisher.close()
    assert [record.last for record in one.connection.sent] == [False, False]
    with pytest.raises(UsageError, match="closed"):
        one.publisher.send(b"y", NOW_US)
    assert one.publishers.publisher("t", 1, None, 0, 0) is not one.publisher
    one.publishers.handle_confirmed(1, 1, 0)
    assert one.connection.sent[-1].last
    assert one.connection.sent[-1].body == b""
    assert one.publisher.channel is None


def test_the_quick_way_packs_as_send_does() -> None:
    one = bench()
    moments = iter([NOW_US, NOW_US + 5 * TOGETHER_US])
    looked_at: list[object] = []
    now_us = [next(moments)]

    def careful(payload: Payload) -> None:
        assert isinstance(payload, (bytes, str))
        looked_at.append(payload)
        one.publisher.send(payload, now_us[0])

    send = partial(one.publisher.quick_send, careful)
    for payload in (b"a", b"b", b"c"):
        send(payload)
    assert looked_at == [b"a"]
    send("d")  # no bytes
    one.publisher.end_time_sharing()
    now_us[0] = next(moments)
    send(b"e")
    send(b"f")  # the batch has times for each message by now
    assert looked_at == [b"a", "d", b"e", b"f"]
    one.publishers.cut_open_batches()
    send(b"g")
    assert looked_at[4:] == [b"g"]  # begins another batch
    one.publishers.cut_open_batches()
    first, second = one.batches()
    assert first.payloads == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert first.deltas_us == (0, 0, 0, 0, 5 * TOGETHER_US, 5 * TOGETHER_US)
    assert (second.payloads, second.published_us) == ([b"g"], NOW_US + 5 * TOGETHER_US)


# -- packed batches ---------------------------------------------------------------------------------------------------


def test_sent_batches_are_held_until_they_are_confirmed() -> None:
    one = bench()
    publisher, held = one.publisher, one.publishers.state
    one.connection.room = 3  # for the first record, which opens the channel, and two batches
    assert publisher.is_idle
    for payload in (b"0", b"1", b"2"):
        publisher.send(payload, NOW_US)
        one.publishers.cut_open_batches()
    assert [record for record, _ in publisher._sent] == [1, 2]
    assert [first for first, _, _, _ in publisher._waiting] == [2]
    cost_bytes = 10 + RECORD_COST_BYTES
    assert held.held_bytes == 3 * cost_bytes
    for record in range(3):
        one.publishers.handle_confirmed(1, record, 0)
        assert held.held_bytes == (3 - record) * cost_bytes
        assert publisher.confirmed_sequence == record
    assert publisher._waiting_bytes == 10


def test_the_newest_batch_is_not_dropped_while_offline_however_long_it_is() -> None:
    one = bench(0, online=False)
    for _ in range(3):
        one.publisher.send(bytes(OFFLINE_UNRELIABLE_BYTES + 1), NOW_US)
    ((first, count, body, _),) = one.publisher._waiting
    assert (first, count, one.publisher.dropped) == (2, 1, 2)
    assert one.publishers.state.held_bytes == len(body) + RECORD_COST_BYTES
    assert one.publisher._waiting_bytes == len(body)


@given(st.lists(st.sampled_from(["add", "send", "confirm", "break"]), max_size=60))
def test_no_batch_is_lost_and_order_holds(steps: list[str]) -> None:
    one = bench()
    publisher, publishers, connection = one.publisher, one.publishers, one.connection
    connection.room = 0
    added = confirmed = 0
    for step in steps:
        if step == "add":
            publisher.send(b"%03d" % added, NOW_US)
            publishers.cut_open_batches()
            added += 1
        elif step == "send":
            connection.room = 1
            publishers.handle_writable()
            connection.room = 0
        elif step == "confirm" and publisher._sent:
            record, (first, _, _, _) = publisher._sent[-1]
            publishers.handle_confirmed(1, record, 0)
            confirmed = first + 1
        elif step == "break":
            publishers.detach()
            assert publisher._waiting_bytes == 12 * (added - confirmed)
            connection = StubConnection()
            connection.room = 0
            publishers.attach(connection.real, MIB)
        assert publisher.confirmed_sequence == confirmed
        assert publisher.is_idle == (confirmed == added)
    publishers.detach()
    assert [first for first, _, _, _ in publisher._waiting] == list(range(confirmed, added))


# -- properties and expiry --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_with_equal_properties_share_a_batch(qos: Qos) -> None:
    one = bench(qos)
    unit = encode_properties(Properties(headers=(("unit", "C"),)))
    other = encode_properties(Properties(headers=(("unit", "F"),)))
    for number, extension in enumerate((unit, unit, unit, other, other, b"", b"", unit)):
        one.publisher.send(b"%d" % number, NOW_US + number, extension=bytes(extension))
    one.publishers.cut_open_batches()
    found = [(batch.payloads, batch.extension) for batch in one.batches()]
    assert found == [
        ([b"0", b"1", b"2"], unit),
        ([b"3", b"4"], other),
        ([b"5", b"6"], None),
        ([b"7"], unit),
    ]


def test_a_quick_send_does_not_join_a_batch_with_properties() -> None:
    one = bench()
    unit = encode_properties(Properties(headers=(("unit", "C"),)))
    send = partial(one.publisher.quick_send, lambda payload: one.publisher.send(payload, NOW_US) and None)  # type: ignore[arg-type]
    one.publisher.send(b"first", NOW_US, extension=unit)
    send(b"second")
    one.publishers.cut_open_batches()
    assert [batch.extension for batch in one.batches()] == [unit, None]


EXPIRING = encode_properties(Properties(lifetime_us=2_000_000))


def lifetimes(one: Bench) -> list[int | None]:
    return [decode_properties(batch.extension).lifetime_us for batch in one.batches()]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_time_in_the_queue_is_subtracted_from_the_lifetime(qos: Qos) -> None:
    one = bench(qos, online=False)
    state = one.publishers.state
    state.now = 10.0
    one.publisher.send(b"x", NOW_US, extension=EXPIRING, expires_at=12.0)
    state.now = 11.5
    one.publishers.attach(one.connection.real, MIB)
    one.publishers.cut_open_batches()
    assert lifetimes(one) == [500_000]
    assert not state.expiring
    state.now = 5.0  # the last poll is older than the message
    one.publisher.send(b"y", NOW_US, extension=EXPIRING, expires_at=14.0)
    one.publishers.cut_open_batches()
    assert lifetimes(one) == [500_000, 2_000_000]


def test_expiring_messages_share_a_batch_only_within_a_moment() -> None:
    one = bench()
    for later_us in (0, TOGETHER_US, TOGETHER_US + 1, 10**6):
        one.publisher.send(b"x", NOW_US + later_us, extension=EXPIRING, expires_at=12.0 + later_us / 1e6)
    one.publishers.cut_open_batches()
    assert [len(batch.payloads) for batch in one.batches()] == [2, 1, 1]
    assert all(batch.deltas_us is None for batch in one.batches())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_expired_messages_are_dropped_from_the_queue_and_reported(qos: Qos) -> None:
    one = bench(qos, online=False)
    publisher, state = one.publisher, one.publishers.state
    publisher.send(b"stays", NOW_US)
    publisher.send(b"goes", NOW_US, extension=EXPIRING, expires_at=12.0)
    publisher.send(b"goes, too", NOW_US, extension=EXPIRING, expires_at=12.0)
    publisher.send(b"lasts", NOW_US + 10**6, extension=EXPIRING, expires_at=13.0)
    publisher.send(b"last", NOW_US + 10**6)
    held_bytes = state.held_bytes
    one.publishers.handle_timer(11.9)
    assert one.events == []
    one.publishers.handle_timer(12.0)
    assert one.events == [Expired(publisher, 1, 3)]
    assert (publisher.expired, publisher.confirmed_sequence) == (2, 0)
    assert state.expiring == {publisher: 13.0}
    assert state.held_bytes < held_bytes
    state.now = 12.5
    one.publishers.attach(one.connection.real, MIB)
    one.publishers.cut_open_batches()
    assert [batch.payloads for batch in one.batches()] == [[b"stays"], [b"lasts"], [b"last"]]
    assert not state.expiring
    if qos:
        one.publishers.handle_confirmed(1, 3, 0)
    assert (publisher.confirmed_sequence, state.held_bytes) == (5, 0)


def test_an_open_batch_expires_too() -> None:
    one = bench(online=False)
    one.publisher.send(b"x", NOW_US, extension=EXPIRING, expires_at=12.0)
    one.publishers.handle_timer(12.0)
    assert one.events == [Expired(one.publisher, 0, 1), Confirmed(one.publisher, 1, 0)]
    assert one.publisher.is_idle
    assert one.publishers.state.held_bytes == 0


def test_a_message_that_was_sent_on_a_lost_connection_expires() -> None:
    one = bench()
    state = one.publishers.state
    state.now = 10.0
    one.publisher.send(b"x", NOW_US, extension=EXPIRING, expires_at=12.0)
    one.publishers.cut_open_batches()
    one.publishers.handle_timer(12.5)
    assert one.events == []  # the broker may have it: its confirm may still come
    one.publishers.detach()
    assert state.expiring == {one.publisher: 12.0}
    state.now = 13.0
    again = StubConnection()
    one.publishers.attach(again.real, MIB)
    assert one.events == [Expired(one.publisher, 0, 1), Confirmed(one.publisher, 1, 0)]
    assert again.bodies(1) == []


def test_a_refused_publisher_has_nothing_that_expires() -> None:
    one = bench()
    one.connection.room = 1
    one.publisher.send(b"x", NOW_US, extension=EXPIRING, expires_at=12.0)
    one.publishers.cut_open_batches()
    assert one.publishers.state.expiring
    one.publishers.handle_refused(1, Code.NOT_ALLOWED, "no")
    assert not one.publishers.state.expiring
