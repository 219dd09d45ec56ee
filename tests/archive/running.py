"""An archive for tests: a log that the test writes, and the archive's process, with the test as its broker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

from tests.archive import logs
from tests.archive.client import ArchiveClient

from godwit.broker.access import TokenRights
from godwit.server.archive_pipe import (
    Commit,
    CommitDone,
    CommitRole,
    FromArchive,
    PipeReader,
    Ready,
    decode_from_archive,
    encode_message,
    split_blocks,
)
from godwit.store.block import decode_block
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry
from godwit.wire.changes import QueryRow

PATIENCE_S = 120.0


@contextmanager
def log_in(folder: Path) -> Iterator[SqliteStore]:
    store = SqliteStore.open(folder / "log.sqlite", new_log_id=logs.LOG_ID, now_us=logs.NOW_US)
    try:
        yield store
    finally:
        store.close()


class Appender:
    """Appends what is staged, as a broker would."""

    is_accepting = True

    def __init__(self, store: SqliteStore, stages: Path) -> None:
        self._store = store
        self._stages = stages
        self.problem = ""
        self.asked = 0
        self.rights = TokenRights()
        """Those that the last commit came with."""

    def commit(
        self, query: str, batch: int, files: Sequence[str], rights: TokenRights, timeout_s: float = 0.0
    ) -> CommitDone | None:
        self.asked += 1
        self.rights = rights
        if self.problem:
            return CommitDone(0, problem=self.problem)
        bodies = [body for file in files for body in split_blocks((self._stages / file).read_bytes())]
        entries = [entry for body in bodies for _, entry in decode_block(body)]
        count = sum(entry.count for entry in entries)
        received = [Entry(**{name: getattr(entry, name) for name in Entry.__struct_fields__}) for entry in entries]
        first_offset = self._store.append(received, [QueryRow(query, batch)])
        return CommitDone(0, first_offset=first_offset, count=count)


class Process:
    """`python -m godwit.archive`, and the broker's ends of its pipes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "godwit.archive", "--log", str(folder / "log.sqlite")]
        command += ["--stages", str(folder / "stages"), *arguments]
        if "--listen" not in arguments:
            command += ["--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.heard: Queue[FromArchive | None] = Queue()
        """What it says; None at its end."""
        self.appender: Appender | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def set_role(self, *, is_accepting: bool) -> None:
        """As a broker that becomes active or a standby."""
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), encode_message(CommitRole(is_accepting)))

    @property
    def pid(self) -> int:
        return self._process.pid

    def url(self) -> str:
        """Where it listens, once it does."""
        ready = self.heard.get(timeout=PATIENCE_S)
        assert isinstance(ready, Ready), ready
        return ready.url

    def leave(self) -> int:
        """As a broker that dies: its ends of the pipes are closed. Gives the exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE_S)

    def wait(self) -> int:
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        reader = PipeReader()
        while data := os.read(self._process.stdout.fileno(), 65536):
            for body in reader.feed(data):
                message = decode_from_archive(body)
                if isinstance(message, Commit) and self.appender is not None:
                    done = self.appender.commit(message.query, message.batch, message.files, message.rights)
                    assert done is not None
                    answer = CommitDone(message.key, done.problem, done.was_known, done.first_offset, done.count)
                    os.write(self._process.stdin.fileno(), encode_message(answer))
                else:
                    self.heard.put(message)
        self.heard.put(None)


@contextmanager
def process_in(folder: Path, *arguments: str) -> Iterator[Process]:
    process = Process(folder, *arguments)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def archive_of(folder: Path, *arguments: str) -> Iterator[tuple[Process, ArchiveClient]]:
    """A process that serves, and a client of it."""
    with process_in(folder, *arguments) as process, ArchiveClient(process.url()) as client:
        yield process, client
