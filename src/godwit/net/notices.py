"""What a broker tells the people who run it: one line an event, readable or JSON, written without holding it up."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeAlias

import msgspec

LogFormat: TypeAlias = Literal["text", "json"]

MAX_LINES_WAITING: Final = 10_000
MAX_LINE_CHARACTERS: Final = 2000
MAX_JSON_CHARACTERS: Final = 32_000
"""An escape is up to twelve characters long, and there may be two texts of the former length."""
CLOSE_PATIENCE_S: Final = 2.0


def printable(text: str) -> str:
    """One line that moves no cursor: names and texts in it may come from the network."""
    if len(text) > MAX_LINE_CHARACTERS:
        text = f"{text[:MAX_LINE_CHARACTERS]}..."
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def text_line(kind: str, text: str, fields: Mapping[str, Any], epoch_s: float) -> str:
    """`2026-11-15 10:20:30 sensor-1 connected`; the lines that say where to find broker and archive stand alone."""
    if kind in ("listening", "archive"):
        return printable(text)
    stamp = datetime.fromtimestamp(epoch_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{stamp} {'WARNING: ' if kind == 'warning' else ''}{printable(text)}"


def json_line(kind: str, text: str, fields: Mapping[str, Any], epoch_s: float) -> str:
    """An object with time, kind, text and the fields of the notice."""
    stamp = datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    # In ASCII: what a terminal would act upon, and half a character too, is written as an escape.
    plain = msgspec.to_builtins({**fields, "time": stamp, "kind": kind, "text": text}, enc_hook=repr)
    line = json.dumps(plain, sort_keys=True)
    if len(line) <= MAX_JSON_CHARACTERS:
        return line
    return json_line(kind, printable(text), {"fields": printable(repr(fields))}, epoch_s)


class NoticeWriter:
    """Writes lines in a thread of its own: a terminal that stands still or a full pipe does not stop the broker.

    What does not fit the queue meanwhile is counted, and the count written once there is room again.
    """

    def __init__(
        self, stream: TextIO, log_format: LogFormat = "text", *, clock: Callable[[], float] = time.time
    ) -> None:
        self._stream = stream
        self._line = json_line if log_format == "json" else text_line
        self._clock = clock
        self._queue: queue.Queue[str | None] = queue.Queue(MAX_LINES_WAITING)
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="godwit-notices", daemon=True)
        self._thread.start()

    def write(self, kind: str, text: str, fields: Mapping[str, Any] | None = None) -> None:
        """Never waits."""
        try:
            if self._left_out:
                self._queue.put_nowait(
                    self._line("log", f"{self._left_out:,} lines were left out here", {}, self._clock())
                )
                self._left_out = 0
            self._queue.put_nowait(self._line(kind, text, fields or {}, self._clock()))
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Writes what waits, unless nobody takes it. May be repeated."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_PATIENCE_S)
            except queue.Full:
                return
            self._thread.join(CLOSE_PATIENCE_S)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads it any more: the broker goes on without
                self._discard()
                return

    def _discard(self) -> None:
        while self._queue.get() is not None:
            pass
