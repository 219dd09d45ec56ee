"""What a job may ask for, looked at before it is sent: what no broker would take is the caller's error."""

from __future__ import annotations

from typing import Final

from godwit.errors import RecordTooLargeError, UsageError
from godwit.limits import (
    MAX_JOB_KEY_BYTES,
    MAX_JOB_TIME_MS,
    MAX_PRIORITY,
    MAX_RETRIES,
    MAX_TASKS_OF_JOB,
)

DEFAULTS: Final = (1, 0, 0, None, 3, 1000, None)
"""Of workers, priority, delay, deadline, retries, the delay of retries, time limit: these need no look."""


def check_payload(what: str, payload: bytes, most_bytes: int) -> None:
    """Of a job, or a task's result."""
    if type(payload) is not bytes:
        raise UsageError(f"{what} is of the type {type(payload).__name__}: give bytes")
    if len(payload) > most_bytes:
        raise RecordTooLargeError(too_large(what, len(payload), most_bytes))


def too_large(what: str, size_bytes: int, most_bytes: int) -> str:
    """In words."""
    return (
        f"{what} has {size_bytes} bytes, the broker takes {most_bytes}: "
        "send larger things as files, and let the job name them"
    )


def check_key(key: str) -> int:
    """Gives its bytes."""
    if not isinstance(key, str):
        raise UsageError(f"the key is {key!r}, of the type {type(key).__name__}: give a text")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise UsageError(f"the key {key[:40]!r} has characters that cannot be written as UTF-8") from None
    if not 1 <= size <= MAX_JOB_KEY_BYTES:
        raise UsageError(f"the key {key[:40]!r} has {size} bytes in UTF-8: a key has 1 to {MAX_JOB_KEY_BYTES}")
    return size


def check_options(
    workers: int,
    priority: int,
    delay_ms: int,
    deadline_ms: int | None,
    retries: int,
    retry_delay_ms: int,
    time_limit_ms: int | None,
) -> None:
    """UsageError for the first that is out of its range."""
    for what, value, least, most in (
        ("workers", workers, 0, MAX_TASKS_OF_JOB),
        ("priority", priority, -MAX_PRIORITY, MAX_PRIORITY),
        ("delay_ms", delay_ms, 0, MAX_JOB_TIME_MS),
        ("deadline_ms", deadline_ms, 1, MAX_JOB_TIME_MS),
        ("retries", retries, 0, MAX_RETRIES),
        ("retry_delay_ms", retry_delay_ms, 0, MAX_JOB_TIME_MS),
        ("time_limit_ms", time_limit_ms, 1, MAX_JOB_TIME_MS),
    ):
        if value is None and what in ("deadline_ms", "time_limit_ms"):
            continue
        if type(value) is not int or not least <= value <= most:
            raise UsageError(f"{what} is {value!r}: it is a whole number between {least} and {most}")
