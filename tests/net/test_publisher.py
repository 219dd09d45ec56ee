"""Publishers in an event loop: confirmations, room, refusals, cancellations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.net.running import both_loops, broker_and_client, configuration, lossy, run, service

import godwit
from godwit.broker.access import Access, Rule
from godwit.client.batches import Payload, to_bytes
from godwit.client.message import decode_json
from godwit.errors import (
    AccessError,
    BrokerError,
    BufferFullError,
    KickedError,
    RecordTooLargeError,
    ReplyTimeoutError,
    TopicError,
    UsageError,
)
from godwit.net.client import connect
from godwit.net.publisher import AsyncPublisher, BufferFull
from godwit.net.relay import Relay

OPEN_BUT_SECRET = Access(
    rules=(
        Rule(clients=("*",), allow=frozenset(("publish", "subscribe", "create")), topics=("open/#",)),
        Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("#",)),
    )
)


def fill(publisher: AsyncPublisher) -> None:
    """Send until the buffer is full."""
    with suppress(BufferFull):
        while True:
            publisher.send(bytes(1000))


# -- payloads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"h\xc3\xa9", bytearray(b"h\xc3\xa9"), memoryview(b"h\xc3\xa9"), "hé"])
def test_a_payload_is_bytes_or_a_text(payload: Payload) -> None:
    assert to_bytes(payload) == b"h\xc3\xa9"


@pytest.mark.parametrize(
    ("payload", "travels"),
    [
        ({"t": 21.5, "room": "Küche"}, '{"t":21.5,"room":"Küche"}'),
        ([1, "a", None, True, {"x": []}], '[1,"a",null,true,{"x":[]}]'),
        (21, "21"),
        (2**70, str(2**70)),
        (-0.5, "-0.5"),
        (True, "true"),
        (None, "null"),
        ({}, "{}"),
    ],
)
def test_other_values_are_sent_as_json(payload: Payload, travels: str) -> None:
    assert to_bytes(payload) == travels.encode()
    assert decode_json(to_bytes(payload), "it") == payload


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (object(), "a payload of type object: give bytes or a text, or a dict, list, number, bool or None"),
        ((1, 2), "a payload of type tuple: give bytes"),
        ({1, 2}, "a payload of type set"),
        ({"when": datetime.now(UTC)}, "a payload of type dict is not valid as JSON: .*datetime.*; use texts, finite"),
        ({"t": float("nan")}, "a payload of type dict is not valid as JSON: Out of range float"),
        (float("inf"), "a payload of type float is not valid as JSON"),
        ({(1, 2): 3}, "is not valid as JSON: keys must be"),
        ([b"x"], "is not valid as JSON: .*bytes"),
        (_endless(), "is not valid as JSON: Circular"),
        ("\ud800", "has a character that UTF-8 does not have"),
        ({"a": "\ud800"}, "has a character that UTF-8 does not have"),
    ],
)
def test_another_payload_is_refused_kindly(payload: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        to_bytes(payload)


# -- publish ----------------------------------------------------------------------------------------------------------


@both_loops
def test_publish_returns_when_confirmed_and_tells_how_many_it_reached(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client):
            assert await client.publish("a/b", b"unseen") == 0
            async with connect(broker.urls[0]) as one, one.subscribe("a/#"), client.subscribe("+/b") as messages:
                assert await client.publish("a/b", "two") == 2
                assert await client.publish("a/b", "two", qos=2) == 2
                assert await client.publish("a/b", "none", qos=0) is None
                assert [(await anext(messages)).qos for _ in range(3)] == [1, 2, 0]

    run(test, loop)


def test_many_publications_at_once_are_each_confirmed() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("n/#") as messages:
            reached = await asyncio.gather(*(client.publish(f"n/{n % 7}", str(n), qos=1 + n % 2) for n in range(500)))
            assert reached == [1] * 500
            got = [await anext(messages) for _ in range(500)]
            assert sorted(int(message.payload) for message in got) == list(range(500))
            for topic in range(7):
                for qos in (1, 2):
                    numbers = [int(m.payload) for m in got if m.topic == f"n/{topic}" and m.qos == qos]
                    assert numbers == sorted(numbers)

    run(test)


def test_invalid_arguments_are_refused_before_anything_is_sent() -> None:
    async def test() -> None:
        async with broker_and_client(max_message_bytes=1000) as (_, client):
            with pytest.raises(TopicError, match="a/\\+"):
                await client.publish("a/+", b"x")
            with pytest.raises(TopicError):
                await client.publish("", b"x")
            with pytest.raises(UsageError, match="QoS 3"):
                await client.publish("a", b"x", qos=3)
            with pytest.raises(RecordTooLargeError, match="1001 bytes"):
                await client.publish("a", bytes(1001))
            assert await client.publish("a", bytes(1000)) == 0

    run(test)


def test_what_the_broker_refuses_is_a_typed_error_and_the_rest_goes_on() -> None:
    async def test() -> None:
        async with broker_and_client(access=OPEN_BUT_SECRET) as (_, client):
            results = await asyncio.gather(
                *(client.publish("closed/a", b"x") for _ in range(3)),
                client.publish("open/a", b"x"),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [AccessError] * 3 + [int]
            assert len({id(result) for result in results}) == 4  # an error each
            with pytest.raises(AccessError):
                await client.publish("closed/a", b"x")
            assert await client.publish("open/a", b"x") == 0

    run(test)


def test_a_topic_that_must_be_created_is_refused_until_it_is() -> None:
    async def test() -> None:
        async with broker_and_client(default_policy="explicit") as (_, client):
            with pytest.raises(TopicError):
                await client.publish("room", b"x")
            await client.create_topic("room")
            assert await client.publish("room", b"x") == 0

    run(test)


def test_a_cancelled_publish_was_sent_all_the_same() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            task = asyncio.create_task(client.publish("a", b"1"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.publish("a", b"2") == 1
            assert [(await anext(messages)).payload for _ in range(2)] == [b"1", b"2"]

    run(test)


# -- the fast way -----------------------------------------------------------------------------------------------------


@both_loops
def test_a_fast_publisher_fills_batches_and_loses_nothing(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    count = 50_000

    async def test() -> None:
        async with (
            broker_and_client() as (broker, client),
            connect(broker.urls[0]) as other,
            other.subscribe("fast") as messages,
        ):
            publisher = client.publisher("fast")
            for number in range(count):
                publisher.send(b"%d" % number)
            assert publisher.next_sequence == count
            expected = 0
            async for message in messages:
                assert message.payload == b"%d" % expected
                expected += 1
                if expected == count:
                    break
            await publisher.flush()
            assert publisher.unconfirmed == 0
            assert publisher.reached == 1
            assert (publisher.topic, publisher.qos) == ("fast", 1)

    run(test, loop)


def test_a_text_and_other_bytes_take_the_fast_way_too() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            publisher = client.publisher("a", retain=True)
            publisher.send("hé")
            publisher.send(bytearray(b"b"))
            await publisher.flush()
            assert [(await anext(messages)).payload for _ in range(2)] == ["hé".encode(), b"b"]
            with pytest.raises(UsageError):
                publisher.send({5})  # type: ignore[arg-type]
            publisher.send({"t": [5]})
            assert (await anext(messages)).json() == {"t": [5]}
            async with client.subscribe("+") as later:
                assert (await anext(later)).retained

    run(test)


def test_times_are_right_even_in_a_loop_that_never_lets_go() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            publisher = client.publisher("a")
            began_us = time.time_ns() // 1000
            for _ in range(20_000):
                publisher.send(bytes(100))
            ended_us = time.time_ns() // 1000
            first = await anext(messages)
            assert began_us <= first.published_us <= ended_us
            for _ in range(19_998):
                await anext(messages)
            last = await anext(messages)
            assert (last.published_us - first.published_us) * 2 > ended_us - began_us

    run(test)


def test_a_full_buffer_raises_and_room_is_awaited() -> None:
    async def test() -> None:
        async with (
            service() as broker,
            connect(broker.urls[0], send_buffer_bytes=100_000) as client,
            client.subscribe("a") as messages,
        ):
            publisher = client.publisher("a")
            sent = fulls = 0
            while sent < 2000:
                try:
                    publisher.send(bytes(1000))
                    sent += 1
                except BufferFull:
                    fulls += 1
                    await publisher.ready()
            assert fulls > 5
            await publisher.flush()
            for _ in range(2000):
                await anext(messages)
        assert BufferFull is BufferFullError

    run(test)


def test_waiting_for_room_before_each_message_never_meets_a_full_buffer() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0], send_buffer_bytes=100_000) as client:
            publisher = client.publisher("a")
            for _ in range(2000):
                await publisher.ready()
                publisher.send(bytes(1000))
            await publisher.flush()

    run(test)


def test_publish_waits_for_room() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0], send_buffer_bytes=10_000) as client:
            assert await asyncio.gather(*(client.publish("a", bytes(1000)) for _ in range(100))) == [0] * 100

    run(test)


def test_several_wait_for_room_and_one_gives_up() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0], send_buffer_bytes=10_000) as client:
            publishers = [client.publisher(f"t/{n}") for n in range(3)]
            for publisher in publishers:
                fill(publisher)
            waiting = [asyncio.create_task(publisher.ready()) for publisher in publishers]
            await asyncio.sleep(0)
            waiting[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting[0]
            await asyncio.gather(*waiting[1:])
            for publisher in publishers:
                await publisher.ready()
                publisher.send(b"x")
                await publisher.flush()

    run(test)


def test_the_next_call_of_a_publisher_raises_a_refusal() -> None:
    async def test() -> None:
        async with broker_and_client(access=OPEN_BUT_SECRET) as (_, client):
            publisher = client.publisher("closed/a")
            publisher.send(b"1")
            with pytest.raises(AccessError):
                await publisher.flush()
            await publisher.flush()  # raised once

            async def wait_for_refusal() -> None:
                while publisher.unconfirmed:
                    await client.ping()

            publisher.send(b"2")
            await wait_for_refusal()
            with pytest.raises(AccessError):
                publisher.send(b"3")
            publisher.send(b"4")
            await wait_for_refusal()
            with pytest.raises(AccessError):
                await publisher.ready()

    run(test)


def test_how_far_it_came_before_a_refusal() -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client):
            publisher = client.publisher("closed/a")
            for _ in range(3):
                publisher.send(b"short")
            assert publisher.confirmed_sequence == 0
            await publisher.flush()
            assert publisher.confirmed_sequence == 3
            broker.reload(configuration(access=OPEN_BUT_SECRET))
            publisher.send(b"refused")
            with pytest.raises(AccessError):
                await publisher.flush()
            broker.reload(configuration())
            publisher.send(b"short")
            await publisher.flush()
            assert (publisher.confirmed_sequence, publisher.next_sequence, publisher.unconfirmed) == (3, 5, 0)

    run(test)


def test_a_refusal_ends_waiting_for_room() -> None:
    async def test() -> None:
        async with (
            service(access=OPEN_BUT_SECRET) as broker,
            connect(broker.urls[0], send_buffer_bytes=10_000) as client,
        ):
            publisher = client.publisher("closed/a")
            fill(publisher)
            with pytest.raises(AccessError):
                await publisher.ready()

    run(test)


def test_a_closed_publisher_still_confirms() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            publisher = client.publisher("a")
            publisher.send(b"last")
            publisher.close()
            with pytest.raises(UsageError, match="closed"):
                publisher.send(b"more")
            await publisher.flush()
            assert (await anext(messages)).payload == b"last"

    run(test)


def test_an_identity_is_recognised_after_a_crash() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as reader, reader.subscribe("a") as messages:
            async with connect(broker.urls[0]) as client:
                publisher = client.publisher("a", qos=2, identity="meter", epoch=1)
                for number in range(10):
                    publisher.send(str(number))
                await publisher.flush()
            async with connect(broker.urls[0]) as client:  # it does not know how far it got
                publisher = client.publisher("a", qos=2, identity="meter", epoch=1, sequence=5)
                for number in range(5, 15):
                    publisher.send(str(number))
                await publisher.flush()
                old = client.publisher("a", qos=2, identity="meter", epoch=0)
                old.send(b"x")
                with pytest.raises(BrokerError, match="epoch"):
                    await old.flush()
            assert [int((await anext(messages)).payload) for _ in range(15)] == list(range(15))

    run(test)


def test_the_subscribers_of_a_topic_are_known() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a"):
            publisher = client.publisher("a")
            publisher.send(b"x")
            await publisher.flush()
            assert publisher.subscribers == 1

    run(test)


def test_qos_0_is_flushed_when_it_is_on_its_way() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            publisher = client.publisher("a", qos=0)
            for number in range(10):
                publisher.send(str(number))
            await publisher.flush()
            assert [int((await anext(messages)).payload) for _ in range(10)] == list(range(10))

    run(test)


def test_everything_arrives_in_order_over_a_bad_network() -> None:
    async def test() -> None:
        async with (
            service() as broker,
            lossy(broker.addresses[0], seed=7, loss=0.05, reordering=0.02, duplication=0.02, delay_s=0.002) as relay,
            connect(f"127.0.0.1:{relay.address[1]}") as client,
            connect(f"127.0.0.1:{relay.address[1]}") as other,
            other.subscribe("a") as messages,
        ):
            publisher = client.publisher("a", qos=2)
            for number in range(5000):
                publisher.send(str(number))
            assert [int((await anext(messages)).payload) for _ in range(5000)] == list(range(5000))
            await publisher.flush()

    run(test)


def test_a_cancelled_flush_changes_nothing() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            publisher = client.publisher("a")
            publisher.send(b"1")
            task = asyncio.create_task(publisher.flush())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            publisher.send(b"2")
            await publisher.flush()
            assert publisher.unconfirmed == 0

    run(test)


class Gate:
    """A path that loses everything while it is closed."""

    is_open = True

    def offer(self, datagram: bytes, now: float) -> list[tuple[float, bytes]]:
        return [(now, datagram)] if self.is_open else []


def test_a_limit_that_ends_before_there_was_room_says_that_the_message_is_lost() -> None:
    gate = Gate()

    async def test() -> None:
        async with (
            service() as broker,
            Relay.open(("127.0.0.1", 0), broker.addresses[0], impair=lambda *_: gate) as relay,
            connect(f"127.0.0.1:{relay.address[1]}", send_buffer_bytes=65536) as client,
            connect(broker.urls[0]) as other,
            other.subscribe("a") as messages,
        ):
            publisher = client.publisher("a")
            gate.is_open = False
            sent = 0
            with suppress(BufferFull):
                while True:
                    publisher.send(bytes(1000))
                    sent += 1
            lost = "the client's send buffer had no room for the message for 'a' within 0.05 s: the message was not acc"
            with pytest.raises(ReplyTimeoutError, match=lost):
                await client.publish("a", b"lost" * 1000, timeout_s=0.05)
            gate.is_open = True
            await publisher.flush()
            gate.is_open = False
            with pytest.raises(ReplyTimeoutError, match="it is still in the client's buffer, and is sent when"):
                await client.publish("a", b"late", timeout_s=0.05)
            gate.is_open = True
            await client.publish("a", b"last")
            payloads = [(await anext(messages)).payload for _ in range(sent + 2)]
            assert payloads == [bytes(1000)] * sent + [b"late", b"last"]

    run(test)


def test_waits_for_confirmations_end_with_the_client() -> None:
    async def test() -> None:
        async with (
            service() as broker,
            connect(broker.urls[0]) as other,
            connect(broker.urls[0], name="me", send_buffer_bytes=100_000) as client,
        ):
            publisher = client.publisher("a")

            async def fill_until_over(wait: Callable[[], Awaitable[None]]) -> None:
                while True:
                    await wait()
                    fill(publisher)

            fill(publisher)
            await other.kick("me")
            for wait in (publisher.flush, publisher.ready):
                with pytest.raises(KickedError):
                    await fill_until_over(wait)
            with pytest.raises(KickedError):
                publisher.send(b"more")
            with pytest.raises(KickedError):
                await client.publish("a", "more")

    run(test)


@pytest.mark.parametrize("wrong", ["yes", "no", "", 1, 0, None, b"x", []])
def test_flags_that_are_not_true_or_false(wrong: Any) -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            with pytest.raises(UsageError, match=r"retain is .*: give True or False"):
                await client.publish("a", b"x", retain=wrong)
            with pytest.raises(UsageError, match="retain is"):
                await client.publish("a", b"x", retain=wrong, timeout_s=20)
            with pytest.raises(UsageError, match="retain is"):
                client.publisher("a", retain=wrong)
            with pytest.raises(UsageError, match="no_local is"):
                client.subscribe("a", no_local=wrong)
            if wrong is not None:
                with pytest.raises(UsageError, match="keep is"):
                    client.subscribe("a", keep=wrong)
            with pytest.raises(UsageError, match="retain of the last will is"):
                godwit.make_will("a", b"x", retain=wrong)
            assert await client.publish("a", b"x", retain=True) == 0

    run(test)
