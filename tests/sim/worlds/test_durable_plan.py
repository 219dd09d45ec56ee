"""Plans of the durable world: the same for the same seed, within their bounds, and of many kinds."""

from __future__ import annotations

from typing import get_args

from godwit_sim.disk import Trouble
from godwit_sim.worlds.broker_plan import draw_plan
from godwit_sim.worlds.durable_plan import AUDITOR, draw_durable_plan

PLANS = [draw_durable_plan(seed) for seed in range(200)]


def test_the_same_seed_is_the_same_plan_and_not_the_broker_world_s() -> None:
    assert draw_durable_plan(7) == PLANS[7]
    assert draw_durable_plan(8) != PLANS[7]
    assert PLANS[7].broker.clients[:-1] != draw_plan(7).clients


def test_every_kind_of_death_and_fault_happens_in_time() -> None:
    deaths = [death for plan in PLANS for death in plan.deaths]
    assert {(death.loses_power, death.in_calls is None) for death in deaths} == {
        (True, True), (True, False), (False, True), (False, False)
    }  # fmt: skip
    assert any(death.at_s == 0.0 and death.in_calls is not None for death in deaths), "while the file is made"
    assert {fault.trouble for plan in PLANS for fault in plan.disk_faults} == set(get_args(Trouble))
    assert all(plan.deaths for plan in PLANS)
    assert {bool(plan.disk_faults) for plan in PLANS} == {True, False}
    for plan in PLANS:
        end_s = plan.broker.faults_end_s + 1e-9
        assert all(death.at_s + death.down_s <= end_s for death in plan.deaths)
        assert all(fault.at_s + fault.lasts_s <= end_s for fault in plan.disk_faults)


def test_the_auditor_reads_everything_when_all_is_over() -> None:
    for plan in PLANS:
        auditor = plan.broker.clients[-1]
        assert (auditor.name, auditor.start_s) == (AUDITOR, plan.broker.faults_end_s)
        assert [(one.filters, one.start) for one in auditor.subscriptions] == [(("#",), "earliest")]


def test_nothing_is_asked_that_nobody_could_check() -> None:
    for plan in PLANS:
        assert plan.broker.hostile is None
        publications = [one for client in plan.broker.clients for one in client.publications]
        assert not any(one.retain and not one.qos for one in publications)
        assert not any(not one.size_bytes and not one.retain for one in publications)


def test_copies_are_put_back_in_time_and_nobody_relies_on_what_is_in_them() -> None:
    restored = [plan for plan in PLANS if plan.restores]
    assert len(PLANS) // 5 < len(restored) < len(PLANS) // 2
    assert max(len(plan.restores) for plan in restored) > 1
    for plan in restored:
        assert all(one.copied_s <= one.at_s <= plan.broker.faults_end_s for one in plan.restores)
        assert all(not client.session_expiry_s and client.will is None for client in plan.broker.clients)
        subscriptions = [one for client in plan.broker.clients for one in client.subscriptions]
        assert all(one.cursor is None and one.start != "offset" for one in subscriptions)
