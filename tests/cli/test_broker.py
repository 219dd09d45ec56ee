"""`godwit broker` as a user sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.cli.real import (
    GODWIT,
    PATIENCE_S,
    address_of,
    broker,
    environment,
    error_of,
    godwit,
    needs_posix,
    running,
    subscribed,
    write_secret,
)

from godwit.cli.broker import load_file, with_log
from godwit.server.configuration import ArchiveSection, Configuration

ACCESS = """
[[access.client]]
name = "sensor-1"
secret_file = "secret"

[[access.client]]
name = "display"
secret = "another long secret"

[[access.rule]]
clients = ["sensor-1"]
allow = ["publish"]
topics = ["home/#"]

[[access.rule]]
clients = ["display"]
allow = ["subscribe"]
topics = ["home/#"]
"""


@needs_posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_logs_events_and_stops_cleanly(number: signal.Signals) -> None:
    with running("broker", "--listen", "127.0.0.1:0", "--memory") as command:
        address = address_of(command)
        with running("sub", "broker/x", "--name", "display", "--broker", address) as sub:
            subscribed(address, "broker/x")
            godwit("pub", "broker/x", "1", "--name", "sensor", "--broker", address)
            assert sub.out.line() == "broker/x: 1"
            command.process.send_signal(number)
            assert command.wait() == 0
            assert "the broker is being stopped" in sub.err.line()
        text = "\n".join(command.out.seen + command.out.rest())
        assert "sensor connected from 127.0.0.1:" in text
        assert "display subscribed to broker/x" in text
        assert command.err.rest() == []


def test_json_lines() -> None:
    with running("broker", "--listen", "127.0.0.1:0", "--memory", "--log-format", "json") as command:
        ready = json.loads(command.out.line())
        assert (ready["kind"], ready["host"]) == ("listening", "127.0.0.1")
        assert ready["text"] == f"listening on udp://127.0.0.1:{ready['port']}"


def test_several_addresses() -> None:
    arguments = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"]
    if socket.has_ipv6:
        arguments += ["--listen", "[::1]:0"]
    with running("broker", "--memory", *arguments) as command:
        addresses = [address_of(command) for _ in range(len(arguments) // 2)]
        with running("sub", "a", "--broker", addresses[-1]) as sub:
            subscribed(addresses[0], "a")
            godwit("pub", "a", "across", "--broker", addresses[0])
            assert sub.out.line() == "a: across"


@pytest.mark.parametrize("policy", ["explicit"])
def test_a_configuration(tmp_path: Path, policy: str) -> None:
    """R1: three rooms exist by default; publishing to another one is refused until it is created."""
    path = tmp_path / "broker.toml"
    path.write_text(f'[topics]\npolicy = "{policy}"\ncreate = ["room1", "room2", "room3"]\n')
    with broker("--config", str(path)) as address:
        rows = godwit("topics", "--json", "--broker", address).stdout.decode().splitlines()
        assert [json.loads(row)["name"] for row in rows] == ["room1", "room2", "room3"]
        assert godwit("pub", "room1", "x", "--broker", address).returncode == 0
        assert "room4" in error_of("pub", "room4", "x", "--broker", address)
        assert "room4" in error_of("sub", "room4", "--broker", address)
        godwit("topics", "create", "room4", "--broker", address)
        assert godwit("pub", "room4", "x", "--broker", address).returncode == 0


def test_access(tmp_path: Path) -> None:
    secret = write_secret(tmp_path)
    other = tmp_path / "other"
    other.write_text("another long secret")
    path = tmp_path / "broker.toml"
    path.write_text(ACCESS)
    sensor = ("--name", "sensor-1", "--secret-file", str(secret))
    display = ("--name", "display", "--secret-file", str(other))
    with broker("--config", str(path)) as address:
        with running("sub", "home/#", *display, "--broker", address) as sub:
            assert "reached" in godwit("pub", "home/a", "x", *sensor, "--broker", address).stderr.decode()
            while "reached 1" not in godwit("pub", "home/a", "x", *sensor, "--broker", address).stderr.decode():
                pass
            assert sub.out.line() == "home/a: x"
        for arguments in (
            ("pub", "home/a", "x"),  # without a name
            ("pub", "home/a", "x", "--name", "sensor-1"),  # without a proof
            ("pub", "home/a", "x", "--name", "sensor-1", "--secret-file", str(other)),  # with a wrong one
            ("pub", "garden", "x", *sensor),  # elsewhere
            ("sub", "home/#", *sensor),  # something else
            ("kick", "display", *sensor),
        ):
            assert error_of(*arguments, "--broker", address, "--timeout", "120")


@needs_posix
def test_sighup_reads_the_configuration_again(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('[topics]\npolicy = "explicit"\n')
    with running("broker", "--listen", "127.0.0.1:0", "--memory", "--config", str(path)) as command:
        address = address_of(command)
        assert error_of("pub", "room1", "x", "--broker", address)
        path.write_text("not TOML")
        command.process.send_signal(signal.SIGHUP)
        assert "the configuration stays as it was" in command.out.until("WARNING")
        path.write_text('[topics]\npolicy = "open"\n')
        command.process.send_signal(signal.SIGHUP)
        command.out.until("was read again")
        assert godwit("pub", "room1", "x", "--broker", address).returncode == 0


def test_bad_input_is_one_line(tmp_path: Path, address: str) -> None:
    path = tmp_path / "broker.toml"
    for text, problem in (
        ("listen = 1", "listen"),
        ("[topics]\npolicy = 'closed'", "topics.policy"),
        ("a = [", "not TOML"),
        ("fly = true", "fly"),
        ("[[access.client]]\nname = 'a'\nsecret_file = 'nowhere'", "nowhere"),
    ):
        path.write_text(text)
        error = error_of("broker", "--listen", "127.0.0.1:0", "--config", str(path))
        assert error.startswith(f"{path}: ")
        assert problem in error
    path.write_bytes(b"\xff")
    assert "is not UTF-8" in error_of("broker", "--config", str(path))
    assert "cannot read the configuration" in error_of("broker", "--config", str(tmp_path / "nowhere"))
    assert "another socket has this port" in error_of("broker", "--listen", address)
    assert "is not a port" in error_of("broker", "--listen", "127.0.0.1:port")
    assert "unknown log format xml" in error_of("broker", "--log-format", "xml")
    assert "--memory and --data exclude" in error_of("broker", "--memory", "--data", str(tmp_path))
    assert "--memory has no log" in error_of("broker", "--memory", "--archive", "127.0.0.1:0")
    data = ("--listen", "127.0.0.1:0", "--data", str(path))  # a file
    assert error_of("broker", *data).startswith(f"{path} is a file: give the folder")


def test_the_command_line_comes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('listen = ["127.0.0.1:1"]')
    assert load_file(path, []).listen == ["127.0.0.1:1"]
    assert load_file(path, ["127.0.0.1:2"]).listen == ["127.0.0.1:2"]
    assert load_file(None, []).listen == ["127.0.0.1:50000"]


@needs_posix
def test_what_is_confirmed_is_there_after_a_kill(tmp_path: Path) -> None:
    folder = ("--data", str(tmp_path / "data"), "--archive", "none")
    with running("broker", "--listen", "127.0.0.1:0", *folder) as command:
        address = address_of(command)
        for text in ("one", "two"):
            assert godwit("pub", "home/a", text, "--broker", address).returncode == 0
        command.process.kill()
        command.wait()
    with broker(*folder) as address:
        result = godwit("sub", "home/#", "--from", "earliest", "--count", "2", "--broker", address)
        assert result.stdout.decode().splitlines() == ["home/a: one", "home/a: two"]


@needs_posix
def test_a_broker_is_durable_by_default_and_serves_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with running("broker", "--listen", "127.0.0.1:0") as command:
        lines = sorted(command.out.line() for _ in range(3))  # on a busy machine the archive may be ready last
        assert "log in godwit-data: no messages" in lines[0]
        assert re.fullmatch(r"archive on grpc://127\.0\.0\.1:\d+", lines[1])
        assert re.fullmatch(r"listening on udp://127\.0\.0\.1:\d+", lines[2])
        assert (tmp_path / "godwit-data" / "log.sqlite").exists()
        assert command.interrupt() == 0
        assert command.err.rest() == []


def test_the_log_on_the_command_line() -> None:
    plain = Configuration()
    from_file = Configuration(data=Path("/var/lib/godwit"), archive=ArchiveSection(listen="127.0.0.1:7"))

    def chosen(configuration: Configuration, *, data: str | None = None, archive: str | None = None) -> Configuration:
        return with_log(configuration, data=None if data is None else Path(data), memory=False, archive=archive)

    assert chosen(plain) == Configuration(data=Path("godwit-data"))
    assert chosen(from_file) == from_file
    assert chosen(from_file, data="here").data == Path("here")
    assert chosen(plain, archive="0.0.0.0:5").archive == ArchiveSection(listen="0.0.0.0:5")
    assert chosen(from_file, archive="none").archive == ArchiveSection(is_on=False)
    assert with_log(from_file, data=None, memory=True, archive="none").data is None


@needs_posix
def test_its_event_lines_need_no_reader(tmp_path: Path) -> None:
    command = [*GODWIT, "broker", "--listen", "127.0.0.1:0", "--memory"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            address = process.stdout.readline().decode().rpartition("udp://")[2].strip()
            process.stdout.close()
            for _ in range(3):
                assert godwit("pub", "a", "x", "--broker", address).returncode == 0
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=PATIENCE_S) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()


# -- event lines ------------------------------------------------------------------------------------------------------


def test_a_quiet_broker_prints_no_lines_about_clients() -> None:
    with running("broker", "--listen", "127.0.0.1:0", "--memory", "--quiet") as command:
        address = address_of(command)
        assert godwit("pub", "quiet/a", "x", "-q", "--broker", address).returncode == 0
        command.process.send_signal(signal.SIGTERM)
        assert command.wait() == 0
        assert command.out.rest() == [line for line in command.out.seen[1:] if line.endswith("the broker has stopped")]
    assert "exclude each other" in error_of("broker", "--quiet", "--verbose")


def test_a_verbose_broker_prints_the_log_of_the_library_on_stderr() -> None:
    with running("broker", "--listen", "127.0.0.1:0", "--memory", "--verbose", GODWIT_LOG="warning") as command:
        address = address_of(command)
        assert godwit("pub", "verbose/a", "x", "-q", "--broker", address).returncode == 0
        command.process.send_signal(signal.SIGTERM)
        assert command.wait() == 0
        text = "\n".join(command.err.rest())
        assert text.count(f"DEBUG godwit.net.service: listening on udp://{address}: receive buffer") == 1, "not twice"
        assert re.search(r"DEBUG godwit.net.service: connected: '.* connected from 127.0.0.1:", text)
        assert "connected from 127.0.0.1:" in "\n".join(command.out.seen + command.out.rest())


def test_refused_actions_and_jobs_are_event_lines(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(
        '[[access.rule]]\nclients = ["*"]\nallow = ["publish"]\ntopics = ["a"]\n[access]\nanonymous = true\n'
    )
    with running("broker", "--listen", "127.0.0.1:0", "--memory", "--config", str(config)) as command:
        address = address_of(command)
        for arguments, text in (
            (["pub", "b", "x"], "may not publish to 'b'"),
            (["sub", "b/#"], "may not subscribe to 'b/#'"),
            (["clients"], "may not see"),
            (["topics", "create", "c"], "may not create topic 'c'"),
            (["job", "submit", "resize"], "may not submit jobs of the kind 'resize'"),
        ):
            error_of(*arguments, "--name", "visitor", "--broker", address)
            assert f"refused: visitor {text}" in command.out.until("refused")


# -- config and passwd ------------------------------------------------------------------------------------------------


def test_config_check(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('listen = ["127.0.0.1:7000"]\n')
    result = godwit("config", "check", str(config))
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode().splitlines() == [
        f"{config} is valid",
        "listens on  127.0.0.1:7000",
        "log in      godwit-data",
        "access      every client may do everything",
    ]
    found = json.loads(godwit("config", "check", str(config), "--json").stdout)
    assert (found["listen"], found["is_open"]) == (["127.0.0.1:7000"], True)
    config.write_text("lisen = 7\n")
    assert "lisen" in error_of("config", "check", str(config))
    assert "cannot read the configuration" in error_of("config", "check", str(tmp_path / "nothing"))


def test_passwd_adds_a_client_that_can_log_in(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("# my broker\n[access]\nanonymous = false\n")
    arguments = ("passwd", "desk 3", "--config", str(config), "--allow", "publish", "--allow", "subscribe")
    result = godwit(*arguments, "--topic", "home/#")
    assert (result.returncode, result.stdout) == (0, b""), result.stderr
    secret = tmp_path / "desk_3.secret"
    assert config.read_text().startswith("# my broker\n")
    assert {path.name for path in tmp_path.iterdir()} == {"broker.toml", "desk_3.secret"}
    if os.name == "posix":
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    with broker("--config", str(config)) as address:
        proof = ("--name", "desk 3", "--secret-file", str(secret), "--broker", address)
        assert godwit("pub", "home/a", "x", "-q", *proof).returncode == 0
        assert "may not publish" in error_of("pub", "other", "x", *proof)
    assert "has the client 'desk 3' already" in error_of(*arguments, "--topic", "home/#")


@pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")
def test_passwd_keeps_the_mode_of_a_configuration_and_refuses_a_link(tmp_path: Path) -> None:
    config = tmp_path / "etc" / "broker.toml"
    config.parent.mkdir()
    config.write_text("[access]\nanonymous = false\n")
    config.chmod(0o600)
    link = tmp_path / "broker.toml"
    link.symlink_to(config)
    arguments = ("--secret-file", str(config.parent / "desk.secret"), "--allow", "kick")
    assert "broker.toml is a link: name the file itself" in error_of(
        "passwd", "desk", "--config", str(link), *arguments
    )
    assert not (config.parent / "desk.secret").exists()
    result = godwit("passwd", "desk", "--config", str(config), *arguments)
    assert result.returncode == 0, result.stderr
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert {path.name for path in config.parent.iterdir()} == {"broker.toml", "desk.secret"}


def test_passwd_without_a_configuration_prints_the_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = godwit("passwd", "desk", "--allow", "kick")
    assert result.returncode == 0, result.stderr
    found = tomllib.loads(result.stdout.decode())["access"]
    assert found["client"] == [{"name": "desk", "secret_file": "desk.secret"}]
    assert found["rule"] == [{"clients": ["desk"], "allow": ["kick"]}]
    first = Path("desk.secret").read_text()
    assert "desk.secret exists already" in error_of("passwd", "desk")
    assert Path("desk.secret").read_text() == first
    assert godwit("passwd", "desk", "--secret-file", "other.secret").returncode == 0
    assert Path("other.secret").read_text() != first


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["x", "--allow", "fly"], "choose from publish"),
        (["x", "--allow", "publish"], "for all topics and kinds of work (--topic)"),
        (["x", "--topic", "a"], "--topic belongs to a right"),
        (["x", "--allow", "publish", "--topic", "a#"], "a wildcard"),
        ([""], "0 bytes long"),
    ],
)
def test_passwd_refuses_invalid_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in error_of("passwd", *arguments)
    assert list(tmp_path.iterdir()) == []
