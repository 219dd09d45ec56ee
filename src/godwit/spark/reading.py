"""What reading a batch and reading a stream share: columns, where a log begins, pieces for tasks, rows of a piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from godwit.spark.archive import Archive
from godwit.spark.offsets import EARLIEST, LATEST, MAX_EPOCHS, Epochs, Range, cut, parts_for
from godwit.spark.options import OptionError, ReadOptions

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
"""`broker` is the id of the broker's log: with `offset` it names a message for ever."""
BROKER: Final = "broker"


def check_columns(schema: StructType) -> tuple[str, ...]:
    """Those that are wanted, in their order; OptionError if one of them is not ours."""
    ours = {one.name: one.dataType for one in SCHEMA.fields}
    for one in schema.fields:
        if one.name not in ours:
            raise OptionError(f"there is no column {one.name!r}: choose from {', '.join(ours)}")
        if one.dataType != ours[one.name]:
            raise OptionError(
                f"the column {one.name} is {ours[one.name].simpleString()}, not {one.dataType.simpleString()}: "
                "cast it after the load"
            )
    return tuple(one.name for one in schema.fields)


@dataclass
class Piece(InputPartition):
    """A part of one log, for one task."""

    archive: Archive
    range: Range
    gaps_known_below: int
    epochs: Epochs
    """Of the log that the range is meant in; none if that is not known."""


class Reading:
    """What reading a batch and reading a stream share. It is pickled to the executors: no connections in it."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...], parallelism: int) -> None:
        self._options = options
        self._columns = columns
        self._parallelism = parallelism
        self._archives = [Archive(address, options.place) for address in options.place.addresses]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a piece, as Arrow."""
        assert isinstance(partition, Piece)
        piece = partition.range
        wanted = [name for name in self._columns if name != BROKER]
        batches = partition.archive.read(
            piece.log,
            piece.start,
            piece.end,
            topics=self._options.topics,
            columns=wanted or ["offset"],  # how many rows there are must be known, whatever is wanted of them
            fails_on_data_loss=self._options.fails_on_data_loss,
            gaps_known_below=partition.gaps_known_below,
            epochs=partition.epochs,
        )
        for batch in batches:
            yield self._with_broker(batch, piece.log)

    def _with_broker(self, batch: pa.RecordBatch, log: str) -> pa.RecordBatch:
        arrays, fields = [], []
        for name in self._columns:
            array = pa.repeat(log, batch.num_rows) if name == BROKER else batch.column(name)
            arrays.append(array)
            fields.append(pa.field(name, array.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))  # without the archive's metadata

    def _pieces(
        self, ranges: Sequence[Range], places: dict[str, Archive], gaps: dict[str, int], epochs: dict[str, Epochs]
    ) -> list[Piece]:
        rows = sum(one.rows for one in ranges)
        parts = parts_for(rows, self._parallelism, self._options.min_partitions)
        return [
            Piece(places[one.log], one, gaps.get(one.log, 0), epochs.get(one.log, [])[-MAX_EPOCHS:])
            for one in cut(ranges, parts)
        ]

    def _look(self) -> tuple[dict[str, dict[str, Any]], dict[str, Archive]]:
        """What each archive has, by the id of its log."""
        infos: dict[str, dict[str, Any]] = {}
        places: dict[str, Archive] = {}
        for archive in self._archives:
            info = archive.info()
            log = info["log_id"]
            if log in infos:
                raise OptionError(f"the archives at {places[log].address} and {archive.address} are of one broker")
            infos[log] = info
            places[log] = archive
        return infos, places

    def _begin(self, info: dict[str, Any], archive: Archive) -> int:
        """Where reading a log begins that nothing was read of."""
        options = self._options
        if options.starting_time_us is not None:
            return int(archive.ask("offset_for_time", {"time_us": options.starting_time_us})["offset"])
        if options.starting == EARLIEST:
            return int(info["first_offset"])
        if options.starting == LATEST:
            return int(info["next_offset"])
        assert isinstance(options.starting, dict)
        return options.starting.get(info["log_id"], int(info["first_offset"]))

    def _check_logs(self, named: Sequence[str], infos: dict[str, Any], name: str) -> None:
        missing = [log for log in named if log not in infos]
        if missing:
            raise OptionError(
                f"{name} names the log {missing[0]}, which none of the archives has: they have {', '.join(infos)}"
            )


def known_gaps(info: dict[str, Any]) -> int:
    """Below which offset retention's rules had deleted something when a query began."""
    return max([int(mark) for mark in info.get("marks", {}).values()], default=0)
