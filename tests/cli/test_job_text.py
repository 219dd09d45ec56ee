"""What is said of jobs, and how a user may write of them."""

from __future__ import annotations

import json

import pytest
from tests.cli.fake_jobs import FakeJob

from godwit.cli.job_text import (
    accepted_text,
    check_seconds,
    ended_text,
    json_line,
    parse_job,
    parse_workers,
    progress_text,
    update_text,
)
from godwit.errors import UsageError
from godwit.net.jobs import Update


def test_numbers_of_workers() -> None:
    assert parse_workers("all") == "all"
    assert parse_workers("4") == 4
    assert parse_workers("10000") == 10_000


@pytest.mark.parametrize("text", ["0", "-1", "10001", "none", "", "1.5", "٣", "ALL", " 3"])
def test_numbers_of_workers_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="workers cannot be; give a number from 1 to 10,000, or all"):
        parse_workers(text)


def test_numbers_of_jobs() -> None:
    assert parse_job("7") == 7
    assert parse_job(str(2**63 - 1)) == 2**63 - 1
    for text in ("0", "-7", "seven", "", str(2**63), "9" * 5000):
        with pytest.raises(UsageError, match="is no job's number"):
            parse_job(text)


def test_times_of_jobs() -> None:
    check_seconds("--delay", None)
    check_seconds("--delay", 0.0, least_s=0.0)
    check_seconds("--deadline", 3600.0)
    for seconds in (0.0, -1.0, float("nan"), float("inf"), 366 * 86400 + 1.0):
        with pytest.raises(UsageError, match=r"--deadline \S+ cannot be; give seconds, from 0.001 to 31,622,400"):
            check_seconds("--deadline", seconds)


def test_how_a_job_begins() -> None:
    assert accepted_text(FakeJob(agreed=1).as_job()) == "job 7: 1 worker agreed"
    assert accepted_text(FakeJob(agreed=4).as_job()) == "job 7: 4 workers agreed"
    for begins_us in (0, 1_700_000_000_000_000):
        job = FakeJob(agreed=None, begins_us=begins_us)
        assert accepted_text(job.as_job()) == "job 7 waits: nobody works on resize yet"
    late = FakeJob(agreed=None, begins_us=4_000_000_000_000_000)
    assert accepted_text(late.as_job()) == "job 7 waits: it is not to begin before 2096-10-02 07:06:40 UTC"


@pytest.mark.parametrize(
    ("update", "text"),
    [
        (Update(what="accepted"), "job 7: 2 workers agreed"),
        (Update(what="settled"), "job 7: 2 workers agreed"),
        (Update(what="progress", task=1, worker="anna", progress=0.509), "job 7, task 1: anna is at 50 %"),
        (Update(what="progress", task=1, worker="anna", note="reading"), "job 7, task 1: anna is at reading"),
        (Update(what="result", task=0, worker="a\x1b", result=b"\x1b[2J"), "job 7, task 0: a\\x1b finished: \\x1b[2J"),
        (Update(what="result", task=0, worker="anna", result=b"17\n\n"), "job 7, task 0: anna finished: 17\\n"),
        (Update(what="failure", task=0, worker="anna", error="no\n"), "job 7, task 0: anna failed: no\\n"),
        (
            Update(what="failure", task=0, worker="anna", error="no", is_final=True),
            "job 7, task 0: failed for good: no (it was with anna last)",
        ),
        (
            Update(what="failure", task=0, error="the deadline passed", is_final=True),
            "job 7, task 0: failed for good: the deadline passed",
        ),
        (Update(what="failure", task=0, error="the deadline"), "job 7, task 0: its worker failed: the deadline"),
        (Update(what="reassigned", task=0, worker="bert"), "job 7, task 0: goes to bert"),
        (Update(what="done"), "job 7: running"),
    ],
)  # fmt: skip
def test_updates_in_words(update: Update, text: str) -> None:
    assert update_text(FakeJob().as_job(), update) == text


def test_how_a_job_ended() -> None:
    assert ended_text(FakeJob(state="done").as_job()) == "job 7: done"
    assert ended_text(FakeJob(state="failed", reason="too \x07").as_job()) == "job 7: failed: too \\x07"


def test_progress_in_words() -> None:
    assert progress_text(0.999, "nearly\x1b") == "99 %, nearly\\x1b"
    assert progress_text(None, "") == "work"


def line(job: FakeJob, update: Update) -> dict[str, object]:
    encoded = json_line(job.as_job(), update)
    assert encoded.endswith(b"}\n")
    found = json.loads(encoded)
    assert isinstance(found, dict)
    return found


def test_updates_as_objects() -> None:
    job = FakeJob(state="cancelled", reason="enough")
    assert line(job, Update(what="accepted")) == {"job": 7, "what": "accepted", "agreed": 2}
    assert line(job, Update(what="result", task=0, worker="anna", result="21 °C".encode())) == {
        "job": 7, "what": "result", "task": 0, "worker": "anna", "result": "21 °C",
    }  # fmt: skip
    assert line(job, Update(what="result", task=0, worker="anna", result=b"\xff\x80"))["result_base64"] == "/4A="
    assert line(job, Update(what="failure", task=1, error="no", is_final=True)) == {
        "job": 7, "what": "failure", "task": 1, "error": "no", "is_final": True,
    }  # fmt: skip
    assert line(job, Update(what="cancelled", error="enough")) == {
        "job": 7, "what": "cancelled", "agreed": 2, "reason": "enough",
    }  # fmt: skip
