"""Following a job: what goes to standard output, what is said beside it, and how it ends."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.cli.fake_jobs import FakeJob

from godwit.cli.job_follow import follow
from godwit.errors import GodwitError
from godwit.net.jobs import Update

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
        "job 7, task 1: goes to anna",
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
    for text in ("task 0 anna", "100%", "task 1", "waits", "2 of 3", "job 7, task 2: failed for good: no"):
        assert text in err


def test_many_tasks_share_the_bars(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    results = [Update(what="result", task=n, worker=f"w{n}", result=b"") for n in range(100)]
    job = FakeJob(updates=[Update(what="accepted"), *results], agreed=100)
    job.end("done")
    run(job)
    assert capfd.readouterr().out.splitlines() == [f"w{n}: " for n in range(100)]


def test_who_stops_waiting_is_told_that_the_job_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    async def stop() -> None:
        following = asyncio.create_task(follow(FakeJob().as_job(), as_json=False, quiet=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert following.cancelled()

    asyncio.run(stop())
    assert capfd.readouterr().err == "godwit: job 7 goes on: see godwit job watch 7, godwit job cancel 7\n"


def test_a_job_that_is_lost_from_sight(capfd: pytest.CaptureFixture[str]) -> None:
    job = FakeJob()
    job.queue.put_nowait(GodwitError("there is no job 7"))
    with pytest.raises(GodwitError, match="there is no job 7"):
        run(job)
    assert capfd.readouterr() == ("", "")
