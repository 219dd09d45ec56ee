"""Jobs and tasks as tables, lines and objects."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.cli.fake_jobs import INFO, TASKS

from godwit.cli.job_list import (
    job_facts,
    job_line,
    show_job,
    show_jobs,
    task_line,
    tasks_text,
    workers_text,
)
from godwit.wire.jobs import JobInfo, TaskInfo

WAITING = JobInfo(job=8, key="k-2", controller="boss", of_kind="crop", state="waiting", workers=0)


def test_a_table_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    show_jobs([WAITING, INFO], as_json=False, is_all=True)
    head, waiting, running = capsys.readouterr().out.splitlines()
    assert head.split()[:8] == ["job", "kind", "state", "finished", "at", "work", "failed", "controller"]
    assert waiting.split() == ["8", "crop", "waiting", "0/-", "boss", "k-2"]
    assert running.split() == ["7", "resize", "running", "1/3", "1", "boss", "5", "2023-11-14", "22:13:20", "k-1"]


def test_the_newest_of_many_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    show_jobs([WAITING, INFO], as_json=True, is_all=True, limit=1)
    out, err = capsys.readouterr()
    assert [json.loads(line)["job"] for line in out.splitlines()] == [8]
    assert err == "these are the newest 1; --limit 0 shows all\n"
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
    assert "workers     3 asked for, 3 agreed" in facts.splitlines()
    assert "tasks       1 finished, 1 at work, 1 waiting" in facts.splitlines()
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
    assert "workers     all asked for, none yet" in lines
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
    assert workers_text(INFO) == "3 asked for, 3 agreed"
    failed = msgspec.structs.replace(INFO, state="failed", finished=2, leased=0, failed=1)
    assert tasks_text(failed) == "2 finished, 1 failed"
    assert tasks_text(msgspec.structs.replace(INFO, state="cancelled", leased=0)) == "1 finished, 2 cancelled"


def test_lines_for_the_shell() -> None:
    assert job_line(INFO) == "7  resize  running  1/3 finished  (boss)"
    assert job_line(msgspec.structs.replace(INFO, reason="no \x1b")).endswith("(boss: no \\x1b)")
    assert task_line(TASKS[0]) == "task 0  finished  anna"
    assert task_line(TASKS[1]) == "task 1  leased  bert\\x1b  50 %, half  1 failure: no \\x07"
    assert task_line(TASKS[2]) == "task 2  waiting"


def test_a_task_that_waits_again_is_nobodys(capsys: pytest.CaptureFixture[str]) -> None:
    task = TaskInfo(task=0, state="waiting", worker="anna", fence=1, failures=1, error="no")
    assert task_line(task) == "task 0  waiting  1 failure: no"
    show_job(INFO, [task], as_json=False)
    assert "anna" not in capsys.readouterr().out
