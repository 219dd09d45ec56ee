"""The options of a job as an application passes them to `submit`, and their conversion to a JobSpec."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from msgspec.structs import replace

from godwit.broker.topics import check_kind
from godwit.client.batches import Payload, to_bytes
from godwit.client.jobs import check_key
from godwit.errors import UsageError
from godwit.limits import MAX_JOB_TIME_MS
from godwit.wire.jobs import OPTION_BOUNDS, JobSpec, JobState

Workers: TypeAlias = int | Literal["all"]
JobLike: TypeAlias = tuple[str, Payload] | tuple[str, Payload, str | None]
"""(kind, payload) or (kind, payload, key)."""
Submission: TypeAlias = tuple[JobSpec, bytes]
"""A checked job and its payload."""
JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)
MAX_TIME_S: Final = MAX_JOB_TIME_MS / 1000
MAX_JOB_NUMBER: Final = 2**63 - 1
_BOUNDS: Final = {bounds.option: bounds for bounds in OPTION_BOUNDS}


class JobOptions(TypedDict, total=False):
    """The options of `submit`. Each comment begins with the default."""

    workers: Workers
    """1. The number of workers that each do the whole job: at most as many as volunteer, or "all" of them."""
    priority: int
    """0. Jobs with a higher priority start first."""
    delay_s: float
    """0. Start no earlier than this many seconds from now."""
    deadline_s: float | None
    """None. The job fails if it has not ended this many seconds from now."""
    retries: int
    """3. How often a failed task is tried again. The loss of a worker does not count as a failure."""
    retry_delay_s: float
    """1. Pause before the first retry in seconds; it doubles with each further one."""
    time_limit_s: float | None
    """None. An attempt that takes longer than this many seconds has failed."""


def job_spec(
    kind: str = "",
    key: str | None = None,
    *,
    workers: Workers = 1,
    priority: int = 0,
    delay_s: float = 0.0,
    deadline_s: float | None = None,
    retries: int = 3,
    retry_delay_s: float = 1.0,
    time_limit_s: float | None = None,
) -> JobSpec:
    """Return the job that the options of `submit` describe; without a key it has an empty one.

    Raises:
        UsageError: The key or an option is invalid.
    """
    if key is not None:
        check_key(key)
    return JobSpec(
        key=key or "",
        of_kind=kind,
        workers=_number_of(workers),
        priority=_whole("priority", priority),
        delay_ms=_milliseconds("delay_s", delay_s),
        deadline_ms=None if deadline_s is None else _limit("deadline_s", deadline_s),
        retries=_whole("retries", retries),
        retry_delay_ms=_milliseconds("retry_delay_s", retry_delay_s),
        time_limit_ms=None if time_limit_s is None else _limit("time_limit_s", time_limit_s),
    )


def checked_spec(kind: str, key: str | None, options: JobOptions) -> JobSpec:
    """Return the job of `submit`. Raise UsageError also for an option that does not exist."""
    unknown = [name for name in options if name not in JobOptions.__annotations__]
    if unknown:
        raise UsageError(
            f"submit has no option {unknown[0]!r}: choose from key, timeout_s, {', '.join(JobOptions.__annotations__)}"
        )
    return job_spec(kind, key, **options)


def _number_of(workers: object) -> int:
    if workers == "all":
        return 0
    most = _BOUNDS["workers"].most
    if type(workers) is int and 1 <= workers <= most:
        return workers
    raise UsageError(f"workers is {workers!r}: give a number from 1 to {most}, or 'all'")


def _whole(what: str, value: object) -> int:
    bounds = _BOUNDS[what]
    if type(value) is not int or not bounds.least <= value <= bounds.most:
        raise UsageError(f"{what} is {value!r}: give a whole number from {bounds.least} to {bounds.most}")
    return value


def _milliseconds(what: str, seconds: object) -> int:
    """Convert seconds, rounding up so that a short time does not become 0."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= MAX_TIME_S:
        raise UsageError(f"{what} is {seconds!r}: give seconds, from 0 to {MAX_TIME_S:.0f}")
    return math.ceil(seconds * 1000)


def _limit(what: str, seconds: float) -> int:
    milliseconds = _milliseconds(what, seconds)
    if not milliseconds:
        raise UsageError(f"{what} is 0: the job would fail before it begins; give more, or None")
    return milliseconds


def check_number(number: int) -> None:
    """Raise UsageError if a job cannot have this number."""
    if type(number) is not int:
        raise UsageError(f"the number of a job is {number!r}, of the type {type(number).__name__}: give a whole number")
    if not 1 <= number <= MAX_JOB_NUMBER:
        raise UsageError(f"no job has the number {number}: they are counted from 1")


def check_states(states: Iterable[str] | None) -> list[JobState] | None:
    """Return the states as a list, or None for all. Raise UsageError for an unknown state."""
    if states is None:
        return None
    if isinstance(states, str) or not isinstance(states, list | tuple | set | frozenset):
        raise UsageError(f"states is {repr(states)[:80]}: give a list of states")
    found: list[JobState] = []
    for wanted in states:
        match = next((state for state in JOB_STATES if state == wanted), None)
        if match is None:
            raise UsageError(
                f"there is no state {wanted!r} of a job; choose {', '.join(JOB_STATES[:-1])} or {JOB_STATES[-1]}"
            )
        found.append(match)
    return found


def listed_jobs(jobs: Iterable[Any]) -> list[JobLike]:
    """Return the jobs given to `submit_many` as a list. Raise UsageError if they are not a series of jobs."""
    if isinstance(jobs, str | bytes) or not isinstance(jobs, Iterable):
        raise UsageError(f"jobs is of the type {type(jobs).__name__}: give a list of (kind, payload)")
    return list(jobs)


def check_submissions(jobs: Iterable[object], spec: JobSpec) -> list[Submission]:
    """Return the jobs given to `submit_many`, each with the options of `spec`, and their encoded payloads.

    Raises:
        UsageError: A job is invalid.
    """
    found: list[Submission] = []
    checked_kind: str | None = None
    for job in jobs:
        parts: tuple[Any, ...] = job if isinstance(job, tuple) else ()
        key = None
        if len(parts) == 2:
            kind, payload = parts
        elif len(parts) == 3:
            kind, payload, key = parts
        else:
            raise UsageError(
                f"{str(job)[:40]!r} is not a job: give (kind, payload), or (kind, payload, key) if it has its own key"
            )
        if kind is not checked_kind:  # most jobs have the same kind
            check_kind(kind)
            checked_kind = kind
        if key is not None:
            check_key(key)
        body = payload if type(payload) is bytes else to_bytes(payload)
        found.append((replace(spec, of_kind=kind, key=key or ""), body))
    return found
