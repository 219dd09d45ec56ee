"""`godwit job` as a user sees it."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.real import broker, error_of, eventually, godwit, lines, needs_posix, running, write_secret
from tests.ports import free_port

from godwit.cli.job import JOB_PAYLOAD, SubmitRequest
from godwit.cli.streams import read_payload as read_any_payload
from godwit.errors import GodwitError, UsageError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES
from godwit.net.job_options import JobOptions

# -- job --------------------------------------------------------------------------------------------------------------


NEVER = "job/without workers"


@pytest.fixture(scope="module")
def quick(address: str) -> Iterator[str]:
    """An address with two workers for the kind job/quick."""
    options = ("--kind", "job/quick", "--seconds", "0", "--broker", address)
    with running("worker", "quick-1", *options) as one, running("worker", "quick-2", *options) as two:
        one.err.until("volunteers")
        two.err.until("volunteers")
        yield address


def submit(address: str, *arguments: str) -> int:
    """The number of a new job."""
    result = godwit("job", "submit", *arguments, "-q", "--broker", address)
    assert (result.returncode, result.stderr) == (0, b"")
    return int(result.stdout)


def show(address: str, number: int) -> dict[str, object]:
    found = json.loads(godwit("job", "show", str(number), "--json", "--broker", address).stdout)
    assert isinstance(found, dict)
    return found


# -- submit -----------------------------------------------------------------------------------------------------------


def test_the_number_of_the_job_and_of_its_workers_are_printed(quick: str) -> None:
    result = godwit("job", "submit", "job/quick", "x", "--workers", "5", "--broker", quick)
    assert result.returncode == 0
    assert re.fullmatch(r"[1-9]\d*\n", result.stdout.decode())
    assert result.stderr.decode() == f"job {int(result.stdout)}: 2 workers agreed\n"


def test_a_job_without_workers_waits(address: str) -> None:
    """R5: with no worker at all, jobs wait at the broker."""
    result = godwit("job", "submit", NEVER, "--broker", address)
    assert result.stderr.decode() == f"job {int(result.stdout)} waits: no worker volunteers for {NEVER} yet\n"
    assert show(address, int(result.stdout))["state"] == "waiting"


def test_a_delayed_job_reports_its_start(quick: str) -> None:
    result = godwit("job", "submit", "job/quick", "--delay", "1000", "--broker", quick)
    said = re.compile(rf"job {int(result.stdout)} waits: it starts no earlier than \S+ \S+ UTC")
    assert said.fullmatch(result.stderr.decode().strip())
    with running("job", "watch", str(int(result.stdout)), "--broker", quick) as watching:
        assert said.fullmatch(watching.err.line())


def test_results_of_all_workers(quick: str) -> None:
    result = godwit("job", "submit", "job/quick", "x", "--workers", "all", "--wait", "--broker", quick)
    assert result.returncode == 0
    assert sorted(lines(result.stdout)) == ["quick-1: simulated for 0 s", "quick-2: simulated for 0 s"]
    said = lines(result.stderr)
    assert said[0].endswith(": 2 workers agreed")
    assert said[-1].endswith(": done")


def test_updates_as_objects(quick: str) -> None:
    result = godwit("job", "submit", "job/quick", "--wait", "--json", "--broker", quick)
    found = [json.loads(line) for line in lines(result.stdout)]
    assert [one["what"] for one in found if one["what"] != "progress"] == ["accepted", "result", "done"]
    assert found[0]["agreed"] == 1
    assert result.stderr == b""
    named = ("--name", "keeper of a")
    taken = json.loads(godwit("job", "submit", "job/quick", "--json", "--key", "a", *named, "--broker", quick).stdout)
    assert (taken["key"], taken["kind"], taken["agreed"]) == ("a", "job/quick", 1)


def test_the_same_key_is_the_same_job(address: str) -> None:
    first = submit(address, NEVER, "--key", "mine", "--name", "keeper")
    assert submit(address, NEVER, "--key", "mine", "--name", "keeper") == first
    assert submit(address, NEVER, "--key", "mine", "--name", "another client") != first


def test_payloads_from_elsewhere(address: str, tmp_path: Path) -> None:
    (tmp_path / "photo").write_bytes(bytes(1000))
    assert show(address, submit(address, NEVER, f"@{tmp_path / 'photo'}"))["payload_bytes"] == 1000
    result = godwit("job", "submit", NEVER, "-", "--broker", address, input=b"from there")
    assert show(address, int(result.stdout))["payload_bytes"] == 10
    assert show(address, submit(address, NEVER, "-5"))["payload_bytes"] == 2
    result = godwit("job", "submit", "-q", "--broker", address, NEVER, "--", "--wait")
    assert show(address, int(result.stdout))["payload_bytes"] == len("--wait")


@needs_posix
def test_ctrl_c_ends_the_waiting_and_not_the_job(address: str) -> None:
    with running("job", "submit", NEVER, "--wait", "--broker", address) as waiting:
        number = int(waiting.err.line().split()[1])
        assert waiting.interrupt() == 130
        assert waiting.err.line() == (
            f"godwit: job {number} continues: see godwit job watch {number}, godwit job cancel {number}"
        )
    assert show(address, number)["state"] == "waiting"


def test_a_deadline(address: str) -> None:
    result = godwit("job", "submit", NEVER, "--deadline", "0.3", "--wait", "--broker", address)
    assert (result.returncode, result.stdout) == (1, b"")
    assert re.fullmatch(r"godwit: job \d+: failed: .*deadline.*", lines(result.stderr)[-1])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a/+"], "+"),
        ([""], "is empty"),
        (["x" * 257], "257"),
        (["$jobs/a"], "$"),
        (["a", "--workers", "0"], "--workers '0' is out of range"),
        (["a", "--workers", "-1"], "--workers '-1' is out of range"),
        (["a", "--priority", "101"], "--priority 101 is out of range"),
        (["a", "--delay", "-1"], "--delay -1 is out of range"),
        (["a", "--retry-delay", "-1"], "--retry-delay -1 is out of range"),
        (["a", "--key", "k"], "--key needs --name"),
        (["a", "--wrokers"], "unknown option --wrokers"),
        (["a", "@/nowhere"], "cannot read /nowhere"),
        (["a", "--timeout", "-1"], "--timeout -1 is out of range"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], text: str) -> None:
    assert text in error_of("job", "submit", *arguments)


def test_a_payload_that_is_too_large() -> None:
    text = error_of("job", "submit", "a", "-", input=bytes(1024 * 1024 + 1))
    assert "standard input is longer than 1,048,576 bytes" in text


# -- list, show -------------------------------------------------------------------------------------------------------


def test_list(address: str) -> None:
    number = submit(address, "job/listed", "x", "--name", "lister", "--priority", "5", "--key", "k")
    rows = lines(godwit("job", "list", "--controller", "lister", "--broker", address).stdout)
    assert rows[1].split()[:6] == [str(number), "job/listed", "waiting", "0/-", "lister", "5"]
    another = submit(address, "job/listed", "y", "--name", "lister")
    newest = godwit("job", "list", "--kind", "job/listed", "--limit", "1", "--json", "--broker", address)
    assert json.loads(newest.stdout)["job"] == another
    assert newest.stderr == b"only the newest 1 are listed; --limit 0 lists all\n"
    every = godwit("job", "list", "--kind", "job/listed", "--limit", "0", "--json", "--broker", address)
    assert (len(lines(every.stdout)), every.stderr) == (2, b"")
    assert "--limit -1 is out of range" in error_of("job", "list", "--limit", "-1", "--broker", address)
    for options in (["--kind", "job/listed"], ["--state", "waiting", "--state", "running"]):
        found = map(json.loads, lines(godwit("job", "list", *options, "--json", "--broker", address).stdout))
        assert number in [job["job"] for job in found]
    empty = godwit("job", "list", "--kind", "job/listed", "--state", "done", "--broker", address)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, b"", b"no job matches\n")
    assert "there is no state 'asleep'" in error_of("job", "list", "--state", "asleep", "--broker", address)


def test_show(quick: str) -> None:
    number = int(godwit("job", "submit", "job/quick", "abc", "--workers", "all", "-q", "--broker", quick).stdout)
    eventually(lambda: show(quick, number)["state"] == "done")
    rows = lines(godwit("job", "show", str(number), "--broker", quick).stdout)
    assert rows[0] == f"job         {number}"
    assert "tasks       2 finished" in rows
    assert sum("quick-" in row for row in rows) == 2
    assert "job 999999999" in error_of("job", "show", "999999999", "--broker", quick)
    assert "'x' is not the number of a job" in error_of("job", "show", "x", "--broker", quick)


# -- cancel, watch ----------------------------------------------------------------------------------------------------


def test_cancel(address: str) -> None:
    number = submit(address, NEVER)
    with running("job", "watch", str(number), "--broker", address) as watching:
        watching.err.until(f"job {number} waits")
        result = godwit("job", "cancel", str(number), "--reason", "not needed", "--broker", address)
        assert (result.returncode, result.stdout) == (0, f"cancelled job {number}\n".encode())
        assert watching.wait() == 1
        assert watching.err.line() == f"godwit: job {number}: cancelled: not needed"
    assert show(address, number)["state"] == "cancelled"
    assert "job 999999999" in error_of("job", "cancel", "999999999", "--broker", address)


def test_watch_shows_earlier_results(quick: str) -> None:
    """A controller that comes back finds its jobs, and their results."""
    number = submit(quick, "job/quick", "--name", "returning")
    result = godwit("job", "watch", str(number), "--name", "returning", "--broker", quick)
    assert (result.returncode, len(lines(result.stdout))) == (0, 1)
    again = godwit("job", "watch", str(number), "-q", "--name", "returning", "--broker", quick)
    assert (again.returncode, again.stdout, again.stderr) == (0, result.stdout, b"")
    assert "job 999999999" in error_of("job", "watch", "999999999", "--broker", quick)


@needs_posix
def test_a_wait_outlives_the_broker(tmp_path: Path) -> None:
    """Jobs wait through a restart of the broker, and the waiting command reconnects."""
    address = f"127.0.0.1:{free_port()}"
    options = ("broker", "--data", str(tmp_path / "data"), "--listen", address)
    with running(*options) as first:
        first.out.until("listening on")
        with running("job", "submit", "restarted", "--wait", "--name", "patient", "--broker", address) as waiting:
            waiting.err.until("waits")
            first.process.send_signal(signal.SIGKILL)
            first.wait()
            with running(*options) as second:
                second.out.until("listening on")
                with running("worker", "late", "--kind", "restarted", "--seconds", "0", "--broker", address):
                    assert waiting.out.line() == "late: simulated for 0 s"
                    assert waiting.wait() == 0


# -- rights -----------------------------------------------------------------------------------------------------------


def test_rights(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    secret = write_secret(tmp_path)
    config.write_text(
        f'[access]\nanonymous = true\n[[access.client]]\nname = "boss"\nsecret_file = "{secret}"\n'
        '[[access.rule]]\nclients = ["boss"]\nallow = ["submit"]\ntopics = ["allowed/#"]\n'
        '[[access.rule]]\nclients = ["*"]\nallow = ["work"]\ntopics = ["allowed/#"]\n'
    )
    with broker("--config", str(config)) as address:
        boss = ("--name", "boss", "--secret-file", str(secret), "--broker", address)
        number = int(godwit("job", "submit", "allowed/a", "-q", *boss).stdout)
        assert "may not submit" in error_of("job", "submit", "other", *boss)
        assert "may not submit" in error_of("job", "submit", "allowed/a", "--broker", address)
        assert f"job {number}" in error_of("job", "show", str(number), "--broker", address)
        assert godwit("job", "list", "--broker", address).stderr == b"no jobs\n"
        assert len(lines(godwit("job", "list", *boss).stdout)) == 2
        assert "may not work" in error_of("worker", "w", "--kind", "other", "--broker", address)
        assert godwit("job", "cancel", str(number), *boss).returncode == 0


def test_no_broker(nowhere: str) -> None:
    for arguments in (["list"], ["submit", "a"], ["show", "1"], ["cancel", "1"], ["watch", "1"]):
        text = error_of("job", *arguments, "--broker", nowhere, "--timeout", "0.3")
        assert "no broker answered" in text


@pytest.mark.parametrize("command", ["submit", "list", "show", "cancel", "watch"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: godwit job {command}" in godwit("job", command, "--help").stdout.decode()


# -- job submit -------------------------------------------------------------------------------------------------------


def test_a_wish() -> None:
    assert SubmitRequest.of("resize", "x", None, {}, is_literal=False) == SubmitRequest("resize", b"x")
    options: JobOptions = {"workers": "all", "delay_s": 1.0, "deadline_s": 2.0}
    assert SubmitRequest.of("resize", "--", "mine", options, is_literal=True) == SubmitRequest(
        "resize", b"--", "mine", options
    )


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        ("", {}, "is empty"),
        ("x" * 257, {}, "257"),
        ("$sys", {}, r"\$"),
        ("a/#", {}, "#"),
        ("a", {"priority": 101}, "--priority 101 is out of range; give a number from -100 to 100"),
        ("a", {"retries": -1}, "--retries -1 is out of range"),
        ("a", {"retries": 1001}, "--retries 1001 is out of range; give a number from 0 to 1,000"),
        ("a", {"retry_delay_s": -1.0}, "--retry-delay -1 is out of range"),
        ("a", {"delay_s": -1.0}, "--delay -1 is out of range"),
        ("a", {"deadline_s": 0.0}, "--deadline 0 is out of range"),
        ("a", {"time_limit_s": float("nan")}, "--time-limit nan is out of range"),
        ("a", {"delay_s": 9.0, "deadline_s": 9.0}, "--deadline 9 ends before --delay 9"),
    ],
)
def test_wishes_that_cannot_be(kind: str, options: JobOptions, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SubmitRequest.of(kind, "x", None, options, is_literal=False)


def read_payload(text: str | None, *, is_literal: bool = False) -> bytes:
    return read_any_payload(text, JOB_PAYLOAD, is_literal=is_literal)


def test_payloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\x00\xff")
    assert read_payload(None) == b""
    assert read_payload("21 °C") == "21 °C".encode()
    assert read_payload("\udcff") == b"\xff"
    assert read_payload("-5.5") == b"-5.5"
    assert read_payload(f"@{path}") == b"\x00\xff"
    for text in (f"@{path}", "-", "--retain"):
        assert read_payload(text, is_literal=True) == text.encode(), "after -- it is a text"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from there")))
    assert read_payload("-") == b"from there"


def test_payloads_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(MAX_JOB_PAYLOAD_BYTES + 1))
    for text, what in ((f"@{path}", "large"), ("x" * (MAX_JOB_PAYLOAD_BYTES + 1), "the payload")):
        with pytest.raises(UsageError, match=f"{what} is longer than 1,048,576 bytes, the largest payload of a job"):
            read_payload(text)
    with pytest.raises(GodwitError, match=r"cannot read .*nothing: No such file"):
        read_payload(f"@{tmp_path / 'nothing'}")
    assert read_payload("--wrokers", is_literal=True) == b"--wrokers"


def test_a_payload_of_the_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "fits"
    path.write_bytes(bytes(MAX_JOB_PAYLOAD_BYTES))
    assert len(read_payload(f"@{path}")) == MAX_JOB_PAYLOAD_BYTES


# -- results in files, and many jobs at once --------------------------------------------------------------------------

BYTES = f"'{sys.executable}' -c 'import sys; sys.stdout.buffer.write(bytes([0, 255, 10]))'"


def test_results_are_written_to_files(address: str, tmp_path: Path) -> None:
    with running("worker", "output-anna", "--kind", "job/output", "--exec", BYTES, "--broker", address) as worker:
        worker.err.until("volunteers for")
        folder = tmp_path / "a" / "results"
        result = godwit("job", "submit", "job/output", "--output", str(folder), "-q", "--broker", address)
        assert result.returncode == 0, result.stderr
        path = Path(result.stdout.decode().rstrip("\n"))
        assert (path.parent, path.read_bytes()) == (folder, b"\x00\xff\n")
        number = path.name.split("-")[1]
        again = godwit("job", "results", number, "-o", str(tmp_path / "b"), "--broker", address)
        assert again.stdout.decode() == f"{tmp_path / 'b' / path.name}\n"
        assert (tmp_path / "b" / path.name).read_bytes() == b"\x00\xff\n"
        assert godwit("job", "results", number, "--broker", address).stdout == b"output-anna: \\x00\\xff\n"
        (found,) = lines(godwit("job", "results", number, "--json", "--broker", address).stdout)
        assert json.loads(found)["result_base64"] == "AP8K"


def test_a_job_without_results(address: str) -> None:
    number = godwit("job", "submit", "job/nothing", "-q", "--broker", address).stdout.decode().strip()
    result = godwit("job", "results", number, "--broker", address)
    assert (result.returncode, result.stdout) == (0, b"")
    assert result.stderr.decode() == f"godwit: job {number} has no results yet; it is waiting\n"


def test_a_folder_for_results_that_cannot_be(address: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    folder = str(tmp_path / "file" / "in")
    assert "cannot create the folder" in error_of("job", "submit", "a", "--output", folder, "--broker", address)


def test_all_jobs_of_a_kind_are_cancelled(address: str) -> None:
    numbers = [
        godwit("job", "submit", kind, "-q", "--broker", address).stdout.decode().strip()
        for kind in ("cancel/these", "cancel/these", "cancel/others")
    ]
    result = godwit("job", "cancel", "--kind", "cancel/these", "--broker", address)
    assert (result.returncode, result.stdout) == (0, b"cancelled 2 jobs of the kind cancel/these\n")
    found = lines(
        godwit("job", "list", "--kind", "cancel/these", "--state", "cancelled", "--json", "--broker", address).stdout
    )
    assert len(found) == 2
    result = godwit("job", "cancel", numbers[2], "--broker", address)
    assert result.stdout.decode() == f"cancelled job {numbers[2]}\n"
    assert "give the numbers of the jobs, or --kind" in error_of("job", "cancel", "--broker", address)
    assert "give the numbers of the jobs, or --kind" in error_of("job", "cancel", "1", "--kind", "a")


def test_failed_jobs_are_retried(address: str, tmp_path: Path) -> None:
    """The command fails until a file exists."""
    repaired = tmp_path / "repaired"
    program = f"import os, sys; sys.exit(0 if os.path.exists({str(repaired)!r}) else 'broken')"
    command = f"{sys.executable} -c {shlex.quote(program + '; print(1)')}"
    with running("worker", "retry-anna", "--kind", "retry/this", "--exec", command, "--broker", address) as worker:
        worker.err.until("volunteers for")
        submit = ["job", "submit", "retry/this", "x", "--retries", "0", "--wait", "-q", "--name", "boss"]
        for _ in range(2):
            assert godwit(*submit, "--broker", address).returncode == 1
        failed = ["job", "list", "--kind", "retry/this", "--state", "failed", "--json", "--broker", address]
        second, first = (json.loads(line)["job"] for line in lines(godwit(*failed).stdout))
        result = godwit("job", "retry", str(first), "--wait", "-q", "--name", "boss", "--broker", address)
        assert result.returncode == 1, "it is still broken"
        repaired.touch()
        result = godwit("job", "retry", str(first), "--wait", "-q", "--name", "boss", "--broker", address)
        assert result.returncode == 0, result.stderr
        result = godwit("job", "retry", "--kind", "retry/this", "--name", "boss", "--broker", address)
        assert result.returncode == 0, result.stderr
        retried = [line.rpartition(" ")[2] for line in lines(result.stdout)]
        assert retried[:2] == [str(first), str(second)]
        (found,) = lines(godwit("job", "retry", str(second), "--json", "--name", "boss", "--broker", address).stdout)
        assert json.loads(found)["retry_of"] == second
    assert "only a failed or cancelled job" in error_of(
        "job", "retry", str(json.loads(found)["job"]), "--name", "boss", "--broker", address
    )


def test_bad_input_of_retry_is_one_line(address: str) -> None:
    assert "give the numbers of the jobs, or --kind" in error_of("job", "retry", "--broker", address)
    assert "give the numbers of the jobs, or --kind" in error_of("job", "retry", "1", "--kind", "a")
    assert "follow one job" in error_of("job", "retry", "1", "2", "--wait", "--broker", address)
    result = godwit("job", "retry", "--kind", "retry/nothing", "--broker", address)
    assert (result.returncode, result.stdout) == (0, b"")
    assert result.stderr.decode() == "no job of the kind retry/nothing has failed\n"
