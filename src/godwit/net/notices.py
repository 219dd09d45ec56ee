"""Event lines of a broker, readable or JSON: bounded in length and number, written without holding the broker up."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeAlias

import msgspec

from godwit.net.notice_limit import NoticeLimit

LogFormat: TypeAlias = Literal["text", "json"]

MAX_LINES_WAITING: Final = 10_000
MAX_LINE_CHARACTERS: Final = 1000
MAX_FIELD_CHARACTERS: Final = 300
"""Of a name, a topic or a reason in a JSON line."""
MAX_FIELD_ENTRIES: Final = 16
"""Of a list in a JSON line."""
MAX_JSON_CHARACTERS: Final = 32_000
"""An escape is up to twelve characters long, and there may be two texts of the former length."""
CLOSE_PATIENCE_S: Final = 2.0
LOOK_S: Final = 1.0
"""How often the writing thread looks whether lines that were left out are to be reported."""


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
    if len(text) > MAX_LINE_CHARACTERS:
        text = f"{text[:MAX_LINE_CHARACTERS]}..."
    cut = {name: _cut(value) for name, value in fields.items()}
    # In ASCII: what a terminal would act upon, and half a character too, is written as an escape.
    plain = msgspec.to_builtins({**cut, "time": stamp, "kind": kind, "text": text}, enc_hook=repr)
    line = json.dumps(plain, sort_keys=True)
    if len(line) <= MAX_JSON_CHARACTERS:
        return line
    return json_line(kind, printable(text), {"fields": printable(repr(fields))}, epoch_s)


def _cut(value: Any) -> Any:
    """Return a field no longer than a line should have it: it may come from the network."""
    if isinstance(value, str) and len(value) > MAX_FIELD_CHARACTERS:
        return f"{value[:MAX_FIELD_CHARACTERS]}..."
    if isinstance(value, list):
        more = [f"and {len(value) - MAX_FIELD_ENTRIES} more"] if len(value) > MAX_FIELD_ENTRIES else []
        return [_cut(entry) for entry in value[:MAX_FIELD_ENTRIES]] + more
    return value


class NoticeWriter:
    """Writes lines in a thread of its own: a terminal that stands still or a full pipe does not stop the broker.

    Lines that do not fit the queue meanwhile are counted, and the count is written once there is room again. So are
    lines beyond the limits of one client (see godwit.net.notice_limit).
    """

    def __init__(
        self, stream: TextIO, log_format: LogFormat = "text", *, clock: Callable[[], float] = time.time
    ) -> None:
        self._stream = stream
        self._line = json_line if log_format == "json" else text_line
        self._clock = clock
        self._queue: queue.Queue[str | None] = queue.Queue(MAX_LINES_WAITING)
        self._left_out = 0
        self._limit = NoticeLimit()
        self._lock = threading.Lock()
        """Of the limit, which the writing thread asks for summaries, and of the following."""
        self._is_looking = False
        """Whether the writing thread looks now and then if a summary is due."""
        self._thread = threading.Thread(target=self._run, name="godwit-notices", daemon=True)
        self._thread.start()

    def write(self, kind: str, text: str, fields: Mapping[str, Any] | None = None) -> None:
        """Never waits."""
        with self._lock:
            is_admitted = self._limit.admit(kind, fields or {}, self._now_us())
            is_first = self._limit.due_us is not None and not self._is_looking
            self._is_looking = self._is_looking or is_first
        try:
            if is_first:
                self._queue.put_nowait("")  # wakes the thread: it looks from now on whether a summary is due
            if not is_admitted:
                return
            if self._left_out:
                self._queue.put_nowait(
                    self._line("log", f"{self._left_out:,} lines were left out here", {}, self._clock())
                )
                self._left_out = 0
            self._queue.put_nowait(self._line(kind, text, fields or {}, self._clock()))
        except queue.Full:
            self._left_out += is_admitted

    def close(self) -> None:
        """Writes what waits, unless nobody takes it. May be repeated."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_PATIENCE_S)
            except queue.Full:
                return
            self._thread.join(CLOSE_PATIENCE_S)

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            lines: list[str] = []
            try:
                line = self._queue.get(timeout=LOOK_S if self._is_looking else None)
                is_over = line is None
                lines += [line] if line else []
            except queue.Empty:
                pass
            lines += self._summaries(is_over=is_over)
            try:
                for line in lines:
                    self._stream.write(f"{line}\n")
                if lines:
                    self._stream.flush()
            except (OSError, ValueError):  # nobody reads it any more: the broker goes on without
                if not is_over:
                    self._discard()
                return

    def _summaries(self, *, is_over: bool) -> list[str]:
        with self._lock:
            due_us = self._limit.due_us
            if due_us is None or (due_us > self._now_us() and not is_over):
                return []
            found = self._limit.summaries()
            self._is_looking = False
        return [self._line("left_out", text, fields, self._clock()) for text, fields in found]

    def _discard(self) -> None:
        while self._queue.get() is not None:
            pass
