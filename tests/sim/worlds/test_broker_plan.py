"""Plans of the broker world: the same for the same seed, within their bounds, and of many kinds."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from godwit_sim.broker_log_model import matches_any
from godwit_sim.worlds.broker_plan import (
    FILTERS,
    MAX_MESSAGES,
    TOPICS,
    TROUBLES,
    FaultKind,
    ReadingPlan,
    draw_plan,
)

PLANS = [draw_plan(seed) for seed in range(300)]


def test_the_same_seed_is_the_same_plan() -> None:
    assert draw_plan(7) == PLANS[7]
    assert draw_plan(8) != PLANS[7]


def test_plans_stay_small() -> None:
    for plan in PLANS:
        quiet = [client for client in plan.clients if any(one.is_quiet for one in client.subscriptions)]
        assert sum(len(client.publications) for client in plan.clients) <= MAX_MESSAGES + 3 * len(quiet)
        assert 2 <= len(plan.clients) - len(quiet) <= 8
        assert len(quiet) <= 2
        for client in plan.clients:
            assert all(one.at_s <= plan.faults_end_s for one in client.publications)
            assert len({one.filters for one in client.subscriptions}) == len(client.subscriptions)
        for fault in plan.faults:
            assert fault.at_s + fault.lasts_s <= plan.faults_end_s + 1e-9


def test_every_trouble_and_every_kind_of_fault_happens() -> None:
    troubles = Counter(trouble for plan in PLANS for trouble in plan.troubles)
    assert set(troubles) == set(TROUBLES)
    assert {fault.kind for plan in PLANS for fault in plan.faults} == set(get_args(FaultKind))
    assert any(not plan.troubles for plan in PLANS)


def test_everything_that_can_be_asked_for_is() -> None:
    subscriptions = [one for plan in PLANS for client in plan.clients for one in client.subscriptions]
    assert {one.start for one in subscriptions} == {None, "latest", "earliest", "offset", "time"}
    assert {one.cursor is None for one in subscriptions} == {True, False}
    publications = [one for plan in PLANS for client in plan.clients for one in client.publications]
    assert {one.qos for one in publications} == {0, 1, 2}
    assert any(one.retain and not one.size_bytes for one in publications)
    assert {client.will is None for plan in PLANS for client in plan.clients} == {True, False}
    assert {client.name is None for plan in PLANS for client in plan.clients} == {True, False}


def test_quiet_subscribers_keep_their_sessions_and_have_little_to_read() -> None:
    messages: Counter[int] = Counter()
    faults: Counter[str] = Counter()
    for plan in PLANS:
        published = Counter(one.topic for client in plan.clients for one in client.publications)
        for number, client in enumerate(plan.clients):
            for one in client.subscriptions:
                if one.is_quiet:
                    assert (client.session_expiry_s, one.start) == (3600, None)
                    messages[published[one.filters[0]]] += 1
                    faults.update(fault.kind for fault in plan.faults if fault.client == number)
                    assert not any(fault.fresh for fault in plan.faults if fault.client == number)
    assert set(messages) == {0, 1, 3}
    assert set(faults) == {"partition", "client_dies", "client_closes"}


def test_only_named_clients_have_what_needs_a_name() -> None:
    for plan in PLANS:
        for client in plan.clients:
            if client.name is None:
                assert not client.secret
                assert all(one.cursor is None for one in client.subscriptions)
        assert set(plan.secrets) == {client.name for client in plan.clients if client.secret}


def test_every_filter_but_one_matches_some_topic() -> None:
    assert [one for one in FILTERS if not any(matches_any([one], topic) for topic in TOPICS)] == [
        "no-one/publishes/this"
    ]


def test_reading() -> None:
    plan = ReadingPlan(0.5, ((2.0, 4.0),))
    assert plan.next_take_s(0.0) == 0.5
    assert plan.next_take_s(1.6) == 4.0
    assert plan.next_take_s(4.0) == 4.5
