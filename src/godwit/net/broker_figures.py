"""Figures of a running broker for `$sys`, beside those of the core: network, subscriptions that are behind, log, disk.

They are collected in the background, in slices as those of the metrics endpoint, and published with the figures of the
core. Each time the core takes the latest ones, the next ones are begun: so they are as old as `sys_interval_s`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from godwit.net.broker_metrics import SLICE, BrokerParts, lag_of
from godwit.server.server import Server
from godwit.store.retention import RetentionRule
from godwit.transport.connection import Connection
from godwit.transport.connection_state import TransportTotals
from godwit.transport.events import ConnectionState

_TAIL: Final = 0.99


class BrokerFigures:
    """The latest figures. All methods are called in the broker's event loop."""

    def __init__(self, parts: Callable[[], BrokerParts], rules: Callable[[], Sequence[RetentionRule]]) -> None:
        """`parts` returns the present parts of the broker, `rules` the present rules of retention."""
        self._parts = parts
        self._rules = rules
        self._latest: dict[str, int | str] = {}
        self._collecting: asyncio.Task[None] | None = None
        self._commits: list[int] = []
        """Numbers of commits by their duration, at the last collection."""

    def latest(self) -> dict[str, int | str]:
        """Return the figures that were collected last, and begin to collect the next ones."""
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect())
        return self._latest

    def stop(self) -> None:
        """Collect no further ones."""
        if self._collecting is not None:
            self._collecting.cancel()

    async def _collect(self) -> None:
        parts = self._parts()
        found: dict[str, int | str] = await network_figures(parts.server)
        found.update(await lag_figures(parts.server))
        if parts.durable is not None:
            writer = parts.durable.log.writer
            found["log/writable"] = int(not writer.problem)
            found["log/commits"] = writer.commit_seconds.count
            found["log/commit_us/p99"] = self._slowest_us(writer.commit_seconds.buckets())
            found["log/commit_us/total"] = round(writer.commit_seconds.total * 1e6)
            found["log/deleted"] = writer.deleted_messages
            found["log/retention"] = msgspec.json.encode([describe_rule(rule) for rule in self._rules()]).decode()
            folder = parts.durable.folder.path
            found.update(await asyncio.get_running_loop().run_in_executor(None, disk_figures, folder))
        self._latest = found

    def _slowest_us(self, buckets: list[tuple[str, int]]) -> int:
        """Return the duration that 99 % of the commits since the last call did not exceed, rounded up to a bucket."""
        former, self._commits = self._commits or [0] * len(buckets), [below for _, below in buckets]
        commits = self._commits[-1] - former[-1]
        bounds = [float(bound) for bound, _ in buckets]
        for bound, below, before in zip(bounds, self._commits, former, strict=True):
            if commits and below - before >= _TAIL * commits:
                return round(min(bound, bounds[-2]) * 1e6)
        return 0


async def network_figures(server: Server) -> dict[str, int | str]:
    """Return the totals of all connections of the transport, open and ended, and their round trips."""
    totals = TransportTotals()
    connections: list[Connection] = []
    for listener in server.listeners:
        for name in TransportTotals.__struct_fields__:
            setattr(totals, name, getattr(totals, name) + getattr(listener.endpoint.ended, name))
        connections += listener.endpoint.connections.values()
    trips_s: list[float] = []
    for start in range(0, len(connections), SLICE):
        for connection in connections[start : start + SLICE]:
            connection.add_to(totals)
            if connection.state is ConnectionState.OPEN:
                trips_s.append(connection.round_trip_s)
        await asyncio.sleep(0)
    trips_s.sort()
    return {
        "network/packets/sent": totals.packets_sent,
        "network/packets/received": totals.packets_received,
        "network/packets/lost": totals.packets_lost,
        "network/fragments/resent": totals.fragments_resent,
        "network/bytes/sent": totals.bytes_sent,
        **{
            f"network/round_trip_us/{name}": round(trips_s[round(share * (len(trips_s) - 1))] * 1e6) if trips_s else 0
            for name, share in (("median", 0.5), ("p95", 0.95))
        },
    }


async def lag_figures(server: Server) -> dict[str, int | str]:
    """Return how many subscriptions are behind the end of the log, and the largest lag, by connected and absent."""
    broker = server.broker
    found: dict[str, int | str] = {}
    for state, ones in (("connected", broker.lagging_subscriptions()), ("absent", broker.absent_subscriptions())):
        behind = max_lag = 0
        for start in range(0, len(ones), SLICE):
            for one in ones[start : start + SLICE]:
                lag = lag_of(one, broker.end_offset)
                if state == "absent" or not one.is_live:
                    behind += lag > 0
                    max_lag = max(max_lag, lag)
            await asyncio.sleep(0)
        found[f"subscriptions/behind/{state}"] = behind
        found[f"subscriptions/lag/{state}"] = max_lag
    return found


def disk_figures(folder: Path) -> dict[str, int | str]:
    """Return the size of the log's files, and the room on their disk. It waits for the disk."""
    size_bytes = 0
    for path in folder.glob("log.sqlite*"):
        with suppress(OSError):
            size_bytes += path.stat().st_size
    found: dict[str, int | str] = {"log/size_bytes": size_bytes}
    with suppress(OSError):
        usage = shutil.disk_usage(folder)
        found |= {"log/disk/free_bytes": usage.free, "log/disk/size_bytes": usage.total}
    return found


def describe_rule(rule: RetentionRule) -> dict[str, str | float | int | None]:
    """Return a rule of retention for people and programs. Without a pattern: for all topics without a rule."""
    return {"pattern": rule.pattern, "max_age_s": rule.max_age_s, "max_bytes": rule.max_bytes}
