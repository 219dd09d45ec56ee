"""Runs the detectors behind silver: new readings update the state of their series, and alarms go to gold/anomalies.

A series is a quantity of a topic of a broker. Series are divided by a hash into PARTS parts, and the states of a part
are one file. A step takes new rows of silver; each task reads the columns that it needs, keeps the series of its parts,
processes their readings in the order of time, and writes new files of states. Then, in this order:

1. the driver writes a manifest with the number of the step, the files of states, and the alarms;
2. one transaction of gold/anomalies adds or replaces the events, and sets watermarks for the number and the offsets;
3. the alarms are published with the number of the step, which a broker accepts once.

States, alarms and offsets therefore change together: the transaction decides which manifest counts. After a crash
before it, the step is repeated from the last states. After a crash behind it, the alarms in the manifest are published
again.

The functions for executors use numpy, pyarrow and the detectors only.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs, parquet
from pyspark.sql import SparkSession

from godwit.pipeline.checkpoints import ANOMALIES, TABLES, checkpoint_address, read_checkpoint, write_checkpoint
from godwit.pipeline.datasets import anomalies, readings
from godwit.pipeline.datasets.anomalies import AlertPublisher, alarm_row, newest_rows
from godwit.pipeline.detector import GREATEST
from godwit.pipeline.detector_bank import DetectorBank, Floats, Integers
from godwit.pipeline.files import file_system, make_folder
from godwit.pipeline.lake import Lake, LakeTable, Ranges
from godwit.pipeline.supervisor import SMALL_STEP, StepQuery, StepResult
from godwit.spark.offsets import Offsets, Position

PARTS: Final = 16
"""A small step rewrites few of them; a large number makes many files."""
STEP_OFFSETS: Final = 500_000
"""Offsets of each log in one step, whose readings a task holds in memory."""
LEARNING_OFFSETS: Final = 1_000_000
"""Offsets of each log before the first that raises alarms, from which detectors without a state learn."""
PAUSE_S: Final = 2.0
"""From the end of a step to the next one."""
STATE_DAYS: Final = 90
"""A series without a reading for this time is forgotten."""
SERIES: Final = ("broker", "topic", "quantity", "name")
"""The columns of silver that identify a series. The name is null in rows of Godwit 0.5.0, which means that it is ""."""
_STATE: Final = pa.schema([*[(name, pa.string()) for name in SERIES], ("seen_us", pa.int64()), ("state", pa.binary())])
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_TIME: Final = pa.timestamp("us", tz="UTC")
_READ: Final = pa.schema(
    [
        *[(name, _TEXT) for name in SERIES],
        *[("offset", pa.int64()), ("event_time", _TIME), ("received", _TIME), ("value", pa.float64()), ("unit", _TEXT)],
    ]
)
"""The columns of silver that are read."""
READ_ROWS: Final = 128 * 1024
"""Rows that are read at a time."""
_MAX_COMBINED: Final = 2**62
_NUMBER: Final = "anomalies: states"
"""Name of the watermark with the number of the last step."""
_STATES: Final = "states"
_ORDER: Final = ("alarm_time", "broker", "alarm_offset", "quantity", "name")
"""Columns by which the alarms of a step are sorted."""
_TIMES: Final = ("event_time", "peak_time", "end_time", "alarm_time")
Alarms: TypeAlias = list[dict[str, Any]]


# -- on executors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DetectionTask:
    """The work of a step, with all of its parts."""

    files: Sequence[str]
    """Addresses of the files of silver that may have rows of the ranges."""
    ranges: Mapping[str, tuple[int, int]]
    quiet_below: Mapping[str, int]
    """By log: events that began below this offset raise no alarm."""
    states: Mapping[int, str]
    """By part: the address of its file of states."""
    target: str
    """Folder for new files of states."""

    def run(self, parts: Sequence[int]) -> list[dict[str, Any]]:
        """Process the readings of these parts. Return a plain dictionary for each part that has any."""
        readings = _read_series(self.files, self.ranges, set(parts))
        used = sorted(set(readings.parts))
        states = {part: _read_states(self.states.get(part)) for part in used}
        known = [states[part].get(key) for part, key in zip(readings.parts, readings.keys, strict=True)]
        bank = DetectorBank([None if one is None else one[1] for one in known])
        alarms: dict[int, Alarms] = {part: [] for part in used}
        for series, row, alarm in bank.update(readings.lengths, readings.times_us, readings.values, readings.offsets):
            key = readings.keys[series]
            if alarm.begin_position >= self.quiet_below.get(key[0], 0):
                unit, offset = readings.units[row].as_py(), int(readings.offsets[row])
                found = alarm_row(dict(zip(SERIES, key, strict=True)), offset, unit, alarm)
                alarms[readings.parts[series]].append(found)
        for part, key, seen_us, state in zip(
            readings.parts, readings.keys, readings.seen_us.tolist(), bank.states(), strict=True
        ):
            states[part][key] = (seen_us, state)
        return [
            {"part": part, "states": _write_states(self.target, states[part]), "alarms": alarms[part]} for part in used
        ]


@dataclass(frozen=True)
class SeriesReadings:
    """Readings sorted by series, and within a series by time and offset."""

    keys: list[tuple[str, ...]]
    """The values of SERIES of each series."""
    parts: list[int]
    """The part of each series."""
    lengths: Integers
    """The number of readings of each series."""
    seen_us: Integers
    """The last time of receipt of each series."""
    times_us: Integers
    offsets: Integers
    values: Floats
    units: pa.Array


def _read_series(files: Iterable[str], ranges: Mapping[str, tuple[int, int]], parts: set[int]) -> SeriesReadings:
    """Return the readings of these ranges and parts. Values that detectors ignore are left out."""
    columns = _READ.names
    found = [_READ.empty_table()]
    for address in files:
        system, path = file_system(address)
        with system.open_input_file(path) as file:
            content = parquet.ParquetFile(
                file, coerce_int96_timestamp_unit="us", read_dictionary=[*SERIES, "unit"], pre_buffer=False
            )
            names = [name for name in columns if name in content.schema_arrow.names]
            for batch in content.iter_batches(READ_ROWS, columns=names):
                rows = _within(pa.Table.from_batches([batch]), ranges)
                if rows.num_rows:
                    found.append(_with_names(rows).select(columns).cast(_READ))
    rows = pa.concat_tables(found).unify_dictionaries().combine_chunks()
    rows = rows.filter(pc.less_equal(pc.abs(rows.column("value")), GREATEST))  # NaN is not less
    codes = [_codes(rows.column(name)) for name in SERIES]
    ids = _combined([(numbers, len(texts)) for numbers, texts in codes])
    _, firsts, ids = np.unique(ids, return_index=True, return_inverse=True)
    keys = list(zip(*[[texts[at] for at in numbers[firsts].tolist()] for numbers, texts in codes], strict=True))
    part_of = np.array([zlib.crc32("\0".join(key).encode()) % PARTS for key in keys], np.int64)
    is_mine = np.isin(part_of, sorted(parts))
    times, offsets, seen = [_integers(rows.column(name)) for name in ("event_time", "offset", "received")]
    chosen = np.flatnonzero(is_mine[ids])
    order = chosen[np.lexsort((offsets[chosen], times[chosen], ids[chosen]))]
    mine = np.flatnonzero(is_mine)
    lengths = np.bincount(ids[chosen], minlength=len(keys))[mine]
    begins = np.cumsum(lengths) - lengths
    return SeriesReadings(
        [keys[at] for at in mine.tolist()],
        part_of[mine].tolist(),
        lengths,
        np.maximum.reduceat(seen[order], begins) if len(mine) else lengths,
        times[order],
        offsets[order],
        rows.column("value").to_numpy()[order],
        rows.column("unit").combine_chunks().take(pa.array(order)),
    )


def _codes(column: pa.ChunkedArray) -> tuple[Integers, list[str]]:
    """Return the number of each row's text, and the texts, of a column with one dictionary; null is an empty text."""
    array = column.combine_chunks()
    texts: dict[str, int] = {}
    numbers = [texts.setdefault(text or "", len(texts)) for text in [*array.dictionary.to_pylist(), None]]
    indices = pc.fill_null(array.indices, len(numbers) - 1).to_numpy()
    return np.array(numbers, np.int64)[indices], list(texts)


def _combined(columns: Sequence[tuple[Integers, int]]) -> Integers:
    """Return a number for each row that differs if one of its numbers differs, from columns with their bounds."""
    found, bound = np.zeros(len(columns[0][0]), np.int64), 1
    for numbers, limit in columns:
        if bound * limit > _MAX_COMBINED:
            found = np.unique(found, return_inverse=True)[1]
            bound = len(found)
        found, bound = found * limit + numbers, bound * limit
    return found


def _integers(column: pa.ChunkedArray) -> Integers:
    found: Integers = column.cast(pa.int64()).to_numpy()
    return found


def _within(rows: pa.Table, ranges: Mapping[str, tuple[int, int]]) -> pa.Table:
    wanted = None
    brokers = rows.column("broker").cast(pa.string())
    for log, (begin, end) in ranges.items():
        at = rows.column("offset")
        one = pc.and_(pc.equal(brokers, log), pc.and_(pc.greater_equal(at, begin), pc.less(at, end)))
        wanted = one if wanted is None else pc.or_(wanted, one)
    return rows.filter(wanted)


def _with_names(rows: pa.Table) -> pa.Table:
    """Add the column `name` if it is missing, as in files of Godwit 0.5.0."""
    if "name" in rows.column_names:
        return rows
    return rows.append_column("name", pa.nulls(rows.num_rows, pa.string()).dictionary_encode())


def _read_states(address: str | None) -> dict[tuple[Any, ...], tuple[int, bytes]]:
    """Return the states of a part by series, each with the time of its last reading."""
    if address is None:
        return {}
    system, path = file_system(address)
    with system.open_input_file(path) as file:
        rows = parquet.read_table(file)
    keys = zip(*[rows.column(name).to_pylist() for name in SERIES], strict=True)
    states = zip(rows.column("seen_us").to_pylist(), rows.column("state").to_pylist(), strict=True)
    return dict(zip(keys, states, strict=True))


def _write_states(folder: str, states: Mapping[tuple[Any, ...], tuple[int, bytes]]) -> str:
    """Write the states of a part that are not too old. Return the file's name, which is unique for each attempt."""
    newest_us = max(seen_us for seen_us, _ in states.values())
    kept = {key: one for key, one in states.items() if one[0] >= newest_us - STATE_DAYS * 86_400_000_000}
    columns = [pa.array([key[at] for key in kept], pa.string()) for at in range(len(SERIES))]
    columns += [pa.array([one[0] for one in kept.values()], pa.int64())]
    columns += [pa.array([one[1] for one in kept.values()], pa.binary())]
    name = f"{uuid.uuid4().hex}.parquet"
    system, path = file_system(folder)
    make_folder(system, path)
    table = pa.Table.from_arrays(columns, schema=_STATE)
    parquet.write_table(table, f"{path}/{name}", filesystem=system, use_dictionary=False, write_statistics=False)
    return name


# -- on the driver ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Manifest:
    """The result of a step."""

    id: str
    """Identifies the query to brokers."""
    number: int
    offsets: Offsets
    """By log, the offset below which all readings are processed."""
    quiet_below: Offsets
    files: dict[int, str]
    """By part, the name of its file of states."""
    alarms: Alarms = field(default_factory=list)

    def to_json(self) -> str:
        """Return the form in which it is stored."""
        return json.dumps(asdict(self), default=_to_plain)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse the form in which it is stored."""
        found = json.loads(text)
        alarms = [one | {name: _from_plain(one[name]) for name in _TIMES} for one in found["alarms"]]
        files = {int(part): name for part, name in found["files"].items()}
        return cls(**(found | {"alarms": alarms, "files": files}))


def _from_plain(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _to_plain(value: Any) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()


class Detection:
    """The detectors of a lake. Only one instance may write at a time."""

    def __init__(
        self, spark: SparkSession, lake: Lake, source: Mapping[str, str], keep: timedelta | None = None
    ) -> None:
        """`source` are options of format("godwit"), for alerts. Events are kept for `keep`; None is for ever."""
        self._keep = keep
        self._spark = spark
        self._lake = lake
        self._silver = lake.table(readings.SPEC)
        self._table = lake.table(anomalies.SPEC)
        self._publisher = AlertPublisher(source)
        self._folder = f"{checkpoint_address(lake, ANOMALIES)}/{_STATES}"
        self._last: Manifest | None = None
        """None before the first step."""

    def step(self) -> StepResult:
        """Process new readings, at most STEP_OFFSETS of each log, and publish the alarms."""
        if self._last is None:
            self._last = self._first_manifest()
            self._publish(self._last)  # again, after a run that was killed
        ends = {log: self._silver.watermark(log) or 0 for log in self._logs()}
        ranges = _next_ranges(self._silver, self._last.offsets, ends)
        if not ranges:
            self._table.maintain(self._spark, self._keep, is_idle=True)
            return StepResult(0, 0)
        manifest = self._process(self._last, ranges)
        self._commit(manifest)
        self._publish(manifest)
        self._delete_unused(self._last, manifest)
        messages = sum(end - begin for begin, end in ranges.values())
        self._last = manifest
        return StepResult(messages, sum(max(end - manifest.offsets.get(log, 0), 0) for log, end in ends.items()))

    def _logs(self) -> list[str]:
        found = read_checkpoint(self._lake, TABLES)
        return [] if found is None else list(found.offsets)

    def _process(self, last: Manifest, ranges: Ranges) -> Manifest:
        task = DetectionTask(
            self._silver.file_addresses(ranges),
            dict(ranges),
            last.quiet_below,
            {part: f"{self._folder}/{name}" for part, name in last.files.items()},
            self._folder,
        )
        results: list[dict[str, Any]] = []
        if sum(end - begin for begin, end in ranges.values()) <= SMALL_STEP:
            results = task.run(range(PARTS))
        elif task.files:
            context = self._spark.sparkContext
            tasks = max(1, min(PARTS, context.defaultParallelism))
            parts = context.parallelize([list(range(first, PARTS, tasks)) for first in range(tasks)], tasks)
            results = parts.flatMap(task.run).collect()
        alarms = [alarm for one in results for alarm in one["alarms"]]
        alarms.sort(key=lambda one: tuple(one[name] for name in _ORDER))
        files = last.files | {one["part"]: one["states"] for one in results}
        offsets = last.offsets | {log: end for log, (_, end) in ranges.items()}
        return Manifest(last.id, last.number + 1, offsets, last.quiet_below, files, alarms)

    def _commit(self, manifest: Manifest) -> None:
        system, path = file_system(self._folder)
        make_folder(system, path)
        with system.open_output_stream(self._manifest_path(path, manifest.number)) as file:
            file.write(manifest.to_json().encode())
        rows = newest_rows(manifest.alarms)
        watermarks = {_watermark_name(log): at for log, at in manifest.offsets.items()} | {_NUMBER: manifest.number}
        self._table.upsert(rows, watermarks)
        self._table.maintain(self._spark, self._keep)
        write_checkpoint(self._lake, ANOMALIES, manifest.number, Position(manifest.offsets, {}, {}), {})

    def _publish(self, manifest: Manifest) -> None:
        if manifest.alarms:
            self._publisher.publish(manifest.alarms, manifest.id, manifest.number)

    def _first_manifest(self) -> Manifest:
        """Return the last step of an earlier run, or the begin of a new query."""
        number = self._table.watermark(_NUMBER)
        system, path = file_system(self._folder)
        if number is not None:
            with suppress(FileNotFoundError), system.open_input_file(self._manifest_path(path, number)) as file:
                return Manifest.from_json(file.read().decode())
        # Without states: of a lake of 0.5.0, or after a loss. Detectors learn from readings that were processed before.
        known = read_checkpoint(self._lake, ANOMALIES)
        before = {} if known is None else known.offsets
        quiet_below = {log: self._table.watermark(_watermark_name(log)) or before.get(log, 0) for log in self._logs()}
        offsets = {log: max(0, at - LEARNING_OFFSETS) for log, at in quiet_below.items()}
        return Manifest(uuid.uuid4().hex, -1 if number is None else number, offsets, quiet_below, {})

    def _manifest_path(self, folder: str, number: int) -> str:
        return f"{folder}/{number:020}.json"

    def _delete_unused(self, last: Manifest, current: Manifest) -> None:
        """Delete files of states and manifests of earlier steps, and of tasks that failed before them."""
        used = {*last.files.values(), *current.files.values()}
        used |= {f"{one.number:020}.json" for one in (last, current)}
        system, path = file_system(self._folder)
        for one in system.get_file_info(fs.FileSelector(path)):
            if one.base_name not in used:
                with suppress(OSError):
                    system.delete_file(one.path)


def _next_ranges(silver: LakeTable, offsets: Offsets, ends: Offsets) -> dict[str, tuple[int, int]]:
    found = {}
    for log, end in ends.items():
        at = offsets.get(log, 0)
        if at < end:
            first = silver.first_offset(log)
            begin = max(at, end if first is None else first)
            found[log] = (begin, min(end, begin + STEP_OFFSETS))
    return found


def _watermark_name(log: str) -> str:
    return f"anomalies: {log}"


def detected_below(lake: Lake, logs: Iterable[str]) -> Offsets:
    """Return, for each log, the offset below which the detectors have processed every reading."""
    table = lake.table(anomalies.SPEC)
    return {log: table.watermark(_watermark_name(log)) or 0 for log in logs}


def start_detection(spark: SparkSession, detection: Detection, is_input_complete: Callable[[], bool]) -> StepQuery:
    """Start the query that detects anomalies.

    `is_input_complete` returns whether silver has everything that it will ever get.
    """
    return StepQuery(ANOMALIES, spark, detection.step, is_input_complete, pause_s=PAUSE_S)
