"""`godwit up` leaves no node behind, however it is ended. The nodes are stand-ins that ignore SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.cli.real import needs_posix

DEADLINE_S = 60.0
NODE = """#!/bin/sh
trap '' TERM
exec sleep 1000
"""
PROGRAM = """
import sys
from pathlib import Path
if sys.argv[1] == "asyncio":
    sys.modules["uvloop"] = None
from godwit.cli import up
from godwit.net import loop

sys.executable = sys.argv[2]
up.END_S = float(sys.argv[3])
up.WATCHED = tuple(text.replace("sleep 15", "sleep 0.1") for text in up.WATCHED)
end = up._Node.end

async def noted_end(node):
    print("ending", flush=True)
    await end(node)

up._Node.end = noted_end
try:
    loop.run(up._run([Path(sys.argv[4]) / f"node-{number}" / "broker.toml" for number in (1, 2, 3)]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class Cluster:
    """A `godwit up` with three nodes that have started."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.nodes = [int(self.line("process").split()[-1]) for _ in range(3)]
        assert all(map(is_running, self.nodes))

    def line(self, text: str) -> str:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if text in line:
                return line
        raise AssertionError(f"it ended without {text!r}")

    def wait_for_nodes(self) -> None:
        until = time.monotonic() + DEADLINE_S
        while any(map(is_running, self.nodes)) and time.monotonic() < until:
            time.sleep(0.01)
        assert not any(map(is_running, self.nodes))


@contextmanager
def cluster(folder: Path, loop: str, end_s: float) -> Iterator[Cluster]:
    node = folder / "node"
    node.write_text(NODE)
    node.chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, loop, str(node), str(end_s), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    found = None
    try:
        found = Cluster(process)
        yield found
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        for pid in found.nodes if found is not None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


both_loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@needs_posix
@both_loops
def test_a_node_that_does_not_end_is_killed(tmp_path: Path, loop: str) -> None:
    with cluster(tmp_path, loop, 0.1) as found:
        found.process.send_signal(signal.SIGINT)
        found.line("the cluster has stopped")
        found.wait_for_nodes()
        assert found.process.wait(DEADLINE_S) == 0


@needs_posix
@both_loops
@pytest.mark.parametrize("step", ["at once", "ending"])
def test_a_second_ctrl_c_kills_the_nodes(tmp_path: Path, loop: str, step: str) -> None:
    with cluster(tmp_path, loop, 10 * DEADLINE_S) as found:
        found.process.send_signal(signal.SIGINT)
        if step == "ending":
            for _ in found.nodes:
                found.line("ending")
        else:
            time.sleep(0.02)
        while found.process.poll() is None:  # users are impatient
            found.process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        found.wait_for_nodes()


@needs_posix
def test_nodes_end_when_it_is_killed(tmp_path: Path) -> None:
    with cluster(tmp_path, "asyncio", 10 * DEADLINE_S) as found:
        found.process.kill()
        found.wait_for_nodes()
