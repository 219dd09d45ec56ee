"""`godwit log`: which commands there are, and where they look."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.logs import write_log
from tests.cli.real import address_of, error_of, godwit, lines, needs_posix, running
from typer.testing import CliRunner

from godwit.cli.main import build_app

COMMANDS = ("info", "tail", "export", "verify", "recover", "compact", "purge", "backup")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(build_app(), ["log", command, "--help"], terminal_width=100)
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)
    assert result.exit_code == 0
    assert f"Example: godwit log {command}" in text
    assert "--data" in text
    assert "godwit-data" in text


def test_without_a_command_there_is_help() -> None:
    assert "backup" in CliRunner().invoke(build_app(), ["log"]).output


def test_the_folder_is_named_before_or_behind_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {name: str(write_log(tmp_path / name, [])) for name in ("godwit-data", "one", "two")}
    monkeypatch.chdir(tmp_path)
    for arguments, name in (
        (["info"], "godwit-data"),
        (["--data", folders["one"], "info"], "one"),
        (["info", "--data", folders["one"]], "one"),
        (["--data", folders["two"], "info", "--data", folders["one"]], "one"),
    ):
        found = json.loads(godwit("log", *arguments, "--json").stdout)
        assert Path(found["path"]).absolute() == tmp_path / name / "log.sqlite"


def test_an_export_needs_a_file() -> None:
    assert godwit("log", "export").returncode == 2
    assert godwit("log", "backup").returncode == 2


IMPORTS = """
import sys
from godwit.cli.main import load_own_command
load_own_command("log")
import godwit.cli.log_content, godwit.cli.log_content, godwit.cli.log_maintenance
print([name for name in sys.modules if name in ("pyarrow", "numpy", "godwit.net.client", "prompt_toolkit")])
"""


def test_what_is_not_needed_is_not_imported() -> None:
    """Only an export takes the time to load Arrow."""
    result = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "[]\n"


@needs_posix
def test_beside_a_real_broker_and_after_it_was_killed(tmp_path: Path) -> None:
    data, copy, export = (str(tmp_path / name) for name in ("data", "copy", "export.jsonl"))
    with running("broker", "--listen", "127.0.0.1:0", "--data", data, "--archive", "none") as command:
        address = address_of(command)
        with running("log", "tail", "log/#", "--follow", "--data", data) as tail:
            for number in range(3):
                assert godwit("pub", "log/a", str(number), "-q", "--broker", address).returncode == 0
            assert [tail.out.line() for _ in range(3)] == ["log/a: 0", "log/a: 1", "log/a: 2"]
        info = json.loads(godwit("log", "info", "--json", "--data", data).stdout)
        assert (info["is_in_use"], info["messages"]) == (True, 3)
        for arguments in (["verify"], ["backup", "-o", copy], ["export", "-o", export]):
            assert godwit("log", *arguments, "--data", data).returncode == 0
        for name in ("recover", "compact"):
            assert f"a broker uses {data}" in error_of("log", name, "--data", data)
        command.process.kill()
        command.wait()
    printed = godwit("log", "tail", "--json", "--data", data).stdout
    assert len(lines(printed)) == 3
    assert Path(export).read_bytes() == printed
    for arguments in (["verify"], ["compact"], ["recover"]):
        assert godwit("log", *arguments, "--data", data).returncode == 0
    for folder in (data, copy):
        assert godwit("log", "tail", "--json", "--data", folder).stdout == printed
        with running("broker", "--listen", "127.0.0.1:0", "--data", folder, "--archive", "none") as command:
            found = godwit(
                "sub", "log/#", "--from", "earliest", "--count", "3", "--json", "--broker", address_of(command)
            )
            assert found.stdout.replace(b'"retained":', b'"retain":') == printed
