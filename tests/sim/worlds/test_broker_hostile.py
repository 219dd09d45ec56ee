"""The hostile client of the broker world: each kind of invalid input reaches the broker, also with small limits."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from tests.sim.worlds.broker_world import PLAN, SLOW, run

from godwit_sim.worlds.broker_plan import HostileKind, HostilePlan


@pytest.mark.parametrize("kind", get_args(HostileKind))
def test_each_kind_alone(kind: HostileKind) -> None:
    world = run(replace(PLAN, hostile=HostilePlan((kind,), 40, 2.0)))
    assert world.hostile is not None
    strangers = [
        conn for conn in world.checkers.connections.records if conn.instance not in world.checkers.connections.honest
    ]
    assert strangers
    if kind in ("junk", "liar"):
        assert world.hostile.disconnections, "the broker closes the connection after a protocol violation"


def test_a_flood_reaches_honest_subscribers_without_harm() -> None:
    world = run(replace(PLAN, hostile=HostilePlan(("flood",), 30, 2.0)))
    assert sum(one.author == "hostile" for one in world.checkers.log.messages) > 100


@pytest.mark.parametrize("kind", ["flood", "never_reads"])
def test_a_small_ring(kind: HostileKind) -> None:
    run(replace(SLOW, hostile=HostilePlan((kind,), 30, 5.0)))


def test_a_name_needs_its_secret() -> None:
    clients = tuple(replace(one, secret=bytes(16)) for one in PLAN.clients)
    world = run(replace(PLAN, clients=clients, hostile=HostilePlan(("junk",), 40, 2.0)))
    names = {
        conn.name
        for conn in world.checkers.connections.records
        if conn.instance not in world.checkers.connections.honest
    }
    assert names & {"sender", "reader", "other"}, "it tried"
