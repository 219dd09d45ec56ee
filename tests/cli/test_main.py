"""How the command line starts, and how it ends when something goes wrong."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import godwit
from godwit.cli.main import COMMANDS, build_app, run
from godwit.errors import GodwitError

SCRIPT = Path(sys.executable).with_name("godwit")


def app_that_raises(error: BaseException) -> typer.Typer:
    app = build_app()

    @app.command("fail")
    def fail() -> None:
        raise error

    return app


def plain(text: str) -> str:
    """Without the colours that some environments force on."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def exit_code_of(app: typer.Typer, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["godwit", *arguments])
    with pytest.raises(SystemExit) as caught:
        run(app)
    return caught.value.code


def test_version_option() -> None:
    result = CliRunner().invoke(build_app(), ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"godwit {version('godwit')}\n"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_an_example(option: str) -> None:
    result = CliRunner().invoke(build_app(), [option])
    assert result.exit_code == 0
    assert "Usage: godwit" in plain(result.stdout)
    assert "Example: godwit demo" in plain(result.stdout)


def test_without_arguments_shows_help() -> None:
    assert "Usage: godwit" in plain(CliRunner().invoke(build_app(), []).output)


def test_help_texts_follow_the_width_of_the_terminal() -> None:
    for name in (["pub"], ["demo"], ["bench", "forward"]):
        text = plain(CliRunner().invoke(build_app(), [*name, "--help"], terminal_width=60).stdout)
        paragraphs = re.split(r"\n\s*\n", text.partition("╭")[0].strip())
        assert len(paragraphs) > 2
        assert all(len(line.strip()) > 30 for part in paragraphs for line in part.splitlines()[:-1]), text


def test_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(build_app(), ["fly"])
    assert result.exit_code == 2
    assert "fly" in plain(result.stderr)


def test_every_command_is_in_the_help_and_has_an_example() -> None:
    text = plain(CliRunner().invoke(build_app(), ["--help"]).stdout)
    for name in COMMANDS:
        assert name in text
        result = CliRunner().invoke(build_app(name), [name, "--help"])
        assert result.exit_code == 0, result.output
        assert f"Example: godwit {name}" in plain(result.stdout)


IMPORTS = """
import sys
from godwit.cli.main import build_app
build_app("pub")
print([name for name in sys.modules if name.startswith(("godwit_bench", "godwit_sim", "prompt_toolkit"))])
"""


def test_only_what_is_wanted_is_imported() -> None:
    result = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=20, check=True)
    assert "godwit" not in result.stdout
    assert "prompt_toolkit" not in result.stdout


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (GodwitError("port 7000 is taken: choose another"), "godwit: port 7000 is taken: choose another\n"),
        (GodwitError("first line\n  second line"), "godwit: first line second line\n"),
        (GodwitError(), "godwit: GodwitError\n"),
        (GodwitError("the broker says \x1b[2J"), "godwit: the broker says \\x1b[2J\n"),
    ],
)
def test_own_error_is_one_line_on_stderr(
    error: GodwitError, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(app_that_raises(error), monkeypatch, "fail") == 1
    assert capsys.readouterr() == ("", line)


def test_interrupt_in_a_command_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(app_that_raises(KeyboardInterrupt()), monkeypatch, "fail") == 130
    assert capsys.readouterr() == ("", "")


def test_interrupt_outside_a_command_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_app: typer.Typer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(typer.Typer, "__call__", interrupted)
    assert exit_code_of(build_app(), monkeypatch) == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["godwit", "fail"])
    with pytest.raises(ZeroDivisionError):
        run(app_that_raises(ZeroDivisionError()))


SLEEPER = """
import time
from godwit.cli.main import COMMANDS, build_app, run

app = build_app()

@app.command("sleep")
def sleep() -> None:
    print("ready", flush=True)
    time.sleep(60)

run(app)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent in another way there")
def test_ctrl_c_ends_a_real_process_with_130_and_no_word() -> None:
    command = [sys.executable, "-c", SLEEPER, "sleep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.skipif(not SCRIPT.exists(), reason="godwit is not installed beside this interpreter")
def test_installed_script() -> None:
    result = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, timeout=20, check=True)
    assert result.stdout.strip() == f"godwit {godwit.__version__}"


def test_unknown_attribute_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'wings'"):
        _ = godwit.wings
