"""The worlds by name. A world draws a whole scenario from a seed, runs it, and reports the first violation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from godwit_sim.network import Trace
from godwit_sim.sealing import sealed_world
from godwit_sim.worlds.attacker import run_attacker
from godwit_sim.worlds.bridge import run_bridge
from godwit_sim.worlds.broker import run_broker
from godwit_sim.worlds.cluster import run_cluster
from godwit_sim.worlds.durable import run_durable
from godwit_sim.worlds.groups import run_groups
from godwit_sim.worlds.jobs import run_jobs
from godwit_sim.worlds.mqtt import run_mqtt
from godwit_sim.worlds.sealed import run_sealed
from godwit_sim.worlds.transport import run_transport


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one seed."""

    world: str
    seed: int
    violation: str | None
    digest: str
    """Equal for equal seeds on every machine."""
    summary: str


World: TypeAlias = Callable[[int, Trace], tuple[str | None, str]]
"""Run a seed and record it in the trace; return the violation, if any, and a short summary."""

WORLDS: Mapping[str, World] = {
    "transport": run_transport,
    "sealed": run_sealed,
    "attacker": run_attacker,
    "broker": run_broker,
    "durable": run_durable,
    "jobs": run_jobs,
    "mqtt": run_mqtt,
    "groups": run_groups,
    "bridge": run_bridge,
    "cluster": run_cluster,
}


def run_seed(world: str, seed: int, trace: Trace | None = None, *, sealed: bool = False) -> Outcome:
    """Run one seed of one world. `sealed`: all of its connections are."""
    trace = trace or Trace()
    with sealed_world() if sealed else nullcontext():
        violation, summary = WORLDS[world](seed, trace)
    gc.collect()  # worlds are full of cycles and large disks: without this, hundreds of them are garbage at a time
    return Outcome(world, seed, violation, trace.hexdigest(), summary)
