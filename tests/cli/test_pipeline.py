"""`godwit pipeline`: its commands, and the options that they refuse before Spark is started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.real import error_of, godwit
from typer.testing import CliRunner

from godwit.cli.main import build_app

COMMANDS = ("run", "status", "query", "check", "rebuild", "requeue", "report")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(build_app(), ["pipeline", command, "--help"], terminal_width=100)
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)
    assert result.exit_code == 0
    assert f"Example: godwit pipeline {command}" in text
    assert "--lake" in text
    assert "godwit-lake" in text


def test_help_loads_no_spark() -> None:
    load = "from godwit.cli.main import load_own_command; load_own_command('pipeline')"
    code = f"import sys; {load}; print('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "--trigger", "0"), "--trigger 0 is out of range; give seconds, from 0.001 to 3600"),
        (("run", "--broker", "localhost:65535"), "has no default address: give it with --archive"),
        (("run", "--archive", "one:x"), "archive is 'one:x'"),
        (("run", "--archive", "127.0.0.1:9", "--token-file", "none"), "tokenFile: cannot read"),
        (("query", "SELECT 1", "--json", "--csv"), "give one of them"),
        (("query", "SELECT 1", "--limit", "0"), "--limit 0 is out of range"),
        (("rebuild", "--from", "yesterday"), "--from 'yesterday' is not a time; write it as"),
        (("rebuild", "--from", "2026-11-02", "--to", "2026-11-01"), "swap them"),
        (("requeue", "--conf", "memory"), "not a setting of Spark"),
    ],
)
def test_invalid_options_are_reported(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "godwit-lake").mkdir()
    monkeypatch.chdir(tmp_path)
    assert complaint in error_of("pipeline", *arguments)


@pytest.mark.parametrize("command", [("status",), ("query", "SELECT 1"), ("rebuild",), ("requeue",), ("report",)])
def test_a_lake_that_is_not_there(command: tuple[str, ...], tmp_path: Path) -> None:
    where = str(tmp_path / "none")
    assert f"the lake {where} does not exist: create it with godwit pipeline run" in error_of(
        "pipeline", *command, "--lake", where
    )


def test_without_a_command_there_is_help() -> None:
    assert b"requeue" in godwit("pipeline", "--help").stdout
