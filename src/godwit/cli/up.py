"""`godwit up`: a cluster of several nodes on this machine, for trying it out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from godwit.cli.text import count, safe
from godwit.errors import GodwitError, UsageError

DEFAULT_DATA: Final = "godwit-cluster"
WATCHED: Final = (
    "sh", "-c",
    'exec 3<&0; "$@" 3<&- & p=$!; echo "{\\"kind\\": \\"process\\", \\"pid\\": $p}"; '
    '{ cat <&3; kill $p; sleep 15; kill -9 $p; } >/dev/null 2>&1 & w=$!; wait $p; c=$?; kill $w; exit $c', "sh",
)  # fmt: skip
"""Runs a node until it ends, or until standard input is closed, and prints its process id.

The node is then asked to end, and killed 15 s later if it has not: also if this command was killed. The process that
waits for the end of standard input has no other output: it would keep that of the node open.
"""
RESTART_S: Final = 3.0
"""Pause before a node that has ended is started again."""
LAST_LINES_S: Final = 1.0
"""How long the last lines of a node that has ended are waited for."""
END_S: Final = 10.0
SHOWN: Final = ("cluster", "listening", "warning", "stopped")
"""Kinds of event lines that are printed."""


def register(root: typer.Typer) -> None:
    """Add `godwit up`."""
    root.command("up", epilog="Example: godwit up --nodes 3")(up)


def up(
    nodes: Annotated[int, typer.Option(min=3, max=7, help="Number of nodes; an odd one.")] = 3,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the nodes, created if it does not exist.")
    ] = Path(DEFAULT_DATA),
) -> None:
    """Run a cluster on this machine until Ctrl-C, to try it out: brokers, engine, addresses and folders.

    A node that is killed is started again after 3 s. The next run with the same folder continues with its log. One
    machine with several nodes survives the loss of a process, and not the loss of the machine.
    """
    from godwit.net import loop
    from godwit.net.engine_server import find_program

    if nodes % 2 == 0:
        raise UsageError(f"--nodes is {nodes}: give an odd number, because most of them must run")
    find_program(None)
    loop.run(_run(_make_folders(data, nodes)))


def _make_folders(data: Path, nodes: int) -> list[Path]:
    """Return the configurations of the nodes, which are made unless they exist."""
    files = [data / f"node-{number}" / "broker.toml" for number in range(1, nodes + 1)]
    present = [file for file in files if file.exists()]
    if len(present) == nodes and not (data / f"node-{nodes + 1}").exists():
        return files
    if present:
        raise UsageError(f"{data} has a cluster with another number of nodes: give another folder (--data)")
    ports = _free_ports(4 * nodes)
    brokers, servers, monitors, routes = (ports[at : at + nodes] for at in range(0, 4 * nodes, nodes))
    try:
        for number, file in enumerate(files):
            file.parent.mkdir(parents=True)
            file.write_text(
                f'listen = ["127.0.0.1:{brokers[number]}"]\n\n[log]\ndata = "data"\n\n'
                f'[cluster]\nname = "up"\nnode = "node-{number + 1}"\n'
                f"servers = {_addresses(servers, 'nats://')}\nmonitors = {_addresses(monitors, 'http://')}\n\n"
                f"[cluster.run]\nnumber = {number + 1}\nroutes = {_addresses(routes)}\n"
            )
    except OSError as error:
        raise GodwitError(
            f"the folder {data} cannot be written: {error.strerror}; choose another one (--data)"
        ) from error
    return files


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _addresses(ports: list[int], scheme: str = "") -> str:
    return json.dumps([f"{scheme}127.0.0.1:{port}" for port in ports])


class _Node:
    """A node as a process that is started again when it ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.name = file.parent.name
        self.is_active = asyncio.Event()
        self._process: Process | None = None

    async def run(self) -> None:
        """Run it until this is cancelled."""
        command = [*WATCHED, sys.executable, "-m", "godwit", "broker", "--config", str(self._file)]
        while True:
            process = await self._start(command)
            assert process.stdin is not None
            assert process.stdout is not None
            reading = asyncio.create_task(self._read(process.stdout))
            try:
                code = await process.wait()
                process.stdin.close()
                await asyncio.wait([reading], timeout=LAST_LINES_S)  # its own processes may keep the output open
            finally:
                reading.cancel()
            self._print(f"ended with exit code {code}; it is started again in {RESTART_S:g} s")
            await asyncio.sleep(RESTART_S)

    async def _start(self, command: Sequence[str]) -> Process:
        """Start the process. If this is cancelled, first wait until it has started: `end` then ends it with its child,
        while asyncio would kill the shell and leave the node alive."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command, "--log-format", "json", stdin=PIPE, stdout=PIPE, stderr=None, start_new_session=True
            )
        )
        try:
            await asyncio.shield(starting)
        finally:
            self._process = await starting
        return self._process

    async def end(self) -> None:
        """End the process, if it runs: ask it to end, and kill it after a while or if this is cancelled."""
        from godwit.net.loop import completes

        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await completes(process.wait(), END_S)
        finally:  # also if a second Ctrl-C cancels this
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """Kill the node with its shell and all processes that they have started, if it runs."""
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    async def _read(self, output: asyncio.StreamReader) -> None:
        async for line in output:
            self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            return
        if event["kind"] == "process":
            self._print(f"process {event['pid']}")
        elif event["kind"] in SHOWN:
            self._print(str(event["text"]).removeprefix(f"node {self.name} "))
        if event["kind"] == "listening":
            self.is_active.set()

    def _print(self, text: str) -> None:
        typer.echo(f"{self.name}: {safe(text)}")


async def _run(files: list[Path]) -> None:
    stopping = asyncio.Event()
    event_loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        event_loop.add_signal_handler(number, stopping.set)
    nodes = [_Node(file) for file in files]
    typer.echo(f"starting {count(len(nodes), 'node')} in {safe(str(files[0].parent.parent))}")
    tasks = [asyncio.create_task(node.run()) for node in nodes]
    hint = asyncio.create_task(_show_hint(nodes, files))
    try:
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C ends at once
            event_loop.remove_signal_handler(number)
        for task in (hint, *tasks):
            task.cancel()
        try:
            await asyncio.gather(hint, *tasks, return_exceptions=True)
            await asyncio.gather(*[node.end() for node in nodes])
        finally:
            for node in nodes:  # a second Ctrl-C can come before the tasks of the line above have begun
                node.kill()
            await asyncio.gather(*[node.end() for node in nodes])
    typer.echo("the cluster has stopped; the next run continues with its log")


async def _show_hint(nodes: list[_Node], files: list[Path]) -> None:
    await asyncio.wait(
        [asyncio.create_task(node.is_active.wait()) for node in nodes], return_when=asyncio.FIRST_COMPLETED
    )
    from godwit.cli.broker import load_file

    brokers = ",".join(load_file(file, []).listen[0] for file in files)
    typer.echo(
        f"""
The cluster is ready. In another terminal:

    export GODWIT_BROKER={brokers}
    godwit sub 'demo/#'
    godwit pub demo/hello "Hello" --qos 1
    godwit cluster status --config {safe(str(files[0]))}

Kill the active node, and publish again. Ctrl-C ends the cluster.
"""
    )
