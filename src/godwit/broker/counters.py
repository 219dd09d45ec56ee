"""The counters of the core in one struct, for the metrics endpoint. They are kept anyway: reading them costs little."""

from __future__ import annotations

import msgspec


class BrokerCounters(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. Lists are by QoS, totals count since the start."""

    uptime_s: float
    connections: int
    """With and without a login."""
    clients: int
    """Connections with a login."""
    sessions: int
    logins: int
    logins_refused: dict[str, int]
    """By reason."""
    messages_in: list[int]
    messages_out: list[int]
    bytes_in: list[int]
    bytes_out: list[int]
    publishes_confirmed: int
    publishes_refused: int
    messages_dropped: dict[str, int]
    """By reason: `rate` beyond the limit of the publisher or of the log, `subscriber` that is too slow for QoS 0."""
    topics: int
    retained: int
    subscriptions: int
    groups: int
    appends_under_way: int
    lists_waiting: int
    first_offset: int
    next_offset: int
    jobs: dict[str, int]
    """Jobs that have not ended, by state, and ended ones that are kept."""
    jobs_ended: dict[str, int]
    """By state."""
    tasks_leased: int
    workers: int
    worker_capacity: int
