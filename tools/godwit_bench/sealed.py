"""Sealed connections beside plain ones: how much slower they are, and the cost of their handshakes and memory.

Throughput is measured like that of plain connections, with the same processes, in interleaved rounds. Handshakes are
measured between two endpoints in one process, without sockets: the processor time of each side is counted apart. Memory
is the growth of a process with many open pairs of connections, sealed and plain, half of it for each side.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import msgspec

from godwit.errors import GodwitError
from godwit.net.tls import BrokerSealer, new_client_session, new_identity, ordered_suites
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, ConnectionState, Role, Train
from godwit.transport.protection import Suite
from godwit.transport.sealing import TlsSession
from godwit_bench import pairs, small_senders
from godwit_bench.processes import GIVE_UP_S, HOST
from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio

HANDSHAKES: Final = 200
PAIRS: Final = 1000
_SERVER: Final[Address] = (HOST, 2)
_STEP_S: Final = 0.001
_MAX_STEPS: Final = 1000


class BenchSealer:
    """Seals both sides, with a key of its own. A client accepts every certificate, after the work of its check."""

    def __init__(self) -> None:
        self._broker = BrokerSealer(new_identity())

    def suites(self) -> Sequence[Suite]:
        return ordered_suites()

    def new_session(self, role: Role, address: Address) -> TlsSession | None:
        return self._broker.new_session() if role == "server" else new_client_session(lambda chain: None)

    def plain_problem(self, address: Address) -> str:
        return ""


# -- handshakes and memory --------------------------------------------------------------------------------------------


class HandshakeCost(msgspec.Struct, frozen=True):
    """The processor time of one handshake."""

    server_s: float
    client_s: float


def connected_pair(server: Endpoint, sealer: BenchSealer | None, number: int) -> tuple[Endpoint, float, float]:
    """Connect a new client to a server; return it with the processor time of server and client."""
    client = Endpoint(EndpointConfig(), entropy=os.urandom, sealer=sealer)
    address: Address = (f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 1)
    now = time.monotonic()
    client.connect(_SERVER, now)
    spent = [0.0, 0.0]
    for _ in range(_MAX_STEPS):
        now += _STEP_S
        moved = False
        for side, (source, target, origin) in enumerate(((client, server, address), (server, client, _SERVER))):
            began = time.thread_time()
            source.handle_timers(now)
            trains = source.trains(now)
            spent[1 - side] += time.thread_time() - began
            began = time.thread_time()
            for train in trains:
                moved = True
                target.receive(Train(origin, train.data, train.segment_bytes), now)
            spent[side] += time.thread_time() - began
        client.events()
        server.events()
        if not moved and any(one.state is ConnectionState.OPEN for one in client.connections.values()):
            return client, spent[0], spent[1]
    raise GodwitError("a connection between two endpoints was not opened: run the benchmark again")


def measure_handshakes(count: int, *, is_sealed: bool) -> HandshakeCost:
    """Return the median cost of this number of handshakes, one after the other."""
    sealer = BenchSealer() if is_sealed else None
    server = Endpoint(EndpointConfig(accepts=True, max_connections=2 * count), entropy=os.urandom, sealer=sealer)
    spent = [connected_pair(server, sealer, number)[1:] for number in range(count)]
    return HandshakeCost(statistics.median(one[0] for one in spent), statistics.median(one[1] for one in spent))


def measure_memory(count: int, *, is_sealed: bool) -> float:
    """Return the bytes that one open connection takes, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_hold, args=(there, count, is_sealed), daemon=True)
    process.start()
    try:
        if not here.poll(4 * GIVE_UP_S):
            raise GodwitError(f"{count} connections were not opened in time: run it again on a quieter machine")
        return float(here.recv())
    finally:
        process.kill()
        process.join()


def _hold(pipe: Pipe, count: int, is_sealed: bool) -> None:
    sealer = BenchSealer() if is_sealed else None
    server = Endpoint(EndpointConfig(accepts=True, max_connections=4 * count), entropy=os.urandom, sealer=sealer)
    clients = [connected_pair(server, sealer, number)[0] for number in range(count // 4)]  # warms up caches and pools
    before = _resident_bytes()
    clients += [connected_pair(server, sealer, count + number)[0] for number in range(count)]
    pipe.send((_resident_bytes() - before) / count / 2)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- reports ----------------------------------------------------------------------------------------------------------


def report_transport(
    measures: dict[str, Callable[[], float]],
    unit: str,
    *,
    rounds: int,
    on_round: Callable[[str], None],
    handshakes: int = HANDSHAKES,
    connections: int = PAIRS,
) -> Report:
    """Return the report of `bench transport --sealed`. `measures`: the plain transport, then the sealed one."""
    figures = interleaved(measures, rounds, on_round)
    plain, sealed = figures.values()
    on_round("handshakes")
    costs = {name: measure_handshakes(handshakes, is_sealed=name == "sealed") for name in ("plain", "sealed")}
    on_round("memory")
    memory = {name: measure_memory(connections, is_sealed=name == "sealed") for name in ("plain", "sealed")}
    results = [Result(name, statistics.median(values), unit) for name, values in figures.items()]
    for name, cost in costs.items():
        results += [
            Result(f"{name} handshakes of a server", 1 / cost.server_s, "handshakes/s of one core"),
            Result(f"{name} handshake, server", cost.server_s * 1e6, "us of processor time"),
            Result(f"{name} handshake, client", cost.client_s * 1e6, "us of processor time"),
        ]
    results += [Result(f"{name} connection", value, "bytes of memory, each side") for name, value in memory.items()]
    results.append(Result("sealed connection, more than plain", memory["sealed"] - memory["plain"], "bytes of memory"))
    ratios = [Ratio("sealed_vs_plain", median_ratio(sealed, plain), "the same transport without sealing")]
    return Report("transport --sealed", machine(), results, ratios)


def report_forward(
    *, rounds: int, seconds: float, on_round: Callable[[str], None], connections: int = small_senders.CONNECTIONS
) -> Report:
    """Return the report of `bench forward --sealed`."""
    small_senders.allow_files(connections)
    senders = {"small senders": pairs.godwit_system(), "small senders, sealed": pairs.sealed_system()}
    measures: dict[str, Callable[[], float]] = {
        "forward": partial(pairs.measure, pairs.godwit_pair(), seconds),
        "forward, sealed": partial(pairs.measure, pairs.sealed_pair(), seconds),
    }
    for name, system in senders.items():
        measures[name] = partial(small_senders.measure, system, connections, seconds)
    figures = interleaved(measures, rounds, on_round)
    plain, sealed, few, few_sealed = figures.values()
    unit = f"messages/s of {pairs.MESSAGE_BYTES} B"
    results = [Result(name, statistics.median(values), unit) for name, values in figures.items()]
    against = "the same broker and clients without sealing"
    ratios = [
        Ratio("sealed_vs_plain", median_ratio(sealed, plain), against),
        Ratio("sealed_small_senders_vs_plain", median_ratio(few_sealed, few), against),
    ]
    return Report("forward --sealed", machine(), results, ratios)
