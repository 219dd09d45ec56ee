"""A blocking client that its callers' threads run, compared with one that the loop's thread runs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from tests.net.interrupting import Interrupter
from tests.net.running import broker_in_thread

from godwit.client.message import Message
from godwit.errors import KickedError, UsageError
from godwit.net import direct, driver, loop, subscription
from godwit.net.blocking import BlockingClient, connect
from godwit.net.subscription import BlockingSubscription

LONG_S = 120.0
ROUNDS = 30


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """Set the usual handlers of signals: Spark, in the same process, leaves its own one for Ctrl-C."""
    former = {number: handler for number in signal.valid_signals() if callable(handler := signal.getsignal(number))}
    for number in former:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the choice of the path independent of the speed of the machine: a loop that is paused stays paused."""
    monkeypatch.setattr(subscription, "BRISK_S", LONG_S)
    monkeypatch.setattr(subscription, "DIRECT_S", LONG_S)
    monkeypatch.setattr(direct, "DIRECT_S", LONG_S)
    monkeypatch.setattr(direct, "_LEAVE_S", LONG_S)
    monkeypatch.setattr(loop, "PAUSE_S", LONG_S)
    monkeypatch.setattr(loop, "LONGEST_PAUSE_S", LONG_S)
    monkeypatch.setattr(loop, "BUSY_S", 0.0)


@contextmanager
def two_clients() -> Iterator[tuple[BlockingClient, BlockingSubscription, BlockingClient, str]]:
    """Yield a client with a subscription to `a`, another client that publishes there, and the URL of the broker."""
    with (
        broker_in_thread() as url,
        connect(url) as other,
        connect(url, name="direct") as client,
        client.subscribe("a") as messages,
    ):
        yield client, messages, other, url


def pause(client: BlockingClient, messages: BlockingSubscription, other: BlockingClient) -> None:
    """Have the client's loop paused: after the second of two messages that came quickly."""
    for _ in range(2):
        other.publish("a", "first")
        assert messages.get().payload == b"first"
    assert client._thread.is_paused


def payloads(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, 1, 100, 1300, 5_000, 100_000])) for _ in range(ROUNDS)]


def exchange(url: str, qos: int, sent: list[bytes]) -> tuple[list[Message], list[int]]:
    """Send each message to a client that sends it back. Return the replies, and both counts of `waits`."""
    waits: list[int] = []
    is_ready = threading.Event()

    def echo() -> None:
        with connect(url) as client, client.subscribe("ping") as messages:
            publisher = client.publisher("pong", qos=qos)
            is_ready.set()
            for _, message in zip(sent, messages, strict=False):
                publisher.send(message.payload)
            publisher.flush(LONG_S)
            waits.append(client._driver.waits)

    thread = threading.Thread(target=echo)
    thread.start()
    assert is_ready.wait(LONG_S)
    with connect(url) as client, client.subscribe("pong") as messages:
        publisher = client.publisher("ping", qos=qos)
        replies = iter(messages)
        back = []
        for payload in sent:
            publisher.send(payload)
            back.append(next(replies))
        thread.join(LONG_S)
        waits.append(client._driver.waits)
    return back, waits


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.usefixtures("patient")
def test_both_paths_deliver_the_same(qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = 7
    print(f"seed {seed}")
    sent = payloads(seed)
    with broker_in_thread() as url:
        fast, waits = exchange(url, qos, sent)
        assert min(waits) >= ROUNDS - 3  # the first two waits decide
        monkeypatch.setattr(subscription, "BRISK_S", 0.0)
        slow, waits = exchange(url, qos, sent)
        assert waits == [0, 0]
    for messages in (fast, slow):
        assert [message.payload for message in messages] == sent
        assert [message.topic for message in messages] == ["pong"] * ROUNDS
    assert [message.qos for message in fast] == [message.qos for message in slow]
    assert [message.retained for message in fast] == [message.retained for message in slow]


def test_messages_that_follow_quickly_are_received_by_the_callers_thread() -> None:
    """With the real time limits. A starved machine may be too slow for them for a while."""
    with broker_in_thread() as url:
        ends = time.monotonic() + 2 * LONG_S
        waits = [0, 0]
        while min(waits) == 0:
            assert time.monotonic() < ends
            back, waits = exchange(url, 1, [b"x"] * 500)
            assert len(back) == 500


@pytest.mark.usefixtures("patient")
def test_ctrl_c_at_any_step_of_a_direct_wait_loses_no_message() -> None:
    with two_clients() as (client, messages, other, _):
        pause(client, messages, other)
        got: list[int] = []
        step = 0
        has_raised = True
        while has_raised:
            step += 1
            waits = client._driver.waits
            other.publish("a", str(step))
            interrupter = Interrupter(step)
            with suppress(KeyboardInterrupt):
                got.append(int(interrupter.run(messages.get).payload))
            has_raised = interrupter.has_raised
            if len(got) < step:
                got.append(int(messages.get().payload))
            assert got == list(range(1, step + 1))
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert step > 30
        assert client._driver.waits > waits
        assert client.ping() > 0


@pytest.mark.usefixtures("patient")
def test_ctrl_c_at_any_step_of_a_direct_send_sends_all_or_nothing() -> None:
    with two_clients() as (client, messages, other, _), other.subscribe("b", timeout_s=LONG_S) as sent:
        publisher = client.publisher("b")
        pause(client, messages, other)
        step = 0
        has_raised = True
        while has_raised:
            step += 1
            other.publish("a", "next")
            assert messages.get().payload == b"next"
            interrupter = Interrupter(step)
            with suppress(KeyboardInterrupt):
                interrupter.run(lambda: publisher.send(b"maybe"))
            has_raised = interrupter.has_raised
            publisher.send(b"surely")
            got = [sent.get().payload]
            if got == [b"maybe"]:
                got.append(sent.get().payload)
            assert got[-1] == b"surely"
            publisher.flush(LONG_S)
            assert publisher.unconfirmed == 0
            assert len(got) == 2 or has_raised
            pause(client, messages, other)
        assert step > 20


def test_another_thread_is_served_while_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "BRISK_S", LONG_S)
    monkeypatch.setattr(loop, "BUSY_S", 0.0)
    monkeypatch.setattr(loop, "PAUSE_S", LONG_S)
    monkeypatch.setattr(loop, "LONGEST_PAUSE_S", LONG_S)
    with two_clients() as (client, messages, other, _):
        pause(client, messages, other)
        got: list[bytes] = []
        waiting = threading.Thread(target=lambda: got.append(messages.get().payload))
        waiting.start()
        for number in range(20):
            assert client.publish("b", str(number), timeout_s=LONG_S) == 0
        other.publish("a", "last")
        waiting.join(LONG_S)
        assert got == [b"last"]


@pytest.mark.usefixtures("patient")
def test_several_threads_share_a_paused_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "DIRECT_S", 0.005)
    monkeypatch.setattr(direct, "_LEAVE_S", 0.001)
    with two_clients() as (client, messages, other, _):
        pause(client, messages, other)
        got: list[int] = []

        def take() -> None:
            while (payload := messages.get().payload) != b"end":
                got.append(int(payload))

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(200):
            other.publish("a", str(number))
        for _ in threads:
            other.publish("a", "end")
        for thread in threads:
            thread.join(LONG_S)
        assert sorted(got) == list(range(200))


@pytest.mark.usefixtures("patient")
def test_a_time_limit_holds_while_the_loop_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "DIRECT_S", 0.005)
    monkeypatch.setattr(subscription, "DIRECT_S", 0.005)
    with two_clients() as (client, messages, other, _):
        for timeout_s in (0.0, 0.001, 0.02):
            pause(client, messages, other)
            with pytest.raises(TimeoutError):
                messages.get(timeout_s)
        other.publish("a", "x")
        assert messages.get(LONG_S).payload == b"x"


def test_the_loop_continues_without_a_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "BRISK_S", LONG_S)
    monkeypatch.setattr(loop, "BUSY_S", 0.0)
    with two_clients() as (client, messages, other, _):
        for _ in range(3):
            other.publish("a", "x")
            messages.get()
        ends = time.monotonic() + LONG_S
        while client._thread.is_paused:
            assert time.monotonic() < ends
            time.sleep(0.001)
        received = client.statistics.packets_received
        other.publish("a", "y")
        while client.statistics.packets_received == received:  # without a call
            assert time.monotonic() < ends
            time.sleep(0.001)
        assert messages.get(LONG_S).payload == b"y"


@pytest.mark.usefixtures("patient")
def test_a_confirm_that_waits_for_a_reply_is_sent_when_polling_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread polls first, and keeps the confirm for the next reply. None comes, and no message either."""
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(driver, "_yield_processor", look)
    monkeypatch.setattr(driver, "BRISK_READS", -1_000_000)
    monkeypatch.setattr(driver, "CROWDED_S", LONG_S)
    with two_clients() as (client, messages, other, _):
        publisher = client.publisher("b")
        pause(client, messages, other)
        publisher.send("the reply")
        assert client._thread.is_paused
        looks = 0
        received: list[Message] = []
        waiting = threading.Thread(target=lambda: received.append(messages.get()))
        waiting.start()
        ends = time.monotonic() + LONG_S
        while not other.cursors("direct")[0].idle:
            assert time.monotonic() < ends
        assert looks
        assert client._thread.is_paused  # nothing but the waiting thread can have sent it
        other.publish("a", "next")
        waiting.join(LONG_S)
        assert [message.payload for message in received] == [b"next"]


@pytest.mark.usefixtures("patient")
def test_many_messages_after_a_wait_are_sent_in_batches() -> None:
    with two_clients() as (client, messages, other, _), other.subscribe("b", timeout_s=LONG_S) as sent:
        publisher = client.publisher("b")
        pause(client, messages, other)
        packets = client.statistics.packets_sent
        for number in range(500):
            publisher.send(str(number))
        assert [int(next(sent).payload) for _ in range(500)] == list(range(500))
        publisher.flush(LONG_S)
        assert client.statistics.packets_sent - packets < 250


@pytest.mark.usefixtures("patient")
def test_a_direct_send_raises_the_errors_of_its_message() -> None:
    with two_clients() as (client, messages, other, _):
        publisher = client.publisher("b")
        pause(client, messages, other)
        with pytest.raises(UsageError, match="give bytes"):
            publisher.send({5})  # type: ignore[arg-type]
        publisher.send({"json": True})
        publisher.flush(LONG_S)
        assert publisher.unconfirmed == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", ["SIGINT", "SIGALRM", "SIGTERM"])
def test_signal_handlers_of_the_application_exclude_it(name: str) -> None:
    number = getattr(signal, name)
    handled: list[int | None] = []
    with two_clients() as (client, messages, other, _):
        pause(client, messages, other)
        before = signal.signal(number, lambda *_: handled.append(client.publish("b", "from the handler")))
        try:
            other.publish("a", "x")
            waits = client._driver.waits
            assert messages.get().payload == b"x"
            assert client._driver.waits == waits
            timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), number))
            timer.start()
            while not handled:
                with suppress(TimeoutError):
                    messages.get(0.1)
            assert handled == [0]
            timer.join()
        finally:
            signal.signal(number, before)


@pytest.mark.usefixtures("patient")
def test_a_callback_may_not_call_the_client() -> None:
    with two_clients() as (client, messages, other, _):
        pause(client, messages, other)
        with pytest.raises(UsageError, match="may not call its own client"):
            client._driver.wait(lambda: bool(client.publish("b", "x")))
        pause(client, messages, other)
        with pytest.raises(UsageError, match="may not call its own client"):
            client._driver.wait(lambda: bool(messages.get()))
        assert client.ping() > 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["kick", "leave"])
def test_a_subscription_of_a_paused_client_ends(way: str) -> None:
    with two_clients() as (client, messages, other, _):
        pause(client, messages, other)
        if way == "kick":
            other.kick("direct", "a", reason="enough")
            with pytest.raises(KickedError, match="enough"):
                messages.get()
        else:
            messages.close()
            with pytest.raises(UsageError, match="was left"):
                messages.get()


@pytest.mark.usefixtures("patient")
def test_a_paused_client_can_be_closed() -> None:
    def close() -> None:
        with two_clients() as (client, messages, other, _):
            pause(client, messages, other)
            thread = client._thread._thread
            assert client.close()
            assert not thread.is_alive()
            messages.get()

    with pytest.raises(UsageError, match="closed"):
        close()


FORKED = """
import os, sys, godwit
from godwit.errors import ForkedError
from godwit.net import loop, subscription

subscription.BRISK_S = loop.PAUSE_S = loop.LONGEST_PAUSE_S = 60.0
loop.BUSY_S = 0.0
with godwit.sync.connect(sys.argv[1]) as other, godwit.sync.connect(sys.argv[1]) as client:
    with client.subscribe("a") as messages:
        publisher = client.publisher("b")
        for _ in range(4):
            other.publish("a", b"x")
            messages.get()
        assert client._thread.is_paused
        pid = os.fork()
        if pid == 0:
            refused = 0
            for call in (messages.get, lambda: publisher.send(b"x"), client.ping):
                try:
                    call()
                except ForkedError:
                    refused += 1
            os._exit(0 if refused == 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        other.publish("a", b"y")
        assert messages.get().payload == b"y"
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_does_not_use_a_paused_client() -> None:
    with broker_in_thread() as url:
        program = [sys.executable, "-c", FORKED, url]
        done = subprocess.run(program, capture_output=True, text=True, timeout=2 * LONG_S, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
