"""Headers and expiry of messages, from one program to another over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.net.running import both_loops, broker_and_client, configuration, run, service

import godwit
from godwit.errors import MessageExpiredError, UsageError
from godwit.net.client import connect
from godwit.net.service import Service
from godwit.wire.extension import Properties, encode_properties


@both_loops
def test_headers_arrive(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            await client.publish(
                "a",
                b"x",
                headers=[("unit", "C"), ("tag", "1"), ("tag", "2")],
                content_type="text/plain",
                reply_to="answers/here",
                correlation=b"\0\1",
                expires_s=60,
            )
            message = await anext(messages)
            assert message.headers.pairs == (("unit", "C"), ("tag", "1"), ("tag", "2"))
            assert message.headers["tag"] == "2"
            assert message.content_type == "text/plain"
            assert message.reply_to == "answers/here"
            assert message.correlation == b"\0\1"
            assert message.expires_us is not None
            assert 0 < message.expires_us - time.time_ns() // 1000 <= 60_000_000
            await client.publish("a", b"plain")
            plain = await anext(messages)
            assert (dict(plain.headers), plain.content_type, plain.expires, plain.extension) == ({}, None, None, None)

    run(test, loop)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_qos_and_retained_messages_keep_properties(qos: int) -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client):
            async with client.subscribe("a") as messages:
                await client.publish("a", {"v": 1}, qos=qos, retain=True, headers={"h": "w"})
                live = await anext(messages)
            async with connect(broker.urls[0]) as late, late.subscribe("a") as messages:
                kept = await anext(messages)
            for message in (live, kept):
                assert (message.json(), message.content_type) == ({"v": 1}, "application/json")
                assert message.headers == {"h": "w"}
            assert (live.retained, kept.retained) == (False, True)

    run(test)


def test_a_publisher_has_properties_for_all_messages() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            publisher = client.publisher("a", headers={"unit": "C"}, expires_s=60)
            for number in range(500):
                publisher.send(b"%d" % number)
            publisher.send([1])
            await publisher.flush()
            found = [await anext(messages) for _ in range(501)]
            assert [one.payload for one in found] == [*(b"%d" % number for number in range(500)), b"[1]"]
            assert all(one.headers == {"unit": "C"} and one.expires_us for one in found)
            assert {one.content_type for one in found[:-1]} == {None}
            assert found[-1].content_type == "application/json"
            assert publisher.expired == 0

    run(test)


def test_bad_options_are_refused_before_anything_is_sent() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            with pytest.raises(UsageError, match="expires_s"):
                await client.publish("a", b"x", expires_s=-1)
            with pytest.raises(UsageError, match="convert both"):
                client.publisher("a", headers={"a": 1})  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await client.publish("a", b"x", header={"a": "b"})  # type: ignore[call-arg]

    run(test)


def test_an_expired_message_is_dropped_from_the_queue_of_its_publisher() -> None:
    async def test() -> None:
        broker = service()
        await broker.start()
        offline = asyncio.Event()

        def on_state(state: str, reason: str) -> None:
            if state != "online":
                offline.set()

        async with connect(broker.urls[0], name="sender", on_state=on_state) as client:
            await broker.stop()
            await offline.wait()
            stays = asyncio.create_task(client.publish("a", b"stays"))
            goes = asyncio.create_task(client.publish("a", b"goes", expires_s=0.2))
            also = asyncio.create_task(client.publish("a", b"later", qos=2, expires_s=600))
            with pytest.raises(MessageExpiredError, match="'a' expired before the broker confirmed it"):
                await goes
            publisher = client.publisher("b", expires_s=0.1)
            publisher.send(b"not awaited")
            await publisher.flush()
            assert (publisher.expired, publisher.unconfirmed) == (1, 0)
            assert not stays.done()
            assert not also.done()
            listen = [url.removeprefix("udp://") for url in broker.urls]
            async with Service(configuration(*listen)):
                assert await stays == 0
                assert await also == 0
                async with client.subscribe("#", start="earliest") as messages:
                    found = [await anext(messages) for _ in range(2)]
                    await client.publish("a", b"end")
                    found.append(await anext(messages))
                assert sorted(one.payload for one in found) == [b"end", b"later", b"stays"]

    run(test)


def test_a_message_that_finds_no_room_in_the_buffer_expires() -> None:
    async def test() -> None:
        broker = service()
        await broker.start()
        async with connect(broker.urls[0], send_buffer_bytes=2000) as client:
            await broker.stop()
            first = asyncio.create_task(client.publish("a", bytes(3000)))
            await asyncio.sleep(0)
            with pytest.raises(MessageExpiredError, match="had room for it"):
                await client.publish("a", bytes(1000), expires_s=0.1)
            first.cancel()

    run(test)


def test_a_subscriber_that_was_busy_gets_no_expired_message() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            await client.publish("a", b"short", expires_s=0.1)
            expired = time.monotonic() + 0.1
            await client.publish("a", b"long", expires_s=300)
            while messages._core is not None and len(messages._core._held) < 2:
                if time.monotonic() > expired:  # on a busy machine before it could arrive
                    break
                await asyncio.sleep(0.01)
            until = time.monotonic() + 0.2
            while time.monotonic() < until:  # the application is busy
                await asyncio.sleep(0.01)
            assert (await anext(messages)).payload == b"long"
            assert messages.missed == 0

    run(test)


def test_a_session_gets_no_message_that_expired_while_it_was_away(tmp_path: Path) -> None:
    async def test() -> None:
        async with service() as broker:
            url = broker.urls[0]
            async with connect(url, name="reader") as reader, reader.subscribe("a", keep=True):
                pass
            async with connect(url) as sender:
                await sender.publish("a", b"short", expires_s=0.05)
                await sender.publish("a", b"plain")
                await asyncio.sleep(0.1)
                async with connect(url, name="reader") as reader, reader.subscribe("a", keep=True) as messages:
                    assert (await anext(messages)).payload == b"plain"
                    assert messages.missed == 0

    run(test)


def test_a_client_without_properties_of_an_older_version() -> None:
    """Version 0.5 sends no extension, and wrote the text `file` as a key: both arrive as before."""

    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("a") as messages:
            core = client._runtime.core.publisher("a")
            core.send(b"x", 5, False, bytes.fromhex("a16466696c65a0"))
            client._runtime.schedule_flush()
            message = await anext(messages)
            assert (message.payload, dict(message.headers), message.expires) == (b"x", {}, None)

    run(test)


def test_the_blocking_client(tmp_path: Path) -> None:
    async def test() -> None:
        async with service() as broker:
            await asyncio.to_thread(use, broker.urls[0])

    def use(url: str) -> None:
        with godwit.sync.connect(url) as client, client.subscribe("a", timeout_s=20) as messages:
            client.publish("a", b"x", headers={"unit": "C"}, expires_s=60)
            message = messages.get(20)
            assert message.headers == {"unit": "C"}
            assert message.expires is not None
            publisher = client.publisher("a", headers={"n": "1"})
            publisher.send({"v": 1})
            publisher.send(b"raw")
            publisher.flush(20)
            found = [messages.get(20) for _ in range(2)]
            assert [one.content_type for one in found] == ["application/json", None]
            assert all(one.headers == {"n": "1"} for one in found)

    run(test)


def test_malformed_properties_are_refused_by_the_broker() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            core = client._runtime.core.publisher("a")
            core.send(b"x", 5, False, bytes.fromhex("a10305"))
            with pytest.raises(godwit.BrokerError, match="the content type is not a text"):
                await client.publish("a", b"y")

    run(test)


def test_properties_are_logged_and_outlive_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        configured = replace(configuration(), data=tmp_path / "log")
        for round_ in range(2):
            async with Service(configured) as broker, connect(broker.urls[0]) as client:
                if not round_:
                    await client.publish("a", b"x", headers={"unit": "C"}, retain=True)
                async with client.subscribe("a", start=None if round_ else "earliest") as messages:
                    message = await anext(messages)
                    assert (message.payload, dict(message.headers)) == (b"x", {"unit": "C"})
                    assert message.extension == encode_properties(Properties(headers=(("unit", "C"),)))

    run(test)
