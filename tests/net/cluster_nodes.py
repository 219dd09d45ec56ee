"""Nodes of a cluster as processes on this machine, for tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
from tests.net.nats_servers import NatsServers
from tests.net.postgres_servers import PASSWORD, PostgresServers
from tests.ports import free_ports

PATIENCE_S = 120.0
TABLES = ("blocks", "state", "marks", "epochs", "meta")


class NodeProcess:
    """One node. Its event lines are read in a thread."""

    def __init__(self, name: str, folder: Path, config: str, port: int, prefix: Sequence[str] = ()) -> None:
        """Make a node that is not started; `prefix` is a program that runs it, with arguments."""
        self.name = name
        self.folder = folder
        self.prefix = prefix
        self.data = folder / "data"
        self.port = port
        folder.mkdir(exist_ok=True)
        self.file = folder / "broker.toml"
        self.file.write_text(config)
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[dict[str, Any]] = []
        self.errors = folder / "stderr.txt"
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        broker = ["-m", "godwit", "broker", "--config", str(self.file), "--log-format", "json"]
        command = [*self.prefix, sys.executable, *broker]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(json.loads(line))

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def is_active(self) -> bool:
        """Whether its last line about the state reports that it serves clients."""
        if not self.is_running:
            return False
        for line in reversed(self.lines):
            if line["kind"] == "listening":
                return True
            if line["kind"] == "ended":  # the lines before are of an earlier run
                return False
            if line["kind"] == "cluster" and line.get("state") not in (None, "active"):
                return False
        return False

    @property
    def engine_process(self) -> int:
        """The process of the server of the engine that it runs."""
        configuration = str(self.data / "engine" / "server.conf")
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                program, *arguments = path.read_bytes().decode(errors="replace").split("\0")
                if "nats-server" in program and configuration in arguments:
                    return int(path.parent.name)
        raise AssertionError(f"the node {self.name} runs no server of the engine")

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it as a power failure of its machine would, except for its disk."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        process = self.process
        if process is None:
            return 0
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        code = process.wait(PATIENCE_S)
        assert self._reader is not None
        self._reader.join(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
        self.lines.append({"kind": "ended"})
        return code

    def wait_for_exit(self) -> tuple[int, str]:
        """Wait until it ends by itself. Return its exit code and its error text."""
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        self.end()
        return code, self.errors.read_text()


class Cluster:
    """Three nodes, with NATS servers of their own or with a given engine."""

    def __init__(
        self,
        folder: Path,
        servers: NatsServers | PostgresServers | None,
        *,
        head: str = "",
        more: str = "",
        log: str = "",
        name: str = "test",
        count: int = 3,
        has_archives: bool = False,
        has_tls: bool = False,
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.ports = free_ports(count)
        archives = [f"127.0.0.1:{port}" for port in free_ports(count)] if has_archives else ["none"] * count
        self.archives = "|".join(archives)
        """The archives of all nodes, as replicas of one log."""
        self.nodes: list[NodeProcess] = []
        routes: list[int] = []
        if isinstance(servers, PostgresServers):
            engine = (
                f'engine = "postgres"\nsingle = true\nuser = "postgres"\npassword = "{PASSWORD}"\n'
                f'servers = ["postgresql://127.0.0.1:{servers.ports[0]}/postgres"]\n'
            )
        else:
            ports, monitors = (free_ports(3), free_ports(3)) if servers is None else (servers.ports, servers.monitors)
            schemes = ("tls://", "https://") if has_tls else ("nats://", "http://")
            engine = f"servers = {_places(ports, schemes[0])}\nmonitors = {_places(monitors, schemes[1])}\n"
            if servers is None:
                routes = free_ports(3)
        for number in range(count):
            run = f"[cluster.run]\nnumber = {number + 1}\nroutes = {_places(routes)}\n" if routes else ""
            self.nodes.append(
                NodeProcess(
                    f"n{number + 1}",
                    folder / f"n{number + 1}",
                    f'{head}listen = ["127.0.0.1:{self.ports[number]}"]\n'
                    f'[log]\ndata = "data"\n{log}[archive]\nlisten = "{archives[number]}"\n'
                    f'[cluster]\nname = "{name}"\nnode = "n{number + 1}"\n{engine}{more}{run}',
                    self.ports[number],
                )
            )

    @property
    def address(self) -> str:
        """The addresses of all nodes, for clients."""
        return ",".join(f"udp://127.0.0.1:{port}" for port in self.ports)

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def active(self) -> NodeProcess | None:
        return next((node for node in self.nodes if node.is_active), None)

    @property
    def activations(self) -> int:
        """How often a node has become active."""
        return sum(line.get("state") == "active" for node in self.nodes for line in node.lines)

    def describe(self) -> object:
        """Return the last lines of all nodes, for the text of a failure."""
        return [(node.name, node.lines[-3:], node.errors.read_text()[-500:]) for node in self.nodes]

    def wait_for_active(self, apart_from: NodeProcess | None = None) -> NodeProcess:
        found: list[NodeProcess] = []

        def is_found() -> bool:
            found[:] = [node for node in self.nodes if node.is_active and node is not apart_from]
            return bool(found)

        wait_until(is_found, self.describe)
        return found[0]

    def stop(self) -> None:
        for node in self.nodes:
            if node.is_running:
                node.send(signal.SIGCONT)
                node.send(signal.SIGTERM)
        for node in self.nodes:
            node.end()


def _places(ports: Sequence[int], scheme: str = "") -> str:
    return json.dumps([f"{scheme}127.0.0.1:{port}" for port in ports])


def run_godwit(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "godwit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def godwit_command(*arguments: object, code: int = 0) -> str:
    """Run a command, and return its output."""
    done = run_godwit(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait_until(
    is_done: Callable[[], object],
    describe: Callable[[], object] = lambda: "",
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Wait for something. The time for it begins anew with each change of `progress`."""
    deadline = time.monotonic() + PATIENCE_S
    before = progress()
    while not is_done():
        if (now := progress()) != before:
            before, deadline = now, time.monotonic() + PATIENCE_S
        assert time.monotonic() < deadline, describe()
        time.sleep(0.02)


def content_hash(data: Path) -> str:
    """Return a hash of everything in the log of a node that has ended: messages, state, epochs, place."""
    digest = sha256()
    connection = apsw.Connection(str(data / "log.sqlite"))
    try:
        for table in TABLES:
            digest.update(table.encode())
            for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2"):
                digest.update(repr(row).encode())
    finally:
        connection.close()
    return digest.hexdigest()


def place_of(data: Path) -> bytes:
    """Return how far the file of a node has followed the cluster; empty before its first record."""
    try:
        connection = apsw.Connection(str(data / "log.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.CantOpenError:  # in the moment in which the node creates, opens or closes it
        return b""
    connection.set_busy_timeout(int(PATIENCE_S * 1000))  # a node that has just opened it recovers the write-ahead log
    try:
        found = connection.execute("SELECT value FROM meta WHERE key = 'place'").fetchone()
        return b"" if found is None else bytes(found[0])
    except (apsw.CantOpenError, apsw.SQLError):  # the node has just created it, and not its tables yet
        return b""
    finally:
        connection.close()
