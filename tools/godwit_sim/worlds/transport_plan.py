"""The plan of one seed of the transport world: everything is drawn here, before the simulation starts.

Each seed first draws which kinds of trouble it has at all, so that many seeds test one thing hard and some test
everything at once. Sizes and times are kept small enough for a few tenths of a second of computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

from godwit.impairment import LinkSettings
from godwit.limits import BASE_DATAGRAM_BYTES, KIB, MAX_UNRELIABLE_BYTES
from godwit.transport.config import EndpointConfig
from godwit.wire.parameters import Arq
from godwit_sim.attacker import BLIND, FORGING, SEEING, AttackPlan

TROUBLES = (
    "loss", "bursts", "duplication", "reordering", "corruption", "truncation", "jitter", "bandwidth", "mtu",
    "partition", "rebind", "server_dies", "client_dies", "client_closes", "server_closes", "attacker", "late_readers",
    "small_windows", "coarse_timers", "slow_wakes", "short_idle", "small_buffers", "few_places", "route",
    "pause", "eager",
)  # fmt: skip

BUDGET_BYTES: dict[Arq, int] = {"selective-repeat": 2000 * KIB, "go-back-n": 600 * KIB, "stop-and-wait": 200 * KIB}
"""The bytes that all clients of a seed send and receive together, to limit its run time."""

CONTROL = -1

FaultKind = Literal[
    "partition", "rebind", "route", "pause", "server_dies", "client_dies", "client_closes", "server_closes"
]


@dataclass(frozen=True, slots=True)
class Sending:
    """One record that an application sends, at this time after its start."""

    at_s: float
    channel_index: int
    """The sender's channel by index; it is opened when first used. CONTROL is channel 0, which always exists."""
    size_bytes: int
    reliable: bool = True
    last: bool = False


@dataclass(frozen=True, slots=True)
class HostPlan:
    """How a machine schedules its process."""

    joins: bool
    wake_delay_s: float
    timer_step_s: float
    epoch_s: float


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client: its machine, its links, and the records to send in both directions."""

    start_s: float
    host: HostPlan
    config: EndpointConfig
    up: LinkSettings
    down: LinkSettings
    sends_up: tuple[Sending, ...]
    sends_down: tuple[Sending, ...]
    reads_after_s: float
    """How long its application holds a record before it consumes it."""
    eager: bool
    """It sends before it is connected."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the client with that number (or of the server) at that time."""

    at_s: float
    kind: FaultKind
    client: int
    lasts_s: float = 0.0
    route: tuple[LinkSettings, LinkSettings] | None = None
    """The settings of the links up and down from now on."""


@dataclass(frozen=True, slots=True)
class TransportPlan:
    """The plan of one seed."""

    seed: int
    troubles: tuple[str, ...]
    faults_end_s: float
    server_host: HostPlan
    server: EndpointConfig
    server_reads_after_s: float
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    attack: AttackPlan | None

    @property
    def idle_timeout_s(self) -> float:
        """Return the longest idle timeout."""
        return max(self.server.idle_timeout_s, *(client.config.idle_timeout_s for client in self.clients))


def draw_plan(seed: int, known: Sequence[str] = TROUBLES) -> TransportPlan:
    """Draw the plan of this seed, with troubles from `known`."""
    rng = Random(f"transport plan {seed}")
    likely = rng.choice((0.0, 0.15, 0.3, 0.6))
    troubles = tuple(name for name in known if rng.random() < likely)
    faults_end_s = rng.uniform(1.0, 20.0)
    arq: Arq = rng.choice(("selective-repeat", "selective-repeat", "go-back-n", "stop-and-wait"))
    count = rng.choice((1, 1, 2, 3, 4, 6))
    budget = BUDGET_BYTES[arq] // count
    server = _draw_config(rng, troubles, "selective-repeat", accepts=True)
    if "few_places" in troubles:
        server = replace(server, max_connections=count + rng.choice((0, 1, 2)))
    clients = tuple(_draw_client(rng, troubles, arq, budget, faults_end_s) for _ in range(count))
    return TransportPlan(
        seed=seed,
        troubles=troubles,
        faults_end_s=faults_end_s,
        server_host=_draw_host(rng, troubles),
        server=server,
        server_reads_after_s=_draw_reading(rng, troubles),
        clients=clients,
        faults=_draw_faults(rng, troubles, count, faults_end_s),
        attack=_draw_attack(rng, faults_end_s) if "attacker" in troubles else None,
    )


def _draw_host(rng: Random, troubles: tuple[str, ...]) -> HostPlan:
    return HostPlan(
        joins=rng.random() < 0.7,
        wake_delay_s=rng.choice((0.0, 0.00005, 0.001, 0.005)) if "slow_wakes" in troubles else 0.0,
        timer_step_s=rng.choice((0.0, 0.001, 0.016)) if "coarse_timers" in troubles else 0.0,
        epoch_s=rng.choice((0.0, rng.uniform(0.0, 1e3), rng.uniform(0.0, 1e7))),
    )


def _draw_reading(rng: Random, troubles: tuple[str, ...]) -> float:
    return rng.choice((0.0, 0.01, 0.2, 1.0)) if "late_readers" in troubles else 0.0


def _draw_config(rng: Random, troubles: tuple[str, ...], arq: Arq, *, accepts: bool) -> EndpointConfig:
    small = "small_windows" in troubles
    channel_window = rng.choice((8 * KIB, 64 * KIB, 320 * KIB)) if small else 2048 * KIB
    idle_timeout_s = rng.choice((3.0, 6.0, 15.0)) if "short_idle" in troubles else 30.0
    return EndpointConfig(
        accepts=accepts,
        arq=arq,
        arq_window=rng.choice((1, 2, 7, 15, 15, 15, 64)),
        max_datagram_bytes=rng.choice((1200, 1280, 1472, 1472, 1472)),
        receive_buffer_bytes=rng.choice((16 * KIB, 212_992)) if small else 212_992,
        channel_window_bytes=channel_window,
        connection_window_bytes=channel_window * rng.choice((1, 2, 4)),
        max_record_bytes=400 * KIB,
        send_buffer_bytes=rng.choice((8 * KIB, 64 * KIB)) if "small_buffers" in troubles else 4096 * KIB,
        idle_timeout_s=idle_timeout_s,
        keep_alive_s=idle_timeout_s / 3.0,
        reset_key=rng.randbytes(32) if accepts else b"",
    )


def _draw_client(
    rng: Random, troubles: tuple[str, ...], arq: Arq, budget_bytes: int, faults_end_s: float
) -> ClientPlan:
    up, down = (_draw_link(rng, troubles) for _ in range(2))
    down_bytes = int(budget_bytes * rng.choice((0.0, 0.2, 0.5)))
    return ClientPlan(
        start_s=rng.choice((0.0, rng.uniform(0.0, faults_end_s / 2))),
        host=_draw_host(rng, troubles),
        config=_draw_config(rng, troubles, arq, accepts=False),
        up=up,
        down=down,
        sends_up=_draw_sends(rng, budget_bytes - down_bytes, faults_end_s),
        sends_down=_draw_sends(rng, down_bytes, faults_end_s),
        reads_after_s=_draw_reading(rng, troubles),
        eager="eager" in troubles,
    )


def _draw_link(rng: Random, troubles: tuple[str, ...]) -> LinkSettings:
    delay_s = rng.choice((0.0, 0.0005, 0.005, 0.015, 0.06, 0.3))
    bandwidth = 2.0 ** rng.uniform(18.0, 27.0) if "bandwidth" in troubles else None  # 0.26 to 134 Mbit/s

    def share(trouble: str, most: float) -> float:
        return rng.choice((0.01, most / 2, most)) if trouble in troubles and rng.random() < 0.8 else 0.0

    return LinkSettings(
        delay_s=delay_s,
        jitter_s=delay_s * rng.random() if "jitter" in troubles else 0.0,
        bandwidth_bits_per_s=bandwidth,
        queue_packets=rng.choice((10, 25, 100)) if bandwidth else None,
        mtu_bytes=rng.choice((1228, 1300, 1400, 1500)) if "mtu" in troubles else 1500,
        loss=share("loss", 0.25),
        corruption=share("corruption", 0.15),
        burst_mean_packets=rng.choice((2.0, 4.0)) if "bursts" in troubles else None,
        burst_max_packets=rng.choice((3, 10)) if "bursts" in troubles else None,
        truncation=share("truncation", 0.1),
        duplication=share("duplication", 0.2),
        reordering=share("reordering", 0.2),
        reorder_delay_s=(0.0001, max(0.001, delay_s)),
    )


def _draw_sends(rng: Random, budget_bytes: int, faults_end_s: float) -> tuple[Sending, ...]:
    """Draw records up to the budget: bursts and pauses, all sizes, some channels that end."""
    if budget_bytes <= 0:
        return ()
    sends: list[Sending] = []
    channel_count = rng.randint(1, 4)
    unreliable = rng.choice((0.0, 0.0, 0.3))
    large = rng.random() < 0.3
    left_bytes = int(budget_bytes * rng.uniform(0.05, 1.0))
    at_s = 0.0
    while left_bytes > 0 and len(sends) < 300:
        if rng.random() < 0.2:
            at_s += rng.expovariate(15.0 / faults_end_s)
        reliable = rng.random() >= unreliable
        size = min(_draw_size(rng, large), left_bytes) if reliable else rng.randint(0, MAX_UNRELIABLE_BYTES)
        left_bytes -= size + 64
        if not reliable and rng.random() < 0.01:  # more than an endpoint buffers for one opportunity to send
            sends += [Sending(at_s, rng.randrange(channel_count), MAX_UNRELIABLE_BYTES, reliable=False)] * 250
        channel_index = CONTROL if reliable and size < 4000 and rng.random() < 0.1 else rng.randrange(channel_count)
        sends.append(Sending(at_s, channel_index, size, reliable))
    ends = {channel_index for channel_index in range(channel_count) if rng.random() < 0.3}
    for index in reversed(range(len(sends))):
        send = sends[index]
        if send.channel_index in ends and send.reliable:
            ends.discard(send.channel_index)
            sends[index] = Sending(send.at_s, send.channel_index, send.size_bytes, last=True)
            sends[index + 1 :] = [later for later in sends[index + 1 :] if later.channel_index != send.channel_index]
    return tuple(sends)


def _draw_size(rng: Random, large: bool) -> int:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((0, 1))
    if kind < 0.6:
        return rng.randint(2, 300)
    if kind < 0.8:
        return rng.randint(1100, 1500)
    if kind < 0.97 or not large:
        return rng.randint(2_000, 20_000)
    return rng.randint(50_000, 300_000)


def _draw_faults(rng: Random, troubles: tuple[str, ...], clients: int, faults_end_s: float) -> tuple[Fault, ...]:
    faults = []
    for kind in get_args(FaultKind):
        if kind not in troubles:
            continue
        for _ in range(rng.choice((1, 2, 4, 8))):
            at_s = rng.uniform(0.0, faults_end_s)
            faults.append(
                Fault(
                    at_s=at_s,
                    kind=kind,
                    client=rng.randrange(clients),
                    lasts_s=min(rng.choice((0.05, 0.5, rng.uniform(0.0, faults_end_s))), faults_end_s - at_s),
                    route=(_draw_link(rng, troubles), _draw_link(rng, troubles)) if kind == "route" else None,
                )
            )
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw_attack(rng: Random, faults_end_s: float) -> AttackPlan:
    kinds: tuple[str, ...] = rng.choice((BLIND, BLIND, BLIND + SEEING, SEEING, SEEING + FORGING))
    return AttackPlan(
        from_s=0.0,
        until_s=faults_end_s,
        strikes=rng.choice((20, 100, 300)),
        kinds=kinds,
        spoofs=rng.random() < 0.7,
    )


def patience_s(plan: TransportPlan) -> float:
    """Return how long after the network has healed all records may take to arrive: generous, but finite."""
    longest = 0.0
    for client in plan.clients:
        sends = (*client.sends_up, *client.sends_down)
        total_bytes = sum(send.size_bytes + 200 for send in sends)
        slowest = min(link.bandwidth_bits_per_s or 1e9 for link in (client.up, client.down))
        trip_s = client.up.delay_s + client.down.delay_s + 0.1
        windows: dict[Arq, int] = {"selective-repeat": 16, "go-back-n": client.config.arq_window, "stop-and-wait": 1}
        fragments = total_bytes / BASE_DATAGRAM_BYTES + len(sends)
        turns = total_bytes / min(client.config.channel_window_bytes, plan.server.channel_window_bytes)
        reading_s = client.reads_after_s + plan.server_reads_after_s
        longest = max(
            longest,
            8 * total_bytes * 8 / slowest
            + 4 * fragments / windows[client.config.arq] * trip_s
            + 4 * turns * (trip_s + reading_s)
            + max((client.start_s + send.at_s for send in sends), default=0.0),
        )
    return longest + plan.idle_timeout_s + 30.0
