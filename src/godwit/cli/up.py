"""`godwit up`: a cluster of several nodes on this machine, for trying it out."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from godwit.cli.text import count, safe
from godwit.errors import GodwitError, UsageError

DEFAULT_DATA: Final = "godwit-cluster"
KILL_AFTER_S: Final = 15.0
"""How long a node may take to end when this command was killed. It is then killed, too."""
RESTART_S: Final = 3.0
"""Pause before a node that has ended is started again."""
LAST_LINES_S: Final = 1.0
"""How long the last lines of a node that has ended are waited for."""
END_S: Final = 10.0
"""How long a node may take to end after Ctrl-C, before it is killed."""
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
        from godwit.net.child_process import start_watched

        command = [sys.executable, "-m", "godwit", "broker", "--config", str(self._file), "--log-format", "json"]
        while True:
            process = self._process = await start_watched(command, KILL_AFTER_S, output=PIPE)
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

    async def end(self) -> None:
        """End the process, if it runs: ask it to end, and kill it after a while."""
        from godwit.net.child_process import end_process

        if self._process is not None and self._process.returncode is None:
            await end_process(self._process, END_S)

    def kill(self) -> None:
        """Kill the process, if it runs. One that is being started is killed by the cancellation of `run`."""
        from godwit.net.child_process import kill_group

        if self._process is not None:
            kill_group(self._process)

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
    nodes = [_Node(file) for file in files]

    def handle_signal() -> None:
        if stopping.is_set():  # the second Ctrl-C
            for node in nodes:
                node.kill()
        stopping.set()

    event_loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        event_loop.add_signal_handler(number, handle_signal)
    typer.echo(f"starting {count(len(nodes), 'node')} in {safe(str(files[0].parent.parent))}")
    tasks = [asyncio.create_task(node.run()) for node in nodes]
    hint = asyncio.create_task(_show_hint(nodes, files))
    try:
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
    finally:
        stopping.set()
        for task in (hint, *tasks):
            task.cancel()
        await asyncio.gather(hint, *tasks, return_exceptions=True)
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
