"""What happened, worked out from how a job stood and stands."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.world import examples

from godwit.client.comparing import Change, JobView, apply, catch_up
from godwit.errors import DecodeError
from godwit.limits import MAX_TASKS_OF_JOB
from godwit.wire.jobs import JobState, TaskState
from godwit.wire.work import JobUpdate, TaskUpdate


def view(agreed: int | None = 2) -> JobView:
    made = JobView("key", "kind", 2, 7)
    made.state = "waiting" if agreed is None else "running"
    if agreed is not None:
        made.settle(agreed)
    return made


def tell(
    job: JobView, *tasks: TaskUpdate, state: JobState = "running", agreed: int | None = 2, reason: str = ""
) -> list[tuple[str, int | None]]:
    payloads = [b"before", *[b"result %d" % task.task for task in tasks]]
    changes = apply(job, JobUpdate(job=7, state=state, agreed=agreed, reason=reason, tasks=list(tasks)), payloads, 1)
    return [(change.what, change.task) for change in changes]


def task(number: int, state: TaskState, fence: int = 1, **more: object) -> TaskUpdate:
    return TaskUpdate(task=number, state=state, fence=fence, worker=f"w{fence}", **more)  # type: ignore[arg-type]


def test_a_job_from_its_beginning_to_its_end() -> None:
    job = view(None)
    assert tell(job, state="waiting", agreed=None) == []
    assert tell(job) == [("settled", None)]
    assert (job.agreed, set(job.tasks)) == (2, {0, 1})
    assert tell(job, task(0, "leased")) == [("leased", 0)]
    assert tell(job, task(0, "leased", progress=0.5), task(1, "leased")) == [("progress", 0), ("leased", 1)]
    assert tell(job, task(1, "finished")) == [("result", 1)]
    assert job.tasks[1].result == b"result 1"
    assert tell(job, task(0, "waiting", failures=1, error="no")) == [("failure", 0)]
    assert tell(job, task(0, "leased", 2, failures=1, error="no")) == [("reassigned", 0)]
    assert job.tasks[0].worker == "w2"
    assert tell(job, task(0, "finished", 2, failures=1), state="done") == [("result", 0), ("ended", None)]
    assert job.state == "done"
    assert job.is_ended


def test_the_same_state_again_says_nothing() -> None:
    job = view()
    state = [task(0, "leased", progress=0.5, note="half", failures=1), task(1, "finished")]
    assert tell(job, *state) == [("failure", 0), ("leased", 0), ("progress", 0), ("result", 1)]
    before = dict(job.tasks)
    assert tell(job, *state) == []
    assert job.tasks == before


def test_what_was_skipped_is_not_made_up() -> None:
    job = view()
    assert tell(job, task(0, "finished")) == [("result", 0)]
    assert tell(job, task(1, "leased", 4, failures=3)) == [("failure", 1), ("reassigned", 1)]


def test_the_last_failure_is_the_tasks() -> None:
    job = view()
    assert tell(
        job, task(0, "failed", failures=4, error="never"), task(1, "cancelled"), state="failed", reason="x"
    ) == [
        ("task_failed", 0),
        ("ended", None),
    ]
    assert (job.tasks[0].error, job.tasks[1].state, job.reason) == ("never", "cancelled", "x")


def test_a_lost_worker_is_told_by_the_next_lease() -> None:
    job = view()
    tell(job, task(0, "leased", progress=0.9))
    assert tell(job, task(0, "waiting", losses=1)) == []
    assert tell(job, task(0, "leased", 2, losses=1)) == [("reassigned", 0)]
    assert job.tasks[0].progress is None


def test_progress_that_the_broker_has_forgotten_is_kept() -> None:
    job = view()
    tell(job, task(0, "leased", progress=0.5, note="half"))
    assert tell(job, task(0, "leased")) == []
    assert (job.tasks[0].progress, job.tasks[0].note) == (0.5, "half")
    assert tell(job, task(0, "leased", note="more")) == [("progress", 0)]


def test_what_has_ended_stays() -> None:
    job = view()
    tell(job, task(0, "finished", 2))
    assert tell(job, task(0, "leased", 3), task(0, "finished", 3), task(0, "failed", 3)) == []
    assert job.tasks[0].worker == "w2"
    tell(job, task(1, "leased", 5))
    assert tell(job, task(1, "finished", 4)) == []
    assert tell(job, state="waiting", agreed=None) == []
    assert (job.state, job.agreed) == ("running", 2)


def test_a_change_shows_the_task_as_it_stood_then() -> None:
    job = view()
    (first,) = apply(job, JobUpdate(job=7, state="running", tasks=[task(0, "leased", progress=0.1)]), [b""], 0)[1:]
    tell(job, task(0, "leased", progress=0.7))
    assert first.view is not None
    assert first.view.progress == 0.1
    assert Change("ended") == ("ended", None, None)


@pytest.mark.parametrize("number", [2, 3, 2**62])
def test_more_tasks_than_agreed(number: int) -> None:
    with pytest.raises(DecodeError, match="were agreed"):
        tell(view(), task(number, "leased"))
    with pytest.raises(DecodeError, match="were agreed"):
        tell(view(None), task(number, "leased"), agreed=None)


@pytest.mark.parametrize("agreed", [0, MAX_TASKS_OF_JOB + 1])
def test_agreed_out_of_range(agreed: int) -> None:
    with pytest.raises(DecodeError, match=f"with {agreed} tasks"):
        tell(view(None), agreed=agreed)


@pytest.mark.parametrize("progress", [-0.1, 1.1, math.nan, math.inf])
def test_progress_out_of_range(progress: float) -> None:
    with pytest.raises(DecodeError, match="done"):
        tell(view(), task(0, "leased", progress=progress))


def test_another_view_catches_up() -> None:
    known = view(3)
    tell(known, task(0, "finished"), task(1, "leased", 2, progress=0.5, failures=1))
    late = JobView("", "", number=7)
    assert [(change.what, change.task) for change in catch_up(late, known)] == [
        ("settled", None),
        ("result", 0),
        ("failure", 1),
        ("reassigned", 1),
        ("progress", 1),
    ]
    assert (late.state, late.tasks) == ("running", known.tasks)
    assert catch_up(view(2), view(2)) == []
    tell(known, task(1, "finished", 2, failures=1))
    assert late.tasks[1].state == "leased"


_updates = st.builds(
    TaskUpdate,
    task=st.integers(0, 1),
    state=st.sampled_from(["waiting", "leased", "finished", "failed", "cancelled"]),
    fence=st.integers(0, 3),
    failures=st.integers(0, 3),
    progress=st.none() | st.floats(0, 1),
)


@examples(1.0)
@given(st.lists(st.lists(_updates, max_size=3), max_size=8))
def test_whatever_comes_each_end_is_told_once(rounds: list[list[TaskUpdate]]) -> None:
    job = view()
    seen: list[tuple[str, int | None]] = []
    for tasks in rounds:
        seen += tell(job, *tasks)
        assert tell(job, *tasks) == [] or len({task.task for task in tasks}) < len(tasks)
    for number in (0, 1):
        ends = [what for what, which in seen if which == number and what in ("result", "task_failed")]
        assert len(ends) <= 1
        assert (job.tasks[number].state == "finished") == (ends == ["result"])
        assert (job.tasks[number].state == "failed") == (ends == ["task_failed"])
