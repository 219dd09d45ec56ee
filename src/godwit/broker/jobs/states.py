"""The states of jobs and tasks, and what leads from one to another: all of it is in two tables.

Whatever changes a state asks the table. A pair that is not in it is a defect of the broker and raises, so a state that
makes no sense is never reached, stored or told. The diagram in docs/JOBS.md is made from the tables:

    python -m godwit.broker.jobs.states
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias, TypeVar

from godwit.wire.jobs import JobState, TaskState

JobEvent: TypeAlias = Literal["settled", "all finished", "all ended, one failed", "cancel", "deadline"]
TaskEvent: TypeAlias = Literal[
    "lease", "result", "failure", "last failure", "return", "loss", "last loss", "cancel", "deadline"
]

JOB_CHANGES: Final[dict[JobState, dict[JobEvent, JobState]]] = {
    "waiting": {"settled": "running", "cancel": "cancelled", "deadline": "failed"},
    "running": {
        "all finished": "done",
        "all ended, one failed": "failed",
        "cancel": "cancelled",
        "deadline": "failed",
    },
    "done": {},
    "failed": {},
    "cancelled": {},
}
TASK_CHANGES: Final[dict[TaskState, dict[TaskEvent, TaskState]]] = {
    "waiting": {"lease": "leased", "cancel": "cancelled", "deadline": "failed"},
    "leased": {
        "result": "finished",
        "failure": "waiting",
        "last failure": "failed",
        "return": "waiting",
        "loss": "waiting",
        "last loss": "failed",
        "cancel": "cancelled",
        "deadline": "failed",
    },
    "finished": {},
    "failed": {},
    "cancelled": {},
}
State = TypeVar("State", bound=str)
Event = TypeVar("Event", bound=str)
ENDED: Final = frozenset({"done", "finished", "failed", "cancelled"})


class ForbiddenChangeError(RuntimeError):
    """Something happened to a job or a task that cannot happen in its state: a defect of the broker."""


def job_after(state: JobState, event: JobEvent) -> JobState:
    try:
        return JOB_CHANGES[state][event]
    except KeyError:
        raise ForbiddenChangeError(f"a job that is {state} cannot have: {event}") from None


def task_after(state: TaskState, event: TaskEvent) -> TaskState:
    try:
        return TASK_CHANGES[state][event]
    except KeyError:
        raise ForbiddenChangeError(f"a task that is {state} cannot have: {event}") from None


def diagram() -> str:
    """Both tables as the page shows them."""
    return f"A job:\n\n{_mermaid(JOB_CHANGES)}\n\nA task:\n\n{_mermaid(TASK_CHANGES)}\n"


def _mermaid(changes: Mapping[State, Mapping[Event, State]]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {line}" for line in _lines(changes)), "```"])


def _lines(changes: Mapping[State, Mapping[Event, State]]) -> Iterator[str]:
    """One arrow for each pair of states, with all that leads along it."""
    yield f"[*] --> {next(iter(changes))}"
    for state, events in changes.items():
        for after in dict.fromkeys(events.values()):
            yield f"{state} --> {after}: {' / '.join(event for event in events if events[event] == after)}"
        if not events:
            yield f"{state} --> [*]"


if __name__ == "__main__":
    print(diagram(), end="")
