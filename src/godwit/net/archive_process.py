"""The archive process, seen from the broker: started, restarted when it ends, and stopped.

The archive reads the log's file by itself. Through its pipes (godwit.server.archive_pipe) it asks the broker to commit
staged messages. It ends when its standard input is closed, so it does not outlive a broker that was killed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from godwit.broker.effects import Import, Imported, Notice
from godwit.errors import DecodeError, StorageError
from godwit.limits import KIB, MIB
from godwit.net.loop import completes
from godwit.server.archive_pipe import (
    MAX_COMMIT_BATCHES,
    CallCounts,
    Commit,
    CommitDone,
    CommitRole,
    LogLine,
    PipeReader,
    Ready,
    decode_from_archive,
    encode_message,
    split_blocks,
)
from godwit.server.configuration import ArchiveSection
from godwit.store.block import DamagedBlockError, decode_block
from godwit.wire.batch import Entry

_logger = logging.getLogger(__name__)

ARCHIVE_PACKAGES: Final = ("numpy", "pyarrow")
"""Packages of the extra `archive`. The archive process imports them, and the broker does not."""
UNINTERRUPTED: Final = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""Keeps Ctrl-C in a terminal from ending the archive, also while its Python starts and does not ignore it yet."""
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""After running this long, an archive that ends is restarted with the shortest pause."""
END_TIMEOUT_S: Final = 2.0
MAX_IMPORT_BYTES: Final = 256 * MIB
"""Maximum size of one commit: it is one transaction, and held in memory meanwhile."""
_READ_BYTES: Final = 64 * KIB


def missing_archive_packages() -> list[str]:
    """Return which packages of the archive are not installed. Without one of them the archive cannot run."""
    return [name for name in ARCHIVE_PACKAGES if importlib.util.find_spec(name) is None]


def archive_command(log_path: Path, stages_path: Path, listen: str, section: ArchiveSection) -> list[str]:
    """Return the command that starts the archive."""
    command = [*UNINTERRUPTED, sys.executable, "-m", "godwit.archive"]
    command += ["--log", str(log_path), "--stages", str(stages_path), "--listen", listen]
    for option, path in (
        ("--token-file", section.token_file),
        ("--certificate", section.certificate),
        ("--key", section.key),
    ):
        if path is not None:
            command += [option, str(path)]
    return command


def _version(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()  # the archive reports it
    return status.st_mtime_ns, status.st_size, status.st_ino


class ArchiveProcess:
    """Keep one archive process running. All methods are called in the event loop's thread."""

    def __init__(
        self,
        stages_path: Path,
        *,
        import_staged: Callable[[Import], None],
        on_notice: Callable[[Notice], None],
    ) -> None:
        """Make an archive that is not running.

        Args:
            stages_path: The folder of staged files.
            import_staged: Called with the staged messages of a commit; `answer` must be called with the outcome.
            on_notice: Called with an event line.
        """
        self._command: Sequence[str] | None = None
        self._versions: list[tuple[int, ...]] = []
        self._stages_path = stages_path
        self._import_staged = import_staged
        self._notify = on_notice
        self._keys = 0
        self._waiting: dict[int, asyncio.Future[Imported]] = {}
        """By the key of the Import. The archive's own key is not unique: another process may use it again."""
        self._tasks: set[asyncio.Task[None]] = set()
        """The task that keeps the process running, and former ones that have not ended yet."""
        self._settled = asyncio.Event()
        self._warned: set[str] = set()
        """Reported reasons why it does not become ready. Each is reported once, not for every attempt."""
        self._process: Process | None = None
        self._is_accepting = True
        self.url = ""
        """Its address, once it is ready."""
        self.starts = 0
        """How many processes were started."""
        self.counts = CallCounts({}, {}, 0)
        """The calls of clients, of the present process."""
        self._former_calls: Counter[str] = Counter()
        self._former_failed: Counter[str] = Counter()

    def run(self, command: Sequence[str] | None, files: Sequence[Path] = ()) -> None:
        """Keep an archive running that this command starts, or none. A former one is ended first.

        `files`: it is also started again if one of these has changed since it was started, such as its certificate.
        """
        versions = [_version(path) for path in files]
        if command == self._command and versions == self._versions:
            return
        self._command, self._versions = command, versions
        self._warned.clear()
        self._end_all()
        if command is not None:
            task = asyncio.get_running_loop().create_task(self._keep_running(command, self._tasks.copy()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def calls(self) -> tuple[Counter[str], Counter[str]]:
        """Return the calls of clients and the failed ones, by method, of all processes so far."""
        return self._former_calls + Counter(self.counts.calls), self._former_failed + Counter(self.counts.failed)

    async def wait_until_settled(self) -> None:
        """Wait until it is ready for the first time, or has failed once."""
        await self._settled.wait()

    def accept_commits(self, is_accepting: bool) -> None:
        """Let the archive state whether this broker accepts commits: the standby of a cluster does not."""
        self._is_accepting = is_accepting
        if self._process is not None:
            self._send_role(self._process)

    def _send_role(self, process: Process) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError, RuntimeError):  # its pipe is closed, and the next process is notified
            process.stdin.write(encode_message(CommitRole(self._is_accepting)))

    def answer(self, done: Imported) -> None:
        """Handle the outcome of an Import."""
        waiting = self._waiting.pop(done.key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(done)

    async def stop(self) -> None:
        """End the process: ask it to end, and kill it after two seconds. May be repeated."""
        self._end_all()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _end_all(self) -> None:
        self.url = ""
        for task in self._tasks:
            if not task.cancelling():  # else it is ending its process already, and must not be interrupted
                task.cancel()

    # -- the process --------------------------------------------------------------------------------------------------

    async def _keep_running(self, command: Sequence[str], former: set[asyncio.Task[None]]) -> None:
        if former:
            await asyncio.wait(former)
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                problem = await self._run_once(command)
            except OSError as error:
                problem = f"the archive could not be started ({error.strerror or error})"
            except Exception as error:  # whatever it is, the next process may work
                _logger.exception("unexpected error of the archive process")
                problem = f"the archive was ended after an unexpected error ({type(error).__name__}: {error})"
            self.url = ""
            if time.monotonic() - began >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            self._warn_once(problem, f": it is started again in {pause_s:g} s; the broker is not affected")
            self._settled.set()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _run_once(self, command: Sequence[str]) -> str:
        """Run one process until it ends. Return how it ended."""
        # In the broker's session, because its low priority matters only there: Linux shares the processor between
        # sessions first.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, env=os.environ | {"GRPC_VERBOSITY": "NONE"}
        )
        self._former_calls, self._former_failed = self.calls()
        self.counts = CallCounts({}, {}, 0)
        self.starts += 1
        self._process = process
        if not self._is_accepting:
            self._send_role(process)
        commits: asyncio.Queue[Commit] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self._listen(process, commits)),
            loop.create_task(self._commit_all(process, commits)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except DecodeError as error:
            return f"the archive sent an invalid message ({error})"
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.wait(tasks)
            finally:  # also after a second cancellation
                if self._process is process:
                    self._process = None
                await _end(process)
        return f"the archive ended with exit code {process.returncode}"

    async def _listen(self, process: Process, commits: asyncio.Queue[Commit]) -> None:
        assert process.stdout is not None
        reader = PipeReader()
        while data := await process.stdout.read(_READ_BYTES):
            for body in reader.feed(data):
                message = decode_from_archive(body)
                if isinstance(message, Commit):
                    commits.put_nowait(message)
                elif isinstance(message, LogLine):
                    self._on_line(message)
                elif isinstance(message, CallCounts):
                    self.counts = message
                else:
                    self._on_ready(message)

    def _on_line(self, message: LogLine) -> None:
        text = f"archive: {message.text}"
        if message.level != "warning":
            self._notify(Notice("log", text))
        elif self.url:
            self._notify(Notice("warning", text))
        else:
            self._warn_once(text)

    def _warn_once(self, text: str, suffix: str = "") -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._notify(Notice("warning", text + suffix))

    def _on_ready(self, message: Ready) -> None:
        self._warned.clear()
        self._notify(Notice("archive", f"archive on {message.url}", {"url": message.url}))
        self.url = message.url
        self._settled.set()

    # -- commits ------------------------------------------------------------------------------------------------------

    async def _commit_all(self, process: Process, commits: asyncio.Queue[Commit]) -> None:
        """Carry out commits one after the other, so that only one is in memory."""
        assert process.stdin is not None
        while True:
            commit = await commits.get()
            try:
                done = await self._commit(commit)
            except Exception as error:  # whatever it is, the client is notified, and other commits continue
                _logger.exception("unexpected error of a commit")
                problem = f"the commit failed unexpectedly ({type(error).__name__}: {error})"
                self._notify(Notice("warning", f"archive: batch {commit.batch} of {commit.query!r}: {problem}"))
                done = CommitDone(commit.key, problem)
            with suppress(ConnectionError, RuntimeError):  # its pipe is closed; the other task notices that too
                process.stdin.write(encode_message(done))
                await process.stdin.drain()

    async def _commit(self, commit: Commit) -> CommitDone:
        try:
            entries = await asyncio.to_thread(read_stages, self._stages_path, commit.files)
        except (OSError, StorageError, DecodeError, DamagedBlockError) as error:
            return CommitDone(commit.key, problem=f"the staged files cannot be read: {error}")
        key = self._keys = self._keys + 1
        waiting: asyncio.Future[Imported] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiting
        try:
            self._import_staged(Import(key, commit.query, commit.batch, entries, commit.rights))
            done = await waiting
        finally:
            self._waiting.pop(key, None)
        return CommitDone(commit.key, done.problem, done.was_known, done.first_offset, done.count)


def read_stages(folder: Path, names: Sequence[str]) -> list[Entry]:
    """Return the batches of staged files, in order. It blocks: do not call it in the event loop's thread.

    Raises:
        StorageError: A file cannot be read.
        DecodeError: A name or the content is invalid, or the files are too large together.
    """
    for name in names:
        if name in ("", ".", "..") or Path(name).name != name or "\0" in name:
            raise DecodeError("malformed", f"{name!r} is not the name of a staged file")
    try:
        return _decode_stages([folder / name for name in names])
    except OSError as error:  # without the path, which clients must not see
        raise StorageError(f"{error.strerror or type(error).__name__}; stage it again") from error


def _decode_stages(paths: Sequence[Path]) -> list[Entry]:
    size_bytes = sum(path.stat().st_size for path in paths)
    if size_bytes > MAX_IMPORT_BYTES:
        raise DecodeError(
            "oversize", f"{size_bytes:,} bytes in one commit, {MAX_IMPORT_BYTES:,} are allowed: make smaller batches"
        )
    entries: list[Entry] = []
    for path in paths:
        for body in split_blocks(path.read_bytes()):
            entries += [entry for _, entry in decode_block(body)]
            if len(entries) > MAX_COMMIT_BATCHES:
                raise DecodeError(
                    "oversize",
                    f"more than {MAX_COMMIT_BATCHES:,} batches in one commit, each with rows of one topic: "
                    "commit fewer rows at once",
                )
    return entries


async def _end(process: Process) -> None:
    """Terminate the process. That loses nothing: unfinished staging has no effect."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await completes(process.wait(), END_TIMEOUT_S)
    finally:  # also if this is cancelled: a process left alive would serve the log beside its successor
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
