"""The options of a job, in seconds and words."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from godwit.errors import UsageError
from godwit.limits import MAX_TASKS_OF_JOB
from godwit.net.job_options import (
    JobOptions,
    check_number,
    check_states,
    check_submissions,
    job_spec,
)
from godwit.wire.jobs import JobSpec


def test_the_defaults_are_those_of_the_wire() -> None:
    assert job_spec("resize", "k") == JobSpec(key="k", of_kind="resize")


def test_every_option_has_its_place() -> None:
    assert {*JobOptions.__annotations__, "kind", "key"} == set(inspect.signature(job_spec).parameters)
    assert job_spec(
        workers="all", priority=5, delay_s=2, deadline_s=60.0, retries=0, retry_delay_s=0.5, time_limit_s=0.0001
    ) == JobSpec(
        key="",
        of_kind="",
        workers=0,
        priority=5,
        delay_ms=2000,
        deadline_ms=60_000,
        retries=0,
        retry_delay_ms=500,
        time_limit_ms=1,
    )


@pytest.mark.parametrize("workers", [0, -1, 1.5, "some", "0", True, None, MAX_TASKS_OF_JOB + 1])
def test_workers_are_counted_from_one(workers: Any) -> None:
    with pytest.raises(UsageError, match="give a number from 1 to 10000, or 'all'"):
        job_spec(workers=workers)


@pytest.mark.parametrize("option", ["delay_s", "deadline_s", "retry_delay_s", "time_limit_s"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 366 * 86400 + 1, "x", True, b"1"])
def test_times_are_seconds(option: str, value: Any) -> None:
    options: Any = {option: value}
    with pytest.raises(UsageError, match=f"{option} is .*: give seconds, from 0 to 31622400"):
        job_spec(**options)


@pytest.mark.parametrize("option", ["deadline_s", "time_limit_s"])
def test_no_time_at_all_is_no_limit_but_a_mistake(option: str) -> None:
    options: Any = {option: 0}
    with pytest.raises(UsageError, match=f"{option} is 0: the job would fail"):
        job_spec(**options)


@pytest.mark.parametrize("option", ["priority", "retries"])
@pytest.mark.parametrize("value", ["x", None, 3.0, True, 1001])
def test_numbers_are_whole(option: str, value: Any) -> None:
    """Also values that are equal to a valid number: the broker would not accept them."""
    options: Any = {option: value}
    with pytest.raises(UsageError, match=f"{option} is .*: give a whole number from "):
        job_spec(**options)


def test_numbers_of_jobs() -> None:
    check_number(1)
    check_number(2**63 - 1)
    for number in (0, -1, 2**63):
        with pytest.raises(UsageError, match=f"no job has the number {number}: they are counted from 1"):
            check_number(number)
    wrong: list[Any] = ["7", 7.0, None, True]
    for found in wrong:
        with pytest.raises(UsageError, match="give a whole number"):
            check_number(found)


def test_states() -> None:
    assert check_states(None) is None
    assert check_states(["waiting", "done"]) == ["waiting", "done"]
    with pytest.raises(
        UsageError, match="there is no state 'asleep' of a job; choose waiting, running, done, failed or"
    ):
        check_states(["done", "asleep"])
    with pytest.raises(UsageError, match="states is 'done': give a list of states"):
        check_states("done")


def test_many_jobs_are_looked_at_as_a_whole() -> None:
    assert check_submissions([("a", "ü"), ("b", b"2", "mine"), ("b", b"", None)], job_spec(retries=5)) == [
        (job_spec("a", retries=5), "ü".encode()),
        (job_spec("b", "mine", retries=5), b"2"),
        (job_spec("b", retries=5), b""),
    ]
    wrong: list[tuple[Any, str]] = [
        ("resize", "'resize' is not a job: give"),
        (("a",), "is not a job"),
        (("a", b"", "k", 1), "is not a job"),
        (5, "'5' is not a job"),
        ((5, b""), "the kind of work 5 is of the type int: give a text"),
        (([], b""), "is of the type list"),
        (("a", {3}), "a payload of type set"),
        (("a", b"", 5), "the key is 5, of the type int: give a text"),
        (("a", b"", ""), "a key has 1 to 64"),
    ]
    for job, text in wrong:
        with pytest.raises(UsageError, match=text):
            check_submissions([("a", b""), job], job_spec())
