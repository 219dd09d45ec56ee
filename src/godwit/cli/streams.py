"""Standard input and output beside an event loop, which a slow reader or writer at the other end never blocks.

Blocking calls run in daemon threads on bare file descriptors. Such a thread neither delays the end of the program nor
holds a lock that the interpreter needs when it exits. The descriptors stay in blocking mode because other processes
share them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple, NoReturn, TypeVar

from godwit.cli.text import safe
from godwit.errors import GodwitError, UsageError
from godwit.limits import KIB

T = TypeVar("T")

PIPE_ATOM_BYTES: Final = 4096
"""Bytes that a pipe accepts without blocking once `poll` reports it as writable."""
READ_BYTES: Final = 256 * KIB
WATCH_S: Final = 0.2


class DaemonThread:
    """Runs blocking calls one after another for an event loop. It may be abandoned during a call."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._name = name
        self._started = False

    async def call(self, function: Callable[[], T]) -> T:
        """Run the function in the thread and return its result, or raise its exception."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():  # the caller was cancelled
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def job() -> None:
            result, error = None, None
            try:
                result = function()
            except BaseException as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

        if not self._started:
            self._started = True
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._jobs.put(job)
        return await future

    def _work(self) -> None:
        while True:
            self._jobs.get()()


class OutputClosedError(Exception):
    """The reader of standard output has closed it (`godwit sub x | head -1`): a reason to end, not a failure."""


class Output:
    """Standard output. Data is with the operating system when `write` returns."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = sys.stdout.fileno() if fd is None else fd
        mode = os.fstat(self._fd).st_mode
        self._never_waits = stat.S_ISREG(mode)
        self._is_pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._poll: select.poll | None = None
        if hasattr(select, "poll") and self._is_pipe:  # not on Windows
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLOUT)
        self._thread = DaemonThread("godwit-output")

    async def write(self, data: bytes) -> None:
        """Write all bytes.

        Raises:
            OutputClosedError: The reader has closed the pipe.
            GodwitError: The write failed for another reason.
        """
        try:
            if self._never_waits or (self._poll is not None and len(data) <= PIPE_ATOM_BYTES and self._has_room()):
                self._write(data)
            else:
                await self._thread.call(lambda: self._write(data))
        except BrokenPipeError:
            raise OutputClosedError from None
        except OSError as error:
            raise GodwitError(f"cannot write to standard output: {error.strerror}; the rest is not shown") from error

    async def until_closed(self) -> NoReturn:
        """Raise OutputClosedError once the reader of the pipe is gone, even if there is nothing to write."""
        while True:
            await asyncio.sleep(WATCH_S)
            if self._poll is not None and any(event & select.POLLERR for _, event in self._poll.poll(0)):
                raise OutputClosedError

    def _has_room(self) -> bool:
        assert self._poll is not None
        return any(event & select.POLLOUT for _, event in self._poll.poll(0))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # a process that shares the descriptor made it non-blocking
                select.select([], [self._fd], [])


class Input:
    """Standard input, read on demand."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._thread = DaemonThread("godwit-input")

    async def chunks(self) -> AsyncIterator[bytes]:
        while chunk := await self._thread.call(self._read):
            yield chunk

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._fd, READ_BYTES)
            except BlockingIOError:  # a process that shares the descriptor made it non-blocking
                select.select([self._fd], [], [])

    async def lines(self, max_bytes: int) -> AsyncIterator[list[bytes]]:
        """Yield the complete lines of each chunk, without line ends. The last line needs no line end.

        Raises:
            GodwitError: A line is longer than `max_bytes`, the bound on memory.
        """
        number = 0
        rest = bytearray()
        async for chunk in self.chunks():
            head, newline, tail = chunk.rpartition(b"\n")
            if newline:
                lines = bytes(rest + head).split(b"\n")
                rest = bytearray(tail)
                for line in lines:
                    number += 1
                    _check_length(line, max_bytes, number)
                yield lines
            else:
                rest += tail
            _check_length(rest, max_bytes, number + 1)
        if rest:
            yield [bytes(rest)]


def _check_length(line: bytes | bytearray, max_bytes: int, number: int) -> None:
    if len(line) > max_bytes:
        raise GodwitError(
            f"line {number:,} of standard input is longer than {max_bytes:,} bytes, the largest size of a message; "
            "shorten it, or send it with --file"
        )


def discard_output() -> None:
    """Redirect stdout to nowhere after OutputClosedError, so that the interpreter's last flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


_line_printers: Final[list[Callable[[str], None]]] = []
"""For each display of progress bars that is shown, the function that prints a line above it."""


@contextlib.contextmanager
def line_printer(print_above: Callable[[str], None]) -> Iterator[None]:
    """Let `print_error_line` use this function within the block."""
    _line_printers.append(print_above)
    try:
        yield
    finally:
        _line_printers.remove(print_above)


def print_error_line(text: str) -> None:
    """Print a line on stderr: above the progress bars, while some are shown."""
    if _line_printers:
        _line_printers[-1](text)
    else:
        print(text, file=sys.stderr, flush=True)


class PayloadLimit(NamedTuple):
    """The largest payload, and how an error describes it."""

    max_bytes: int
    text: str


def read_payload(text: str | None, limit: PayloadLimit, *, is_literal: bool = False) -> bytes:
    """Return the payload that an argument names: a text, standard input (-), or the content of a file (@FILE).

    With `is_literal` the argument came after --: it is a text, even if it begins with @.

    Raises:
        UsageError: The payload is too long.
        GodwitError: Reading the file failed.
    """
    if text is None:
        return b""
    if is_literal:
        return _text(text, limit)
    if text == "-":
        return _bounded(sys.stdin.buffer, limit, "standard input")
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            with path.open("rb") as file:
                return _bounded(file, limit, safe(str(path)))
        except OSError as error:
            raise GodwitError(
                f"cannot read {path}: {error.strerror or error}; check the path, or put -- before a payload that "
                "begins with @"
            ) from error
    return _text(text, limit)


def _text(text: str, limit: PayloadLimit) -> bytes:
    # Bytes of the command line that are not UTF-8 are sent unchanged.
    return _checked(text.encode("utf-8", "surrogateescape"), limit, "the payload")


def _bounded(file: IO[bytes], limit: PayloadLimit, what: str) -> bytes:
    return _checked(file.read(limit.max_bytes + 1), limit, what)


def _checked(payload: bytes, limit: PayloadLimit, what: str) -> bytes:
    if len(payload) > limit.max_bytes:
        raise UsageError(f"{what} is longer than {limit.text}")
    return payload
