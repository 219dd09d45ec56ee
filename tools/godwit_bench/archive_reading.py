"""A client of the archive, or of a bare Flight server: takes all rows with all columns, again and again."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection as Pipe
from typing import Final

from pyarrow import flight

from godwit.errors import GodwitError
from godwit_bench.stage import GIVE_UP_S, READY, Stage, hear

EVERYTHING: Final = b"{}"
"""The request for all topics, from the oldest message to the newest."""
LOWEST_PRIORITY: Final = 19


def rows_per_s(stage: Stage, server: str, seconds: float, rows: int) -> float:
    """How many rows a second a client gets that reads for so long; each time it must get all `rows`."""
    read, elapsed_s = hear(stage.start(_read_for, server, seconds, rows), tuple, within_s=GIVE_UP_S + seconds)
    return float(read / elapsed_s)


def read_for_ever(stage: Stage, server: str, rows: int) -> None:
    """Starts a client at the lowest priority that reads until the stage ends; returns once it has read all once."""
    hear(stage.start(_read_until_killed, server, rows), str)


def open_stream(client: flight.FlightClient) -> flight.FlightStreamReader:
    """All that the server has."""
    info = client.get_flight_info(flight.FlightDescriptor.for_command(EVERYTHING))
    (endpoint,) = info.endpoints
    return client.do_get(endpoint.ticket)


def _read_for(pipe: Pipe, server: str, seconds: float, rows: int) -> None:
    with flight.connect(server) as client:
        _read_once(client, rows)  # what is done once in a process is not measured
        read = 0
        began = now = time.perf_counter()
        while now < began + seconds:
            read += _read_once(client, rows)
            now = time.perf_counter()
    pipe.send((read, now - began))


def _read_until_killed(pipe: Pipe, server: str, rows: int) -> None:
    os.nice(LOWEST_PRIORITY)
    with flight.connect(server) as client:
        _read_once(client, rows)
        pipe.send(READY)
        while True:
            _read_once(client, rows)


def _read_once(client: flight.FlightClient, at_least: int) -> int:
    read = sum(int(chunk.data.num_rows) for chunk in open_stream(client))
    if read < at_least:
        raise GodwitError(f"{at_least} messages are in the log, and {read} came")
    return read
