"""Runs the pipeline: two streaming queries, the updates of gold, and their supervision.

The query `tables` writes bronze and silver; the query `anomalies` runs the detectors. Both read the same logs from
checkpoints of their own, so neither waits for the other. A failed query restarts after a pause; an error that a restart
cannot fix ends the run.

Each table of `tables` stores the offset of each log below which it has every message, as a watermark in the same
transaction as the rows. A batch that is repeated, also with other bounds, resumes there, so each message is written
once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from godwit.pipeline.checkpoints import (
    ANOMALIES,
    GOLD,
    TABLES,
    check_checkpoints,
    checkpoint_address,
    planned_offsets,
)
from godwit.pipeline.datasets import anomalies, bronze, readings
from godwit.pipeline.datasets.definitions import DefinitionStore
from godwit.pipeline.decoders.catalog import decoder_set
from godwit.pipeline.decoders.selection import DecoderRule
from godwit.pipeline.gold import Gold, GoldFollower
from godwit.pipeline.lake import Lake, LakeTable, Watermarks
from godwit.pipeline.supervisor import RunListener, RunStats, SparkQuery, SupervisedQuery

POLL_S: Final = 0.5
MAX_ROWS: Final = 200_000
MAX_BYTES: Final = 256 * 1024 * 1024
"""Limits of a micro-batch, for a driver with little memory."""
ARCHIVE_TIMEOUT_S: Final = 15.0
"""After this time without an archive the query fails, which is reported, and restarts."""
RETENTION_HOURS: Final = 24
"""For this time after a change, readers can still use the files of their snapshot."""


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

    @property
    def limited_source(self) -> dict[str, str]:
        """The source's options, with default limits for options that are not given."""
        limits = {"maxRowsPerTrigger": str(MAX_ROWS), "maxBytesPerTrigger": str(MAX_BYTES)}
        return limits | {"archiveTimeout": f"{ARCHIVE_TIMEOUT_S:g}"} | dict(self.source)

    @property
    def trigger(self) -> dict[str, Any]:
        """Arguments of DataStreamWriter.trigger."""
        return (
            {"availableNow": True} if self.is_once else {"processingTime": f"{self.trigger_s * 1000:.0f} milliseconds"}
        )


def run(spark: SparkSession, config: RunConfig, listener: RunListener) -> RunStats:
    """Run the pipeline to the end of the logs (`is_once`), or until the listener or a signal raises an exception.

    Return the batches and rows by query. Raise PipelineError if a query cannot continue.
    """
    check_checkpoints(config.lake)
    DefinitionStore(config.lake, decoder_set(config.rules)).catch_up(spark)
    stats = RunStats()
    followers: list[GoldFollower] = []

    def start_gold() -> GoldFollower:
        followers[:] = [GoldFollower(spark, Gold(config.lake), is_input_complete=lambda: tables.is_done)]
        return followers[0]

    tables = SupervisedQuery(TABLES, lambda: start_tables(spark, config), config.is_once, listener, stats)
    alarms = SupervisedQuery(ANOMALIES, lambda: start_anomalies(spark, config), config.is_once, listener, stats)
    gold = SupervisedQuery(GOLD, start_gold, config.is_once, listener, stats)
    queries = (tables, alarms, gold)
    try:
        while not all(query.is_done for query in queries):
            for query in queries:
                query.poll()
            time.sleep(POLL_S)
    finally:
        for follower in followers:
            follower.stop()
    return stats


def start_tables(spark: SparkSession, config: RunConfig) -> SparkQuery:
    """Start the query that writes bronze, silver and quarantine."""
    stream = spark.readStream.format("godwit").options(**config.limited_source).load()
    writer = stream.writeStream.queryName(TABLES).foreachBatch(TablesWriter(config.lake, config.rules).write)
    writer = writer.option("checkpointLocation", checkpoint_address(config.lake, TABLES))
    return SparkQuery(writer.trigger(**config.trigger).start())


def start_anomalies(spark: SparkSession, config: RunConfig) -> SparkQuery:
    """Start the query that detects anomalies."""
    checkpoint = checkpoint_address(config.lake, ANOMALIES)
    # Its definitions are those at its start: it parses the stream on its own, before silver has a batch.
    definitions = DefinitionStore(config.lake, decoder_set(config.rules)).rows_since()
    decoding = readings.Decoding(config.rules, tuple(definitions))
    return SparkQuery(anomalies.start(spark, config.limited_source, config.lake, checkpoint, config.trigger, decoding))


class TablesWriter:
    """Writes the micro-batches of the query `tables` to bronze, silver and quarantine."""

    def __init__(self, lake: Lake, rules: tuple[DecoderRule, ...] = ()) -> None:
        self._lake = lake
        self._rules = rules
        self._definitions = DefinitionStore(lake, decoder_set(rules))
        self._messages = lake.table(bronze.SPEC)
        self._readings = lake.table(readings.SPEC)
        self._quarantine = lake.table(readings.QUARANTINE)

    def write(self, messages: DataFrame, batch: int) -> None:
        """Write one micro-batch, for foreachBatch. A repeated call does nothing."""
        ends = planned_offsets(self._lake, TABLES, batch)
        messages = messages.persist(StorageLevel.MEMORY_AND_DISK)
        parsed = messages
        try:
            self._definitions.update(messages, ends)
            begins = {log: self._readings.watermark(log) or 0 for log in ends}
            decoding = readings.Decoding(self._rules, tuple(self._definitions.rows_since(begins)))
            parsed = readings.parse(messages, decoding).persist(StorageLevel.MEMORY_AND_DISK)
            _append_new(self._messages, messages, ends)
            _append_new(self._readings, readings.valid(parsed), ends)
            _append_new(self._quarantine, readings.rejected(parsed), ends)
        finally:
            parsed.unpersist()
            messages.unpersist()


def _append_new(table: LakeTable, frame: DataFrame, ends: Watermarks) -> None:
    """Append the rows at or above the table's watermarks."""
    known = {log: table.watermark(log) or 0 for log in ends}
    new_ends = {log: end for log, end in ends.items() if end > known[log]}
    if new_ends:
        is_new = [(sf.col("broker") == log) & (sf.col("offset") >= known[log]) for log in new_ends]
        table.append(frame.where(reduce(Column.__or__, is_new)), new_ends)
        table.maintain(None, RETENTION_HOURS)
