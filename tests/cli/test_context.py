"""`godwit context`: names for brokers, and the options that they set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.real import broker, error_of, godwit, lines, write_secret

CONFIGURATION = """
[[access.client]]
name = "desk"
secret_file = "secret"

[[access.rule]]
clients = ["desk"]
allow = ["publish"]
topics = ["desk/#"]
"""


@pytest.fixture
def home(tmp_path: Path) -> str:
    """A folder for the configuration of a user."""
    return str(tmp_path / "home")


def test_the_first_context_is_selected_and_sets_the_broker(address: str, nowhere: str, home: str) -> None:
    added = godwit("context", "add", "lab", "--broker", address, XDG_CONFIG_HOME=home)
    assert (added.returncode, added.stdout) == (0, b"added lab, selected\n")
    assert godwit("context", "add", "gone", "--broker", nowhere, XDG_CONFIG_HOME=home).stdout == b"added gone\n"
    assert godwit("ping", "-n", "1", XDG_CONFIG_HOME=home).returncode == 0
    assert godwit("topics", "list", XDG_CONFIG_HOME=home).returncode == 0
    assert godwit("job", "submit", "context/kind", "-q", XDG_CONFIG_HOME=home).returncode == 0
    ping = ("ping", "--timeout", "0.3")
    assert "no broker answered" in error_of(*ping, XDG_CONFIG_HOME=home, GODWIT_CONTEXT="gone")
    assert "no broker answered" in error_of(*ping, XDG_CONFIG_HOME=home, GODWIT_BROKER=nowhere)
    assert "no broker answered" in error_of("--context", "gone", "ping", "--timeout", "0.3", XDG_CONFIG_HOME=home)
    assert "no broker answered" in error_of("ping", "--broker", nowhere, "--timeout", "0.3", XDG_CONFIG_HOME=home)


def test_a_context_names_the_archive_of_its_broker(nowhere: str, home: str, tmp_path: Path) -> None:
    godwit("context", "add", "gone", "--broker", nowhere, XDG_CONFIG_HOME=home)
    host, _, port = nowhere.rpartition(":")
    result = godwit("pipeline", "run", "--once", "--lake", str(tmp_path / "lake"), XDG_CONFIG_HOME=home)
    assert f"{host}:{int(port) + 1}" in result.stderr.decode()
    assert result.returncode == 1


def test_a_selected_context_does_not_replace_the_comparison_of_latencies(
    address: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    monkeypatch.setattr("godwit_bench.latency.run", lambda **_: measured.append("comparison"))
    monkeypatch.setattr("godwit_bench.broker.latency", lambda load, **_: measured.append(load.broker))
    monkeypatch.setattr("godwit_tools.bench.print_report", lambda report, as_json: None)
    godwit("context", "add", "lab", "--broker", address, XDG_CONFIG_HOME=home)
    compared = godwit("bench", "latency", "--folder", str(tmp_path), XDG_CONFIG_HOME=home)
    assert compared.returncode == 0, compared.stderr
    assert godwit("--context", "lab", "bench", "latency", XDG_CONFIG_HOME=home).returncode == 0
    assert measured == ["comparison", address]


def test_list_select_and_remove(home: str) -> None:
    for name in ("one", "two"):
        godwit("context", "add", name, "--broker", f"{name}.example:50000", "--name", "me", XDG_CONFIG_HOME=home)
    assert godwit("context", "select", "two", XDG_CONFIG_HOME=home).stdout == b"selected two\n"
    rows = lines(godwit("context", "list", XDG_CONFIG_HOME=home).stdout)
    assert [row.split() for row in rows[1:]] == [
        ["one", "one.example:50000", "me"],
        ["*", "two", "two.example:50000", "me"],
    ]
    found = [json.loads(line) for line in lines(godwit("context", "list", "--json", XDG_CONFIG_HOME=home).stdout)]
    assert [(one["context"], one["selected"]) for one in found] == [("one", False), ("two", True)]
    assert godwit("context", "remove", "two", XDG_CONFIG_HOME=home).stdout == b"removed two\n"
    for command in (["context", "remove", "two"], ["context", "select", "two"], ["--context", "two", "ping"]):
        assert "the context 'two' does not exist" in error_of(*command, XDG_CONFIG_HOME=home)


def test_name_and_secret_of_a_context(tmp_path: Path, home: str) -> None:
    write_secret(tmp_path)
    (tmp_path / "broker.toml").write_text(CONFIGURATION)
    with broker("--config", str(tmp_path / "broker.toml")) as address:
        arguments = ("--broker", address, "--name", "desk", "--secret-file", str(tmp_path / "secret"))
        assert godwit("context", "add", "desk", *arguments, XDG_CONFIG_HOME=home).returncode == 0
        assert godwit("pub", "desk/a", "x", "-q", XDG_CONFIG_HOME=home).returncode == 0
        # The secret of the context proves the name of the context, and not another name.
        other = ("pub", "desk/a", "x", "--name", "other")
        assert "the name is unknown here" in error_of(*other, XDG_CONFIG_HOME=home)
        given = error_of(*other, "--secret-file", str(tmp_path / "secret"), XDG_CONFIG_HOME=home)
        assert "a secret was given for the name 'other'" in given


def test_invalid_contexts(home: str, tmp_path: Path) -> None:
    assert "is not a name of a context" in error_of("context", "add", "a b", "--broker", "x", XDG_CONFIG_HOME=home)
    assert "add --name" in error_of("context", "add", "a", "--broker", "x", "--secret-file", "s", XDG_CONFIG_HOME=home)
    assert "port" in error_of("context", "add", "a", "--broker", "x:70000", XDG_CONFIG_HOME=home)
    result = godwit("context", "list", XDG_CONFIG_HOME=home)
    assert (result.returncode, result.stderr) == (0, b"no contexts; add one with godwit context add\n")
    path = tmp_path / "home" / "godwit" / "contexts.json"
    path.parent.mkdir(parents=True)
    for text in ("[", "[]", '{"contexts": {"a": 7}}'):
        path.write_text(text)
        assert "is not a file of contexts" in error_of("ping", XDG_CONFIG_HOME=home)
    assert godwit("--version", XDG_CONFIG_HOME=home).returncode == 0
