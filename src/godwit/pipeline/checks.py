"""Checks that tables are consistent: each row by itself, rows among each other, and tables among each other.

A message that was lost or written twice is found here. Between batches, once gold is up to date, all checks hold;
during a batch some tables have its messages and others do not.

The checks run on DuckDB. If all of them hold, the files of the tables are recorded (_checks in the lake), and the next
check examines the messages of files that were added or removed since, and of gold the hours of these messages and of
changed files. Every row of bronze and silver belongs to one message, so messages of unchanged files need no second
look. (gold/devices has one row for all time: it is compared with the topics of all messages.) `is_complete` examines
everything, which finds files that were damaged later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa
from pyarrow import fs

from godwit.pipeline.checkpoints import TABLES, check_no_partial_batch, read_checkpoint
from godwit.pipeline.datasets import anomalies, bronze, definitions, readings
from godwit.pipeline.datasets.catalog import ALL, GOLD_TABLES, view_name
from godwit.pipeline.datasets.definitions import DefinitionStore
from godwit.pipeline.datasets.job_statistics import TOPICS
from godwit.pipeline.datasets.windows import LENGTHS_S
from godwit.pipeline.decoders.base import Definitions
from godwit.pipeline.decoders.selection import DecoderRule, DecoderSet, decoder_set
from godwit.pipeline.files import file_system
from godwit.pipeline.gold import Gold, complete_since
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.sql import interruptible, open_database, quote_offset, short_errors

STATE: Final = "_checks/state.json"
BY_MESSAGE: Final = (bronze.SPEC, readings.SPEC, readings.QUARANTINE, definitions.SPEC, anomalies.SPEC)
"""Tables whose rows have the offset of one message."""
MAX_RANGES: Final = 32
"""More ranges of offsets are joined, which examines more messages than needed."""
BATCH_ROWS: Final = 10_000
"""Messages that are decoded at a time."""
HOUR: Final = timedelta(hours=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Files: TypeAlias = dict[str, list[list[Any]]]
"""By table: the path of each file, and its first and last offset, or time for gold; null if they are unknown."""
Ranges: TypeAlias = list[tuple[int, int]]
"""First and last offsets, in order."""


def _difference(counted: str, expected: str) -> str:
    """Return SQL for the sum of the differences of two queries, group by group. `n` is the count in both."""
    return (
        f"WITH counted AS ({counted}), expected AS ({expected}) "
        "SELECT coalesce(sum(abs(coalesce(counted.n, 0) - coalesce(expected.n, 0))), 0) "
        f"FROM counted FULL OUTER JOIN expected USING ({', '.join(_group_columns(counted))})"
    )


def _group_columns(counted: str) -> list[str]:
    """Return the columns of a query except the last, which is the count."""
    return [name.strip() for name in counted.removeprefix("SELECT ").partition(" FROM ")[0].split(", ")[:-1]]


_UNREAD: Final = """
    SELECT * FROM (SELECT * FROM new_bronze_messages WHERE received >= {complete}) ANTI JOIN (
        SELECT broker, "offset" FROM new_silver_readings UNION SELECT broker, "offset" FROM new_silver_quarantine
    ) USING (broker, "offset")"""
"""Messages that are in neither table: definitions and statuses, which have no readings."""
ALL_READ: Final = "every message with readings or an error is in silver or in quarantine"
BETWEEN_TABLES: Final = {
    # (table, condition): SQL for the number of rows that violate it. The views named new_* have the rows to examine,
    # {events} and {hours} are conditions on times, and {complete} is the time from which on no row has expired.
    ("silver/readings", "every reading is of a message in bronze"): """
        SELECT count(*) FROM (SELECT * FROM new_silver_readings WHERE received >= {complete})
        ANTI JOIN new_bronze_messages USING (broker, "offset")""",
    ("silver/quarantine", "no message in it is in silver, too"): """
        SELECT count(*) FROM new_silver_quarantine SEMI JOIN new_silver_readings USING (broker, "offset")""",
    ("gold/windows", "windows of each length count every reading once"): _difference(
        "SELECT broker, topic, quantity, name, window_s, sum(count) AS n FROM "
        "(SELECT * REPLACE (coalesce(name, '') AS name) FROM gold_windows) "
        "WHERE {events:window_start} AND window_start >= {complete} GROUP BY ALL",
        "SELECT broker, topic, quantity, coalesce(name, '') AS name, window_s, count(*) AS n FROM silver_readings "
        f"CROSS JOIN (SELECT unnest({list(LENGTHS_S)}) AS window_s) "
        "WHERE {events:event_time} AND event_time >= {complete} GROUP BY ALL",
    ),
    ("gold/devices", "devices count every message once, but the broker's own"): _difference(
        "SELECT broker, topic, sum(messages) AS n FROM gold_devices WHERE first_received >= {complete} GROUP BY ALL",
        "SELECT broker, topic, count(*) AS n FROM bronze_messages "
        "ANTI JOIN (SELECT broker, topic FROM gold_devices WHERE first_received < {complete}) USING (broker, topic) "
        "WHERE NOT starts_with(topic, '$') AND received >= {complete} GROUP BY ALL",
    ),
    ("gold/traffic", "publishers count every message once, in its hour"): _difference(
        "SELECT broker, publisher, hour, sum(messages) AS n FROM gold_traffic "
        "WHERE {hours:hour} AND hour >= {complete} GROUP BY ALL",
        "SELECT broker, publisher, date_trunc('hour', received) AS hour, count(*) AS n FROM bronze_messages "
        "WHERE {hours:received} AND received >= {complete} GROUP BY ALL",
    ),
    ("gold/job_statistics", "every job submitted is counted once"): _difference(
        "SELECT broker, kind, sum(jobs_submitted) AS n FROM gold_job_statistics "
        "WHERE {hours:hour} AND hour >= {complete} GROUP BY ALL",
        f"SELECT broker, substring(topic, {len(TOPICS) + 1}) AS kind, "
        "count(*) FILTER (TRY(json_extract_string(decode(payload), '$.event')) = 'submitted') AS n "
        f"FROM bronze_messages WHERE starts_with(topic, '{TOPICS}') AND {{hours:received}} "
        "AND received >= {complete} GROUP BY ALL",
    ),
}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    table: str
    check: str
    wrong: int
    """Rows that violate the condition."""


def gold_is_behind(lake: Lake) -> bool:
    """Return whether gold has to be brought up to date, with Spark, before the checks can hold."""
    found = read_checkpoint(lake, TABLES)
    if found is None:
        return False
    sources = [lake.table(bronze.SPEC), lake.table(readings.SPEC)]
    known = Gold(lake).watermarks(found.offsets)
    return any(min(source.watermark(log) or 0 for source in sources) > known[log] for log in found.offsets)


def run_checks(lake: Lake, rules: tuple[DecoderRule, ...] = (), *, is_complete: bool = False) -> Iterator[CheckResult]:
    """Yield the result of each check: of new messages only unless `is_complete`. Record the state if all hold.

    `rules` are the configured decoders.

    The lake must be locked, and gold up to date. Raise PipelineError if a batch is incomplete.
    """
    check_no_partial_batch(lake)
    files = _files(lake)
    known = None if is_complete else _read_state(lake)
    ranges = None if known is None else changed_ranges(known, files)
    is_right = True
    with open_database(lake) as database:
        times = {} if known is None else _changed_times(known, files)
        check = _Checks(database, ranges, times, _complete_times(lake))
        for spec in ALL:
            for result in check.of_table(spec):
                is_right = is_right and not result.wrong
                yield result
            if spec is readings.SPEC:
                result = CheckResult(spec.name, ALL_READ, check.unread(_decoders(lake, rules)))
                is_right = is_right and not result.wrong
                yield result
    if is_right:
        _write_state(lake, files)


def _decoders(lake: Lake, rules: tuple[DecoderRule, ...]) -> DecoderSet:
    """Return the configured decoders, with all definitions of the lake."""
    found = decoder_set(rules)
    found.definitions = Definitions(DefinitionStore(lake, found).rows_since())
    return found


class _Checks:
    """The checks of one database."""

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        ranges: Ranges | None,
        times: Mapping[str, list[datetime] | None],
        complete: Mapping[str, datetime],
    ) -> None:
        """`ranges` are the offsets to examine, None for all; `times` those of changed files of gold by table.

        `complete` is by check the time from which on no row of the compared tables has expired.
        """
        self._database = database
        self._complete = complete
        self._rows("CREATE MACRO unix_micros(moment) AS epoch_us(moment)")  # the conditions are also valid in Spark
        where = "true" if ranges is None else range_condition(ranges)
        for spec in ALL:
            condition = where if spec in BY_MESSAGE else "true"
            self._rows(f"CREATE VIEW new_{view_name(spec)} AS SELECT * FROM {view_name(spec)} WHERE {condition}")
        self._bounds: dict[str, tuple[datetime, datetime] | None] = {}
        if ranges is None:
            return
        for name, view, column, tables in (
            ("events", "new_silver_readings", "event_time", ("gold/windows",)),
            ("hours", "new_bronze_messages", "received", ("gold/traffic", "gold/job_statistics")),
        ):
            changed = [times.get(table, []) for table in tables]
            if None not in changed:  # else some are unknown, and all hours are examined
                seen = [one for each in changed for one in each or ()] + self._times(view, column)
                self._bounds[name] = (_hour(min(seen)), _hour(max(seen)) + HOUR) if seen else None

    def unread(self, decoders: DecoderSet) -> int:
        """Return the number of messages that are in neither table of silver, and should be in one."""
        with short_errors():
            return interruptible(self._database, lambda: self._count_unread(decoders))

    def _count_unread(self, decoders: DecoderSet) -> int:
        found = 0
        sql = self._with_times(_UNREAD, ALL_READ)
        reader: pa.RecordBatchReader = self._database.sql(sql).to_arrow_reader(BATCH_ROWS)
        for batch in reader:
            parsed = readings.parse_batch(decoders, batch)
            found += len(set(zip(*[parsed.column(name).to_pylist() for name in ("broker", "offset")], strict=True)))
        return found

    def of_table(self, spec: TableSpec) -> Iterator[CheckResult]:
        counts = [f"count(*) FILTER (NOT coalesce({condition}, false))" for condition in spec.checks.values()]
        (found,) = self._rows(quote_offset(f"SELECT {', '.join(counts)} FROM new_{view_name(spec)}"))
        for check, wrong in zip(spec.checks, found, strict=True):
            yield CheckResult(spec.name, check, int(wrong))
        keys = ", ".join(f'"{key}"' for key in spec.keys)
        ((doubled,),) = self._rows(
            f"SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM new_{view_name(spec)} "
            f"GROUP BY {keys} HAVING count(*) > 1)"
        )
        yield CheckResult(spec.name, f"no two rows have the same {', '.join(spec.keys)}", int(doubled))
        for (table, check), sql in BETWEEN_TABLES.items():
            if table == spec.name:
                ((wrong,),) = self._rows(self._with_times(sql, check))
                yield CheckResult(table, check, int(wrong))

    def _with_times(self, sql: str, check: str) -> str:
        """Replace {events:COLUMN} and {hours:COLUMN} by conditions, and {complete} by a time."""
        complete = self._complete.get(check)
        sql = sql.replace("{complete}", f"TIMESTAMPTZ '{'-infinity' if complete is None else complete.isoformat()}'")
        for name in ("events", "hours"):
            while f"{{{name}:" in sql:
                before, _, rest = sql.partition(f"{{{name}:")
                column, _, after = rest.partition("}")
                sql = f"{before}{self._time_condition(name, column)}{after}"
        return sql

    def _time_condition(self, name: str, column: str) -> str:
        if name not in self._bounds:
            return "true"
        bounds = self._bounds[name]
        if bounds is None:
            return "false"
        first, last = bounds
        return f"({column} >= TIMESTAMPTZ '{first.isoformat()}' AND {column} < TIMESTAMPTZ '{last.isoformat()}')"

    def _times(self, view: str, column: str) -> list[datetime]:
        """Return the first and the last time of the rows to examine."""
        ((first, last),) = self._rows(f"SELECT epoch_us(min({column})), epoch_us(max({column})) FROM {view}")
        return [] if first is None else [EPOCH + timedelta(microseconds=one) for one in (first, last)]

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        with short_errors():
            return interruptible(self._database, lambda: self._database.execute(sql).fetchall())


def _complete_times(lake: Lake) -> dict[str, datetime]:
    """Return, by check, the time from which on no row of the compared tables has expired."""
    checks = dict(BETWEEN_TABLES.keys())
    found = {checks[gold.spec.name]: complete_since(lake, gold) for gold in GOLD_TABLES}
    found[checks[readings.SPEC.name]] = lake.table(bronze.SPEC).expired_before
    expired = [lake.table(spec).expired_before for spec in (readings.SPEC, readings.QUARANTINE)]
    found[ALL_READ] = max((one for one in expired if one is not None), default=None)
    return {check: at for check, at in found.items() if at is not None}


# -- the state of the last check ---------------------------------------------------------------------------------------


def changed_ranges(known: Mapping[str, list[list[Any]]], files: Mapping[str, list[list[Any]]]) -> Ranges | None:
    """Return the offsets of all files that are in one of two states only; None if some are unknown."""
    found: list[tuple[int, int]] = []
    for spec in BY_MESSAGE:
        for _, first, last in _changed(known, files, spec.name):
            if first is None or last is None:
                return None
            found.append((first, last))
    merged: Ranges = []
    for first, last in sorted(found):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged if len(merged) <= MAX_RANGES else [(merged[0][0], merged[-1][1])]


def _changed(known: Mapping[str, list[list[Any]]], files: Mapping[str, list[list[Any]]], name: str) -> set[Any]:
    """Return the files of a table that are in one of two states only."""
    return {tuple(one) for one in known.get(name, [])} ^ {tuple(one) for one in files.get(name, [])}


def _changed_times(known: Files, files: Files) -> dict[str, list[datetime] | None]:
    """Return first and last times of the changed files of each gold table; None if some are unknown."""
    found: dict[str, list[datetime] | None] = {}
    for spec in ALL:
        if spec.time is not None:
            texts = [text for _, *pair in _changed(known, files, spec.name) for text in pair]
            found[spec.name] = None if None in texts else [datetime.fromisoformat(text) for text in texts]
    return found


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def range_condition(ranges: Ranges) -> str:
    """Return the SQL condition that an offset is in one of the ranges."""
    return " OR ".join(f'"offset" BETWEEN {first} AND {last}' for first, last in ranges) or "false"


def _files(lake: Lake) -> Files:
    found: Files = {}
    for spec in ALL:
        column = "offset" if spec in BY_MESSAGE else spec.time
        if column is not None:
            delta = lake.table(spec).snapshot()
            added = [] if delta is None else pa.table(delta.get_add_actions(flatten=True)).to_pylist()
            found[spec.name] = [
                [one["path"], *[_plain(one.get(f"{bound}.{column}")) for bound in ("min", "max")]] for one in added
            ]
    return found


def _plain(bound: Any) -> Any:
    return bound.isoformat() if isinstance(bound, datetime) else bound


def _conditions() -> str:
    """Return a digest of all conditions: a state of others is not used."""
    texts = [f"{spec.name} {name} {sql}" for spec in ALL for name, sql in spec.checks.items()]
    return hashlib.sha256("\n".join([*texts, *BETWEEN_TABLES.values()]).encode()).hexdigest()


def _read_state(lake: Lake) -> Files | None:
    system, path = file_system(f"{lake.address}/{STATE}")
    try:
        with system.open_input_file(path) as file:
            state = json.loads(file.read())
        return state["files"] if state["conditions"] == _conditions() else None
    except (OSError, ValueError, LookupError, TypeError):  # none yet, or damaged: check everything
        return None


def _write_state(lake: Lake, files: Files) -> None:
    system, path = file_system(f"{lake.address}/{STATE}")
    data = json.dumps({"conditions": _conditions(), "files": files}).encode()
    if not isinstance(system, fs.LocalFileSystem):
        with system.open_output_stream(path) as file:  # visible when it is complete
            file.write(data)
        return
    system.create_dir(path.rpartition("/")[0])
    with system.open_output_stream(f"{path}.new") as file:
        file.write(data)
    system.move(f"{path}.new", path)
