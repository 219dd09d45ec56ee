"""Secrets appear neither in process lists nor in logs, errors, tracebacks or the repr of objects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.real import GODWIT, PATIENCE_S, address_of, environment, godwit, running

from godwit.broker.access import Access
from godwit.cli.connection import Target
from godwit.client.config import ClientConfig
from godwit.mqtt.connection import MqttCredentials
from godwit.mqtt.packets import ConnectPacket
from godwit.server.configuration import AccessClientSection, BridgeFileSection, BridgeSection, load_configuration

SECRET = "hunter2-is-a-long-secret"
OTHER = "another-long-wrong-secret"
TOKEN = "archive-token-that-is-long-enough"
CONFIG = """
[archive]
token_file = "tokens"
listen = "127.0.0.1:0"
[mqtt]
listen = ["127.0.0.1:0"]
[[access.client]]
name = "me"
secret_file = "me.secret"
[[access.rule]]
clients = ["me"]
allow = ["publish", "subscribe"]
topics = ["#"]
"""
CRASH = """
import sys
from pathlib import Path
from godwit.cli.connection import Target
from godwit.client.config import ClientConfig
secret = Path(sys.argv[1]).read_bytes().strip()
target, config = Target("127.0.0.1:1", "me", secret), ClientConfig(name="me", secret=secret)
raise RuntimeError(f"{target} {config!r}")
"""


def test_no_repr_has_a_secret() -> None:
    data = SECRET.encode()
    text = CONFIG.replace('secret_file = "me.secret"', f'secret = "{SECRET}"')
    bridge = f'[[bridge]]\nname = "b"\nhub = "h"\nsecret = "{SECRET}"'
    for shown in (
        Target("b", "me", data),
        ClientConfig(name="me", secret=data),
        Access(secrets={"me": data}),
        MqttCredentials(name="me", instance=b"", password=data),
        ConnectPacket(version=5, client_id="me", is_clean=True, keep_alive_s=0, user="me", password=data),
        AccessClientSection(name="me", secret=SECRET),
        BridgeFileSection(name="b", hub="h", secret=SECRET),
        BridgeSection(name="b", hub="h", secret=data),
        load_configuration(f"{text}\n{bridge}", read_secret=lambda _: data),
    ):
        assert "hunter2" not in f"{shown!r}{shown!s}", type(shown)
        assert type(shown).__name__ in repr(shown)


def test_the_console_shows_no_secret_of_a_login() -> None:
    pytest.importorskip("aiohttp")
    from godwit.console.server import LoginForm

    assert "hunter2" not in repr(LoginForm("me", SECRET))


@pytest.mark.parametrize(
    "arguments",
    [
        ["pub", "--secret", SECRET, "a", "b"],
        ["pub", f"--secret={SECRET}", "a", "b"],
        ["sub", f"--secret={SECRET}", "a"],
        ["clients", "--secret", SECRET],
        ["broker", f"--secret={SECRET}"],
        ["pub", "--broker", f"udps://me:{SECRET}@127.0.0.1:1", "a", "b"],
    ],
    ids=" ".join,
)
def test_a_secret_as_an_argument_is_refused_and_not_repeated(arguments: list[str]) -> None:
    result = godwit(*arguments)
    assert result.returncode in (1, 2)
    assert b"hunter2" not in result.stdout + result.stderr


def test_a_traceback_has_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "s"
    file.write_text(SECRET)
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-c", CRASH, str(file)],
        capture_output=True,
        check=False,
        env=environment(),
        timeout=PATIENCE_S,
    )
    assert b"RuntimeError: Target(" in result.stderr
    assert b"hunter2" not in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="process lists are read from /proc")
def test_processes_and_logs_have_no_secret(tmp_path: Path) -> None:
    files = {"broker.toml": CONFIG, "tokens": TOKEN, "me.secret": SECRET, "wrong.secret": OTHER}
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
        (tmp_path / name).chmod(0o600)
    config = ["--config", str(tmp_path / "broker.toml"), "--data", str(tmp_path / "data")]
    with running("broker", "--listen", "127.0.0.1:0", "--verbose", *config, GODWIT_LOG="debug") as broker:
        address = address_of(broker)
        for file, code in (("me.secret", 0), ("wrong.secret", 1)):
            secret = ["--name", "me", "--secret-file", str(tmp_path / file)]
            command = [*GODWIT, "pub", "--broker", address, *secret, "--timeout", str(PATIENCE_S), "a", "x"]
            result = subprocess.run(
                command, check=False, capture_output=True, env=environment(GODWIT_LOG="debug"), timeout=2 * PATIENCE_S
            )
            assert result.returncode == code, result.stderr
            assert result.stderr
            for text in (SECRET, OTHER):
                assert text.encode() not in result.stdout + result.stderr
        broker.out.until("the proof of the name")
        lists = [path.read_bytes() for path in own_processes(broker.process.pid)]
        assert any(b"--token-file" in line for line in lists), "the archive runs beside the broker"
        broker.interrupt()
        printed = "\n".join([*broker.out.seen, *broker.out.rest(), *broker.err.rest()])
        assert "debug" in printed.lower()
        for text in (SECRET, OTHER, TOKEN):
            assert text not in printed
            assert not any(text.encode() in line for line in lists)


def own_processes(pid: int) -> list[Path]:
    """The command lines of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path(f"/proc/{one}/cmdline") for one in (str(pid), *children)]
