"""Plans of the transport world: the same for the same seed, within their bounds, and of all kinds."""

from __future__ import annotations

from collections import Counter

from godwit.limits import MAX_UNRELIABLE_BYTES
from godwit_sim.worlds.transport_plan import CONTROL, TROUBLES, Sending, draw_plan

PLANS = [draw_plan(seed) for seed in range(300)]
SENDS = [sends for plan in PLANS for client in plan.clients for sends in (client.sends_up, client.sends_down)]


def test_one_seed_one_plan() -> None:
    assert draw_plan(5) == draw_plan(5)
    assert draw_plan(5) != draw_plan(6)


def test_every_trouble_turns_up_and_some_seeds_have_none() -> None:
    seen = Counter(trouble for plan in PLANS for trouble in plan.troubles)
    assert set(seen) == set(TROUBLES)
    assert any(not plan.troubles for plan in PLANS)
    assert any(len(plan.troubles) > 10 for plan in PLANS)


def test_every_number_of_clients_and_every_discipline() -> None:
    assert {len(plan.clients) for plan in PLANS} == {1, 2, 3, 4, 6}
    assert {client.config.arq for plan in PLANS for client in plan.clients} == {
        "selective-repeat", "go-back-n", "stop-and-wait",
    }  # fmt: skip


def test_records_of_all_sizes() -> None:
    sizes = [send.size_bytes for sends in SENDS for send in sends]
    assert {0, 1} < set(sizes)
    assert 100_000 < max(sizes) <= 300_000
    assert all(send.size_bytes <= MAX_UNRELIABLE_BYTES for sends in SENDS for send in sends if not send.reliable)
    assert any(not send.reliable for sends in SENDS for send in sends)
    assert any(send.channel_index == CONTROL for sends in SENDS for send in sends)


def test_times_do_not_go_back_and_nothing_follows_the_last() -> None:
    for sends in SENDS:
        assert [send.at_s for send in sends] == sorted(send.at_s for send in sends)
        ended: set[int] = set()
        for send in sends:
            assert send.channel_index not in ended
            if send.last:
                assert send.reliable
                assert send.channel_index != CONTROL
                ended.add(send.channel_index)
    assert any(send.last for sends in SENDS for send in sends)


def test_faults_come_in_order_and_in_their_time() -> None:
    for plan in PLANS:
        assert list(plan.faults) == sorted(plan.faults, key=lambda fault: fault.at_s)
        assert all(fault.at_s <= plan.faults_end_s and fault.client < len(plan.clients) for fault in plan.faults)
        assert all(fault.at_s + fault.lasts_s <= plan.faults_end_s + 1e-9 for fault in plan.faults)
        assert {fault.kind for fault in plan.faults} <= set(plan.troubles)
        assert (plan.attack is not None) == ("attacker" in plan.troubles)


def test_a_sending_is_reliable_by_default() -> None:
    assert Sending(0.0, 0, 1).reliable
