"""The loop around many small senders, and what a measurement checks; the systems have their own tests."""

from __future__ import annotations

import multiprocessing
import resource
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe

import pytest

from godwit.errors import GodwitError
from godwit_bench import small_senders
from godwit_bench.small_senders import System, allow_files, measure, send_all, tell_arrived
from godwit_bench.stage import READY, Stage


class Echo:
    """A lane whose packets come back to itself: each is the confirm of itself. `deaf` ones have to be sent twice."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.connect(self.socket.getsockname())
        self.confirmed = 0
        self._deaf = deaf

    def first(self) -> bytes:
        return b"lost" if self._deaf else b"sent"

    def on_answer(self, data: bytes) -> bytes | None:
        if data == b"lost":
            return None
        self.confirmed += 1
        return self.first()

    def again(self) -> bytes | None:
        return b"sent"


def broker(_: Stage) -> int:
    return 7


def connect(port: int, connections: int) -> Sequence[Echo]:
    assert port == 7
    return [Echo() for _ in range(connections)]


def subscribe(pipe: Pipe, port: int) -> None:
    assert port == 7
    list(tell_arrived(pipe, lambda: 10_000_000))


def lose(pipe: Pipe, _: int) -> None:
    small_senders.SETTLE_S = 0.1  # type: ignore[misc]
    list(tell_arrived(pipe, lambda: 3))


def test_every_lane_has_one_in_flight() -> None:
    lanes = [Echo() for _ in range(5)]
    in_window, elapsed_s, in_all = send_all(lanes, 0.2)
    assert 0.2 <= elapsed_s < 2
    assert 0 < in_window < in_all == sum(lane.confirmed for lane in lanes)
    assert min(lane.confirmed for lane in lanes) > 0
    for lane in lanes:
        lane.socket.close()


def test_a_stalled_lane_sends_again() -> None:
    lanes = [Echo(deaf=True), Echo()]
    send_all(lanes, 0.8)
    assert 2 <= lanes[0].confirmed <= 4
    for lane in lanes:
        lane.socket.close()


def test_the_rate_is_that_of_the_confirms() -> None:
    assert measure(System(broker, subscribe, connect), 3, 0.1) > 100


def test_what_was_confirmed_must_have_arrived() -> None:
    with pytest.raises(GodwitError, match="messages were confirmed, but only 3 reached the subscriber"):
        measure(System(broker, lose, connect), 3, 0.1)


def test_a_subscriber_tells_what_arrived_once_it_is_all_there() -> None:
    here, there = multiprocessing.Pipe()
    counts = iter([5, 9])
    looks = tell_arrived(there, lambda: next(counts, 10))
    next(looks)
    assert here.recv() == READY
    here.send(10)
    list(looks)
    assert here.recv() == 10


def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [256, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), new))
    allow_files(10)
    assert limits == [256, 4096]
    allow_files(1000)
    assert limits == [2100, 4096]
    with pytest.raises(GodwitError, match="10100 open files are needed and the system allows 4096"):
        allow_files(5000)
