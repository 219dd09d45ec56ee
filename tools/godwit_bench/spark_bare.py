"""A minimal Python data source for Spark, with which Godwit's source is compared.

A Flight server has the rows in memory, in the record batches of the archive, with all columns of Godwit's source. The
source requests a range of them and passes them on: no log, no lookup of offsets, no filters, no explained errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from typing import Any

import pyarrow as pa
from pyarrow import flight
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from godwit.spark.reader import BROKER, SCHEMA
from godwit_bench.archive import open_stream
from godwit_bench.processes import HOST, ProcessGroup, receive_reply

FORMAT = "bare"


def bare_server(processes: ProcessGroup, archive: str) -> str:
    """Start a server that sends the rows of this archive; return its address."""
    return receive_reply(processes.start(_serve, archive), str)


def _serve(pipe: Pipe, archive: str) -> None:
    server = RangeServer(f"grpc://{HOST}:0", rows_of(archive))
    pipe.send(f"grpc://{HOST}:{server.port}")
    server.serve()


def rows_of(archive: str) -> pa.Table:
    """Return all rows of the archive, as Godwit's source passes them to Spark."""
    with flight.connect(archive) as client:
        reader = open_stream(client)
        log = (reader.schema.metadata or {}).get(b"godwit.log_id", b"").decode()
        batches = [chunk.data for chunk in reader]
    names = SCHEMA.names
    arrays = [
        [pa.repeat(log, batch.num_rows) if name == BROKER else batch.column(name) for name in names]
        for batch in batches
    ]
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(columns, names) for columns in arrays])


class RangeServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """One table, whose rows are requested by their numbers."""

    def __init__(self, location: str, table: pa.Table) -> None:
        super().__init__(location)
        self._table = table

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        start, end = map(int, ticket.ticket.decode().split(","))
        return flight.RecordBatchStream(self._table.slice(start, end - start))


# -- in Spark ---------------------------------------------------------------------------------------------------------


@dataclass
class _Piece(InputPartition):
    start: int
    end: int


class _Reading:
    """The common part of a batch and a stream."""

    def __init__(self, options: Any) -> None:
        self._address = options["address"]
        self._rows = int(options["rows"])
        self._pieces = int(options["pieces"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Piece)
        with flight.connect(self._address) as client:
            for chunk in client.do_get(flight.Ticket(f"{partition.start},{partition.end}".encode())):
                yield chunk.data

    def cut(self) -> Sequence[InputPartition]:
        """Return all rows, in as many partitions as Godwit's source uses."""
        edges = [self._rows * index // self._pieces for index in range(self._pieces + 1)]
        return [_Piece(start, end) for start, end in pairwise(edges)]


class _Batch(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self.cut()


class _Stream(_Reading, DataSourceStreamReader):
    """One micro-batch with everything."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # this and the next are Spark's names
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        return {"at": self._rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self.cut() if start != end else []

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the server keeps no position."""


class BareSource(DataSource):
    """Options: address, rows, pieces."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Batch(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _Stream(self.options)
