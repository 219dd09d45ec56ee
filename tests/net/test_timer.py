"""The loop's timer follows a time that moves, with few timers made."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from godwit.net.timer import LoopTimer


class CountingLoop:
    """Stands for an event loop: notes which timers were made, and calls none."""

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
    LoopTimer(loop, late).arm(now + 0.03, now)
    moving = LoopTimer(loop, soon)
    moving.arm(now + 60.0, now)
    moving.arm(now + 0.002, now)
    cancelled = LoopTimer(loop, lambda: fired.append("cancelled"))
    cancelled.arm(now + 0.001, now)
    cancelled.cancel()
    await asyncio.wait_for(done.wait(), 5.0)
    assert time.monotonic() >= now + 0.029
    return fired


def test_fires_on_a_real_loop() -> None:
    assert asyncio.run(fires_in_order()) == ["soon", "late"]
