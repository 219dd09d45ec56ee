"""What happens in one seed of the durable world: one of the broker world, and what befalls the server and its disk.

All of it is drawn here, before anything runs. The last client is an auditor, who comes when everything else is over and
reads the whole log from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from godwit.impairment import LinkSettings
from godwit.limits import KIB
from godwit.transport.config import EndpointConfig
from godwit_sim.disk import Trouble
from godwit_sim.worlds.broker_plan import (
    BrokerPlan,
    ClientPlan,
    PublicationPlan,
    ReadingPlan,
    SubscriptionPlan,
    draw_plan,
)
from godwit_sim.worlds.transport_plan import HostPlan

AUDITOR = "auditor"


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one life of the server, unless it is dead already."""

    at_s: float
    loses_power: bool
    """Else only the process dies, and what it has written stays."""
    in_calls: int | None = None
    """So many writes and syncs later, in the midst of one; None: at that time, between two."""
    down_s: float = 0.0
    """So long until it is started again."""


@dataclass(frozen=True, slots=True)
class DiskFault:
    """For a while the disk does not do what it should."""

    at_s: float
    lasts_s: float
    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Restore:
    """The broker is stopped and started again with a copy of its disk that was made before."""

    copied_s: float
    at_s: float
    down_s: float


@dataclass(frozen=True, slots=True)
class DurablePlan:
    """One seed."""

    broker: BrokerPlan
    deaths: tuple[Death, ...]
    disk_faults: tuple[DiskFault, ...]
    checkpoints: float
    """After this share of the appends the log is checkpointed."""
    rots: float
    """In this share of its deaths something on its disk changes by itself."""
    max_age_s: float | None
    """How long messages stay in the log; None: for ever."""
    restores: tuple[Restore, ...] = ()


def draw_durable_plan(seed: int) -> DurablePlan:
    """The scenario of this seed."""
    broker = draw_plan(seed, "durable")
    rng = Random(f"durable plan {seed} disk")
    end_s = broker.faults_end_s
    clients = tuple(_without_live_retained(client) for client in broker.clients)
    plan = DurablePlan(
        broker=replace(broker, clients=(*clients, auditor(end_s)), hostile=None),
        deaths=draw_deaths(rng, end_s),
        disk_faults=draw_disk_faults(rng, end_s),
        checkpoints=rng.choice((0.0, 0.05, 0.3)),
        rots=rng.choice((0.0, 0.0, 0.5)),
        max_age_s=rng.choice((None, None, 1.0, 5.0)),
    )
    restores = draw_restores(Random(f"durable plan {seed} restores"), end_s)
    return with_restores(plan, restores) if restores else plan


def with_restores(plan: DurablePlan, restores: tuple[Restore, ...]) -> DurablePlan:
    """A plan in which older copies are put back, and nothing whose loss by that could not be told from a fault.

    Sessions, cursors and wills are in the copy as they were: clients get the older ones, which is no fault.
    An offset as a start cannot be checked by anybody.
    """
    clients = tuple(_without_session(client) for client in plan.broker.clients)
    broker = replace(plan.broker, clients=clients)
    return replace(plan, broker=broker, rots=0.0, max_age_s=None, restores=restores)


def _without_session(client: ClientPlan) -> ClientPlan:
    subscriptions = tuple(
        replace(one, start="earliest" if one.start == "offset" else one.start, cursor=None)
        for one in client.subscriptions
    )
    unlike = {one.filters: one for one in subscriptions}  # without cursors some would be the same
    return replace(client, session_expiry_s=0, will=None, subscriptions=tuple(unlike.values()))


def draw_restores(rng: Random, end_s: float) -> tuple[Restore, ...]:
    restores = []
    if rng.random() < 0.35:
        for _ in range(rng.choice((1, 1, 2, 3))):
            copied_s, at_s = sorted(rng.uniform(0.0, end_s) for _ in range(2))
            restores.append(Restore(copied_s, at_s, min(rng.choice((0.0, 0.3, 3.0)), end_s - at_s)))
    return tuple(sorted(restores, key=lambda restore: restore.at_s))


def _without_live_retained(client: ClientPlan) -> ClientPlan:
    """What QoS 0 leaves behind as retained may be lost with the broker or not: nobody can check that."""
    plans = [replace(one, retain=one.retain and one.qos > 0) for one in client.publications]
    return replace(client, publications=tuple(one for one in plans if one.retain or one.size_bytes))


def draw_deaths(rng: Random, end_s: float) -> tuple[Death, ...]:
    deaths = []
    for _ in range(rng.choice((1, 2, 3, 5, 8))):
        at_s = rng.choice((0.0, *(rng.uniform(0.0, end_s) for _ in range(9))))
        in_calls = rng.choice((None, *(rng.randrange(most) for most in (3, 10, 30))))
        down_s = min(rng.choice((0.0, 0.3, 3.0)), end_s - at_s)
        deaths.append(Death(at_s, rng.random() < 0.6, in_calls, down_s))
    return tuple(sorted(deaths, key=lambda death: death.at_s))


def draw_disk_faults(rng: Random, end_s: float) -> tuple[DiskFault, ...]:
    faults = []
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 2, 4))):
            at_s = rng.uniform(0.0, end_s)
            lasts_s = min(rng.choice((0.01, 0.3, 2.0)), end_s - at_s)
            faults.append(DiskFault(at_s, lasts_s, rng.choice(("full", "write", "sync"))))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def auditor(at_s: float) -> ClientPlan:
    """Comes at that time, and reads everything."""
    return ClientPlan(
        start_s=at_s,
        name=AUDITOR,
        secret=b"",
        session_expiry_s=0,
        will=None,
        host=HostPlan(joins=True, wake_delay_s=0.0, timer_step_s=0.0, epoch_s=0.0),
        listener=0,
        endpoint=EndpointConfig(),
        send_buffer_bytes=64 * KIB,
        up=LinkSettings(delay_s=0.001),
        down=LinkSettings(delay_s=0.001),
        reading=ReadingPlan(),
        subscriptions=(SubscriptionPlan(0.0, ("#",), "earliest"),),
        publications=(PublicationPlan(at_s, "audit", 1, 20),),
        remembers=False,
    )
