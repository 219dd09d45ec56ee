"""Bulk transfers with their measurements and failures, the fast ones of the named scenarios, and the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from godwit.impairment import LinkSettings
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Train
from godwit_sim import scenarios
from godwit_sim.scenarios import SCENARIOS, Progress, Transfer, TransferPlan, TransferResult, run_scenario

LINE = LinkSettings(delay_s=0.01, bandwidth_bits_per_s=10e6, queue_packets=50)
PLAN = TransferPlan(up=LINE, down=LINE, each_bytes=200_000)


def test_a_clean_transfer() -> None:
    result = Transfer(PLAN, 1).run()
    assert result.complete
    assert result.violation is None
    assert result.payload_bytes == 200_000
    assert result.repeated_share == pytest.approx(0.0, abs=0.02)
    assert 0.02 < result.first_data_s < 0.1  # after the handshake's two round trips
    (progress,) = result.transfers
    assert progress.finished_s == result.last_data_s
    assert progress.warm_s is not None
    assert progress.warm_s < result.last_data_s
    assert 200_000 < result.unique_line_bytes < 230_000
    assert 1e6 < result.goodput_bits_per_s < 10e6


def test_loss_is_repeated() -> None:
    line = replace(LINE, loss=0.1)
    result = Transfer(replace(PLAN, up=line, down=line), 1).run()
    assert result.complete
    assert 0.05 < result.repeated_share < 0.4


def test_several_clients_and_address_changes() -> None:
    result = Transfer(replace(PLAN, starts_s=(0.0, 0.1, 0.2), rebinds_s=(0.3,)), 1).run()
    assert result.complete
    assert [transfer.received_bytes for transfer in result.transfers] == [200_000] * 3


def test_an_incomplete_transfer_is_reported() -> None:
    result = Transfer(replace(PLAN, up=replace(LINE, outages=((0.1, 1e9),)), until_s=100.0), 1).run()
    assert not result.complete
    assert "timeout" in (result.transfers[0].closed or "")
    assert result.payload_bytes < 200_000


def test_an_exception_in_the_transport_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Endpoint, train: Train, now: float) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(Endpoint, "receive", fail)
    assert Transfer(PLAN, 1).run().violation == "ZeroDivisionError escaped: on purpose"


def test_one_seed_one_result() -> None:
    line = replace(LINE, loss=0.05, reordering=0.05)
    plan = replace(PLAN, up=line, down=line)
    one, again, other = (Transfer(plan, seed).run() for seed in (3, 3, 4))
    assert one.last_data_s == again.last_data_s
    assert one.last_data_s != other.last_data_s


@pytest.mark.parametrize("name", ["handshake-loss", "handshake-corruption", "loss", "reordering", "duplication"])
def test_quick_scenarios_pass(name: str) -> None:
    (row,) = run_scenario(name, seeds=2)
    assert row.name == name
    assert row.passed, row


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_all_scenarios_pass(name: str) -> None:
    for row in run_scenario(name):
        assert row.passed, row


def result(*, goodput: float = 9e6, complete: bool = True, violation: str | None = None) -> TransferResult:
    finished_s, closed = (1.0, None) if complete else (None, "timeout 0 idle")
    progress = Progress("c0", int(goodput / 8), 0.2, finished_s=finished_s, closed=closed)
    return TransferResult((progress,), complete, 0.0, 1.0, 1000, 0.1, violation)


@pytest.mark.parametrize(
    ("outcome", "passed", "note"),
    [
        (result(), True, ""),
        (result(goodput=7.9e6), False, ""),
        (result(complete=False), False, "1 of 1 transfers incomplete (c0 timeout 0 idle)"),
        (result(violation="delivery: twice"), False, "delivery: twice"),
    ],
)
def test_judgement(monkeypatch: pytest.MonkeyPatch, outcome: TransferResult, passed: bool, note: str) -> None:
    monkeypatch.setattr(Transfer, "run", lambda self: outcome)
    (row,) = run_scenario("loss", seeds=3)
    assert row.passed is passed
    assert row.note == note
    assert row.repeated_share == pytest.approx(0.1)


def test_dark_time_is_no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Transfer) -> TransferResult:
        return TransferResult((Progress("c0", 10_000_000),), True, 0.0, 14.0, 0, 0.0, None)

    monkeypatch.setattr(Transfer, "run", run)
    (row,) = run_scenario("black-hole")
    assert row.capacity_bits_per_s == pytest.approx(10e6 * 5 / 7)


def test_an_order_against_the_theory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transfer, "run", lambda self: result())
    rows = run_scenario("disciplines", seeds=1)
    assert [row.passed for row in rows] == [True, False, False]
    assert rows[1].note == "not slower than selective-repeat"


def test_an_unfair_share_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Transfer) -> TransferResult:
        shares = (Progress("c0", 50_000_000), Progress("c1", 20_000_000))
        return TransferResult(shares, False, 0.0, 60.0, 0, 0.0, None)

    monkeypatch.setattr(Transfer, "run", run)
    (row,) = run_scenario("two-connections")
    assert not row.passed
    assert row.ratio == pytest.approx(2 / 7)


def test_plans_are_those_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[TransferPlan] = []

    def run(self: Transfer) -> TransferResult:
        plans.append(self.plan)
        return result()

    monkeypatch.setattr(Transfer, "run", run)
    run_scenario("port-change")
    run_scenario("long-delay")
    run_scenario("loss", seeds=scenarios.SEEDS)
    assert plans[0].rebinds_s[:3] == (1.0, 6.0, 11.0)
    assert plans[1].up.delay_s == 0.75
    assert len(plans) == 22
