"""The readers of `format("godwit")`: of batches for spark.read, and of streams for spark.readStream.

A reader plans on the driver which ranges of which logs to read, and reads the rows of a range on an executor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from godwit.spark.archive import DataLossError, UnreachableError
from godwit.spark.offsets import (
    EARLIEST,
    LATEST,
    MAX_EPOCHS,
    Epochs,
    Offsets,
    Position,
    Range,
    epochs_below,
    partition_count,
    same_below,
    share_limit,
    split,
    to_epochs,
)
from godwit.spark.options import OptionError, ReadOptions
from godwit.spark.replicas import LogArchive, Replicas, open_archive

SCHEMA: Final = StructType(
    [
        StructField("broker", StringType()),
        StructField("offset", LongType()),
        StructField("topic", StringType()),
        StructField("publisher", StringType()),
        StructField("published", TimestampType()),
        StructField("received", TimestampType()),
        StructField("qos", ByteType()),
        StructField("retained", BooleanType()),
        StructField("payload", BinaryType()),
    ]
)
"""`broker` is the id of the broker's log; with `offset` it identifies a message permanently."""
PROPERTIES: Final = StructType(
    [
        StructField("headers", MapType(StringType(), StringType())),
        StructField("content_type", StringType()),
        StructField("reply_to", StringType()),
        StructField("correlation", BinaryType()),
        StructField("expires", TimestampType()),
        StructField("origin_log", StringType()),
        StructField("origin_offset", LongType()),
    ]
)
"""The columns that the option includeHeaders adds. An older archive does not have all of them: they are null then."""
ALL_COLUMNS: Final = StructType([*SCHEMA.fields, *PROPERTIES.fields])
_NULLS: Final[dict[str, pa.DataType]] = {
    "headers": pa.map_(pa.string(), pa.string()),
    "content_type": pa.string(),
    "reply_to": pa.string(),
    "correlation": pa.binary(),
    "expires": pa.timestamp("us", "UTC"),
    "origin_log": pa.string(),
    "origin_offset": pa.int64(),
}
BROKER: Final = "broker"
Infos: TypeAlias = dict[str, dict[str, Any]]
"""By log: the answer of its archive to `info`."""


def check_columns(schema: StructType) -> tuple[str, ...]:
    """Return the names of the requested columns. Raise OptionError if one is unknown or has another type."""
    known = {one.name: one.dataType for one in ALL_COLUMNS.fields}
    for one in schema.fields:
        if one.name not in known:
            raise OptionError(f"unknown column {one.name!r}: choose from {', '.join(known)}")
        if one.dataType != known[one.name]:
            raise OptionError(
                f"the column {one.name} is {known[one.name].simpleString()}, not {one.dataType.simpleString()}: "
                "cast it after the load"
            )
    return tuple(one.name for one in schema.fields)


@dataclass
class LogPartition(InputPartition):
    """A range of one log, for one task."""

    archive: LogArchive
    range: Range
    gaps_known_below: int
    epochs: Epochs
    """Of the log for which the range was planned; empty if they are unknown."""


class SourceReader:
    """The common part of both readers. It is pickled to executors, and holds no connections."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...], parallelism: int) -> None:
        self._options = options
        self._columns = columns
        self._parallelism = parallelism
        self._archives = [open_archive(address, options.access) for address in options.access.addresses]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, on an executor."""
        assert isinstance(partition, LogPartition)
        return self.read_topics(partition, self._options.topics)

    def read_topics(self, partition: LogPartition, topics: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition whose topics match one of these filters."""
        range_ = partition.range
        wanted = [name for name in self._columns if name != BROKER]
        if any(name in _NULLS for name in wanted):
            known = partition.archive.info().get("columns", SCHEMA.names)
            wanted = [name for name in wanted if name in known]
        batches = partition.archive.read(
            range_.log,
            range_.start,
            range_.end,
            topics=topics,
            columns=wanted or ["offset"],  # without a column, the number of rows would be unknown
            fails_on_data_loss=self._options.fails_on_data_loss,
            gaps_known_below=partition.gaps_known_below,
            epochs=partition.epochs,
        )
        for batch in batches:
            yield self._with_broker(batch, range_.log)

    def _with_broker(self, batch: pa.RecordBatch, log: str) -> pa.RecordBatch:
        arrays, fields = [], []
        for name in self._columns:
            if name == BROKER:
                array = pa.repeat(log, batch.num_rows)
            elif name in batch.schema.names:
                array = batch.column(name)
            else:
                array = pa.nulls(batch.num_rows, _NULLS[name])
            arrays.append(array)
            fields.append(pa.field(name, array.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))  # without the archive's metadata

    def _partitions(
        self, ranges: Sequence[Range], archives: dict[str, LogArchive], gaps: dict[str, int], epochs: dict[str, Epochs]
    ) -> list[LogPartition]:
        rows = sum(one.rows for one in ranges)
        count = partition_count(rows, self._parallelism, self._options.min_partitions)
        return [
            LogPartition(archives[one.log], one, gaps.get(one.log, 0), epochs.get(one.log, [])[-MAX_EPOCHS:])
            for one in split(ranges, count)
        ]

    def _find_logs(self) -> tuple[Infos, dict[str, LogArchive]]:
        """Return the state of each log, and its archive. Raise OptionError if two archives have the same log."""
        infos: Infos = {}
        archives: dict[str, LogArchive] = {}
        for archive in self._archives:
            info = archive.info()
            log = info["log_id"]
            if log in infos:
                raise OptionError(
                    f"the archives at {archives[log].address} and {archive.address} are of one broker: name one, or "
                    "separate replicas of one log by |"
                )
            infos[log] = info
            archives[log] = archive
        return infos, archives

    def _first_offset(self, info: dict[str, Any], archive: LogArchive) -> int:
        """Return the offset at which a new query begins to read a log."""
        options = self._options
        if options.starting_time_us is not None:
            return int(archive.ask("offset_for_time", {"time_us": options.starting_time_us})["offset"])
        if options.starting == EARLIEST:
            return int(info["first_offset"])
        if options.starting == LATEST:
            return int(info["next_offset"])
        assert isinstance(options.starting, dict)
        return options.starting.get(info["log_id"], int(info["first_offset"]))

    def _check_logs(self, named: Sequence[str], infos: Infos, option: str) -> None:
        missing = [log for log in named if log not in infos]
        if missing:
            raise OptionError(
                f"{option} names the log {missing[0]}, which none of the archives has: they have {', '.join(infos)}"
            )


def gaps_below(info: dict[str, Any]) -> int:
    """Return the offset below which retention may have deleted messages."""
    return max([int(floor) for floor in info.get("marks", {}).values()], default=0)


class BatchReader(SourceReader, DataSourceReader):
    """The reader of spark.read: the current content of the logs, or a part of it."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read. Spark calls this once."""
        options = self._options
        infos, archives = self._find_logs()
        for name, given in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
            if isinstance(given, dict):
                self._check_logs(list(given), infos, name)
        ranges, gaps = [], {}
        for log, info in infos.items():
            begin, end = self._first_offset(info, archives[log]), self._end_offset(info, archives[log])
            gaps[log] = gaps_below(info)
            if begin < end:
                ranges.append(Range(log, begin, end))
        epochs = {log: to_epochs(info.get("epochs", ())) for log, info in infos.items()}
        return self._partitions(ranges, archives, gaps, epochs)

    def _end_offset(self, info: dict[str, Any], archive: LogArchive) -> int:
        options = self._options
        end = int(info["next_offset"])
        if options.ending_time_us is not None:
            return min(end, int(archive.ask("offset_for_time", {"time_us": options.ending_time_us})["offset"]))
        if isinstance(options.ending, dict):
            given = options.ending.get(info["log_id"], end)
            if given > end and options.fails_on_data_loss:
                raise DataLossError(f"endingOffsets is {given} for log {info['log_id']}, which ends at {end}")
            return min(given, end)
        return end


class StreamReader(SourceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of spark.readStream. Spark keeps one on the driver; copies on executors only call `read`."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...], parallelism: int) -> None:
        super().__init__(options, columns, parallelism)
        self._archive_of: dict[str, LogArchive] = {}
        """By log."""
        self._ends: dict[str, int] = {}
        """By log, as last reported by its archive."""
        self._target: dict[str, int] | None = None
        """By log, where a query with the trigger availableNow ends."""
        self._unreachable_since: dict[str, float] = {}
        """By address, for archives that do not answer, or are behind the query."""

    # -- offsets ------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # the names of this and the next methods are Spark's
        """Return the position at which a new query begins."""
        infos, archives = self._find_logs()
        if isinstance(self._options.starting, dict):
            self._check_logs(list(self._options.starting), infos, "startingOffsets")
        offsets = {log: self._first_offset(info, archives[log]) for log, info in infos.items()}
        gaps = {log: gaps_below(info) for log, info in infos.items() if gaps_below(info)}
        return Position(offsets, gaps, {}, _epochs(offsets, infos, {})).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of rows. Spark supports one limit only: latestOffset applies the limit of bytes."""
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the ends of the logs, where the query is to end."""
        infos, _ = self._find_logs()
        self._target = {log: int(info["next_offset"]) for log, info in infos.items()}

    @property
    def is_waiting(self) -> bool:
        """Whether an archive did not answer at the last contact, so that its log may have more messages."""
        return bool(self._unreachable_since)

    @property
    def target(self) -> dict[str, int] | None:
        """By log, where a query with the trigger availableNow ends."""
        return self._target

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the position at which a micro-batch ends that begins at `start`."""
        infos = self._poll_archives(Position.from_dict(start).offsets)
        position = self._with_new_logs(Position.from_dict(start), infos)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        offsets = position.offsets | self._limited_ends(position.offsets, infos, max_rows)
        begins = {log: at for log, at in position.begins.items() if offsets[log] > at}
        # A new log without messages is left out, otherwise it would cause a batch without rows.
        offsets = {log: at for log, at in offsets.items() if log in start or log in begins}
        if offsets == Position.from_dict(start).offsets:
            return start
        return Position(offsets, position.gaps, begins, _epochs(offsets, infos, position.epochs)).to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the logs, for the query's metrics."""
        return dict(self._ends) or None

    def _poll_archives(self, known: Offsets) -> Infos:
        """Return the state of the logs whose archives answer at once.

        Spark calls again soon, so an archive that does not answer is an error only after the timeout. So are replicas
        that all end before the known offset of their log: the furthest one may be away for the moment.
        """
        infos: Infos = {}
        for archive in self._archives:
            try:
                info = archive.ask("info", {}, timeout_s=0)
            except UnreachableError as error:
                since = self._unreachable_since.setdefault(archive.address, time.monotonic())
                if time.monotonic() - since > self._options.access.timeout_s:
                    raise error
                continue
            if isinstance(archive, Replicas) and int(info["next_offset"]) < known.get(info["log_id"], 0):
                since = self._unreachable_since.setdefault(archive.address, time.monotonic())
                if time.monotonic() - since <= self._options.access.timeout_s:
                    continue
            self._unreachable_since.pop(archive.address, None)
            infos[info["log_id"]] = info
            self._archive_of[info["log_id"]] = archive
            self._ends[info["log_id"]] = int(info["next_offset"])
        return infos

    def _with_new_logs(self, position: Position, infos: Infos) -> Position:
        """Add logs that are new to a position. Logs that are missing, which is a loss, keep their offset."""
        offsets, gaps, begins = dict(position.offsets), dict(position.gaps), {}
        if not self._unreachable_since:  # otherwise the log may belong to an archive that does not answer
            for log in [log for log in offsets if log not in infos]:
                self._handle_missing_log(log, offsets[log], infos)
        for log, info in infos.items():
            if log not in offsets:  # of an additional broker, or of one with a new data folder: read from the beginning
                offsets[log] = begins[log] = int(info["first_offset"])
                gaps[log] = gaps_below(info)
            else:
                self._check_history(log, offsets[log], position.epochs.get(log), info)
        gaps = {log: at for log, at in gaps.items() if at and log in offsets}
        return Position(offsets, gaps, begins, position.epochs)

    def _handle_missing_log(self, log: str, at: int, infos: Infos) -> None:
        if self._options.fails_on_data_loss:
            raise DataLossError(
                f"the query has read log {log} up to offset {at}, and none of the archives has that log now (they have "
                f"{', '.join(infos)}): the broker's data folder was replaced, or an archive was left out. To continue "
                "without it set failOnDataLoss to false"
            )

    def _check_history(self, log: str, at: int, known: Epochs | None, info: dict[str, Any]) -> None:
        """Raise DataLossError if the log has other messages below the query's offset.

        This does not depend on failOnDataLoss: an offset would no longer identify one message.
        """
        end = int(info["next_offset"])
        same = same_below(known, to_epochs(info["epochs"]), end) if known and "epochs" in info else end
        if same < at:
            now = f"it ends at {end} now" if end < at else f"from {same} on it has other messages now"
            raise DataLossError(
                f"the query has read log {log} up to offset {at}, and {now}: an older copy was restored, and its new "
                "messages have offsets that others had. Start with a new checkpoint and new tables"
            )

    def _available_end(self, log: str, infos: Infos) -> int:
        end = int(infos[log]["next_offset"])
        return end if self._target is None else min(end, self._target.get(log, 0))

    def _limited_ends(self, begins: dict[str, int], infos: Infos, max_rows: int | None) -> dict[str, int]:
        """Return where the next batch ends in each log: the limits are shared in proportion to the lags."""
        ends = {log: max(at, self._available_end(log, infos)) for log, at in begins.items() if log in infos}
        lags = {log: end - begins[log] for log, end in ends.items() if end > begins[log]}
        max_bytes = self._options.max_bytes
        if not lags or (max_rows is None and max_bytes is None):
            return ends
        rows = lags if max_rows is None else share_limit(max_rows, lags)
        for log, lag in lags.items():
            request: dict[str, Any] = {"start": begins[log], "end": ends[log], "filters": list(self._options.topics)}
            if max_rows is not None:
                request["max_rows"] = rows.get(log, 0)
            if max_bytes is not None:
                request["max_bytes"] = max(1, max_bytes * lag // sum(lags.values()))
            ends[log] = int(self._archive_of[log].ask("measure", request)["offset"]) if rows.get(log) else begins[log]
        return ends

    # -- partitions ---------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LogPartition]:
        """Plan the micro-batch between two positions."""
        begins, ends = Position.from_dict(start), Position.from_dict(end)
        ranges = []
        for log, stop in ends.offsets.items():
            begin = begins.offsets.get(log, ends.begins.get(log, stop))
            if begin < stop:
                ranges.append(Range(log, begin, stop))
        self._find_archives([one.log for one in ranges])
        lost = [one.log for one in ranges if one.log not in self._archive_of]
        if lost and self._options.fails_on_data_loss:
            raise DataLossError(f"the batch is of log {lost[0]}, which none of the archives has now")
        present = [one for one in ranges if one.log in self._archive_of]
        return self._partitions(present, self._archive_of, ends.gaps, ends.epochs)

    def _find_archives(self, logs: Sequence[str]) -> None:
        """Find the archives of these logs after a restart, without waiting for archives of other logs."""
        if not self._archive_of.keys() >= set(logs):
            self._poll_archives({})
        if not self._archive_of.keys() >= set(logs):
            _, self._archive_of = self._find_logs()

    def commit(self, end: dict[str, Any]) -> None:
        """Spark requires this method; the position is in Spark's checkpoint."""

    def stop(self) -> None:
        """Spark requires this method; connections end with the process."""


def _epochs(offsets: Offsets, infos: Infos, known: dict[str, Epochs]) -> dict[str, Epochs]:
    """Return the epochs below these offsets; the known ones for a log whose archive does not answer."""
    found = {
        log: epochs_below(to_epochs(infos[log].get("epochs", ())), at) if log in infos else known.get(log, [])
        for log, at in offsets.items()
    }
    return {log: epochs for log, epochs in found.items() if epochs}
