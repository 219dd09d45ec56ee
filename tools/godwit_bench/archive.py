"""`godwit bench archive`: the archive against a bare Flight server, and the cost of reading for the broker.

A Python client reads logs of 100-byte messages on loopback: one log of full batches, as from one publisher at full
rate, and one in which every message is a batch, from one of 10,000 publishers on topics of their own. The store writes
these logs directly. The bare Flight server has the same rows in the same record batches in memory and sends them by
Flight's own C++. Then messages go from a publisher through the durable broker to a subscriber, without and with a
reader of the archive at nice 19.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from godwit.errors import GodwitError
from godwit.store.folder import DataFolder
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry, make_entry
from godwit_bench import pairs
from godwit_bench.log import durable_broker
from godwit_bench.pairs import DATAGRAM_BYTES, pair_with
from godwit_bench.processes import GIVE_UP_S, HOST, READY, ProcessGroup, receive_reply
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio

MESSAGE_BYTES: Final = 100
FULL_BATCH_MESSAGES: Final = 600
"""About the content of one train."""
FULL_BATCHES_A_COMMIT: Final = 10
"""Measured: the batches that arrived from a publisher at full rate while the disk wrote the ones before."""
PUBLISHERS: Final = 10_000
_LOG_ID_BYTES: Final = 16


def fill_with_full_batches(data: Path, messages: int) -> int:
    """Write a log of at least this many messages to this folder; return their number."""
    return _fill(data, _full_batches(), messages)


def fill_with_lone_messages(data: Path, messages: int, *, a_commit: int = PUBLISHERS) -> int:
    """Write a log with each message in a batch of its own, with `a_commit` messages per commit; return their number."""
    return _fill(data, _lone_messages(a_commit), messages)


def _fill(data: Path, commits: Iterator[list[Entry]], messages: int) -> int:
    folder = DataFolder(data)
    folder.open()
    try:
        now_us = time.time_ns() // 1000
        store = SqliteStore.open(folder.log_path, new_log_id=os.urandom(_LOG_ID_BYTES), now_us=now_us)
        try:
            while store.next_offset < messages:
                store.append(next(commits), ())
            store.checkpoint(truncate=True)
            return store.next_offset
        finally:
            store.close()
    finally:
        folder.close()


def _full_batches() -> Iterator[list[Entry]]:
    payloads = [os.urandom(MESSAGE_BYTES) for _ in range(FULL_BATCH_MESSAGES)]
    while True:
        entry = make_entry("bench/topic", "publisher", payloads, qos=1, now_us=time.time_ns() // 1000)
        yield [entry] * FULL_BATCHES_A_COMMIT


def _lone_messages(a_commit: int) -> Iterator[list[Entry]]:
    devices = [(f"bench/{number}/reading", f"device-{number}") for number in range(PUBLISHERS)]
    payloads = [os.urandom(MESSAGE_BYTES)]
    turn = 0
    while True:
        now_us = time.time_ns() // 1000
        yield [
            make_entry(topic, publisher, payloads, qos=1, now_us=now_us)
            for topic, publisher in (devices[number % PUBLISHERS] for number in range(turn, turn + a_commit))
        ]
        turn += a_commit


# -- a client of the archive ------------------------------------------------------------------------------------------

EVERYTHING: Final = b"{}"
"""The request for all topics, from the oldest message to the newest."""
LOWEST_PRIORITY: Final = 19


def rows_per_s(processes: ProcessGroup, server: str, seconds: float, rows: int) -> float:
    """Return the rows per second of a client that reads for this time; each read must return all `rows`."""
    read, elapsed_s = receive_reply(
        processes.start(_read_for, server, seconds, rows), tuple, within_s=GIVE_UP_S + seconds
    )
    return float(read / elapsed_s)


def read_forever(processes: ProcessGroup, server: str, rows: int) -> None:
    """Start a client at the lowest priority that reads until the end; return once it has read everything once."""
    receive_reply(processes.start(_read_until_killed, server, rows), str)


def open_stream(client: flight.FlightClient) -> flight.FlightStreamReader:
    """Open a stream of all rows of the server."""
    info = client.get_flight_info(flight.FlightDescriptor.for_command(EVERYTHING))
    (endpoint,) = info.endpoints
    return client.do_get(endpoint.ticket)


def _read_for(pipe: Pipe, server: str, seconds: float, rows: int) -> None:
    with flight.connect(server) as client:
        _read_once(client, rows)  # exclude the work of the first read from the measurement
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


# -- the bare server --------------------------------------------------------------------------------------------------


def bare_server(processes: ProcessGroup, archive: str) -> str:
    """Start a server that sends the rows of this archive; return its address."""
    return receive_reply(processes.start(_serve, archive), str)


def _serve(pipe: Pipe, archive: str) -> None:
    with flight.connect(archive) as client:
        table = open_stream(client).read_all()
    server = BareServer(f"grpc://{HOST}:0", table)
    pipe.send(f"grpc://{HOST}:{server.port}")
    server.serve()


class BareServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """A Flight server that sends one table for every request."""

    def __init__(self, location: str, table: pa.Table) -> None:
        super().__init__(location)
        self._table = table

    def get_flight_info(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        endpoints = [flight.FlightEndpoint(flight.Ticket(EVERYTHING), [])]
        return flight.FlightInfo(self._table.schema, descriptor, endpoints, self._table.num_rows, -1)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(self._table)


# -- the benchmark ----------------------------------------------------------------------------------------------------

MESSAGES: Final = 1_000_000
FEW: Final = 150
"""Messages per commit, measured with a thousand small senders with one message in flight each."""
SMALL_BLOCKS_SHARE: Final = 5
"""The factor by which that log is shorter: it needs very many commits."""

FULL: Final = "full"
SINGLE: Final = "single"
SMALL_BLOCKS: Final = "single_small_blocks"
BARE_FULL: Final = "bare_flight_full"
BARE_SINGLE: Final = "bare_flight_single"
ALONE: Final = "forward_alone"
WITH_ARCHIVE: Final = "forward_with_archive"


def run(
    *,
    folder: Path,
    rounds: int,
    seconds: float,
    on_round: Callable[[str], None],
    messages: int = MESSAGES,
) -> Report:
    """Measure everything, interleaved, and return the medians. The logs are written to the disk of this folder."""
    with ProcessGroup(within=folder) as processes:
        on_round("writing the logs")
        logs = _write_logs(processes.folder, messages)
        spare = Log(processes.folder / "spare", logs[FULL].rows)
        shutil.copytree(logs[FULL].data, spare.data)  # the other folders are in use from here on
        on_round("starting the archives")
        archives = {name: durable_broker(processes, log.data, with_archive=True)[1] for name, log in logs.items()}
        bares = {BARE_FULL: FULL, BARE_SINGLE: SINGLE}
        servers = archives | {bare: bare_server(processes, archives[name]) for bare, name in bares.items()}
        measures: dict[str, Callable[[], float]] = {
            name: partial(rows_per_s, processes, server, seconds, logs[bares.get(name, name)].rows)
            for name, server in servers.items()
        }
        measures[ALONE] = partial(_forward, spare, seconds, has_reader=False)
        measures[WITH_ARCHIVE] = partial(_forward, spare, seconds, has_reader=True)
        figures = interleaved(measures, rounds, on_round)
    unit = f"messages/s of {MESSAGE_BYTES} B"
    results = [Result(name, statistics.median(values), unit) for name, values in figures.items()]
    ready = "a bare Flight server that has the same rows ready"
    small = f"the same, with only {FEW} messages a commit"
    ratios = [
        Ratio("full_vs_bare_flight", median_ratio(figures[FULL], figures[BARE_FULL]), ready),
        Ratio("single_vs_bare_flight", median_ratio(figures[SINGLE], figures[BARE_SINGLE]), ready),
        Ratio("single_small_blocks_vs_bare_flight", median_ratio(figures[SMALL_BLOCKS], figures[BARE_SINGLE]), small),
        Ratio(
            "forward_with_archive_vs_alone",
            median_ratio(figures[WITH_ARCHIVE], figures[ALONE]),
            "the same broker without a reader of the archive",
        ),
    ]
    return Report("archive", machine(), results, ratios)


class Log(msgspec.Struct, frozen=True):
    """A data folder, and the number of messages in its log."""

    data: Path
    rows: int


def _write_logs(folder: Path, messages: int) -> dict[str, Log]:
    fills: dict[str, Callable[[Path], int]] = {
        FULL: partial(fill_with_full_batches, messages=messages),
        SINGLE: partial(fill_with_lone_messages, messages=messages),
        SMALL_BLOCKS: partial(fill_with_lone_messages, messages=messages // SMALL_BLOCKS_SHARE, a_commit=FEW),
    }
    return {name: Log(folder / name, fill(folder / name)) for name, fill in fills.items()}


def _forward(log: Log, seconds: float, *, has_reader: bool) -> float:
    """Return the messages per second from a publisher to a subscriber, through a broker on a copy of this log."""
    copy = log.data.with_name("forward")

    def broker(processes: ProcessGroup) -> str:
        address, archive = durable_broker(processes, copy, with_archive=True, max_datagram_bytes=DATAGRAM_BYTES)
        if has_reader:
            read_forever(processes, archive, log.rows)
        return address

    shutil.copytree(log.data, copy)
    try:
        return pairs.measure(pair_with(broker), seconds)
    finally:
        shutil.rmtree(copy)
