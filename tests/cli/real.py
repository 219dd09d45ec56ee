"""Real processes for the tests of the command line: a broker, and commands that use it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from godwit.cli import main
from godwit.net.client import AsyncClient, connect

CODE = "from godwit.cli import main; main()"
if sys.platform == "linux":  # no process is left behind when the tests are killed (PR_SET_PDEATHSIG)
    CODE = f"import ctypes; ctypes.CDLL(None).prctl(1, 9); {CODE}"
GODWIT = [sys.executable, "-c", CODE]
READY = re.compile(r"listening on udp://(\S+)")
NOTICE = re.compile(
    r"godwit: (waiting for an answer from|no broker answers at|the broker at \S+ answers, but) .*\(Ctrl-C ends\)\n?"
)
"""What a command prints that has to wait for the broker: on a busy machine any command may."""
PATIENCE_S = 120.0

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals are different there")


def environment(**more: str) -> dict[str, str]:
    """Without what the machine of the tests may have set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GODWIT_")}
    return {**kept, "PYTHONUNBUFFERED": "1", "COLUMNS": "200", "XDG_CONFIG_HOME": os.devnull, **more}


def godwit(*arguments: str, input: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end in this process, which is faster, but with its own files."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(input)
        files[0].seek(0)
        streams = [io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace") for file in files]
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        patch.setattr(sys, "argv", ["godwit", *arguments])
        patch.setattr(os, "environ", environment(**more))
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert isinstance(code, int)
        results = []
        for stream, file in zip(streams[1:], files[1:], strict=True):
            stream.flush()
            file.seek(0)
            results.append(file.read())
        return subprocess.CompletedProcess(arguments, code, *results)


def error_of(*arguments: str, input: bytes = b"", **more: str) -> str:
    """Return the one line that a failing command prints, without `godwit: `. Its exit code must be 1."""
    result = godwit(*arguments, input=input, **more)
    text = result.stderr.decode()
    assert (result.returncode, result.stdout) == (1, b""), text
    assert text.startswith("godwit: "), text
    assert text.count("\n") == 1, text
    return text.removeprefix("godwit: ").rstrip("\n")


class Running:
    """A command that runs beside the test."""

    def __init__(self, *arguments: str, program: Sequence[str] = GODWIT, **more: str) -> None:
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**more),
            start_new_session=sys.platform != "win32",
        )
        self.out = LineReader(self.process, self.process.stdout)
        self.err = LineReader(self.process, self.process.stderr)

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code that comes of it."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(timeout=PATIENCE_S)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):  # unwritten data is lost
                stream.close()


class LineReader:
    """The lines of a stream, read in a thread so that waiting for one has an end."""

    def __init__(self, process: subprocess.Popen[bytes], stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        try:
            for line in stream:
                self._lines.put(line.decode("utf-8", "replace").rstrip("\n"))
        except (OSError, ValueError):  # closed
            pass

    def line(self) -> str:
        """The next one that is not a notice of waiting."""
        while NOTICE.fullmatch(line := self._next()):
            pass
        return line

    def _next(self) -> str:
        try:
            line = self._lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"no further line; so far: {self.seen[-20:]}") from None
        self.seen.append(line)
        return line

    def until(self, text: str) -> str:
        """The next one with this text."""
        while text not in (line := self._next()):
            pass
        return line

    def rest(self) -> list[str]:
        """What else is there now, without notices of waiting; of a command that has ended, everything."""
        if self._process.poll() is not None:
            self._thread.join(PATIENCE_S)
        found = []
        while not self._lines.empty():
            found.append(self._lines.get())
        self.seen += found
        return [line for line in found if not NOTICE.fullmatch(line)]


@contextmanager
def running(*arguments: str, program: Sequence[str] = GODWIT, **more: str) -> Iterator[Running]:
    """A command that is killed at the end of the block if it still runs."""
    command = Running(*arguments, program=program, **more)
    try:
        yield command
    finally:
        command.stop()


@contextmanager
def broker(*arguments: str) -> Iterator[str]:
    """The address of a broker that runs for the time of the block; its log is in memory unless `--data` is given."""
    log = [] if "--data" in arguments else ["--memory"]
    with running("broker", "--listen", "127.0.0.1:0", *log, *arguments) as command:
        yield address_of(command)


def address_of(command: Running) -> str:
    match = READY.search(command.out.until("listening on"))
    assert match
    return match[1]


def subscribed(address: str, filter: str) -> None:
    """Wait until a client is subscribed to this filter."""

    async def is_subscribed(client: AsyncClient) -> bool:
        return any(filter in filters for one in await client.clients() for filters in one.subscriptions)

    async def ask() -> None:
        async with connect(address, timeout_s=PATIENCE_S) as client:
            while not await is_subscribed(client):
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(ask(), PATIENCE_S))


def eventually(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    ends = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < ends, "it did not come true"
        time.sleep(0.05)


def write_secret(folder: Path, secret: str = "a secret of some length") -> Path:
    path = folder / "secret"
    path.write_text(f"{secret}\n")
    return path


def lines(data: bytes) -> Sequence[str]:
    return data.decode().splitlines()
