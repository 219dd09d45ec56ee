"""All publishers together: the buffer that they share, channels that come and go, who waits for what."""

from __future__ import annotations

import gc

import pytest
from tests.client.stubs import StubConnection

from godwit.client.events import ClientEvent, Confirmed, Refused, Room
from godwit.client.outbox import MAX_IDLE_CHANNELS, OFFLINE_BATCH_BYTES, SMALLEST_TRAIN_BYTES, Outbox
from godwit.client.publisher import Publisher
from godwit.errors import BufferFullError, DecodeError, UsageError
from godwit.limits import MAX_MESSAGE_BYTES, MIB
from godwit.wire.batch import decode_batches
from godwit.wire.control_base import Code, Qos

NOW_US = 1_700_000_000_000_000


def outbox_with(
    buffer_bytes: int = MIB, *, train_bytes: int = 1000
) -> tuple[Outbox, StubConnection, list[ClientEvent]]:
    events: list[ClientEvent] = []
    outbox = Outbox(buffer_bytes, events, "run")
    connection = StubConnection(train_bytes)
    outbox.attach(connection.real, MIB)
    return outbox, connection, events


def publish(outbox: Outbox, topic: str, payload: bytes = b"x", qos: Qos = 1) -> Publisher:
    publisher = outbox.publisher(topic, qos, None, 0, 0)
    publisher.send(payload, NOW_US)
    outbox.cut_begun()
    return publisher


# -- publishers -------------------------------------------------------------------------------------------------------


def test_same_topic_and_quality_is_the_same_publisher() -> None:
    outbox, _, _ = outbox_with()
    one = outbox.publisher("t", 1, None, 0, 0)
    assert outbox.publisher("t", 1, None, 0, 0) is one
    assert outbox.publisher("t", 2, None, 0, 0) is not one
    assert outbox.publisher("u", 1, None, 0, 0) is not one
    assert outbox.publisher("t", 1, "me", 0, 0) is not outbox.publisher("t", 1, "me", 0, 0)


def test_a_publisher_of_quality_2_that_is_made_again_goes_on_counting() -> None:
    outbox, connection, events = outbox_with()
    publish(outbox, "t", qos=2)
    outbox.on_confirmed(1, 1, 0)
    events.clear()
    outbox.detach()  # idle and without a channel: nobody holds it any more
    gc.collect()
    outbox.attach(connection.real, MIB)
    again = publish(outbox, "t", b"y", qos=2)
    assert again.next_sequence == 2
    assert decode_batches(connection.sent[-1].body)[0].sequence == 1


def test_who_follows_a_closed_publisher_of_quality_2_is_not_taken_for_it() -> None:
    outbox, connection, _ = outbox_with()
    first = publish(outbox, "t", qos=2)
    first.close()  # and its message is not confirmed: it may be lost, and sent again behind those of the next one
    second = publish(outbox, "t", b"y", qos=2)
    assert second is not first
    assert second.identity != first.identity
    outbox.on_confirmed(1, 1, 0)
    outbox.on_confirmed(2, 1, 0)
    second.close()  # all is confirmed: who comes next may go on counting
    third = publish(outbox, "t", b"z", qos=2)
    assert (third.identity, third.next_sequence) == (second.identity, 2)
    assert decode_batches(connection.sent[-1].body)[0].sequence == 1


def test_an_identity_keeps_its_own_count() -> None:
    outbox, connection, _ = outbox_with()
    publisher = outbox.publisher("t", 2, "me", 4, 100)
    assert publisher.send(b"x", NOW_US) == 100
    outbox.cut_begun()
    assert decode_batches(connection.sent[-1].body)[0].sequence == 100


def test_idle_channels_are_ended_when_there_are_many() -> None:
    outbox, connection, _ = outbox_with(16 * MIB)
    busy = publish(outbox, "busy")
    for place in range(MAX_IDLE_CHANNELS + 200):
        publisher = publish(outbox, f"t/{place}")
        assert publisher.channel is not None
        outbox.on_confirmed(publisher.channel, 1, 0)
    ended = [record.channel for record in connection.sent if record.last]
    assert len(ended) == 201
    assert ended == sorted(ended)
    assert busy.channel == 1
    assert 1 not in ended
    publish(outbox, "t/0")
    assert connection.sent[-1].channel == MAX_IDLE_CHANNELS + 202


def test_a_publisher_that_somebody_holds_outlives_its_channel() -> None:
    outbox, _, _ = outbox_with(16 * MIB)
    mine = publish(outbox, "mine")
    outbox.on_confirmed(1, 1, 0)
    for place in range(MAX_IDLE_CHANNELS + 10):
        publish(outbox, f"t/{place}")
    channels = [mine.channel]
    assert outbox.publisher("mine", 1, None, 0, 0) is mine
    publish(outbox, "mine")
    assert [*channels, mine.channel] == [None, MAX_IDLE_CHANNELS + 12]
    assert mine.confirmed_sequence == 1


# -- the buffer -------------------------------------------------------------------------------------------------------


def test_the_buffer_is_shared_and_room_is_told() -> None:
    outbox, _, events = outbox_with(10_000)
    one, other = outbox.publisher("one", 1, None, 0, 0), outbox.publisher("other", 1, None, 0, 0)
    for _ in range(9):
        one.send(bytes(900), NOW_US)
    outbox.cut_begun()
    with pytest.raises(BufferFullError, match="10000"):
        other.send(bytes(900), NOW_US)
    assert not [event for event in events if isinstance(event, Room)]
    outbox.on_confirmed(1, 3, 0)
    assert not [event for event in events if isinstance(event, Room)]
    outbox.on_confirmed(1, 6, 0)
    assert [event for event in events if isinstance(event, Room)] == [Room(other)]
    assert other.send(bytes(900), NOW_US) == 0


def test_many_publishers_with_a_little_each_are_bounded_too() -> None:
    events: list[ClientEvent] = []
    outbox = Outbox(100_000, events, "run")
    made = 0
    with pytest.raises(BufferFullError):  # noqa: PT012 -- how many it takes is the question
        while made < 10_000:
            outbox.publisher(f"t/{made}", 1, None, 0, 0).send(b"x", NOW_US)
            made += 1
    assert 40 <= made <= 5000
    assert outbox.held_bytes <= 100_000


def test_a_message_for_itself_always_fits() -> None:
    outbox, connection, _ = outbox_with(1000)
    publisher = outbox.publisher("t", 1, None, 0, 0)
    publisher.send(bytes(5000), NOW_US)
    assert len(connection.sent[-1].body) == 5009
    assert outbox.is_full
    with pytest.raises(BufferFullError):
        publisher.send(b"", NOW_US)
    outbox.on_confirmed(1, 1, 0)
    publisher.send(bytes(5000), NOW_US)


def test_before_the_first_connection_batches_have_a_moderate_size() -> None:
    outbox = Outbox(MIB, [], "run")
    publisher = outbox.publisher("t", 1, None, 0, 0)
    for _ in range(1000):
        publisher.send(bytes(100), NOW_US)
    connection = StubConnection()
    outbox.attach(connection.real, MIB)
    bodies = connection.bodies(1)
    assert all(OFFLINE_BATCH_BYTES - 200 < len(body) <= OFFLINE_BATCH_BYTES for body in bodies)
    assert len(bodies) == 4


def test_limit_of_the_broker_is_taken_over() -> None:
    outbox, connection, _ = outbox_with()
    outbox.attach(connection.real, 2**62)
    assert outbox.max_message_bytes == MAX_MESSAGE_BYTES


# -- the transport says no --------------------------------------------------------------------------------------------


def test_what_the_transport_has_no_room_for_waits_for_its_word() -> None:
    outbox, connection, _ = outbox_with()
    connection.room = 3
    first = publish(outbox, "one", b"1")
    publish(outbox, "one", b"2")
    publish(outbox, "one", b"3")
    second = publish(outbox, "two", b"4")
    assert len(connection.sent) == 3
    connection.room = 1
    outbox.on_writable()
    assert len(connection.sent) == 4
    connection.room = 100
    outbox.on_writable()
    assert [decode_batches(body)[0].payloads for body in connection.bodies(1)] == [[b"1"], [b"2"], [b"3"]]
    assert second.channel is not None
    assert [decode_batches(body)[0].payloads for body in connection.bodies(second.channel)] == [[b"4"]]
    assert first.next_sequence == 3


def test_an_end_that_finds_no_room_is_said_later() -> None:
    outbox, connection, _ = outbox_with()
    publisher = publish(outbox, "t")
    outbox.on_confirmed(1, 1, 0)
    connection.room = 0
    publisher.close()
    assert publisher.channel is None
    outbox.on_writable()
    assert not connection.sent[-1].last
    connection.room = 1
    outbox.on_writable()
    assert (connection.sent[-1].last, connection.sent[-1].channel) == (True, 1)


def test_when_channels_run_out_idle_ones_make_way() -> None:
    outbox, connection, _ = outbox_with()
    connection.channels_left = 2
    idle = publish(outbox, "idle")
    outbox.on_confirmed(1, 1, 0)
    publish(outbox, "busy")
    waiting = publish(outbox, "waiting", b"w")
    assert idle.channel is None
    assert outbox.has_kept
    outbox.go_on()
    assert connection.bodies(3) == []
    connection.channels_left = 1  # the other side has heard of the end
    outbox.go_on()
    assert waiting.channel == 3
    assert len(connection.bodies(3)) == 1


def test_a_connection_that_has_just_closed_is_no_error() -> None:
    outbox, connection, _ = outbox_with()
    publisher = publish(outbox, "t")
    idle = publish(outbox, "idle")
    outbox.on_confirmed(2, 1, 0)
    connection.is_closed = True
    publish(outbox, "t", b"more")
    publish(outbox, "new")
    idle.close()
    outbox.detach()
    again = StubConnection()
    outbox.attach(again.real, MIB)
    assert [decode_batches(body)[0].payloads for body in again.bodies(1)] == [[b"x"], [b"more"]]
    assert publisher.confirmed_sequence == 0


# -- the broker's words -----------------------------------------------------------------------------------------------


def test_a_refused_channel_fails_everything_on_it_and_the_next_send_asks_again() -> None:
    outbox, connection, events = outbox_with()
    publisher = publish(outbox, "t")
    publish(outbox, "t")
    publisher.send(b"open batch", NOW_US)
    outbox.on_refused(1, Code.NOT_ALLOWED, "no")
    assert events == [Refused(publisher, Code.NOT_ALLOWED, "no", 0, 3)]
    assert publisher.is_idle
    assert publisher.confirmed_sequence == publisher.next_sequence == 3
    assert outbox.held_bytes == 0
    assert (connection.sent[-1].channel, connection.sent[-1].last) == (1, True)
    outbox.on_refused(1, Code.NOT_ALLOWED, "no")
    outbox.on_confirmed(1, 1, 0)
    assert len(events) == 1
    publish(outbox, "t", b"again")
    assert [decode_batches(body)[0].payloads for body in connection.bodies(2)] == [[b"again"]]
    outbox.on_confirmed(2, 1, 1)
    assert events[-1] == Confirmed(publisher, 4, 1)


def test_opened_tells_how_many_listen() -> None:
    outbox, _, _ = outbox_with()
    publisher = publish(outbox, "t")
    outbox.on_opened(1, 12)
    outbox.on_opened(99, 1)
    assert publisher.subscribers == 12


def test_a_confirm_of_what_was_never_sent_is_nonsense() -> None:
    outbox, _, _ = outbox_with()
    publish(outbox, "t")
    with pytest.raises(DecodeError):
        outbox.on_confirmed(1, 2, 0)
    outbox.on_confirmed(77, 5, 0)


# -- telling the caller -----------------------------------------------------------------------------------------------


def test_the_caller_hears_of_begun_and_of_full_batches() -> None:
    outbox, _, _ = outbox_with(train_bytes=SMALLEST_TRAIN_BYTES)
    told: list[str] = []
    seen_begun: list[bool] = []

    def full() -> None:
        told.append("full")
        seen_begun.append(outbox.has_begun)

    outbox.on_batch_begun = lambda: told.append("begun")
    outbox.on_batch_full = full
    publisher = outbox.publisher("t", 1, None, 0, 0)
    while len(told) < 3:
        publisher.send(bytes(100), NOW_US)
    assert told == ["begun", "full", "begun"]
    publisher.send(bytes(SMALLEST_TRAIN_BYTES), NOW_US)  # does not fit behind the first: two batches go
    assert told == ["begun", "full", "begun", "begun", "full"]
    outbox.publisher("other", 1, None, 0, 0).send(b"x", NOW_US)
    told.clear()
    while "full" not in told:
        publisher.send(bytes(100), NOW_US)
    assert seen_begun == [False] * 3  # what has just begun elsewhere need not go yet
    assert outbox.has_begun


def test_small_batches_are_told_together_and_nobody_is_told_without_a_broker() -> None:
    outbox, _, _ = outbox_with()
    told: list[int] = []
    publisher = outbox.publisher("t", 0, None, 0, 0)
    outbox.on_batch_full = lambda: told.append(publisher.next_sequence)
    for _ in range(100):
        publisher.send(bytes(1000), NOW_US)
    assert 4 <= len(told) <= 7
    outbox.detach()
    told.clear()
    for _ in range(100):
        publisher.send(bytes(1000), NOW_US)
    assert told == []


def test_after_the_end_nothing_can_be_sent() -> None:
    outbox, _, _ = outbox_with()
    publisher = publish(outbox, "t")
    outbox.close()
    with pytest.raises(UsageError, match="closed"):
        publisher.send(b"x", NOW_US)
