"""The driver: with a small fake endpoint for its duties one by one, then with the real one on loopback."""

from __future__ import annotations

import asyncio
import errno
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from godwit.errors import SendBufferFullError
from godwit.impairment import ImpairedLink, LinkSettings
from godwit.net import driver
from godwit.net.driver import TRAINS_A_TURN, EndpointDriver, LoopTimer
from godwit.net.relay import Direction, Impairment, Relay
from godwit.net.udp import UdpSocket
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import (
    Address,
    ChannelConfirmed,
    Closed,
    Connected,
    Event,
    PathChanged,
    Received,
    Train,
    Writable,
)

DEADLINE_S = 120.0
HOST = "127.0.0.1"
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


def run(loop: Callable[[], asyncio.AbstractEventLoop], test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(), DEADLINE_S)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


class Fake:
    """An endpoint that records its input and returns prepared output."""

    def __init__(self) -> None:
        self.received: list[Train] = []
        self.receive_turns: list[int] = []
        self.pending_events: list[str] = []
        self.pending_trains: list[Train] = []
        self.timer: float | None = None
        self.timer_calls: list[float] = []
        self.changed = asyncio.Event()

    def receive(self, train: Train, now: float) -> None:
        self.received.append(train)
        self.pending_events.append(f"received {len(train.data)}")
        self.changed.set()

    def handle_timers(self, now: float) -> None:
        self.timer_calls.append(now)
        if self.timer is not None and now >= self.timer:
            self.timer = None
            self.pending_events.append("timer")
        self.changed.set()

    def events(self) -> list[str]:
        events = self.pending_events[:]
        self.pending_events.clear()
        return events

    def next_train(self, now: float) -> Train | None:
        return self.pending_trains.pop(0) if self.pending_trains else None

    def next_timer(self) -> float | None:
        return self.timer

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()


class Stage:
    """A driven fake, and a plain socket beside it."""

    def __init__(self) -> None:
        self.fake = Fake()
        self.events: list[list[str]] = []
        self.on_events: Callable[[list[str]], None] = lambda events: None
        self.other = UdpSocket(HOST)
        self.driver = EndpointDriver(self.fake, UdpSocket(HOST), self._take)
        self.address: Address = self.driver.udp.local_address

    def _take(self, events: list[str]) -> None:
        self.events.append(events)
        self.fake.changed.set()
        self.on_events(events)

    async def at_other(self, count: int) -> list[bytes]:
        """The next datagrams at the plain socket."""
        loop = asyncio.get_running_loop()
        arrived: list[bytes] = []
        readable = asyncio.Event()
        loop.add_reader(self.other.fileno(), readable.set)
        try:
            while len(arrived) < count:
                readable.clear()
                arrived += [datagram for train in self.other.receive_trains() for datagram in train.datagrams()]
                if len(arrived) < count:
                    await readable.wait()
        finally:
            loop.remove_reader(self.other.fileno())
        return arrived


@contextmanager
def stage() -> Iterator[Stage]:
    built = Stage()
    try:
        yield built
    finally:
        built.driver.close()
        built.other.close()


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    made: Callable[[], asyncio.AbstractEventLoop] = request.param
    return made


Loop = Callable[[], asyncio.AbstractEventLoop]


def test_what_arrives_is_fed_and_its_events_delivered(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:
            on.other.send(Train(on.address, b"hello", 5))
            await on.fake.until(lambda: bool(on.events))
            assert on.fake.received == [Train(on.other.local_address, b"hello", 5)]
            assert on.events == [["received 5"]]

    run(loop, test)


def test_flush_delivers_sends_and_sets_the_timer(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:
            on.fake.pending_events = ["a", "b"]
            on.fake.pending_trains = [Train(on.other.local_address, b"123456", 4)]
            due = on.fake.timer = time.monotonic() + 0.01
            on.driver.flush()
            assert on.events == [["a", "b"]]
            assert await on.at_other(2) == [b"1234", b"56"]
            await on.fake.until(lambda: ["timer"] in on.events)
            assert on.fake.timer_calls[-1] >= due

    run(loop, test)


def test_what_an_endpoint_has_ready_from_the_start_is_sent(loop: Loop) -> None:
    async def test() -> None:
        with UdpSocket(HOST) as other:
            fake = Fake()
            fake.pending_trains = [Train(other.local_address, b"hello", 5)]
            fake.pending_events = ["first"]
            events: list[str] = []
            driver = EndpointDriver(fake, UdpSocket(HOST), events.extend)
            assert events == []  # not before the constructor has returned
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert events == ["first"]
            driver.close()
            assert [train.data for train in other.receive_trains()] == [b"hello"]

    run(loop, test)


def test_many_scheduled_flushes_are_one_after_the_turn(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:
            for n in range(3):
                on.fake.pending_events.append(str(n))
                on.driver.schedule_flush()
            assert on.events == []
            await on.fake.until(lambda: bool(on.events))
            assert on.events == [["0", "1", "2"]]
            on.fake.pending_events.append("again")
            on.driver.schedule_flush()
            await on.fake.until(lambda: len(on.events) == 2)

    run(loop, test)


def test_a_timer_that_moves_earlier_is_followed(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:
            on.fake.timer = time.monotonic() + 3600.0
            on.driver.flush()
            on.fake.timer = time.monotonic() + 0.002
            on.driver.flush()
            await on.fake.until(lambda: on.events == [["timer"]])

    run(loop, test)


def test_a_timer_that_moved_later_still_comes(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:
            on.fake.timer = time.monotonic() + 0.002
            on.driver.flush()
            due = on.fake.timer = time.monotonic() + 0.02
            on.driver.flush()
            await on.fake.until(lambda: on.events == [["timer"]])
            assert on.fake.timer_calls[-1] >= due
            assert len(on.fake.timer_calls) <= 3  # one needless call, and no spinning until the time has come

    run(loop, test)


def test_what_the_application_does_in_its_callback_is_sent_at_once(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:

            def answer(_: list[str]) -> None:
                on.fake.pending_trains = [Train(on.other.local_address, b"answer", 6)]
                on.driver.flush()  # does no harm

            on.on_events = answer
            on.fake.pending_events = ["question"]
            on.driver.flush()
            assert not on.fake.pending_trains
            assert await on.at_other(1) == [b"answer"]

    run(loop, test)


def test_a_reply_to_a_single_datagram_is_sent_with_the_acknowledgement(loop: Loop) -> None:
    """The reply is made by a task that the event wakes: the driver sends after it, and not before."""

    async def test() -> None:
        with stage() as on:
            order: list[str] = []
            woken = asyncio.get_running_loop().create_future()
            next_train = on.fake.next_train

            def noted(now: float) -> Train | None:
                order.append("send")
                return next_train(now)

            async def reply() -> None:
                await woken
                order.append("reply")
                on.fake.pending_trains.append(Train(on.other.local_address, b"reply", 5))

            task = asyncio.create_task(reply())
            await asyncio.sleep(0)
            on.on_events = lambda _: woken.set_result(None)
            on.fake.next_train = noted  # type: ignore[method-assign]
            on.other.send(Train(on.address, b"hello", 5))
            assert await on.at_other(1) == [b"reply"]
            assert order[:2] == ["reply", "send"]
            await task

    run(loop, test)


def test_an_application_that_answers_events_with_events_leaves_the_loop_its_turns(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:

            def answer(_: list[str]) -> None:
                if len(on.events) < 5:
                    on.fake.pending_events.append("more")

            on.on_events = answer
            on.fake.pending_events = ["start"]
            on.driver.flush()
            assert on.events == [["start"]]
            await on.fake.until(lambda: len(on.events) == 5)

    run(loop, test)


def test_a_callback_that_fails_does_not_stop_the_endpoint(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:
            reported: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

            def fail(_: list[str]) -> None:
                on.fake.pending_trains = [Train(on.other.local_address, b"acknowledged", 12)]
                raise ZeroDivisionError

            on.on_events = fail
            on.other.send(Train(on.address, b"x", 1))
            assert await on.at_other(1) == [b"acknowledged"]
            assert [type(error) for error in reported] == [ZeroDivisionError]
            on.on_events = lambda events: None
            on.other.send(Train(on.address, b"xy", 2))
            await on.fake.until(lambda: ["received 2"] in on.events)

    run(loop, test)


def test_takes_a_bounded_number_of_trains_a_turn(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:
            for n in range(3 * TRAINS_A_TURN):
                on.other.send(Train(on.address, bytes(n + 1), n + 1))
            await on.fake.until(lambda: len(on.fake.received) == 3 * TRAINS_A_TURN)
            await on.fake.until(lambda: sum(map(len, on.events)) == 3 * TRAINS_A_TURN)
            assert max(map(len, on.events)) == TRAINS_A_TURN

    run(loop, test)


def test_takes_a_bounded_number_of_bytes_a_turn(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "BYTES_A_TURN", 5000)

    async def test() -> None:
        with stage() as on:
            for n in range(12):
                on.other.send(Train(on.address, bytes(1000 + n), 1000 + n))
            await on.fake.until(lambda: len(on.fake.received) == 12)
            await on.fake.until(lambda: sum(map(len, on.events)) == 12)
            assert max(map(len, on.events)) <= 5

    run(loop, test)


def test_keeps_what_the_kernel_has_no_room_for(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:
            sendto = on.driver.udp._sendto
            full = True
            attempts = 0

            def blocked(data: bytes, address: Address) -> None:
                nonlocal attempts
                attempts += 1
                if full and data != b"1":
                    on.fake.changed.set()
                    raise BlockingIOError(errno.EAGAIN, "made by the test")
                sendto(data, address)

            on.driver.udp._sendto = blocked
            on.driver.udp.gso = False
            to = on.other.local_address
            on.fake.pending_trains = [Train(to, b"123", 1), Train(to, b"4", 1), Train(to, b"5", 1)]
            on.fake.timer = time.monotonic() - 1.0  # the pacer would like to go on, too
            on.driver.flush()
            assert attempts == 2
            on.fake.pending_trains.append(Train(to, b"6", 1))
            on.driver.flush()
            assert len(on.fake.pending_trains) == 3  # not asked for more
            await on.fake.until(lambda: attempts > 2)
            full = False
            assert await on.at_other(6) == [b"1", b"2", b"3", b"4", b"5", b"6"]
            assert len(on.fake.timer_calls) < 100

    run(loop, test)


def test_close_sends_what_is_ready_and_ends_everything(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:
            on.fake.timer = time.monotonic() + 0.005
            on.driver.flush()
            on.driver.schedule_flush()
            on.fake.pending_trains = [Train(on.other.local_address, b"goodbye", 7)]
            on.driver.close()
            on.driver.close()
            assert on.driver.closed
            assert await on.at_other(1) == [b"goodbye"]
            on.fake.pending_events = ["too late"]
            on.driver.flush()
            on.driver.schedule_flush()
            with UdpSocket(*on.address) as again:  # the port is free
                on.other.send(Train(again.local_address, b"x", 1))
                await asyncio.sleep(0.02)  # past the timer that must not come
            assert on.events == []
            assert on.fake.timer_calls == []
            assert on.fake.received == []

    run(loop, test)


def test_one_that_is_disowned_leaves_socket_and_loop_alone(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on, stage() as witness:
            on.driver.disown()
            assert on.driver.closed
            on.fake.pending_trains = [Train(on.other.local_address, b"x", 1)]
            on.fake.pending_events = ["too late"]
            on.driver._unsent = on.fake.pending_trains[0]
            on.other.send(Train(on.address, b"for the owner", 13))
            witness.other.send(Train(witness.address, b"later", 5))
            await witness.fake.until(lambda: bool(witness.fake.received))
            on.driver._on_readable()
            on.driver._on_writable()
            on.driver.flush()
            on.driver.schedule_flush()
            on.driver.close()
            assert (on.events, on.fake.received, len(on.fake.pending_trains)) == ([], [], 1)
            assert [train.data for train in on.driver.udp.receive_trains()] == [b"for the owner"]
            asyncio.get_running_loop().remove_reader(on.driver.udp.fileno())
            on.driver.udp.close()

    run(loop, test)


def test_may_be_closed_from_its_callback(loop: Loop) -> None:
    async def test() -> None:
        with stage() as on:

            def leave(_: list[str]) -> None:
                on.fake.pending_trains = [Train(on.other.local_address, b"goodbye", 7)]
                on.driver.close()

            on.on_events = leave
            on.other.send(Train(on.address, b"x", 1))
            await on.fake.until(lambda: on.driver.closed)
            assert await on.at_other(1) == [b"goodbye"]

    run(loop, test)


# -- the real endpoint ------------------------------------------------------------------------------------------------

RECORD_BYTES = 50_000
TOTAL_BYTES = 5_000_000


class Side:
    """One real endpoint on a real socket, with its events."""

    def __init__(self, *, accepts: bool, seed: int, on_event: Callable[[Event], None], kernel_helps: bool) -> None:
        udp = UdpSocket(HOST, gso=kernel_helps, gro=kernel_helps)
        config = EndpointConfig(accepts=accepts, receive_buffer_bytes=udp.receive_buffer_bytes)
        self.endpoint = Endpoint(config, entropy=random.Random(seed).randbytes)
        self.on_event = on_event
        self.driver = EndpointDriver(self.endpoint, udp, self._take)

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self.on_event(event)


@pytest.mark.parametrize("kernel_helps", [True, False], ids=["trains", "singly"])
def test_two_real_endpoints_exchange_five_megabytes(loop: Loop, kernel_helps: bool) -> None:
    records = [random.Random(n).randbytes(RECORD_BYTES) for n in range(TOTAL_BYTES // RECORD_BYTES)]

    async def test() -> None:
        waiting = deque(records)
        received: list[bytes] = []
        reply: list[bytes] = []
        confirmed = 0
        closed: dict[str, Closed] = {}
        ended = asyncio.Event()

        def on_server(event: Event) -> None:
            if isinstance(event, Received):
                received.append(event.body)
                event.connection.consume(event.channel, len(event.body))
                event.connection.confirm(event.channel, event.record, 1)
                if event.last:
                    channel = event.connection.open_channel()
                    event.connection.send(channel, b"have all", last=True)
            elif isinstance(event, Closed):
                closed["server"] = event
                ended.set()

        def push() -> None:
            while waiting:
                try:
                    connection.send(channel, waiting[0], last=len(waiting) == 1)
                except SendBufferFullError:
                    return
                waiting.popleft()

        def on_client(event: Event) -> None:
            nonlocal confirmed
            if isinstance(event, Connected | Writable):
                push()
            elif isinstance(event, ChannelConfirmed):
                confirmed = event.sequence
            elif isinstance(event, Received):
                reply.append(event.body)
                event.connection.consume(event.channel, len(event.body))
                event.connection.close(client.driver.clock(), 0, "done")
            elif isinstance(event, Closed):
                closed["client"] = event

        server = Side(accepts=True, seed=1, on_event=on_server, kernel_helps=kernel_helps)
        client = Side(accepts=False, seed=2, on_event=on_client, kernel_helps=kernel_helps)
        try:
            connection = client.endpoint.connect(server.driver.udp.local_address, client.driver.clock())
            channel = connection.open_channel()
            client.driver.flush()
            await ended.wait()
        finally:
            client.driver.close()
            server.driver.close()
        assert received == records
        assert reply == [b"have all"]
        assert confirmed == len(records) - 1
        assert (closed["client"].origin, closed["server"].origin) == ("local", "peer")
        assert closed["server"].reason == "done"

    run(loop, test)


def test_a_real_connection_outlives_loss_and_a_nat_that_forgets_it(loop: Loop) -> None:
    """Each direction loses, doubles and reorders; halfway the server sees the client on another port."""
    records = [random.Random(n).randbytes(5000) for n in range(100)]
    settings = LinkSettings(loss=0.03, duplication=0.02, reordering=0.02, delay_s=0.001)

    def impair(direction: Direction, client: Address) -> Impairment:
        return ImpairedLink(settings, random.Random(direction))

    async def test() -> None:
        received: list[bytes] = []
        moved: list[Address] = []
        ended = asyncio.Event()

        def on_server(event: Event) -> None:
            if isinstance(event, Received):
                received.append(event.body)
                event.connection.consume(event.channel, len(event.body))
                if len(received) == 50:
                    relay.rebind()
            elif isinstance(event, PathChanged):
                moved.append(event.address)
            if moved and len(received) == 100:
                ended.set()

        server = Side(accepts=True, seed=3, on_event=on_server, kernel_helps=True)
        client = Side(accepts=False, seed=4, on_event=lambda event: None, kernel_helps=True)
        async with Relay.open((HOST, 0), server.driver.udp.local_address, impair=impair) as relay:
            try:
                connection = client.endpoint.connect(relay.address, client.driver.clock())
                channel = connection.open_channel()
                for record in records:
                    connection.send(channel, record)
                client.driver.schedule_flush()
                await ended.wait()
            finally:
                client.driver.close()
                server.driver.close()
        assert received == records
        assert len(moved) == 1
        assert relay.dropped["to_target impairment"] > 0

    run(loop, test)


class CountingLoop:
    """A fake event loop that records timers, and calls none."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self.callback: Any = None

    def call_later(self, delay_s: float, callback: Any) -> asyncio.TimerHandle:
        self.delays_s.append(delay_s)
        self.callback = callback
        return asyncio.TimerHandle(delay_s, callback, (), self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, _: asyncio.TimerHandle) -> None:
        pass


def make() -> tuple[CountingLoop, LoopTimer, list[int]]:
    loop = CountingLoop()
    calls: list[int] = []
    return loop, LoopTimer(loop, lambda: calls.append(1)), calls  # type: ignore[arg-type]


def test_only_a_time_that_moves_earlier_makes_a_new_timer() -> None:
    loop, timer, _ = make()
    timer.arm(10.0, 5.0)
    timer.arm(11.0, 5.0)
    timer.arm(10.0, 6.0)
    timer.arm(None, 6.0)
    timer.arm(math.inf, 6.0)
    timer.arm(9.9995, 6.0)
    assert loop.delays_s == [5.0]
    timer.arm(9.0, 6.0)
    assert loop.delays_s == [5.0, 3.0]


def test_never_means_no_timer_at_all() -> None:
    loop, timer, _ = make()
    timer.arm(None, 1.0)
    timer.arm(math.inf, 1.0)
    timer.cancel()
    assert loop.delays_s == []


@pytest.mark.parametrize(
    ("when", "delay_s"), [(0.0, 0.0), (7.0, 0.0), (7.0001, 0.001), (7.001, 0.001), (7.00101, 0.002), (9.0, 2.0)]
)
def test_rounds_up_to_what_loops_resolve(when: float, delay_s: float) -> None:
    loop, timer, _ = make()
    timer.arm(when, 7.0)
    assert loop.delays_s == [pytest.approx(delay_s, abs=0.0011 if when == 7.001 else 1e-9)]


def test_can_be_armed_again_after_it_went_off_and_after_a_cancel() -> None:
    loop, timer, calls = make()
    timer.arm(2.0, 1.0)
    loop.callback()
    assert calls == [1]
    timer.arm(3.0, 2.0)
    timer.cancel()
    timer.arm(4.0, 2.0)
    assert loop.delays_s == [1.0, 1.0, 2.0]


async def fires_in_order() -> list[str]:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    fired: list[str] = []

    def soon() -> None:
        fired.append("soon")

    def late() -> None:
        fired.append("late")
        done.set()

    now = time.monotonic()
    moving = LoopTimer(loop, soon)
    moving.arm(now + 60.0, now)
    moving.arm(now + 0.002, now)
    cancelled = LoopTimer(loop, lambda: fired.append("cancelled"))
    cancelled.arm(now + 0.001, now)
    cancelled.cancel()
    now = time.monotonic()
    LoopTimer(loop, late).arm(now + 0.03, now)
    await asyncio.wait_for(done.wait(), 5.0)
    assert time.monotonic() >= now + 0.029
    return fired


def test_fires_on_a_real_loop() -> None:
    assert asyncio.run(fires_in_order()) == ["soon", "late"]
