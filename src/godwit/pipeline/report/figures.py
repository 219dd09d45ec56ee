"""The data of the report, read from the tables: a bounded number of plain values, whatever the size of the lake.

Tables are scanned in batches, and aggregated or reduced on the way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from godwit.pipeline.datasets import anomalies, bronze, devices, job_statistics, readings, traffic
from godwit.pipeline.lake import Lake

MAX_DEVICES: Final = 40
MAX_PUBLISHERS: Final = 12
MAX_KINDS: Final = 24
MAX_ALARMS: Final = 2_000
SAME_EVENT_S: Final = 60
"""Alarms of one series and reason with shorter pauses are one event. Before Godwit 0.6 an event had many rows."""
BROKER_PREFIX: Final = "$"
"""Of the names of topics and publishers of the broker itself."""
MAX_EXAMPLES: Final = 3
"""Messages shown for each reason of quarantine."""
BINS: Final = 160
"""Number of bins between the first and the last message received."""
MAX_MESSAGES_BINNED: Final = 20_000_000
"""With more messages, gaps are counted but not drawn, because that would need a scan of all of bronze."""
MIN_SILENCE_S: Final = 10.0
FOLD_ROWS: Final = 200_000
"""Rows of partial aggregates that are held before they are combined."""


@dataclass(frozen=True)
class TimeRange:
    """The time from the first message received to the last."""

    begin_us: int
    end_us: int

    @property
    def bin_us(self) -> int:
        """The width of a bin."""
        return max((self.end_us - self.begin_us) // BINS + 1, 1)

    @property
    def length_s(self) -> float:
        """The length in seconds."""
        return (self.end_us - self.begin_us) / 1e6


@dataclass(frozen=True)
class AlarmRow:
    """An event: an alarm, or several that are repetitions of it."""

    broker: str
    topic: str
    quantity: str
    at_us: int
    value: float
    expected: float | None
    score: float | None
    reason: str
    peak_value: float | None = None
    end_us: int | None = None
    """Time of the last anomalous reading; None while the event lasts, and in rows that do not tell."""
    is_lasting: bool = False
    alarms: int = 1


@dataclass(frozen=True)
class AlarmSummary:
    """Events with alarms, in total and by series (broker, topic, quantity)."""

    count: int
    newest: tuple[AlarmRow, ...]
    by_series: dict[tuple[str, str, str], int]


@dataclass(frozen=True)
class DeviceRow:
    """A row of gold/devices."""

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
    """Messages by bin, without empty bins. `read_activity` fills it."""


@dataclass(frozen=True)
class DeviceSummary:
    """All devices, with the most important ones."""

    count: int
    silent: int
    with_gaps: int
    shown: tuple[DeviceRow, ...]


@dataclass(frozen=True)
class PublisherTraffic:
    """The traffic of one publisher."""

    broker: str
    name: str
    messages: int
    payload_bytes: int
    topics: int


@dataclass(frozen=True)
class TrafficSummary:
    """The traffic of all publishers except the broker itself."""

    brokers: tuple[str, ...]
    publishers: int
    messages: int
    own_messages: int
    """Messages of the broker itself: events of jobs and its statistics."""
    payload_bytes: int
    span: TimeRange | None
    shown: tuple[PublisherTraffic, ...]


@dataclass(frozen=True)
class JobKind:
    """The statistics of one kind of job over all hours. The counts are columns of gold/job_statistics."""

    name: str
    counts: dict[str, int]
    run_s: tuple[float | None, float | None, float | None]
    """Mean, the highest 95th percentile of an hour, maximum."""
    wait_s: tuple[float | None, float | None, float | None]


@dataclass(frozen=True)
class QuarantineExample:
    """A message in quarantine."""

    topic: str
    at_us: int
    detail: str
    payload: bytes


@dataclass(frozen=True)
class QuarantineReason:
    """A reason of quarantine."""

    name: str
    count: int
    examples: tuple[QuarantineExample, ...]


# -- reading ----------------------------------------------------------------------------------------------------------


def read_traffic(lake: Lake) -> TrafficSummary:
    """Return messages and bytes by publisher, with the MAX_PUBLISHERS largest. The broker's own messages are apart."""
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
        return TrafficSummary((), 0, 0, 0, 0, None, ())
    is_own = pc.fill_null(pc.starts_with(table.column("publisher"), BROKER_PREFIX), False)
    clients = table.filter(pc.invert(is_own))
    shown = greatest(clients, "messages", MAX_PUBLISHERS).to_pylist()
    return TrafficSummary(
        brokers=tuple(sorted(pc.unique(table.column("broker")).to_pylist())),
        publishers=clients.num_rows,
        messages=pc.sum(clients.column("messages")).as_py() or 0,
        own_messages=pc.sum(table.filter(is_own).column("messages")).as_py() or 0,
        payload_bytes=pc.sum(clients.column("payload_bytes")).as_py() or 0,
        span=TimeRange(
            pc.min(micros(table.column("first_received"))).as_py(),
            pc.max(micros(table.column("last_received"))).as_py(),
        ),
        shown=tuple(
            PublisherTraffic(
                row["broker"], row["publisher"] or "", row["messages"], row["payload_bytes"], row["topics"]
            )
            for row in shown
        ),
    )


def read_devices(lake: Lake) -> DeviceSummary:
    """Return the number of devices, and the MAX_DEVICES most important: silent ones first, then those with gaps."""
    columns = devices.SPEC.schema.names
    table = lake.table(devices.SPEC).arrow(columns)
    table = table.filter(pc.invert(pc.starts_with(table.column("topic"), BROKER_PREFIX)))
    if not table.num_rows:
        return DeviceSummary(0, 0, 0, ())
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
    return DeviceSummary(
        count=table.num_rows,
        silent=pc.sum(table.column("is_silent")).as_py() or 0,
        with_gaps=pc.sum(pc.greater(table.column("gaps"), 0)).as_py() or 0,
        shown=tuple(
            DeviceRow(
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


def read_activity(lake: Lake, span: TimeRange, shown: tuple[DeviceRow, ...]) -> list[int]:
    """Return the number of messages in each bin, and fill the bins of the devices.

    The list is empty if bronze has more than MAX_MESSAGES_BINNED rows.
    """
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
        if 0 <= (number := _whole(row["bin"])) < BINS:  # bronze may have grown since the range was read
            counts[number] = _whole(row["n"])
    return counts


def read_alarms(lake: Lake) -> AlarmSummary:
    """Return the number of events in total and of alarms by series, and the events of the MAX_ALARMS newest alarms."""
    keys = ["broker", "topic", "quantity"]
    columns = [*keys, "event_time", "value", "expected", "score", "reason", "state", "peak_value", "end_time"]
    table = lake.table(anomalies.SPEC)
    by_series = Totals(keys, {"n": "sum"})
    count = 0
    for rows in named_quantities(table.scan([*keys, "name"])):
        count += rows.num_rows
        by_series.add(rows.append_column("n", _ones(rows)))
    newest = greatest_of(named_quantities(table.scan([*columns, "name"])), "event_time", MAX_ALARMS)
    alarms = [_alarm(row) for row in (newest.to_pylist() if newest is not None else [])]
    events = joined_alarms(alarms)
    return AlarmSummary(
        count - len(alarms) + len(events),
        tuple(events),
        {(str(row["broker"]), str(row["topic"]), str(row["quantity"])): _whole(row["n"]) for row in by_series.rows()},
    )


def joined_alarms(alarms: Iterable[AlarmRow]) -> list[AlarmRow]:
    """Return events, the newest first: alarms of one series and reason with pauses up to SAME_EVENT_S are joined."""
    events: list[AlarmRow] = []
    by_series = sorted(alarms, key=lambda one: (one.broker, one.topic, one.quantity, one.reason, one.at_us))
    for alarm in by_series:
        before = events[-1] if events else None
        key = (alarm.broker, alarm.topic, alarm.quantity, alarm.reason)
        if (
            before is not None
            and key == (before.broker, before.topic, before.quantity, before.reason)
            and alarm.at_us - (before.end_us or before.at_us) <= SAME_EVENT_S * 1_000_000
        ):
            worse = max((before, alarm), key=lambda one: one.score or 0.0)
            events[-1] = replace(
                before,
                score=worse.score,
                peak_value=worse.value if worse.peak_value is None else worse.peak_value,
                end_us=None if alarm.is_lasting else max(alarm.end_us or alarm.at_us, before.end_us or 0),
                is_lasting=alarm.is_lasting,
                alarms=before.alarms + alarm.alarms,
            )
        else:
            events.append(alarm)
    return sorted(events, key=lambda one: -one.at_us)


def named_quantities(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables whose quantities include their names: sensors of one message are series of their own."""
    for rows in tables:
        quantity, name = rows.column("quantity"), pc.fill_null(rows.column("name"), "")
        full = pc.if_else(pc.equal(name, ""), quantity, pc.binary_join_element_wise(quantity, name, " "))
        yield rows.set_column(rows.schema.get_field_index("quantity"), "quantity", full).drop_columns(["name"])


def _alarm(row: dict[str, Any]) -> AlarmRow:
    return AlarmRow(
        row["broker"],
        row["topic"],
        row["quantity"],
        int(row["event_time"].timestamp() * 1e6),
        row["value"],
        row["expected"],
        row["score"],
        row["reason"] or "",
        row["peak_value"],
        None if row["end_time"] is None else int(row["end_time"].timestamp() * 1e6),
        row["state"] in ("begin", "worse"),
    )


def read_jobs(lake: Lake) -> list[JobKind]:
    """Return the MAX_KINDS kinds with the most jobs."""
    counted = [one.name for one in job_statistics.COUNTS]
    longest = ["run_s_p95", "run_s_max", "wait_s_p95", "wait_s_max"]
    summed = {"run_s": "tasks_finished", "wait_s": "tasks_leased"}
    functions = dict.fromkeys([*counted, *summed], "sum") | dict.fromkeys(longest, "max")
    by_kind = Totals(("kind",), functions)
    for rows in lake.table(job_statistics.SPEC).scan(["kind", *counted, *longest, "run_s_mean", "wait_s_mean"]):
        for name, count in summed.items():
            rows = rows.append_column(name, pc.multiply(rows.column(f"{name}_mean"), rows.column(count)))
        by_kind.add(rows.select(["kind", *functions]))
    kinds = []
    for row in by_kind.rows("jobs_submitted", MAX_KINDS):
        found: dict[str, Any] = dict(row)
        means = {
            name: found[name] / found[count] if found[name] and found[count] else None for name, count in summed.items()
        }
        kinds.append(
            JobKind(
                found["kind"],
                {name: found[name] for name in counted},
                (means["run_s"], found["run_s_p95"], found["run_s_max"]),
                (means["wait_s"], found["wait_s_p95"], found["wait_s_max"]),
            )
        )
    return kinds


def read_quarantine(lake: Lake) -> list[QuarantineReason]:
    """Return the reasons of quarantine, the most frequent first, with the newest messages of each."""
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
    examples: dict[str, list[QuarantineExample]] = defaultdict(list)
    offsets = pc.field("offset").isin([offset for _, offset in wanted])
    for rows in table.scan(["reason", "broker", "offset", "topic", "received", "detail", "payload"], offsets):
        for row in rows.to_pylist():
            if (row["broker"], row["offset"]) in wanted:
                at_us = int(row["received"].timestamp() * 1e6)
                examples[row["reason"]].append(
                    QuarantineExample(row["topic"], at_us, row["detail"] or "", row["payload"] or b"")
                )
    return [
        QuarantineReason(
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


# -- scans ------------------------------------------------------------------------------------------------------------


class Totals:
    """Aggregates rows by key. `functions` names the function (sum, min, max) of each other column."""

    def __init__(self, keys: Sequence[str], functions: Mapping[str, str]) -> None:
        self._keys = list(keys)
        self._functions = dict(functions)
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        if rows.num_rows == 0:
            return
        self._parts.append(self._folded(rows))
        self._rows += self._parts[-1].num_rows
        if self._rows > FOLD_ROWS and len(self._parts) > 1:
            self._parts = [self._folded(pa.concat_tables(self._parts))]
            self._rows = self._parts[0].num_rows

    def table(self) -> pa.Table | None:
        """Return the aggregates, or None if there were no rows."""
        return self._folded(pa.concat_tables(self._parts)) if self._parts else None

    def rows(self, order: str | None = None, limit: int | None = None) -> list[dict[str, object]]:
        """Return the aggregates, or the `limit` greatest by the column `order`, the greatest first."""
        table = self.table()
        if table is None:
            return []
        if order is not None:
            table = greatest(table, order, limit if limit is not None else table.num_rows)
        return table.to_pylist()  # type: ignore[no-any-return]

    def _folded(self, rows: pa.Table) -> pa.Table:
        found = rows.group_by(self._keys, use_threads=False).aggregate(list(self._functions.items()))
        joined = [found.column(f"{name}_{function}") for name, function in self._functions.items()]
        return pa.table([*[found.column(key) for key in self._keys], *joined], names=[*self._keys, *self._functions])


def greatest(table: pa.Table, column: str, count: int) -> pa.Table:
    """Return the `count` rows with the greatest values, the greatest first."""
    if not table.num_rows:
        return table
    return table.take(pc.select_k_unstable(table, k=min(count, table.num_rows), sort_keys=[(column, "descending")]))


def greatest_of(batches: Iterable[pa.Table], column: str, count: int) -> pa.Table | None:
    """Do the same for a table in batches. Return None if there were no rows."""
    best: pa.Table | None = None
    for batch in batches:
        if batch.num_rows:
            together = batch if best is None else pa.concat_tables([best, batch])
            best = greatest(together, column, count)
    return best


def micros(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as microseconds since 1970."""
    return times.cast(pa.int64())


def binned(times: pa.ChunkedArray, begin_us: int, width_us: int) -> pa.ChunkedArray:
    """Return the number of the bin of each time, for bins of `width_us` from `begin_us`."""
    return pc.divide(pc.subtract(micros(times), begin_us), width_us)
