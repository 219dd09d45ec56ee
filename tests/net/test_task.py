"""A task as its handler sees it, and what is told of it."""

from __future__ import annotations

import pytest
from tests.net.work_stands import lease

from godwit.errors import TaskFailedError, UsageError
from godwit.net.task import Task, TaskFailed, failure_text, to_result


class Steps:
    def __init__(self) -> None:
        self.seen: list[tuple[float | None, str]] = []

    def on_progress(self, task: Task) -> None:
        self.seen.append(task.step)


def test_a_task_says_what_it_is() -> None:
    task = Task(Steps(), lease(7, kind="resize", payload=b"picture", failures=2), "anna")
    assert (task.job, task.number, task.fence, task.kind, task.payload) == (7, 0, 1, "resize", b"picture")
    assert (task.controller, task.attempt, task.agreed, task.worker) == ("controller", 3, 1, "anna")
    assert not task.is_revoked
    assert repr(task) == "<Task 0 of job 7, 'resize', attempt 3>"


def test_progress_lies_between_0_and_1() -> None:
    steps = Steps()
    task = Task(steps, lease(), "anna")
    task.progress(0)
    task.progress(sum([0.1] * 10) + 1e-9, "all but done")
    task.progress(None, "only a note")
    assert steps.seen == [(0.0, ""), (1.0, "all but done"), (None, "only a note")]
    for wrong in (-0.1, 1.1, 50, float("nan")):
        with pytest.raises(UsageError, match="it lies between 0 and 1"):
            task.progress(wrong)
    assert len(steps.seen) == 3


@pytest.mark.parametrize(
    ("given", "travels"),
    [(b"x", b"x"), (bytearray(b"x"), b"x"), (memoryview(b"x"), b"x"), ("ä", "ä".encode()), (None, b""), (b"", b"")],
)
def test_results(given: object, travels: bytes) -> None:
    assert to_result(given) == travels


@pytest.mark.parametrize("wrong", [0, 1.5, {}, [b"x"], object()])
def test_what_is_no_result(wrong: object) -> None:
    with pytest.raises(UsageError, match=f"type {type(wrong).__name__}: a handler gives bytes, a text or None"):
        to_result(wrong)


def test_failures_in_words() -> None:
    class WordlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert TaskFailed is TaskFailedError
    assert failure_text(TaskFailed("the picture is damaged", final=True)) == "the picture is damaged"
    assert failure_text(TaskFailed("")) == "failed"
    assert failure_text(KeyError("x")) == "KeyError: 'x'"
    assert failure_text(TimeoutError()) == "TimeoutError"
    assert failure_text(WordlessError()) == "WordlessError: its text cannot be shown: RuntimeError"
