"""What can be asked for with a job, as an application says it and as the client takes it."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, TypedDict

from godwit.errors import UsageError

Workers: TypeAlias = int | Literal["all"]


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
    """The same for godwit.client.client.Client.submit."""

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
    """UsageError for what cannot be; the client's core checks what else there is."""
    return {
        "workers": _number_of(workers),
        "priority": priority,
        "delay_ms": _milliseconds("delay_s", delay_s),
        "deadline_ms": None if deadline_s is None else _limit("deadline_s", deadline_s),
        "retries": retries,
        "retry_delay_ms": _milliseconds("retry_delay_s", retry_delay_s),
        "time_limit_ms": None if time_limit_s is None else _limit("time_limit_s", time_limit_s),
    }


def _number_of(workers: object) -> int:
    if workers == "all":
        return 0
    if isinstance(workers, int) and not isinstance(workers, bool) and workers > 0:
        return workers
    raise UsageError(f"workers is {workers!r}: give how many, 1 or more, or 'all'")


def _milliseconds(what: str, seconds: float) -> int:
    """Rounded up: a short time is not none."""
    if not 0 <= seconds < math.inf:
        raise UsageError(f"{what} is {seconds!r}: give seconds, 0 or more")
    return math.ceil(seconds * 1000)


def _limit(what: str, seconds: float) -> int:
    milliseconds = _milliseconds(what, seconds)
    if not milliseconds:
        raise UsageError(f"{what} is 0: the job would fail before it begins; give more, or None")
    return milliseconds


def check_number(number: int) -> None:
    """UsageError if no job can have it."""
    if type(number) is not int or not 1 <= number < 2**63:
        raise UsageError(f"no job has the number {number!r}: they are counted from 1")
