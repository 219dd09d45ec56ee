"""Runs the pipeline: the queries that write tables, and their supervision.

The query `tables` writes bronze and silver. Behind it, `gold` merges new rows into gold, and `anomalies` runs the
detectors; neither delays `tables`. A failed query restarts after a pause; an error that a restart cannot fix ends
the run.

The driver plans each step of `tables` from the ends of the logs. Executors read, decode and write the messages, see
godwit.pipeline.ingest, and the driver commits their files, with watermarks: the offset of each log below which a table
has every message. A step that is repeated, also with other bounds, resumes there, so each message is written once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from godwit.pipeline.checkpoints import (
    ANOMALIES,
    GOLD,
    TABLES,
    WRITTEN_TOGETHER,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from godwit.pipeline.datasets import anomalies, bronze, readings
from godwit.pipeline.datasets.catalog import ALL
from godwit.pipeline.datasets.definitions import DefinitionStore
from godwit.pipeline.datasets.readings import BatchDecoder, Decoding
from godwit.pipeline.decoders.base import DecoderMessage
from godwit.pipeline.decoders.selection import DecoderRule, decoder_set, filter_pattern
from godwit.pipeline.detection import Detection, detected_below, start_detection
from godwit.pipeline.gold import Gold, start_gold
from godwit.pipeline.ingest import KINDS, READINGS, RangeWriter, TargetTable, TaskResult
from godwit.pipeline.lake import Lake, LakeTable, Ranges, TableSpec
from godwit.pipeline.repair import is_repair_incomplete
from godwit.pipeline.supervisor import SMALL_STEP, RunListener, RunStats, StepQuery, StepResult, SupervisedQuery
from godwit.spark.offsets import Offsets, Position
from godwit.spark.options import read_options
from godwit.spark.reader import ALL_COLUMNS, LogPartition, StreamReader

POLL_S: Final = 0.1
_MAX_OFFSET: Final = 2**63 - 1
MAX_ROWS: Final = 500_000
MAX_ROWS_ONCE: Final = 2_000_000
MAX_BYTES: Final = 512 * 1024 * 1024
"""Limits of a step. The memory of a task does not depend on them; the work that a killed run repeats does."""
ARCHIVE_TIMEOUT_S: Final = 15.0
"""After this time without an archive the query fails, which is reported, and restarts."""


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run."""

    lake: Lake
    source: Mapping[str, str]
    """Options of format("godwit")."""
    is_once: bool = False
    """Whether to end with the last message that the logs have at the start."""
    trigger_s: float = 1.0
    rules: tuple[DecoderRule, ...] = ()
    """The configured decoders."""
    retention: Mapping[str, timedelta] = field(default_factory=dict)
    """For how long tables keep their rows, by name; tables that are not in it keep them for ever."""

    @property
    def limited_source(self) -> dict[str, str]:
        """The source's options, with default limits for options that are not given."""
        limits = {
            "maxRowsPerTrigger": str(MAX_ROWS_ONCE if self.is_once else MAX_ROWS),
            "maxBytesPerTrigger": str(MAX_BYTES),
            "archiveTimeout": f"{ARCHIVE_TIMEOUT_S:g}",
        }
        given = {name.lower() for name in self.source}
        return {name: text for name, text in limits.items() if name.lower() not in given} | dict(self.source)


def run(spark: SparkSession, config: RunConfig, listener: RunListener) -> RunStats:
    """Run the pipeline to the end of the logs (`is_once`), or until the listener or a signal raises an exception.

    Return the batches and rows by query. Raise PipelineError if a query cannot continue.
    """
    for spec in ALL:
        config.lake.table(spec).bring_forward(spark)
    DefinitionStore(config.lake, decoder_set(config.rules)).catch_up(spark)
    stats = RunStats()
    started: list[StepQuery] = []

    def start_tables() -> StepQuery:
        started.append(start_tables_query(spark, config))
        return started[-1]

    def start_gold_query() -> StepQuery:
        started.append(start_gold(spark, Gold(config.lake, config.retention), is_input_complete=lambda: tables.is_done))
        return started[-1]

    def start_anomalies() -> StepQuery:
        detection = Detection(spark, config.lake, config.source, config.retention.get(anomalies.SPEC.name))
        started.append(start_detection(spark, detection, is_input_complete=lambda: tables.is_done))
        return started[-1]

    tables = SupervisedQuery(TABLES, start_tables, config.is_once, listener, stats)
    alarms = SupervisedQuery(ANOMALIES, start_anomalies, config.is_once, listener, stats)
    gold = SupervisedQuery(GOLD, start_gold_query, config.is_once, listener, stats)
    queries = (tables, alarms, gold)
    try:
        while not all(query.is_done for query in queries):
            for query in queries:
                query.poll()
            time.sleep(POLL_S)
    finally:
        for one in started:
            one.stop(timeout_s=0.0)  # all of them at once, before the first is waited for
        for one in started:
            one.stop()
    for spec in ALL:  # the queries have done this as they went, but behind the tables that need the rows
        keep = config.retention.get(spec.name)
        config.lake.table(spec).maintain(spark, keep, partial(unread_ranges, config.lake, spec), is_last=True)
    return stats


def unread_ranges(lake: Lake, spec: TableSpec) -> Ranges:
    """Return the offsets of rows of a table that gold or the detectors have not processed, or that a repair needs."""
    found = read_checkpoint(lake, TABLES)
    logs = [] if found is None else list(found.offsets)
    if spec in WRITTEN_TOGETHER and is_repair_incomplete(lake):
        return dict.fromkeys(logs, (0, _MAX_OFFSET))
    ends: list[Offsets] = []
    if spec in (bronze.SPEC, readings.SPEC):
        ends.append(Gold(lake).watermarks(logs, spec))
    if spec is readings.SPEC:
        ends.append(detected_below(lake, logs))
    table = lake.table(spec)
    at = {log: min(one[log] for one in ends) for log in logs} if ends else {}
    return {log: (begin, _MAX_OFFSET) for log, begin in at.items() if begin < (table.watermark(log) or 0)}


def start_tables_query(spark: SparkSession, config: RunConfig) -> StepQuery:
    """Start the query that writes bronze, silver and quarantine."""
    writer = TablesWriter(spark, config)
    return StepQuery(TABLES, spark, writer.step, lambda: config.is_once, interval_s=config.trigger_s)


class TablesWriter:
    """Writes new messages of the logs to bronze, silver and quarantine, step by step."""

    def __init__(self, spark: SparkSession, config: RunConfig) -> None:
        self._spark = spark
        self._lake = config.lake
        self._rules = config.rules
        self._retention = config.retention
        self._decoders = decoder_set(config.rules)
        self._definitions = DefinitionStore(config.lake, self._decoders)
        self._tables = {kind: config.lake.table(spec) for kind, spec in zip(KINDS, WRITTEN_TOGETHER, strict=True)}
        self._is_once = config.is_once
        options = read_options(config.limited_source, is_stream=True)
        self._topics = [filter_pattern(one) for one in options.topics]
        self._limit: ReadLimit = ReadAllAvailable() if options.max_rows is None else ReadMaxRows(options.max_rows)
        self._planner = StreamReader(options, tuple(ALL_COLUMNS.names), max(1, spark.sparkContext.defaultParallelism))
        self._checkpoint: Checkpoint | None = None
        """None before the first step."""
        self._decoder: tuple[Decoding, BatchDecoder] | None = None
        """That of the last step: to make one takes as long as a small step."""
        self._added: dict[str, int] = {}
        """Rows that the last step added, by table."""

    def step(self) -> StepResult:
        """Write the messages that are new in the logs, up to the limits of a step."""
        if self._checkpoint is None:
            self._checkpoint = self._first_checkpoint()
        begin = self._checkpoint.position.to_dict()
        end = self._planner.latestOffset(begin, self._limit)
        if end == begin:
            self._maintain(is_idle=True)
            return StepResult(0, self._behind(self._checkpoint.position) if self._planner.is_waiting else 0)
        position = Position.from_dict(end)
        firsts = position.begins | self._checkpoint.firsts
        rows = self.write(self._planner.partitions(begin, end), position.offsets, firsts)
        position = Position(position.offsets, position.gaps, {}, position.epochs)
        self._checkpoint = self._store(self._checkpoint.batch + 1, position, firsts)
        self._maintain()
        return StepResult(rows, self._behind(position), self._added)

    def _maintain(self, *, is_idle: bool = False) -> None:
        for table in (*self._tables.values(), self._definitions.table):
            is_unchanged = is_idle or table is self._definitions.table  # definitions are few
            unread = partial(unread_ranges, self._lake, table.spec)
            table.maintain(self._spark, self._retention.get(table.spec.name), unread, is_idle=is_unchanged)

    def write(self, partitions: Sequence[LogPartition], ends: Offsets, firsts: Offsets) -> int:
        """Write the messages of partitions that end at these offsets. Return the number of messages read.

        A table that has reached these offsets before is not changed. `firsts` has the offsets at which tables without
        a watermark begin.
        """
        begins = {kind: _begins(table, ends, firsts) for kind, table in self._tables.items()}
        targets = {
            kind: TargetTable(table.address, table.spec.schema, begins[kind]) for kind, table in self._tables.items()
        }
        results: list[TaskResult] = []
        if partitions:
            self._definitions.update(self._defining_messages(partitions), ends)
            decoding = Decoding(self._rules, tuple(self._definitions.rows_since(begins[READINGS])))
            if self._decoder is None or decoding != self._decoder[0]:
                self._decoder = decoding, BatchDecoder(decoding)
            task = RangeWriter(self._planner, partitions, targets, self._decoder[1].split)
            if sum(one.range.rows for one in partitions) <= SMALL_STEP:
                results = [task(number) for number in range(len(partitions))]
            else:
                numbers = self._spark.sparkContext.parallelize(range(len(partitions)), len(partitions))
                results = numbers.map(task).collect()
        self._added = {}
        for kind, table in self._tables.items():
            known = {log: table.watermark(log) for log in ends}
            new_ends = {log: end for log, end in ends.items() if (at := known[log]) is None or end > at}
            if new_ends:
                files = [file for one in results if (file := one["files"][kind])]
                table.append_files(files, new_ends)
                self._added[table.spec.name] = sum(file["rows"] for file in files)
        return sum(one["rows"] for one in results)

    def _defining_messages(self, partitions: Sequence[LogPartition]) -> Iterator[DecoderMessage]:
        """Yield the messages of partitions that may define others. They are few, and read by the driver."""
        filters = self._decoders.definition_filters
        for partition in partitions if filters else ():
            for batch in self._planner.read_topics(partition, filters):
                for row in batch.select(["broker", "offset", "topic", "payload"]).to_pylist():
                    if not self._topics or any(one.match(row["topic"]) for one in self._topics):
                        yield DecoderMessage(row["topic"], row["payload"], broker=row["broker"], offset=row["offset"])

    def _behind(self, position: Position) -> int:
        """Return the number of offsets between a position and the ends of the logs at the last contact."""
        ends = self._planner.target if self._is_once else self._planner.reportLatestOffset()
        return sum(max(end - position.offsets.get(log, 0), 0) for log, end in (ends or {}).items())

    def _first_checkpoint(self) -> Checkpoint:
        """Return where the query resumes, or where a new one begins."""
        found = read_checkpoint(self._lake, TABLES)
        if found is None:
            initial = Position.from_dict(self._planner.initialOffset())
            found = Checkpoint(-1, 0, initial, dict(initial.offsets))
        if self._is_once:
            self._planner.prepareForTriggerAvailableNow()
        offsets = {log: self._resumes_at(log, at, found.firsts) for log, at in found.offsets.items()}
        position = Position(offsets, found.position.gaps, {}, found.position.epochs)
        return self._store(found.batch, position, offsets | found.firsts)

    def _resumes_at(self, log: str, at: int, firsts: Offsets) -> int:
        """Return the offset of a log from which at least one table lacks messages.

        That is behind the checkpoint after a run that was killed, and before it if a table was deleted or restored.
        """
        first = {log: firsts.get(log, at)}
        return min(_begins(table, first, first)[log] for table in self._tables.values())

    def _store(self, batch: int, position: Position, firsts: Offsets) -> Checkpoint:
        write_checkpoint(self._lake, TABLES, batch, position, firsts)
        return Checkpoint(batch, time.time_ns() // 1000, position, firsts)


def _begins(table: LakeTable, logs: Iterable[str], firsts: Mapping[str, int]) -> Offsets:
    """Return, for each log, the first offset that a table does not have."""
    return {log: at if (at := table.watermark(log)) is not None else firsts.get(log, 0) for log in logs}
