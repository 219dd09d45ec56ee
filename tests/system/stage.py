"""Real processes for the big tests: a broker and workers, each heard line by line, and all gone when the test is.

Nothing here waits for luck: a test waits for what a process says, or for a condition, with a deadline.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.net.running import lossy
from tests.ports import free_port

from godwit.net import loop
from godwit.net.relay import Relay
from godwit.transport.events import Address

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
"""For one answer of a process, on a busy machine."""
LOOK_S = 0.02
MAX_LINE_BYTES = 1024 * 1024
MIB = 1024 * 1024
LAST_LINES = 15

_READY = re.compile(r"listening on udp://(\S+)")
_ARCHIVE = re.compile(r"archive on (grpc\S*://\S+)")
# Linux promises that a process does not outlive its parent, not even when that one is killed (PR_SET_PDEATHSIG).
_WITH_PARENT = "import ctypes; ctypes.CDLL(None).prctl(1, 9)\n" if sys.platform == "linux" else ""
_GODWIT = f"{_WITH_PARENT}from godwit.cli import main; main()"
_WORKER = f"{_WITH_PARENT}from tests.system.worker import main; main()"

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, stops processes by signals")


def run(test: Callable[[], Awaitable[None]], *, within_s: float) -> None:
    """Runs a test, which has to end in time."""

    async def main() -> None:
        async with asyncio.timeout(within_s):
            await test()

    loop.run(main())


async def until(condition: Callable[[], bool], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Poll until a condition is true that sends no event."""
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, f"within {within_s:g} s it did not come true: {what}"
        await asyncio.sleep(LOOK_S)


# -- processes --------------------------------------------------------------------------------------------------------


class Process:
    """A running program. What it prints is read all the time, so that it never waits for the test."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.lines: list[str] = []
        self._process = process
        self._heard = 0
        self._changed = asyncio.Event()
        assert process.stdout is not None
        self._reader = asyncio.create_task(self._read(process.stdout))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
            self._changed.set()
        self._changed.set()

    async def line(self, text: str, *, within_s: float = PATIENCE_S) -> str:
        """The next line with this text in it."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    while self._heard < len(self.lines):
                        self._heard += 1
                        if text in self.lines[self._heard - 1]:
                            return self.lines[self._heard - 1]
                    assert not self._reader.done(), f"{self.name} ended without saying {text!r}: {self.said()}"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{self.name} did not say {text!r} within {within_s:g} s: {self.said()}") from None

    def said(self) -> str:
        """The end of what it printed."""
        return "\n".join(self.lines[-LAST_LINES:]) or "(nothing)"

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self, *, within_s: float = PATIENCE_S) -> int:
        """Its exit code, when all that it printed is read."""
        async with asyncio.timeout(within_s):
            code = await self._process.wait()
            await asyncio.shield(self._reader)
            return code

    async def kill(self) -> None:
        """Ends it at once. May be repeated."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reader
        if self._process.stdin is not None:
            self._process.stdin.close()


class Broker(Process):
    """`godwit broker`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        super().__init__(name, process)
        self.addresses: list[str] = []
        """As HOST:PORT, in the order of the command line."""
        self.archive = ""
        """As grpc://HOST:PORT, if it serves one."""

    async def listening(self, listeners: int) -> None:
        while len(self.addresses) < listeners:
            match = _READY.search(await self.line("listening on"))
            assert match
            self.addresses.append(match[1])

    async def serving_archive(self) -> None:
        match = _ARCHIVE.search(await self.line("archive on"))
        assert match
        self.archive = match[1]

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def target(self) -> Address:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    async def stop(self) -> None:
        """As an operator does it. It must end well."""
        self.signal(signal.SIGTERM)
        assert await self.ended() == 0, self.said()


class Worker(Process):
    """A part of tests.system.worker: takes orders, answers with JSON objects."""

    async def hear(self, word: str, *, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next object that has this word. A worker that cannot go on ends the test."""
        line = await self.line(f'"word": "{word}"', within_s=within_s)
        found: dict[str, Any] = json.loads(line)
        return found

    def heard(self, word: str) -> list[dict[str, Any]]:
        """All that it has said so far with this word."""
        return [json.loads(line) for line in self.lines if f'"word": "{word}"' in line]

    def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n".encode())


class Stage:
    """Every process that is started on it is killed at the end of its `async with` block."""

    def __init__(self) -> None:
        self._processes: list[Process] = []

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            await process.kill()

    async def broker(
        self,
        *arguments: str,
        listen: tuple[str, ...] = (),
        name: str = "broker",
        data: Path | None = None,
        archive: str = "none",
    ) -> Broker:
        """A broker that is ready; its log is in `data`, else in memory. It may be started again at its address."""
        listen = listen or (f"127.0.0.1:{free_port()}",)
        broker = await self.starting_broker(*arguments, listen=listen, name=name, data=data, archive=archive)
        if archive != "none":
            await broker.serving_archive()
        await broker.listening(len(listen))
        return broker

    async def starting_broker(
        self, *arguments: str, listen: tuple[str, ...], name: str, data: Path | None, archive: str = "none"
    ) -> Broker:
        """One that has only just been started."""
        listeners = [word for address in listen for word in ("--listen", address)]
        log = ["--memory"] if data is None else ["--data", str(data), "--archive", archive]
        broker = Broker(name, await self._start(_GODWIT, "broker", *listeners, *log, *arguments))
        self._processes.append(broker)
        return broker

    async def godwit(self, *arguments: str) -> Process:
        """Any other command."""
        process = Process(f"godwit {arguments[0]}", await self._start(_GODWIT, *arguments))
        self._processes.append(process)
        return process

    async def worker(self, role: str, name: str, **arguments: Any) -> Worker:
        """A worker that plays a role of tests.system.worker."""
        text = json.dumps({"name": name, **arguments})
        worker = Worker(f"{role} {name}", await self._start(_WORKER, role, text))
        self._processes.append(worker)
        return worker

    async def _start(self, code: str, *arguments: str) -> asyncio.subprocess.Process:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GODWIT_")}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            *arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            limit=MAX_LINE_BYTES,
            cwd=ROOT,
            env={**kept, "PYTHONUNBUFFERED": "1"},
        )


# -- the way between them ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def bad_way(broker: Broker, *, seed: int, **settings: Any) -> AsyncIterator[tuple[Relay, str]]:
    """A relay to the broker that spoils what it passes on, and its address as HOST:PORT."""
    print(f"relay: seed {seed}, {settings}")
    async with lossy(broker.target, seed=seed, **settings) as relay:
        host, port = relay.address[:2]
        yield relay, f"{host}:{port}"
        print(f"relay: passed {dict(relay.passed)}, dropped {dict(relay.dropped)}")


class ReservedPort:
    """A free port, reserved until a broker uses it. Datagrams that arrive meanwhile are counted by sender."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", free_port()))
        self._socket.setblocking(False)
        self._knocking: set[Address] = set()
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    async def knocked(self, clients: int) -> None:
        """Wait until datagrams of `clients` different addresses have arrived."""
        await until(lambda: self._knocked() >= clients, f"{clients} clients knock at {self.address}")

    def _knocked(self) -> int:
        with suppress(BlockingIOError):
            while True:
                self._knocking.add(self._socket.recvfrom(65_536)[1])
        return len(self._knocking)

    def give_up(self) -> None:
        self._socket.close()


# -- figures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """What a process has of the machine's memory."""

    now_bytes: int
    peak_bytes: int

    @classmethod
    def of(cls, process: Process) -> Memory:
        text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", text, re.MULTILINE))
        return cls(int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024)

    def __str__(self) -> str:
        return f"{self.now_bytes / MIB:.1f} MiB resident, at most {self.peak_bytes / MIB:.1f} MiB"


def processor_s(process: Process) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
