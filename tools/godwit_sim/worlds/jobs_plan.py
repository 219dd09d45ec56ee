"""The plan of one seed of the jobs world: everything is drawn here, before the simulation starts.

Controllers submit jobs of some kinds, workers volunteer for some of them. Each seed first draws which kinds of trouble
it has at all. The server, its disk and their deaths are drawn as in the durable world, and a few clients that publish
share its log with the jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

from godwit.impairment import LinkSettings
from godwit.limits import KIB
from godwit.transport.config import EndpointConfig
from godwit_sim.worlds.broker_plan import (
    BrokerPlan,
    ClientPlan,
    PublicationPlan,
    SubscriptionPlan,
    draw_endpoint,
    draw_host,
    draw_link,
)
from godwit_sim.worlds.durable import DurablePlan, auditor, draw_deaths, draw_disk_faults
from godwit_sim.worlds.transport_plan import HostPlan

TROUBLES = (
    "loss", "bursts", "duplication", "reordering", "jitter", "bandwidth", "small_windows", "short_idle",
    "coarse_timers", "slow_wakes", "dies", "closes", "pauses", "partition", "rebind", "route", "withdraws", "changes",
    "twins", "deaf", "failures", "returns", "time_limits", "deadlines", "delays", "cancels", "repeats", "nameless",
    "large", "short_keep", "late_workers", "broker_dies", "disk_fails", "slow_disk", "publishers", "unwatches",
)  # fmt: skip
KINDS = ("resize", "render/frame", "Größe/messen", "mail")
KEYS = ("first", "second", "third", "fourth", "fifth")
"""Keys that several controllers use."""
MAX_JOBS = 40

ActorFaultKind = Literal["dies", "closes", "pauses", "partition", "rebind", "route", "withdraws", "changes"]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job to submit, and how its tasks go."""

    at_s: float
    kind: str
    key: str | None = None
    """None: the library creates one."""
    size_bytes: int = 20
    workers: int = 1
    priority: int = 0
    delay_ms: int = 0
    deadline_ms: int | None = None
    retries: int = 3
    retry_delay_ms: int = 1000
    time_limit_ms: int | None = None
    takes_s: float = 0.1
    """The mean duration of an attempt; the longest is twice that."""
    fails: float = 0.0
    """The share of attempts that fail."""
    fails_for_good: float = 0.0
    """The share of failures that are final."""
    result_bytes: int = 20
    cancel_after_s: float | None = None
    unwatch_after_s: float | None = None
    again_after_s: float | None = None
    """When it is submitted again with the same key and another payload, which has no effect."""


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """A machine, its link, and the client on it."""

    start_s: float
    name: str | None
    host: HostPlan
    endpoint: EndpointConfig
    up: LinkSettings
    down: LinkSettings


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    actor: ActorPlan
    kinds: tuple[str, ...]
    capacity: int
    steps: int
    """The number of progress reports in an attempt."""
    returns: float
    """The share of tasks that it returns."""
    ignores_revokes: bool
    """It ignores revocations and reports revoked tasks."""


@dataclass(frozen=True, slots=True)
class ControllerPlan:
    actor: ActorPlan
    jobs: tuple[JobPlan, ...]
    remembers: Literal["keys", "numbers"]
    """After a restart it submits unfinished jobs again, or watches those with known numbers."""
    is_curious: bool
    """It watches jobs of others too."""


@dataclass(frozen=True, slots=True)
class ActorFault:
    """A fault of an actor: workers are counted first, then controllers."""

    at_s: float
    kind: ActorFaultKind
    actor: int
    lasts_s: float = 0.0
    route: tuple[LinkSettings, LinkSettings] | None = None


@dataclass(frozen=True, slots=True)
class JobsPlan:
    """The plan of one seed."""

    durable: DurablePlan
    lease_s: float
    keep_s: float
    commit_s: float
    """The longest time until an append is durable."""
    workers: tuple[WorkerPlan, ...]
    controllers: tuple[ControllerPlan, ...]
    faults: tuple[ActorFault, ...]

    @property
    def seed(self) -> int:
        return self.durable.broker.seed

    @property
    def actors(self) -> tuple[ActorPlan, ...]:
        return (*(one.actor for one in self.workers), *(one.actor for one in self.controllers))

    @property
    def jobs(self) -> tuple[JobPlan, ...]:
        return tuple(job for controller in self.controllers for job in controller.jobs)


def draw_jobs_plan(seed: int) -> JobsPlan:
    """Draw the plan of this seed."""
    rng = Random(f"jobs plan {seed}")
    likely = rng.choice((0.0, 0.2, 0.4, 0.7))
    troubles = tuple(name for name in TROUBLES if rng.random() < likely)
    end_s = rng.uniform(2.0, 15.0)
    kinds = KINDS[: rng.randint(1, len(KINDS))]
    workers = [_draw_worker(rng, number, troubles, kinds, end_s) for number in range(rng.randint(1, 6))]
    if "twins" in troubles:
        workers.append(_draw_twin(rng, workers, end_s))
    controllers = rng.randint(1, 4)
    share = rng.choice((4, 12, MAX_JOBS)) // controllers + 1
    drawn = tuple(_draw_controller(rng, number, troubles, kinds, share, end_s) for number in range(controllers))
    idle_s = rng.choice((2.0, 4.0)) if "short_idle" in troubles else 10.0
    return JobsPlan(
        durable=_draw_durable(rng, seed, troubles, end_s, idle_s),
        lease_s=rng.choice((1.0, 1.0, 2.0, 5.0)),
        keep_s=rng.choice((1.0, 4.0)) if "short_keep" in troubles else 3600.0,
        commit_s=rng.choice((0.001, 0.02, 0.2)) if "slow_disk" in troubles else 0.0,
        workers=tuple(workers),
        controllers=drawn,
        faults=_draw_faults(rng, troubles, len(workers), controllers, end_s),
    )


def _draw_actor(rng: Random, name: str, troubles: tuple[str, ...], start_s: float) -> ActorPlan:
    return ActorPlan(
        start_s=start_s,
        name=None if "nameless" in troubles and rng.random() < 0.3 else name,
        host=draw_host(rng, troubles),
        endpoint=draw_endpoint(rng, troubles, "selective-repeat", accepts=False),
        up=draw_link(rng, troubles),
        down=draw_link(rng, troubles),
    )


def _draw_worker(
    rng: Random, number: int, troubles: tuple[str, ...], kinds: tuple[str, ...], end_s: float
) -> WorkerPlan:
    start_s = rng.uniform(0.0, end_s) if "late_workers" in troubles else rng.choice((0.0, rng.uniform(0.0, end_s / 2)))
    some = tuple(kind for kind in kinds if rng.random() < 0.7)
    return WorkerPlan(
        actor=_draw_actor(rng, f"worker-{number}", troubles, start_s),
        kinds=kinds if number == 0 or not some else some,  # at least one worker volunteers for each kind
        capacity=rng.choice((1, 1, 2, 5)),
        steps=rng.choice((0, 0, 1, 3)),
        returns=rng.choice((0.1, 0.4)) if "returns" in troubles else 0.0,
        ignores_revokes="deaf" in troubles and rng.random() < 0.5,
    )


def _draw_twin(rng: Random, workers: list[WorkerPlan], end_s: float) -> WorkerPlan:
    """Draw another process under the name of the first worker, on another machine."""
    other = rng.choice(workers)
    named = [worker for worker in workers if worker.actor.name is not None]
    name = rng.choice(named).actor.name if named else "worker-0"
    return replace(other, actor=replace(other.actor, name=name, start_s=rng.uniform(0.0, end_s)))


def _draw_controller(
    rng: Random, number: int, troubles: tuple[str, ...], kinds: tuple[str, ...], jobs: int, end_s: float
) -> ControllerPlan:
    at_s = 0.0
    drawn: list[JobPlan] = []
    keys = list(KEYS)
    for _ in range(rng.randint(1, jobs)):
        if rng.random() < 0.5:
            at_s += rng.expovariate(jobs * 0.5 / end_s)
        key = keys.pop(0) if keys and rng.random() < 0.3 else None
        drawn.append(_draw_job(rng, troubles, min(at_s, end_s), rng.choice(kinds), key))
    return ControllerPlan(
        actor=_draw_actor(rng, f"controller-{number}", troubles, rng.choice((0.0, rng.uniform(0.0, end_s / 2)))),
        jobs=tuple(drawn),
        remembers=rng.choice(("keys", "numbers")),
        is_curious=rng.random() < 0.2,
    )


def _draw_job(rng: Random, troubles: tuple[str, ...], at_s: float, kind: str, key: str | None) -> JobPlan:
    def sometimes(trouble: str, share: float) -> bool:
        return trouble in troubles and rng.random() < share

    large = sometimes("large", 0.2)
    return JobPlan(
        at_s=at_s,
        kind=kind,
        key=key,
        size_bytes=rng.randint(2_000, 60_000) if large else rng.choice((16, 200)),
        workers=rng.choice((1, 1, 1, 2, 3, 9, 0)),
        priority=rng.choice((0, 0, 0, -3, 7)),
        delay_ms=rng.choice((1, 300, 2000)) if sometimes("delays", 0.3) else 0,
        deadline_ms=rng.choice((100, 1000, 5000, 20_000)) if sometimes("deadlines", 0.4) else None,
        retries=rng.choice((0, 1, 3, 3, 5)),
        retry_delay_ms=rng.choice((0, 50, 1000)),
        time_limit_ms=rng.choice((50, 300, 2000)) if sometimes("time_limits", 0.4) else None,
        takes_s=rng.choice((0.0, 0.02, 0.2, 0.7, 1.5)),
        fails=rng.choice((0.3, 0.7, 1.0)) if sometimes("failures", 0.5) else 0.0,
        fails_for_good=rng.choice((0.0, 0.3)),
        result_bytes=rng.randint(2_000, 60_000) if large else rng.choice((0, 16, 200)),
        cancel_after_s=rng.choice((0.0, 0.05, 0.5, 3.0)) if sometimes("cancels", 0.4) else None,
        unwatch_after_s=rng.choice((0.0, 0.1, 1.0)) if sometimes("unwatches", 0.3) else None,
        again_after_s=rng.choice((0.0, 0.1, 2.0)) if sometimes("repeats", 0.3) else None,
    )


def _draw_faults(
    rng: Random, troubles: tuple[str, ...], workers: int, controllers: int, end_s: float
) -> tuple[ActorFault, ...]:
    faults = []
    for kind in get_args(ActorFaultKind):
        if kind not in troubles:
            continue
        for _ in range(rng.choice((1, 3, 8))):
            at_s = rng.uniform(0.0, end_s)
            lasts_s = min(rng.choice((0.02, 0.5, 1.5, 3.0, 6.0)), end_s - at_s)
            route = (draw_link(rng, troubles), draw_link(rng, troubles)) if kind == "route" else None
            most = workers if kind in ("withdraws", "changes") or rng.random() < 0.5 else workers + controllers
            faults.append(ActorFault(at_s, kind, rng.randrange(most), lasts_s, route))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw_durable(rng: Random, seed: int, troubles: tuple[str, ...], end_s: float, idle_s: float) -> DurablePlan:
    """Draw the server, its disk, and the clients that publish."""
    host = draw_host(rng, troubles)
    publishers = tuple(_draw_publisher(rng, number, end_s) for number in range(rng.randint(1, 2)))
    reader = replace(auditor(end_s), subscriptions=(SubscriptionPlan(0.0, ("#", "$jobs/#"), "earliest"),))
    broker = BrokerPlan(
        seed=seed,
        troubles=troubles,
        faults_end_s=end_s,
        server_hosts=(host,),
        server=replace(
            draw_endpoint(rng, troubles, "selective-repeat", accepts=True),
            idle_timeout_s=idle_s,
            keep_alive_s=idle_s / 3.0,
        ),
        ring_bytes=64 * KIB,
        client_window_bytes=64 * KIB if "small_windows" in troubles else 4096 * KIB,
        hold_back_s=10.0,
        clients=(*(publishers if "publishers" in troubles else ()), reader),
        faults=(),
        hostile=None,
    )
    return DurablePlan(
        broker=broker,
        deaths=draw_deaths(rng, end_s) if "broker_dies" in troubles or rng.random() < 0.3 else (),
        disk_faults=draw_disk_faults(rng, end_s) if "disk_fails" in troubles else (),
        checkpoints=rng.choice((0.0, 0.05, 0.3)),
        rots=0.0,
        max_age_s=rng.choice((None, None, 5.0)),
    )


def _draw_publisher(rng: Random, number: int, end_s: float) -> ClientPlan:
    sends = [PublicationPlan(rng.uniform(0.0, end_s), "other/things", 1, rng.choice((20, 900))) for _ in range(20)]
    return replace(
        auditor(0.0),
        name=f"publisher-{number}",
        subscriptions=(),
        publications=tuple(sorted(sends, key=lambda one: one.at_s)),
    )
