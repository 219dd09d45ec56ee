"""Brokers that die or do not answer: several addresses, names that are resolved again, time limits of calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.net.running import DEADLINE_S, both_loops, broker_and_client, broker_in_thread, restarted, run, service
from tests.net.test_diagnostics import Records, records  # noqa: F401

import godwit
from godwit.broker.access import Access
from godwit.client import protocol
from godwit.client.config import ClientConfig
from godwit.errors import (
    AccessError,
    AddressError,
    BrokerUnreachableError,
    ReplyTimeoutError,
    UsageError,
)
from godwit.net import runtime as runtime_module
from godwit.net.address import parse_brokers
from godwit.net.client import AsyncClient, connect
from godwit.net.connecting import _unreachable
from godwit.net.relay import Relay
from godwit.net.runtime import BrokerResolver
from godwit.net.service import Service
from godwit.net.udp import UdpSocket
from godwit.transport.events import Address


def kill(broker: Service) -> None:
    """Close the sockets of a broker without a close to its clients, as the kernel does for a killed process."""
    for driver in broker._drivers:
        driver.disown()
        driver._loop.remove_reader(driver.udp.fileno())
        driver.udp.close()


class States:
    """Notes the states of a client, and lets a test wait for one."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._changed = asyncio.Event()

    def on_state(self, state: str, reason: str) -> None:
        self.seen.append((state, reason))
        self._changed.set()

    async def until(self, state: str) -> str:
        """Wait for a state, and return its reason."""
        while True:
            for found, reason in self.seen:
                if found == state:
                    self.seen.clear()
                    return reason
            self._changed.clear()
            await self._changed.wait()


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a", [("a", 50000)]),
        ("a:1,b:2, [::1]:3 ,", [("a", 1), ("b", 2), ("::1", 3)]),
        (["a:1", "udp://b"], [("a", 1), ("b", 50000)]),
        (("a", "a"), [("a", 50000)]),
    ],
)
def test_one_or_several_addresses(given: Any, found: list[tuple[str, int]]) -> None:
    assert parse_brokers(given) == found


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", "names no host"),
        (",", "0 addresses of brokers: give 1 to 16"),
        ([], "0 addresses"),
        (",".join(map(str, range(17))), "17 addresses"),
        ("a,b:99999", "a port is a number"),
        (5, "the broker is 5, of the type int: give a text such as 'localhost:50000', or a list"),
        ([5], "give a text"),
        (None, "give a text"),
        (b"localhost", "of the type bytes: give a text"),
    ],
)
def test_what_is_not_an_address(given: Any, text: str) -> None:
    with pytest.raises(AddressError, match=text):
        connect(given)
    with pytest.raises(AddressError, match=text):
        godwit.sync.connect(given)
    with pytest.raises(AddressError, match=text):
        godwit.Worker(given)


def test_of_several_brokers_the_one_that_answers_is_used_and_another_one_when_it_dies() -> None:
    states = States()

    async def test() -> None:
        with UdpSocket("127.0.0.1") as silent:
            async with service() as first, service() as second:
                addresses = [f"127.0.0.1:{silent.local_address[1]}", *first.urls]
                async with connect(addresses, timeout_s=DEADLINE_S, on_state=states.on_state) as client:
                    await client.publish("a", b"1")
                    # The second broker replaces the silent address, as after a change of names.
                    client._runtime._connect([*map(_address, [*first.urls, *second.urls])])
                    kill(first)
                    assert await client.publish("a", b"2") == 0
                    assert [topic.name for topic in await client.topics("a")] == ["a"]
                    assert "nothing was received" in await states.until("offline")

    run(test)


def _address(url: str) -> Address:
    host, port = url.removeprefix("udp://").split(":")
    return host, int(port)


def test_a_blocking_client_and_a_worker_accept_several_brokers() -> None:
    with UdpSocket("127.0.0.1") as silent, broker_in_thread() as url:
        brokers = f"127.0.0.1:{silent.local_address[1]},{url}"
        with godwit.sync.connect(brokers, timeout_s=DEADLINE_S) as client:
            job = client.submit("count", [1, 2, 3])
            worker = godwit.Worker(brokers, name="anna", timeout_s=DEADLINE_S)

            @worker.handles("count")
            async def count(task: godwit.Task) -> int:
                worker.stop(finish=True)
                return len(task.json())

            worker.run_forever()
            assert [result.json() for result in job.results()] == [3]


def test_without_an_answer_the_error_names_all_addresses() -> None:
    async def test() -> None:
        with UdpSocket("127.0.0.1") as one, UdpSocket("127.0.0.1") as two:
            ports = [udp.local_address[1] for udp in (one, two)]
            text = f"no broker answered at 127.0.0.1 port {ports[0]}, 127.0.0.1 port {ports[1]} within 0.1 s"
            with pytest.raises(BrokerUnreachableError, match=text):
                await connect([f"127.0.0.1:{port}" for port in ports], timeout_s=0.1)

    run(test)


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Address]]:
    """A name service: names without an entry do not exist."""
    known: dict[str, list[Address]] = {}

    def lookup(host: str, port: int) -> list[Address]:
        if host not in known:
            raise AddressError(f"host {host} has no address; check the name")
        return known[host]

    monkeypatch.setattr(runtime_module, "resolve_all", lookup)
    return known


def test_names_are_resolved_again_for_each_round(names: dict[str, list[Address]]) -> None:
    async def test() -> None:
        async with service() as first, service() as second:
            names["plant"] = [_address(first.urls[0])]
            async with connect("plant", timeout_s=DEADLINE_S) as client:
                await client.create_topic("only/here")
                names["plant"] = [_address(second.urls[0])]  # the broker has moved to another machine
                await first.stop()
                while await client.topics("only/here"):
                    await asyncio.sleep(0.01)  # until it has noticed

    run(test)


def test_a_name_that_cannot_be_resolved_is_left_out(
    names: dict[str, list[Address]],
    records: Records,  # noqa: F811
) -> None:
    async def test() -> None:
        async with service() as broker:
            names["plant"] = [_address(broker.urls[0])]
            async with connect("unknown,plant", timeout_s=DEADLINE_S) as client:
                await client.ping()
            with pytest.raises(AddressError, match="host unknown has no address"):
                await connect("unknown,strange", timeout_s=DEADLINE_S)
            with pytest.raises(AddressError, match="host unknown has no address"):
                await connect("unknown", timeout_s=DEADLINE_S)
        assert any("one of several brokers is left out: host unknown" in text for text in records.texts())

    run(test)


def test_names_that_are_resolved_at_the_same_time_are_all_used(names: dict[str, list[Address]]) -> None:
    names |= {"one": [("192.0.2.1", 1)], "two": [("192.0.2.2", 2)], "three": [("192.0.2.3", 3)]}

    async def test() -> None:
        for _ in range(100):
            found = await BrokerResolver([(name, 1) for name in names]).resolve()
            assert found == [("192.0.2.1", 1), ("192.0.2.2", 2), ("192.0.2.3", 3)]

    run(test)


def test_an_access_error_ends_the_client_of_a_name_with_several_addresses(names: dict[str, list[Address]]) -> None:
    async def test() -> None:
        with UdpSocket("127.0.0.1") as silent:
            async with service(access=Access(secrets={"x": b"y" * 20}, allows_anonymous=False)) as broker:
                names["plant"] = [("127.0.0.1", silent.local_address[1]), _address(broker.urls[0])]
                with pytest.raises(AccessError):
                    await connect("plant", name="me", timeout_s=DEADLINE_S)

    run(test)


def test_names_keep_their_addresses_while_the_name_service_is_away(names: dict[str, list[Address]]) -> None:
    async def test() -> None:
        async with service() as broker:
            names["plant"] = [_address(broker.urls[0])]
            async with connect("plant", timeout_s=DEADLINE_S) as client:
                names.clear()
                again = await restarted(broker)
                await client.ping()
                await again.stop()

    run(test)


def test_a_slow_name_does_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the end of the program does not wait for it."""
    monkeypatch.setattr(runtime_module, "RESOLVE_GRACE_S", 0.01)
    answers: list[Callable[[], None]] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with service() as broker:
            address = _address(broker.urls[0])
            waiting = asyncio.Event()

            def lookup(host: str, port: int) -> list[Address]:
                if host == "slow":
                    answered = threading.Event()
                    answers.append(answered.set)
                    loop.call_soon_threadsafe(waiting.set)
                    answered.wait()
                return [address]

            monkeypatch.setattr(runtime_module, "resolve_all", lookup)
            async with connect("slow,quick", timeout_s=DEADLINE_S) as client:
                await waiting.wait()
                await client.ping()

    run(test)
    for answer in answers:
        answer()


# -- a broker that dies -----------------------------------------------------------------------------------------------


@both_loops
def test_a_report_of_the_network_is_a_hint(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens at the port of a killed broker: the kernel reports that to a probe."""
    monkeypatch.setattr(protocol, "UNANSWERED_S", 0.1)
    states = States()

    async def test() -> None:
        async with service() as broker:
            client = await connect(broker.urls[0], on_state=states.on_state)
            await client.publish("a", b"1")
            kill(broker)
            with pytest.raises(ReplyTimeoutError):
                await client.publish("a", b"2", timeout_s=0)
            assert "and the network reports that nothing listens there" in await states.until("offline")
            assert "connected" not in repr(client)
            client.abort()

    run(test, loop)


def test_without_reports_of_the_network_it_is_noticed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay listens at the address, and passes nothing on."""
    monkeypatch.setattr(protocol, "UNANSWERED_S", 0.05)
    monkeypatch.setattr(ClientConfig, "__init__", _impatient(ClientConfig.__init__))
    states = States()

    async def test() -> None:
        async with service() as broker, Relay.open(("127.0.0.1", 0), broker.addresses[0]) as relay:
            host, port = relay.address[:2]
            client = await connect(f"{host}:{port}", on_state=states.on_state)
            await client.publish("a", b"1")
            kill(broker)
            with pytest.raises(ReplyTimeoutError):
                await client.publish("a", b"2", timeout_s=0)
            assert "although it was asked" in await states.until("offline")
            client.abort()

    run(test)


def _impatient(init: Callable[..., None]) -> Callable[..., None]:
    def impatient(self: ClientConfig, **settings: Any) -> None:
        init(self, **settings | {"suspect_s": 0.2})

    return impatient


# -- time limits ------------------------------------------------------------------------------------------------------


Call = Callable[[AsyncClient], Awaitable[object]]


async def _flush(client: AsyncClient) -> None:
    publisher = client.publisher("a")
    publisher.send(b"x")
    await publisher.flush(timeout_s=0.05)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda client: client.publish("a", b"x", timeout_s=0.05), "the message for 'a' was not confirmed within 0.05"),
        (_flush, "1 message for 'a' not confirmed within 0.05 s: still in the client's buffer"),
        (lambda client: client.submit("a", b"x", timeout_s=0.05), "has not stored the job .*with the same key"),
        (lambda client: client.submit_many([("a", b"x")], timeout_s=0.05), "has not stored the job"),
        (lambda client: client.job(1, timeout_s=0.05), "did not answer"),
        (lambda client: client.jobs(timeout_s=0.05), "did not answer"),
        (lambda client: client.job_info(1, timeout_s=0.05), "did not answer"),
        (lambda client: client.cancel_job(1, timeout_s=0.05), "did not answer"),
        (lambda client: client.retry_job(1, timeout_s=0.05), "did not answer"),
        (lambda client: client.topics(timeout_s=0.05), "the broker at 127.0.0.1 port .* did not answer within 0.05 s"),
        (lambda client: client.create_topic("a", timeout_s=0.05), "did not answer"),
        (lambda client: client.clients(timeout_s=0.05), "did not answer"),
        (lambda client: client.kick("a", timeout_s=0.05), "did not answer"),
        (lambda client: client.ping(timeout_s=0), "did not answer within 0 s: try again"),
    ],
)
def test_a_call_with_a_time_limit_gives_up(call: Call, text: str) -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client):
            kill(broker)
            with pytest.raises(ReplyTimeoutError, match=text) as caught:
                await call(client)
            assert isinstance(caught.value, TimeoutError)
            assert isinstance(caught.value, BrokerUnreachableError)
            client.abort()

    run(test)


def test_a_message_whose_time_limit_has_passed_is_sent_later() -> None:
    async def test() -> None:
        async with service() as broker, connect(broker.urls[0], name="n") as client:
            kill(broker)
            with pytest.raises(ReplyTimeoutError):
                await client.publish("a", b"late", timeout_s=0.01)
            again = await restarted(broker)
            publisher = client.publisher("a")
            await publisher.flush(timeout_s=DEADLINE_S)
            assert publisher.unconfirmed == 0
            assert publisher.next_sequence == 1
            await again.stop()

    run(test)


def test_a_call_within_its_time_limit() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            assert await client.publish("a", {"t": 1}, timeout_s=DEADLINE_S) == 0
            publisher = client.publisher("a")
            publisher.send([1])
            await publisher.flush(DEADLINE_S)
            assert await client.ping(timeout_s=DEADLINE_S) < DEADLINE_S
            assert [topic.name for topic in await client.topics(timeout_s=DEADLINE_S)] == ["a"]
            job = await client.submit("k", timeout_s=DEADLINE_S)
            await job.cancel(timeout_s=DEADLINE_S)

    run(test)


@pytest.mark.parametrize("wrong", [-1, "5", float("nan"), float("inf"), 10**400, True, b"", [5]])
def test_what_is_no_time_limit(wrong: Any) -> None:
    async def test() -> None:
        async with broker_and_client() as (broker, client):
            for call in (
                client.publish("a", b"x", timeout_s=wrong),
                client.publisher("b").flush(wrong),
                client.ping(timeout_s=wrong),
                client.submit("a", timeout_s=wrong),
                client.request("a", timeout_s=wrong),
                client.close(timeout_s=wrong),
            ):
                with pytest.raises(UsageError, match=r"give seconds \(0 does not wait\), or None to wait for ever"):
                    await call
            with pytest.raises(UsageError, match="timeout_s is"):
                connect(broker.urls[0], timeout_s=wrong)
            assert await client.publish("a", b"x") == 0  # it was not closed

    run(test)


def test_the_error_of_an_absent_broker_has_no_text_twice() -> None:
    silence = "no answer to connect from 127.0.0.1 port 9 within 10 s: check the address, the port and the firewall"
    text = str(_unreachable("127.0.0.1 port 9", 10.0, is_answered=False, reason=silence))
    assert text.startswith("no broker answered at 127.0.0.1 port 9 within 10 s: is it running there")
    text = str(_unreachable("127.0.0.1 port 9", 10.0, is_answered=False, reason="no route to the host"))
    assert "within 10 s (no route to the host): is it running" in text


def test_a_time_limit_of_0_does_not_wait() -> None:
    with broker_in_thread() as url:
        with UdpSocket("127.0.0.1") as silent, pytest.raises(BrokerUnreachableError, match="within 0 s"):
            godwit.sync.connect(f"127.0.0.1:{silent.local_address[1]}", timeout_s=0)
        with godwit.sync.connect(url) as client:
            with client.subscribe("a") as messages:
                with pytest.raises(TimeoutError, match="nothing arrived within 0 s"):
                    messages.get(timeout_s=0)
                client.publish("a", b"x")
                assert messages.get().payload == b"x"
            for wrong in ("5", float("inf")):
                with pytest.raises(UsageError, match="timeout_s is"):
                    client.publisher("a").flush(wrong)  # type: ignore[arg-type]
                with pytest.raises(UsageError, match="timeout_s is"):
                    client.close(timeout_s=wrong)  # type: ignore[arg-type]
            assert client.state == "online"
            assert client.close(timeout_s=None) is True


def test_time_limits_of_blocking_calls() -> None:
    with broker_in_thread() as url:
        client = godwit.sync.connect(url, name="n", timeout_s=DEADLINE_S)
        client.publish("a", b"x", timeout_s=DEADLINE_S)
        with client.subscribe("a", cursor="c", start="earliest") as messages:
            messages.get(DEADLINE_S)
            messages.commit(timeout_s=DEADLINE_S)
        publisher = client.publisher("a")
        publisher.send({"n": 1})
        publisher.flush(DEADLINE_S)
    for call in (  # without a broker: a reply that arrives at once would count
        lambda: client.publish("a", b"x", timeout_s=0),
        lambda: client.ping(timeout_s=0),
        lambda: client.submit("a", timeout_s=0),
        lambda: client.topics(timeout_s=0),
    ):
        with pytest.raises(ReplyTimeoutError):
            call()
    client.close(timeout_s=0)
