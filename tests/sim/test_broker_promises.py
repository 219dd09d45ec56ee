"""The checkers of retained messages, wills, reached subscriptions and live gaps catch each planted fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.sim.broker_truth import Truth, got

from godwit.transport.events import Closed
from godwit.wire.control import Login
from godwit.wire.control_base import Code
from godwit_sim.broker_promises import (
    LiveChecker,
    ReachChecker,
    RetainedChecker,
    SessionChecker,
    WillChecker,
)
from godwit_sim.broker_roster import Presence, Roster, Seat
from godwit_sim.broker_streams import Start, Stream
from godwit_sim.checkers import ViolationError

# -- retained ---------------------------------------------------------------------------------------------------------


def stream(truth: Truth, *retained: Any) -> Stream:
    made = Stream("s", ["a/#"], truth.ledger, truth.log, Start(0))
    for publication in retained:
        made.took([got(publication, retained=True)])
    return made


def test_the_retained_message_comes() -> None:
    truth, checker = Truth(), RetainedChecker()
    old, kept, other = truth.publish(retain=True), truth.publish(retain=True), truth.publish("b", retain=True)
    for at_s, publication in enumerate((old, kept, other)):
        checker.changed(publication, at_s)
    assert checker.current() == {"a/b": kept.payload, "b": other.payload}
    checker.check(stream(truth, kept), 5.0, all_is_there=True)
    checker.check(stream(truth), 5.0, all_is_there=False)
    with pytest.raises(ViolationError, match="never came"):
        checker.check(stream(truth), 5.0, all_is_there=True)
    with pytest.raises(ViolationError, match="was retained when it asked"):
        checker.check(stream(truth, old), 5.0, all_is_there=False)


def test_what_changes_meanwhile_may_come_instead_or_not_at_all() -> None:
    truth, checker = Truth(), RetainedChecker()
    old, newer = truth.publish(retain=True), truth.publish(retain=True)
    checker.changed(old, 0.0)
    checker.changed(newer, 2.0)
    for came in ((), (old,), (newer,)):
        checker.check(stream(truth, *came), 1.0, all_is_there=True)


def test_a_cleared_topic_retains_nothing() -> None:
    truth, checker = Truth(), RetainedChecker()
    old, empty = truth.publish(retain=True), truth.publish(payload=b"", retain=True)
    checker.changed(old, 0.0)
    checker.changed(empty, 1.0)
    checker.check(stream(truth), 2.0, all_is_there=True)
    assert checker.current() == {}
    with pytest.raises(ViolationError, match="nothing was retained"):
        checker.check(stream(truth, old), 2.0, all_is_there=False)


# -- wills ------------------------------------------------------------------------------------------------------------

INSTANCE = bytes(16)


def seat(origin: str, code: int = 0, *, is_in: bool = True) -> Seat:
    closed: Any = Closed(None, code, "", origin)  # type: ignore[arg-type]
    return Seat(None, 0.0, Login(request=0, name="bob", instance=INSTANCE), is_in, closed=closed)


@pytest.mark.parametrize(
    ("ended", "heir", "due"),
    [
        (seat("peer"), None, 0),
        (seat("timeout"), None, 1),
        (seat("peer", Code.INTERNAL), None, 1),
        (seat("local", Code.TAKEN_OVER), INSTANCE, 0),
        (seat("local", Code.TAKEN_OVER), b"another instance", 1),
        (seat("local", Code.KICKED), None, 1),
        (seat("local", Code.NAME_IN_USE, is_in=False), None, 0),
    ],
)
def test_wills(ended: Seat, heir: bytes | None, due: int) -> None:
    for published in range(3):
        truth, checker = Truth(), WillChecker()
        will = truth.ledger.leave_will("bob", "a/b", b"dead", 0.0)
        checker.left(INSTANCE, will)
        checker.closed(ended, heir)
        truth.append(*(will,) * published)
        if published == due:
            checker.check()
            checker.complete()
        else:
            with pytest.raises(ViolationError, match=f"published {published} times, due {due} times"):
                checker.complete()
        if published > due:
            with pytest.raises(ViolationError, match="times, due"):
                checker.check()


def test_a_connection_that_may_not_have_been_let_in_may_leave_a_will() -> None:
    truth, checker = Truth(), WillChecker()
    checker.left(INSTANCE, truth.ledger.leave_will("bob", "a/b", b"dead", 0.0))
    checker.closed(seat("timeout", is_in=False), None)
    checker.complete()
    checker.closed(SimpleNamespace(instance=b"a stranger", closed=None), None)  # type: ignore[arg-type]


class Left:
    """A client with a will, and a broker that dies."""

    def __init__(self) -> None:
        self.truth, self.checker = Truth(), WillChecker()
        self.will = self.truth.ledger.leave_will("bob", "a/b", b"dead", 0.0)
        self.checker.left(INSTANCE, self.will)

    def die(self, *, under_it: bool = True) -> None:
        made = seat("timeout")
        made.closed = None
        self.checker.cut_off([made] if under_it else [])

    def publish(self) -> None:
        self.truth.append(self.will)


def test_who_does_not_come_back_after_the_broker_died_leaves_a_will() -> None:
    left = Left()
    left.checker.welcomed(INSTANCE, is_safe=True)
    left.die()
    left.die(under_it=False)
    assert "is due" in left.checker.outstanding()
    with pytest.raises(ViolationError, match="published 0 times, due 1 times; its connections ended: broker died"):
        left.checker.complete()
    left.publish()
    left.checker.complete()
    left.publish()
    with pytest.raises(ViolationError, match="published 2 times"):
        left.checker.check()


def test_who_comes_back_after_the_broker_died_may_have_been_too_late() -> None:
    left = Left()
    left.checker.welcomed(INSTANCE, is_safe=True)
    left.die()
    left.checker.welcomed(INSTANCE, is_safe=True)
    left.checker.complete()
    left.publish()
    left.checker.complete()


def test_who_comes_back_after_the_broker_died_and_says_goodbye_before_the_welcome_arrives_leaves_no_will() -> None:
    left = Left()
    left.checker.welcomed(INSTANCE, is_safe=True)
    left.die()
    left.checker.closed(seat("peer", is_in=False), None)
    assert not left.checker.outstanding()
    left.checker.complete()
    left.die(under_it=False)
    assert not left.checker.outstanding(), "the broker may have forgotten the goodbye, or not"


def test_a_will_that_the_disk_did_not_take_may_be_lost_with_the_broker() -> None:
    left = Left()
    left.checker.welcomed(INSTANCE, is_safe=False)
    left.die()
    left.checker.complete()
    left.publish()
    left.checker.complete()


def test_a_will_that_was_due_when_the_broker_died_still_is() -> None:
    left = Left()
    left.checker.welcomed(INSTANCE, is_safe=True)
    left.checker.closed(seat("timeout"), None)
    left.die(under_it=False)
    with pytest.raises(ViolationError, match="published 0 times, due 1 times"):
        left.checker.complete()
    left.publish()
    left.checker.complete()


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_goodbye_counts_when_the_broker_has_written_it_down(is_saved: bool) -> None:
    left = Left()
    left.checker.closed(seat("peer"), None)
    if is_saved:
        left.checker.saved()
    left.die(under_it=False)
    left.checker.complete()
    left.publish()
    if is_saved:
        with pytest.raises(ViolationError, match="published 1 times, due 0 times"):
            left.checker.complete()
    else:
        left.checker.complete()


# -- reached ----------------------------------------------------------------------------------------------------------


def test_reached() -> None:
    truth = Truth()
    roster = Roster(truth.ledger)
    roster._presences += [Presence(("a/#",), 0.0, 0), Presence(("+/b",), 5.0, 0), Presence(("b",), 0.0, 0)]
    checker = ReachChecker(roster)
    publication = truth.publish()  # sent at 0.0
    publication.sent_s = 1.0
    checker.confirmed(publication, 1, 2.0)
    for wrong in (0, 2):
        with pytest.raises(ViolationError, match="it must have been 1 to 1"):
            checker.confirmed(publication, wrong, 2.0)
    for maybe in (1, 2):
        checker.confirmed(publication, maybe, 6.0)


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_sessions() -> None:
    roster = Roster(Truth().ledger)
    made = Seat(None, 0.0, Login(request=0, name="bob", instance=INSTANCE), resumes=True)
    roster.seats.append(made)
    checker = SessionChecker(roster)
    checker.welcomed("b", INSTANCE, True)
    with pytest.raises(ViolationError, match="resumed=False, it should be True"):
        checker.welcomed("b", INSTANCE, False)
    with pytest.raises(ViolationError, match="never heard of it"):
        checker.welcomed("c", b"a stranger's id.", False)
    made.resumes = None
    for either in (True, False):
        checker.welcomed("b", INSTANCE, either)


def test_a_subscription_is_kept_from_its_answer_on_unless_the_disk_fails() -> None:
    roster = Roster(Truth().ledger)
    made = Seat(None, 0.0, Login(request=0, name="bob", instance=INSTANCE))
    roster.seats.append(made)
    checker = SessionChecker(roster)
    roster.doubt(2.0)
    present, left, other = (Presence(("a",), 0.0, 0) for _ in range(3))
    made.presences, made.left = {1: present}, {2: left, 3: other}
    for now, is_kept in ((2.0, False), (2.1, True)):
        for number in (1, 2, 4):
            assert checker.settled(INSTANCE, number, now) is is_kept
        assert [one.is_settled for one in (present, left, other)] == [is_kept, is_kept, False]
    assert not checker.settled(b"a stranger's id.", 1, 2.1)


# -- live gaps --------------------------------------------------------------------------------------------------------


class Live:
    """Five messages of QoS 0 came for a subscription."""

    def __init__(self, *, counts: bool = True) -> None:
        truth = Truth()
        roster = Roster(truth.ledger)
        self.messages = [truth.publish(qos=0) for _ in range(6)]
        for number, one in enumerate(self.messages[:5]):
            roster.live.append(one)
            roster._ranks[id(one)] = number
        self.seat = Seat(None, 0.0, Login(request=0, instance=INSTANCE), presences={0: Presence(("a/#",), 0.0, 0)})
        roster.seats.append(self.seat)
        self.checker = LiveChecker(roster, stream(truth), counts=counts)

    def take(self, *numbers: int) -> None:
        self.checker.took(INSTANCE, [self.messages[number] for number in numbers])


def test_live_gaps_add_up() -> None:
    live = Live()
    live.take(0, 1)
    live.checker.told_missed(2)
    live.take(4)
    live.take()


@pytest.mark.parametrize("told", [0, 1, 3])
def test_wrong_live_gaps_are_caught(told: int) -> None:
    live = Live()
    live.take(0)
    if told:
        live.checker.told_missed(told)
    with pytest.raises(ViolationError, match="which was number 4"):
        live.take(3)


def test_what_never_came_to_the_broker_is_caught() -> None:
    live = Live()
    with pytest.raises(ViolationError, match="never came to the broker"):
        live.take(5)
    with pytest.raises(ViolationError, match="told that 0"):
        live.checker.told_missed(0)


def test_live_gaps_are_counted_only_while_somebody_can_know() -> None:
    Live(counts=False).take(3)
    live = Live()
    live.checker.disconnected()
    live.take(3)
    live = Live()
    live.seat.presences.clear()
    live.take(3)
    live.take(1)


def test_a_copy_that_is_put_back_retains_what_was_retained_then() -> None:
    truth, checker = Truth(), RetainedChecker()
    old, new, late = truth.publish(retain=True), truth.publish(retain=True), truth.publish("b", retain=True)
    checker.changed(old, 1.0)
    kept = checker.copy()
    checker.changed(new, 2.0)
    checker.changed(late, 2.0)
    checker.put_back(kept, 3.0)
    assert checker.current() == {"a/b": old.payload}
    checker.check(stream(truth, old), 4.0, all_is_there=True)
    with pytest.raises(ViolationError, match="was retained when it asked"):
        checker.check(stream(truth, new), 4.0, all_is_there=True)
