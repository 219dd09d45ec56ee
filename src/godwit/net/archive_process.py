"""The archive as the broker sees it: a process at low priority, started, watched, started again, and asked to end.

It reads the log's file by itself. Through its pipes (godwit.server.archive_pipe) it asks the broker to commit what was
staged with it. It ends when its standard input does, so it does not outlive a broker that was killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from godwit.broker.effects import Import, Imported, Notice
from godwit.errors import DecodeError, StorageError
from godwit.limits import KIB, MIB
from godwit.server.archive_pipe import (
    Commit,
    CommitDone,
    LogLine,
    PipeReader,
    Ready,
    decode_from_archive,
    encode_message,
    split_blocks,
)
from godwit.server.log_sections import ArchiveSection
from godwit.store.block import DamagedBlockError, decode_block
from godwit.wire.entry import Entry

NICENESS: Final = 19
"""Two busy processes beside a broker cost it half its rate on two processors, and next to nothing at this."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0
"""An archive that ran for so long is started again at once when it ends."""
END_PATIENCE_S: Final = 2.0
MAX_IMPORT_BYTES: Final = 256 * MIB
"""Of one commit: it is one transaction, and held in memory for its time."""
_READ_BYTES: Final = 64 * KIB


def archive_command(log_path: Path, stages_path: Path, listen: str, section: ArchiveSection) -> list[str]:
    """What is started."""
    command = [sys.executable, "-m", "godwit.archive"]
    command += ["--log", str(log_path), "--stages", str(stages_path), "--listen", listen]
    for option, path in (
        ("--token-file", section.token_file),
        ("--certificate", section.certificate),
        ("--key", section.key),
    ):
        if path is not None:
            command += [option, str(path)]
    return command


class ArchiveProcess:
    """Keeps one archive running. Everything is called in the event loop's thread."""

    def __init__(
        self,
        command: Sequence[str],
        stages_path: Path,
        *,
        bring_in: Callable[[Import], None],
        tell: Callable[[Notice], None],
    ) -> None:
        self._command = command
        self._stages_path = stages_path
        self._bring_in = bring_in
        self._tell = tell
        self._keys = 0
        self._waiting: dict[int, asyncio.Future[Imported]] = {}
        """By the key of the Import, which is another one than the archive's: that may be a new process by then."""
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self.url = ""
        """Where it is, once it is ready."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    async def settled(self) -> None:
        """Until it is ready for the first time, or has failed once."""
        await self._settled.wait()

    def answer(self, done: Imported) -> None:
        """What became of an Import."""
        waiting = self._waiting.pop(done.key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(done)

    async def stop(self) -> None:
        """Ends it, in good order or after a while by force. May be repeated."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # -- one process after the other ----------------------------------------------------------------------------------

    async def _keep_running(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                problem = await self._run_once()
            except OSError as error:
                problem = f"the archive could not be started ({error.strerror or error})"
            if time.monotonic() - began >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            self._tell(Notice("warning", f"{problem}: it is started again in {pause_s:g} s; the broker goes on"))
            self._settled.set()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run_once(self) -> str:
        """How it ended."""
        process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
        commits: asyncio.Queue[Commit] = asyncio.Queue()
        committing = asyncio.get_running_loop().create_task(self._commit_all(process, commits))
        problem = ""
        try:
            with suppress(OSError):  # it has ended already, or the system knows no priorities of processes
                os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            await self._listen(process, commits)
        except DecodeError as error:
            problem = f"the archive does not speak as it should ({error})"
        finally:
            committing.cancel()
            with suppress(asyncio.CancelledError):
                await committing
            await _end(process)
        return problem or f"the archive ended with exit code {process.returncode}"

    async def _listen(self, process: Process, commits: asyncio.Queue[Commit]) -> None:
        assert process.stdout is not None
        reader = PipeReader()
        while data := await process.stdout.read(_READ_BYTES):
            for body in reader.feed(data):
                message = decode_from_archive(body)
                if isinstance(message, Commit):
                    commits.put_nowait(message)
                elif isinstance(message, LogLine):
                    self._tell(Notice("warning" if message.level == "warning" else "log", f"archive: {message.text}"))
                else:
                    self._on_ready(message)

    def _on_ready(self, message: Ready) -> None:
        self._tell(Notice("archive", f"archive on {message.url}", {"url": message.url}))
        self.url = message.url
        self._settled.set()

    # -- commits ------------------------------------------------------------------------------------------------------

    async def _commit_all(self, process: Process, commits: asyncio.Queue[Commit]) -> None:
        """One after the other, so that only one is in memory."""
        assert process.stdin is not None
        while True:
            done = await self._commit(await commits.get())
            process.stdin.write(encode_message(done))
            with suppress(ConnectionError):  # it has ended; the other task sees it too
                await process.stdin.drain()

    async def _commit(self, commit: Commit) -> CommitDone:
        try:
            entries = await asyncio.to_thread(read_stages, self._stages_path, commit.files)
        except (OSError, StorageError, DecodeError, DamagedBlockError) as error:
            return CommitDone(commit.key, problem=f"what was staged cannot be read: {error}")
        key = self._keys = self._keys + 1
        waiting: asyncio.Future[Imported] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiting
        try:
            self._bring_in(Import(key, commit.query, commit.batch, entries))
            done = await waiting
        finally:
            self._waiting.pop(key, None)
        return CommitDone(commit.key, done.problem, done.was_known, done.first_offset, done.count)


def read_stages(folder: Path, names: Sequence[str]) -> list[Entry]:
    """The batches of these files, in order. It takes its time: not for the event loop's thread."""
    for name in names:
        if name in ("", ".", "..") or Path(name).name != name or "\0" in name:
            raise DecodeError("malformed", f"{name!r} is no name of a file in the folder of stages")
    paths = [folder / name for name in names]
    size_bytes = sum(path.stat().st_size for path in paths)
    if size_bytes > MAX_IMPORT_BYTES:
        raise DecodeError(
            "oversize", f"{size_bytes:,} bytes in one commit, {MAX_IMPORT_BYTES:,} are allowed: make smaller batches"
        )
    entries: list[Entry] = []
    for path in paths:
        for body in split_blocks(path.read_bytes()):
            entries += [entry for _, entry in decode_block(body)]
    return entries


async def _end(process: Process) -> None:
    """It is asked to, which harms nothing: what it has not finished to stage is nowhere yet."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(END_PATIENCE_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
