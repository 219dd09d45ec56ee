"""`godwit up` leaves no process behind, however it is ended. The nodes are stand-ins."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.real import PATIENCE_S, LineReader
from tests.sessions import needs_linux, processes_of, wait_for_end

pytestmark = needs_linux
LONG_S = 10 * PATIENCE_S
"""Longer than the test: a node that only this would end fails it."""
WAITS = "#!/bin/sh\nexec sleep 10000\n"
IGNORES_SIGTERM = '#!/bin/sh\ntrap \'\' TERM\necho \'{"kind": "listening", "text": "ignores"}\'\nexec sleep 10000\n'
PROGRAM = """
import asyncio
import os
import signal
import sys
from pathlib import Path
if sys.argv[1] == "asyncio":
    sys.modules["uvloop"] = None
from godwit.cli import up
from godwit.net import child_process, loop

sys.executable = sys.argv[2]
up.END_S, up.KILL_AFTER_S = float(sys.argv[3]), float(sys.argv[4])
create, end, started = asyncio.create_subprocess_exec, child_process.end_process, []

async def noted_create(*command, **options):
    started.append(await create(*command, **options))
    print("session", started[-1].pid, flush=True)
    if sys.argv[5] == "starting" and len(started) == 3:
        os.kill(os.getpid(), signal.SIGINT)
        while not any(task.cancelling() for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    return started[-1]

async def noted_end(*arguments):
    print("ending", flush=True)
    await end(*arguments)

async def show_nothing(*arguments):
    pass

asyncio.create_subprocess_exec, child_process.end_process, up._show_hint = noted_create, noted_end, show_nothing
loop.run(up._run([Path(sys.argv[6]) / f"node-{number}" / "broker.toml" for number in (1, 2, 3)]))
"""


class Cluster:
    """A `godwit up` that has started three nodes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.out = LineReader(process, process.stdout)
        self.sessions: list[int] = []

    def wait_for_nodes(self, text: str) -> None:
        """Wait until all nodes have printed this, and the ids of their sessions are known."""
        missing = 3
        while missing or len(self.sessions) < 3:
            line = self.out.line()
            if line.startswith("session "):
                self.sessions.append(int(line.split()[1]))
            missing -= text in line
        assert all(map(processes_of, self.sessions))

    def wait_for_end(self) -> None:
        """Wait until it has ended as after Ctrl-C, and no process of a node is left."""
        self.out.until("the cluster has stopped")
        assert self.process.wait(PATIENCE_S) == 0
        wait_for_end(self.sessions)


@contextmanager
def cluster(
    folder: Path, loop: str, node: str, *, end_s: float, kill_after_s: float, step: str = ""
) -> Iterator[Cluster]:
    program = folder / "node"
    program.write_text(node)
    program.chmod(0o700)
    arguments = [loop, str(program), str(end_s), str(kill_after_s), step, str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, start_new_session=True
    )
    found = Cluster(process)
    try:
        yield found
    finally:
        process.kill()
        process.wait()
        for one in (one for session in found.sessions for one in processes_of(session)):
            subprocess.run(["kill", "-9", one.split()[0]], check=False)
        found.out.rest()
        assert process.stdout is not None
        process.stdout.close()


both_loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@both_loops
def test_nodes_end_and_their_shells_too(tmp_path: Path, loop: str) -> None:
    with cluster(tmp_path, loop, WAITS, end_s=LONG_S, kill_after_s=LONG_S) as found:
        found.wait_for_nodes("process")
        found.process.send_signal(signal.SIGINT)
        found.wait_for_end()


@both_loops
def test_a_node_that_does_not_end_is_killed(tmp_path: Path, loop: str) -> None:
    with cluster(tmp_path, loop, IGNORES_SIGTERM, end_s=0.1, kill_after_s=LONG_S) as found:
        found.wait_for_nodes("ignores")
        found.process.send_signal(signal.SIGINT)
        found.wait_for_end()


@both_loops
def test_a_second_ctrl_c_kills_the_nodes(tmp_path: Path, loop: str) -> None:
    with cluster(tmp_path, loop, IGNORES_SIGTERM, end_s=LONG_S, kill_after_s=LONG_S) as found:
        found.wait_for_nodes("ignores")
        found.process.send_signal(signal.SIGINT)
        for _ in found.sessions:
            found.out.until("ending")
        found.process.send_signal(signal.SIGINT)
        found.wait_for_end()


@both_loops
def test_two_ctrl_c_while_a_node_is_started_kill_all_nodes(tmp_path: Path, loop: str) -> None:
    with cluster(tmp_path, loop, IGNORES_SIGTERM, end_s=LONG_S, kill_after_s=LONG_S, step="starting") as found:
        found.sessions = [int(found.out.until("session").split()[1]) for _ in range(3)]
        found.wait_for_end()


@both_loops
def test_nodes_end_when_it_is_killed(tmp_path: Path, loop: str) -> None:
    with cluster(tmp_path, loop, IGNORES_SIGTERM, end_s=LONG_S, kill_after_s=0.1) as found:
        found.wait_for_nodes("ignores")
        found.process.kill()
        wait_for_end(found.sessions)
