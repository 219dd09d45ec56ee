"""The checkers of retained messages, wills, reached subscriptions and live gaps catch each planted fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.sim.broker_truth import Truth, got

from godwit.sim.broker_promises import LiveChecker, ReachChecker, RetainedChecker, SessionChecker, WillChecker
from godwit.sim.broker_roster import Presence, Roster, Seat
from godwit.sim.broker_streams import Start, Stream
from godwit.sim.checkers import ViolationError
from godwit.transport.events import Closed
from godwit.wire.control import Code, Login

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
