"""Requests about jobs: control messages on channel 0. The work itself travels on channels of its own, godwit.wire.work.

a client asks      the broker replies
volunteer          volunteered
watch              watched; the jobs' states follow as `update`
unwatch, cancel    done
jobs               job_list
job                job_shown
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from godwit.limits import MAX_CAPACITY, MAX_KIND_BYTES, MAX_KINDS, MAX_PRIORITY, MAX_WATCHED_AT_ONCE
from godwit.wire.control_base import BaseControlMessage, Count, Fraction, Name, Request, Text

JobState: TypeAlias = Literal["waiting", "running", "done", "failed", "cancelled"]
TaskState: TypeAlias = Literal["waiting", "leased", "finished", "failed", "cancelled"]
Ref: TypeAlias = tuple[Count, Request, Request]
"""A lease: the job's number, the task's, and the fencing number, which counts the task's leases from 1."""
Kind: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KIND_BYTES)]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
MAX_STATES: Final = 5
"""There are no more."""
UNASKED: Final = 2**32 - 1
"""The number of a `watched` that nobody asked for: its client may no longer see these jobs."""
_Numbers: TypeAlias = Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MAX_WATCHED_AT_ONCE)]


class Volunteer(BaseControlMessage, frozen=True, kw_only=True, tag="volunteer"):
    """What a worker does from now on; it replaces what it said before. No kinds: it gets no more tasks."""

    request: Request
    kinds: Annotated[list[Kind], msgspec.Meta(max_length=MAX_KINDS)] = []
    capacity: Annotated[int, msgspec.Meta(ge=1, le=MAX_CAPACITY)] = 1
    """So many tasks at once, also those that wait in it for others to end."""
    holding: Annotated[list[Ref], msgspec.Meta(max_length=MAX_CAPACITY)] = []
    """Leases that it still has, running or with a report that was not confirmed."""


class Volunteered(BaseControlMessage, frozen=True, kw_only=True, tag="volunteered"):
    request: Request
    lease_ms: Count
    """Who reports nothing for so long loses its tasks."""


class Watch(BaseControlMessage, frozen=True, kw_only=True, tag="watch"):
    """Tell me what becomes of these jobs, beginning with how they stand. Who submits a job watches it already."""

    request: Request
    jobs: _Numbers


class Watched(BaseControlMessage, frozen=True, kw_only=True, tag="watched"):
    request: Request
    unknown: list[Count] = []
    """Jobs that are not there, or no longer, or not for this client to see."""


class Unwatch(BaseControlMessage, frozen=True, kw_only=True, tag="unwatch"):
    request: Request
    jobs: _Numbers


class Cancel(BaseControlMessage, frozen=True, kw_only=True, tag="cancel"):
    """End a job: tasks that are at work are revoked."""

    request: Request
    job: Count
    reason: Text = ""


class Jobs(BaseControlMessage, frozen=True, kw_only=True, tag="jobs"):
    """Which jobs are there? The newest first, a page at a time; those that this client may see."""

    request: Request
    of_kind: Kind | None = None
    controller: Name | None = None
    states: Annotated[list[JobState], msgspec.Meta(max_length=MAX_STATES)] | None = None
    before: Count | None = None
    """Only jobs with lower numbers."""


class JobInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    job: Count
    key: str
    controller: str
    of_kind: str
    state: JobState
    workers: Count = 1
    """As asked for; 0: all."""
    agreed: Count | None = None
    finished: Count = 0
    """Tasks with a result."""
    failed: Count = 0
    leased: Count = 0
    priority: Priority = 0
    submitted_us: Count = 0
    begins_us: Count = 0
    """Not before, for a job with a delay."""
    deadline_us: Count | None = None
    ended_us: Count | None = None
    payload_bytes: Count = 0
    reason: str = ""
    """Why it was cancelled or failed."""


class JobList(BaseControlMessage, frozen=True, kw_only=True, tag="job_list"):
    request: Request
    jobs: list[JobInfo] = []
    more: bool = False
    before: Count = 0
    """Where the next page begins, if there is more: a page may be short, even empty."""


class Job(BaseControlMessage, frozen=True, kw_only=True, tag="job"):
    """One job and its tasks, a page of them."""

    request: Request
    job: Count
    first_task: Count = 0


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    task: Count
    state: TaskState
    worker: str = ""
    """Who has it, or had it last."""
    fence: Count = 0
    failures: Count = 0
    """Attempts that failed."""
    losses: Count = 0
    """Leases that ended without a word: the worker died or fell silent."""
    progress: Fraction | None = None
    note: str = ""
    error: str = ""
    """Of the last attempt that failed."""
    since_us: Count = 0
    """When it got into this state."""
    result_bytes: Count = 0


class JobShown(BaseControlMessage, frozen=True, kw_only=True, tag="job_shown"):
    request: Request
    job: JobInfo
    tasks: list[TaskInfo] = []
    more: bool = False
