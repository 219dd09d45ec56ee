"""`godwit bench log`: confirmed publishes against JetStream, and bytes a second against the bare disk, in one run.

Publishers and broker, a process each, and the broker's log on the disk of one folder. With 100-byte messages
Godwit (QoS 1, confirmed after fdatasync) stands beside JetStream (file store, confirmed before it); with 8 KiB messages
beside a bare file that is synced every 64 KiB, and so does the log without a network. Rounds are interleaved; ratios
are taken round by round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from godwit.limits import MAX_DATAGRAM_BYTES
from godwit_bench import peers
from godwit_bench.log_alone import write_and_commit
from godwit_bench.log_godwit import godwit_logger
from godwit_bench.log_jetstream import jetstream, jetstream_counted
from godwit_bench.log_publishing import Logger, measure
from godwit_bench.log_raw_disk import SYNC_BYTES, append_and_sync
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio

SMALL_BYTES: Final = 100
LARGE_BYTES: Final = 8 * 1024
LARGE_PUBLISHERS: Final = 4
"""So many send the large ones, side by side: the disk is to be busy while one of them waits for a confirm."""
LARGE_DATAGRAM_BYTES: Final = 16_000
"""Of the large ones: a loopback takes far more than the 1472 bytes of an Ethernet, and its figure stands beside."""
MEGABYTE: Final = 1_000_000

OURS: Final = "godwit"
JETSTREAM: Final = "jetstream"
COUNTED: Final = "jetstream_counted"
OURS_LARGE: Final = "godwit_8k"
OURS_ETHERNET: Final = "godwit_8k_ethernet"
ALONE_LARGE: Final = "log_alone_8k"
RAW_DISK: Final = "raw_disk"


def run(
    *,
    folder: Path,
    rounds: int,
    seconds: float,
    on_round: Callable[[str], None],
    on_install: Callable[[str], None],
) -> Report:
    """Measures all, interleaved, and takes the medians. GodwitError if a peer is missing."""
    program = peers.require(on_install, programs=("nats-server",), modules=("nats",))["nats-server"]

    def confirmed_per_s(logger: Logger) -> Callable[[], float]:
        return lambda: measure(logger, folder, seconds, SMALL_BYTES)

    def large_mb_per_s(max_datagram_bytes: int) -> float:
        logger = godwit_logger(LARGE_PUBLISHERS, max_datagram_bytes)
        return measure(logger, folder, seconds, LARGE_BYTES) * LARGE_BYTES / MEGABYTE

    figures = interleaved(
        {
            OURS: confirmed_per_s(godwit_logger()),
            JETSTREAM: confirmed_per_s(jetstream(program)),
            COUNTED: confirmed_per_s(jetstream_counted(program)),
            OURS_LARGE: partial(large_mb_per_s, LARGE_DATAGRAM_BYTES),
            OURS_ETHERNET: partial(large_mb_per_s, MAX_DATAGRAM_BYTES),
            ALONE_LARGE: lambda: write_and_commit(folder, seconds, LARGE_BYTES) / MEGABYTE,
            RAW_DISK: lambda: append_and_sync(folder, seconds) / MEGABYTE,
        },
        rounds,
        on_round,
    )
    units = {
        OURS_LARGE: f"MB/s of payload, {LARGE_BYTES} B messages in datagrams of {LARGE_DATAGRAM_BYTES} B",
        OURS_ETHERNET: f"MB/s of payload, the same in datagrams of {MAX_DATAGRAM_BYTES} B",
        ALONE_LARGE: f"MB/s of payload, {LARGE_BYTES} B messages",
        RAW_DISK: f"MB/s, fdatasync after each {SYNC_BYTES} B",
    }
    confirmed = f"confirmed messages/s of {SMALL_BYTES} B"
    results = [Result(name, statistics.median(values), units.get(name, confirmed)) for name, values in figures.items()]
    ratios = [
        Ratio(
            "vs_jetstream", median_ratio(figures[OURS], figures[JETSTREAM]), "JetStream with nats-py's publish_async"
        ),
        Ratio("vs_jetstream_counted", median_ratio(figures[OURS], figures[COUNTED]), "JetStream, answers counted only"),
        Ratio("vs_raw_disk", median_ratio(figures[OURS_LARGE], figures[RAW_DISK]), "append and fdatasync of 64 KiB"),
        Ratio("ethernet_vs_raw_disk", median_ratio(figures[OURS_ETHERNET], figures[RAW_DISK]), "the same"),
        Ratio("log_alone_vs_raw_disk", median_ratio(figures[ALONE_LARGE], figures[RAW_DISK]), "the same"),
    ]
    return Report("log", machine(), results, ratios)
