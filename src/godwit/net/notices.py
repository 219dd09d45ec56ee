"""Event lines of a broker, as text or JSON: limited in length and number, and written in a thread of their own.

One client, one host and all hosts together may cause a limited number of lines: token buckets for each kind of event. A
client that has proved its name has its own bucket. A client that has not could use another name for each line, so its
host has a bucket too, and so have all such hosts together. Lines of the broker itself are not limited.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeAlias

import msgspec

from godwit.broker.quotas import Bucket
from godwit.errors import MAX_LINE_CHARACTERS, printable

LogFormat: TypeAlias = Literal["text", "json"]

MAX_LINES_WAITING: Final = 10_000
MAX_FIELD_CHARACTERS: Final = 300
"""Maximum length of a name, a topic or a reason in a JSON line."""
MAX_FIELD_ENTRIES: Final = 16
"""Maximum length of a list in a JSON line."""
MAX_JSON_CHARACTERS: Final = 32_000
"""Maximum length of a JSON line. An escape has up to twelve characters, and two texts may have the former length."""
CLOSE_TIMEOUT_S: Final = 2.0
POLL_S: Final = 1.0
"""How often the writing thread checks whether a summary of suppressed lines is due."""

CLIENT_LINES: Final = (1.0, 50.0)
"""Limit for one client and kind of event: lines per second, and lines at once."""
HOST_LINES: Final = (5.0, 500.0)
"""Limit for all clients of one host that have not proved their names."""
ALL_LINES: Final = (20.0, 2000.0)
"""Limit for all hosts together, for such clients and for connections that never log in."""
SUMMARY_US: Final = 10_000_000
"""Suppressed lines are reported this long after the first of them."""
MAX_BUCKETS: Final = 20_000
"""Maximum of clients and hosts with buckets. The one that was used least recently is forgotten."""
MAX_SUMMARIES: Final = 20
"""Maximum of summary lines at once; the last one is for all other sources together."""
ALL_HOSTS: Final = ""
"""The source of lines that all hosts together caused."""

_LimitKey: TypeAlias = tuple[str, str]
"""Kind of event, and source: a client, a host or ALL_HOSTS."""


def text_line(kind: str, text: str, fields: Mapping[str, Any], epoch_s: float) -> str:
    """Return a line such as `2026-11-15 10:20:30 sensor-1 connected`. Addresses of broker and archive have no time."""
    if kind in ("listening", "archive", "key", "metrics"):
        return printable(text)
    stamp = datetime.fromtimestamp(epoch_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{stamp} {'WARNING: ' if kind == 'warning' else ''}{printable(text)}"


def json_line(kind: str, text: str, fields: Mapping[str, Any], epoch_s: float) -> str:
    """Return a JSON object with time, kind, text and the fields of the notice."""
    stamp = datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if len(text) > MAX_LINE_CHARACTERS:
        text = f"{text[:MAX_LINE_CHARACTERS]}..."
    cut = {name: _cut(value) for name, value in fields.items()}
    # In ASCII: control characters and lone surrogates are written as escapes.
    plain = msgspec.to_builtins({**cut, "time": stamp, "kind": kind, "text": text}, enc_hook=repr)
    line = json.dumps(plain, sort_keys=True)
    if len(line) <= MAX_JSON_CHARACTERS:
        return line
    return json_line(kind, printable(text), {"fields": printable(repr(fields))}, epoch_s)


def _cut(value: Any) -> Any:
    """Shorten a field, which may come from the network."""
    if isinstance(value, str) and len(value) > MAX_FIELD_CHARACTERS:
        return f"{value[:MAX_FIELD_CHARACTERS]}..."
    if isinstance(value, list):
        more = [f"and {len(value) - MAX_FIELD_ENTRIES} more"] if len(value) > MAX_FIELD_ENTRIES else []
        return [_cut(entry) for entry in value[:MAX_FIELD_ENTRIES]] + more
    return value


def _left_out(count: int, whose: str = "") -> str:
    lines, verb = ("1 line", "was") if count == 1 else (f"{count:,} lines", "were")
    return f"{lines} {whose} {verb} left out" if whose else f"{lines} {verb} left out"


class NoticeWriter:
    """Write lines in a thread of its own, so that a stopped terminal or a full pipe does not stop the broker.

    Lines that do not fit the queue are counted, and the count is written once there is room again. Lines beyond the
    limits of one client are counted too (see NoticeLimit).
    """

    def __init__(
        self,
        stream: TextIO,
        log_format: LogFormat = "text",
        *,
        is_quiet: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`is_quiet`: leave out the lines about single clients, and write those of the broker itself."""
        self._stream = stream
        self._line = json_line if log_format == "json" else text_line
        self._clock = clock
        self._is_quiet = is_quiet
        self._queue: queue.Queue[str | None] = queue.Queue(MAX_LINES_WAITING)
        self._left_out = 0
        self._limit = NoticeLimit()
        self._lock = threading.Lock()
        """Protects `_limit` and `_is_polling`, which the writing thread uses too."""
        self._is_polling = False
        """Whether the writing thread checks regularly if a summary is due."""
        self._thread = threading.Thread(target=self._run, name="godwit-notices", daemon=True)
        self._thread.start()

    def write(self, kind: str, text: str, fields: Mapping[str, Any] | None = None) -> None:
        """Write a line, or count it if that is not possible. Never waits."""
        is_own = kind in ("listening", "archive", "key", "metrics", "warning")
        if self._is_quiet and not is_own and fields and ("client" in fields or "host" in fields):
            return
        with self._lock:
            is_admitted = self._limit.admit(kind, fields or {}, self._now_us())
            is_first = self._limit.due_us is not None and not self._is_polling
            self._is_polling = self._is_polling or is_first
        try:
            if is_first:
                self._queue.put_nowait("")  # wakes the thread, which polls for summaries from now on
            if not is_admitted:
                return
            if self._left_out:
                self._queue.put_nowait(self._line("log", f"{_left_out(self._left_out)} here", {}, self._clock()))
                self._left_out = 0
            self._queue.put_nowait(self._line(kind, text, fields or {}, self._clock()))
        except queue.Full:
            self._left_out += is_admitted

    def close(self) -> None:
        """Write the queued lines, and wait up to a few seconds for that. May be repeated."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_TIMEOUT_S)
            except queue.Full:
                return
            self._thread.join(CLOSE_TIMEOUT_S)

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            lines: list[str] = []
            try:
                line = self._queue.get(timeout=POLL_S if self._is_polling else None)
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
            except (OSError, ValueError):  # the reader of the stream is gone: the broker continues without
                if not is_over:
                    self._discard()
                return

    def _summaries(self, *, is_over: bool) -> list[str]:
        with self._lock:
            due_us = self._limit.due_us
            if due_us is None or (due_us > self._now_us() and not is_over):
                return []
            found = self._limit.summaries()
            self._is_polling = False
        return [self._line("left_out", text, fields, self._clock()) for text, fields in found]

    def _discard(self) -> None:
        while self._queue.get() is not None:
            pass


class NoticeLimit:
    """Decide which lines are written. Call `summaries` when `due_us` has come."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[_LimitKey, Bucket] = OrderedDict()
        self._all_hosts: dict[str, Bucket] = {}
        self._left_out: dict[_LimitKey, int] = {}
        self.due_us: int | None = None
        """When the next summary is due, in microseconds since 1970; None if no line was suppressed."""

    def admit(self, kind: str, fields: Mapping[str, Any], now_us: int) -> bool:
        """Return whether to write the line of an event. If not, it is counted for the next summary."""
        client, host = str(fields.get("client", "")), str(fields.get("host", ""))
        if not client and not host:
            return True
        buckets: list[tuple[str, Bucket]] = []
        if client:
            buckets.append((client, self._bucket((kind, client), CLIENT_LINES, now_us)))
        if host:
            buckets.append((f"host {host}", self._bucket((kind, f"host {host}"), HOST_LINES, now_us)))
            if kind not in self._all_hosts:
                self._all_hosts[kind] = Bucket(*ALL_LINES, now_us)
            buckets.append((ALL_HOSTS, self._all_hosts[kind]))
        for source, bucket in buckets:
            if not bucket.has(1, now_us):
                self._suppress((kind, source), now_us)
                return False
        for _, bucket in buckets:
            bucket.take(1, now_us)
        return True

    def _bucket(self, key: _LimitKey, rate: tuple[float, float], now_us: int) -> Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(*rate, now_us)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket

    def _suppress(self, key: _LimitKey, now_us: int) -> None:
        if key not in self._left_out and len(self._left_out) >= MAX_BUCKETS:
            key = (key[0], ALL_HOSTS)
        self._left_out[key] = self._left_out.get(key, 0) + 1
        if self.due_us is None:
            self.due_us = now_us + SUMMARY_US

    def summaries(self) -> list[tuple[str, dict[str, Any]]]:
        """Return text and fields of the lines that report the suppressed lines since the last call."""
        left_out, self._left_out = self._left_out, {}
        self.due_us = None
        most_first = sorted(left_out.items(), key=lambda item: -item[1])
        shown = most_first if len(most_first) <= MAX_SUMMARIES else most_first[: MAX_SUMMARIES - 1]
        lines: list[tuple[str, dict[str, Any]]] = []
        for (kind, source), count in shown:
            whose = f"{kind!r} of {source}" if source else f"{kind!r} of clients that have not proved their names"
            lines.append((_left_out(count, whose), {"left_out": count, "of": kind, "source": source}))
        if len(shown) < len(most_first):
            rest = most_first[len(shown) :]
            count = sum(count for _, count in rest)
            lines.append((_left_out(count, f"of {len(rest):,} others"), {"left_out": count}))
        return lines
