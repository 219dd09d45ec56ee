"""The writers of `format("godwit")`: rows of Spark become messages of a broker.

Executors stage rows with the archive, and the driver commits all stages of a batch in one request. A stage is invisible
until a commit names it, and the broker appends each batch of a query once. A task that is retried, run twice, or
partitioned differently therefore changes nothing.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, BooleanType, StringType, StructType

from godwit.spark.archive import Archive, ArchiveError
from godwit.spark.options import OptionError, WriteOptions
from godwit.spark.replicas import Replicas, open_archive

TOPIC: Final = "topic"
PAYLOAD: Final = "payload"
RETAINED: Final = "retained"
_TYPES: Final = {TOPIC: (StringType,), PAYLOAD: (BinaryType, StringType), RETAINED: (BooleanType,)}
_STAGED: Final = pa.schema([(TOPIC, pa.string()), (PAYLOAD, pa.binary()), ("qos", pa.int8()), (RETAINED, pa.bool_())])
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"


@dataclass
class StagedPartition(WriterCommitMessage):
    """The rows that one task has staged."""

    query: str
    partition: int
    attempt: int
    rows: int
    address: str
    """The archive where they are."""


class _SinkWriter:
    """The common part of both writers."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check_schema(schema, options)
        self._options = options
        self._archive = open_archive(options.access.addresses[0], options.access)

    def _stage(self, iterator: Iterator[pa.RecordBatch], query: str, batch: int) -> StagedPartition:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()  # None: the pipeline writes without a task
        # Random, because Spark's own number restarts with the driver and would collide with stages of an earlier one.
        attempt = random.SystemRandom().getrandbits(62)
        name = {
            "query": query,
            "batch": batch,
            "partition": partition,
            "attempt": attempt,
            "publisher": self._options.publisher,
        }
        archive = self._archive.accepting()
        rows = archive.stage(name, _STAGED, map(self._to_messages, iterator))
        return StagedPartition(query, partition, attempt, rows, archive.address)

    def _to_messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        topic = columns.get(TOPIC)
        if topic is None:
            topic = pa.repeat(self._options.topic, batch.num_rows)
        elif self._options.topic is not None:
            topic = pc.fill_null(topic, self._options.topic)
        retained = columns.get(RETAINED)
        retained = pa.repeat(False, batch.num_rows) if retained is None else pc.fill_null(retained, False)
        for name, array in ((TOPIC, topic), (PAYLOAD, columns[PAYLOAD])):
            if array.null_count:
                raise ArchiveError(
                    f"the column {name} is null in {array.null_count} of {batch.num_rows} rows: fill it, or drop these "
                    "rows before the write"
                )
        return pa.RecordBatch.from_arrays(
            [
                topic.cast(pa.string()),
                columns[PAYLOAD].cast(pa.binary()),
                pa.repeat(pa.scalar(self._options.qos, pa.int8()), batch.num_rows),
                retained,
            ],
            schema=_STAGED,
        )

    def _commit(self, query: str, batch: int, staged: list[StagedPartition]) -> None:
        ordered = sorted(staged, key=lambda one: one.partition)
        parts = [{"partition": one.partition, "attempt": one.attempt} for one in ordered if one.rows]
        addresses = {one.address for one in staged if one.rows}
        if len(addresses) > 1:
            raise ArchiveError(
                f"the rows of batch {batch} are staged at {' and '.join(sorted(addresses))}, because another broker "
                "became active: write the batch again"
            )
        request = {"query": query, "batch": batch, "parts": parts}
        if addresses and isinstance(self._archive, Replicas):
            self._archive.commit(addresses.pop(), request)
        else:
            self._archive.accepting().ask("stage_commit", request)

    def _abort(self, batch: int, staged: list[StagedPartition]) -> None:
        parts: dict[tuple[str, str], list[dict[str, int]]] = {}
        for one in staged:
            parts.setdefault((one.address, one.query), []).append({"partition": one.partition, "attempt": one.attempt})
        for (address, query), mine in parts.items():
            archive = Archive(address, self._options.access)
            archive.ask("stage_abort", {"query": query, "batch": batch, "parts": mine}, timeout_s=0)


class BatchWriter(_SinkWriter, DataSourceArrowWriter):
    """The writer of df.write, which writes all rows or none."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Each write is a query of one batch. If the program names the query, a repeated write does nothing.
        self._query = options.query or f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(iterator, self._query, self._options.batch)

    def commit(self, messages: list[Any]) -> None:
        self._commit(self._query, self._options.batch, [one for one in messages if one is not None])

    def abort(self, messages: list[Any]) -> None:
        self._abort(self._options.batch, [one for one in messages if one is not None])


class StreamWriter(_SinkWriter, DataSourceStreamArrowWriter):
    """The writer of df.writeStream, which writes each micro-batch once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "rows are staged in tasks of Spark"
        query = context.getLocalProperty(_QUERY_PROPERTY)
        batch = context.getLocalProperty(_BATCH_PROPERTY)
        if not query or batch is None:
            raise ArchiveError(
                "Spark did not report the query and its batch: this needs PySpark 4.2 or newer, and writeStream"
            )
        return self._stage(iterator, query, int(batch))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        staged = [one for one in messages if one is not None]
        if staged:
            self._commit(staged[0].query, batchId, staged)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._abort(batchId, [one for one in messages if one is not None])


def _check_schema(schema: StructType, options: WriteOptions) -> None:
    """Raise OptionError if rows of this schema cannot be written as messages."""
    types = {one.name: one.dataType for one in schema.fields}
    for name, kind in types.items():
        if name not in _TYPES:
            raise OptionError(f"unknown column {name!r}: choose from {', '.join(_TYPES)}, and drop others")
        if not isinstance(kind, _TYPES[name]):
            allowed = " or ".join(one.typeName() for one in _TYPES[name])
            raise OptionError(f"the column {name} is {kind.simpleString()}: cast it to {allowed}")
    if PAYLOAD not in types:
        raise OptionError("the column payload is missing: select the content of the messages as payload")
    if TOPIC not in types and options.topic is None:
        raise OptionError("the column topic is missing: add it, or give the option topic for all rows")
