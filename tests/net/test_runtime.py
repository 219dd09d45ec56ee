"""The sans-IO client in an event loop: sockets of the right families, replies to the right requests."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.net.running import broker_and_client, run, service, turns
from tests.net.work_stands import lease

from godwit.client.config import ClientConfig
from godwit.client.events import Leased, Reported
from godwit.errors import BrokerError, SocketError, UsageError
from godwit.net import runtime
from godwit.net.address import family_of
from godwit.net.runtime import ClientRuntime, open_sockets
from godwit.net.udp import UdpSocket
from godwit.net.worker import Handlers
from godwit.wire.control import Done, Ping, Pong


def test_there_is_a_socket_for_each_family() -> None:
    sockets = open_sockets([("::1", 1, 0, 0), ("127.0.0.1", 1), ("127.0.0.2", 1)])
    assert [family_of(udp.local_address) for udp in sockets] == [socket.AF_INET6, socket.AF_INET]
    for udp in sockets:
        udp.close()


def test_a_family_that_the_system_lacks_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_ipv4(host: str) -> UdpSocket:
        if ":" in host:
            raise SocketError("this system has no IPv6")
        return UdpSocket(host)

    monkeypatch.setattr(runtime, "UdpSocket", only_ipv4)
    (udp,) = open_sockets([("::1", 1, 0, 0), ("127.0.0.1", 1)])
    udp.close()
    with pytest.raises(SocketError, match="no IPv6"):
        open_sockets([("::1", 1, 0, 0)])

    async def test() -> None:
        async with service() as broker:
            port = broker.addresses[0][1]
            client = ClientRuntime(ClientConfig(), [("::1", port, 0, 0), ("127.0.0.1", port)])
            await client.wait_until_online()
            await client.close(0)

    run(test)


def test_each_gets_the_answer_to_its_own_question() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            numbers: list[int] = []

            def ask(number: int) -> Ping:
                numbers.append(number)
                return Ping(request=number)

            replies = await asyncio.gather(*(client._runtime.request(ask, Pong) for _ in range(20)))
            assert [reply.request for reply in replies] == numbers
            with pytest.raises(BrokerError, match="answered with Pong"):
                await client._runtime.request(ask, Done)

    run(test)


def test_an_answer_to_a_cancelled_request_does_no_harm() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            task = asyncio.create_task(client.ping())
            await turns(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.ping() > 0

    run(test)


def test_an_abort_ends_at_once() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            client.abort()
            client.abort()
            assert client.state == "closed"

    run(test)


def test_a_welcome_that_never_comes_is_no_loose_end() -> None:
    async def test() -> None:
        with UdpSocket("127.0.0.1") as silent:
            client = ClientRuntime(ClientConfig(), [silent.local_address])
            waiting = asyncio.create_task(client.wait_until_online())
            await turns()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            client.abort()

    run(test)


def test_a_task_that_comes_when_the_work_has_ended_goes_back() -> None:
    async def test() -> None:
        async with broker_and_client() as (_, client):
            handlers = Handlers()
            handlers.add("work", lambda task: None)
            bench = client._runtime.begin_work(handlers.by_kind, 1, lambda: None)
            with pytest.raises(UsageError, match="this client works already"):
                client._runtime.begin_work(handlers.by_kind, 1, lambda: None)
            await client._runtime.end_work(bench, "enough")
            late = lease()
            late.state = "ended"  # the core has nothing to say about it
            client._runtime._on_work(Leased(late))
            client._runtime._on_work(Reported(late))
            await client.ping()

    run(test)
