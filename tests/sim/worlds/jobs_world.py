"""A small plan of the jobs world without faults, which each test changes as needed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.sim.worlds.broker_world import ENDPOINT, HOST, LINK, PLAN, client

from godwit_sim.network import Trace
from godwit_sim.worlds.broker_plan import PublicationPlan, SubscriptionPlan
from godwit_sim.worlds.durable import Death, DurablePlan, auditor
from godwit_sim.worlds.jobs import JobsWorld
from godwit_sim.worlds.jobs_plan import ActorFault, ActorPlan, ControllerPlan, JobPlan, JobsPlan, WorkerPlan


def actor(name: str | None, start_s: float = 0.0) -> ActorPlan:
    return ActorPlan(start_s, name, HOST, ENDPOINT, LINK, LINK)


def worker(name: str | None, *, start_s: float = 0.0, **changes: Any) -> WorkerPlan:
    fields: dict[str, Any] = {
        "kinds": ("resize", "mail"),
        "capacity": 2,
        "steps": 1,
        "returns": 0.0,
        "ignores_revokes": False,
    }
    return WorkerPlan(actor(name, start_s), **(fields | changes))


def controller(name: str | None, *jobs: JobPlan, start_s: float = 0.0, **changes: Any) -> ControllerPlan:
    fields: dict[str, Any] = {"remembers": "keys", "is_curious": False}
    return ControllerPlan(actor(name, start_s), jobs, **(fields | changes))


def jobs(count: int = 12, **changes: Any) -> tuple[JobPlan, ...]:
    """Return jobs one after another, for one, two or all workers."""
    return tuple(
        JobPlan(0.3 + 0.1 * number, ("resize", "mail")[number % 2], workers=number % 3, **({"takes_s": 0.15} | changes))
        for number in range(count)
    )


AUDITOR = replace(auditor(3.0), subscriptions=(SubscriptionPlan(0.0, ("#", "$jobs/#"), "earliest"),))
OTHER = client("other", publications=(PublicationPlan(0.4, "home/a", 1, 20), PublicationPlan(1.1, "home/a", 1, 20)))
QUIET = JobsPlan(
    durable=DurablePlan(
        broker=replace(PLAN, faults_end_s=3.0, clients=(OTHER, AUDITOR)),
        deaths=(),
        disk_faults=(),
        checkpoints=0.1,
        rots=0.0,
        max_age_s=None,
    ),
    lease_s=1.0,
    keep_s=3600.0,
    commit_s=0.0,
    workers=(worker("anna"), worker("berta"), worker("carla", start_s=1.0)),
    controllers=(controller("boss", *jobs()), controller("chief", *jobs(6, key=None))),
    faults=(),
)
"""Three workers, one of which starts later, and two controllers, without faults."""


def quiet(seed: int = 1, **changes: Any) -> JobsPlan:
    """Return the plan with another seed, and other fields."""
    durable = replace(QUIET.durable, broker=replace(QUIET.durable.broker, seed=seed))
    return replace(QUIET, durable=changes.pop("durable", durable), **changes)


def storm(seed: int, **changes: Any) -> JobsPlan:
    """Return a plan in which the server, workers and a controller die repeatedly during their work, or stall."""
    rng = Random(f"storm {seed}")
    times = sorted(rng.uniform(0.4, 2.5) for _ in range(5))
    deaths = tuple(Death(at_s, rng.random() < 0.5, rng.choice((None, *range(8))), 0.02) for at_s in times)
    plan = quiet(seed, **changes)
    faults = [
        ActorFault(rng.uniform(0.3, 1.5), "dies", 0, 0.3),
        ActorFault(rng.uniform(0.3, 1.0), "pauses", 1, 1.5),
        ActorFault(rng.uniform(0.3, 1.5), "dies", 3, 0.3),
    ]
    return replace(plan, durable=replace(plan.durable, deaths=deaths), faults=tuple(faults))


def run(plan: JobsPlan, trace: Trace | None = None) -> JobsWorld:
    world = JobsWorld(plan, trace or Trace())
    world.run()
    return world
