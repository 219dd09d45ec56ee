"""Busy polling: when it begins and ends, and that messages are the same with and without it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

import pytest
from tests.net.running import both_loops, broker_in_thread, run

from godwit.client.message import Message
from godwit.net import blocking
from godwit.net import driver as driver_module
from godwit.net.client import connect
from godwit.net.driver import BRISK_READS, BRISK_S, CROWDED_READS, CROWDED_S, LATE_READS, BusyPolling, EndpointDriver
from godwit.net.udp import UdpSocket
from godwit.transport.events import Train

HOST = "127.0.0.1"
LONG_S = 120.0
ROUNDS = 12
BRISK = BRISK_S / 2
LOOK_S = 5e-6


class Yields:
    """Counts the calls that let other processes run."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def yields(monkeypatch: pytest.MonkeyPatch) -> Yields:
    counter = Yields()
    monkeypatch.setattr(driver_module, "_yield_processor", counter)
    return counter


def brisk(reads: int = BRISK_READS) -> BusyPolling:
    """Return a decision after this many brisk datagrams."""
    polling = BusyPolling()
    for _ in range(reads):
        polling.handle_read(BRISK, True)
    return polling


def test_polls_after_many_brisk_datagrams_until_none_comes(yields: Yields) -> None:
    polling = brisk()
    assert polling.begin(7.0)
    now = 7.0
    while polling.look_again(now):
        now += LOOK_S
    assert 7.0 + BRISK_S <= now < 7.0 + BRISK_S + 2 * LOOK_S
    assert yields.count == pytest.approx(BRISK_S / LOOK_S, abs=1)


def test_a_datagram_begins_a_new_time(yields: Yields) -> None:
    polling = brisk()
    now = 7.0
    for _ in range(10):
        assert polling.begin(now)
        now += BRISK
        assert polling.look_again(now)
        polling.handle_read(BRISK, True)
    assert yields.count == 10


def test_does_not_poll_before_enough_datagrams_came(yields: Yields) -> None:
    assert not brisk(BRISK_READS - 1).begin(7.0)
    polling = brisk(1000)
    polling.handle_read(0.0, False)  # many at once: a bulk transfer
    for _ in range(BRISK_READS - 1):
        polling.handle_read(BRISK, True)
        assert not polling.begin(7.0)
        assert not polling.look_again(7.0)
    polling.handle_read(BRISK, True)
    assert polling.begin(7.0)
    assert not yields.count


@pytest.mark.usefixtures("yields")
@pytest.mark.parametrize("gap_s", [BRISK_S, LONG_S], ids=["late", "very late"])
def test_a_single_late_datagram_does_not_end_it_and_a_second_one_does(gap_s: float) -> None:
    polling = brisk(1000)
    polling.handle_read(gap_s, True)
    assert polling.begin(7.0)
    polling.handle_read(gap_s, True)
    for _ in range(LATE_READS - 1):
        assert not polling.begin(7.0)
        polling.handle_read(BRISK, True)
    assert not polling.begin(7.0)
    polling.handle_read(BRISK, True)
    assert polling.begin(7.0)


@pytest.mark.usefixtures("yields")
def test_does_not_begin_when_many_are_late() -> None:
    """Datagrams at random times, of which one in eight or more is late."""
    rng = random.Random(84)
    for rate in (500, 2_000, 5_000):
        polling = BusyPolling()
        for _ in range(20_000):
            polling.handle_read(rng.expovariate(rate), True)
            assert not polling.begin(7.0), rate


def test_stops_for_a_while_when_something_else_needs_the_processor(yields: Yields) -> None:
    polling = brisk()
    assert polling.begin(7.0)
    assert polling.look_again(7.0 + CROWDED_S / 2)
    assert not polling.look_again(7.0 + CROWDED_S * 2)
    assert yields.count == 1
    polling.handle_read(LONG_S, True)  # a pause does not end it earlier
    for _ in range(CROWDED_READS + BRISK_READS - 1):
        polling.handle_read(BRISK, True)
        assert not polling.begin(8.0)
    polling.handle_read(BRISK, True)
    assert polling.begin(8.0)


@pytest.mark.usefixtures("yields")
def test_a_slow_reply_of_the_application_is_not_a_crowded_processor() -> None:
    polling = brisk()
    assert polling.begin(7.0)
    assert not polling.look_again(8.0)  # too late for this datagram
    polling.handle_read(BRISK, True)
    assert polling.begin(8.0)
    assert polling.look_again(8.0)


def test_never_polls_on_a_system_that_cannot_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_yield_processor", None)
    polling = brisk()
    assert not polling.begin(7.0)
    assert not polling.look_again(7.0)


# -- in the event loop ------------------------------------------------------------------------------------------------


class Sink:
    """An endpoint that only counts."""

    def __init__(self) -> None:
        self.received = 0
        self.pending_events: list[str] = []

    def receive(self, train: Train, now: float) -> None:
        self.received += 1

    def handle_timers(self, now: float) -> None: ...

    def events(self) -> list[str]:
        return []

    def next_train(self, now: float) -> Train | None:
        return None

    def next_timer(self) -> float | None:
        return None


async def send_brisk(sink: Sink, driver: EndpointDriver[str], yields: Yields) -> None:
    """Send datagrams, each after the last has been read, until the driver polls. The first one is not brisk."""
    with UdpSocket(HOST) as other:
        for number in range(1, BRISK_READS + 2):
            assert yields.count == 0
            other.send(Train(driver.udp.local_address, b"x", 1))
            while sink.received < number:
                await asyncio.sleep(0)
    while not yields.count:
        await asyncio.sleep(0)


@both_loops
def test_the_loop_stays_awake_for_a_moment_after_each_datagram(
    loop: Callable[[], asyncio.AbstractEventLoop], yields: Yields
) -> None:
    now = 7.0
    step_s = 0.0

    def clock() -> float:
        nonlocal now
        now += step_s
        return now

    async def test() -> None:
        nonlocal step_s
        sink = Sink()
        driver = EndpointDriver(sink, UdpSocket(HOST), lambda _: None, clock=clock)
        await send_brisk(sink, driver, yields)
        while yields.count < 100:  # the clock is stopped: it would poll for ever
            await asyncio.sleep(0)
        step_s = LOOK_S
        while driver._is_polling:
            await asyncio.sleep(0)
        count = yields.count
        assert count <= 101 + BRISK_S / LOOK_S
        await asyncio.sleep(0.01)
        assert yields.count == count
        driver.close()

    run(test, loop, deadline_s=LONG_S)


@both_loops
def test_a_driver_that_is_closed_does_not_poll(loop: Callable[[], asyncio.AbstractEventLoop], yields: Yields) -> None:
    async def test() -> None:
        sink = Sink()
        driver = EndpointDriver(sink, UdpSocket(HOST), lambda _: None, clock=lambda: 7.0)
        await send_brisk(sink, driver, yields)
        driver.close()
        count = yields.count
        while driver._is_polling:
            await asyncio.sleep(0)
        assert yields.count == count

    run(test, loop, deadline_s=LONG_S)


# -- with a broker ----------------------------------------------------------------------------------------------------


def poll_always(monkeypatch: pytest.MonkeyPatch, *, is_always: bool) -> None:
    """Poll after every datagram, but not for long, or never."""
    monkeypatch.setattr(driver_module, "BRISK_S", 50e-6)
    monkeypatch.setattr(driver_module, "CROWDED_S", LONG_S)
    monkeypatch.setattr(driver_module, "BRISK_READS", -1_000_000 if is_always else 1_000_000)


def payloads(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, 1, 100, 1300, 5_000, 100_000])) for _ in range(ROUNDS)]


async def exchange(url: str, qos: int, sent: list[bytes]) -> list[Message]:
    """Send each message to a client that sends it back. Return the replies."""
    async with (
        connect(url) as client,
        connect(url) as other,
        client.subscribe("pong") as replies,
        other.subscribe("ping") as messages,
    ):
        publisher = client.publisher("ping", qos=qos)
        answers = other.publisher("pong", qos=qos)

        async def echo() -> None:
            async for message in messages:
                answers.send(message.payload)

        echoing = asyncio.create_task(echo())
        back = []
        for payload in sent:
            publisher.send(payload)
            back.append(await anext(replies))
        echoing.cancel()
        await asyncio.wait([echoing])
    return back


def exchange_blocking(url: str, qos: int, sent: list[bytes]) -> list[Message]:
    """Do the same with blocking clients."""
    is_ready = threading.Event()

    def echo() -> None:
        with blocking.connect(url) as client, client.subscribe("ping") as messages:
            publisher = client.publisher("pong", qos=qos)
            is_ready.set()
            for _, message in zip(sent, messages, strict=False):
                publisher.send(message.payload)
            publisher.flush(LONG_S)

    thread = threading.Thread(target=echo)
    thread.start()
    assert is_ready.wait(LONG_S)
    with blocking.connect(url) as client, client.subscribe("pong") as messages:
        publisher = client.publisher("ping", qos=qos)
        replies = iter(messages)
        back = []
        for payload in sent:
            publisher.send(payload)
            back.append(next(replies))
        thread.join(LONG_S)
    return back


def compare(polled: list[Message], waited: list[Message], sent: list[bytes]) -> None:
    for messages in (polled, waited):
        assert [message.payload for message in messages] == sent
        assert [message.topic for message in messages] == ["pong"] * ROUNDS
    assert [message.qos for message in polled] == [message.qos for message in waited]


@pytest.mark.parametrize("qos", [0, 1, 2])
@both_loops
def test_messages_are_the_same_with_and_without_polling(
    loop: Callable[[], asyncio.AbstractEventLoop], qos: int, yields: Yields, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = 11
    print(f"seed {seed}")
    sent = payloads(seed)
    results: list[list[Message]] = []

    async def test() -> None:
        results.append(await exchange(url, qos, sent))

    poll_always(monkeypatch, is_always=True)
    with broker_in_thread() as url:
        run(test, loop, deadline_s=2 * LONG_S)
        assert yields.count >= ROUNDS
    poll_always(monkeypatch, is_always=False)
    yields.count = 0
    with broker_in_thread() as url:
        run(test, loop, deadline_s=2 * LONG_S)
    assert yields.count == 0
    compare(results[0], results[1], sent)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_blocking_client_gets_the_same_with_and_without_polling(
    qos: int, yields: Yields, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = 12
    print(f"seed {seed}")
    sent = payloads(seed)
    poll_always(monkeypatch, is_always=True)
    with broker_in_thread() as url:
        polled = exchange_blocking(url, qos, sent)
        assert yields.count >= ROUNDS
    poll_always(monkeypatch, is_always=False)
    yields.count = 0
    with broker_in_thread() as url:
        waited = exchange_blocking(url, qos, sent)
    assert yields.count == 0
    compare(polled, waited, sent)
