"""`godwit sim` as a user meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from godwit_sim.network import Trace
from godwit_sim.scenarios import Row
from godwit_sim.worlds import WORLDS, Outcome
from godwit_tools import sim as cli

runner = CliRunner()


def outcome(world: str, seed: int, trace: Trace | None = None, *, sealed: bool = False) -> Outcome:
    if trace is not None:
        trace.note(0.0, "an event")
    return Outcome(world, seed, "delivery: [twice]" if seed == 7 else None, "d1635", "1 client")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace seeds by instant ones in this process; number 7 fails."""
    monkeypatch.setattr(cli, "run_seed", outcome)
    monkeypatch.setattr(cli, "_in_parallel", lambda work, processes, sealed: (outcome(*item) for item in work))


@pytest.mark.usefixtures("fake")
def test_the_last_line_counts() -> None:
    result = runner.invoke(cli.app, ["run", "--seeds", "5"])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"{5 * len(WORLDS)} seeds, 0 violations"]


@pytest.mark.usefixtures("fake")
def test_a_violation_shows_how_to_replay_it() -> None:
    result = runner.invoke(cli.app, ["run", "--world", "transport", "--seeds", "3", "--first", "6"])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "3 seeds, 1 violation"
    assert "seed 7 of transport: delivery: [twice]" in result.output
    assert "replay it: godwit sim run --world transport --seeds 1 --first 7" in result.output


@pytest.mark.usefixtures("fake")
def test_verbose_prints_the_events_of_one_seed() -> None:
    result = runner.invoke(cli.app, ["run", "--world", "transport", "--seeds", "1", "--verbose"])
    assert result.exit_code == 0
    assert "an event" in result.stdout
    assert "trace d1635" in result.stdout
    for more in (["--world", "transport", "--seeds", "2"], ["--seeds", "1"]):
        assert runner.invoke(cli.app, ["run", *more, "--verbose"]).exit_code == 2


@pytest.mark.parametrize("arguments", [["run", "--world", "flat"], ["scenarios", "flat"], ["run", "--seeds", "0"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert runner.invoke(cli.app, arguments).exit_code == 2


@pytest.mark.parametrize("command", ["run", "scenarios"])
def test_help_has_an_example(command: str) -> None:
    result = runner.invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert f"godwit sim {command}" in result.stdout


def test_real_seeds_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        pytest.fail("a fork of a process with threads can hang")

    monkeypatch.setattr(os, "fork", fork)
    result = runner.invoke(cli.app, ["run", "--world", "transport", "--seeds", "4", "--processes", "2"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "4 seeds, 0 violations"


@pytest.mark.parametrize("passed", [True, False])
def test_scenarios_print_a_table(monkeypatch: pytest.MonkeyPatch, passed: bool) -> None:
    row = Row("loss", "2 MB", 8.5e6, 10e6, 0.021, 0.8, 0.85, passed, "a note")
    monkeypatch.setattr(cli, "run_scenario", lambda name, seeds: [row])
    result = runner.invoke(cli.app, ["scenarios", "loss"])
    assert result.exit_code == (0 if passed else 1)
    for text in ("8.50 Mbit/s", "10.00 Mbit/s", "85%", "80%", "2.1%", "a note"):
        assert text in result.stdout
    assert result.stdout.splitlines()[-1] == ("1 scenario, 0 failed" if passed else "1 scenario, 1 failed: loss")


ANNOUNCED = """
from godwit_tools import sim
outcomes = sim._in_parallel
def announced(*arguments):
    for number, outcome in enumerate(outcomes(*arguments)):
        if not number:
            print("running", flush=True)
        yield outcome
sim._in_parallel = announced
sim.app()
"""


@pytest.mark.parametrize("to_all", [True, False], ids=["as Ctrl-C does it", "to the parent alone"])
def test_interrupt_ends_at_once_and_without_a_traceback(to_all: bool) -> None:
    command = [sys.executable, "-c", ANNOUNCED, "run", "--seeds", "100000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        if to_all:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.strip() == "interrupted"
