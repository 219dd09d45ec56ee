"""Requests and replies between clients, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.net.running import DEADLINE_S, both_loops, broker_and_client, run, service

import godwit
from godwit.broker.access import Access, Rule
from godwit.client.message import Message
from godwit.errors import (
    AccessError,
    BrokerError,
    MessageExpiredError,
    NoReplyError,
    NoResponderError,
    RequestFailedError,
    TopicError,
    UsageError,
)
from godwit.net.client import AsyncClient, connect
from godwit.net.replies import ERROR_HEADER

NOT_CONFIRMED = r"within 0\.2 s: .*expired.* the broker (has not )?confirmed it"
"""The queue may drop the request a little earlier than its time limit ends, or later."""


@both_loops
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_request_and_its_reply(loop: Any, qos: int) -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client), connect(broker.urls[0], name="echo") as other:

            @other.replies("service/+")
            async def echo(request: Message) -> dict[str, Any]:
                return {"got": request.text, "header": request.headers.get("a"), "topic": request.topic}

            await echo.ready()
            reply = await client.request("service/echo", "hello", qos=qos, headers={"a": "b"}, timeout_s=DEADLINE_S)
            assert reply.json() == {"got": "hello", "header": "b", "topic": "service/echo"}
            assert (reply.content_type, reply.publisher, reply.offset) == ("application/json", "echo", None)
            found = await asyncio.gather(
                *(client.request(f"service/{n}", str(n), timeout_s=DEADLINE_S) for n in range(100))
            )
            assert [one.json()["got"] for one in found] == [str(n) for n in range(100)]
            assert "responder" in repr(echo).lower()

    run(test, loop)


def test_a_plain_function_runs_in_a_thread_and_may_be_slow() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            threads = set()
            both = threading.Barrier(2, timeout=DEADLINE_S)

            def slow(request: Message) -> bytes:
                threads.add(threading.get_ident())
                both.wait()  # two run at once
                return request.payload * 2

            responder = client.replies("double", capacity=2)(slow)
            await responder.ready()
            found = await asyncio.gather(*(client.request("double", b"%d" % n, timeout_s=DEADLINE_S) for n in range(2)))
            assert sorted(one.payload for one in found) == [b"00", b"11"]
            assert threading.get_ident() not in threads
            await responder.close()
            with pytest.raises(NoResponderError, match="no client is subscribed to 'double' now"):
                await client.request("double", b"x")

    run(test)


def test_a_failing_handler_is_an_error_of_the_requester() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):

            @client.replies("fails")
            async def fails(request: Message) -> dict[str, Any]:
                if request.payload == b"json":
                    return {"a": object()}
                raise ValueError("no\nsuch thing")

            await fails.ready()
            text = "could not answer the request on 'fails': ValueError: no such"
            with pytest.raises(RequestFailedError, match=text) as e:
                await client.request("fails", b"x", timeout_s=DEADLINE_S)
            assert e.value.reply.headers[ERROR_HEADER] == "ValueError: no such thing"
            with pytest.raises(RequestFailedError, match="is not valid as JSON"):
                await client.request("fails", b"json", timeout_s=DEADLINE_S)
            (reply,) = await client.request_many("fails", b"x", timeout_s=DEADLINE_S)
            assert ERROR_HEADER in reply.headers

    run(test)


def test_no_responder_no_reply_and_bad_arguments() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            with pytest.raises(NoResponderError):
                await client.request("unknown", b"x")
            async with client.subscribe("silent"):
                with pytest.raises(NoReplyError, match=r"no reply to the request on 'silent' within 0\.2 s") as error:
                    await client.request("silent", b"x", timeout_s=0.2)
                assert isinstance(error.value, TimeoutError)
                assert await client.request_many("silent", b"x", timeout_s=0.1) == []
            with pytest.raises(UsageError, match="replies is 0"):
                await client.request_many("a", replies=0)
            with pytest.raises(UsageError):
                await client.request("a", timeout_s=-1)
            with pytest.raises(UsageError, match="a request needs a time limit"):
                await client.request("a", timeout_s=None)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="capacity"):
                client.replies("a", capacity=0)(lambda request: b"")
            with pytest.raises(UsageError, match="give a function"):
                client.replies("a")(b"")  # type: ignore[arg-type]
            assert client._requester is not None
            assert client._requester._waiting == {}

    run(test)


def reply_then(client: AsyncClient, monkeypatch: pytest.MonkeyPatch, reply: Message, error: Exception | None) -> None:
    """Let replies arrive while the confirm of the request is awaited, which then fails or never comes."""

    async def publish(*arguments: Any, **options: Any) -> int:
        assert client._requester is not None
        (waiting,) = client._requester._waiting.values()
        for _ in range(2):
            waiting.put_nowait(reply)
        if error is not None:
            raise error
        await asyncio.Event().wait()
        return 1

    monkeypatch.setattr(client._runtime.publishers, "publish", publish)


ENDS = [(None, 0.2), (MessageExpiredError("expired"), DEADLINE_S)]


@pytest.mark.parametrize(("error", "timeout_s"), ENDS)
def test_a_reply_before_a_late_confirm_is_returned(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, timeout_s: float
) -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            await client.replies("echo")(lambda request: request.payload).ready()
            reply = await client.request("echo", b"x", timeout_s=DEADLINE_S)
            reply_then(client, monkeypatch, reply, error)
            assert (await client.request("echo", b"y", timeout_s=timeout_s)).payload == b"x"
            assert len(await client.request_many("echo", b"y", replies=1, timeout_s=timeout_s)) == 1
            assert len(await client.request_many("echo", b"y", timeout_s=timeout_s)) == 2

    run(test)


@pytest.mark.parametrize(("error", "timeout_s"), ENDS)
def test_a_reply_before_a_late_confirm_is_returned_to_a_blocking_client(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, timeout_s: float
) -> None:
    def use(url: str) -> None:
        with godwit.sync.connect(url) as client:
            client.replies("echo")(lambda request: request.payload)
            reply = client.request("echo", b"x", timeout_s=DEADLINE_S)
            reply_then(client._client, monkeypatch, reply, error)
            assert client.request("echo", b"y", timeout_s=timeout_s).payload == b"x"
            assert len(client.request_many("echo", b"y", timeout_s=timeout_s)) == 2

    async def test() -> None:
        async with service() as broker:
            await asyncio.to_thread(use, broker.urls[0])

    run(test)


def test_a_missing_reply_has_its_reason() -> None:
    async def test() -> None:
        broker = service()
        await broker.start()
        async with connect(broker.urls[0]) as client, connect(broker.urls[0]) as new:
            async with client.subscribe("silent"):
                with pytest.raises(NoReplyError, match=r"'silent' within 0\.2 s: the broker confirmed it, and"):
                    await client.request("silent", b"x", timeout_s=0.2)
                with pytest.raises(NoReplyError, match="it was handed to the network"):
                    await client.request("silent", b"x", qos=0, timeout_s=0.2)
            await broker.stop()
            with pytest.raises(NoReplyError, match=NOT_CONFIRMED):
                await client.request("silent", b"x", timeout_s=0.2)
            with pytest.raises(NoReplyError, match=r"within 0\.2 s: it was never sent"):
                await new.request("silent", b"x", timeout_s=0.2)
            assert await new.request_many("silent", b"x", timeout_s=0.2) == []

    run(test)


def test_a_missing_reply_has_its_reason_in_a_blocking_client() -> None:
    def use(url: str, stop: Callable[[], None]) -> None:
        with godwit.sync.connect(url) as client, godwit.sync.connect(url) as new:
            with client.subscribe("silent"), pytest.raises(NoReplyError, match="the broker confirmed it, and"):
                client.request("silent", b"x", timeout_s=0.2)
            stop()
            with pytest.raises(NoReplyError, match=NOT_CONFIRMED):
                client.request("silent", b"x", timeout_s=0.2)
            with pytest.raises(NoReplyError, match=r"within 0\.2 s: it was never sent"):
                new.request("silent", b"x", timeout_s=0.2)

    async def test() -> None:
        broker = service()
        await broker.start()
        event_loop = asyncio.get_running_loop()

        def stop() -> None:
            asyncio.run_coroutine_threadsafe(broker.stop(), event_loop).result(DEADLINE_S)

        await asyncio.to_thread(use, broker.urls[0], stop)

    run(test)


def test_observers_are_not_responders() -> None:
    """A logger of all topics does not reply. One with a narrower filter may, and `replies` does whatever its filter."""

    async def test() -> None:
        async with (
            broker_and_client() as (broker, client),
            connect(broker.urls[0], name="other") as other,
            other.subscribe("#"),
            other.subscribe("+/echo"),
            other.subscribe("+/#", group="loggers"),
        ):
            with pytest.raises(NoResponderError, match="no client is subscribed to 'service/echo' now"):
                await client.request("service/echo", b"x", timeout_s=DEADLINE_S)
            assert await client.publish("service/echo", b"x") == 3  # of other messages they are subscribers
            assert await client.publish("service/echo", b"x", reply_to="my/answers") == 3
            async with other.subscribe("service/#") as requests:
                asking = asyncio.create_task(client.request("service/echo", b"x", timeout_s=DEADLINE_S))
                request = await anext(requests)
                assert request.reply_to is not None
                await other.publish(request.reply_to, b"by hand", correlation=request.correlation)
                assert (await asking).payload == b"by hand"
            responder = other.replies("*/echo")(lambda request: request.payload * 2)
            await responder.ready()
            found = await client.request_many("service/echo", b"x", timeout_s=DEADLINE_S)  # waits for one reply only
            assert [one.payload for one in found] == [b"xx"]

    run(test)


def test_several_replies() -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client):
            others = [await connect(broker.urls[0], name=f"r{n}") for n in range(3)]
            try:
                for other in others:
                    name = other.name
                    await other.replies("name")(lambda request, name=name: name).ready()
                found = await client.request_many("name", timeout_s=DEADLINE_S)
                assert sorted(one.text for one in found) == ["r0", "r1", "r2"]
                assert len(await client.request_many("name", replies=2, timeout_s=DEADLINE_S)) == 2
                assert len(await client.request_many("name", replies=4, timeout_s=5)) == 3
            finally:
                for other in others:
                    await other.close()

    run(test)


def test_a_request_expires_with_its_time_limit() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("late") as requests:
            with pytest.raises(NoReplyError):
                await client.request("late", b"x", timeout_s=0.1)
            await asyncio.sleep(0.2)  # the time on the network is added to its lifetime
            await client.publish("late", b"end")
            assert (await anext(requests)).payload == b"end"  # a responder that was busy does not see the request

    run(test)


def test_a_client_that_publishes_the_request_itself() -> None:
    """Also an MQTT 5.0 client is a requester like this one: with a topic of its own for replies."""

    async def test() -> None:
        async with broker_and_client() as (_, client), client.subscribe("my/answers") as answers:
            responder = client.replies("echo")(lambda request: request.payload)
            await responder.ready()
            await client.publish("echo", b"one", reply_to="my/answers", correlation=b"1")
            await client.publish("echo", b"no reply is wanted")
            await client.publish("echo", b"two", reply_to="my/answers", correlation=b"2")
            found = [await anext(answers) for _ in range(2)]
            assert sorted((one.payload, one.correlation) for one in found) == [(b"one", b"1"), (b"two", b"2")]

    run(test)


def test_inboxes_are_private() -> None:
    inbox = "$reply/" + "0" * 31 + "a"

    async def test() -> None:
        async with broker_and_client() as (broker, client), connect(broker.urls[0], name="spy") as spy:
            with pytest.raises(TopicError, match="no client waits for replies"):
                await spy.publish(inbox, b"x")
            async with client.subscribe(inbox) as replies:
                for pattern in ("$reply/#", "$reply/+", "$reply", "$reply/*", "$reply/abc"):
                    with pytest.raises(AccessError, match="by its exact name"):
                        async with spy.subscribe(pattern):
                            pass
                with pytest.raises(AccessError, match="belongs to another client"):
                    async with spy.subscribe(inbox):
                        pass
                with pytest.raises(BrokerError, match="not retained"):
                    await spy.publish(inbox, b"x", retain=True)
                assert await spy.publish(inbox, b"reply") == 1
                message = await anext(replies)
                assert (message.payload, message.offset, message.qos) == (b"reply", None, 1)
                assert [one.name for one in await spy.topics("$reply/#")] == []
            async with spy.subscribe("#", start="earliest") as messages:
                await spy.publish("end", b"")
                assert (await anext(messages)).topic == "end"  # replies are not logged
            assert await spy.publish(inbox, b"x") == 0
            with pytest.raises(BrokerError, match="a subscription of its own"):
                async with spy.subscribe(inbox, "other"):
                    pass

    run(test)


def test_access_rules_allow_replies_to_inboxes() -> None:
    rules = Access(
        secrets={"asks": b"secret of asks", "answers": b"secret of answers"},
        rules=(
            Rule(clients=("asks",), allow=frozenset(("publish",)), topics=("service/#",)),
            Rule(clients=("answers",), allow=frozenset(("subscribe",)), topics=("service/#",)),
        ),
    )

    async def test() -> None:
        async with service(access=rules) as broker:
            url = broker.urls[0]
            asking = connect(url, name="asks", secret=b"secret of asks")
            async with asking as asks, connect(url, name="answers", secret=b"secret of answers") as answers:
                responder = answers.replies("service/echo")(lambda request: request.payload)
                await responder.ready()
                assert (await asks.request("service/echo", b"x", timeout_s=DEADLINE_S)).payload == b"x"
                refused = asks.replies("service/echo")(lambda request: b"")
                with pytest.raises(AccessError):
                    await refused.ready()
                with pytest.raises(AccessError):
                    await refused.wait()
                with pytest.raises(AccessError):
                    await asks.request("other", b"x")

    run(test)


def test_requests_resume_after_a_reconnect() -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client), connect(broker.urls[0], name="echo") as other:
            responder = other.replies("echo")(lambda request: request.payload)
            await responder.ready()
            assert (await client.request("echo", b"1", timeout_s=DEADLINE_S)).payload == b"1"
            for peer in list(broker.server.broker._peers):
                peer.close(godwit.Code.SHUTDOWN, "test")
            for number in range(100):
                try:
                    reply = await client.request("echo", b"%d" % number, timeout_s=5)
                except (NoResponderError, NoReplyError):
                    await asyncio.sleep(0.05)
                else:
                    assert reply.payload == b"%d" % number
                    break
            else:
                pytest.fail("no reply after the reconnect")
            sessions = broker.server.broker.sessions
            assert sum(one.is_inbox for session in sessions.values() for one in session.subscriptions.values()) == 1

    run(test)


def test_a_closed_client_fails_its_requests() -> None:
    async def test() -> None:
        async with service() as broker:
            client = await connect(broker.urls[0])
            async with connect(broker.urls[0]) as other, other.subscribe("a") as requests:
                asking = asyncio.create_task(client.request("a", b"x", timeout_s=DEADLINE_S))
                await anext(requests)
                await client.close()
                with pytest.raises(UsageError):
                    await asking

    run(test)


def test_the_blocking_client() -> None:
    async def test() -> None:
        async with service() as broker:
            await asyncio.to_thread(use, broker.urls[0])

    def use(url: str) -> None:
        with godwit.sync.connect(url) as client, godwit.sync.connect(url, name="other") as other:

            @other.replies("upper")
            def upper(request: Message) -> str:
                return request.text.upper()

            @other.replies("async")
            async def slow(request: Message) -> bytes:
                await asyncio.sleep(0)
                return b"ok"

            assert client.request("upper", "abc", timeout_s=DEADLINE_S).text == "ABC"
            assert client.request("async", timeout_s=DEADLINE_S).text == "ok"
            assert [one.text for one in client.request_many("upper", "x", timeout_s=DEADLINE_S)] == ["X"]
            assert "BlockingResponder" in repr(upper)
            assert upper.filters == ("upper",)
            upper.close()
            upper.wait(DEADLINE_S)
            with pytest.raises(NoResponderError):
                client.request("upper", "x", timeout_s=DEADLINE_S)

    run(test)


# -- options of subscriptions, and wills ------------------------------------------------------------------------------


def test_retained_messages_and_own_messages_are_left_out() -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client), connect(broker.urls[0], name="other") as other:
            await client.publish("a", b"kept", retain=True)
            async with other.subscribe("a", retained="never", no_local=True) as messages:
                await other.publish("a", b"own")
                await client.publish("a", b"new")
                assert (await anext(messages)).payload == b"new"
            await client.publish("end", b"")
            async with other.subscribe("a", start=1, retained="always") as messages:
                assert [(await anext(messages)).payload for _ in range(3)] == [b"kept", b"own", b"new"]
            with pytest.raises(UsageError, match="choose 'always'"):
                async with other.subscribe("b", retained="sometimes"):  # type: ignore[arg-type]
                    pass

    run(test)


def test_a_will_with_headers() -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client), client.subscribe("state") as messages:
            will = godwit.make_will("state", {"on": False}, headers={"site": "7"}, delay_s=1)
            async with connect(broker.urls[0], name="lost", will=will) as lost:
                lost._runtime.driver.close()  # without a goodbye
                for peer in list(broker.server.broker._peers):
                    if peer.session is not None and peer.session.name == "lost":
                        peer.close(godwit.Code.PROTOCOL, "test")
                message = await anext(messages)
            assert (message.json(), message.content_type, dict(message.headers)) == (
                {"on": False}, "application/json", {"site": "7"},
            )  # fmt: skip

    run(test)


def test_bad_wills() -> None:
    with pytest.raises(UsageError, match="delay"):
        godwit.make_will("a", b"", delay_s=-1)
    with pytest.raises(UsageError, match="the last will is invalid"):
        connect("localhost", will=godwit.Will(topic="a", payload=b"", extension=b"\xff"))
    with pytest.raises(UsageError, match="convert both"):
        godwit.make_will("a", b"", headers={"a": 1})  # type: ignore[arg-type]
