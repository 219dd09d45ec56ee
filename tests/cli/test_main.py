"""How the command line starts, and how it ends when something goes wrong."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.real import environment, needs_posix
from typer.testing import CliRunner

import godwit
from godwit.cli.main import (
    CLIENT_COMMANDS,
    COMMANDS,
    DEVELOPMENT_COMMANDS,
    ENTRY_POINTS,
    build_app,
    load_command,
    load_own_command,
    plain_notes,
    run,
)
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
    version, core = result.stdout.splitlines()
    assert version == f"godwit {importlib.metadata.version('godwit-mq')}"
    assert core.startswith(("core: interpreted (", "core: compiled"))


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
        paragraphs = re.split(r"\n\s*\n", re.split(r"\n(?:Arguments|Options):", text)[0].strip())
        assert len(paragraphs) > 2
        assert all(len(line.strip()) > 30 for part in paragraphs for line in part.splitlines()[:-1]), text


def test_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(build_app(), ["fly"])
    assert result.exit_code == 2
    assert "fly" in plain(result.stderr)


def test_a_mistyped_command_names_a_similar_one() -> None:
    result = CliRunner().invoke(build_app(), ["pubb", "a", "x"])
    assert result.exit_code == 2
    assert "No such command 'pubb'; perhaps pub is meant." in plain(result.stderr)


def test_a_number_out_of_range_has_its_range_in_words() -> None:
    for arguments, text in (
        (["demo", "--loss", "2"], "2.0 is out of range; the range is 0 to 0.5."),
        (["capture", "-o", "x", "--seconds", "0"], "0 is out of range; the range is 1 to 3600."),
        (["bench", "pub", "--messages", "0"], "0 is out of range; the range is at least 1."),
    ):
        result = CliRunner().invoke(build_app(), arguments)
        assert result.exit_code == 2
        assert text in plain(result.stderr)


def test_every_command_is_in_the_help_and_has_an_example() -> None:
    text = plain(CliRunner().invoke(build_app(), ["--help"]).stdout)
    for name in COMMANDS:
        assert name in text
        result = CliRunner().invoke(build_app(), [name, "--help"])
        assert result.exit_code == 0, result.output
        assert f"Example: godwit {name}" in plain(result.stdout)


IMPORTS = """
import sys
sys.argv = ["godwit", *sys.argv[1:]]
from godwit.cli import main
try:
    main()
except SystemExit:
    pass
print([name for name in sys.modules if name.startswith(("godwit_bench", "godwit_sim", "prompt_toolkit", "rich"))])
print([name for name in sys.modules if name.startswith(("godwit.net.", "godwit.cli.")) or name == "asyncio"])
"""


def imported(*arguments: str) -> tuple[str, str]:
    """The two lists that IMPORTS prints after a command."""
    command = [sys.executable, "-c", IMPORTS, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    tools, own = result.stdout.splitlines()[-2:]
    return tools, own


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_import_no_command(option: str) -> None:
    assert imported(option) == ("[]", "['godwit.cli.interrupts', 'godwit.cli.text', 'godwit.cli.main']")


def test_only_the_command_that_runs_is_imported() -> None:
    tools, own = imported("pub", "--help")
    assert tools == "[]"
    assert "'godwit.cli.pub'" in own
    assert "'godwit.cli.sub'" not in own
    assert "'godwit.net.client'" not in own


def every_help() -> list[tuple[list[str], str]]:
    """The help of each command and subcommand, at 80 columns."""
    root = typer.main.get_command(build_app())
    context = typer.Context(root)
    pages = []
    left: list[tuple[list[str], Any]] = [([name], load_own_command(name)) for name in COMMANDS]
    left += [([name], load_command(entry)) for name, entry in root._entries.items()]  # type: ignore[attr-defined]
    while left:
        path, command = left.pop()
        pages.append((path, command.get_help(command.context_class(command, info_name=" ".join(path), parent=context))))
        left += [([*path, name], each) for name, each in getattr(command, "commands", {}).items()]
    return pages


def test_every_help_is_readable_at_80_columns() -> None:
    pages = every_help()
    assert len(pages) > 40
    for path, text in pages:
        assert all(len(line) <= 80 for line in text.splitlines()), path
        assert not re.search(r"<\w+>|\{\w+\}|\[bold\]", text), path
        assert "Example: " in text, path
        assert not re.search(r"\w-$|<=x|x>=", text, re.MULTILINE), path
        assert not re.search(r"default:\s+\(|default:\s+\d+\.0[;\]]", text), path
        assert "Example: " in text.rstrip("\n").splitlines()[-1], path  # on one line, to be copied


def test_the_descriptions_of_all_commands_begin_in_one_column() -> None:
    text = CliRunner().invoke(build_app(), ["--help"], terminal_width=80).stdout
    rows = [line for line in text.partition("\nMessages:\n")[2].splitlines() if re.match(r"  \w+ +[A-Z]\w+ ", line)]
    assert len(rows) >= len(COMMANDS)
    assert {re.match(r"  \w+ +", row).end() for row in rows} == {13}  # type: ignore[union-attr]


def test_notes_in_help_texts_are_plain() -> None:
    for note, plain_note in (
        ("[default: (no limit)]", "[default: no limit]"),
        ("[env var: A; default: (the selected one)]", "[env var: A; default: the selected one]"),
        ("[default: 10.0]", "[default: 10]"),
        ("[default: 20.0; 1.0<=x<=90.0]", "[default: 20; 1 to 90]"),
        ("[default: 0.05; x>=1]", "[default: 0.05; at least 1]"),
        ("[default: 127.0.0.1:50000]", "[default: 127.0.0.1:50000]"),
        ("[default: local[*,4]]", "[default: local[*,4]]"),
    ):
        assert plain_notes(f"About 1.0 of it.  {note}") == f"About 1.0 of it.  {plain_note}"


def test_the_help_of_a_group_has_all_of_its_text() -> None:
    assert "GODWIT_CONTEXT" in CliRunner().invoke(build_app(), ["context", "--help"]).stdout
    assert "[[bridge]]" in CliRunner().invoke(build_app(), ["bridge", "--help"]).stdout


def test_every_client_command_has_the_options_of_a_connection() -> None:
    texts = {tuple(path): text for path, text in every_help()}
    names: list[tuple[str, ...]] = [(name,) for name, more in CLIENT_COMMANDS.items() if not more]
    names += [(name, each) for name, more in CLIENT_COMMANDS.items() for each in more]
    assert len(names) > 20
    for path in names:
        for option in ("--broker HOST", "--secret-file FILE", "--arq SCHEME", "--timeout SECONDS"):
            assert option in texts[path], (path, option)


def test_help_keeps_square_brackets() -> None:
    assert "pip install 'godwit-mq[spark]'" in CliRunner().invoke(build_app(), ["bench", "spark", "--help"]).stdout


def test_development_commands_have_a_section() -> None:
    text = CliRunner().invoke(build_app(), ["--help"]).stdout
    section = text.partition("\nDevelopment:\n")[2]
    assert re.search(r"^  bench +Measure", section, re.MULTILINE)
    assert re.search(r"^  sim +Run", section, re.MULTILINE)


# -- commands of other distributions ----------------------------------------------------------------------------------


class FakeDistribution:
    name = "godwit-extra"
    version = "1.2"


class FakeEntry:
    """An entry point whose object is given, or that fails to load."""

    dist: FakeDistribution | None = FakeDistribution()

    def __init__(self, name: str, found: object) -> None:
        self.name = name
        self._found = found
        self.loads = 0

    def load(self) -> object:
        self.loads += 1
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def greet(name: str, loud: bool = False) -> None:
    """Greet a person.

    This paragraph has
    two lines.
    """
    typer.echo(name.upper() if loud else name)


def group() -> typer.Typer:
    app = typer.Typer(help="Some numbers.")
    app.command("one")(lambda: typer.echo("1"))
    app.command("two")(lambda: typer.echo("2"))
    return app


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeEntry]:
    """Entry points of other distributions, by name."""
    found = {
        name: FakeEntry(name, value)
        for name, value in (
            ("greet", greet),
            ("numbers", group()),
            ("broken", ImportError("no module 'x'")),
            ("wrong", 7),
            ("pub", greet),
        )
    }

    def entry_points(*, group: str) -> list[FakeEntry]:
        assert group == ENTRY_POINTS
        return list(found.values())

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return found


def test_a_distribution_adds_a_function_or_a_group(entries: dict[str, FakeEntry]) -> None:
    assert CliRunner().invoke(build_app(), ["greet", "anna", "--loud"]).stdout == "ANNA\n"
    assert CliRunner().invoke(build_app(), ["numbers", "two"]).stdout == "2\n"
    text = plain(CliRunner().invoke(build_app(), ["greet", "--help"]).stdout)
    assert "Usage: godwit greet" in text
    assert "This paragraph has two lines." in text
    assert entries["broken"].loads == 0


def test_the_list_of_commands_loads_no_other_distribution(entries: dict[str, FakeEntry]) -> None:
    text = plain(CliRunner().invoke(build_app(), ["--help"]).stdout)
    for name in ("greet", "numbers", "broken"):
        assert re.search(rf"{name} +Command of godwit-extra 1\.2\.", text)
    assert text.count(" pub ") == 1
    assert [entry.loads for entry in entries.values()] == [0] * len(entries)


@pytest.mark.parametrize("name", DEVELOPMENT_COMMANDS)
def test_development_tools_that_are_not_installed(
    entries: dict[str, FakeEntry], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert exit_code_of(build_app(), monkeypatch, name, "run") == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(
        f"godwit: godwit {name} is a development tool and not installed: run make setup in a checkout"
    )
    entries[name] = FakeEntry(name, group())
    assert CliRunner().invoke(build_app(), [name, "one"]).stdout == "1\n"


def test_own_commands_come_first_and_look_for_no_others(
    entries: dict[str, FakeEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", None)
    assert "Usage: godwit pub" in plain(CliRunner().invoke(build_app(), ["pub", "--help"]).stdout)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("broken", "the command broken of godwit-extra 1.2 cannot be loaded: ImportError: no module 'x'; update or"),
        ("wrong", "the command wrong of godwit-extra 1.2 cannot be loaded: "),
    ],
)
def test_a_broken_command_names_its_distribution(
    name: str,
    line: str,
    entries: dict[str, FakeEntry],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code_of(build_app(), monkeypatch, name) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"godwit: {line}")
    assert err.count("\n") == 1
    assert CliRunner().invoke(build_app(), ["numbers", "one"]).stdout == "1\n"


def test_a_command_of_an_unknown_distribution(
    entries: dict[str, FakeEntry], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries["broken"].dist = None
    assert exit_code_of(build_app(), monkeypatch, "broken") == 1
    assert "the command broken of an unknown distribution cannot" in capsys.readouterr().err


# -- errors and interrupts --------------------------------------------------------------------------------------------


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
from godwit.cli.main import CLIENT_COMMANDS, COMMANDS, ENTRY_POINTS, build_app, run

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
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.skipif(not SCRIPT.exists(), reason="godwit is not installed beside this interpreter")
def test_installed_script() -> None:
    result = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.splitlines()[0] == f"godwit {godwit.__version__}"


def test_unknown_attribute_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'wings'"):
        _ = godwit.wings  # type: ignore[attr-defined]


@needs_posix
@pytest.mark.skipif(not SCRIPT.exists(), reason="godwit is not installed beside this interpreter")
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_is_installed_and_completes_commands_and_options(tmp_path: Path) -> None:
    variables = environment(HOME=str(tmp_path), PATH=f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}")
    # It is installed for the shell that the command is started from: the nearest parent process that is one. A second
    # command keeps bash from replacing itself by the first.
    result = subprocess.run(
        ["bash", "-c", "godwit --install-completion; exit $?"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "bash completion installed in" in result.stdout, result.stdout + result.stderr
    script = tmp_path / ".bash_completions" / "godwit.sh"
    assert str(script) in (tmp_path / ".bashrc").read_text()
    for typed, wanted in (
        (("godwit", "su"), ["sub"]),
        (("godwit", "sub", "--no-f"), ["--no-follow"]),
        (("godwit", "job", "ret"), ["retry"]),
    ):
        words = " ".join(typed)
        lines = f"source {script}; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _godwit_completion godwit"
        answer = subprocess.run(
            ["bash", "-c", f"{lines}; echo ${{COMPREPLY[@]}}"],
            env=variables, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert answer.stdout.split() == wanted, (typed, answer.stderr)
