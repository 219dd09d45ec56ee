"""The group world: runs in which members and the broker die, and planted faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from godwit.broker.group import Group, GroupSubscription
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.groups import draw_group_plan, run_groups

SEEDS = range(6)


def test_plans_differ_and_can_be_repeated() -> None:
    assert draw_group_plan(7) == draw_group_plan(7)
    assert draw_group_plan(7) != draw_group_plan(8)
    plans = [draw_group_plan(seed) for seed in range(50)]
    assert {len(plan.members) for plan in plans} == {1, 2, 3, 4}
    assert any(plan.mqtt_members for plan in plans)
    assert any(member.deaths and member.stalls for plan in plans for member in plan.members)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed(seed: int) -> None:
    outcome = run_seed("groups", seed)
    assert outcome.violation is None, outcome.violation
    assert "a group of" in outcome.summary


def test_a_message_of_qos_0_may_be_lost() -> None:
    outcome = run_seed("groups", 49, sealed=True)  # in which a member is too slow for one
    assert outcome.violation is None, outcome.violation


def test_a_seed_is_the_same_every_time() -> None:
    assert run_seed("groups", 3).digest == run_seed("groups", 3).digest
    assert WORLDS["groups"] is run_groups


# -- planted faults ---------------------------------------------------------------------------------------------------


def store_no_ranges(source: Any) -> tuple[int, tuple[int, ...]]:
    """Store everything below `high` as acknowledged."""
    return source.group.high, ()


def want_nothing(group: Any, pieces: Any) -> None:
    """Forget the messages of a member that is gone."""


@pytest.mark.parametrize(
    ("owner", "name", "fault", "violation"),
    [
        (GroupSubscription, "pending", store_no_ranges, "the group waits for"),
        (Group, "want", want_nothing, "the group waits for"),
    ],
    ids=["not stored", "not repeated"],
)
def test_a_planted_fault_is_found(
    owner: type, name: str, fault: Callable[..., Any], violation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    for seed in range(20):
        found = run_seed("groups", seed).violation
        if found is not None:
            assert violation in found
            return
    pytest.fail("no seed has found the fault")
