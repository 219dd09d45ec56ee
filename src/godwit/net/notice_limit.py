"""How many event lines one client, one host and all hosts together may cause: token buckets for each kind of event.

A client that has proved its name has a bucket of its own. One that has not could take another name for each line, so
its host has one too, and all such hosts together. Lines of the broker itself are not limited.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from godwit.broker.quotas import Bucket

_Key: TypeAlias = tuple[str, str]
"""Kind of event; client or host, or EVERYBODY."""

CLIENT_LINES: Final = (1.0, 50.0)
"""Of one client and kind: lines a second, and at once."""
HOST_LINES: Final = (5.0, 500.0)
"""Of all clients of one host that have not proved their names."""
ALL_LINES: Final = (20.0, 2000.0)
"""Of all hosts together, for such clients and for connections that never log in."""
SUMMARY_US: Final = 10_000_000
"""Lines that were left out are reported this long after the first of them."""
MAX_BUCKETS: Final = 20_000
"""Clients and hosts that are remembered; the one that was quiet for longest is forgotten."""
MAX_SUMMARIES: Final = 20
"""Lines that report what was left out, at once; the last one speaks of all others."""
EVERYBODY: Final = ""


class NoticeLimit:
    """Feed: admit. Drain: summaries, when `due_us` says so."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[_Key, Bucket] = OrderedDict()
        self._everybody: dict[str, Bucket] = {}
        self._left_out: dict[_Key, int] = {}
        self.due_us: int | None = None

    def admit(self, kind: str, fields: Mapping[str, Any], now_us: int) -> bool:
        """Return whether to write the line of an event; if not, it is counted for the next summary."""
        client, host = str(fields.get("client", "")), str(fields.get("host", ""))
        if not client and not host:
            return True
        buckets: list[tuple[str, Bucket]] = []
        if client:
            buckets.append((client, self._bucket((kind, client), CLIENT_LINES, now_us)))
        if host:
            buckets.append((f"host {host}", self._bucket((kind, f"host {host}"), HOST_LINES, now_us)))
            if kind not in self._everybody:
                self._everybody[kind] = Bucket(*ALL_LINES, now_us)
            buckets.append((EVERYBODY, self._everybody[kind]))
        for source, bucket in buckets:
            if not bucket.has(1, now_us):
                self._leave_out((kind, source), now_us)
                return False
        for _, bucket in buckets:
            bucket.take(1, now_us)
        return True

    def _bucket(self, key: _Key, rate: tuple[float, float], now_us: int) -> Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(*rate, now_us)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket

    def _leave_out(self, key: _Key, now_us: int) -> None:
        if key not in self._left_out and len(self._left_out) >= MAX_BUCKETS:
            key = (key[0], EVERYBODY)
        self._left_out[key] = self._left_out.get(key, 0) + 1
        if self.due_us is None:
            self.due_us = now_us + SUMMARY_US

    def summaries(self) -> list[tuple[str, dict[str, Any]]]:
        """Return text and fields of the lines that report what was left out since the last time."""
        left_out, self._left_out = self._left_out, {}
        self.due_us = None
        most_first = sorted(left_out.items(), key=lambda item: -item[1])
        shown = most_first if len(most_first) <= MAX_SUMMARIES else most_first[: MAX_SUMMARIES - 1]
        lines: list[tuple[str, dict[str, Any]]] = []
        for (kind, source), count in shown:
            whose = f"{kind!r} of {source}" if source else f"{kind!r} of clients that have not proved their names"
            lines.append((f"{count:,} lines {whose} were left out", {"left_out": count, "of": kind, "source": source}))
        if len(shown) < len(most_first):
            rest = most_first[len(shown) :]
            count = sum(count for _, count in rest)
            lines.append((f"{count:,} lines of {len(rest):,} others were left out", {"left_out": count}))
        return lines
