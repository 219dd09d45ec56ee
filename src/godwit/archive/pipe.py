"""The archive's end of the pipes to the broker that started it: commits out, answers in; when they end, it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, Literal

from godwit.broker.access import TokenRights
from godwit.errors import DecodeError
from godwit.limits import KIB
from godwit.server.archive_pipe import (
    Commit,
    CommitDone,
    FromArchive,
    LogLine,
    PipeReader,
    Ready,
    decode_from_broker,
    encode_message,
)

READ_BYTES: Final = 64 * KIB


class BrokerPipe:
    """Any thread may ask; one thread listens. `on_end` is called from it when the broker is gone."""

    def __init__(self, read_fd: int, write_fd: int, on_end: Callable[[], None]) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_end = on_end
        self._writing = threading.Lock()
        self._waiting: dict[int, _Answer] = {}
        self._next_key = 0

    def start(self) -> None:
        """Begin to listen."""
        threading.Thread(target=self._listen, name="broker pipe", daemon=True).start()

    def ready(self, url: str) -> None:
        self._write(Ready(url))

    def log(self, level: Literal["info", "warning"], text: str) -> None:
        self._write(LogLine(level, text))

    def commit(
        self, query: str, batch: int, files: list[str], rights: TokenRights, timeout_s: float
    ) -> CommitDone | None:
        """The broker's answer; None if it has not come in time, and whether it was done is not known then."""
        answer = _Answer()
        with self._writing:
            key = self._next_key
            self._next_key += 1
            self._waiting[key] = answer
        try:
            self._write(Commit(key, query, batch, files, rights))
            answer.is_there.wait(timeout_s)
        finally:
            del self._waiting[key]
        return answer.done

    def _write(self, message: FromArchive) -> None:
        data = memoryview(encode_message(message))
        with self._writing:
            while data:
                try:
                    data = data[os.write(self._write_fd, data) :]
                except OSError:  # the broker is gone: the listening thread hears of it too, and ends the process
                    return

    def _listen(self) -> None:
        reader = PipeReader()
        try:
            while data := os.read(self._read_fd, READ_BYTES):
                for body in reader.feed(data):
                    done = decode_from_broker(body)
                    if (answer := self._waiting.get(done.key)) is not None:
                        answer.done = done
                        answer.is_there.set()
        except (OSError, DecodeError):
            pass  # there is nobody left to talk to
        self._on_end()


class _Answer:
    """Where a thread waits for the broker's answer."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.done: CommitDone | None = None
