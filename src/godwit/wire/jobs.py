"""Control messages about jobs, on channel 0, and the options of a job (JobSpec).

    a client sends     the broker replies
    volunteer          volunteered
    watch              watched; the states of the jobs follow as `update`
    unwatch, cancel    done
    jobs               job_list
    job                job_shown
    workers            worker_list

Submissions, leases and reports travel on channels of their own: see godwit.wire.work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
import msgspec.inspect

from godwit.limits import (
    MAX_CAPACITY,
    MAX_JOB_KEY_BYTES,
    MAX_JOB_PAYLOAD_BYTES,
    MAX_JOB_TIME_MS,
    MAX_KIND_BYTES,
    MAX_KINDS,
    MAX_PRIORITY,
    MAX_RETRIES,
    MAX_TASKS_OF_JOB,
    MAX_WATCHED_AT_ONCE,
)
from godwit.wire.control_base import BaseControlMessage, Count, Fraction, Name, Request, Text

JobState: TypeAlias = Literal["waiting", "running", "done", "failed", "cancelled"]
WorkerState: TypeAlias = Literal["ready", "stalled", "gone"]
"""A stalled worker is connected and has not reported in time; one that is gone still holds tasks."""
TaskState: TypeAlias = Literal["waiting", "leased", "finished", "failed", "cancelled"]
Ref: TypeAlias = tuple[Count, Request, Request]
"""A lease: the number of the job, the number of the task, and the fencing number, which counts the task's leases."""
Kind: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KIND_BYTES)]
Key: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_JOB_KEY_BYTES)]
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_JOB_PAYLOAD_BYTES)]
Workers: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TASKS_OF_JOB)]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Retries: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_RETRIES)]
DelayMs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_JOB_TIME_MS)]
LimitMs: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_JOB_TIME_MS)]
MAX_STATES: Final = 5
"""The number of job states."""
UNASKED: Final = 2**32 - 1
"""The request number of a `watched` that answers no request: the client may no longer see these jobs."""
_Numbers: TypeAlias = Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MAX_WATCHED_AT_ONCE)]


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """All options of a job, as its controller submits them. The bounds in the types apply when it is decoded.

    A job's payload travels and is stored beside it.
    """

    key: Key
    """Chosen by the controller: submitting the same key again returns the same job."""
    of_kind: Kind
    """The kind of work: workers volunteer for kinds."""
    size: Size = 0
    """The size of the payload in bytes."""
    workers: Workers = 1
    """The number of workers that do the job, each of them one task; 0: all volunteers."""
    priority: Priority = 0
    """Jobs with a higher priority are leased first."""
    delay_ms: DelayMs = 0
    """The job starts no earlier than this long after its submission."""
    deadline_ms: LimitMs | None = None
    """The job fails if it has not ended this long after its submission."""
    retries: Retries = 3
    """How many times a task is tried again after a failure."""
    retry_delay_ms: DelayMs = 1000
    """The pause before the first retry; it doubles with each further one."""
    time_limit_ms: LimitMs | None = None
    """The time limit of one attempt at a task; a longer attempt fails."""


class OptionBounds(msgspec.Struct, frozen=True):
    """The range of a numeric option of JobSpec."""

    option: str
    least: int
    most: int
    is_optional: bool
    """Whether it may be None."""


def _option_bounds() -> Iterator[OptionBounds]:
    """Yield the options of JobSpec with the bounds in their types."""
    spec = msgspec.inspect.type_info(JobSpec)
    assert isinstance(spec, msgspec.inspect.StructType)
    for field in spec.fields:
        is_optional = isinstance(field.type, msgspec.inspect.UnionType)
        for kind in field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,):
            if isinstance(kind, msgspec.inspect.IntType) and field.name != "size":
                assert kind.ge is not None
                assert kind.le is not None
                yield OptionBounds(field.name, kind.ge, kind.le, is_optional)


OPTION_BOUNDS: Final = tuple(_option_bounds())
"""For checks before a job is encoded; decoding applies the same bounds."""


class Volunteer(BaseControlMessage, frozen=True, kw_only=True, tag="volunteer"):
    """Set what a worker does from now on, replacing its last `volunteer`. Without kinds it gets no more tasks."""

    request: Request
    kinds: Annotated[list[Kind], msgspec.Meta(max_length=MAX_KINDS)] = []
    capacity: Annotated[int, msgspec.Meta(ge=1, le=MAX_CAPACITY)] = 1
    """The number of tasks that it takes at once, including tasks that it queues."""
    holding: Annotated[list[Ref], msgspec.Meta(max_length=MAX_CAPACITY)] = []
    """Leases that it still holds: running, or with an unconfirmed report."""


class VolunteerReply(BaseControlMessage, frozen=True, kw_only=True, tag="volunteered"):
    """The reply to Volunteer."""

    request: Request
    lease_ms: Count
    """A worker that reports nothing for this time loses its tasks."""


class WatchJobs(BaseControlMessage, frozen=True, kw_only=True, tag="watch"):
    """Request the present state of jobs and all later changes. A controller watches its own jobs without asking."""

    request: Request
    jobs: _Numbers


class WatchReply(BaseControlMessage, frozen=True, kw_only=True, tag="watched"):
    """The reply to WatchJobs."""

    request: Request
    unknown: list[Count] = []
    """Jobs that do not exist, were deleted, or may not be seen by this client."""


class UnwatchJobs(BaseControlMessage, frozen=True, kw_only=True, tag="unwatch"):
    """Request no more changes of jobs."""

    request: Request
    jobs: _Numbers


class CancelJob(BaseControlMessage, frozen=True, kw_only=True, tag="cancel"):
    """End a job. Leases of its tasks are revoked."""

    request: Request
    job: Count
    reason: Text = ""


class RetryJob(BaseControlMessage, frozen=True, kw_only=True, tag="retry"):
    """Submit a job that failed or was cancelled once more, as a new job of this client."""

    request: Request
    job: Count
    key: Key
    """The key of the new job."""


class RetryReply(BaseControlMessage, frozen=True, kw_only=True, tag="retried"):
    """The reply to RetryJob, once the new job is stored."""

    request: Request
    job: Count
    """The number of the new job."""


class ListJobs(BaseControlMessage, frozen=True, kw_only=True, tag="jobs"):
    """Request a page of the jobs that this client may see, the newest first."""

    request: Request
    of_kind: Kind | None = None
    controller: Name | None = None
    states: Annotated[list[JobState], msgspec.Meta(max_length=MAX_STATES)] | None = None
    before: Count | None = None
    """Only jobs with lower numbers."""


class JobInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job in a list."""

    job: Count
    key: str
    controller: str
    of_kind: str
    state: JobState
    workers: Count = 1
    """As submitted; 0: all volunteers."""
    agreed: Count | None = None
    """The number of its tasks; None before it is settled."""
    finished: Count = 0
    """The number of tasks with a result."""
    failed: Count = 0
    leased: Count = 0
    priority: Priority = 0
    submitted_us: Count = 0
    begins_us: Count = 0
    """The earliest start of a job with a delay."""
    deadline_us: Count | None = None
    ended_us: Count | None = None
    payload_bytes: Count = 0
    reason: str = ""
    """Why it was cancelled or failed."""


class JobList(BaseControlMessage, frozen=True, kw_only=True, tag="job_list"):
    """The reply to ListJobs."""

    request: Request
    jobs: list[JobInfo] = []
    more: bool = False
    before: Count = 0
    """Where the next page starts, if there are more. A page may be short, or even empty."""


class ShowJob(BaseControlMessage, frozen=True, kw_only=True, tag="job"):
    """Request one job and a page of its tasks."""

    request: Request
    job: Count
    first_task: Count = 0


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task in a list."""

    task: Count
    state: TaskState
    worker: str = ""
    """The worker that holds it, or held it last."""
    fence: Count = 0
    failures: Count = 0
    """Failed attempts."""
    losses: Count = 0
    """Leases that ended without a report: the worker died or stalled."""
    progress: Fraction | None = None
    note: str = ""
    error: str = ""
    """The error of the last failed attempt."""
    since_us: Count = 0
    """When it entered its present state."""
    result_bytes: Count = 0


class JobDetails(BaseControlMessage, frozen=True, kw_only=True, tag="job_shown"):
    """The reply to ShowJob."""

    request: Request
    job: JobInfo
    tasks: list[TaskInfo] = []
    more: bool = False


class ListWorkers(BaseControlMessage, frozen=True, kw_only=True, tag="workers"):
    """List the workers. A page at a time, in the order of their names."""

    request: Request
    after: Name | None = None


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One worker in a list."""

    name: str
    state: WorkerState = "ready"
    kinds: list[str] = []
    """The kinds of work that it volunteered for; cut if there are too many for a control message."""
    capacity: Count = 0
    tasks: Count = 0
    """The tasks that it holds at present."""
    heard_us: Count = 0
    """When it last reported."""


class WorkerList(BaseControlMessage, frozen=True, kw_only=True, tag="worker_list"):
    """A page of workers."""

    request: Request
    workers: list[WorkerInfo] = []
    more: bool = False
