"""Subscriptions in an event loop: order, starts, gaps, commits, and every way to leave one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from tests.net.running import both_loops, broker_and_client, restarted, run, service, turns

from godwit.broker.access import Access, Rule
from godwit.client.subscription import Start
from godwit.errors import AccessError, KickedError, TopicError, UsageError
from godwit.net.client import AsyncClient, connect
from godwit.net.subscription import AsyncSubscription, to_microseconds


async def payloads(messages: AsyncSubscription, count: int) -> list[bytes]:
    return [(await anext(messages)).payload for _ in range(count)]


async def publish_all(client: AsyncClient, topic: str, *numbers: int) -> None:
    for number in numbers:
        await client.publish(topic, str(number))


def test_a_time_is_a_datetime_or_microseconds() -> None:
    assert to_microseconds(None) is None
    assert to_microseconds(17) == 17
    assert to_microseconds(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 1_000_005
    assert to_microseconds(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 0
    now = datetime.now()
    assert to_microseconds(now) == round(now.timestamp() * 1e6)


# -- messages ---------------------------------------------------------------------------------------------------------


@both_loops
def test_messages_have_all_their_fields(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        async with broker_and_client("sensor") as (_, client), client.subscribe("home/+/t") as messages:
            before_us = time.time_ns() // 1000
            await client.publish("home/1/t", b"21.5")
            message = await anext(messages)
            assert (message.topic, message.payload, message.publisher) == ("home/1/t", b"21.5", "sensor")
            assert (message.qos, message.retained, message.offset) == (1, False, 0)
            assert before_us <= message.published_us <= message.received_us + 1000
            assert message.published.tzinfo is not None
            await client.publish("home/1/t", b"21.6", qos=0)
            assert (await anext(messages)).offset is None

    run(test, loop)


def test_a_message_comes_once_for_several_filters_and_twice_for_two_subscriptions() -> None:
    async def test() -> None:
        async with (
            broker_and_client() as (_, client),
            client.subscribe("a/#", "+/b") as one,
            client.subscribe("a/b") as two,
        ):
            assert await client.publish("a/b", b"1") == 2
            assert await client.publish("a/c", b"2") == 1
            assert await payloads(one, 2) == [b"1", b"2"]
            assert await payloads(two, 1) == [b"1"]
            assert set(one.filters) == {"a/#", "+/b"}

    run(test)


def test_a_loop_that_is_left_and_begun_again_goes_on_with_the_next_message() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            publisher = client.publisher("a")
            for number in range(100):
                publisher.send(str(number))
            got: list[int] = []
            for _ in range(10):
                async for message in messages:
                    got.append(int(message.payload))
                    if len(got) % 7 == 0:
                        break
            got.append(int((await anext(messages)).payload))
            async for batch in messages.batches():
                got += [int(message.payload) for message in batch]
                if len(got) == 100:
                    break
            assert got == list(range(100))

    run(test)


def test_retained_messages_come_first() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            await client.publish("a/1", b"old", retain=True)
            await client.publish("a/1", b"kept", retain=True)
            await client.publish("a/2", b"zero", retain=True, qos=0)
            await client.ping()
            async with client.subscribe("a/#") as messages:
                first = [await anext(messages), await anext(messages)]
                assert sorted(message.payload for message in first) == [b"kept", b"zero"]
                assert all(message.retained for message in first)
                await client.publish("a/1", b"new", retain=True)
                new = await anext(messages)
                assert (new.payload, new.retained) == (b"new", False)

    run(test)


def test_where_a_subscription_begins() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            await publish_all(client, "a", 0, 1, 2)
            async with client.subscribe("a", start="earliest") as messages:
                first = await anext(messages)
                assert [*await payloads(messages, 2)] == [b"1", b"2"]
            async with client.subscribe("a", start=1) as messages:
                assert messages.position == 1
                assert await payloads(messages, 2) == [b"1", b"2"]
                assert messages.position == 3
            for since in (first.received_us, first.received):
                async with client.subscribe("a", since=since) as messages:
                    assert (await payloads(messages, 3))[-1] == b"2"
            async with client.subscribe("a") as messages:
                await publish_all(client, "a", 3)
                assert await payloads(messages, 1) == [b"3"]
            with pytest.raises(UsageError, match="give one of them"):
                async with client.subscribe("a", start=1, since=5):
                    pass

    run(test)


def test_several_tasks_cannot_wait_for_one_subscription() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            waiting = asyncio.create_task(messages.__anext__())
            await turns()
            with pytest.raises(UsageError, match="two tasks"):
                await anext(messages)
            await client.publish("a", b"1")
            assert (await waiting).payload == b"1"

    run(test)


def test_a_cancelled_wait_loses_no_message() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            got: list[bytes] = []
            for number in range(50):
                waiting = asyncio.create_task(messages.__anext__())
                publishing = asyncio.create_task(client.publish("a", str(number)))
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    got.append((await waiting).payload)
                await publishing
            while len(got) < 50:
                got.append((await anext(messages)).payload)
            assert got == [str(number).encode() for number in range(50)]

    run(test)


def test_a_second_fetch_replaces_no_messages() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            await publish_all(client, "a", 1, 2, 3)
            for number in (1, 2, 3):
                await messages._fetch_more()
                await messages._fetch_more()
                assert await payloads(messages, 1) == [str(number).encode()]

    run(test)


def test_a_time_limit_around_a_wait_loses_no_message() -> None:
    async def test() -> None:
        rng = random.Random(2013)
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            got: list[int] = []
            sending = asyncio.create_task(publish_all(client, "a", *range(500)))
            while len(got) < 500:
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.choice([0.0, 0.0001, 0.001])):
                        if rng.random() < 0.5:
                            got.append(int((await anext(messages)).payload))
                        else:
                            async for message in messages:
                                got.append(int(message.payload))
            await sending
            assert got == list(range(500))

    run(test)


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("way", ["anext", "async for", "batches"])
def test_an_exception_in_the_middle_of_a_record_has_its_message_delivered_again(
    way: str, error: type[BaseException]
) -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as source:
            publisher = source.publisher("a")
            for number in range(8):
                publisher.send(str(number))
            await publisher.flush()
            seen: list[bytes] = []

            async def fail_at_the_fourth() -> None:
                async with (
                    connect(broker.urls[0], name="worker") as client,
                    client.subscribe("a", start="earliest", keep=True) as messages,
                ):
                    if way == "batches":
                        seen.append((await anext(messages)).payload)
                        async for batch in messages.batches():
                            seen.extend(message.payload for message in batch)
                            if b"3" in seen:
                                raise error
                    elif way == "async for":
                        async for message in messages:
                            seen.append(message.payload)
                            if len(seen) == 4:
                                raise error
                    else:
                        seen.extend(await payloads(messages, 4))
                        raise error

            with pytest.raises(error):
                await fail_at_the_fourth()
            async with connect(broker.urls[0], name="worker") as client, client.subscribe("a") as messages:
                again = [(await anext(messages)).payload]
                while again[-1] != b"7":
                    again += await payloads(messages, 1)
            everything = [str(number).encode() for number in range(8)]
            if way == "batches":
                assert set(seen) | set(again) == set(everything)
                assert b"3" in again
            else:
                assert (seen, again) == (everything[:4], everything[3:])

    run(test)


def test_a_wait_that_ends_with_an_error_has_handled_what_came_before() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as source:
            await publish_all(source, "a", 1)

            async def give_up() -> None:
                async with (
                    connect(broker.urls[0], name="worker") as client,
                    client.subscribe("a", start="earliest", keep=True) as messages,
                ):
                    assert await payloads(messages, 1) == [b"1"]
                    async with asyncio.timeout(0.001):
                        await anext(messages)

            with pytest.raises(TimeoutError):
                await give_up()
            await publish_all(source, "a", 2)
            async with connect(broker.urls[0], name="worker") as client, client.subscribe("a") as messages:
                assert await payloads(messages, 1) == [b"2"]

    run(test)


def test_what_is_not_asked_for_is_not_delivered_and_comes_again() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as source:

            async def fail_at_the_third() -> None:
                async with (
                    connect(broker.urls[0], name="worker") as client,
                    client.subscribe("a", keep=True) as messages,
                ):
                    for number in range(3):
                        await source.publish("a", str(number))
                        assert await payloads(messages, 1) == [str(number).encode()]
                    raise ValueError("of the application")  # the third is being handled: the next one was not asked for

            with pytest.raises(ValueError, match="of the application"):
                await fail_at_the_third()
            await source.publish("a", b"3")
            async with connect(broker.urls[0], name="worker") as client, client.subscribe("a") as messages:
                assert await payloads(messages, 2) == [b"2", b"3"]

    run(test)


def test_a_clean_end_goes_on_behind_the_last_message_in_the_middle_of_a_record_too() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as source:
            publisher = source.publisher("a")
            for number in range(8):
                publisher.send(str(number))
            await publisher.flush()
            seen: list[bytes] = []
            plan: list[tuple[int, Start]] = [(3, "earliest"), (2, None), (1, None)]
            for count, start in plan:
                async with (
                    connect(broker.urls[0], name="worker") as client,
                    client.subscribe("a", start=start, keep=True) as messages,
                ):
                    seen += await payloads(messages, count)
            async with connect(broker.urls[0], name="worker") as client:
                messages = client.subscribe("a", keep=True)
                await messages.__aenter__()
                seen += await payloads(messages, 2)
                await messages.close(7)
                async with client.subscribe("a") as messages:
                    seen += await payloads(messages, 1)
            assert seen == [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"7"]

    run(test)


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_leaving_the_block_ends_it_at_the_broker() -> None:
    async def test() -> None:
        async with broker_and_client("me") as (_, client):
            async with client.subscribe("a") as messages:
                assert await client.publish("a", b"1") == 1
            assert await client.publish("a", b"2") == 0
            with pytest.raises(UsageError, match="was left"):
                async for _ in messages:
                    pass
            with pytest.raises(UsageError, match="in use already"):
                await messages.__aenter__()
            await messages.close()
            (info,) = await client.clients()
            assert info.subscriptions == []

    run(test)


def test_leaving_does_not_wait_long_for_a_broker_that_is_away() -> None:
    async def test() -> None:
        broker = service()
        await broker.start()
        async with connect(broker.urls[0]) as client:
            async with client.subscribe("a"):
                await broker.stop()
                while client.state == "online":
                    await asyncio.sleep(0)
                began = time.monotonic()
            assert time.monotonic() - began < 5
            broker = await restarted(broker)
            assert await client.publish("a", b"x") == 0
        await broker.stop()

    run(test)


def test_a_cancel_leaves_at_once() -> None:
    async def test() -> None:
        broker = service()
        await broker.start()
        client = await connect(broker.urls[0])

        async def read() -> None:
            async with client.subscribe("a") as messages:
                async for _ in messages:
                    pass

        reading = asyncio.create_task(read())
        while not await client.publish("a", b"x"):
            pass
        await broker.stop()
        reading.cancel()
        await turns(5)
        assert reading.cancelled()
        broker = await restarted(broker)
        assert await client.publish("a", b"x") == 0
        await client.close()
        await broker.stop()

    run(test)


def test_a_subscription_needs_its_block() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            messages = client.subscribe("a")
            assert messages.missed == 0
            with pytest.raises(UsageError, match="async with"):
                await anext(messages)
            with pytest.raises(UsageError, match="cursor"):
                await messages.commit()

    run(test)


def test_the_same_subscription_again_is_refused() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("b", "a"):
            with pytest.raises(UsageError, match="already subscribed to a, b"):
                async with client.subscribe("a", "b"):
                    pass
            async with client.subscribe("a"):
                pass
            async with client.subscribe("a"):
                assert await client.publish("a", b"x") == 2

    run(test)


def test_an_invalid_filter_is_refused_at_once() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            for filters in [("a/#/b",), ("",), ("a", "b+")]:
                with pytest.raises(TopicError):
                    async with client.subscribe(*filters):
                        pass
            with pytest.raises(UsageError, match="0 filters"):
                async with client.subscribe():
                    pass
            with pytest.raises(UsageError, match="newest"):
                async with client.subscribe("a", start="newest"):  # type: ignore[arg-type]
                    pass

    run(test)


def test_a_refused_subscription_is_a_typed_error() -> None:
    access = Access(rules=(Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("open/#",)),))

    async def test() -> None:
        async with broker_and_client(access=access) as (_, client):
            with pytest.raises(AccessError):
                async with client.subscribe("closed"):
                    pass
            async with client.subscribe("open/a"):
                pass

    run(test)


def test_a_topic_that_is_not_there_is_refused_by_policy() -> None:
    async def test() -> None:
        async with broker_and_client(default_policy="publishers") as (_, client):
            with pytest.raises(TopicError):
                async with client.subscribe("a"):
                    pass
            await client.publish("a", b"1")
            async with client.subscribe("a"):
                pass

    run(test)


def test_a_subscription_cancelled_while_it_begins_leaves_nothing_behind() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            for steps in range(6):
                task = asyncio.create_task(client.subscribe("a").__aenter__())
                await turns(steps)
                task.cancel()
                try:
                    messages = await task
                except asyncio.CancelledError:
                    pass
                else:
                    await messages.close()
                assert await client.publish("a", b"x") == 0

    run(test)


def test_a_kicked_subscription_raises_the_reason_after_the_delivered_messages() -> None:
    async def test() -> None:
        async with broker_and_client("victim") as (broker, client), connect(broker.urls[0], name="chief") as chief:
            async with client.subscribe("a") as messages, client.subscribe("b") as others:
                publisher = chief.publisher("a")
                publisher.send(b"0")
                publisher.send(b"1")
                assert (await anext(messages)).payload == b"0"
                await chief.kick("victim", "a", reason="too loud")
                assert (await anext(messages)).payload == b"1"
                for _ in range(2):
                    with pytest.raises(KickedError, match=r"chief.*too loud"):
                        await anext(messages)
                await chief.publish("b", b"2")
                assert (await anext(others)).payload == b"2"
            async with client.subscribe("a") as messages:
                await chief.publish("a", b"3")
                assert (await anext(messages)).payload == b"3"

    run(test)


# -- cursors, gaps ----------------------------------------------------------------------------------------------------


def test_a_cursor_moves_by_commits_alone() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0]) as source:
            async with (
                connect(broker.urls[0], name="loader") as client,
                client.subscribe("a", cursor="table", start="earliest") as messages,
            ):
                publisher = source.publisher("a")
                for number in range(10):
                    publisher.send(str(number))
                await publisher.flush()
                assert await payloads(messages, 4) == [b"0", b"1", b"2", b"3"]
                await messages.commit()  # in the middle of a record
                assert messages.position == 4
                assert await payloads(messages, 4) == [b"4", b"5", b"6", b"7"]
            async with (
                connect(broker.urls[0], name="loader") as client,
                client.subscribe("a", cursor="table") as messages,
            ):
                assert await payloads(messages, 2) == [b"4", b"5"]
                await messages.commit(7)
            async with (
                connect(broker.urls[0], name="loader") as client,
                client.subscribe("a", cursor="table") as messages,
            ):
                assert await payloads(messages, 3) == [b"7", b"8", b"9"]

    run(test)


def test_retained_messages_do_not_move_the_position() -> None:
    async def test() -> None:
        async with broker_and_client("me") as (_, client):
            await client.publish("a", b"kept", retain=True)
            await publish_all(client, "b", *range(5))
            async with client.subscribe("#", cursor="c") as messages:
                begin = messages.position
                assert (await anext(messages)).retained
                assert messages.position == begin == 6
                await messages.commit()
                await publish_all(client, "a", 1)
                await anext(messages)
                assert messages.position == 7

    run(test)


def test_a_gap_is_reported_before_the_messages_after_it() -> None:
    async def test() -> None:
        story: list[object] = []
        async with service(ring_bytes=64 * 1024, hold_back_s=0.0) as broker, connect(broker.urls[0]) as source:
            async with connect(broker.urls[0], name="slow") as client, client.subscribe("a", keep=True):
                pass
            for number in range(300):
                await source.publish("a", str(number).encode().rjust(1000))
            async with (
                connect(broker.urls[0], name="slow") as client,
                client.subscribe("a", on_gap=lambda count: story.append(("gap", count))) as messages,
            ):
                async for message in messages:
                    story.append(int(message.payload))
                    if message.payload.endswith(b"299"):
                        break
                gap = story[0]
                assert isinstance(gap, tuple)
                missed = gap[1]
                assert missed > 200
                assert story[1:] == list(range(missed, 300))
                assert messages.missed == missed

    run(test)


def test_another_log_is_a_gap_of_unknown_size() -> None:
    async def test() -> None:
        gaps: list[int | None] = []
        broker = service()
        await broker.start()
        async with connect(broker.urls[0]) as client, client.subscribe("a", on_gap=gaps.append) as messages:
            await publish_all(client, "a", 1, 2)
            assert await payloads(messages, 2) == [b"1", b"2"]
            broker = await restarted(broker)
            await publish_all(client, "a", 3)
            assert await payloads(messages, 1) == [b"3"]
            assert gaps == [None]
        await broker.stop()

    run(test)


def test_a_subscription_cancelled_while_it_begins_keeps_its_cursor() -> None:
    async def test() -> None:
        async with broker_and_client("loader") as (_, client):
            async with client.subscribe("a", cursor="table", start="earliest") as messages:
                await publish_all(client, "a", 1, 2)
                assert await payloads(messages, 1) == [b"1"]
                await messages.commit()
            beginning = asyncio.create_task(client.subscribe("a", cursor="table").__aenter__())
            await turns(1)
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
            async with client.subscribe("a", cursor="table") as messages:
                assert await payloads(messages, 1) == [b"2"]

    run(test)


def test_a_callback_that_fails_stops_nothing() -> None:
    async def test() -> None:
        told: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

        def fail(*_: object) -> None:
            raise ValueError("a mistake of the application")

        broker = service()
        await broker.start()
        async with (
            connect(broker.urls[0], on_state=fail) as client,
            client.subscribe("a", on_gap=fail) as messages,
        ):
            await publish_all(client, "a", 1)
            assert await payloads(messages, 1) == [b"1"]
            broker = await restarted(broker)
            await publish_all(client, "a", 2)
            assert await payloads(messages, 1) == [b"2"]
        await broker.stop()
        assert len(told) >= 4  # online, offline, online, another log
        assert {type(context["exception"]) for context in told} == {ValueError}

    run(test)
