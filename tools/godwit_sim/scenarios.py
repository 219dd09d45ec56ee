"""Named scenarios: well-known hard networks, each with a figure that it must reach.

15 ms one way, 10 Mbit/s and a queue of 25 packets unless the scenario says otherwise. Goodput is payload counted from
the first data; the capacity is the line's, less the time that it was dark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from godwit.impairment import LinkSettings
from godwit.limits import MIB
from godwit.transport.config import EndpointConfig
from godwit.wire.parameters import Arq
from godwit_sim.transfer import Transfer, TransferPlan, TransferResult

LINE = LinkSettings(delay_s=0.015, bandwidth_bits_per_s=10e6, queue_packets=25)
MB = 1_000_000
ON_S, OFF_S = 5.0, 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    what: str
    goodput_bits_per_s: float | None
    capacity_bits_per_s: float
    repeated_share: float
    floor: float | None
    """The least ratio of goodput to capacity (for `two-connections`: of the smaller share to the whole)."""
    ratio: float | None
    passed: bool
    note: str = ""


Runner = Callable[[int], list[Row]]
"""Runs a scenario with so many seeds (where it is a mean) and gives its rows."""


def _run(name: str, what: str, plan: TransferPlan, *, floor: float | None, seeds: int = 1) -> Row:
    """A transfer that must complete and reach the floor, as the mean of several seeds."""
    results = [Transfer(plan, seed).run() for seed in range(1, seeds + 1)]
    goodput = sum(result.goodput_bits_per_s for result in results) / seeds
    capacity = sum(_capacity(plan, result) for result in results) / seeds
    note = "; ".join(dict.fromkeys(filter(None, map(_complaint, results))))
    ratio = goodput / capacity
    passed = not note and (floor is None or ratio >= floor)
    repeated = sum(result.repeated_share for result in results) / seeds
    return Row(name, what, goodput, capacity, repeated, floor, ratio, passed, note)


def _capacity(plan: TransferPlan, result: TransferResult) -> float:
    """What the line could carry, on average over the time from the first data to the last."""
    assert plan.up.bandwidth_bits_per_s is not None
    first_s, last_s = result.first_data_s, max(result.last_data_s, result.first_data_s + 1e-9)
    dark_s = sum(max(0.0, min(end, last_s) - max(start, first_s)) for start, end in plan.up.outages)
    return plan.up.bandwidth_bits_per_s * (1.0 - dark_s / (last_s - first_s))


def _complaint(result: TransferResult) -> str:
    """Why a transfer failed; empty if it did not."""
    if result.violation is not None:
        return result.violation
    if result.complete:
        return ""
    closed = [f"{transfer.label} {transfer.closed}" for transfer in result.transfers if transfer.closed]
    missing = sum(transfer.finished_s is None for transfer in result.transfers)
    return f"{missing} of {len(result.transfers)} transfers incomplete" + (f" ({', '.join(closed)})" if closed else "")


def _handshake(name: str, what: str, line: LinkSettings, seeds: int) -> Row:
    starts_s = tuple(number * 0.1 for number in range(50))
    plan = TransferPlan(up=line, down=line, each_bytes=1000, starts_s=starts_s, until_s=120.0)
    row = _run(name, what, plan, floor=None, seeds=seeds)
    return replace(row, goodput_bits_per_s=None, ratio=None)


def handshake_loss(seeds: int) -> list[Row]:
    line = replace(LINE, loss=0.3, burst_max_packets=3)
    return [_handshake("handshake-loss", "50 connections of 1 KB, 30 % loss each way, bursts up to 3", line, seeds)]


def handshake_corruption(seeds: int) -> list[Row]:
    line = replace(LINE, corruption=0.3, burst_max_packets=3)
    return [_handshake("handshake-corruption", "the same with corruption in place of loss", line, seeds)]


def loss(seeds: int) -> list[Row]:
    line = replace(LINE, loss=0.02)
    plan = TransferPlan(up=line, down=line, each_bytes=2 * MB)
    return [_run("loss", f"2 MB under 2 % loss, mean of {seeds} seeds", plan, floor=0.8, seeds=seeds)]


def corruption(seeds: int) -> list[Row]:
    line = replace(LINE, corruption=0.02)
    plan = TransferPlan(up=line, down=line, each_bytes=2 * MB)
    return [_run("corruption", f"2 MB under 2 % corruption, mean of {seeds} seeds", plan, floor=0.8, seeds=seeds)]


def black_hole(seeds: int) -> list[Row]:
    period_s = ON_S + OFF_S
    outages = tuple((number * period_s + ON_S, (number + 1) * period_s) for number in range(40))
    line = replace(LINE, outages=outages)
    plan = TransferPlan(up=line, down=line, each_bytes=10 * MB)
    return [_run("black-hole", "10 MB, the line 5 s on and 2 s off", plan, floor=0.75)]


def port_change(seeds: int) -> list[Row]:
    rebinds_s = tuple(1.0 + 5.0 * number for number in range(60))
    plan = TransferPlan(up=LINE, down=LINE, each_bytes=10 * MB, rebinds_s=rebinds_s)
    return [_run("port-change", "10 MB, another port after 1 s and then every 5 s", plan, floor=0.8)]


def long_delay(seeds: int) -> list[Row]:
    """A satellite and more: the line holds 1.9 MB, so the windows must be larger."""
    line = replace(LINE, delay_s=0.75)
    client = EndpointConfig(channel_window_bytes=8 * MIB, connection_window_bytes=16 * MIB, send_buffer_bytes=16 * MIB)
    plan = TransferPlan(up=line, down=line, each_bytes=20 * MB, client=client, server=replace(client, accepts=True))
    return [_run("long-delay", "20 MB, 750 ms one way", plan, floor=0.45)]


def reordering(seeds: int) -> list[Row]:
    line = replace(LINE, reordering=0.1, reorder_delay_s=(0.001, 0.015))
    plan = TransferPlan(up=line, down=line, each_bytes=4 * MB)
    return [_run("reordering", "4 MB, 10 % of datagrams overtaken", plan, floor=0.85)]


def duplication(seeds: int) -> list[Row]:
    line = replace(LINE, duplication=0.05)
    plan = TransferPlan(up=line, down=line, each_bytes=4 * MB)
    return [_run("duplication", "4 MB, 5 % of datagrams twice", plan, floor=0.85)]


def two_connections(seeds: int) -> list[Row]:
    """Both send for all of the 60 s; the one that came first has no right to more."""
    plan = TransferPlan(up=LINE, down=LINE, each_bytes=1000 * MB, starts_s=(0.0, 1.0), until_s=60.0)
    result = Transfer(plan, 1).run()
    shares = [transfer.received_bytes / max(1, result.payload_bytes) for transfer in result.transfers]
    goodput = result.payload_bytes * 8.0 / 60.0
    smaller = min(shares)
    passed = result.violation is None and smaller >= 0.4 and goodput >= 0.8 * 10e6
    note = result.violation or f"shares {shares[0]:.0%} and {shares[1]:.0%}"
    what = "two connections for 60 s, the second 1 s later: the smaller share"
    return [Row("two-connections", what, goodput, 10e6, result.repeated_share, 0.4, smaller, passed, note)]


def disciplines(seeds: int) -> list[Row]:
    """Selective repeat before go-back-n before stop-and-wait, as the theory says for any loss."""
    line = replace(LINE, loss=0.02)
    floors: Mapping[Arq, float] = {"selective-repeat": 0.8, "go-back-n": 0.25, "stop-and-wait": 0.02}
    rows: list[Row] = []
    for arq, floor in floors.items():
        plan = TransferPlan(up=line, down=line, each_bytes=2 * MB, client=EndpointConfig(arq=arq))
        row = _run(arq, f"2 MB under 2 % loss with {arq}", plan, floor=floor, seeds=min(seeds, 3))
        if rows and (row.ratio or 0.0) >= (rows[-1].ratio or 0.0):
            row = replace(row, passed=False, note=f"not slower than {rows[-1].name}")
        rows.append(row)
    return rows


SCENARIOS: Mapping[str, Runner] = {
    "handshake-loss": handshake_loss,
    "handshake-corruption": handshake_corruption,
    "loss": loss,
    "corruption": corruption,
    "black-hole": black_hole,
    "port-change": port_change,
    "long-delay": long_delay,
    "reordering": reordering,
    "duplication": duplication,
    "two-connections": two_connections,
    "disciplines": disciplines,
}

SEEDS = 20
"""How many runs a mean is made of."""


def run_scenario(name: str, seeds: int = SEEDS) -> list[Row]:
    """The rows of one scenario."""
    return SCENARIOS[name](seeds)
