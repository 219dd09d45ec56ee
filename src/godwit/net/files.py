"""Files over the broker: sent in chunks with back-pressure, resumed after interruptions, received into a folder."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from io import FileIO
from operator import length_hint
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from godwit.client.files import (
    CHUNK_BYTES,
    ChunkRange,
    FileHeader,
    decode_header,
    encode_header,
    file_id,
    plan,
    publisher_of,
    wire_name,
)
from godwit.client.message import Message
from godwit.errors import DecodeError, FileTransferError, printable
from godwit.limits import MIB
from godwit.net.file_inbox import ChunkOutcome, FileInbox, FileProblem, PartialFile, ReceivedFile
from godwit.net.subscription import AsyncSubscription, BlockingIterator
from godwit.wire.control import Progressed, ProgressQuery

if TYPE_CHECKING:
    from godwit.net.runtime import ClientRuntime

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called as `on_progress(done_bytes, total_bytes)`."""
OnFileProgress: TypeAlias = Callable[[str, int, int], None]
"""Called as `on_file_progress(name, done_bytes, total_bytes)`."""

WINDOW_CHUNKS: Final = 16
"""Maximum of unconfirmed chunks of one file: 4 MiB."""
_HASH_BYTES: Final = 1 * MIB
_logger = logging.getLogger(__name__)


class SentFile(msgspec.Struct, frozen=True):
    """A file of which the broker has confirmed every chunk."""

    name: str
    """The name for receivers."""
    topic: str
    size_bytes: int
    sha256: bytes
    resumed_at_bytes: int
    """How much an earlier, interrupted call had sent already."""
    reached: int
    """The number of connected subscriptions that matched the last chunk."""


# -- sending ----------------------------------------------------------------------------------------------------------


async def send_file(
    runtime: ClientRuntime,
    topic: str,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    progress: OnProgress | None = None,
    hashing: OnProgress | None = None,
) -> SentFile:
    """Send a file, and wait until the broker has confirmed all of it. See AsyncClient.send_file."""
    source = Path(path)
    with ExitStack() as files:  # closes the file also after a cancellation during the open
        file: FileIO = await _in_thread(lambda: files.enter_context(_open(source)))
        before = os.fstat(file.fileno())
        sha256 = await _hash(file, before.st_size, hashing)
        sent_name = wire_name(name if name is not None else source.name)
        header = FileHeader(
            id=file_id(sha256, sent_name, topic), run=0, name=sent_name, size=before.st_size, at=0, sha256=sha256
        )
        identity = publisher_of(header.id)
        known = await runtime.request(lambda n: ProgressQuery(request=n, topic=topic, publisher=identity), Progressed)
        run = plan(header.size, known.epoch, known.next_sequence)
        header = msgspec.structs.replace(header, run=run.epoch)
        reached = await _send_chunks(runtime, topic, file, header, run, progress)
        after = os.fstat(file.fileno())
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise _changed(source)
        return SentFile(sent_name, topic, header.size, sha256, min(run.first_byte, header.size), reached)


async def _send_chunks(
    runtime: ClientRuntime, topic: str, file: FileIO, header: FileHeader, run: ChunkRange, progress: OnProgress | None
) -> int:
    """Send the missing chunks, with at most a window of unconfirmed ones. Return how many subscribers were reached."""
    publishers = runtime.publishers
    waiters = publishers.chunk_waiters(topic, publisher_of(header.id), epoch=run.epoch, sequence=run.first_chunk)
    reached = 0

    async def confirmed(chunks: int) -> int:
        reached = await waiters.confirmed(chunks)
        if progress is not None:
            progress(min(chunks * CHUNK_BYTES, header.size), header.size)
        return reached

    try:
        if progress is not None:
            progress(min(run.first_byte, header.size), header.size)
        for number in range(run.first_chunk, run.chunks):
            at = number * CHUNK_BYTES
            wanted_bytes = min(CHUNK_BYTES, header.size - at)
            chunk = await _in_thread(_read_at, file, wanted_bytes, at)
            if len(chunk) != wanted_bytes:
                raise _changed(Path(header.name))
            await publishers.send_chunk(waiters, chunk, encode_header(msgspec.structs.replace(header, at=at)))
            if number - run.first_chunk >= WINDOW_CHUNKS:
                await confirmed(number + 1 - WINDOW_CHUNKS)
        first_open = max(run.first_chunk, run.chunks - WINDOW_CHUNKS)
        for chunks in range(first_open + 1, run.chunks + 1):
            reached = await confirmed(chunks)
    finally:
        waiters.core.close()
        publishers.schedule_flush()
    return reached


async def _hash(file: FileIO, total_bytes: int, hashing: OnProgress | None) -> bytes:
    """Return the SHA-256 of the file, computed in a thread that stops when this is cancelled."""
    loop = asyncio.get_running_loop()
    stopped = threading.Event()

    def work() -> bytes:
        digest = hashlib.sha256()
        done_bytes = 0
        while not stopped.is_set() and (data := _read_at(file, _HASH_BYTES, done_bytes)):
            digest.update(data)
            done_bytes += len(data)
            if hashing is not None:
                loop.call_soon_threadsafe(hashing, done_bytes, total_bytes)
        return digest.digest()

    future = loop.run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.wait([future])  # until then the thread uses the file
        raise


def _open(path: Path) -> FileIO:
    try:
        if path.is_dir():
            raise FileTransferError(f"{path} is a folder: send its files one by one")
        if path.exists() and not path.is_file():  # the open of a pipe would wait for its writer
            raise FileTransferError(f"{path} is not a regular file: save its content to one and send that")
        return path.open("rb", buffering=0)
    except OSError as error:
        raise FileTransferError(f"cannot read {path}: {error.strerror or error}; check the path") from error


def _read_at(file: FileIO, size_bytes: int, at: int) -> bytes:
    """Read `size_bytes` at a position; fewer only at the end of the file."""
    file.seek(at)
    data = file.read(size_bytes)
    while len(data) < size_bytes and (more := file.read(size_bytes - len(data))):
        data += more
    return data


def _changed(path: Path) -> FileTransferError:
    return FileTransferError(f"{path.name} was changed while it was sent: receivers will not keep it; send it again")


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a thread. A cancellation waits for its end: until then the thread uses the file."""
    future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


# -- receiving --------------------------------------------------------------------------------------------------------


class FileReceiver:
    """An async iterator over received files (`ReceivedFile`). Made by `AsyncClient.receive_files`.

        async with client.receive_files("reports/#", folder="reports") as files:
            async for file in files:
                print(file.path, file.size_bytes)

    It returns each file once it is complete and its hash is correct. With `async with` it is subscribed from the
    beginning of the block, else from the first step of `async for`. Messages that are not chunks of files are skipped.
    """

    def __init__(
        self,
        subscription: AsyncSubscription,
        folder: str | os.PathLike[str],
        *,
        progress: OnFileProgress | None,
        on_problem: Callable[[str], None] | None,
        max_file_bytes: int | None,
        max_total_bytes: int | None,
    ) -> None:
        self.folder = Path(folder)
        """Where files are written."""
        self.problems = 0
        """The number of files that could not be received. `on_problem` is called with the reason of each."""
        self._subscription = subscription
        self._progress = progress
        self._on_problem = on_problem
        self._make_inbox = partial(
            FileInbox, self.folder, max_file_bytes=max_file_bytes, max_total_bytes=max_total_bytes
        )
        self._inbox: FileInbox | None = None
        self._pending: asyncio.Future[ChunkOutcome] | None = None
        """The write of a chunk. Stored here, so that a cancellation does not lose its outcome."""
        self._rest: Iterator[ReceivedFile] = iter(())
        """A complete file that was not returned yet. `_fetch_more` brings the next one."""

    def __repr__(self) -> str:
        return f"<FileReceiver into {str(self.folder)!r} from {', '.join(map(repr, self._subscription.filters))}>"

    async def __aenter__(self) -> FileReceiver:
        self._inbox = await _in_thread(self._make_inbox)
        await self._subscription.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and (self._pending is not None or length_hint(self._rest)):
            # A cancelled wait was for a file that was not returned, so the last message is not handled.
            await self._subscription.close(self._subscription._handled_below)
        await self._subscription.__aexit__(kind, error, traceback)

    async def __aiter__(self) -> AsyncIterator[ReceivedFile]:
        if self._inbox is not None:
            while True:
                yield await self.__anext__()
        async with self:
            while True:
                yield await self.__anext__()

    async def __anext__(self) -> ReceivedFile:
        """Wait for the next complete file."""
        while True:
            for file in self._rest:
                return file
            await self._fetch_more()

    async def _fetch_more(self) -> None:
        """Wait until `_rest` has a file. Return at once if it has one. A cancellation loses nothing."""
        while not length_hint(self._rest):
            if self._pending is None:
                message = await self._subscription.__anext__()
                self._pending = self._begin(message)
            else:
                try:
                    outcome = await asyncio.shield(self._pending)
                except FileTransferError:
                    self._pending = None
                    raise
                self._pending = None
                if isinstance(outcome, ReceivedFile):
                    self._rest = iter([outcome])
                    self._report_progress(outcome.path.name, outcome.size_bytes, outcome.size_bytes)
                elif isinstance(outcome, PartialFile):
                    self._report_progress(outcome.name, outcome.done_bytes, outcome.size_bytes)
                elif isinstance(outcome, FileProblem):
                    self._report_problem(outcome.text)

    def _begin(self, message: Message) -> asyncio.Future[ChunkOutcome] | None:
        assert self._inbox is not None
        try:
            header = decode_header(message.extension, message.topic, len(message.payload))
        except DecodeError as error:
            self._report_problem(f"a message on {message.topic} claims to be part of a file: {error}")
            return None
        if header is None:
            return None
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self._inbox.add, message.topic, message.publisher, header, message.payload)

    def _report_progress(self, name: str, done_bytes: int, size_bytes: int) -> None:
        if self._progress is not None:
            self._progress(name, done_bytes, size_bytes)

    def _report_problem(self, text: str) -> None:
        self.problems += 1
        _logger.warning("a file was not received: %s", printable(text))
        if self._on_problem is not None:
            self._on_problem(text)


class BlockingFiles(BlockingIterator[ReceivedFile]):
    """An iterator over received files (`ReceivedFile`). Made by `BlockingClient.receive_files`."""

    _inner: FileReceiver

    def __repr__(self) -> str:
        return f"<BlockingFiles{repr(self._inner).removeprefix('<FileReceiver')}"

    @property
    def problems(self) -> int:
        """The number of files that could not be received."""
        return self._inner.problems
