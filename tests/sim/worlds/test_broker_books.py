"""The books of the broker world: messages that nobody confuses, dates that can be told apart, readable events."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.client import events as told
from godwit.transport.events import Train
from godwit_sim.broker_ledger import TOGETHER_US
from godwit_sim.network import Network
from godwit_sim.worlds.broker_books import EPOCH_US, ODD_US, Books, Shell, describe


def test_payloads_are_unlike_each_other_and_as_long_as_asked() -> None:
    books = Books(1, Network())
    payloads = [books.payload(size) for size in (16, 16, 100, 0)]
    assert len(set(payloads)) == 4
    assert [len(payload) for payload in payloads] == [16, 16, 100, 16]


def test_another_world_says_the_same() -> None:
    one, other = Books(1, Network()), Books(1, Network())
    assert one.payload(50) == other.payload(50)
    assert one.payload(50) != Books(2, Network()).payload(50)


def test_dates_rise_and_empty_messages_keep_their_distance() -> None:
    books = Books(1, Network())
    dates = [books.date_us(b"x"), books.date_us(b"x"), books.date_us(b"")]
    assert dates[0] < dates[1] < dates[2] - TOGETHER_US
    books.network.now = 3.0
    assert books.date_us(b"x") == EPOCH_US + 3_000_000 == books.now_us


def test_odd_calendars_are_odd_but_not_absurd() -> None:
    books = Books(1, Network(), odd_clocks=True)
    dates = [books.date_us(b"x") for _ in range(100)]
    assert len(set(dates)) == 100
    assert dates != sorted(dates)
    assert all(abs(date - EPOCH_US) <= ODD_US for date in dates)


def test_notes_go_to_the_trace() -> None:
    books = Books(1, Network())
    books.note("something")
    assert books.network.trace.notes == 1


class Machine:
    """With the driver's contract."""

    def __init__(self) -> None:
        self.left = [Train(("a", 1), b"x", 1), Train(("a", 1), b"y", 1)]

    def next_train(self, now: float) -> Train | None:
        return self.left.pop(0) if self.left else None

    def receive(self, train: Train, now: float) -> None: ...
    def handle_timers(self, now: float) -> None: ...
    def events(self) -> list[Any]:
        return ["event"]

    def next_timer(self) -> float | None:
        return 5.0


def test_a_shell_hands_over_all_trains() -> None:
    shell = Shell(Machine())
    assert [train.data for train in shell.trains(0.0)] == [b"x", b"y"]
    assert shell.trains(0.0) == []
    assert (shell.events(), shell.next_timer()) == (["event"], 5.0)


class Lane:
    topic, qos, filters = "a/b", 1, ("a/#", "b")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (told.Online(True, "sensor"), "Online resumed=True name=sensor"),
        (told.Confirmed(Lane(), 5, 2), "Confirmed a/b QoS 1 sequence=5 reached=2"),  # type: ignore[arg-type]
        (told.Available(Lane()), "Available a/# and b "),  # type: ignore[arg-type]
    ],
)
def test_events_are_told_without_addresses(event: Any, text: str) -> None:
    assert describe(event) == text
