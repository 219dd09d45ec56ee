"""The checker of the log accepts a good log and catches each planted fault."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.broker_truth import Truth

from godwit_sim.broker_log import LogChecker
from godwit_sim.checkers import ViolationError


def test_a_good_log() -> None:
    truth = Truth()
    one, other, retained = truth.publish(), truth.publish(), truth.publish(retain=True)
    assert truth.log.appended(0, [truth.entry(one, other)]) == []
    assert truth.log.appended(2, [truth.entry(retained)]) == [retained]
    assert truth.log.next_offset == 3
    assert [truth.log.at(offset) for offset in (-1, 0, 1, 2, 3)] == [None, one, other, retained, None]
    assert truth.log.matching(["a/+"], 0, 9) == [0, 1, 2]
    assert truth.log.matching(["a/+"], 1, 2) == [1]
    assert truth.log.matching(["b"], 0, 9) == []
    truth.log.confirmed(one, 3.0)
    truth.log.confirmed(one, 4.0)
    assert one.confirmed_s == 3.0


def test_qos_1_may_be_there_twice_and_wills_as_often_as_clients_die() -> None:
    truth = Truth()
    one, other = truth.publish(), truth.publish()
    will = truth.ledger.leave_will("bob", "a/b", b"dead", 0.0, qos=2)
    truth.append(one, other, one, other, will, will)
    assert one.offsets == [0, 2]
    assert will.offsets == [4, 5]


def test_offsets_have_no_holes() -> None:
    truth = Truth()
    with pytest.raises(ViolationError, match="the next one was 0"):
        truth.log.appended(1, [truth.entry(truth.publish())])


def test_qos_2_is_there_once() -> None:
    truth = Truth()
    one = truth.publish(qos=2)
    truth.append(one)
    with pytest.raises(ViolationError, match="there at 0 already"):
        truth.append(one)


@pytest.mark.parametrize("qos", [1, 2])
def test_lanes_are_in_order(qos: int) -> None:
    truth = Truth()
    one, other, elsewhere = truth.publish(qos=qos), truth.publish(qos=qos), truth.publish("b", qos=qos)
    truth.append(elsewhere, other)
    with pytest.raises(ViolationError, match="out of order"):
        truth.append(one)


def test_qos_0_is_not_there_unless_a_rule_says_so() -> None:
    truth = Truth()
    one = truth.publish(qos=0)
    with pytest.raises(ViolationError, match="is in the log"):
        truth.append(one)
    LogChecker(truth.ledger, logs_qos_0=True).appended(0, [truth.entry(truth.publish(qos=0))])


def test_the_figures_of_the_broker_are_not_there() -> None:
    truth = Truth()
    with pytest.raises(ViolationError, match="is in the log"):
        truth.logged("$sys/clients")


def test_a_confirm_needs_an_append() -> None:
    truth = Truth()
    truth.log.confirmed(truth.publish(qos=0), 0.0)
    with pytest.raises(ViolationError, match="not in the log"):
        truth.log.confirmed(truth.publish(), 0.0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topic": "elsewhere"}, "topic"),
        ({"publisher": "Mallory"}, "came from"),
        ({"flags": 0x81}, "QoS"),
        ({"flags": 0x45}, "retain=False"),
        ({"published_us": 7}, "time"),
        ({"count": 2}, "counted as 2"),
        ({"rest": b"x"}, "nobody published"),
        ({"rest": b"x", "flags": 0x40}, "cannot be read"),
        ({"received_us": 1}, "after one at"),
    ],
)
def test_changed_entries_are_caught(changes: dict[str, Any], complaint: str) -> None:
    truth = Truth()
    truth.logged()
    with pytest.raises(ViolationError, match=complaint):
        truth.append(truth.publish(), **changes)


def test_a_copy_that_is_put_back_has_what_it_had() -> None:
    truth = Truth()
    kept = truth.logged(qos=2)
    backup = truth.log.copy()
    lost, again = truth.logged(qos=2), truth.logged(qos=2)
    truth.log.confirmed(lost, 1.0)
    truth.log.put_back(backup)
    assert (truth.log.next_offset, kept.offsets, lost.offsets) == (1, [0], [])
    truth.log.confirmed(lost, 2.0)  # its confirm was on its way
    truth.append(again)
    assert again.offsets == [1]
    (former,) = truth.log.former
    assert former.same_below(truth.log.history, 3) == 1
    assert former.same_below(truth.log.history, 1) == 1
    with pytest.raises(ViolationError, match="is there at 1 already"):
        truth.append(again)
