"""The tables of states: complete, and only what they say can happen."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from godwit.broker.jobs.states import (
    ENDED,
    JOB_CHANGES,
    TASK_CHANGES,
    ForbiddenChangeError,
    JobEvent,
    TaskEvent,
    diagram,
    job_after,
    task_after,
)
from godwit.wire.jobs import JobState, TaskState

PAGE = Path(__file__).resolve().parents[3] / "docs" / "JOBS.md"


def test_the_tables_have_every_state_and_use_every_event() -> None:
    assert list(JOB_CHANGES) == list(get_args(JobState))
    assert list(TASK_CHANGES) == list(get_args(TaskState))
    assert {event for events in JOB_CHANGES.values() for event in events} == set(get_args(JobEvent))
    assert {event for events in TASK_CHANGES.values() for event in events} == set(get_args(TaskEvent))


@pytest.mark.parametrize(("state", "event"), [*product(get_args(JobState), get_args(JobEvent))])
def test_a_job_changes_as_the_table_says_or_not_at_all(state: JobState, event: JobEvent) -> None:
    if event in JOB_CHANGES[state]:
        assert job_after(state, event) == JOB_CHANGES[state][event]
    else:
        with pytest.raises(ForbiddenChangeError, match=f"a job that is {state} cannot have: {event}"):
            job_after(state, event)


@pytest.mark.parametrize(("state", "event"), [*product(get_args(TaskState), get_args(TaskEvent))])
def test_a_task_changes_as_the_table_says_or_not_at_all(state: TaskState, event: TaskEvent) -> None:
    if event in TASK_CHANGES[state]:
        assert task_after(state, event) == TASK_CHANGES[state][event]
    else:
        with pytest.raises(ForbiddenChangeError, match=f"a task that is {state} cannot have: {event}"):
            task_after(state, event)


def test_what_has_ended_stays_so() -> None:
    ended_jobs = {state for state, changes in JOB_CHANGES.items() if not changes}
    ended_tasks = {state for state, changes in TASK_CHANGES.items() if not changes}
    assert ended_jobs | ended_tasks == ENDED


def test_the_page_shows_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = page.partition("<!-- states -->\n")[2].partition("<!-- /states -->")[0]
    assert shown == diagram(), "put the output of `python -m godwit.broker.jobs.states` between the two marks"
