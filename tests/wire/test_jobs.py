"""Requests about jobs: bounded, so that each of them and each reply fits a control message."""

from __future__ import annotations

from typing import Any, get_args

import cbor2
import pytest

from godwit.errors import DecodeError
from godwit.limits import (
    MAX_CAPACITY,
    MAX_CONTROL_RECORD_BYTES,
    MAX_JOB_KEY_BYTES,
    MAX_KIND_BYTES,
    MAX_KINDS,
    MAX_WATCHED_AT_ONCE,
)
from godwit.wire import jobs as j
from godwit.wire.control import decode_control, encode_control

HIGHEST = 2**63 - 1


def test_the_largest_of_everything_fits_a_control_message() -> None:
    requests: list[Any] = [
        j.Volunteer(
            request=2**32 - 1,
            kinds=["k" * MAX_KIND_BYTES] * MAX_KINDS,
            capacity=MAX_CAPACITY,
            holding=[(HIGHEST, 2**32 - 1, 2**32 - 1)] * MAX_CAPACITY,
        ),
        j.WatchJobs(request=2**32 - 1, jobs=[HIGHEST] * MAX_WATCHED_AT_ONCE),
        j.WatchReply(request=2**32 - 1, unknown=[HIGHEST] * MAX_WATCHED_AT_ONCE),
        j.UnwatchJobs(request=2**32 - 1, jobs=[HIGHEST] * MAX_WATCHED_AT_ONCE),
        j.CancelJob(request=2**32 - 1, job=HIGHEST, reason="r" * 1024),
        j.RetryJob(request=2**32 - 1, job=HIGHEST, key="k" * MAX_JOB_KEY_BYTES),
    ]
    for request in requests:
        data = encode_control(request)
        assert len(data) <= MAX_CONTROL_RECORD_BYTES
        assert decode_control(data) == request


def test_what_has_its_default_value_is_not_sent() -> None:
    assert cbor2.loads(encode_control(j.Volunteer(request=1))) == {"kind": "volunteer", "request": 1}
    info = j.JobInfo(job=7, key="k", controller="c", of_kind="resize", state="waiting")
    shown = cbor2.loads(encode_control(j.JobDetails(request=1, job=info)))
    assert shown["job"] == {"job": 7, "key": "k", "controller": "c", "of_kind": "resize", "state": "waiting"}


def test_states_are_named_alike_where_they_mean_the_same() -> None:
    assert set(get_args(j.JobState)) & set(get_args(j.TaskState)) == {"waiting", "failed", "cancelled"}


REFUSED: list[tuple[str, dict[str, object]]] = [
    ("missing required field `request`", {"kind": "volunteer"}),
    ("length <= 64", {"kind": "volunteer", "request": 1, "kinds": ["k"] * (MAX_KINDS + 1)}),
    ("length >= 1", {"kind": "volunteer", "request": 1, "kinds": [""]}),
    ("length <= 256", {"kind": "volunteer", "request": 1, "kinds": ["k" * (MAX_KIND_BYTES + 1)]}),
    ("Expected `int` >= 1", {"kind": "volunteer", "request": 1, "capacity": 0}),
    ("Expected `int` <= 4096", {"kind": "volunteer", "request": 1, "capacity": MAX_CAPACITY + 1}),
    ("Expected `array` of length 3", {"kind": "volunteer", "request": 1, "holding": [[1, 2]]}),
    ("length <= 4096", {"kind": "volunteer", "request": 1, "holding": [[1, 0, 1]] * (MAX_CAPACITY + 1)}),
    ("missing required field `lease_ms`", {"kind": "volunteered", "request": 1}),
    ("missing required field `jobs`", {"kind": "watch", "request": 1}),
    ("length >= 1", {"kind": "watch", "request": 1, "jobs": []}),
    ("length <= 1024", {"kind": "watch", "request": 1, "jobs": [1] * (MAX_WATCHED_AT_ONCE + 1)}),
    ("Expected `int` >= 0", {"kind": "watch", "request": 1, "jobs": [-1]}),
    ("length >= 1", {"kind": "unwatch", "request": 1, "jobs": []}),
    ("missing required field `job`", {"kind": "cancel", "request": 1}),
    ("length <= 1024", {"kind": "cancel", "request": 1, "job": 1, "reason": "r" * 1025}),
    ("Invalid enum value 'lost'", {"kind": "jobs", "request": 1, "states": ["lost"]}),
    ("length <= 256", {"kind": "jobs", "request": 1, "of_kind": "k" * (MAX_KIND_BYTES + 1)}),
    ("Expected `int` <= 9223372036854775807", {"kind": "jobs", "request": 1, "before": 2**63}),
    ("missing required field `key`", {"kind": "job_list", "request": 1, "jobs": [{"job": 1}]}),
    ("missing required field `job`", {"kind": "job", "request": 1}),
    ("missing required field `job`", {"kind": "job_shown", "request": 1}),
]


@pytest.mark.parametrize(("why", "message"), REFUSED)
def test_every_refusal(why: str, message: dict[str, object]) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_control(cbor2.dumps(message))
    assert caught.value.reason == "control"
    assert why in str(caught.value)
