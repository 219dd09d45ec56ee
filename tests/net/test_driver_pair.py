"""One endpoint, two sockets: everything goes out on the right one, and events come in order, never nested."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from godwit.net.driver import EndpointDriver, PairDriver, open_driver
from godwit.net.udp import UdpSocket
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Connected, Event, Received, Train

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]
DEADLINE_S = 60.0


def run(loop: Callable[[], asyncio.AbstractEventLoop], test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(), DEADLINE_S)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_one_endpoint_talks_to_servers_of_both_families(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()

        def serve(events: list[Event]) -> None:
            for event in events:
                if isinstance(event, Received):
                    heard.put_nowait(event.body)
                    event.connection.send(event.connection.open_channel(), b"answer to " + event.body)

        answers: asyncio.Queue[bytes] = asyncio.Queue()

        def talk(events: list[Event]) -> None:
            for event in events:
                if isinstance(event, Connected):
                    event.connection.send(event.connection.open_channel(), event.connection.peer_address[0].encode())
                    driver.flush()  # from inside: done later, not nested
                elif isinstance(event, Received):
                    answers.put_nowait(event.body)

        servers = [
            EndpointDriver(Endpoint(EndpointConfig(accepts=True), entropy=os.urandom), UdpSocket(host), serve)
            for host in ("127.0.0.1", "::1")
        ]
        endpoint = Endpoint(EndpointConfig(), entropy=os.urandom)
        driver = open_driver(endpoint, [UdpSocket("0.0.0.0"), UdpSocket("::")], talk)
        assert isinstance(driver, PairDriver)
        for server in servers:
            endpoint.connect(server.udp.local_address, driver.clock())
        driver.schedule_flush()
        assert {await heard.get(), await heard.get()} == {b"127.0.0.1", b"::1"}
        assert {await answers.get(), await answers.get()} == {b"answer to 127.0.0.1", b"answer to ::1"}
        driver.close()
        assert driver.closed
        for server in servers:
            server.close()

    run(loop, test)


class Fake:
    """An endpoint with trains and events to give."""

    def __init__(self) -> None:
        self.trains: list[Train] = []
        self.pending_events: list[str] = []

    def receive(self, train: Train, now: float) -> None:
        self.pending_events.append(train.data.decode())

    def handle_timers(self, now: float) -> None: ...

    def events(self) -> list[str]:
        events = self.pending_events[:]
        self.pending_events.clear()
        return events

    def next_train(self, now: float) -> Train | None:
        return self.trains.pop(0) if self.trains else None

    def next_timer(self) -> float | None:
        return None


def test_events_are_never_delivered_inside_events() -> None:
    async def test() -> None:
        fake = Fake()
        depth = 0
        seen: list[str] = []
        over = asyncio.Event()

        def take(events: list[str]) -> None:
            nonlocal depth
            depth += 1
            assert depth == 1
            seen.extend(events)
            if len(seen) < 3:
                fake.pending_events.append(f"{events[0]}+")
                driver.flush()
            else:
                over.set()
            depth -= 1

        sockets = UdpSocket("127.0.0.1"), UdpSocket("::1")
        driver = PairDriver(fake, sockets, take)
        with UdpSocket("::1") as other:  # arrives at the second socket
            other.send(Train(sockets[1].local_address, b"x", 1))
            await over.wait()
        assert seen == ["x", "x+", "x++"]
        driver.close()

    run(asyncio.new_event_loop, test)


def test_what_is_ready_before_the_start_goes_out_on_both() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        with UdpSocket("127.0.0.1") as ipv4, UdpSocket("::1") as ipv6:
            fake = Fake()
            fake.trains = [Train(udp.local_address, b"x", 1) for udp in (ipv6, ipv4)]
            driver = PairDriver(fake, (UdpSocket("127.0.0.1"), UdpSocket("::1")), lambda events: None)
            for udp in (ipv4, ipv6):
                readable = asyncio.Event()
                loop.add_reader(udp.fileno(), readable.set)
                await readable.wait()
                loop.remove_reader(udp.fileno())
                assert [train.data for train in udp.receive_trains()] == [b"x"]
            driver.close()

    run(asyncio.new_event_loop, test)


def test_one_that_is_disowned_keeps_both_sockets_open() -> None:
    async def test() -> None:
        sockets = UdpSocket("127.0.0.1"), UdpSocket("::1")
        driver = PairDriver(Fake(), sockets, lambda events: None)
        driver.disown()
        assert driver.closed
        driver.close()
        for udp in sockets:
            assert asyncio.get_running_loop().remove_reader(udp.fileno())  # open, and still watched
            udp.close()

    run(asyncio.new_event_loop, test)


def test_one_socket_needs_no_pair() -> None:
    async def test() -> None:
        driver = open_driver(Fake(), [UdpSocket("127.0.0.1")], lambda events: None)
        assert isinstance(driver, EndpointDriver)
        driver.close()

    run(asyncio.new_event_loop, test)
