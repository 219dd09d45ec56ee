"""Queues for names: first come, first served, and bounded."""

from __future__ import annotations

import pytest

from godwit.broker.admission import MAX_CLAIMANTS, Claimant, NameQueues
from godwit.broker.ports import Credentials, Peer, RequestFailure


def claimant(number: int) -> Claimant:
    credentials = Credentials(name="a", instance=number.to_bytes(16, "big"))
    return Claimant(Peer("an address", "a host"), credentials, lambda session, resumed: None)


def test_claimants_are_taken_in_their_order() -> None:
    queues = NameQueues()
    queues.begin("a", [], 7)
    first, second = claimant(1), claimant(2)
    assert queues.join("a", first) is None
    assert queues.join("a", second) is None
    assert ("a" in queues, "b" in queues, len(queues)) == (True, False, 2)
    assert queues.first_due() == ("a", 7)
    assert queues.take("a") == [first, second]
    assert (queues.take("a"), len(queues), queues.first_due()) == ([], 0, None)


def test_the_same_run_takes_its_own_place() -> None:
    queues = NameQueues()
    first, second, again = claimant(1), claimant(2), claimant(1)
    queues.begin("a", [first, second], 7)
    assert queues.join("a", again) is first.peer
    assert len(queues) == 2
    queues.leave(first.peer)
    assert queues.take("a") == [again, second]


def test_a_queue_is_bounded_and_ends_when_all_have_left() -> None:
    queues = NameQueues()
    many = [claimant(number) for number in range(MAX_CLAIMANTS)]
    queues.begin("a", list(many), 7)
    queues.begin("b", [claimant(99)], 8)
    with pytest.raises(RequestFailure, match="8 clients wait for it"):
        queues.join("a", claimant(100))
    for one in many:
        queues.leave(one.peer)
    assert queues.first_due() == ("b", 8)
    assert ("a" in queues, len(queues)) == (False, 1)
