"""All publishers together: the buffer that they share, their channels, and the publishers that wait."""

from __future__ import annotations

import gc

import pytest
from tests.client.stubs import StubConnection

from godwit.client.events import BufferAvailable, ClientEvent, Confirmed, Refused
from godwit.client.publisher import MAX_IDLE_CHANNELS, OFFLINE_BATCH_BYTES, SMALLEST_TRAIN_BYTES, Publisher, Publishers
from godwit.errors import BufferFullError, DecodeError, UsageError
from godwit.limits import MAX_MESSAGE_BYTES, MIB
from godwit.wire.batch import decode_batches
from godwit.wire.control_base import Code, Qos

NOW_US = 1_700_000_000_000_000


def publishers_with(
    buffer_bytes: int = MIB, *, train_bytes: int = 1000
) -> tuple[Publishers, StubConnection, list[ClientEvent]]:
    events: list[ClientEvent] = []
    publishers = Publishers(buffer_bytes, events, "run")
    connection = StubConnection(train_bytes)
    publishers.attach(connection.real, MIB)
    return publishers, connection, events


def publish(publishers: Publishers, topic: str, payload: bytes = b"x", qos: Qos = 1) -> Publisher:
    publisher = publishers.publisher(topic, qos, None, 0, 0)
    publisher.send(payload, NOW_US)
    publishers.cut_open_batches()
    return publisher


# -- publishers -------------------------------------------------------------------------------------------------------


def test_same_topic_and_qos_is_the_same_publisher() -> None:
    publishers, _, _ = publishers_with()
    one = publishers.publisher("t", 1, None, 0, 0)
    assert publishers.publisher("t", 1, None, 0, 0) is one
    assert publishers.publisher("t", 2, None, 0, 0) is not one
    assert publishers.publisher("u", 1, None, 0, 0) is not one
    assert publishers.publisher("t", 1, "me", 0, 0) is not publishers.publisher("t", 1, "me", 0, 0)


def test_a_qos_2_publisher_made_again_continues_its_sequence() -> None:
    publishers, connection, events = publishers_with()
    publish(publishers, "t", qos=2)
    publishers.handle_confirmed(1, 1, 0)
    events.clear()
    publishers.detach()  # idle, without a channel and without a reference
    gc.collect()
    publishers.attach(connection.real, MIB)
    again = publish(publishers, "t", b"y", qos=2)
    assert again.next_sequence == 2
    assert decode_batches(connection.sent[-1].body)[0].sequence == 1


def test_the_successor_of_a_closed_qos_2_publisher_has_another_identity() -> None:
    publishers, connection, _ = publishers_with()
    first = publish(publishers, "t", qos=2)
    first.close()  # and its message is not confirmed: it may be lost, and sent again behind those of the next one
    second = publish(publishers, "t", b"y", qos=2)
    assert second is not first
    assert second.identity != first.identity
    publishers.handle_confirmed(1, 1, 0)
    publishers.handle_confirmed(2, 1, 0)
    second.close()  # all is confirmed: the next one continues the sequence
    third = publish(publishers, "t", b"z", qos=2)
    assert (third.identity, third.next_sequence) == (second.identity, 2)
    assert decode_batches(connection.sent[-1].body)[0].sequence == 1


def test_an_identity_keeps_its_own_count() -> None:
    publishers, connection, _ = publishers_with()
    publisher = publishers.publisher("t", 2, "me", 4, 100)
    assert publisher.send(b"x", NOW_US) == 100
    publishers.cut_open_batches()
    assert decode_batches(connection.sent[-1].body)[0].sequence == 100


def test_idle_channels_are_ended_when_there_are_many() -> None:
    publishers, connection, _ = publishers_with(16 * MIB)
    busy = publish(publishers, "busy")
    for place in range(MAX_IDLE_CHANNELS + 200):
        publisher = publish(publishers, f"t/{place}")
        assert publisher.channel is not None
        publishers.handle_confirmed(publisher.channel, 1, 0)
    ended = [record.channel for record in connection.sent if record.last]
    assert len(ended) == 201
    assert ended == sorted(ended)
    assert busy.channel == 1
    assert 1 not in ended
    publish(publishers, "t/0")
    assert connection.sent[-1].channel == MAX_IDLE_CHANNELS + 202


def test_a_referenced_publisher_outlives_its_channel() -> None:
    publishers, _, _ = publishers_with(16 * MIB)
    mine = publish(publishers, "mine")
    publishers.handle_confirmed(1, 1, 0)
    for place in range(MAX_IDLE_CHANNELS + 10):
        publish(publishers, f"t/{place}")
    channels = [mine.channel]
    assert publishers.publisher("mine", 1, None, 0, 0) is mine
    publish(publishers, "mine")
    assert [*channels, mine.channel] == [None, MAX_IDLE_CHANNELS + 12]
    assert mine.confirmed_sequence == 1


# -- the buffer -------------------------------------------------------------------------------------------------------


def test_the_buffer_is_shared_and_room_is_reported() -> None:
    publishers, _, events = publishers_with(10_000)
    one, other = publishers.publisher("one", 1, None, 0, 0), publishers.publisher("other", 1, None, 0, 0)
    for _ in range(9):
        one.send(bytes(900), NOW_US)
    publishers.cut_open_batches()
    with pytest.raises(BufferFullError, match="10000"):
        other.send(bytes(900), NOW_US)
    assert not [event for event in events if isinstance(event, BufferAvailable)]
    publishers.handle_confirmed(1, 3, 0)
    assert not [event for event in events if isinstance(event, BufferAvailable)]
    publishers.handle_confirmed(1, 6, 0)
    assert [event for event in events if isinstance(event, BufferAvailable)] == [BufferAvailable(other)]
    assert other.send(bytes(900), NOW_US) == 0


def test_many_publishers_with_a_little_each_are_bounded_too() -> None:
    events: list[ClientEvent] = []
    publishers = Publishers(100_000, events, "run")
    made = 0
    with pytest.raises(BufferFullError):  # noqa: PT012 -- how many it takes is the question
        while made < 10_000:
            publishers.publisher(f"t/{made}", 1, None, 0, 0).send(b"x", NOW_US)
            made += 1
    assert 40 <= made <= 5000
    assert publishers.state.held_bytes <= 100_000


def test_a_message_for_itself_always_fits() -> None:
    publishers, connection, _ = publishers_with(1000)
    publisher = publishers.publisher("t", 1, None, 0, 0)
    publisher.send(bytes(5000), NOW_US)
    assert len(connection.sent[-1].body) == 5009
    assert publishers.state.held_bytes >= 1000
    with pytest.raises(BufferFullError):
        publisher.send(b"", NOW_US)
    publishers.handle_confirmed(1, 1, 0)
    publisher.send(bytes(5000), NOW_US)


def test_before_the_first_connection_batches_have_a_moderate_size() -> None:
    publishers = Publishers(MIB, [], "run")
    publisher = publishers.publisher("t", 1, None, 0, 0)
    for _ in range(1000):
        publisher.send(bytes(100), NOW_US)
    connection = StubConnection()
    publishers.attach(connection.real, MIB)
    bodies = connection.bodies(1)
    assert all(OFFLINE_BATCH_BYTES - 200 < len(body) <= OFFLINE_BATCH_BYTES for body in bodies)
    assert len(bodies) == 4


def test_the_limit_of_the_broker_is_used() -> None:
    publishers, connection, _ = publishers_with()
    publishers.attach(connection.real, 2**62)
    assert publishers.state.max_message_bytes == MAX_MESSAGE_BYTES


# -- a full transport -------------------------------------------------------------------------------------------------


def test_batches_wait_until_the_transport_is_writable() -> None:
    publishers, connection, _ = publishers_with()
    connection.room = 3
    first = publish(publishers, "one", b"1")
    publish(publishers, "one", b"2")
    publish(publishers, "one", b"3")
    second = publish(publishers, "two", b"4")
    assert len(connection.sent) == 3
    connection.room = 1
    publishers.handle_writable()
    assert len(connection.sent) == 4
    connection.room = 100
    publishers.handle_writable()
    assert [decode_batches(body)[0].payloads for body in connection.bodies(1)] == [[b"1"], [b"2"], [b"3"]]
    assert second.channel is not None
    assert [decode_batches(body)[0].payloads for body in connection.bodies(second.channel)] == [[b"4"]]
    assert first.next_sequence == 3


def test_the_end_of_a_channel_waits_for_room() -> None:
    publishers, connection, _ = publishers_with()
    publisher = publish(publishers, "t")
    publishers.handle_confirmed(1, 1, 0)
    connection.room = 0
    publisher.close()
    assert publisher.channel is None
    publishers.handle_writable()
    assert not connection.sent[-1].last
    connection.room = 1
    publishers.handle_writable()
    assert (connection.sent[-1].last, connection.sent[-1].channel) == (True, 1)


def test_when_channels_run_out_idle_ones_make_way() -> None:
    publishers, connection, _ = publishers_with()
    connection.channels_left = 2
    idle = publish(publishers, "idle")
    publishers.handle_confirmed(1, 1, 0)
    publish(publishers, "busy")
    waiting = publish(publishers, "waiting", b"w")
    assert idle.channel is None
    assert publishers.state.waiting_for_channel
    publishers.retry_blocked()
    assert connection.bodies(3) == []
    connection.channels_left = 1  # the other side has received the end of a channel
    publishers.retry_blocked()
    assert waiting.channel == 3
    assert len(connection.bodies(3)) == 1


def test_a_connection_that_has_just_closed_is_no_error() -> None:
    publishers, connection, _ = publishers_with()
    publisher = publish(publishers, "t")
    idle = publish(publishers, "idle")
    publishers.handle_confirmed(2, 1, 0)
    connection.is_closed = True
    publish(publishers, "t", b"more")
    publish(publishers, "new")
    idle.close()
    publishers.detach()
    again = StubConnection()
    publishers.attach(again.real, MIB)
    assert [decode_batches(body)[0].payloads for body in again.bodies(1)] == [[b"x"], [b"more"]]
    assert publisher.confirmed_sequence == 0


# -- the broker's words -----------------------------------------------------------------------------------------------


def test_a_refused_channel_fails_everything_on_it_and_the_next_send_asks_again() -> None:
    publishers, connection, events = publishers_with()
    publisher = publish(publishers, "t")
    publish(publishers, "t")
    publisher.send(b"open batch", NOW_US)
    publishers.handle_refused(1, Code.NOT_ALLOWED, "no")
    assert events == [Refused(publisher, Code.NOT_ALLOWED, "no", 0, 3)]
    assert publisher.is_idle
    assert publisher.confirmed_sequence == publisher.next_sequence == 3
    assert publishers.state.held_bytes == 0
    assert (connection.sent[-1].channel, connection.sent[-1].last) == (1, True)
    publishers.handle_refused(1, Code.NOT_ALLOWED, "no")
    publishers.handle_confirmed(1, 1, 0)
    assert len(events) == 1
    publish(publishers, "t", b"again")
    assert [decode_batches(body)[0].payloads for body in connection.bodies(2)] == [[b"again"]]
    publishers.handle_confirmed(2, 1, 1)
    assert events[-1] == Confirmed(publisher, 4, 1)


def test_opened_has_the_number_of_subscriptions() -> None:
    publishers, _, _ = publishers_with()
    publisher = publish(publishers, "t")
    publishers.handle_opened(1, 12)
    publishers.handle_opened(99, 1)
    assert publisher.subscribers == 12


def test_a_confirm_of_a_record_that_was_never_sent_is_an_error() -> None:
    publishers, _, _ = publishers_with()
    publish(publishers, "t")
    with pytest.raises(DecodeError):
        publishers.handle_confirmed(1, 2, 0)
    publishers.handle_confirmed(77, 5, 0)


# -- telling the caller -----------------------------------------------------------------------------------------------


def test_callbacks_for_begun_and_full_batches() -> None:
    publishers, _, _ = publishers_with(train_bytes=SMALLEST_TRAIN_BYTES)
    called: list[str] = []
    seen_begun: list[bool] = []

    def full() -> None:
        called.append("full")
        seen_begun.append(bool(publishers.state.open_batches) and not publishers.state.is_filling)

    publishers.state.on_batch_begun = lambda: called.append("begun")
    publishers.state.on_batch_full = full
    publisher = publishers.publisher("t", 1, None, 0, 0)
    while len(called) < 3:
        publisher.send(bytes(100), NOW_US)
    assert called == ["begun", "full", "begun"]
    publisher.send(bytes(SMALLEST_TRAIN_BYTES), NOW_US)  # does not fit behind the first: two batches go
    assert called == ["begun", "full", "begun", "begun", "full"]
    publishers.publisher("other", 1, None, 0, 0).send(b"x", NOW_US)
    called.clear()
    while "full" not in called:
        publisher.send(bytes(100), NOW_US)
    assert seen_begun == [False] * 3  # the batch that has just begun elsewhere is not cut yet
    assert publishers.state.open_batches
    assert not publishers.state.is_filling


def test_small_batches_share_a_callback_and_there_is_none_offline() -> None:
    publishers, _, _ = publishers_with()
    called: list[int] = []
    publisher = publishers.publisher("t", 0, None, 0, 0)
    publishers.state.on_batch_full = lambda: called.append(publisher.next_sequence)
    for _ in range(100):
        publisher.send(bytes(1000), NOW_US)
    assert 4 <= len(called) <= 7
    publishers.detach()
    called.clear()
    for _ in range(100):
        publisher.send(bytes(1000), NOW_US)
    assert called == []


def test_after_the_end_nothing_can_be_sent() -> None:
    publishers, _, _ = publishers_with()
    publisher = publish(publishers, "t")
    publishers.close()
    with pytest.raises(UsageError, match="closed"):
        publisher.send(b"x", NOW_US)
