"""Jobs, tasks and workers by themselves, the tables of states, and job events as JSON."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from godwit.broker.jobs.model import (
    ENDED,
    JOB_CHANGES,
    MAX_SHARED_WORKERS,
    TASK_CHANGES,
    ForbiddenChangeError,
    Job,
    JobEvent,
    JobTask,
    JobTrigger,
    PoolWorker,
    TaskTrigger,
    TurnOutput,
    state_diagrams,
)
from godwit.broker.jobs.queue import JobQueue
from godwit.limits import MAX_HAD
from godwit.wire.jobs import JobSpec, JobState, TaskState

# -- model ------------------------------------------------------------------------------------------------------------


def make_job(tasks: int) -> Job:
    spec = JobSpec(key="key", of_kind="cut", size=4, workers=tasks)
    job = Job(7, "carla", spec, JobQueue("cut"), b"four", 0)
    job.tasks = [JobTask(job, number, 0) for number in range(tasks)]
    return job


def test_jobs_tried_by_the_same_worker_share_one_set() -> None:
    jobs = [make_job(1), make_job(1)]
    worker = PoolWorker("anna", b"", 0)
    for job in jobs:
        job.add_tried_worker(worker)
        job.add_tried_worker(worker)
    assert jobs[0].tried_workers is jobs[1].tried_workers
    assert jobs[0].tried_workers == {"anna"}


def test_a_job_remembers_a_bounded_number_of_workers() -> None:
    job = make_job(6)
    names = [f"worker {number}" for number in range(7 * MAX_HAD)]
    for count, name in enumerate(names, start=1):
        job.add_tried_worker(PoolWorker(name, b"", 0))
        assert job.tried_workers == set(names[: min(count, 6 * MAX_HAD + 1)])
        assert isinstance(job.tried_workers, frozenset) == (count <= MAX_SHARED_WORKERS)


def test_reprs() -> None:
    job = make_job(1)
    task = job.tasks[0]
    task.fence = 3
    worker = PoolWorker("anna", b"", 0)
    worker.capacity = 2
    assert task.ref == (7, 0, 3)
    assert job.spec.size == 4
    assert [repr(job), repr(task), repr(worker)] == [
        "<job 7 cut waiting>", "<task 7.0 waiting fence 3 >", "<worker anna 0/2>",
    ]  # fmt: skip


# -- states -----------------------------------------------------------------------------------------------------------


PAGE = Path(__file__).resolve().parents[3] / "docs" / "JOBS.md"


def test_the_tables_have_every_state_and_use_every_event() -> None:
    assert list(JOB_CHANGES) == list(get_args(JobState))
    assert list(TASK_CHANGES) == list(get_args(TaskState))
    assert {event for events in JOB_CHANGES.values() for event in events} == set(get_args(JobTrigger))
    assert {event for events in TASK_CHANGES.values() for event in events} == set(get_args(TaskTrigger))


@pytest.mark.parametrize(("state", "event"), [*product(get_args(JobState), get_args(JobTrigger))])
def test_a_job_changes_as_the_table_says_or_not_at_all(state: JobState, event: JobTrigger) -> None:
    if event not in JOB_CHANGES[state]:
        with pytest.raises(ForbiddenChangeError, match=f"the trigger '{event}' is impossible for a {state} job"):
            JOB_CHANGES[state][event]


@pytest.mark.parametrize(("state", "event"), [*product(get_args(TaskState), get_args(TaskTrigger))])
def test_a_task_changes_as_the_table_says_or_not_at_all(state: TaskState, event: TaskTrigger) -> None:
    if event not in TASK_CHANGES[state]:
        with pytest.raises(ForbiddenChangeError, match=f"the trigger '{event}' is impossible for a {state} task"):
            TASK_CHANGES[state][event]


def test_ended_states_have_no_changes() -> None:
    ended_jobs = {state for state, changes in JOB_CHANGES.items() if not changes}
    ended_tasks = {state for state, changes in TASK_CHANGES.items() if not changes}
    assert ended_jobs | ended_tasks == ENDED


def test_the_page_shows_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = page.partition("<!-- states -->\n")[2].partition("<!-- /states -->")[0]
    assert shown == state_diagrams(), "put the output of `python -m godwit.broker.jobs.model` between the two marks"


# -- turn -------------------------------------------------------------------------------------------------------------


def test_events_are_ordered_by_kind() -> None:
    output = TurnOutput()
    events = [JobEvent("submitted", number, "carla", 5) for number in range(3)]
    for kind, event in zip(("cut", "paint", "cut"), events, strict=True):
        output.events[kind].append(event)
    assert output.events == {"cut": [events[0], events[2]], "paint": [events[1]]}


def test_the_json_of_an_event_omits_defaults() -> None:
    event = JobEvent("leased", 7, "carla", 5, 0, "anna", 1, waited_us=0)
    assert msgspec.json.decode(msgspec.json.encode(event)) == {
        "event": "leased", "job": 7, "controller": "carla", "at_us": 5, "task": 0, "worker": "anna", "fence": 1,
        "waited_us": 0,
    }  # fmt: skip
