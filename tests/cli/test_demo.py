"""`godwit demo` as a user sees it: how it goes, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import typer
from rich.console import Console
from tests.cli.real import GODWIT, needs_posix
from tests.cli.test_demo_view import picture
from typer.testing import CliRunner

from godwit.cli import demo
from godwit.cli.demo_run import PipelineReport
from godwit.cli.main import build_app

LAST_LINE = re.compile(r"Every one of ([\d,]+) messages arrived once and in order\.")


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The demo in its own session, in which no process may remain."""
    command = [*GODWIT, "demo", "--no-report", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
            assert_no_process_is_left(process.pid)
        finally:
            process.kill()


def assert_no_process_is_left(group: int) -> None:
    deadline = time.monotonic() + 60.0
    while members := living_members(group):
        assert time.monotonic() < deadline, f"still there: {members}"
        time.sleep(0.05)


def living_members(group: int) -> list[str]:
    """The processes of a group, without zombies."""
    if not Path("/proc/self/stat").exists():
        return []  # no Linux: nothing is known
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = path.read_text().rpartition(") ")
        except OSError:  # it has ended meanwhile
            continue
        state, _, process_group = fields.split()[:3]
        if int(process_group) == group and state not in "ZX":
            members.append(name)
    return members


def interrupt(process: subprocess.Popen[str], after: str, delay_s: float = 0.0) -> tuple[str, str]:
    """Ctrl-C, which a terminal sends to all processes of the group, a while after a line with this text was seen."""
    assert process.stdout is not None
    seen = ""
    while after not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    time.sleep(delay_s)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=180)
    return seen + out, err


def test_it_ends_by_itself_with_a_summary() -> None:
    with running("--seconds", "3", "--loss", "0.1") as process:
        out, err = process.communicate(timeout=180)
    assert (process.returncode, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("5 rooms -> broker -> subscriber, over a bad network")
    match = LAST_LINE.fullmatch(lines[-1])
    assert match, out
    assert int(match[1].replace(",", "")) > 0
    assert "messages arrived, " in out  # a line of progress
    assert "the network assigns another address to every client" in out
    assert "5 of 5 last temperatures" in out
    assert "the worker anna is killed" in out
    assert re.search(r"jobs +(\d+) of \1 done, anna was killed", out)
    for text in ("lost", "damaged", "repeated", "overtaken by others", "sent again", "late", "delay"):
        assert text in out


@needs_posix
def test_ctrl_c_breaks_a_bounded_run_off() -> None:
    with running("--seconds", "60") as process:
        out, err = interrupt(process, "messages arrived, ")
    assert (process.returncode, err) == (130, "interrupted\n")
    assert "Every one" not in out


@needs_posix
def test_ctrl_c_is_the_end_of_an_endless_run() -> None:
    with running("--forever") as process:
        out, err = interrupt(process, "messages arrived, ")
    assert (process.returncode, err) == (0, "")
    assert LAST_LINE.fullmatch(out.splitlines()[-1]), out


@needs_posix
@pytest.mark.parametrize("delay_s", [0.05, 0.5])
@pytest.mark.parametrize(("mode", "codes"), [("--forever", {0, 130}), ("--seconds=60", {130})])
def test_ctrl_c_at_the_very_start(mode: str, codes: set[int], delay_s: float) -> None:
    """While the other processes are being started. The first moments belong to the interpreter, hence the two codes."""
    with running(mode) as process:
        out, err = interrupt(process, "over a bad network", delay_s)
    assert process.returncode in codes, out
    assert "Traceback" not in err


@needs_posix
def test_a_killed_demo_leaves_no_process_behind() -> None:
    with running("--forever") as process:
        assert process.stdout is not None
        while "messages arrived, " not in process.stdout.readline():
            pass
        process.kill()
        process.wait(timeout=60)


def test_a_missing_message_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught:
        demo._conclude(Console(), picture(missing=1))
    assert caught.value.exit_code == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("FAILED: kitchen: ")


@pytest.mark.parametrize("is_good", [True, False])
def test_what_came_of_the_pipeline_is_the_last_line(capsys: pytest.CaptureFixture[str], is_good: bool) -> None:
    report = PipelineReport(is_good, "that is how it went")
    shown = msgspec.structs.replace(picture(), pipeline=report)
    if is_good:
        demo._conclude(Console(), shown)
    else:
        with pytest.raises(typer.Exit):
            demo._conclude(Console(), shown)
    assert capsys.readouterr().out.splitlines()[-1] == "that is how it went"


@pytest.mark.parametrize("arguments", [["--loss", "1"], ["--seconds", "0"], ["--seconds", "1000"], ["--rate", "0"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(build_app(), ["demo", *arguments]).exit_code == 2


def test_help_has_an_example() -> None:
    result = CliRunner().invoke(build_app(), ["demo", "--help"])
    assert result.exit_code == 0
    assert "Example: godwit demo" in result.output
