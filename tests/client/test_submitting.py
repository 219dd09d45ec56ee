"""What a job may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.client.submitting import DEFAULTS, check_key, check_options, check_payload
from godwit.errors import RecordTooLargeError, UsageError
from godwit.limits import MAX_JOB_TIME_MS, MAX_PRIORITY, MAX_RETRIES, MAX_TASKS_OF_JOB
from godwit.wire.jobs import JobSpec

NAMES = ("workers", "priority", "delay_ms", "deadline_ms", "retries", "retry_delay_ms", "time_limit_ms")


def options(**changed: Any) -> dict[str, Any]:
    return dict(zip(NAMES, DEFAULTS, strict=True)) | changed


def test_the_defaults_are_those_of_the_wire_and_may_be() -> None:
    submission = JobSpec(key="k", of_kind="kind")
    assert tuple(getattr(submission, name) for name in NAMES) == DEFAULTS
    check_options(*DEFAULTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", -1),
        ("workers", MAX_TASKS_OF_JOB + 1),
        ("workers", "all"),
        ("workers", True),
        ("workers", None),
        ("priority", -MAX_PRIORITY - 1),
        ("priority", MAX_PRIORITY + 1),
        ("delay_ms", -1),
        ("delay_ms", 1.5),
        ("deadline_ms", 0),
        ("deadline_ms", MAX_JOB_TIME_MS + 1),
        ("retries", -1),
        ("retries", MAX_RETRIES + 1),
        ("retry_delay_ms", -1),
        ("retry_delay_ms", None),
        ("time_limit_ms", 0),
    ],
)
def test_what_cannot_be(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        check_options(**options(**{name: value}))


@pytest.mark.parametrize(
    "changed",
    [
        {"workers": 0},
        {"workers": MAX_TASKS_OF_JOB},
        {"priority": -MAX_PRIORITY},
        {"delay_ms": MAX_JOB_TIME_MS, "deadline_ms": MAX_JOB_TIME_MS, "time_limit_ms": 1},
        {"retries": 0, "retry_delay_ms": 0},
    ],
)
def test_what_can_be(changed: dict[str, int]) -> None:
    check_options(**options(**changed))


def test_keys() -> None:
    assert check_key("order-7") == 7
    assert check_key("ü" * 32) == 64
    wrong: list[Any] = ["", "x" * 65, "ü" * 33, "\ud800", 5, b"x"]
    for bad in wrong:
        with pytest.raises(UsageError, match="key"):
            check_key(bad)


def test_payloads() -> None:
    check_payload("it", b"", 1000)
    check_payload("it", bytes(1000), 1000)
    with pytest.raises(RecordTooLargeError, match="the thing has 1001 bytes, the broker takes 1000: send larger"):
        check_payload("the thing", bytes(1001), 1000)
    text: Any = "text"
    with pytest.raises(UsageError, match="str"):
        check_payload("it", text, 1000)
