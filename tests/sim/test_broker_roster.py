"""The roster knows who was there, what came at QoS 0 in which order, and whether a session must be found."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.sim.broker_truth import Truth

from godwit.transport.events import ChannelConfirmed, Closed, Connected, Received
from godwit.wire.batch import Batch, encode_batch
from godwit.wire.control import Login, PublishOpen, Subscribe, Unsubscribe, encode_control
from godwit_sim.broker_ledger import Publication
from godwit_sim.broker_roster import Roster, Seat


class Line:
    """One connection, as the broker's transport tells of it."""

    def __init__(self, roster: Roster, instance: bytes = bytes(16), *, honest: bool = True, **login: Any) -> None:
        self.roster = roster
        self.connection = cast(Any, object())
        self.instance = instance
        if honest:
            roster.honest.add(instance)
        self.tell(Connected(self.connection, b""), 0.0)
        if login:
            self.say(Login(request=0, instance=instance, **login), login.pop("at", 0.0))

    def tell(self, event: Any, now: float) -> None:
        self.roster.heard([event], now)

    def say(self, message: Any, now: float, channel: int = 0, record: int = 0) -> None:
        self.tell(Received(self.connection, channel, record, encode_control(message)), now)

    def close(self, now: float, origin: Any = "peer", code: int = 0) -> None:
        self.tell(Closed(self.connection, code, "", origin), now)

    def subscribe(self, number: int, *filters: str, at: float = 0.0) -> None:
        self.say(Subscribe(request=0, subscription=number, filters=list(filters)), at)


def send(line: Line, *publications: Publication, sequence: int | None = None, retain: bool = False) -> None:
    first = publications[0]
    assert first.published_us is not None
    batch = Batch([one.payload for one in publications], first.published_us, 0, retain, sequence)
    line.tell(Received(line.connection, 1, 1, encode_batch(batch), reliable=False), 1.0)


def test_reached_counts_who_was_there() -> None:
    roster = Roster(Truth().ledger)
    line, other = Line(roster, name="a"), Line(roster, b"b" * 16, name="b")
    line.subscribe(0, "a/#", at=1.0)
    line.subscribe(1, "b", at=1.0)
    other.subscribe(0, "+/b", at=2.0)
    assert roster.reached("a/b", 3.0, 4.0) == (2, 2)
    assert roster.reached("a/b", 1.5, 4.0) == (1, 2)
    assert roster.reached("a/b", 0.1, 0.5) == (0, 0)
    line.say(Unsubscribe(request=1, subscription=0), 5.0)
    other.close(6.0)
    assert roster.reached("a/b", 5.5, 5.8) == (1, 1)
    assert roster.reached("a/b", 5.5, 6.5) == (0, 1)
    assert roster.reached("a/b", 7.0, 8.0) == (0, 0)
    assert roster.reached("b", 7.0, 8.0) == (1, 1)


def test_a_broker_that_dies_knows_nobody_any_more() -> None:
    roster = Roster(Truth().ledger)
    line, other = Line(roster, name="a"), Line(roster, b"b" * 16, name="b")
    line.subscribe(0, "a/#", at=1.0)
    other.close(2.0)
    (cut_off,) = roster.cut_off(3.0)
    assert (cut_off.instance, cut_off.is_over, cut_off.closed) == (line.instance, True, None)
    assert [one.is_cut_off for one in roster.seats] == [True, False]
    assert roster.reached("a/b", 2.0, 2.5) == (0, 1), "who knows what it has forgotten"
    assert roster.reached("a/b", 4.0, 5.0) == (0, 0)
    assert roster.cut_off(4.0) == []


def test_what_a_broker_is_told_while_its_disk_fails_is_not_sure() -> None:
    roster = Roster(Truth().ledger)
    line = Line(roster, name="a")
    roster.doubt(2.0)
    line.subscribe(0, "a/#", at=2.0)
    line.subscribe(1, "a/b", at=2.1)
    assert roster.is_doubtful(2.0)
    assert not roster.is_doubtful(2.1)
    assert roster.reached("a/b", 3.0, 4.0) == (1, 2)


@pytest.mark.parametrize(
    ("is_settled", "expiry_s", "at", "resumes"),
    [(True, 100, 50.0, True), (False, 100, 50.0, None), (True, 100, 200.0, None), (True, 0, 3.1, None)],
)
def test_who_comes_back_to_a_restarted_broker(is_settled: bool, expiry_s: int, at: float, resumes: bool | None) -> None:
    roster = Roster(Truth().ledger)
    line = Line(roster, name="a", session_expiry_s=expiry_s)
    line.subscribe(0, "a/#", at=1.0)
    roster.seats[0].presences[0].is_settled = is_settled
    roster.cut_off(3.0)
    again = Line(roster, b"c" * 16)
    again.say(Login(request=0, instance=b"c" * 16, name="a"), at)
    assert roster.seats[-1].resumes is resumes


@pytest.mark.parametrize(("settled", "resumes"), [([0], None), ([0, 1], True)])
def test_a_session_is_kept_for_a_subscription_that_is_there_and_was_answered(
    settled: list[int], resumes: bool | None
) -> None:
    roster = Roster(Truth().ledger)
    line = Line(roster, name="a", session_expiry_s=100)
    for number in (0, 1):
        line.subscribe(number, f"a/{number}", at=1.0)
    for number in settled:
        roster.seats[0].presences[number].is_settled = True
    line.say(Unsubscribe(request=1, subscription=0), 2.0)
    roster.cut_off(3.0)
    again = Line(roster, b"c" * 16)
    again.say(Login(request=0, instance=b"c" * 16, name="a"), 4.0)
    assert roster.seats[-1].resumes is resumes


def test_somebody_hostile_is_never_sure() -> None:
    roster = Roster(Truth().ledger)
    line = Line(roster, honest=False)
    for _ in range(2):
        line.subscribe(0, "#")
    line.say(Unsubscribe(request=1, subscription=0), 0.0)
    assert roster.reached("a", 1.0, 2.0) == (0, 2)


def test_live_messages_are_counted_for_each_subscription() -> None:
    truth = Truth()
    roster = Roster(truth.ledger)
    line = Line(roster, name="a")
    line.say(PublishOpen(topic="a/b", qos=0), 0.0, channel=1)
    messages = [truth.publish(qos=0) for _ in range(4)]
    send(line, messages[0])
    line.subscribe(0, "a/#")
    send(line, messages[1], messages[2])
    line.subscribe(1, "a/b")
    send(line, messages[3])
    older, newer = roster.presence(line.instance, ["a/#"]), roster.presence(line.instance, ["a/b"])
    assert older is not None
    assert newer is not None
    assert [roster.live_before(older, one) for one in messages[1:]] == [0, 1, 2]
    assert roster.live_before(newer, messages[3]) == 0
    assert roster.presence(line.instance, ["elsewhere"]) is None
    assert roster.presence(b"a stranger", ["a/#"]) is None


def test_late_messages_are_left_out() -> None:
    truth = Truth()
    roster = Roster(truth.ledger)
    line = Line(roster, name="a")
    line.say(PublishOpen(topic="a/b", qos=0), 0.0, channel=1)
    first, second, third = (truth.publish(qos=0) for _ in range(3))
    send(line, second, sequence=1)
    send(line, first, sequence=0)
    send(line, third, sequence=2)
    assert roster.live == [second, third]
    assert [roster.arrived(one) for one in (first, second)] == [False, True]


def test_retained_messages_of_qos_0_are_told() -> None:
    truth = Truth()
    roster = Roster(truth.ledger)
    told: list[tuple[Publication, float]] = []
    roster.on_retain = lambda publication, now: told.append((publication, now))
    line = Line(roster, name="a")
    line.say(PublishOpen(topic="a/b", qos=0), 0.0, channel=1)
    first, second = truth.publish(qos=0, retain=True), truth.publish(qos=0, retain=True)
    send(line, first, second, retain=True)
    assert told == [(second, 1.0)]


def test_junk_is_passed_over() -> None:
    truth = Truth()
    roster = Roster(truth.ledger)
    line = Line(roster, name="a")
    line.tell(Received(line.connection, 0, 0, b"junk"), 0.0)
    line.tell(Received(line.connection, 1, 0, b"junk"), 0.0)
    line.say(PublishOpen(topic="a/b", qos=0), 0.0, channel=2)
    line.tell(Received(line.connection, 2, 1, b"junk"), 0.0)
    strange = Batch([b"nobody's"], 1, 0)
    line.tell(Received(line.connection, 2, 2, encode_batch(strange)), 0.0)
    line.tell(ChannelConfirmed(line.connection, 1, 1, 0), 0.0)
    assert roster.live == []


def test_who_left_is_told() -> None:
    roster = Roster(Truth().ledger)
    left: list[Seat] = []
    roster.on_closed = lambda seat, now: left.append(seat)
    line = Line(roster, name="a")
    line.close(3.0)
    assert [(seat.name, seat.closed_s, seat.is_in) for seat in left] == [("a", 3.0, False)]


@pytest.mark.parametrize(
    ("expiry_s", "fresh", "back_s", "resumes"),
    [
        (10, False, 5.0, True),
        (10, False, 15.0, False),
        (10, True, 5.0, False),
        (10, False, 10.95, None),
        (0, False, 1.5, False),
    ],
)
def test_sessions_are_found_in_time(expiry_s: int, fresh: bool, back_s: float, resumes: bool | None) -> None:
    roster = Roster(Truth().ledger)
    first = Line(roster, name="a", session_expiry_s=expiry_s)
    first.subscribe(0, "#")
    first.close(1.0)
    second = Line(roster, b"b" * 16)
    second.say(Login(request=0, instance=second.instance, name="a", fresh=fresh), back_s)
    seat = roster.seat_of(second.instance)
    assert seat is not None
    assert seat.resumes is resumes


@pytest.mark.parametrize(("is_in", "expiry_s", "resumes"), [(True, 5, True), (False, 5, None), (True, 0, False)])
def test_a_takeover_finds_the_session(is_in: bool, expiry_s: int, resumes: bool | None) -> None:
    roster = Roster(Truth().ledger)
    first = Line(roster, name="a", session_expiry_s=expiry_s)
    if is_in:
        first.subscribe(0, "#")
    second = Line(roster, b"b" * 16, name="a")
    seat = roster.seat_of(second.instance)
    assert seat is not None
    assert seat.resumes is resumes


def test_a_session_without_subscriptions_need_not_be_kept() -> None:
    roster = Roster(Truth().ledger)
    first = Line(roster, name="a", session_expiry_s=10)
    first.say(PublishOpen(topic="a"), 0.0, channel=1)
    taking_over = Line(roster, b"b" * 16, name="a", session_expiry_s=10)
    first.close(1.0)
    taking_over.close(1.0)
    later = Line(roster, b"c" * 16, name="a")
    found = [roster.seat_of(line.instance) for line in (taking_over, later)]
    assert [seat.resumes for seat in found if seat is not None] == [None, None]


def test_who_was_refused_leaves_no_session() -> None:
    roster = Roster(Truth().ledger)
    Line(roster, b"h" * 16, honest=False, name="a", session_expiry_s=9).subscribe(0, "#")
    Line(roster, b"r" * 16, name="a", session_expiry_s=9).close(1.0, "local", 109)
    lost = Line(roster, b"l" * 16, name="b", session_expiry_s=9)
    lost.close(1.0, "timeout", 6)
    assert roster.seats[1].resumes is False
    seats = [Line(roster, bytes([number]) * 16, name=name) for number, name in ((1, "a"), (2, "b"), (3, "c"))]
    found = [roster.seat_of(line.instance) for line in seats]
    assert [seat.resumes for seat in found if seat is not None] == [False, None, False]
