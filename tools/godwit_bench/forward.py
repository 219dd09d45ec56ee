"""`godwit bench forward`: the broker against itself with many subscriptions, and against its peers, in one run.

Each system forwards messages of 100 bytes from one publisher to one subscriber, each of the three in a process (Godwit
with QoS 1 in memory and datagrams of 1400 bytes, a Zenoh router over TCP, nats-server), and the messages of a thousand
senders with one message in flight each (Godwit, Mosquitto; QoS 1). Rounds are interleaved; ratios are computed per
round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Final

from godwit_bench import pairs, peers, small_senders
from godwit_bench.pairs import godwit_pair, godwit_system, nats_pair, zenoh_pair
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio
from godwit_bench.small_senders import mosquitto_system
from godwit_bench.subscriptions import MANY, compare

OURS: Final = "godwit"
ZENOH: Final = "zenoh_tcp"
NATS: Final = "nats"
SENDERS: Final = "small_senders"
MOSQUITTO: Final = "small_senders_mosquitto"


def run(
    *,
    rounds: int,
    seconds: float,
    on_round: Callable[[str], None],
    on_install: Callable[[str], None],
    connections: int = small_senders.CONNECTIONS,
    subscriptions: int = MANY,
) -> Report:
    """Measure everything, interleaved, and return the medians. Raises GodwitError if a peer is missing."""
    programs = peers.require(on_install)
    small_senders.allow_files(connections)
    measured = {OURS: godwit_pair(), ZENOH: zenoh_pair(), NATS: nats_pair(programs["nats-server"])}
    systems = {SENDERS: godwit_system(), MOSQUITTO: mosquitto_system(programs["mosquitto"])}
    measures: dict[str, Callable[[], float]] = {
        name: partial(pairs.measure, pair, seconds) for name, pair in measured.items()
    }
    for name, system in systems.items():
        measures[name] = partial(small_senders.measure, system, connections, seconds)
    figures = interleaved(measures, rounds, on_round)
    on_round(f"{subscriptions:,} subscriptions")
    few, many = compare(subscriptions, rounds=rounds, seconds=seconds)
    per_message = f"messages/s of {pairs.MESSAGE_BYTES} B"
    results = [Result(name, statistics.median(values), per_message) for name, values in figures.items()]
    results += [
        Result("forward_1_subscription", statistics.median(few), "batches/s"),
        Result(f"forward_{subscriptions}_subscriptions", statistics.median(many), "batches/s"),
    ]
    ratios = [
        Ratio("subscriptions_100k_vs_1", median_ratio(many, few), "the same broker with one subscription"),
        Ratio("vs_zenoh_tcp", median_ratio(figures[OURS], figures[ZENOH]), "a Zenoh router over TCP"),
        Ratio("vs_nats", median_ratio(figures[OURS], figures[NATS]), "nats-server with nats-py on uvloop"),
        Ratio("small_senders_vs_mosquitto", median_ratio(figures[SENDERS], figures[MOSQUITTO]), "Mosquitto"),
    ]
    return Report("forward", machine(), results, ratios)
