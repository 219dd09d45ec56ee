"""The client for asyncio: connecting, queries, reconnecting, closing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.net.running import (
    DEADLINE_S,
    Notices,
    both_loops,
    broker_and_client,
    configuration,
    lossy,
    restarted,
    run,
    service,
    spawn,
    turns,
)
from tests.ports import free_port

from godwit.broker.access import Access, Rule
from godwit.broker.admission import Admission
from godwit.errors import (
    AccessError,
    AddressError,
    BrokerError,
    BrokerUnreachableError,
    ConfigurationError,
    KickedError,
    NameInUseError,
    TakenOverError,
    TopicError,
    UsageError,
)
from godwit.net import runtime as runtime_module
from godwit.net.client import connect
from godwit.net.service import Service
from godwit.net.udp import UdpSocket
from godwit.transport.config import EndpointConfig
from godwit.wire.control import Will

SECRET = Access(
    secrets={"chief": b"a long secret of the chief"},
    rules=(Rule(clients=("chief",), allow=frozenset(("publish", "subscribe", "create", "kick")), topics=("#",)),),
    allows_anonymous=False,
)


def open_files() -> int:
    """Where the system tells."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


# -- getting in -------------------------------------------------------------------------------------------------------


@both_loops
def test_both_ways_to_connect(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        async with service() as broker:
            async with connect(broker.urls[0], name="one") as client:
                assert (client.name, client.state) == ("one", "online")
                assert client.statistics.packets_sent > 0
            assert client.state == "closed"
            client = await connect(broker.urls[0])
            assert client.name
            assert await client.close() is True
            assert await client.close() is True
            async with await connect(broker.urls[0]) as client:
                assert await client.ping() > 0

    run(test, loop)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_broker_is_found_under_any_address_of_its_host(host: str) -> None:
    async def test() -> None:
        listen = "[::1]:0" if host == "::1" else "127.0.0.1:0"
        async with Service(configuration(listen)) as broker:
            where = f"[{host}]" if ":" in host else host
            async with connect(f"udp://{where}:{broker.addresses[0][1]}", timeout_s=DEADLINE_S) as client:
                await client.ping()

    run(test)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_a_broker_that_has_only_one_of_its_names_addresses_is_found(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "resolve_all", lambda host, port: [("127.0.0.1", port), ("::1", port, 0, 0)])

    async def test() -> None:
        async with (
            Service(configuration(listen)) as broker,
            connect(f"both.example:{broker.addresses[0][1]}", timeout_s=DEADLINE_S) as client,
        ):
            await client.ping()
            publisher = client.publisher("a")
            for _ in range(2000):
                publisher.send(bytes(100))
            await publisher.flush()

    run(test)


def test_a_client_started_before_its_broker_gets_through() -> None:
    async def test() -> None:
        port = free_port()
        states: list[tuple[str, str]] = []
        early = asyncio.create_task(
            connect(f"127.0.0.1:{port}", on_state=lambda *state: states.append(state)).__aenter__()
        )
        await turns(10)
        async with Service(configuration(f"127.0.0.1:{port}")):
            client = await early
            await client.ping()
            await client.close()
        assert [state for state, _ in states if state != "offline"] == ["online", "closed"]

    run(test)


def test_a_missing_broker_is_reported_in_time() -> None:
    async def test() -> None:
        with UdpSocket("127.0.0.1") as silent:
            began = time.monotonic()
            with pytest.raises(BrokerUnreachableError, match=r"no broker answered at 127.0.0.1 port .* is it running"):
                async with connect(f"127.0.0.1:{silent.local_address[1]}", timeout_s=0.05):
                    pass
            assert time.monotonic() - began < 5

    run(test)


def test_a_broker_that_answers_and_does_not_let_in_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while another connection holds the name and does not answer."""
    monkeypatch.setattr(Admission, "login", lambda *arguments: None)

    async def test() -> None:
        async with service() as broker:
            for timeout_s in (0.5, 5.0, 50.0):  # on a busy machine the broker may not answer within the first one
                opening = connect(broker.urls[0], name="me", timeout_s=timeout_s)
                waiting = asyncio.create_task(opening.__aenter__())
                while not (is_answered := opening.is_answered) and not waiting.done():
                    await asyncio.sleep(0.01)
                with pytest.raises(BrokerUnreachableError) as caught:
                    await waiting
                if is_answered:
                    break
            assert f"answers, but has not let this client in within {timeout_s:g} s" in str(caught.value)

    run(test)


def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    async def test() -> None:
        with UdpSocket("127.0.0.1") as silent:
            before = open_files()
            task = asyncio.create_task(connect(f"127.0.0.1:{silent.local_address[1]}").__aenter__())
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):  # a timeout of the caller is not ours
                async with asyncio.timeout(0.02), connect(f"127.0.0.1:{silent.local_address[1]}"):
                    pass
            assert open_files() == before

    run(test)


@pytest.mark.parametrize("broker", ["", "host:port", "tcp://x"])
def test_an_invalid_address_is_reported_at_once(broker: str) -> None:
    with pytest.raises(AddressError):
        connect(broker)


def test_a_host_that_is_not_known_is_reported() -> None:
    async def test() -> None:
        with pytest.raises(AddressError, match="no-such-host"):
            await connect("no-such-host.invalid")

    run(test)


def test_an_invalid_name_or_secret_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError):
        connect(name="")
    with pytest.raises(ConfigurationError):
        connect(secret=b"x")


def test_an_invalid_last_will_is_reported_at_once() -> None:
    with pytest.raises(TopicError):
        connect(will=Will(topic="a/+", payload=b""))
    with pytest.raises(UsageError, match="at most"):
        connect(will=Will(topic="a", payload=bytes(100_000)))
    with pytest.raises(UsageError, match="QoS 3"):
        connect(will=Will(topic="a", payload=b"", qos=3))  # type: ignore[arg-type]
    connect(will=Will(topic="a", payload="a text"))  # type: ignore[arg-type]


def test_a_secret_opens_the_door_and_a_wrong_one_does_not() -> None:
    async def test() -> None:
        async with service(access=SECRET) as broker:
            async with connect(broker.urls[0], name="chief", secret="a long secret of the chief") as client:
                assert await client.publish("a", b"x") == 0
            for name, secret in [("chief", b"wrong"), ("chief", b""), (None, b""), ("thief", b"")]:
                with pytest.raises(AccessError):
                    await connect(broker.urls[0], name=name, secret=secret)

    run(test)


def test_a_broker_that_does_not_know_the_secret_is_not_trusted() -> None:
    async def test() -> None:
        async with service() as broker:
            with pytest.raises(AccessError, match="not the one you meant"):
                await connect(broker.urls[0], name="chief", secret=b"a long secret of the chief")

    run(test)


def test_a_name_in_use_is_refused_while_its_owner_answers() -> None:
    async def test() -> None:
        async with broker_and_client("me") as (broker, client):
            with pytest.raises(NameInUseError):
                await connect(broker.urls[0], name="me")
            assert await client.publish("a", b"x") == 0

    run(test)


def test_a_client_that_proves_the_same_name_takes_over_and_the_older_one_is_notified() -> None:
    async def test() -> None:
        async with service(access=SECRET) as broker:
            secret = b"a long secret of the chief"
            older = await connect(broker.urls[0], name="chief", secret=secret)
            async with connect(broker.urls[0], name="chief", secret=secret) as newer:
                while older.state != "closed":
                    await asyncio.sleep(0)
                with pytest.raises(TakenOverError):
                    await older.publish("a", b"x")
                with pytest.raises(TakenOverError):
                    older.subscribe("a")
                await older.close()
                assert await newer.publish("a", b"x") == 0

    run(test)


# -- asking -----------------------------------------------------------------------------------------------------------


def test_topics_are_listed_created_and_described() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            await client.create_topic("made/by hand")
            with pytest.raises(TopicError):
                await client.create_topic("made/by hand")
            with pytest.raises(TopicError):
                await client.create_topic("a/+")
            await client.publish("home/1/t", b"21", retain=True)
            async with client.subscribe("home/#"):
                (info,) = await client.topics("home/#")
            assert (info.name, info.messages, info.retained, info.subscribers) == ("home/1/t", 1, True, 1)
            assert [info.name for info in await client.topics()] == ["home/1/t", "made/by hand"]

    run(test)


def test_long_lists_come_in_pages() -> None:
    async def test() -> None:
        async with broker_and_client(topics=tuple(f"t/{n:05}" for n in range(2500))) as (_, client):
            names = [info.name for info in await client.topics()]
            assert names == [f"t/{n:05}" for n in range(2500)]

    run(test)


def test_clients_are_listed() -> None:
    async def test() -> None:
        async with broker_and_client("b") as (broker, client), connect(broker.urls[0], name="a") as other:
            async with other.subscribe("x", "y"):
                first, second = await client.clients()
            assert (first.name, second.name) == ("a", "b")
            assert first.subscriptions == [["x", "y"]]
            assert first.address.startswith("127.0.0.1:")

    run(test)


def test_a_kicked_client_is_reported_why_and_does_not_come_back() -> None:
    async def test() -> None:
        states: list[tuple[str, str]] = []
        async with broker_and_client("chief") as (broker, client):
            victim = await connect(broker.urls[0], name="victim", on_state=lambda *state: states.append(state))
            async with victim.subscribe("a") as messages:
                await client.kick("victim", reason="enough")
                with pytest.raises(KickedError, match="enough"):
                    await anext(messages)
            with pytest.raises(KickedError, match="enough"):
                await victim.ping()
            with pytest.raises(KickedError):
                victim.publisher("a")
            assert states[-1][0] == "closed"
            await victim.close()
            with pytest.raises(BrokerError):
                await client.kick("unknown")

    run(test)


def test_requests_of_a_closed_client_are_refused() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            await client.close()
            for ask in (client.ping(), client.publish("a", b"x"), client.topics()):
                with pytest.raises(UsageError, match="closed"):
                    await ask
            with pytest.raises(UsageError, match="closed"):
                client.subscribe("a")

    run(test)


def test_waiting_calls_are_notified_when_the_client_is_closed() -> None:
    async def test() -> None:
        async with service() as broker:
            client = await connect(broker.urls[0])
            subscription = client.subscribe("a")
            messages = await subscription.__aenter__()
            await broker.stop()
            waiting = [
                asyncio.create_task(coroutine)
                for coroutine in (client.ping(), client.publish("a", b"x"), messages.__anext__())
            ]
            await turns()
            assert await client.close(timeout_s=0) is False
            for task in waiting:
                with pytest.raises(UsageError, match="closed"):
                    await task
            await subscription.close()

    run(test)


# -- coming back ------------------------------------------------------------------------------------------------------


@both_loops
def test_a_restarted_broker_gets_everything_that_was_not_confirmed(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def test() -> None:
        states: list[str] = []
        broker = service()
        await broker.start()
        client = await connect(broker.urls[0], name="me", on_state=lambda state, _: states.append(state))
        async with client.subscribe("a") as messages:
            await client.publish("a", b"before")
            assert (await anext(messages)).payload == b"before"
            await broker.stop()
            while client.state == "online":
                await asyncio.sleep(0)
            waiting = asyncio.create_task(client.publish("a", b"meanwhile"))
            await turns()
            broker = await restarted(broker)
            assert await waiting in (0, 1)
            assert (await anext(messages)).payload == b"meanwhile"
            assert "offline" in states
            assert states[-1] == "online"
        await client.close()
        await broker.stop()

    run(test, loop)


def test_a_way_that_changes_is_followed() -> None:
    async def test() -> None:
        async with (
            service() as broker,
            lossy(broker.addresses[0], seed=3, loss=0.02) as relay,
            connect(f"127.0.0.1:{relay.address[1]}") as client,
            client.subscribe("a") as messages,
        ):
            for number in range(5):
                relay.rebind()
                await client.publish("a", str(number))
                assert (await anext(messages)).payload == str(number).encode()

    run(test)


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_leaving_waits_for_confirms() -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, reader), reader.subscribe("a") as messages:
            async with connect(broker.urls[0]) as client:
                publisher = client.publisher("a")
                for number in range(1000):
                    publisher.send(str(number))
            assert [int((await anext(messages)).payload) for _ in range(1000)] == list(range(1000))

    run(test)


def test_leaving_does_not_wait_for_ever() -> None:
    async def test() -> None:
        async with service() as broker:
            client = await connect(broker.urls[0])
            await broker.stop()
            client.publisher("a").send(b"x")
            began = time.monotonic()
            assert await client.close(timeout_s=0.02) is False
            assert time.monotonic() - began < 5

    run(test)


def test_a_goodbye_releases_no_will_and_a_death_does() -> None:
    async def test() -> None:
        will = Will(topic="wills", payload=b"gone", qos=1)
        async with broker_and_client() as (broker, reader), reader.subscribe("wills") as messages:
            async with connect(broker.urls[0], will=will):
                pass
            endpoint = EndpointConfig(idle_timeout_s=0.2, keep_alive_s=0.05)
            client = await connect(broker.urls[0], name="short", will=will, endpoint=endpoint)
            client._runtime.driver.close()  # it dies
            message = await anext(messages)
            assert (message.payload, message.publisher) == (b"gone", "short")

    run(test)


def test_ctrl_c_ends_a_program_at_once_and_cleanly() -> None:
    async def test() -> None:
        notices = Notices()
        async with Service(configuration(), notices=notices) as broker:
            program = (
                "import asyncio, sys, godwit\n"
                "from godwit.net.client import connect\n"
                "async def main():\n"
                "    async with connect(sys.argv[1], name='me') as client:\n"
                "        async with client.subscribe('a') as messages:\n"
                "            client.publisher('b').send(b'x')\n"
                "            print('ready', flush=True)\n"
                "            async for message in messages: pass\n"
                "try:\n"
                "    asyncio.run(main())\n"
                "except KeyboardInterrupt:\n"
                "    print('stopped')\n"
            )
            process = await spawn(
                sys.executable, "-c", program, broker.urls[0], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
            assert (out, err, process.returncode) == (b"stopped\n", b"", 0)
            assert await notices.until("disconnected") == ["me left"]

    run(test)
