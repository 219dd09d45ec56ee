"""The relay on real sockets: forwarding, impairments, and bounded memory."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

import pytest
from tests.ports import free_port

from godwit.errors import SocketError
from godwit.impairment import ImpairedLink, LinkSettings
from godwit.net.relay import Direction, Impairment, Relay
from godwit.net.udp import UdpSocket
from godwit.transport.events import Address, Train

DEADLINE_S = 120.0
HOST = "127.0.0.1"


class Peer:
    """A socket in the loop that collects arrived datagrams."""

    def __init__(self, host: str = HOST) -> None:
        self.udp = UdpSocket(host)
        self.arrived: list[tuple[Address, bytes]] = []
        self._changed = asyncio.Event()

    def __enter__(self) -> Peer:
        asyncio.get_running_loop().add_reader(self.udp.fileno(), self._read)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        asyncio.get_running_loop().remove_reader(self.udp.fileno())
        self.udp.close()

    def _read(self) -> None:
        for train in self.udp.receive_trains():
            self.arrived += [(train.address, datagram) for datagram in train.datagrams()]
        self._changed.set()

    def send(self, address: Address, data: bytes, segment_bytes: int | None = None) -> None:
        assert self.udp.send(Train(address, data, segment_bytes or len(data))) is None

    async def receive(self, count: int) -> list[bytes]:
        """The next `count` datagrams; nothing else may have come."""

        async def wait() -> None:
            while len(self.arrived) < count:
                self._changed.clear()
                await self._changed.wait()

        await asyncio.wait_for(wait(), DEADLINE_S)
        datagrams = [datagram for _, datagram in self.arrived]
        assert len(datagrams) == count
        self.arrived.clear()
        return datagrams


async def until(holds: Callable[[], bool]) -> None:
    """Lets the loop run until something holds."""

    async def wait() -> None:
        while not holds():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), DEADLINE_S)


class Delay:
    def __init__(self, delay_s: float, copies: int = 1) -> None:
        self.delay_s = delay_s
        self.copies = copies

    def offer(self, datagram: bytes, now: float) -> list[tuple[float, bytes]]:
        return [(now + self.delay_s, datagram)] * self.copies


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


# -- passing ----------------------------------------------------------------------------------------------------------


def ipv6_works() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "host", [HOST, pytest.param("::1", marks=pytest.mark.skipif(not ipv6_works(), reason="this system has no ::1"))]
)
def test_passes_both_ways_and_keeps_clients_apart(host: str) -> None:
    async def test() -> None:
        with Peer(host) as server, Peer(host) as first, Peer(host) as second:
            async with Relay.open((host, 0), server.udp.local_address) as relay:
                first.send(relay.address, b"from the first")
                assert await server.receive(1) == [b"from the first"]
                second.send(relay.address, b"from the second")
                await until(lambda: bool(server.arrived))
                to_second, _ = server.arrived[0]
                assert await server.receive(1) == [b"from the second"]
                server.send(to_second, b"to the second")
                assert await second.receive(1) == [b"to the second"]
                assert not first.arrived
                assert relay.clients == [first.udp.local_address, second.udp.local_address]
                assert relay.passed == {"to_target": 2, "to_client": 1}
                assert not relay.dropped

    run(test)


def test_a_train_comes_out_datagram_by_datagram_in_order() -> None:
    async def test() -> None:
        data = random.Random(1).randbytes(40 * 1200 + 7)
        with Peer() as server, Peer() as client:
            async with Relay.open((HOST, 0), ("localhost", server.udp.local_address[1])) as relay:
                client.send(relay.address, data, 1200)
                received = await server.receive(41)
                assert received == list(Train((), data, 1200).datagrams())
                assert relay.queued_bytes == 0

    run(test)


# -- impairing --------------------------------------------------------------------------------------------------------


def test_each_direction_of_each_client_has_an_impairment_of_its_own() -> None:
    async def test() -> None:
        made: list[tuple[Direction, Address]] = []

        def impair(direction: Direction, client: Address) -> Impairment:
            made.append((direction, client))
            return Delay(0.0, copies=2 if direction == "to_target" else 3)

        with Peer() as server, Peer() as client:
            async with Relay.open((HOST, 0), server.udp.local_address, impair=impair) as relay:
                client.send(relay.address, b"up")
                await until(lambda: len(server.arrived) == 2)
                back = server.arrived[0][0]
                assert await server.receive(2) == [b"up", b"up"]
                server.send(back, b"down")
                assert await client.receive(3) == [b"down"] * 3
                address = client.udp.local_address
                assert made == [("to_target", address), ("to_client", address)]
                assert relay.passed == {"to_target": 2, "to_client": 3}

    run(test)


def test_a_delayed_datagram_is_overtaken_and_still_arrives() -> None:
    class OddOnesLate:
        count = 0

        def offer(self, datagram: bytes, now: float) -> list[tuple[float, bytes]]:
            self.count += 1
            return [(now + (0.03 if self.count % 2 else 0.0), datagram)]

    async def test() -> None:
        with Peer() as server, Peer() as client:
            async with Relay.open(
                (HOST, 0), server.udp.local_address, impair=lambda direction, address: OddOnesLate()
            ) as relay:
                started = time.monotonic()
                client.send(relay.address, b"1234", 1)
                assert await server.receive(4) == [b"2", b"4", b"1", b"3"]
                assert time.monotonic() - started > 0.025  # timers of uvloop are rounded to milliseconds

    run(test)


def test_takes_the_simulators_link() -> None:
    """The same seed loses the same datagrams here as in the simulator."""
    settings = LinkSettings(loss=0.3)
    datagrams = [bytes([n]) * 10 for n in range(200)]

    def impair(direction: Direction, client: Address) -> Impairment:
        return ImpairedLink(settings, random.Random(7))

    async def test() -> None:
        twin = ImpairedLink(settings, random.Random(7))
        expected = [delivered for each in datagrams for _, delivered in twin.offer(each, 0.0)]
        assert 0 < len(expected) < 200
        with Peer() as server, Peer() as client:
            async with Relay.open((HOST, 0), server.udp.local_address, impair=impair) as relay:
                for each in datagrams:
                    client.send(relay.address, each)
                assert await server.receive(len(expected)) == expected
                assert relay.dropped == {"to_target impairment": 200 - len(expected)}

    run(test)


# -- a NAT that forgets -----------------------------------------------------------------------------------------------


def test_rebind_gives_clients_another_port() -> None:
    async def test() -> None:
        with Peer() as server, Peer() as first, Peer() as second:
            async with Relay.open((HOST, 0), server.udp.local_address) as relay:

                async def seen_as(client: Peer) -> Address:
                    client.send(relay.address, b"who am I")
                    await until(lambda: bool(server.arrived))
                    address = server.arrived[0][0]
                    await server.receive(1)
                    return address

                before = [await seen_as(first), await seen_as(second)]
                relay.rebind(first.udp.local_address)
                between = [await seen_as(first), await seen_as(second)]
                assert between[0] != before[0]
                assert between[1] == before[1]
                relay.rebind()
                after = [await seen_as(first), await seen_as(second)]
                assert not {*after} & {*between}
                server.send(between[1], b"to a forgotten port")
                server.send(after[1], b"to the new port")
                assert await second.receive(1) == [b"to the new port"]

    run(test)


def test_a_failed_rebind_leaves_the_old_port(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with Peer() as server, Peer() as client:
            async with Relay.open((HOST, 0), server.udp.local_address) as relay:
                client.send(relay.address, b"one")
                await server.receive(1)

                def refuse() -> UdpSocket:
                    raise SocketError("too many open files")

                monkeypatch.setattr(relay, "_open_upstream", refuse)
                with pytest.raises(SocketError):
                    relay.rebind()
                client.send(relay.address, b"two")
                assert await server.receive(1) == [b"two"]
                with Peer() as other:
                    other.send(relay.address, b"three")
                    await until(lambda: relay.dropped == {"to_target no room": 1})

    run(test)


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_refuses_a_client_too_many_until_one_is_idle() -> None:
    async def test() -> None:
        with Peer() as server, Peer() as first, Peer() as second:
            async with Relay.open((HOST, 0), server.udp.local_address, max_clients=1) as relay:
                first.send(relay.address, b"first")
                assert await server.receive(1) == [b"first"]
                second.send(relay.address, b"abc", 1)
                await until(lambda: relay.dropped == {"to_target no room": 3})
                relay._clients[first.udp.local_address].active_at -= 1000.0
                second.send(relay.address, b"second")
                assert await server.receive(1) == [b"second"]
                assert relay.clients == [second.udp.local_address]

    run(test)


def test_forgets_an_idle_client_by_itself() -> None:
    async def test() -> None:
        with Peer() as server, Peer() as client:
            # Long enough that a thread that has no processor for a moment does not forget a client that has just come.
            async with Relay.open((HOST, 0), server.udp.local_address, idle_timeout_s=1.0) as relay:
                client.send(relay.address, b"x")
                await server.receive(1)
                await until(lambda: relay.clients == [])

    run(test)


def test_the_longest_idle_client_goes_first() -> None:
    async def test() -> None:
        with Peer() as server, Peer() as first, Peer() as second:
            async with Relay.open((HOST, 0), server.udp.local_address) as relay:
                for client in (first, second, first):
                    client.send(relay.address, b"x")
                    await server.receive(1)
                assert relay.clients == [second.udp.local_address, first.udp.local_address]

    run(test)


def test_holds_bounded_bytes() -> None:
    async def test() -> None:
        with Peer() as server, Peer() as client:
            async with Relay.open(
                (HOST, 0),
                server.udp.local_address,
                impair=lambda direction, address: Delay(60.0),
                max_queued_bytes=10_000,
            ) as relay:
                for _ in range(100):
                    client.send(relay.address, bytes(700))
                await until(lambda: relay.dropped == {"to_target queue full": 90})
                assert relay.queued_bytes == 10_000

    run(test)


def test_what_is_under_way_for_a_client_that_is_gone_is_dropped() -> None:
    async def test() -> None:
        with Peer() as server, Peer() as client:
            async with Relay.open(
                (HOST, 0), server.udp.local_address, impair=lambda direction, address: Delay(0.1), idle_timeout_s=0.05
            ) as relay:
                client.send(relay.address, b"late")
                await until(lambda: relay.dropped == {"to_target client gone": 1})
                assert relay.queued_bytes == 0

    run(test)


def test_much_that_is_due_at_once_leaves_the_loop_its_turns() -> None:
    async def test() -> None:
        with Peer() as server, Peer() as client:
            async with Relay.open(
                (HOST, 0), server.udp.local_address, impair=lambda direction, address: Delay(0.0, copies=1000)
            ) as relay:
                client.send(relay.address, b"x")
                assert await server.receive(1000) == [b"x"] * 1000
                assert relay.passed == {"to_target": 1000}

    run(test)


def test_only_the_target_may_answer() -> None:
    async def test() -> None:
        with Peer() as server, Peer() as client, Peer() as stranger:
            async with Relay.open((HOST, 0), server.udp.local_address) as relay:
                client.send(relay.address, b"x")
                await until(lambda: bool(server.arrived))
                way = server.arrived[0][0]
                stranger.send(way, b"forged")
                await until(lambda: relay.dropped == {"to_client stranger": 1})
                server.send(way, b"real")
                assert await client.receive(1) == [b"real"]

    run(test)


def test_what_the_kernel_has_no_room_for_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with Peer() as server, Peer() as client:
            async with Relay.open((HOST, 0), server.udp.local_address) as relay:
                monkeypatch.setattr(relay, "_open_upstream", full_socket)
                client.send(relay.address, b"x")
                await until(lambda: relay.dropped == {"to_target kernel full": 1})
                assert not relay.passed

    def full_socket() -> UdpSocket:
        def refuse(*_: object) -> None:
            raise BlockingIOError(errno.EAGAIN, "the kernel has no room")

        opened = UdpSocket("0.0.0.0")
        opened._sendto = refuse
        return opened

    run(test)


def test_closes_everything_and_may_be_closed_twice() -> None:
    async def test() -> None:
        with Peer() as server, Peer() as client:
            async with Relay.open(
                (HOST, free_port()), server.udp.local_address, impair=lambda direction, address: Delay(3600.0)
            ) as relay:
                client.send(relay.address, b"x")
                await until(lambda: relay.queued_bytes > 0)
                relay.close()
            assert relay.clients == []
            assert relay.queued_bytes == 0
            with UdpSocket(*relay.address):
                pass

    run(test)
