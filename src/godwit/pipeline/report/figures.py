"""What the report tells, read from the tables: plain values, few enough to be drawn, whatever the size of the lake."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from godwit.pipeline.datasets import anomalies, bronze, devices, job_statistics, readings, traffic
from godwit.pipeline.lake import Lake
from godwit.pipeline.report.scans import Totals, binned, greatest, greatest_of, micros

MAX_DEVICES: Final = 40
MAX_PUBLISHERS: Final = 12
MAX_KINDS: Final = 24
MAX_ALARMS: Final = 2_000
MAX_EXAMPLES: Final = 3
"""Of each reason for quarantine."""
BINS: Final = 160
"""Of the time in which something was received."""
MAX_MESSAGES_BINNED: Final = 20_000_000
"""Beyond it the pauses are told, but not drawn: that would take reading all of bronze."""
MIN_SILENCE_S: Final = 10.0


@dataclass(frozen=True)
class Span:
    """From the first message received to the last."""

    begin_us: int
    end_us: int

    @property
    def bin_us(self) -> int:
        return max((self.end_us - self.begin_us) // BINS + 1, 1)

    @property
    def length_s(self) -> float:
        return (self.end_us - self.begin_us) / 1e6


@dataclass(frozen=True)
class Alarm:
    broker: str
    topic: str
    quantity: str
    at_us: int
    value: float
    expected: float | None
    score: float | None
    reason: str


@dataclass(frozen=True)
class Alarms:
    count: int
    newest: tuple[Alarm, ...]
    by_series: dict[tuple[str, str, str], int]


@dataclass(frozen=True)
class Device:
    broker: str
    topic: str
    publisher: str
    messages: int
    first_us: int
    last_us: int
    interval_s: float | None
    longest_gap_s: float
    gaps: int
    is_silent: bool
    bins: dict[int, int] = field(default_factory=dict)
    """Messages in each bin of the span that has some; none at all if they were not looked for."""


@dataclass(frozen=True)
class Devices:
    count: int
    silent: int
    with_gaps: int
    shown: tuple[Device, ...]


@dataclass(frozen=True)
class Publisher:
    broker: str
    name: str
    messages: int
    payload_bytes: int
    topics: int


@dataclass(frozen=True)
class Traffic:
    brokers: tuple[str, ...]
    publishers: int
    messages: int
    payload_bytes: int
    span: Span | None
    shown: tuple[Publisher, ...]


@dataclass(frozen=True)
class Kind:
    """Of jobs, all hours together. The columns are those of gold/job_statistics."""

    name: str
    counts: dict[str, int]
    run_s: tuple[float | None, float | None, float | None]
    """Mean, the worst hour's 95th percentile, longest."""
    wait_s: tuple[float | None, float | None, float | None]


@dataclass(frozen=True)
class Example:
    topic: str
    at_us: int
    detail: str
    payload: bytes


@dataclass(frozen=True)
class Reason:
    """Why messages are in quarantine."""

    name: str
    count: int
    examples: tuple[Example, ...]


def read_traffic(lake: Lake) -> Traffic:
    by_publisher = Totals(
        ("broker", "publisher"),
        {
            "messages": "sum",
            "payload_bytes": "sum",
            "topics": "max",
            "first_received": "min",
            "last_received": "max",
        },
    )
    columns = ["broker", "publisher", "messages", "payload_bytes", "topics", "first_received", "last_received"]
    for rows in lake.table(traffic.SPEC).scan(columns):
        by_publisher.add(rows)
    table = by_publisher.table()
    if table is None:
        return Traffic((), 0, 0, 0, None, ())
    shown = greatest(table, "messages", MAX_PUBLISHERS).to_pylist()
    return Traffic(
        brokers=tuple(sorted(pc.unique(table.column("broker")).to_pylist())),
        publishers=table.num_rows,
        messages=pc.sum(table.column("messages")).as_py(),
        payload_bytes=pc.sum(table.column("payload_bytes")).as_py(),
        span=Span(
            pc.min(micros(table.column("first_received"))).as_py(),
            pc.max(micros(table.column("last_received"))).as_py(),
        ),
        shown=tuple(
            Publisher(row["broker"], row["publisher"] or "", row["messages"], row["payload_bytes"], row["topics"])
            for row in shown
        ),
    )


def read_devices(lake: Lake) -> Devices:
    columns = devices.SPEC.schema.names
    table = lake.table(devices.SPEC).arrow(columns)
    if not table.num_rows:
        return Devices(0, 0, 0, ())
    table = table.append_column("last_us", micros(table.column("last_received")))
    newest = table.group_by("broker").aggregate([("last_us", "max")])
    table = table.join(newest, "broker", join_type="inner")
    quiet_s = pc.divide(pc.cast(pc.subtract(table.column("last_us_max"), table.column("last_us")), pa.float64()), 1e6)
    allowed_s = pc.max_element_wise(
        pc.multiply(pc.fill_null(table.column("interval_s"), 0.0), float(devices.GAP_FACTOR)), MIN_SILENCE_S
    )
    table = table.append_column("is_silent", pc.greater(quiet_s, allowed_s))
    order = [("is_silent", "descending"), ("gaps", "descending"), ("messages", "descending"), ("topic", "ascending")]
    shown = table.take(pc.select_k_unstable(table, k=min(MAX_DEVICES, table.num_rows), sort_keys=order))
    return Devices(
        count=table.num_rows,
        silent=pc.sum(table.column("is_silent")).as_py() or 0,
        with_gaps=pc.sum(pc.greater(table.column("gaps"), 0)).as_py() or 0,
        shown=tuple(
            Device(
                row["broker"],
                row["topic"],
                row["publisher"] or "",
                row["messages"],
                int(row["first_received"].timestamp() * 1e6),
                row["last_us"],
                row["interval_s"],
                row["longest_gap_s"],
                row["gaps"],
                row["is_silent"],
            )
            for row in shown.to_pylist()
        ),
    )


def read_activity(lake: Lake, span: Span, shown: tuple[Device, ...]) -> list[int]:
    """Messages in each bin of the span; the bins of the devices are filled on the way. Empty: too many to look at."""
    table = lake.table(bronze.SPEC)
    if table.rows > MAX_MESSAGES_BINNED:
        return []
    names = pa.array([device.topic for device in shown], pa.string())
    everything, by_topic = Totals(("bin",), {"n": "sum"}), Totals(("broker", "topic", "bin"), {"n": "sum"})
    for rows in table.scan(["broker", "topic", "received"]):
        bins = binned(rows.column("received"), span.begin_us, span.bin_us)
        rows = rows.append_column("bin", bins).append_column("n", _ones(rows))
        everything.add(rows.select(["bin", "n"]))
        by_topic.add(rows.filter(pc.is_in(rows.column("topic"), names)).select(["broker", "topic", "bin", "n"]))
    found = {(device.broker, device.topic): device.bins for device in shown}
    for row in by_topic.rows():
        bins_of = found.get((str(row["broker"]), str(row["topic"])))
        if bins_of is not None:
            bins_of[_whole(row["bin"])] = _whole(row["n"])
    counts = [0] * BINS
    for row in everything.rows():
        if 0 <= (place := _whole(row["bin"])) < BINS:  # a batch may have come between two looks
            counts[place] = _whole(row["n"])
    return counts


def read_alarms(lake: Lake) -> Alarms:
    keys = ["broker", "topic", "quantity"]
    columns = [*keys, "event_time", "value", "expected", "score", "reason"]
    table = lake.table(anomalies.SPEC)
    by_series = Totals(keys, {"n": "sum"})
    count = 0
    for rows in table.scan(keys):
        count += rows.num_rows
        by_series.add(rows.append_column("n", _ones(rows)))
    newest = greatest_of(table.scan(columns), "event_time", MAX_ALARMS)
    return Alarms(
        count,
        tuple(_alarm(row) for row in (newest.to_pylist() if newest is not None else [])),
        {(str(row["broker"]), str(row["topic"]), str(row["quantity"])): _whole(row["n"]) for row in by_series.rows()},
    )


def _alarm(row: dict[str, Any]) -> Alarm:
    return Alarm(
        row["broker"],
        row["topic"],
        row["quantity"],
        int(row["event_time"].timestamp() * 1e6),
        row["value"],
        row["expected"],
        row["score"],
        row["reason"] or "",
    )


def read_jobs(lake: Lake) -> list[Kind]:
    counted = list(job_statistics.COUNTED)
    longest = ["run_s_p95", "run_s_max", "wait_s_p95", "wait_s_max"]
    summed = {"run_s": "tasks_finished", "wait_s": "tasks_leased"}
    ways = dict.fromkeys([*counted, *summed], "sum") | dict.fromkeys(longest, "max")
    by_kind = Totals(("kind",), ways)
    for rows in lake.table(job_statistics.SPEC).scan(["kind", *counted, *longest, "run_s_mean", "wait_s_mean"]):
        for name, count in summed.items():
            rows = rows.append_column(name, pc.multiply(rows.column(f"{name}_mean"), rows.column(count)))
        by_kind.add(rows.select(["kind", *ways]))
    kinds = []
    for row in by_kind.rows("jobs_submitted", MAX_KINDS):
        found: dict[str, Any] = dict(row)
        means = {
            name: found[name] / found[count] if found[name] and found[count] else None for name, count in summed.items()
        }
        kinds.append(
            Kind(
                found["kind"],
                {name: found[name] for name in counted},
                (means["run_s"], found["run_s_p95"], found["run_s_max"]),
                (means["wait_s"], found["wait_s_p95"], found["wait_s_max"]),
            )
        )
    return kinds


def read_quarantine(lake: Lake) -> list[Reason]:
    """By how many there are; with the newest of each."""
    table = lake.table(readings.QUARANTINE)
    by_reason = Totals(("reason",), {"n": "sum"})
    newest: dict[str, pa.Table] = {}
    for rows in table.scan(["reason", "broker", "offset", "received"]):
        by_reason.add(rows.select(["reason"]).append_column("n", _ones(rows)))
        for reason in pc.unique(rows.column("reason")).to_pylist():
            mine = rows.filter(pc.equal(rows.column("reason"), reason))
            together = pa.concat_tables([newest[reason], mine]) if reason in newest else mine
            newest[reason] = greatest(together, "received", MAX_EXAMPLES)
    wanted = {(row["broker"], row["offset"]) for rows in newest.values() for row in rows.to_pylist()}
    examples: dict[str, list[Example]] = defaultdict(list)
    offsets = pc.field("offset").isin([offset for _, offset in wanted])
    for rows in table.scan(["reason", "broker", "offset", "topic", "received", "detail", "payload"], offsets):
        for row in rows.to_pylist():
            if (row["broker"], row["offset"]) in wanted:
                at_us = int(row["received"].timestamp() * 1e6)
                examples[row["reason"]].append(Example(row["topic"], at_us, row["detail"] or "", row["payload"] or b""))
    return [
        Reason(
            str(row["reason"]),
            _whole(row["n"]),
            tuple(sorted(examples[str(row["reason"])], key=lambda one: -one.at_us)),
        )
        for row in by_reason.rows("n")
    ]


def _ones(rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)


def _whole(number: object) -> int:
    assert isinstance(number, int)
    return number
