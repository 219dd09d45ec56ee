"""Messages to a service manager: those of a real broker on a real socket, and environments that are wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.real import PATIENCE_S, running
from tests.net.running import run

from godwit.net.service_manager import ServiceManager


class Manager:
    """The socket of a service manager."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE_S)
        self._socket.bind(address)

    def message(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().split("\n"))

    def until(self, name: str) -> tuple[dict[str, str], int]:
        """Return the next message with this variable, and how many signs of life came before it."""
        signs = 0
        while name not in (found := self.message()):
            assert found == {"WATCHDOG": "1"}
            signs += 1
        return found, signs

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(str(tmp_path / "notify"))
    yield found
    found.close()


def test_a_broker_reports_its_start_reload_life_and_stop(manager: Manager, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('listen = ["127.0.0.1:0"]\n')
    with running(
        "broker", "--config", str(config), "--memory",
        NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="400000",
    ) as command:  # fmt: skip
        first = manager.message()
        assert first["READY"] == "1"
        assert first["STATUS"].startswith("listening on udp://127.0.0.1:")
        for _ in range(3):
            assert manager.message() == {"WATCHDOG": "1"}
        before_us = time.monotonic_ns() // 1000
        command.process.send_signal(signal.SIGHUP)
        found, _ = manager.until("RELOADING")
        assert before_us <= int(found["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        assert manager.until("READY")[0]["STATUS"] == first["STATUS"]
        config.write_text("listen = 7\n")  # a reload that fails ends as well, and is reported as a line
        command.process.send_signal(signal.SIGHUP)
        manager.until("RELOADING")
        manager.until("READY")
        command.out.until("the configuration stays as it was")
        assert manager.until("WATCHDOG")[1] == 0
        command.process.send_signal(signal.SIGTERM)
        assert manager.until("STOPPING")[0]["STATUS"] == "stopping"
        assert command.process.wait(PATIENCE_S) == 0


def test_a_broker_that_does_not_start_is_never_ready(manager: Manager, tmp_path: Path) -> None:
    arguments = ("broker", "--listen", "192.0.2.1:0", "--memory")
    with running(*arguments, NOTIFY_SOCKET=str(tmp_path / "notify")) as command:
        assert command.process.wait(PATIENCE_S) == 1
    manager._socket.settimeout(0)
    with pytest.raises(BlockingIOError):
        manager.message()


def test_a_loop_that_hangs_sends_no_sign_of_life(manager: Manager, tmp_path: Path) -> None:
    async def main() -> None:
        service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"})
        service.notify_ready("x")
        assert "READY" in manager.message()
        assert manager.message() == {"WATCHDOG": "1"}
        manager._socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            manager.message()  # the event loop waits here, so it is the one that hangs
        manager._socket.settimeout(PATIENCE_S)
        assert await asyncio.to_thread(manager.message) == {"WATCHDOG": "1"}
        service.close()

    run(main)


def test_addresses_without_a_file() -> None:
    name = f"godwit-test-{os.getpid()}"
    manager = Manager(f"\0{name}")
    try:
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).notify_stopping()
        assert manager.message() == {"STOPPING": "1", "STATUS": "stopping"}
    finally:
        manager.close()


def test_texts_have_one_line(manager: Manager, tmp_path: Path) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}).notify_ready("a\nMAINPID=1\x1b[31m")
    found = manager.message()
    assert set(found) == {"READY", "STATUS"}
    assert "\x1b" not in found["STATUS"]


@pytest.mark.parametrize("path", ["relative", "/does/not/exist", "/", "@", f"/{'x' * 200}"])
def test_a_wrong_socket_is_a_warning(path: str, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({"NOTIFY_SOCKET": path}).notify_stopping()
    assert "service manager" in caplog.text


@pytest.mark.parametrize(("text", "wanted"), [("30000000", 30.0), ("1", None), ("x", None), ("-5", None), ("", None)])
def test_watchdog_times(text: str, wanted: float | None) -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": text}
    assert ServiceManager(environment).watchdog_s == wanted
    assert ServiceManager({**environment, "WATCHDOG_PID": str(os.getpid())}).watchdog_s == wanted
    assert ServiceManager({**environment, "WATCHDOG_PID": "1"}).watchdog_s is None
    assert ServiceManager({"WATCHDOG_USEC": text}).watchdog_s is None
