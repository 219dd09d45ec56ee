"""The figures of a broker over the last 15 minutes, from its `$sys` topics, and the problems that they show."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

PERIOD_S: Final = 15 * 60
MAX_SAMPLES: Final = 1_000
MAX_FIGURES: Final = 1_000
"""Topics below `$sys` that are remembered; a broker has some 60."""
DISK_LOW: Final = 0.10
DISK_FULL: Final = 0.03
LOSS_HIGH: Final = 0.02
NODE_BEHIND: Final = 1_000
"""A node that lacks more records than this is reported."""
MAX_NODES: Final = 100
DROPPED: Final = "network/dropped/"
HARMLESS: Final = frozenset(
    (
        "repeated",
        "repeated fragment",
        "ended channel",
        "old confirm",
        "closed connection",
        "late handshake",
        "unknown connection",
        "repeated connect",
        "out of order",
        "unproven path",
        "unasked path response",
        "early sealed",
        "old key",
        "standby",
    )
)
"""Reasons for drops that belong to lossy networks, changes of addresses and keys, and nodes that wait."""

COUNTERS: Final = {
    "messages_in": "messages/in",
    "messages_out": "messages/out",
    "bytes_in": "bytes/in",
    "bytes_out": "bytes/out",
    "packets_sent": "network/packets/sent",
    "packets_lost": "network/packets/lost",
    "resent": "network/fragments/resent",
    "messages_dropped": "messages/dropped",
    "refused": "logins/refused",
    "commits": "log/commits",
    "commit_us": "log/commit_us/total",
}
"""Figures that only grow while a broker runs."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The state at one time. Rates are per second, since the sample before; None without one of the same run."""

    at: float
    messages_in: float | None = None
    messages_out: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    clients: int | None = None
    commit_ms: float | None = None
    """Mean duration of the commits since the sample before."""
    commit_p99_ms: float | None = None
    loss_percent: float | None = None
    resent: float | None = None
    round_trip_ms: float | None = None
    round_trip_p95_ms: float | None = None
    log_bytes: int | None = None
    log_end: int | None = None
    behind: int | None = None
    """Connected subscriptions that read the log because they are behind."""
    dropped: int = 0
    """Packets and datagrams that were dropped since the sample before."""
    messages_dropped: int = 0
    refused: int = 0


class Problem(msgspec.Struct, frozen=True):
    """Something that an operator should look at."""

    level: str
    """error, warning or note."""
    title: str
    text: str
    page: str = ""
    """The page that shows more."""


class ShownNode(msgspec.Struct, frozen=True):
    """A node of a cluster, as the active node sees it."""

    node: str
    state: str
    """active, standby or another state of a node; away if no heartbeat has arrived for seconds."""
    address: str
    behind: int
    """Records of the replicated log that its file lacks."""
    problem: str
    """Why it could not do its part at present; empty if it could."""


class ShownCluster(msgspec.Struct, frozen=True):
    """The cluster of the broker."""

    name: str
    node: str
    """The node that has published the figures: the active one."""
    epoch: int
    nodes: list[ShownNode]


class FigureHistory:
    """Samples of the figures. Input: handle_figure for each message, then add_sample."""

    def __init__(self) -> None:
        self.current: dict[str, str] = {}
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._counts: dict[str, int] = {}
        self._at: float | None = None

    def handle_figure(self, topic: str, payload: bytes) -> None:
        """Store one figure as it was published."""
        name = topic.removeprefix("$sys/")
        if name in self.current or len(self.current) < MAX_FIGURES:
            self.current[name] = payload[:10_000].decode("utf-8", "replace")

    def number(self, name: str) -> int | None:
        """Return a figure, or None if the broker has not published it."""
        try:
            return int(self.current[name])
        except (KeyError, ValueError):
            return None

    def add_sample(self, at: float) -> Sample:
        """Add the present figures to the history, and return them."""
        counts = {key: found for key, name in COUNTERS.items() if (found := self.number(name)) is not None}
        counts["dropped"] = sum(self._drops().values())
        before, former_at = self._counts, self._at
        self._counts, self._at = counts, at
        elapsed_s = at - former_at if former_at is not None else 0.0
        # A counter that has fallen belongs to a broker that was started again: nothing is known about the time between.
        is_same = elapsed_s > 0 and all(counts.get(key, 0) >= count for key, count in before.items())
        grown = {key: counts[key] - before[key] for key in counts if key in before} if is_same else {}
        rates = {key: growth / elapsed_s for key, growth in grown.items()} if is_same else {}
        sent, commits = grown.get("packets_sent"), grown.get("commits")
        sample = Sample(
            at=at,
            messages_in=rates.get("messages_in"),
            messages_out=rates.get("messages_out"),
            bytes_in=rates.get("bytes_in"),
            bytes_out=rates.get("bytes_out"),
            clients=self.number("clients/connected"),
            commit_ms=None if commits is None else grown["commit_us"] / commits / 1000 if commits else 0.0,
            commit_p99_ms=_scaled(self.number("log/commit_us/p99"), 1000),
            loss_percent=None if sent is None else 100 * grown["packets_lost"] / sent if sent else 0.0,
            resent=rates.get("resent"),
            round_trip_ms=_scaled(self.number("network/round_trip_us/median"), 1000),
            round_trip_p95_ms=_scaled(self.number("network/round_trip_us/p95"), 1000),
            log_bytes=self.number("log/size_bytes"),
            log_end=self.number("log/next_offset"),
            behind=self.number("subscriptions/behind/connected"),
            dropped=grown.get("dropped", 0),
            messages_dropped=grown.get("messages_dropped", 0),
            refused=grown.get("refused", 0),
        )
        self.samples.append(sample)
        while self.samples[0].at < at - PERIOD_S:
            self.samples.popleft()
        return sample

    def columns(self) -> dict[str, list[Any]]:
        """Return the samples as one list for each field."""
        return {name: [getattr(one, name) for one in self.samples] for name in Sample.__struct_fields__}

    def problems(self) -> list[Problem]:
        """Return the present problems, the most serious ones first."""
        found = [*self._log_problems(), *self._cluster_problems(), *self._client_problems()]
        order = {"error": 0, "warning": 1, "note": 2}
        return sorted(found, key=lambda one: order[one.level])

    def _log_problems(self) -> list[Problem]:
        found = []
        if self.number("log/writable") == 0:
            text = "New messages are refused. See the event lines of the broker for the reason."
            found.append(Problem("error", "The log cannot be written", text, "log"))
        free, size = self.number("log/disk/free_bytes"), self.number("log/disk/size_bytes")
        if free is not None and size and free < DISK_LOW * size:
            level = "error" if free < DISK_FULL * size else "warning"
            text = f"{100 * free / size:.1f} % of the disk of the log is free."
            found.append(Problem(level, "The disk is nearly full", text, "log"))
        return found

    def _cluster_problems(self) -> list[Problem]:
        cluster = cluster_state(self.current)
        nodes = [] if cluster is None else cluster.nodes
        found = []
        if away := [one.node for one in nodes if one.state == "away"]:
            text = f"{', '.join(away)}: without a heartbeat for seconds. The cluster needs most of its nodes."
            found.append(Problem("warning", "Nodes of the cluster are away", text))
        if slow := [one for one in nodes if one.state != "away" and one.behind > NODE_BEHIND]:
            text = ", ".join(f"{one.node} by {one.behind:,} records" for one in slow)
            found.append(Problem("warning", "Nodes of the cluster are behind", f"{text}."))
        if unready := [f"{one.node}: {one.problem}" for one in nodes if one.state != "away" and one.problem]:
            found.append(Problem("warning", "Nodes of the cluster are not ready", f"{'; '.join(unready)}."))
        return found

    def _client_problems(self) -> list[Problem]:
        found = []
        if behind := self.number("subscriptions/behind/connected"):
            lag = self.number("subscriptions/lag/connected") or 0
            text = f"{behind:,} connected, the slowest by {lag:,} messages. They read the log to catch up."
            found.append(Problem("warning", "Subscribers are behind", text, "clients?sort=lag"))
        if absent := self.number("subscriptions/behind/absent"):
            lag = self.number("subscriptions/lag/absent") or 0
            text = f"Messages wait for {absent:,} subscriptions of disconnected clients, up to {lag:,} for one."
            found.append(Problem("note", "Absent subscribers have messages", text, "clients?sort=lag"))
        samples = self.samples
        if refused := sum(one.refused for one in samples):
            text = f"{refused:,} in the last 15 minutes. See the event lines of the broker for names and addresses."
            found.append(Problem("warning", "Logins were refused", text))
        if dropped := sum(one.dropped for one in samples):
            text = f"{dropped:,} packets in the last 15 minutes: {self._drop_reasons()}."
            found.append(Problem("warning", "Packets were dropped", text))
        if dropped := sum(one.messages_dropped for one in samples):
            text = f"{dropped:,} of QoS 0 in the last 15 minutes: subscribers are too slow, or publishers too fast."
            found.append(Problem("warning", "Messages were dropped", text, "clients"))
        last = samples[-1] if samples else None
        if last is not None and last.loss_percent is not None and last.loss_percent > 100 * LOSS_HIGH:
            text = f"{last.loss_percent:.1f} % of the packets to clients were lost and sent again."
            found.append(Problem("note", "The network loses packets", text, "clients"))
        return found

    def _drops(self) -> dict[str, int]:
        """Return the counts of dropped packets and datagrams by reason, without the harmless ones."""
        found = {}
        for name in self.current:
            reason = name.rpartition("/")[2].replace("_", " ")
            if name.startswith(DROPPED) and reason not in HARMLESS and (count := self.number(name)):
                found[reason] = count
        return found

    def _drop_reasons(self) -> str:
        largest = sorted(self._drops().items(), key=lambda item: -item[1])[:3]
        return ", ".join(f"{reason} ({count:,} since the start)" for reason, count in largest) or "no reason is known"


def _scaled(figure: int | None, divisor: float) -> float | None:
    return None if figure is None else figure / divisor


def summary(current: Mapping[str, str]) -> dict[str, int]:
    """Return the figures that pages show beside the charts."""
    found = {}
    for name in (
        "uptime_s", "clients/connected", "clients/sessions", "subscriptions", "topics", "retained", "messages/in",
        "messages/out", "jobs/waiting", "jobs/running", "tasks/leased", "workers", "log/first_offset",
        "log/next_offset", "log/size_bytes", "log/disk/free_bytes", "log/disk/size_bytes", "log/deleted",
    ):  # fmt: skip
        text = current.get(name, "")
        if text.isdigit():
            found[name] = int(text)
    return found


def cluster_state(current: Mapping[str, str]) -> ShownCluster | None:
    """Return the nodes of the broker's cluster, or None if it is alone."""
    if "cluster/name" not in current:
        return None
    prefix, suffix = "cluster/node/", "/state"
    names = [name[len(prefix) : -len(suffix)] for name in current if name.startswith(prefix) and name.endswith(suffix)]

    def number(name: str) -> int:
        text = current.get(name, "")
        return int(text) if text.isdigit() else 0

    nodes = [
        ShownNode(
            name, current[f"{prefix}{name}/state"], current.get(f"{prefix}{name}/address", ""),
            number(f"{prefix}{name}/behind"), current.get(f"{prefix}{name}/problem", ""),
        )
        for name in sorted(names)[:MAX_NODES]
    ]  # fmt: skip
    return ShownCluster(current["cluster/name"], current.get("cluster/node", ""), number("cluster/epoch"), nodes)
