"""The plan of one seed of the broker world: everything is drawn here, before the simulation starts.

As in the transport world each seed first draws which kinds of trouble it has at all. Sizes and times are kept small
enough for a few tenths of a second of computing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

from godwit.impairment import LinkSettings
from godwit.limits import KIB
from godwit.transport.config import EndpointConfig
from godwit.wire.control_base import Qos
from godwit.wire.parameters import Arq
from godwit_sim.worlds.transport_plan import HostPlan

TROUBLES = (
    "loss", "bursts", "duplication", "reordering", "corruption", "jitter", "bandwidth", "partition", "rebind", "route",
    "pause", "client_dies", "client_closes", "slow_readers", "stalls", "small_ring", "small_windows", "small_buffers",
    "short_idle", "coarse_timers", "slow_wakes", "hostile", "odd_clocks", "secrets", "short_sessions", "two_listeners",
    "large_messages",
)  # fmt: skip

TOPICS = (
    "home/room1/temperature", "home/room1/humidity", "home/room2/temperature", "home/temperature", "home",
    "garage/temperature", "garage/door", "a//b", "/lead", "alerts/fire/home room", "Zeitmeßgerät/Größe",
)  # fmt: skip
FILTERS = (
    "#", "*", "+/+", "home/#", "home/*", "home/+/temperature", "*/temperature", "home/*/temperature", "+/temperature",
    "garage/door", "garage/+", "a//b", "a/+/b", "/+", "+/lead", "alerts/*", "Zeitmeßgerät/#", "home/room1/temperature",
    "home", "*/*", "no-one/publishes/this",
)  # fmt: skip
QUIET = "quiet/"
"""The prefix of the topics of quiet subscribers, where hardly anything is published."""

MAX_MESSAGES = 420
"""The most messages of one seed, to limit its run time."""

FaultKind = Literal["partition", "rebind", "route", "pause", "client_dies", "client_closes"]
StartKind = Literal["latest", "earliest", "offset", "time"]
HostileKind = Literal["junk", "flood", "no_login", "never_reads", "liar", "requests", "opens"]


@dataclass(frozen=True, slots=True)
class PublicationPlan:
    """One call of `send`."""

    at_s: float
    topic: str
    qos: Qos
    size_bytes: int
    retain: bool = False
    """With size 0 it clears the retained message of the topic."""


@dataclass(frozen=True, slots=True)
class SubscriptionPlan:
    """One subscription, requested again in each run of its client."""

    at_s: float
    filters: tuple[str, ...]
    start: StartKind | None = None
    """None: the position of the session, else latest."""
    cursor: str | None = None
    commits_every: int = 1
    """With a cursor: the number of reads before each commit."""
    until_s: float | None = None
    is_quiet: bool = False
    """Hardly any message matches it: it may get a gap only if one of those is deleted, not for those of others."""


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """How the application reads its messages."""

    pause_s: float = 0.0
    """The time between two reads."""
    stalls: tuple[tuple[float, float], ...] = ()
    """Periods without reads."""

    def next_take_s(self, now: float) -> float:
        """Return when it reads next, after a notification or a read at this time."""
        at_s = now + self.pause_s
        for start_s, end_s in self.stalls:
            if start_s <= at_s < end_s:
                return end_s
        return at_s


@dataclass(frozen=True, slots=True)
class WillPlan:
    topic: str
    qos: Qos
    retain: bool


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client through all its runs."""

    start_s: float
    name: str | None
    secret: bytes
    session_expiry_s: int
    will: WillPlan | None
    host: HostPlan
    listener: int
    endpoint: EndpointConfig
    send_buffer_bytes: int
    up: LinkSettings
    down: LinkSettings
    reading: ReadingPlan
    subscriptions: tuple[SubscriptionPlan, ...]
    publications: tuple[PublicationPlan, ...]
    remembers: bool
    """Its application stores messages of QoS 2 until they are confirmed, and resumes with them after its own death."""
    has_properties: bool = False
    """Some of its messages have headers, and some expire."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the client with that number (or of the server) at that time."""

    at_s: float
    kind: FaultKind
    client: int
    lasts_s: float = 0.0
    route: tuple[LinkSettings, LinkSettings] | None = None
    fresh: bool = False
    """After a death: request a new session."""


@dataclass(frozen=True, slots=True)
class HostilePlan:
    """A hostile client, with a valid login or none."""

    kinds: tuple[HostileKind, ...]
    strikes: int
    until_s: float


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """The plan of one seed."""

    seed: int
    troubles: tuple[str, ...]
    faults_end_s: float
    server_hosts: tuple[HostPlan, ...]
    """One for each listener."""
    server: EndpointConfig
    ring_bytes: int
    client_window_bytes: int
    hold_back_s: float
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    hostile: HostilePlan | None

    @property
    def secrets(self) -> dict[str, bytes]:
        return {client.name: client.secret for client in self.clients if client.name and client.secret}


def draw_plan(seed: int, world: str = "broker") -> BrokerPlan:
    """Draw the plan of this seed. `world` is part of the random seed, so that worlds differ."""
    rng = Random(f"{world} plan {seed}")
    likely = rng.choice((0.0, 0.15, 0.3, 0.6))
    troubles = tuple(name for name in TROUBLES if rng.random() < likely)
    faults_end_s = rng.uniform(1.0, 15.0)
    count = rng.choice((2, 3, 3, 4, 5, 6, 8))
    topics = tuple(rng.sample(TOPICS, rng.randint(2, 7)))
    messages = rng.choice((40, 120, MAX_MESSAGES))
    host = draw_host(rng, troubles)
    listeners = 2 if "two_listeners" in troubles else 1
    clients = tuple(
        _draw_client(rng, number, troubles, topics, messages // count, faults_end_s, listeners)
        for number in range(count)
    )
    quiet = Random(f"{world} plan {seed} quiet")
    clients, quiet_faults = _add_quiet(quiet, clients, troubles, faults_end_s)
    small_ring = "small_ring" in troubles
    return BrokerPlan(
        seed=seed,
        troubles=troubles,
        faults_end_s=faults_end_s,
        server_hosts=(host,) * listeners,
        server=draw_endpoint(rng, troubles, "selective-repeat", accepts=True),
        ring_bytes=rng.choice((64, 80, 128)) * KIB if small_ring else 64 * 1024 * KIB,
        client_window_bytes=64 * KIB if small_ring or "small_windows" in troubles else 4096 * KIB,
        hold_back_s=rng.choice((0.0, 0.3, 2.0)) if small_ring else 10.0,
        clients=clients,
        faults=_in_order([*_draw_faults(rng, troubles, count, faults_end_s), *quiet_faults]),
        hostile=_draw_hostile(rng, faults_end_s) if "hostile" in troubles else None,
    )


def draw_host(rng: Random, troubles: tuple[str, ...]) -> HostPlan:
    return HostPlan(
        joins=rng.random() < 0.7,
        wake_delay_s=rng.choice((0.0, 0.00005, 0.001, 0.005)) if "slow_wakes" in troubles else 0.0,
        timer_step_s=rng.choice((0.0, 0.001, 0.016)) if "coarse_timers" in troubles else 0.0,
        epoch_s=rng.choice((0.0, rng.uniform(0.0, 1e3), rng.uniform(0.0, 1e7))),
    )


def draw_endpoint(rng: Random, troubles: tuple[str, ...], arq: Arq, *, accepts: bool) -> EndpointConfig:
    small = "small_windows" in troubles
    channel_window = rng.choice((8 * KIB, 32 * KIB)) if small else 2048 * KIB
    idle_timeout_s = rng.choice((2.0, 4.0)) if "short_idle" in troubles else 10.0
    return EndpointConfig(
        accepts=accepts,
        arq=arq,
        channel_window_bytes=channel_window,
        connection_window_bytes=channel_window * rng.choice((1, 2, 4)),
        idle_timeout_s=idle_timeout_s,
        keep_alive_s=idle_timeout_s / 3.0,
        reset_key=rng.randbytes(32) if accepts else b"",
    )


def _draw_client(
    rng: Random,
    number: int,
    troubles: tuple[str, ...],
    topics: tuple[str, ...],
    messages: int,
    faults_end_s: float,
    listeners: int,
) -> ClientPlan:
    name = f"client-{number}" if rng.random() < 0.8 else None
    arq: Arq = rng.choice(("selective-repeat",) * 6 + ("go-back-n", "stop-and-wait"))
    role = rng.choice(("both", "publisher", "subscriber"))
    will = None
    if rng.random() < 0.4:
        qos: Qos = rng.choice((0, 1, 1, 2))
        will = WillPlan(rng.choice(topics), qos, qos > 0 and rng.random() < 0.3)  # one of QoS 0 has no known time
    return ClientPlan(
        start_s=rng.choice((0.0, rng.uniform(0.0, faults_end_s / 2))),
        name=name,
        secret=rng.randbytes(16) if name and "secrets" in troubles else b"",
        session_expiry_s=rng.choice((0, 1, 3)) if "short_sessions" in troubles else 3600,
        will=will,
        host=draw_host(rng, troubles),
        listener=rng.randrange(listeners),
        endpoint=draw_endpoint(rng, troubles, arq, accepts=False),
        send_buffer_bytes=rng.choice((4, 16)) * KIB if "small_buffers" in troubles else 16 * 1024 * KIB,
        up=draw_link(rng, troubles),
        down=draw_link(rng, troubles),
        reading=_draw_reading(rng, troubles, faults_end_s),
        subscriptions=() if role == "publisher" else _draw_subscriptions(rng, name, topics, faults_end_s),
        publications=() if role == "subscriber" else _draw_publications(rng, troubles, topics, messages, faults_end_s),
        remembers=rng.random() < 0.5,
        has_properties=True,
    )


def draw_link(rng: Random, troubles: tuple[str, ...]) -> LinkSettings:
    delay_s = rng.choice((0.0, 0.0005, 0.005, 0.015, 0.06))
    bandwidth = 2.0 ** rng.uniform(20.0, 27.0) if "bandwidth" in troubles else None  # 1 to 134 Mbit/s

    def share(trouble: str, most: float) -> float:
        return rng.choice((0.01, most / 2, most)) if trouble in troubles and rng.random() < 0.8 else 0.0

    return LinkSettings(
        delay_s=delay_s,
        jitter_s=delay_s * rng.random() if "jitter" in troubles else 0.0,
        bandwidth_bits_per_s=bandwidth,
        queue_packets=rng.choice((25, 100)) if bandwidth else None,
        loss=share("loss", 0.2),
        corruption=share("corruption", 0.1),
        burst_mean_packets=rng.choice((2.0, 4.0)) if "bursts" in troubles else None,
        burst_max_packets=rng.choice((3, 10)) if "bursts" in troubles else None,
        duplication=share("duplication", 0.2),
        reordering=share("reordering", 0.2),
        reorder_delay_s=(0.0001, max(0.001, delay_s)),
    )


def _draw_reading(rng: Random, troubles: tuple[str, ...], faults_end_s: float) -> ReadingPlan:
    pause_s = rng.choice((0.0, 0.01, 0.2)) if "slow_readers" in troubles else 0.0
    if "stalls" not in troubles or rng.random() < 0.4:
        return ReadingPlan(pause_s)
    start_s = rng.uniform(0.0, faults_end_s)
    return ReadingPlan(pause_s, ((start_s, rng.uniform(start_s, faults_end_s)),))


def _draw_subscriptions(
    rng: Random, name: str | None, topics: tuple[str, ...], faults_end_s: float
) -> tuple[SubscriptionPlan, ...]:
    made: dict[tuple[str, ...], SubscriptionPlan] = {}
    for number in range(rng.choice((1, 1, 2, 3))):
        pool = FILTERS if rng.random() < 0.7 else topics
        filters = tuple(sorted(set(rng.sample(pool, min(len(pool), rng.choice((1, 1, 1, 2, 3)))))))
        at_s = rng.choice((0.0, 0.0, rng.uniform(0.0, faults_end_s)))
        cursor = f"cursor {number}" if name and rng.random() < 0.25 else None
        start: StartKind | None = rng.choice(get_args(StartKind)) if rng.random() < 0.25 else None
        until_s = rng.uniform(at_s, faults_end_s) if rng.random() < 0.15 else None
        made[filters] = SubscriptionPlan(at_s, filters, start, cursor, rng.choice((1, 2, 5)), until_s)
    return tuple(made.values())


def _draw_publications(
    rng: Random, troubles: tuple[str, ...], topics: tuple[str, ...], messages: int, faults_end_s: float
) -> tuple[PublicationPlan, ...]:
    """Draw bursts and pauses on some topics, mostly small messages."""
    plans: list[PublicationPlan] = []
    own = rng.sample(topics, rng.randint(1, min(3, len(topics))))
    lanes: list[tuple[str, Qos]] = [(topic, rng.choice((0, 1, 1, 2))) for topic in own for _ in range(2)]
    retains = rng.choice((0.0, 0.1, 0.5))
    large = "large_messages" in troubles
    typical = rng.choice((20, 200, 900 if "small_ring" not in troubles else 3000))
    at_s = 0.0
    for _ in range(messages):
        if rng.random() < 0.3:
            at_s += rng.expovariate(messages * 0.3 / faults_end_s)
        topic, qos = rng.choice(lanes)
        retain = rng.random() < retains
        size = max(16, int(rng.expovariate(1.0 / typical)))
        if large and rng.random() < 0.03:
            size = rng.randint(5_000, 40_000)
        if retain and rng.random() < 0.15:
            size = 0
        plans.append(PublicationPlan(min(at_s, faults_end_s), topic, qos, size, retain))
    return tuple(plans)


def _draw_faults(rng: Random, troubles: tuple[str, ...], clients: int, faults_end_s: float) -> tuple[Fault, ...]:
    faults = []
    for kind in get_args(FaultKind):
        if kind not in troubles:
            continue
        for _ in range(rng.choice((1, 2, 4))):
            at_s = rng.uniform(0.0, faults_end_s)
            lasts_s = min(rng.choice((0.02, 0.3, rng.uniform(0.0, faults_end_s))), faults_end_s - at_s)
            route = (draw_link(rng, troubles), draw_link(rng, troubles)) if kind == "route" else None
            faults.append(Fault(at_s, kind, rng.randrange(clients), lasts_s, route, rng.random() < 0.15))
    return _in_order(faults)


def _in_order(faults: list[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _add_quiet(
    rng: Random, clients: tuple[ClientPlan, ...], troubles: tuple[str, ...], faults_end_s: float
) -> tuple[tuple[ClientPlan, ...], list[Fault]]:
    """Draw clients with a lasting session that match few messages or none, and their faults.

    They use a random generator of their own, so that the rest of a seed is the same without them.
    """
    made = list(clients)
    faults: list[Fault] = []
    for number in range(rng.choice((0, 1, 1, 2))):
        topic = f"{QUIET}{number}"
        cursor = "cursor" if rng.random() < 0.25 else None
        until_s = faults_end_s * rng.choice((0.1, 0.5))
        subscription = SubscriptionPlan(rng.choice((0.0, until_s)), (topic,), cursor=cursor, is_quiet=True)
        endpoint = draw_endpoint(rng, troubles, "selective-repeat", accepts=False)
        made.append(
            ClientPlan(
                start_s=0.0,
                name=f"quiet-{number}",
                secret=rng.randbytes(16) if "secrets" in troubles else b"",
                session_expiry_s=3600,
                will=None,
                host=draw_host(rng, troubles),
                listener=0,
                endpoint=replace(endpoint, idle_timeout_s=2.0, keep_alive_s=0.7),
                send_buffer_bytes=64 * KIB,
                up=draw_link(rng, troubles),
                down=draw_link(rng, troubles),
                reading=ReadingPlan(),
                subscriptions=(subscription,),
                publications=(),
                remembers=False,
            )
        )
        sender = rng.randrange(len(clients))
        few = [PublicationPlan(rng.uniform(0.0, until_s), topic, 1, 40) for _ in range(rng.choice((0, 0, 1, 3)))]
        together = sorted((*made[sender].publications, *few), key=lambda one: one.at_s)
        made[sender] = replace(made[sender], publications=tuple(together))
        kinds: tuple[FaultKind, ...] = ("partition", "partition", "client_dies", "client_closes")
        for _ in range(rng.choice((0, 1, 2, 3))):
            at_s = rng.uniform(0.0, faults_end_s)
            lasts_s = min(rng.choice((0.3, 3.0, 4.0, rng.uniform(0.0, faults_end_s))), faults_end_s - at_s)
            faults.append(Fault(at_s, rng.choice(kinds), len(made) - 1, lasts_s))
    return tuple(made), faults


def _draw_hostile(rng: Random, faults_end_s: float) -> HostilePlan:
    kinds: tuple[HostileKind, ...] = get_args(HostileKind)
    some = tuple(kind for kind in kinds if rng.random() < 0.4) or ("junk",)
    return HostilePlan(some, rng.choice((10, 40, 120)), faults_end_s)
