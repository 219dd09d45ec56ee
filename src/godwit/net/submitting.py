"""What can be asked for with a job, as an application says it and as the client takes it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from godwit.broker.topics import check_kind
from godwit.client.batches import Payload, to_bytes
from godwit.client.jobs import check_key
from godwit.errors import UsageError
from godwit.limits import MAX_JOB_TIME_MS, MAX_PRIORITY, MAX_RETRIES, MAX_TASKS_OF_JOB
from godwit.wire.jobs import JobState

Workers: TypeAlias = int | Literal["all"]
JobLike: TypeAlias = tuple[str, Payload] | tuple[str, Payload, str | None]
"""A kind and a payload, and a key if it has one of its own."""
Wanted: TypeAlias = tuple[str, bytes, str | None]
JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)
MAX_TIME_S: Final = MAX_JOB_TIME_MS / 1000
MAX_JOB_NUMBER: Final = 2**63 - 1


class JobOptions(TypedDict, total=False):
    """The options of `submit`. Whatever is left out is as the comments say."""

    workers: Workers
    """How many are to do it, each the whole of it: 1, or at most so many as there are, or "all" that there are."""
    priority: int
    """0; higher ones go first."""
    delay_s: float
    """0: it may begin at once."""
    deadline_s: float | None
    """None. A job that has not ended by then, counted from now, fails."""
    retries: int
    """3: how often a task is tried again after it failed. A worker that is lost is no failure."""
    retry_delay_s: float
    """1, before the first retry; it doubles with each."""
    time_limit_s: float | None
    """None. An attempt that takes longer has failed."""


class CoreOptions(TypedDict):
    """The same for godwit.client.protocol.ClientProtocol.submit."""

    workers: int
    priority: int
    delay_ms: int
    deadline_ms: int | None
    retries: int
    retry_delay_ms: int
    time_limit_ms: int | None


def core_options(
    *,
    workers: Workers = 1,
    priority: int = 0,
    delay_s: float = 0.0,
    deadline_s: float | None = None,
    retries: int = 3,
    retry_delay_s: float = 1.0,
    time_limit_s: float | None = None,
) -> CoreOptions:
    """UsageError for what cannot be."""
    return {
        "workers": _number_of(workers),
        "priority": _whole("priority", priority, -MAX_PRIORITY, MAX_PRIORITY),
        "delay_ms": _milliseconds("delay_s", delay_s),
        "deadline_ms": None if deadline_s is None else _limit("deadline_s", deadline_s),
        "retries": _whole("retries", retries, 0, MAX_RETRIES),
        "retry_delay_ms": _milliseconds("retry_delay_s", retry_delay_s),
        "time_limit_ms": None if time_limit_s is None else _limit("time_limit_s", time_limit_s),
    }


def _number_of(workers: object) -> int:
    if workers == "all":
        return 0
    if type(workers) is int and 1 <= workers <= MAX_TASKS_OF_JOB:
        return workers
    raise UsageError(f"workers is {workers!r}: give how many, 1 to {MAX_TASKS_OF_JOB}, or 'all'")


def _whole(what: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise UsageError(f"{what} is {value!r}: give a whole number from {least} to {most}")
    return value


def _milliseconds(what: str, seconds: object) -> int:
    """Rounded up: a short time is not none."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= MAX_TIME_S:
        raise UsageError(f"{what} is {seconds!r}: give seconds, from 0 to {MAX_TIME_S:.0f}")
    return math.ceil(seconds * 1000)


def _limit(what: str, seconds: float) -> int:
    milliseconds = _milliseconds(what, seconds)
    if not milliseconds:
        raise UsageError(f"{what} is 0: the job would fail before it begins; give more, or None")
    return milliseconds


def check_number(number: int) -> None:
    """UsageError if no job can have it."""
    if type(number) is not int:
        raise UsageError(f"the number of a job is {number!r}, of the type {type(number).__name__}: give a whole number")
    if not 1 <= number <= MAX_JOB_NUMBER:
        raise UsageError(f"no job has the number {number}: they are counted from 1")


def check_states(states: Iterable[str] | None) -> list[JobState] | None:
    """None for all. UsageError for a state that there is not."""
    if states is None:
        return None
    if isinstance(states, str):
        raise UsageError(f"states is the text {states!r}: give a list of states")
    found: list[JobState] = []
    for wanted in states:
        match = next((state for state in JOB_STATES if state == wanted), None)
        if match is None:
            raise UsageError(
                f"there is no state {wanted!r} of a job; choose {', '.join(JOB_STATES[:-1])} or {JOB_STATES[-1]}"
            )
        found.append(match)
    return found


def wanted_jobs(jobs: Iterable[object]) -> list[Wanted]:
    """What `submit_many` was given, looked at as a whole. UsageError for the first that cannot be."""
    found: list[Wanted] = []
    looked_at: str | None = None
    for job in jobs:
        parts: tuple[Any, ...] = job if isinstance(job, tuple) else ()
        key = None
        if len(parts) == 2:
            kind, payload = parts
        elif len(parts) == 3:
            kind, payload, key = parts
        else:
            raise UsageError(
                f"{str(job)[:40]!r} is no job: give (kind, payload), or (kind, payload, key) if it has a key of its own"
            )
        if kind is not looked_at:  # most are of one kind
            check_kind(kind)
            looked_at = kind
        if key is not None:
            check_key(key)
        found.append((kind, payload if type(payload) is bytes else to_bytes(payload), key))
    return found
