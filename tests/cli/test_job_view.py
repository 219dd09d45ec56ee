"""The texts, tables and JSON of jobs, and how a job is followed."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from tests.cli.fake_jobs import INFO, TASKS, FakeJob

from godwit.cli.job import check_seconds, parse_job, parse_workers
from godwit.cli.job_view import (
    accepted_text,
    ended_text,
    follow,
    job_facts,
    job_line,
    json_line,
    progress_text,
    show_job,
    show_jobs,
    task_line,
    tasks_text,
    update_text,
    workers_text,
)
from godwit.errors import GodwitError, UsageError
from godwit.net.jobs import Update
from godwit.wire.jobs import JobInfo, TaskInfo

# -- job text ---------------------------------------------------------------------------------------------------------


def test_numbers_of_workers() -> None:
    assert parse_workers("all") == "all"
    assert parse_workers("4") == 4
    assert parse_workers("10000") == 10_000


@pytest.mark.parametrize("text", ["0", "-1", "10001", "none", "", "1.5", "٣", "ALL", " 3"])
def test_numbers_of_workers_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="is out of range; give a number from 1 to 10,000, or all"):
        parse_workers(text)


def test_numbers_of_jobs() -> None:
    assert parse_job("7") == 7
    assert parse_job(str(2**63 - 1)) == 2**63 - 1
    for text in ("0", "-7", "seven", "", str(2**63), "9" * 5000):
        with pytest.raises(UsageError, match="is not the number of a job"):
            parse_job(text)


def test_times_of_jobs() -> None:
    check_seconds("--delay", None)
    check_seconds("--delay", 0.0, least_s=0.0)
    check_seconds("--deadline", 3600.0)
    for seconds in (0.0, -1.0, float("nan"), float("inf"), 366 * 86400 + 1.0):
        with pytest.raises(UsageError, match=r"--deadline \S+ is out of range; give seconds, from 0.001 to 31,622,400"):
            check_seconds("--deadline", seconds)


def test_how_a_job_begins() -> None:
    assert accepted_text(FakeJob(agreed=1).as_job()) == "job 7: 1 worker agreed"
    assert accepted_text(FakeJob(agreed=4).as_job()) == "job 7: 4 workers agreed"
    for begins_us in (0, 1_700_000_000_000_000):
        job = FakeJob(agreed=None, begins_us=begins_us)
        assert accepted_text(job.as_job()) == "job 7 waits: no worker volunteers for resize yet"
    late = FakeJob(agreed=None, begins_us=4_000_000_000_000_000)
    assert accepted_text(late.as_job()) == "job 7 waits: it starts no earlier than 2096-10-02 07:06:40 UTC"


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
            "job 7, task 0: failed for good: no (last worker: anna)",
        ),
        (
            Update(what="failure", task=0, error="the deadline passed", is_final=True),
            "job 7, task 0: failed for good: the deadline passed",
        ),
        (Update(what="failure", task=0, error="the deadline"), "job 7, task 0: its worker failed: the deadline"),
        (Update(what="reassigned", task=0, worker="bert"), "job 7, task 0: reassigned to bert"),
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


# -- job list ---------------------------------------------------------------------------------------------------------


WAITING = JobInfo(job=8, key="k-2", controller="boss", of_kind="crop", state="waiting", workers=0)


def test_a_table_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    show_jobs([WAITING, INFO], as_json=False, is_all=True)
    head, waiting, running = capsys.readouterr().out.splitlines()
    assert head.split()[:7] == ["job", "kind", "state", "finished", "running", "failed", "controller"]
    assert waiting.split() == ["8", "crop", "waiting", "0/-", "boss", "k-2"]
    assert running.split() == ["7", "resize", "running", "1/3", "1", "boss", "5", "2023-11-14", "22:13:20", "k-1"]


def test_the_newest_of_many_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    show_jobs([WAITING, INFO], as_json=True, is_all=True, limit=1)
    out, err = capsys.readouterr()
    assert [json.loads(line)["job"] for line in out.splitlines()] == [8]
    assert err == "only the newest 1 are listed; --limit 0 lists all\n"
    show_jobs([WAITING, INFO], as_json=False, is_all=True, limit=2)
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (3, "")


def test_no_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    show_jobs([], as_json=False, is_all=True)
    show_jobs([], as_json=False, is_all=False)
    assert capsys.readouterr() == ("", "no jobs\nno job matches\n")
    show_jobs([], as_json=True, is_all=True)
    assert capsys.readouterr() == ("", "")


def test_jobs_as_objects(capsys: pytest.CaptureFixture[str]) -> None:
    show_jobs([WAITING, INFO], as_json=True, is_all=True)
    waiting, running = map(json.loads, capsys.readouterr().out.splitlines())
    assert (waiting["job"], waiting["kind"], waiting["workers"], waiting["agreed"]) == (8, "crop", "all", None)
    assert (running["workers"], running["submitted"]) == (3, "2023-11-14T22:13:20.000000Z")
    assert waiting["ended"] is None
    assert "of_kind" not in running
    assert list(running)[:4] == ["job", "key", "controller", "kind"], "in the order of what the broker tells"


def test_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    show_job(INFO, TASKS, as_json=False)
    out = capsys.readouterr().out
    facts, _, table = out.partition("\n\n")
    assert "state       running" in facts.splitlines()
    assert "workers     3 requested, 3 agreed" in facts.splitlines()
    assert "tasks       1 finished, 1 running, 1 waiting" in facts.splitlines()
    assert "payload     1.5 kB" in facts.splitlines()
    rows = table.splitlines()
    assert rows[1].split() == ["0", "finished", "anna", "12", "B", "2023-11-14", "22:13:21"]
    assert rows[2].split() == ["1", "leased", "bert\\x1b", "50", "%,", "half", "1", "1", "no", "\\x07"]
    assert rows[3].split() == ["2", "waiting"]


def test_one_job_as_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    show_job(INFO, TASKS, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["controller"] == "boss"
    assert [task["state"] for task in found["tasks"]] == ["finished", "leased", "waiting"]
    assert found["tasks"][1]["progress"] == 0.5
    assert found["tasks"][0]["since"] == "2023-11-14T22:13:21.000000Z"


def test_a_job_without_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    show_job(WAITING, [], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "workers     all requested, none yet" in lines
    assert "tasks       none yet" in lines
    assert lines[-1].startswith("submitted")


def test_times_that_a_job_may_have() -> None:
    info = msgspec.structs.replace(
        INFO,
        begins_us=INFO.submitted_us + 60_000_000,
        deadline_us=INFO.submitted_us + 120_000_000,
        ended_us=INFO.submitted_us + 180_000_000,
        state="failed",
        reason="the deadline passed",
    )
    facts = job_facts(info)
    assert facts["state"] == "failed: the deadline passed"
    assert (facts["begins"][-12:], facts["deadline"][-12:], facts["ended"][-12:]) == (
        "22:14:20 UTC", "22:15:20 UTC", "22:16:20 UTC",
    )  # fmt: skip
    assert {"begins", "deadline", "ended"}.isdisjoint(job_facts(INFO))


def test_counts_in_words() -> None:
    assert workers_text(INFO) == "3 requested, 3 agreed"
    failed = msgspec.structs.replace(INFO, state="failed", finished=2, leased=0, failed=1)
    assert tasks_text(failed) == "2 finished, 1 failed"
    assert tasks_text(msgspec.structs.replace(INFO, state="cancelled", leased=0)) == "1 finished, 2 cancelled"


def test_lines_for_the_shell() -> None:
    assert job_line(INFO) == "7  resize  running  1/3 finished  (boss)"
    assert job_line(msgspec.structs.replace(INFO, reason="no \x1b")).endswith("(boss: no \\x1b)")
    assert task_line(TASKS[0]) == "task 0  finished  anna"
    assert task_line(TASKS[1]) == "task 1  leased  bert\\x1b  50 %, half  1 failure: no \\x07"
    assert task_line(TASKS[2]) == "task 2  waiting"


def test_a_task_that_waits_again_has_no_worker(capsys: pytest.CaptureFixture[str]) -> None:
    task = TaskInfo(task=0, state="waiting", worker="anna", fence=1, failures=1, error="no")
    assert task_line(task) == "task 0  waiting  1 failure: no"
    show_job(INFO, [task], as_json=False)
    assert "anna" not in capsys.readouterr().out


# -- job follow -------------------------------------------------------------------------------------------------------


HAPPENINGS = [
    Update(what="accepted"),
    Update(what="progress", task=0, worker="anna", progress=0.5),
    Update(what="failure", task=1, worker="bert", error="no paper"),
    Update(what="reassigned", task=1, worker="anna"),
    Update(what="result", task=0, worker="anna", result=b"small \x1b"),
    Update(what="result", task=1, worker="anna", result=b"17\n"),
]


def run(job: FakeJob, *, as_json: bool = False, quiet: bool = False) -> None:
    asyncio.run(asyncio.wait_for(follow(job.as_job(), as_json=as_json, quiet=quiet), 20))


def test_results_on_standard_output_and_the_rest_beside_it(capfd: pytest.CaptureFixture[str]) -> None:
    job = FakeJob(updates=HAPPENINGS)
    job.end("done")
    run(job)
    out, err = capfd.readouterr()
    assert out == "anna: small \\x1b\nanna: 17\n"
    assert err.splitlines() == [
        "job 7: 2 workers agreed",
        "job 7, task 1: bert failed: no paper",
        "job 7, task 1: reassigned to anna",
        "job 7: done",
    ]


def test_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    job = FakeJob(updates=HAPPENINGS)
    job.end("done")
    run(job, quiet=True)
    assert capfd.readouterr() == ("anna: small \\x1b\nanna: 17\n", "")


def test_objects(capfd: pytest.CaptureFixture[str]) -> None:
    job = FakeJob(updates=HAPPENINGS)
    job.end("done")
    run(job, as_json=True)
    out, err = capfd.readouterr()
    found = [json.loads(line)["what"] for line in out.splitlines()]
    assert found == ["accepted", "progress", "failure", "reassigned", "result", "result", "done"]
    assert err == ""


@pytest.mark.parametrize(("state", "text"), [("failed", "job 7: failed: too late"), ("cancelled", "job 7: cancelled")])
def test_a_job_that_brings_nothing_is_an_error(state: str, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    job = FakeJob(updates=[Update(what="accepted"), HAPPENINGS[4]])
    if state == "failed":
        job.end("failed", "too late")
    else:
        job.end("cancelled")
    with pytest.raises(GodwitError) as error:
        run(job)
    assert str(error.value) == text
    assert capfd.readouterr().out == "anna: small \\x1b\n"


def test_bars_on_a_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    failed = Update(what="failure", task=2, worker="bert", error="no", is_final=True)
    job = FakeJob(updates=[Update(what="accepted"), HAPPENINGS[1], HAPPENINGS[4], failed], agreed=3)

    async def look() -> None:
        following = asyncio.create_task(follow(job.as_job(), as_json=False, quiet=False))
        while not job.queue.empty():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # several times a second they are drawn
        job.end("done")
        await following

    asyncio.run(look())
    out, err = capfd.readouterr()
    assert out == "anna: small \\x1b\n"
    for text in ("task 0 anna", "100%", "task 1", "waiting", "2 of 3", "job 7, task 2: failed for good: no"):
        assert text in err


def test_many_tasks_share_the_bars(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    results = [Update(what="result", task=n, worker=f"w{n}", result=b"") for n in range(100)]
    job = FakeJob(updates=[Update(what="accepted"), *results], agreed=100)
    job.end("done")
    run(job)
    assert capfd.readouterr().out.splitlines() == [f"w{n}: " for n in range(100)]


def test_the_end_of_waiting_reports_that_the_job_continues(capfd: pytest.CaptureFixture[str]) -> None:
    async def stop() -> None:
        following = asyncio.create_task(follow(FakeJob().as_job(), as_json=False, quiet=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert following.cancelled()

    asyncio.run(stop())
    assert capfd.readouterr().err == "godwit: job 7 continues: see godwit job watch 7, godwit job cancel 7\n"


def test_a_job_that_is_lost_from_sight(capfd: pytest.CaptureFixture[str]) -> None:
    job = FakeJob()
    job.queue.put_nowait(GodwitError("there is no job 7"))
    with pytest.raises(GodwitError, match="there is no job 7"):
        run(job)
    assert capfd.readouterr() == ("", "")
