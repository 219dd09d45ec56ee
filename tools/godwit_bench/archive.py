"""`godwit bench archive`: the log's past as Arrow against a bare Flight server, and what reading costs the broker.

A Python client reads logs of 100-byte messages on loopback: one of full batches, one in which every message came alone
from one of 10,000 publishers; and the same rows from a Flight server that has them ready in memory. Then messages go
from a publisher through the durable broker to a subscriber, without and with a reader of the archive at nice 19.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from godwit_bench import forward_pair
from godwit_bench.archive_bare import bare_server
from godwit_bench.archive_fill import MESSAGE_BYTES, fill_with_full_batches, fill_with_lone_messages
from godwit_bench.archive_reading import read_for_ever, rows_per_s
from godwit_bench.forward_godwit import pair_with
from godwit_bench.forward_pair import DATAGRAM_BYTES
from godwit_bench.log_godwit import durable_broker
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio
from godwit_bench.stage import Stage

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
        return forward_pair.measure(pair_with(broker), seconds)
    finally:
        shutil.rmtree(copy)
