"""The quick ones of the named scenarios, and how the table judges."""

from __future__ import annotations

import pytest

from godwit_sim import scenarios
from godwit_sim.scenarios import SCENARIOS, run_scenario
from godwit_sim.transfer import Progress, Transfer, TransferPlan, TransferResult


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
