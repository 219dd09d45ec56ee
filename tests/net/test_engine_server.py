"""The server of the engine ends with the process of its node, however that ends. The server is a stand-in."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.sessions import PATIENCE_S, needs_linux, processes_of, wait_for_end

pytestmark = needs_linux
LONG_S = 10 * PATIENCE_S
SERVER = """#!/bin/sh
{trap}
echo $$ >"$2.started"
exec sleep 10000
"""
NODE = """
import asyncio
import sys
from pathlib import Path
from godwit.net import engine_server
from godwit.server.cluster_configuration import ClusterSection, EngineRunSection

folder = Path(sys.argv[1])
engine_server.END_TIMEOUT_S = float(sys.argv[2])
places = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
section = ClusterSection(
    name="test",
    node="n1",
    servers=tuple(f"nats://{place}" for place in places),
    monitors=tuple(f"http://{place}" for place in places),
    run=EngineRunSection(number=1, routes=places, program=str(folder / "server")),
)

async def main():
    server = engine_server.EngineServer(section, folder / "engine", print)
    server.start()
    await asyncio.to_thread(sys.stdin.readline)
    await server.stop()

asyncio.run(main())
"""


class Node:
    """A process with a server of the engine that has started."""

    def __init__(self, process: subprocess.Popen[bytes], started: Path) -> None:
        self.process = process
        ends = time.monotonic() + PATIENCE_S
        while not (started.exists() and started.read_text().endswith("\n")):
            assert time.monotonic() < ends, "the server did not start"
            time.sleep(0.02)
        self.server = int(started.read_text())
        after = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2]
        self.session = int(after.split()[3])
        assert len(processes_of(self.session)) > 1


@contextmanager
def node_in(folder: Path, trap: str, end_timeout_s: float) -> Iterator[Node]:
    program = folder / "server"
    program.write_text(SERVER.format(trap=trap))
    program.chmod(0o700)
    command = [sys.executable, "-c", NODE, str(folder), str(end_timeout_s)]
    found = None
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            found = Node(process, folder / "engine" / "server.conf.started")
            yield found
        finally:
            process.kill()
            if found is not None:
                for one in processes_of(found.session):
                    subprocess.run(["kill", "-9", one.split()[0]], check=False)


@pytest.mark.parametrize(
    ("trap", "end_timeout_s", "stopped"), [("", LONG_S, False), ("trap '' TERM", 0.1, False), ("", LONG_S, True)]
)
def test_it_ends_with_a_node_that_was_paused_and_killed(
    tmp_path: Path, trap: str, end_timeout_s: float, stopped: bool
) -> None:
    with node_in(tmp_path, trap, end_timeout_s) as node:
        node.process.send_signal(signal.SIGSTOP)
        if stopped:
            subprocess.run(["kill", "-STOP", str(node.server)], check=True)
        node.process.kill()
        wait_for_end([node.session])


@pytest.mark.parametrize(("trap", "end_timeout_s"), [("", LONG_S), ("trap '' TERM", 0.1)])
def test_it_ends_with_a_node_that_stops(tmp_path: Path, trap: str, end_timeout_s: float) -> None:
    with node_in(tmp_path, trap, end_timeout_s) as node:
        node.process.communicate(b"\n", timeout=PATIENCE_S)
        assert node.process.returncode == 0
        wait_for_end([node.session])
