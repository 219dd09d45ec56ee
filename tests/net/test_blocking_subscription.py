"""Subscriptions without asyncio: plain iterators, with a limit on the waiting if wanted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.net.running import broker_in_thread

from godwit.errors import KickedError, UsageError
from godwit.net.blocking import connect

LONG_S = 30.0


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
