"""Gold in its thread: when it takes a step, and how it ends. Without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from godwit.pipeline import following
from godwit.pipeline.following import Following
from godwit.pipeline.gold import Step

PATIENCE_S = 30.0


class FakeGold:
    """Gives these steps, one after another, then nothing."""

    def __init__(self, *steps: Step | Exception) -> None:
        self._steps = list(steps)
        self.asked = 0

    def step(self, spark: Any) -> Step:
        self.asked += 1
        step = self._steps.pop(0) if self._steps else Step(0, 0)
        if isinstance(step, Exception):
            raise step
        return step


class FakeSession:
    """Whose jobs can be interrupted."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.sparkContext = SimpleNamespace(setLocalProperty=lambda name, value: None)

    def addTag(self, tag: str) -> None:  # noqa: N802  # Spark's names
        self.tags.append(tag)

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        assert tag in self.tags


def follow(gold: FakeGold, is_fed: Callable[[], bool]) -> Following:
    session: Any = FakeSession()
    made_up: Any = gold
    return Following(session, made_up, is_fed)


def until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def _plain_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's belong to a session."""
    monkeypatch.setattr(following, "InheritableThread", threading.Thread)


def test_it_ends_when_nothing_more_can_come() -> None:
    gold = FakeGold(Step(10, 5), Step(5, 0))
    found = follow(gold, lambda: True)
    until(lambda: not found.is_active)
    assert [(batch.query, batch.number, batch.rows, batch.lag) for batch in found.batches()] == [
        ("gold", 0, 10, 5), ("gold", 1, 5, 0),
    ]  # fmt: skip
    assert (found.batches(), found.error(), gold.asked) == ([], None, 2)


def test_what_comes_while_it_waits_is_taken_at_the_end() -> None:
    fed: list[bool] = []
    gold = FakeGold(Step(0, 0), Step(3, 0))
    found = follow(gold, lambda: bool(fed))
    until(lambda: gold.asked == 1)
    fed.append(True)
    until(lambda: not found.is_active)
    assert [batch.rows for batch in found.batches()] == [3]


def test_it_is_stopped() -> None:
    gold = FakeGold()
    found = follow(gold, lambda: False)
    until(lambda: gold.asked == 1)
    found.stop()
    assert not found.is_active
    assert (gold.asked, found.error()) == (1, None)


def test_whoever_watches_is_told_of_an_error() -> None:
    found = follow(FakeGold(OSError("no space left")), lambda: False)
    until(lambda: not found.is_active)
    assert str(found.error()) == "no space left"
