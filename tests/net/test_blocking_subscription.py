"""Subscriptions without asyncio: plain iterators, with a limit on the waiting if wanted."""

from __future__ import annotations

import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.net.interrupting import Interrupter
from tests.net.running import broker_in_thread

from godwit.client.message import Message
from godwit.errors import KickedError, UsageError
from godwit.net.blocking import BlockingClient, connect
from godwit.net.subscription import BlockingSubscription

LONG_S = 120.0
never_awaited = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


def arrived(messages: BlockingSubscription) -> None:
    """Wait until the client has a record that the application has not asked for yet."""
    core = messages._inner._core
    assert core is not None
    while not core.has_records:
        messages._thread.call(_turn())


async def _turn() -> None:
    """One turn of the loop: whatever is ready happens."""


def test_a_plain_loop_over_messages() -> None:
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a", "b", timeout_s=LONG_S) as messages:
        assert set(messages.filters) == {"a", "b"}
        for number in range(10):
            client.publish("a", str(number))
        got = []
        for message in messages:
            got.append(int(message.payload))
            if len(got) == 4:
                break
        got.append(int(next(messages).payload))
        got.append(int(messages.get().payload))
        for message in messages:
            got.append(int(message.payload))
            if len(got) == 10:
                break
        assert got == list(range(10))
        assert messages.missed == 0
        assert messages.position == 10


def test_lists_as_they_came() -> None:
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a", timeout_s=LONG_S) as messages:
        publisher = client.publisher("a")
        for number in range(1000):
            publisher.send(str(number))
        batches = []
        for batch in messages.batches():
            batches.append(batch)
            if sum(map(len, batches)) == 1000:
                break
        assert [int(message.payload) for batch in batches for message in batch] == list(range(1000))
        assert len(batches) < 500
        with client.subscribe("b", timeout_s=0.001) as nothing:
            assert list(nothing.batches()) == []


def test_waiting_has_a_limit_and_loses_nothing() -> None:
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a") as messages:
        for number in range(20):
            with pytest.raises(TimeoutError):
                messages.get(0.001)
            client.publish("a", str(number))
            assert int(messages.get(LONG_S).payload) == number
        with client.subscribe("b", timeout_s=0.001) as nothing:
            assert list(nothing) == []
            with pytest.raises(StopIteration):
                next(nothing)


def test_threads_share_the_messages() -> None:
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a", timeout_s=LONG_S) as messages:
        got: list[int] = []

        def read() -> None:
            for message in messages:
                if message.payload == b"end":
                    break
                got.append(int(message.payload))

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        publisher = client.publisher("a")
        for number in range(200):
            publisher.send(str(number))
            if number % 20 == 0:
                publisher.flush()
        for _ in readers:
            publisher.send(b"end")
        for reader in readers:
            reader.join(LONG_S)
        assert sorted(got) == list(range(200))


class BetweenTwoLooks:
    """The asyncio subscription, for which another fetch ends just after the caller has looked and found nothing."""

    def __init__(self, messages: BlockingSubscription) -> None:
        self._inner = messages._inner
        self._fetch: Callable[[], None] = lambda: messages._thread.call(self._inner._fetch_more(), LONG_S)
        self.is_due = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def rest(self) -> Iterator[Message]:
        rest = self._inner._rest
        if self.is_due:
            self.is_due = False
            self._fetch()
        return rest


@pytest.mark.parametrize("way", ["get", "next", "iterate", "batches"])
def test_what_an_earlier_fetch_brings_in_between_is_handed_out(way: str) -> None:
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a", timeout_s=LONG_S) as messages:
        for number in range(3):
            client.publish("a", str(number))
        messages._inner = BetweenTwoLooks(messages)  # type: ignore[assignment]
        ways: dict[str, Callable[[], Message]] = {
            "get": lambda: messages.get(LONG_S),
            "next": lambda: next(messages),
            "iterate": lambda: next(iter(messages)),
            "batches": lambda: next(messages.batches())[0],
        }
        assert [ways[way]().payload for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_fetch_that_ends_at_its_limit_is_followed_by_the_next_one() -> None:
    """Its limit and its end are watched in one place: the next wait never meets the one before."""
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a") as messages:
        for _ in range(300):
            with pytest.raises(TimeoutError, match="nothing arrived within 0 s"):
                messages.get(0.0)
        client.publish("a", b"1")
        assert messages.get(LONG_S).payload == b"1"


SEED = 20_13


@pytest.mark.parametrize("way", ["get", "iterate", "batches"])
def test_threads_with_tiny_limits_get_every_message_exactly_once(way: str) -> None:
    count, threads = 3000, 4
    print(f"seed {SEED}")
    got: list[list[int]] = [[] for _ in range(threads)]
    errors: list[BaseException] = []
    ended = threading.Event()
    with broker_in_thread() as url, connect(url) as client, client.subscribe("a", timeout_s=0.0005) as messages:

        def read(number: int) -> None:
            rng = random.Random(SEED + number)
            try:
                while not ended.is_set():
                    if way == "iterate":
                        found = list(messages)
                    elif way == "batches":
                        found = [message for batch in messages.batches() for message in batch]
                    else:
                        try:
                            found = [messages.get(rng.choice([0.0, 0.0001, 0.001, 0.003]))]
                        except TimeoutError:
                            continue
                    got[number] += [message.offset for message in found if message.offset is not None]
                    if sum(map(len, got)) >= count:
                        ended.set()
            except BaseException as error:
                errors.append(error)
                ended.set()

        readers = [threading.Thread(target=read, args=(number,)) for number in range(threads)]
        for reader in readers:
            reader.start()
        rng = random.Random(SEED)
        publisher = client.publisher("a")
        for number in range(count):
            publisher.send(str(number))
            if rng.random() < 0.1:
                publisher.flush()
        publisher.flush()
        ended.wait(LONG_S)
        ended.set()
        for reader in readers:
            reader.join(LONG_S)
        assert errors == []
        assert sorted(offset for found in got for offset in found) == list(range(count))


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


@never_awaited
@pytest.mark.parametrize("way", ["get", "next", "iterate", "batches"])
def test_ctrl_c_at_any_step_loses_no_message(way: str) -> None:
    def prepare(messages: BlockingSubscription) -> Callable[[], Message]:
        if way == "get":
            return lambda: messages.get(0.0005)
        if way == "batches":
            batches = messages.batches()
            return lambda: next(batches)[0]
        return partial(next, messages if way == "next" else iter(messages))

    with broker_in_thread() as url, connect(url) as client, client.subscribe("a", timeout_s=0.0005) as messages:
        got: list[int] = []
        step = 0
        has_raised = True
        while has_raised:
            has_raised = False
            step += 1
            for is_there in (False, True):
                if is_there:
                    client.publish("a", str(step))
                    arrived(messages)
                interrupter = Interrupter(step)
                take = prepare(messages)
                with suppress(KeyboardInterrupt, TimeoutError, StopIteration):
                    got.append(int(interrupter.run(take).payload))
                has_raised = has_raised or interrupter.has_raised
            if len(got) < step:
                got.append(int(messages.get(LONG_S).payload))
            assert got == list(range(1, step + 1))
        assert step > 10


INTERRUPTED = """
import signal, sys, godwit
inside = False

def interrupt(*_):
    if inside:
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
with godwit.sync.connect(sys.argv[1]) as client, client.subscribe("a") as messages:
    got, interrupts = [], 0
    print("ready", flush=True)
    while True:
        try:
            inside = True
            message = messages.get(0.002)
            inside = False
        except TimeoutError:
            inside = False
        except KeyboardInterrupt:
            inside = False
            interrupts += 1
            if interrupts == 50:
                print("enough", flush=True)
        else:
            if message.payload == b"end":
                break
            got.append(message.offset)
    print(got == list(range(len(got))), len(got))
"""


def pour(lines: Iterable[str], into: queue.SimpleQueue[str]) -> None:
    for line in lines:
        into.put(line)


def test_real_ctrl_c_loses_no_message() -> None:
    with broker_in_thread() as url, connect(url) as client:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore::RuntimeWarning", "-c", INTERRUPTED, url], stdout=subprocess.PIPE, text=True
        )
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert process.stdout is not None
        reader = threading.Thread(target=pour, args=(process.stdout, lines))
        reader.start()
        assert lines.get(timeout=LONG_S) == "ready\n"
        count = 0
        publisher = client.publisher("a")
        while lines.empty() and process.poll() is None:
            process.send_signal(signal.SIGINT)
            publisher.send(b"x")
            count += 1
            publisher.flush()  # one signal more for each round trip
        assert lines.get(timeout=LONG_S) == "enough\n"
        publisher.send(b"end")
        publisher.flush()
        assert lines.get(timeout=LONG_S) == f"True {count}\n"
        assert process.wait(LONG_S) == 0
        reader.join(LONG_S)
        process.stdout.close()


# -- handled messages -------------------------------------------------------------------------------------------------


class HandlingError(Exception):
    pass


def read_until(url: str, stop: Callable[[BlockingClient, list[bytes]], None]) -> list[bytes]:
    """What a program with a kept subscription reads in one run, which `stop` ends."""
    seen: list[bytes] = []
    with connect(url, name="me") as client, suppress(HandlingError, KeyboardInterrupt, SystemExit, GeneratorExit):
        stop(client, seen)
    return seen


def everything(url: str, end: bytes) -> list[bytes]:
    """Return the messages that the same subscription delivers the next time, up to and with `end`."""
    with connect(url, name="me") as client, client.subscribe("a", keep=True, timeout_s=LONG_S) as messages:
        seen = []
        for message in messages:
            seen.append(message.payload)
            if message.payload == end:
                break
        return seen


@pytest.mark.parametrize("in_one_record", [False, True])
@pytest.mark.parametrize("error", [HandlingError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("way", ["get", "iterate", "batches"])
def test_a_message_whose_handling_raised_comes_again(way: str, error: type[BaseException], in_one_record: bool) -> None:
    with broker_in_thread() as url, connect(url) as source:

        def fail_at_the_second(client: BlockingClient, seen: list[bytes]) -> None:
            with client.subscribe("a", keep=True, start="earliest", timeout_s=LONG_S) as messages:
                if way == "batches":
                    for batch in messages.batches():
                        seen += [message.payload for message in batch]
                        if b"2" in seen:
                            raise error
                elif way == "iterate":
                    for message in messages:
                        seen.append(message.payload)
                        if message.payload == b"2":
                            raise error
                else:
                    while True:
                        seen.append(messages.get(LONG_S).payload)
                        if seen[-1] == b"2":
                            raise error

        publisher = source.publisher("a")
        for number in range(1, 5):
            publisher.send(str(number))
            if not in_one_record:
                publisher.flush()
        publisher.flush()
        seen = read_until(url, fail_at_the_second)
        again = everything(url, b"4")
        if way == "batches":
            assert set(seen + again) == {b"1", b"2", b"3", b"4"}
            assert b"2" in again
        else:
            assert seen == [b"1", b"2"]
            assert again == [b"2", b"3", b"4"]


@pytest.mark.parametrize("way", ["break", "return", "close", "limit", "limit and error"])
def test_a_message_is_handled_when_the_block_is_left_otherwise(way: str) -> None:
    with broker_in_thread() as url, connect(url) as source:

        def read_two(client: BlockingClient, seen: list[bytes]) -> None:
            with client.subscribe("a", keep=True, start="earliest") as messages:
                for message in messages:
                    seen.append(message.payload)
                    if message.payload == b"2":
                        break
                if way == "return":
                    return
                if way == "close":
                    messages.close()
                    raise HandlingError
                if way.startswith("limit"):
                    with pytest.raises(TimeoutError):
                        messages.get(0.001)
                if way == "limit and error":
                    raise HandlingError  # the next one was asked for before, so it is not about the second

        for number in range(1, 3):
            source.publish("a", str(number))
        assert read_until(url, read_two) == [b"1", b"2"]
        source.publish("a", b"3")
        assert everything(url, b"3") == [b"3"]


def test_a_generator_that_is_closed_leaves_its_message_unhandled() -> None:
    with broker_in_thread() as url, connect(url) as source:

        def payloads(client: BlockingClient) -> Iterator[bytes]:
            with client.subscribe("a", keep=True, start="earliest", timeout_s=LONG_S) as messages:
                for message in messages:
                    yield message.payload

        for number in range(1, 4):
            source.publish("a", str(number))
        with connect(url, name="me") as client:
            reading = payloads(client)
            assert [next(reading), next(reading)] == [b"1", b"2"]
            reading.close()  # type: ignore[attr-defined]
        assert everything(url, b"3") == [b"2", b"3"]


def test_a_cursor_is_committed() -> None:
    with broker_in_thread() as url:
        with connect(url, name="me") as client, client.subscribe("a", cursor="c") as messages:
            for number in range(5):
                client.publish("a", str(number))
            assert [messages.get().payload for _ in range(3)] == [b"0", b"1", b"2"]
            messages.commit()
        with connect(url, name="me") as client, client.subscribe("a", cursor="c") as messages:
            assert messages.get().payload == b"3"


def test_a_kick_ends_the_loop_with_its_reason() -> None:
    with broker_in_thread() as url, connect(url, name="victim") as client, connect(url) as chief:
        with client.subscribe("a") as messages:
            chief.kick("victim", "a", reason="enough")
            with pytest.raises(KickedError, match="enough"):
                messages.get(LONG_S)
        with pytest.raises(KickedError):
            next(messages)
        with client.subscribe("b") as messages:
            pass
        with pytest.raises(UsageError, match="was left"):
            next(messages)


def test_files_end_when_nothing_comes(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("hello")
    with (
        broker_in_thread() as url,
        connect(url) as client,
        client.receive_files("f", folder=tmp_path / "in", timeout_s=LONG_S) as files,
        client.receive_files("other", folder=tmp_path / "other", timeout_s=0.001) as none,
    ):
        client.send_file("f", source)
        assert next(files).path.read_text() == "hello"
        assert list(none) == []


def test_threads_with_tiny_limits_get_every_file_exactly_once(tmp_path: Path) -> None:
    count = 30
    got: list[str] = []
    errors: list[BaseException] = []
    ended = threading.Event()
    with (
        broker_in_thread() as url,
        connect(url) as client,
        client.receive_files("f", folder=tmp_path / "in", timeout_s=0.0005) as files,
    ):

        def read() -> None:
            try:
                while not ended.is_set():
                    for file in files:
                        got.append(file.name)
                    if len(got) >= count:
                        ended.set()
            except BaseException as error:
                errors.append(error)
                ended.set()

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for number in range(count):
            source = tmp_path / f"{number}.txt"
            source.write_text(str(number))
            client.send_file("f", source)
        ended.wait(LONG_S)
        ended.set()
        for reader in readers:
            reader.join(LONG_S)
        assert errors == []
        assert sorted(got) == sorted(f"{number}.txt" for number in range(count))


@never_awaited
def test_ctrl_c_at_any_step_loses_no_file(tmp_path: Path) -> None:
    with (
        broker_in_thread() as url,
        connect(url) as client,
        client.receive_files("f", folder=tmp_path / "in", timeout_s=LONG_S) as files,
    ):
        got: list[str] = []
        step = 0
        has_raised = True
        while has_raised:
            step += 1
            source = tmp_path / f"{step}.txt"
            source.write_text(str(step))
            client.send_file("f", source)
            interrupter = Interrupter(step)
            try:
                got.append(interrupter.run(lambda: files.get(LONG_S)).name)
            except KeyboardInterrupt:
                got.append(files.get(LONG_S).name)
            has_raised = interrupter.has_raised
        assert step > 10
        assert got == [f"{number}.txt" for number in range(1, step + 1)]
