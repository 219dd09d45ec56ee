"""Peers are found, or installed where that is allowed; a missing one is always an error."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import GodwitError
from godwit_bench import peers


class Machine:
    """The state of a fake machine, and the commands that were run on it."""

    def __init__(self, *, has: set[str], user: int = 0, fails: bool = False) -> None:
        self.has = has
        self.user = user
        self.fails = fails
        self.commands: list[str] = []

    def which(self, program: str, path: str | None = None) -> str | None:
        return f"/usr/sbin/{program}" if program in self.has else None

    def run(self, command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(" ".join(command))
        if self.fails:
            return subprocess.CompletedProcess(command, 100, "", "Reading\nE: Unable to locate package\n")
        if command[1] == "install":
            self.has.update(command[4:])
        return subprocess.CompletedProcess(command, 0, "", "")


def use(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr("shutil.which", machine.which)
    monkeypatch.setattr("subprocess.run", machine.run)
    monkeypatch.setattr("os.geteuid", lambda: machine.user)
    return machine


def not_called(command: str) -> None:
    pytest.fail(f"nothing was to be installed, but: {command}")


def test_installed_peers_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Machine(has={"mosquitto", "nats-server"}), monkeypatch)
    assert peers.require(not_called) == {"mosquitto": "/usr/sbin/mosquitto", "nats-server": "/usr/sbin/nats-server"}


def test_no_more_is_needed_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Machine(has={"nats-server"}), monkeypatch)
    monkeypatch.setattr(peers, "find_spec", lambda module: module == "nats" or None)
    found = peers.require(not_called, programs=("nats-server",), modules=("nats",))
    assert found == {"nats-server": "/usr/sbin/nats-server"}


def test_root_installs_missing_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = use(Machine(has={"mosquitto", "apt-get"}), monkeypatch)
    output: list[str] = []
    assert set(peers.require(output.append)) == {"mosquitto", "nats-server"}
    assert output == ["apt-get install --yes --no-install-recommends nats-server"]
    assert machine.commands == ["apt-get update", *output]


@pytest.mark.parametrize("machine", [Machine(has={"apt-get"}, user=1000), Machine(has=set())])
def test_other_users_get_the_command(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    use(machine, monkeypatch)
    with pytest.raises(GodwitError) as caught:
        peers.require(not_called)
    assert "mosquitto and nats-server" in str(caught.value)
    command = "sudo apt-get install --yes --no-install-recommends mosquitto nats-server"
    assert f"run `sudo apt-get update && {command}`" in str(caught.value)
    assert machine.commands == []


def test_a_failed_installation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Machine(has={"apt-get"}, fails=True), monkeypatch)
    with pytest.raises(GodwitError, match=r"could not be installed \(E: Unable to locate package\): run `sudo"):
        peers.require(lambda _: None)


def test_an_installation_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: tuple[str, ...], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 300)

    use(Machine(has={"apt-get"}), monkeypatch)
    monkeypatch.setattr("subprocess.run", hang)
    with pytest.raises(GodwitError, match="could not be installed in 300 s"):
        peers.require(lambda _: None)


def test_an_installation_without_effect_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = use(Machine(has={"apt-get"}), monkeypatch)
    machine.has = Forgetful(machine.has)
    with pytest.raises(GodwitError, match="missing even after installing it"):
        peers.require(lambda _: None)


class Forgetful(set[str]):
    def update(self, *_: Any) -> None:
        pass


def test_missing_python_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda _: None)
    with pytest.raises(GodwitError, match=r"nats and zenoh, .* `make setup`"):
        peers.require(not_called)


def test_servers_are_found_where_debian_keeps_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = tmp_path / "sbin" / "nats-server"
    server.parent.mkdir()
    server.write_text("#!/bin/sh\n", encoding="utf-8")
    server.chmod(0o755)
    monkeypatch.setattr(peers, "_MORE_FOLDERS", (str(server.parent),))
    monkeypatch.setenv("PATH", os.defpath)
    assert peers.find("nats-server") is not None
    monkeypatch.setenv("PATH", "")
    assert peers.find("nats-server") == str(server)
