"""The pauses between attempts to connect."""

from __future__ import annotations

import random

from godwit.client.backoff import Backoff


class Fixed:
    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def test_bound_doubles_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 1.0, Fixed(1.0))
    assert [round(backoff.wait_s(), 3) for _ in range(6)] == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_never_shorter_than_the_shortest() -> None:
    backoff = Backoff(0.1, 1.0, Fixed(0.0))
    assert {backoff.wait_s() for _ in range(5)} == {0.1}


def test_reset_begins_anew() -> None:
    backoff = Backoff(0.1, 1.0, Fixed(1.0))
    backoff.wait_s()
    backoff.wait_s()
    backoff.reset()
    assert backoff.wait_s() == 0.2


def test_clients_do_not_come_back_together() -> None:
    waits = []
    for seed in range(200):
        backoff = Backoff(0.1, 5.0, random.Random(seed))
        for _ in range(7):
            wait_s = backoff.wait_s()
        waits.append(wait_s)
    assert min(waits) < 0.5
    assert max(waits) > 4.5
