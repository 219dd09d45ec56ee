"""The options of a job, in seconds and words."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from godwit.client.client import Client
from godwit.errors import UsageError
from godwit.net.submitting import CoreOptions, JobOptions, core_options


def test_what_is_left_out_is_as_the_client_has_it() -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(Client.submit).parameters.items()
        if name in CoreOptions.__annotations__
    }
    assert core_options() == defaults


def test_every_option_has_its_place() -> None:
    assert set(JobOptions.__annotations__) == set(inspect.signature(core_options).parameters)
    assert core_options(
        workers="all", priority=5, delay_s=2, deadline_s=60.0, retries=0, retry_delay_s=0.5, time_limit_s=0.0001
    ) == {
        "workers": 0,
        "priority": 5,
        "delay_ms": 2000,
        "deadline_ms": 60_000,
        "retries": 0,
        "retry_delay_ms": 500,
        "time_limit_ms": 1,
    }


@pytest.mark.parametrize("workers", [0, -1, 1.5, "some", "0", True, None])
def test_workers_are_counted_from_one(workers: Any) -> None:
    with pytest.raises(UsageError, match="give how many, 1 or more, or 'all'"):
        core_options(workers=workers)


@pytest.mark.parametrize("option", ["delay_s", "deadline_s", "retry_delay_s", "time_limit_s"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_times_are_not_negative(option: str, value: float) -> None:
    options: Any = {option: value}
    with pytest.raises(UsageError, match=f"{option} is .*: give seconds, 0 or more"):
        core_options(**options)


@pytest.mark.parametrize("option", ["deadline_s", "time_limit_s"])
def test_no_time_at_all_is_no_limit_but_a_mistake(option: str) -> None:
    options: Any = {option: 0}
    with pytest.raises(UsageError, match=f"{option} is 0: the job would fail"):
        core_options(**options)
