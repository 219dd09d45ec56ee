"""A Flight server without a log behind it: record batches that are ready, sent as they are by Flight's own C++.

It is what the archive is measured against: the same columns, the same rows, cut into the same batches, taken once from
the archive itself and then kept in memory.
"""

from __future__ import annotations

from multiprocessing.connection import Connection as Pipe
from typing import Any

import pyarrow as pa
from pyarrow import flight

from godwit_bench.archive_reading import EVERYTHING, open_stream
from godwit_bench.stage import HOST, Stage, hear


def bare_server(stage: Stage, archive: str) -> str:
    """Starts one that sends what this archive has; gives its address."""
    return hear(stage.start(_serve, archive), str)


def _serve(pipe: Pipe, archive: str) -> None:
    with flight.connect(archive) as client:
        table = open_stream(client).read_all()
    server = BareServer(f"grpc://{HOST}:0", table)
    pipe.send(f"grpc://{HOST}:{server.port}")
    server.serve()


class BareServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """One table, for whatever is asked."""

    def __init__(self, location: str, table: pa.Table) -> None:
        super().__init__(location)
        self._table = table

    def get_flight_info(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        endpoints = [flight.FlightEndpoint(flight.Ticket(EVERYTHING), [])]
        return flight.FlightInfo(self._table.schema, descriptor, endpoints, self._table.num_rows, -1)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(self._table)
