"""Logs for the archive to read, written by the store itself: what a broker would have written, without waiting for it.

The two extremes: one publisher at full rate, whose batches are full; and ten thousand devices that publish one message
each in turn, on a topic of their own, so that every message is a batch.

A client of the archive, or of a bare Flight server: takes all rows with all columns, again and again.

A Flight server without a log behind it: record batches that are ready, sent as they are by Flight's own C++.

It is what the archive is measured against: the same columns, the same rows, cut into the same batches, taken once from
the archive itself and then kept in memory.

`godwit bench archive`: the log's past as Arrow against a bare Flight server, and what reading costs the broker.

A Python client reads logs of 100-byte messages on loopback: one of full batches, one in which every message came alone
from one of 10,000 publishers; and the same rows from a Flight server that has them ready in memory. Then messages go
from a publisher through the durable broker to a subscriber, without and with a reader of the archive at nice 19.
"""

from __future__ import annotations

import os
import shutil
import statistics
import struct
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
from godwit.wire.batch import LONE, QOS_SHIFT
from godwit.wire.entry import Entry
from godwit_bench import pairs
from godwit_bench.log import durable_broker
from godwit_bench.pairs import DATAGRAM_BYTES, pair_with
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio
from godwit_bench.stage import GIVE_UP_S, HOST, READY, Stage, hear

MESSAGE_BYTES: Final = 100
FULL_BATCH_MESSAGES: Final = 600
"""About what one train carries."""
FULL_BATCHES_A_COMMIT: Final = 10
"""Measured: so many came in from a publisher at full rate while the disk was busy with the ones before."""
PUBLISHERS: Final = 10_000
_QOS_1: Final = 1 << QOS_SHIFT
_LOG_ID_BYTES: Final = 16


def fill_with_full_batches(data: Path, messages: int) -> int:
    """Makes a log of at least so many messages in this folder; gives how many."""
    return _fill(data, _full_batches(), messages)


def fill_with_lone_messages(data: Path, messages: int, *, a_commit: int = PUBLISHERS) -> int:
    """The same with every message alone; so many share a commit."""
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
    lengths = struct.pack(f">{FULL_BATCH_MESSAGES + 1}I", FULL_BATCH_MESSAGES, *[MESSAGE_BYTES] * FULL_BATCH_MESSAGES)
    rest = lengths + os.urandom(FULL_BATCH_MESSAGES * MESSAGE_BYTES)
    while True:
        now_us = time.time_ns() // 1000
        entry = Entry("bench/topic", "publisher", _QOS_1, now_us, now_us, None, 0, FULL_BATCH_MESSAGES, rest)
        yield [entry] * FULL_BATCHES_A_COMMIT


def _lone_messages(a_commit: int) -> Iterator[list[Entry]]:
    devices = [(f"bench/{number}/reading", f"device-{number}") for number in range(PUBLISHERS)]
    payload = os.urandom(MESSAGE_BYTES)
    turn = 0
    while True:
        now_us = time.time_ns() // 1000
        yield [
            Entry(*devices[number % PUBLISHERS], _QOS_1 | LONE, now_us, now_us, None, 0, 1, payload)
            for number in range(turn, turn + a_commit)
        ]
        turn += a_commit


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


MESSAGES: Final = 1_000_000
FEW: Final = 150
"""Messages a commit: what a thousand small senders with one message in flight each gave a broker, measured."""
SMALL_BLOCKS_SHARE: Final = 5
"""That log is shorter by so much: it takes very many commits to write it."""

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
    """Measures all, interleaved, and takes the medians. The logs are written to the disk of this folder."""
    with Stage(within=folder) as stage:
        on_round("writing the logs")
        logs = _write_logs(stage.folder, messages)
        spare = Log(stage.folder / "spare", logs[FULL].rows)
        shutil.copytree(logs[FULL].data, spare.data)  # the others are in use from here on
        on_round("starting the archives")
        archives = {name: durable_broker(stage, log.data, with_archive=True)[1] for name, log in logs.items()}
        bares = {BARE_FULL: FULL, BARE_SINGLE: SINGLE}
        servers = archives | {bare: bare_server(stage, archives[name]) for bare, name in bares.items()}
        measures: dict[str, Callable[[], float]] = {
            name: partial(rows_per_s, stage, server, seconds, logs[bares.get(name, name)].rows)
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
            "the same broker while nobody reads the archive",
        ),
    ]
    return Report("archive", machine(), results, ratios)


class Log(msgspec.Struct, frozen=True):
    """A data folder, and how many messages are in its log."""

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
    """Messages a second from a publisher to a subscriber, through a broker on a copy of this log."""
    copy = log.data.with_name("forward")

    def broker(stage: Stage) -> str:
        address, archive = durable_broker(stage, copy, with_archive=True, max_datagram_bytes=DATAGRAM_BYTES)
        if has_reader:
            read_for_ever(stage, archive, log.rows)
        return address

    shutil.copytree(log.data, copy)
    try:
        return pairs.measure(pair_with(broker), seconds)
    finally:
        shutil.rmtree(copy)
