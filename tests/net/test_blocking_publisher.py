"""Publishers without asyncio: order, back-pressure, refusals, several threads."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from tests.net.interrupting import Interrupter
from tests.net.running import broker_in_thread
from tests.net.test_publisher import OPEN_BUT_SECRET

from godwit.errors import AccessError, BufferFullError, RecordTooLargeError, UsageError
from godwit.net import blocking_publisher as publisher_module
from godwit.net.blocking import connect

DEADLINE_S = 120.0


def test_messages_arrive_in_order_and_flush_waits_for_all() -> None:
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a", timeout_s=DEADLINE_S) as messages:
        publisher = client.publisher("a", qos=2)
        for number in range(5000):
            publisher.send(str(number))
        publisher.flush(DEADLINE_S)
        assert publisher.unconfirmed == 0
        assert (publisher.topic, publisher.qos, publisher.reached) == ("a", 2, 1)
        assert [int(next(messages).payload) for _ in range(5000)] == list(range(5000))


def test_several_threads_share_a_publisher() -> None:
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a", timeout_s=DEADLINE_S) as messages:
        publisher = client.publisher("a")

        def work(worker: int) -> None:
            for number in range(500):
                publisher.send(f"{worker} {number}")

        workers = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(DEADLINE_S)
        publisher.flush(DEADLINE_S)
        got = [next(messages).payload.split() for _ in range(2000)]
        for number in range(4):
            mine = [int(value) for worker, value in got if int(worker) == number]
            assert mine == list(range(500))


def test_back_pressure_reaches_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "QUEUE_BYTES", 10_000)
    with broker_in_thread() as url, connect(url, send_buffer_bytes=50_000) as client:
        publisher = client.publisher("a")
        fulls = sent = 0
        while sent < 1000:
            try:
                publisher.send(bytes(1000))
                sent += 1
            except BufferFullError:
                fulls += 1
                publisher.ready(DEADLINE_S)
        publisher.ready(DEADLINE_S)
        publisher.flush(DEADLINE_S)
        assert fulls > 5
        assert publisher.unconfirmed == 0


def test_waiting_has_a_limit_and_the_end_tells_what_was_lost() -> None:
    with broker_in_thread() as url:
        client = connect(url, send_buffer_bytes=20_000)
    # The broker is gone.
    publisher = client.publisher("a")
    with suppress(BufferFullError):
        while True:
            publisher.send(bytes(100_000))
    with pytest.raises(TimeoutError, match="messages not sent within"):
        publisher.ready(0.01)
    with pytest.raises(TimeoutError):
        publisher.flush(0.01)
    waiting: list[BaseException] = []

    def wait() -> None:
        try:
            publisher.ready()
        except UsageError as error:
            waiting.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert client.close(timeout_s=0) is False
    waiter.join(DEADLINE_S)
    assert len(waiting) == 1


def test_refused_and_too_large_messages_are_reported_and_others_continue() -> None:
    with broker_in_thread(access=OPEN_BUT_SECRET, max_message_bytes=100_000) as url, connect(url) as client:
        closed = client.publisher("closed/a")
        closed.send(b"x")
        with pytest.raises(AccessError):
            closed.flush(DEADLINE_S)
        with client.subscribe("open/a", timeout_s=DEADLINE_S) as messages:
            publisher = client.publisher("open/a")
            publisher.send(b"1")
            publisher.send(bytes(100_001))
            with pytest.raises(RecordTooLargeError):
                publisher.flush(DEADLINE_S)
            publisher.send(b"2")
            publisher.flush(DEADLINE_S)
            assert [next(messages).payload for _ in range(2)] == [b"1", b"2"]
        with pytest.raises(UsageError, match="give bytes"):
            publisher.send({5})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_ctrl_c_at_any_step_of_send_sends_all_or_nothing_and_hangs_nothing() -> None:
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a", timeout_s=DEADLINE_S) as messages:
        publisher = client.publisher("a")
        step = 0
        has_raised = True
        while has_raised:
            step += 1
            interrupter = Interrupter(step)
            put = publisher._put
            with suppress(KeyboardInterrupt):
                interrupter.run(lambda: publisher.send(b"maybe"))
            has_raised = interrupter.has_raised
            maybe = publisher._put - put
            publisher.flush(DEADLINE_S)  # also messages that were queued before the thread was woken
            publisher.send(b"surely")
            publisher.flush(DEADLINE_S)
            assert publisher.unconfirmed == 0
            assert [messages.get(DEADLINE_S).payload for _ in range(maybe + 1)] == [b"maybe"] * maybe + [b"surely"]
        assert step > 8
