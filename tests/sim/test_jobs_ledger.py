"""The ledger of jobs: what was asked for by key, and leases that nobody else has."""

from __future__ import annotations

import pytest

from godwit.wire.jobs import JobSpec
from godwit_sim.checkers import ViolationError
from godwit_sim.jobs_ledger import JobLedger


def test_the_same_key_is_the_same_order_for_the_same_controller() -> None:
    ledger = JobLedger()
    wish = JobSpec(key="k", of_kind="resize")
    order = ledger.ask("boss", wish, b"one", 1.0)
    assert ledger.ask("boss", wish, b"two", 2.0) is order
    assert ledger.ask("chief", wish, b"three", 3.0) is not order
    assert [ask.payload for ask in order.asks] == [b"one", b"two"]
    assert str(order) == "job 'k' of boss"


def test_a_lease_is_given_once() -> None:
    ledger = JobLedger()
    run = ledger.begin((1, 0, 1), "anna", "w0.1", 1.0)
    was_over = run.is_over
    run.result = b""
    assert (was_over, run.is_over) == (False, True)
    ledger.begin((1, 0, 2), "anna", "w0.2", 1.0)
    with pytest.raises(ViolationError, match=r"task 0 of job 1 under fence 1 at w0.1 was given to w1.1 too"):
        ledger.begin((1, 0, 1), "berta", "w1.1", 2.0)
