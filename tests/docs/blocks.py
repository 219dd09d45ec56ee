"""The code blocks of the documents: where they are, how each is tested, and a terminal session that runs commands.

A block that does not run has a comment with the reason before it: `<!-- not run: it needs a cluster -->`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tests.cli.real import READY, environment
from tests.ports import free_ports

import godwit

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted(
    page.relative_to(ROOT).as_posix()
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if page.name != "CHANGELOG.md"
)
Kind: TypeAlias = Literal["python", "shell", "toml", "text", "tested by the wire format", "c", "javascript"]

_FENCED: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED: Final = re.compile(r"(?<=\n\n)(?:    \S.*\n(?:\n+(?=    ))?| {5,}\S.*\n)+", re.MULTILINE)
_NOT_RUN: Final = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)
_COMMAND: Final = re.compile(r"(\$ )?(godwit|make|pip|source|export|cd|touch|df|spark-pipelines) ")
_PYTHON: Final = re.compile(r"^(async )?(with|for) |^\w+ = (await )?(godwit|client)\.|^worker\.", re.MULTILINE)
_FENCES: Final[dict[str, Kind]] = {
    "python": "python",
    "sh": "shell",
    "toml": "toml",
    "c": "c",
    "javascript": "javascript",
    "": "text",
    "text": "text",
    "mermaid": "text",
    "vector": "tested by the wire format",
    "vectors": "tested by the wire format",
    "matches": "tested by the wire format",
}


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str
    line: int
    kind: Kind
    text: str
    not_run: str = ""
    """Why it does not run; empty if it does."""

    @property
    def name(self) -> str:
        """Page and line, for messages."""
        return f"{self.page}:{self.line}"

    def commands(self) -> list[str]:
        """Return the commands of a terminal session: the lines after a prompt, or else all lines."""
        lines = self.text.replace("\\\n", " ").splitlines()
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return prompted or [line for line in lines if line.strip() and not line.startswith("#")]


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _FENCED.finditer(text):
        found.append(_block(page, text, match.start(), _FENCES[match[1]], match[2]))
    blank = _FENCED.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    for match in _INDENTED.finditer(blank):
        found.append(_block(page, text, match.start(), _kind(match[0]), textwrap.dedent(match[0])))
    return sorted(found, key=lambda block: block.line)


def _block(page: str, text: str, start: int, kind: Kind, code: str) -> Block:
    reason = _NOT_RUN.search(text, 0, start)
    return Block(page, text.count("\n", 0, start) + 1, kind, code, " ".join(reason[1].split()) if reason else "")


def _kind(text: str) -> Kind:
    code = textwrap.dedent(text)
    if any(_COMMAND.match(line) for line in code.splitlines()):
        return "shell"
    return "python" if _PYTHON.search(code) else "text"


# -- a terminal session -----------------------------------------------------------------------------------------------

COMMAND_S: Final = 120.0
PIPELINE_S: Final = 400.0
_RUNS_ON: Final = re.compile(r"godwit (worker|shell|sub) |godwit pub .* --repeat 0 ")
_ENDS: Final = re.compile(r" (--count|-n|--no-follow|--retained-only|-W|--wait|--once|--memory)\b")


class Session:
    """A folder, a broker, and the commands of a page, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        self._running: list[subprocess.Popen[str]] = []
        self._broker: subprocess.Popen[str] | None = None
        (folder / "bin").mkdir()
        script = folder / "bin" / "godwit"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m godwit "$@"\n')
        script.chmod(0o755)
        self.environment = environment(
            GODWIT_BROKER=self.address,
            HOME=str(folder),
            XDG_CONFIG_HOME=str(folder / "config"),
            MPLCONFIGDIR=str(folder),
            PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        )

    def run(self, command: str) -> None:
        """Run a command to its end, or start it if it runs until Ctrl-C."""
        if re.match(r"godwit broker\b", command):
            self.start_broker(command)
        elif _RUNS_ON.match(command) and not _ENDS.search(command):
            self._start(command)
        else:
            self._finish(["bash", "-c", command], PIPELINE_S if "pipeline" in command else COMMAND_S)

    def python(self, program: str) -> None:
        """Run a program to its end."""
        self._finish([sys.executable, "-c", program.replace('"localhost"', repr(self.address))], COMMAND_S)

    def start_broker(self, command: str = "godwit broker") -> None:
        """Start a broker at the address of the session, in place of the one before."""
        if self._broker is not None:
            self._end(self._broker, 0)
            self._running.remove(self._broker)
        command = command.partition("#")[0].strip()
        command = re.sub(r"127\.0\.0\.1:(1883|9464)\b", "127.0.0.1:0", command)
        command = f"{command} --listen {self.address}"
        ends = time.monotonic() + COMMAND_S
        while True:
            self._broker = self._popen(["bash", "-c", f"exec {command}"])
            assert self._broker.stdout is not None
            lines = []
            for line in self._broker.stdout:
                lines.append(line)
                if READY.search(line):
                    return
            code, text = self._broker.wait(), "".join(lines)
            # Between two brokers of a session another program may have been given the port for a moment.
            assert "another socket has this port" in text, f"{command} ended with {code}: {text}"
            assert time.monotonic() < ends, text
            self._running.remove(self._broker)
            time.sleep(0.1)

    def wait_for(self, command: str) -> None:
        """Wait until a worker, a subscriber or a publisher with a name that was started is known to the broker."""
        words = shlex.split(command, comments=True)
        with godwit.sync.connect(self.address, timeout_s=COMMAND_S) as client:
            if words[1] == "worker":
                while not any(one.name == words[2] for one in client.workers()):
                    time.sleep(0.05)
            elif words[1] == "pub" and "--name" in words:
                while not any(one.name == words[words.index("--name") + 1] for one in client.clients()):
                    time.sleep(0.05)
            elif words[1] == "sub":
                while not any(words[2] in filters for one in client.clients() for filters in one.subscriptions):
                    time.sleep(0.05)

    def close(self) -> None:
        """Interrupt all programs that still run, the broker last."""
        for process in reversed(self._running):
            if process.poll() is None:
                self._end(process, 0 if process is self._broker else 130)

    def kill(self) -> None:
        """End everything at once."""
        for process in self._running:
            process.kill()
            process.communicate()

    def _start(self, command: str) -> subprocess.Popen[str]:
        process = self._popen(["bash", "-c", f"exec {command}"])
        self.wait_for(command)
        return process

    def _end(self, process: subprocess.Popen[str], code: int) -> None:
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=COMMAND_S)
        assert process.returncode in (0, code), out

    def _finish(self, command: list[str], timeout_s: float) -> None:
        process = self._popen(command)
        out, _ = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, f"{command[-1]}\nended with {process.returncode}: {out}"

    def _popen(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running.append(process)
        return process


@contextmanager
def session(folder: Path) -> Iterator[Session]:
    """A session; its programs end with the block."""
    one = Session(folder)
    try:
        yield one
        one.close()
    finally:
        one.kill()


def _free_port() -> int:
    """Return a port that is free, as is the next one, where the archive will listen."""
    while True:
        first, second = free_ports(2)
        if second == first + 1:
            return first
