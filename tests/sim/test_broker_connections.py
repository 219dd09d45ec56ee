"""The model of the broker's connections, and the checkers that use it.

The model knows the connected clients, the order of QoS 0 messages, and whether a session must be found. The checkers of
retained messages, wills, reached subscriptions and live gaps catch each planted fault.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.sim.broker_models import Models, got

from godwit.transport.events import ChannelConfirmed, Closed, Connected, Received
from godwit.wire.batch import Batch, encode_batch
from godwit.wire.control import Login, PublishOpen, Subscribe, Unsubscribe, encode_control
from godwit.wire.control_base import Code
from godwit_sim.broker_connections import (
    ConnectedSubscription,
    ConnectionModel,
    ConnectionRecord,
    LiveChecker,
    ReachChecker,
    RetainedChecker,
    SessionChecker,
    WillChecker,
)
from godwit_sim.broker_log_model import Publication
from godwit_sim.broker_streams import Start, Stream
from godwit_sim.checkers import ViolationError


class Line:
    """One connection, as the broker's transport reports it."""

    def __init__(
        self, connections: ConnectionModel, instance: bytes = bytes(16), *, honest: bool = True, **login: Any
    ) -> None:
        self.connections = connections
        self.connection = cast(Any, object())
        self.instance = instance
        if honest:
            connections.honest.add(instance)
        self.tell(Connected(self.connection, b""), 0.0)
        if login:
            self.say(Login(request=0, instance=instance, **login), login.pop("at", 0.0))

    def tell(self, event: Any, now: float) -> None:
        self.connections.handle_events([event], now)

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
    connections = ConnectionModel(Models().published)
    line, other = Line(connections, name="a"), Line(connections, b"b" * 16, name="b")
    line.subscribe(0, "a/#", at=1.0)
    line.subscribe(1, "b", at=1.0)
    other.subscribe(0, "+/b", at=2.0)
    assert connections.reached("a/b", 3.0, 4.0) == (2, 2)
    assert connections.reached("a/b", 1.5, 4.0) == (1, 2)
    assert connections.reached("a/b", 0.1, 0.5) == (0, 0)
    line.say(Unsubscribe(request=1, subscription=0), 5.0)
    other.close(6.0)
    assert connections.reached("a/b", 5.5, 5.8) == (1, 1)
    assert connections.reached("a/b", 5.5, 6.5) == (0, 1)
    assert connections.reached("a/b", 7.0, 8.0) == (0, 0)
    assert connections.reached("b", 7.0, 8.0) == (1, 1)


def test_a_dead_broker_has_no_connections() -> None:
    connections = ConnectionModel(Models().published)
    line, other = Line(connections, name="a"), Line(connections, b"b" * 16, name="b")
    line.subscribe(0, "a/#", at=1.0)
    other.close(2.0)
    (dead,) = connections.handle_broker_death(3.0)
    assert (dead.instance, dead.is_over, dead.closed) == (
        line.instance,
        True,
        None,
    )
    assert [one.is_broker_dead for one in connections.records] == [True, False]
    assert connections.reached("a/b", 2.0, 2.5) == (0, 1), "the broker may have forgotten some"
    assert connections.reached("a/b", 4.0, 5.0) == (0, 0)
    assert connections.handle_broker_death(4.0) == []


def test_requests_while_the_disk_fails_are_uncertain() -> None:
    connections = ConnectionModel(Models().published)
    line = Line(connections, name="a")
    connections.mark_uncertain(2.0)
    line.subscribe(0, "a/#", at=2.0)
    line.subscribe(1, "a/b", at=2.1)
    assert connections.is_uncertain(2.0)
    assert not connections.is_uncertain(2.1)
    assert connections.reached("a/b", 3.0, 4.0) == (1, 2)


@pytest.mark.parametrize(
    ("is_settled", "expiry_s", "at", "resumes"),
    [(True, 100, 50.0, True), (False, 100, 50.0, None), (True, 100, 200.0, None), (True, 0, 3.1, None)],
)
def test_who_comes_back_to_a_restarted_broker(is_settled: bool, expiry_s: int, at: float, resumes: bool | None) -> None:
    connections = ConnectionModel(Models().published)
    line = Line(connections, name="a", session_expiry_s=expiry_s)
    line.subscribe(0, "a/#", at=1.0)
    connections.records[0].subscriptions[0].is_settled = is_settled
    connections.handle_broker_death(3.0)
    again = Line(connections, b"c" * 16)
    again.say(Login(request=0, instance=b"c" * 16, name="a"), at)
    assert connections.records[-1].resumes is resumes


@pytest.mark.parametrize(("settled", "resumes"), [([0], None), ([0, 1], True)])
def test_a_session_is_kept_for_a_subscription_that_is_there_and_was_answered(
    settled: list[int], resumes: bool | None
) -> None:
    connections = ConnectionModel(Models().published)
    line = Line(connections, name="a", session_expiry_s=100)
    for number in (0, 1):
        line.subscribe(number, f"a/{number}", at=1.0)
    for number in settled:
        connections.records[0].subscriptions[number].is_settled = True
    line.say(Unsubscribe(request=1, subscription=0), 2.0)
    connections.handle_broker_death(3.0)
    again = Line(connections, b"c" * 16)
    again.say(Login(request=0, instance=b"c" * 16, name="a"), 4.0)
    assert connections.records[-1].resumes is resumes


def test_a_hostile_client_is_never_certain() -> None:
    connections = ConnectionModel(Models().published)
    line = Line(connections, honest=False)
    for _ in range(2):
        line.subscribe(0, "#")
    line.say(Unsubscribe(request=1, subscription=0), 0.0)
    assert connections.reached("a", 1.0, 2.0) == (0, 2)


def test_live_messages_are_counted_for_each_subscription() -> None:
    models = Models()
    connections = ConnectionModel(models.published)
    line = Line(connections, name="a")
    line.say(PublishOpen(topic="a/b", qos=0), 0.0, channel=1)
    messages = [models.publish(qos=0) for _ in range(4)]
    send(line, messages[0])
    line.subscribe(0, "a/#")
    send(line, messages[1], messages[2])
    line.subscribe(1, "a/b")
    send(line, messages[3])
    older, newer = (
        connections.subscription_of(line.instance, ["a/#"]),
        connections.subscription_of(line.instance, ["a/b"]),
    )
    assert older is not None
    assert newer is not None
    assert [connections.live_before(older, one) for one in messages[1:]] == [0, 1, 2]
    assert connections.live_before(newer, messages[3]) == 0
    assert connections.subscription_of(line.instance, ["elsewhere"]) is None
    assert connections.subscription_of(b"a stranger", ["a/#"]) is None


def test_late_messages_are_left_out() -> None:
    models = Models()
    connections = ConnectionModel(models.published)
    line = Line(connections, name="a")
    line.say(PublishOpen(topic="a/b", qos=0), 0.0, channel=1)
    first, second, third = (models.publish(qos=0) for _ in range(3))
    send(line, second, sequence=1)
    send(line, first, sequence=0)
    send(line, third, sequence=2)
    assert connections.live == [second, third]
    assert [connections.arrived(one) for one in (first, second)] == [False, True]


def test_retained_messages_of_qos_0_are_reported() -> None:
    models = Models()
    connections = ConnectionModel(models.published)
    reported: list[tuple[Publication, float]] = []
    connections.on_retain = lambda publication, now: reported.append((publication, now))
    line = Line(connections, name="a")
    line.say(PublishOpen(topic="a/b", qos=0), 0.0, channel=1)
    first, second = models.publish(qos=0, retain=True), models.publish(qos=0, retain=True)
    send(line, first, second, retain=True)
    assert reported == [(second, 1.0)]


def test_junk_is_passed_over() -> None:
    models = Models()
    connections = ConnectionModel(models.published)
    line = Line(connections, name="a")
    line.tell(Received(line.connection, 0, 0, b"junk"), 0.0)
    line.tell(Received(line.connection, 1, 0, b"junk"), 0.0)
    line.say(PublishOpen(topic="a/b", qos=0), 0.0, channel=2)
    line.tell(Received(line.connection, 2, 1, b"junk"), 0.0)
    strange = Batch([b"nobody's"], 1, 0)
    line.tell(Received(line.connection, 2, 2, encode_batch(strange)), 0.0)
    line.tell(ChannelConfirmed(line.connection, 1, 1, 0), 0.0)
    assert connections.live == []


def test_a_closed_connection_is_reported() -> None:
    connections = ConnectionModel(Models().published)
    closed: list[ConnectionRecord] = []
    connections.on_closed = lambda conn, now: closed.append(conn)
    line = Line(connections, name="a")
    line.close(3.0)
    assert [(conn.name, conn.closed_s, conn.is_accepted) for conn in closed] == [("a", 3.0, False)]


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
    connections = ConnectionModel(Models().published)
    first = Line(connections, name="a", session_expiry_s=expiry_s)
    first.subscribe(0, "#")
    first.close(1.0)
    second = Line(connections, b"b" * 16)
    second.say(Login(request=0, instance=second.instance, name="a", fresh=fresh), back_s)
    conn = connections.record_of(second.instance)
    assert conn is not None
    assert conn.resumes is resumes


@pytest.mark.parametrize(("is_accepted", "expiry_s", "resumes"), [(True, 5, True), (False, 5, None), (True, 0, False)])
def test_a_takeover_finds_the_session(is_accepted: bool, expiry_s: int, resumes: bool | None) -> None:
    connections = ConnectionModel(Models().published)
    first = Line(connections, name="a", session_expiry_s=expiry_s)
    if is_accepted:
        first.subscribe(0, "#")
    second = Line(connections, b"b" * 16, name="a")
    conn = connections.record_of(second.instance)
    assert conn is not None
    assert conn.resumes is resumes


def test_a_session_without_subscriptions_need_not_be_kept() -> None:
    connections = ConnectionModel(Models().published)
    first = Line(connections, name="a", session_expiry_s=10)
    first.say(PublishOpen(topic="a"), 0.0, channel=1)
    taking_over = Line(connections, b"b" * 16, name="a", session_expiry_s=10)
    first.close(1.0)
    taking_over.close(1.0)
    later = Line(connections, b"c" * 16, name="a")
    found = [connections.record_of(line.instance) for line in (taking_over, later)]
    assert [conn.resumes for conn in found if conn is not None] == [None, None]


def test_who_was_refused_leaves_no_session() -> None:
    connections = ConnectionModel(Models().published)
    Line(connections, b"h" * 16, honest=False, name="a", session_expiry_s=9).subscribe(0, "#")
    Line(connections, b"r" * 16, name="a", session_expiry_s=9).close(1.0, "local", 109)
    lost = Line(connections, b"l" * 16, name="b", session_expiry_s=9)
    lost.close(1.0, "timeout", 6)
    assert connections.records[1].resumes is False
    records = [Line(connections, bytes([number]) * 16, name=name) for number, name in ((1, "a"), (2, "b"), (3, "c"))]
    found = [connections.record_of(line.instance) for line in records]
    assert [conn.resumes for conn in found if conn is not None] == [False, None, False]


# -- retained ---------------------------------------------------------------------------------------------------------


def stream(models: Models, *retained: Any) -> Stream:
    made = Stream("s", ["a/#"], models.published, models.log, Start(0))
    for publication in retained:
        made.took([got(publication, retained=True)])
    return made


def test_the_retained_message_comes() -> None:
    models, checker = Models(), RetainedChecker()
    old, kept, other = models.publish(retain=True), models.publish(retain=True), models.publish("b", retain=True)
    for at_s, publication in enumerate((old, kept, other)):
        checker.changed(publication, at_s)
    assert checker.current() == {"a/b": kept.payload, "b": other.payload}
    checker.check(stream(models, kept), 5.0, all_is_there=True)
    checker.check(stream(models), 5.0, all_is_there=False)
    with pytest.raises(ViolationError, match="never came"):
        checker.check(stream(models), 5.0, all_is_there=True)
    with pytest.raises(ViolationError, match="was retained when it asked"):
        checker.check(stream(models, old), 5.0, all_is_there=False)


def test_a_retained_message_that_changes_may_be_replaced() -> None:
    models, checker = Models(), RetainedChecker()
    old, newer = models.publish(retain=True), models.publish(retain=True)
    checker.changed(old, 0.0)
    checker.changed(newer, 2.0)
    for came in ((), (old,), (newer,)):
        checker.check(stream(models, *came), 1.0, all_is_there=True)


def test_a_cleared_topic_retains_nothing() -> None:
    models, checker = Models(), RetainedChecker()
    old, empty = models.publish(retain=True), models.publish(payload=b"", retain=True)
    checker.changed(old, 0.0)
    checker.changed(empty, 1.0)
    checker.check(stream(models), 2.0, all_is_there=True)
    assert checker.current() == {}
    with pytest.raises(ViolationError, match="nothing was retained"):
        checker.check(stream(models, old), 2.0, all_is_there=False)


# -- wills ------------------------------------------------------------------------------------------------------------

INSTANCE = bytes(16)


def conn(origin: str, code: int = 0, *, is_accepted: bool = True) -> ConnectionRecord:
    closed: Any = Closed(None, code, "", origin)  # type: ignore[arg-type]
    return ConnectionRecord(None, 0.0, Login(request=0, name="bob", instance=INSTANCE), is_accepted, closed=closed)


@pytest.mark.parametrize(
    ("ended", "heir", "due"),
    [
        (conn("peer"), None, 0),
        (conn("timeout"), None, 1),
        (conn("peer", Code.INTERNAL), None, 1),
        (conn("local", Code.TAKEN_OVER), INSTANCE, 0),
        (conn("local", Code.TAKEN_OVER), b"another instance", 1),
        (conn("local", Code.KICKED), None, 1),
        (conn("local", Code.NAME_IN_USE, is_accepted=False), None, 0),
    ],
)
def test_wills(ended: ConnectionRecord, heir: bytes | None, due: int) -> None:
    for published in range(3):
        models, checker = Models(), WillChecker()
        will = models.published.add_will("bob", "a/b", b"dead", 0.0)
        checker.register(INSTANCE, will)
        checker.closed(ended, heir)
        models.append(*(will,) * published)
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
    models, checker = Models(), WillChecker()
    checker.register(INSTANCE, models.published.add_will("bob", "a/b", b"dead", 0.0))
    checker.closed(conn("timeout", is_accepted=False), None)
    checker.complete()
    checker.closed(SimpleNamespace(instance=b"a stranger", closed=None), None)  # type: ignore[arg-type]


class ClientWithWill:
    """A client with a will, and a broker that dies."""

    def __init__(self) -> None:
        self.models, self.checker = Models(), WillChecker()
        self.will = self.models.published.add_will("bob", "a/b", b"dead", 0.0)
        self.checker.register(INSTANCE, self.will)

    def die(self, *, under_it: bool = True) -> None:
        made = conn("timeout")
        made.closed = None
        self.checker.handle_broker_death([made] if under_it else [])

    def publish(self) -> None:
        self.models.append(self.will)


def test_who_does_not_come_back_after_the_broker_died_leaves_a_will() -> None:
    client = ClientWithWill()
    client.checker.welcomed(INSTANCE, is_safe=True)
    client.die()
    client.die(under_it=False)
    assert "is due" in client.checker.outstanding()
    with pytest.raises(ViolationError, match="published 0 times, due 1 times; its connections ended: broker died"):
        client.checker.complete()
    client.publish()
    client.checker.complete()
    client.publish()
    with pytest.raises(ViolationError, match="published 2 times"):
        client.checker.check()


def test_who_comes_back_after_the_broker_died_may_have_been_too_late() -> None:
    client = ClientWithWill()
    client.checker.welcomed(INSTANCE, is_safe=True)
    client.die()
    client.checker.welcomed(INSTANCE, is_safe=True)
    client.checker.complete()
    client.publish()
    client.checker.complete()


def test_a_client_that_returns_and_closes_before_the_welcome_leaves_no_will() -> None:
    client = ClientWithWill()
    client.checker.welcomed(INSTANCE, is_safe=True)
    client.die()
    client.checker.closed(conn("peer", is_accepted=False), None)
    assert not client.checker.outstanding()
    client.checker.complete()
    client.die(under_it=False)
    assert not client.checker.outstanding(), "the broker may have forgotten the goodbye, or not"


def test_a_will_that_the_disk_did_not_take_may_be_lost_with_the_broker() -> None:
    client = ClientWithWill()
    client.checker.welcomed(INSTANCE, is_safe=False)
    client.die()
    client.checker.complete()
    client.publish()
    client.checker.complete()


def test_a_will_that_was_due_when_the_broker_died_still_is() -> None:
    client = ClientWithWill()
    client.checker.welcomed(INSTANCE, is_safe=True)
    client.checker.closed(conn("timeout"), None)
    client.die(under_it=False)
    with pytest.raises(ViolationError, match="published 0 times, due 1 times"):
        client.checker.complete()
    client.publish()
    client.checker.complete()


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_regular_close_counts_once_it_is_stored(is_saved: bool) -> None:
    client = ClientWithWill()
    client.checker.closed(conn("peer"), None)
    if is_saved:
        client.checker.saved()
    client.die(under_it=False)
    client.checker.complete()
    client.publish()
    if is_saved:
        with pytest.raises(ViolationError, match="published 1 times, due 0 times"):
            client.checker.complete()
    else:
        client.checker.complete()


# -- reached ----------------------------------------------------------------------------------------------------------


def test_reached() -> None:
    models = Models()
    connections = ConnectionModel(models.published)
    connections._subscriptions += [
        ConnectedSubscription(("a/#",), 0.0, 0),
        ConnectedSubscription(("+/b",), 5.0, 0),
        ConnectedSubscription(("b",), 0.0, 0),
    ]
    checker = ReachChecker(connections)
    publication = models.publish()  # sent at 0.0
    publication.sent_s = 1.0
    checker.confirmed(publication, 1, 2.0)
    for wrong in (0, 2):
        with pytest.raises(ViolationError, match="it must have been 1 to 1"):
            checker.confirmed(publication, wrong, 2.0)
    for maybe in (1, 2):
        checker.confirmed(publication, maybe, 6.0)


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_sessions() -> None:
    connections = ConnectionModel(Models().published)
    made = ConnectionRecord(None, 0.0, Login(request=0, name="bob", instance=INSTANCE), resumes=True)
    connections.records.append(made)
    checker = SessionChecker(connections)
    checker.welcomed("b", INSTANCE, True)
    with pytest.raises(ViolationError, match="resumed=False, it should be True"):
        checker.welcomed("b", INSTANCE, False)
    with pytest.raises(ViolationError, match="never received its login"):
        checker.welcomed("c", b"a stranger's id.", False)
    made.resumes = None
    for either in (True, False):
        checker.welcomed("b", INSTANCE, either)


def test_a_subscription_is_kept_from_its_answer_on_unless_the_disk_fails() -> None:
    connections = ConnectionModel(Models().published)
    made = ConnectionRecord(None, 0.0, Login(request=0, name="bob", instance=INSTANCE))
    connections.records.append(made)
    checker = SessionChecker(connections)
    connections.mark_uncertain(2.0)
    present, ended, other = (ConnectedSubscription(("a",), 0.0, 0) for _ in range(3))
    made.subscriptions, made.ended_subscriptions = {1: present}, {2: ended, 3: other}
    for now, is_stored in ((2.0, False), (2.1, True)):
        for number in (1, 2, 4):
            assert checker.settled(INSTANCE, number, now) is is_stored
        assert [one.is_settled for one in (present, ended, other)] == [is_stored, is_stored, False]
    assert not checker.settled(b"a stranger's id.", 1, 2.1)


# -- live gaps --------------------------------------------------------------------------------------------------------


class Live:
    """Five messages of QoS 0 that arrived for a subscription."""

    def __init__(self, *, counts: bool = True) -> None:
        models = Models()
        connections = ConnectionModel(models.published)
        self.messages = [models.publish(qos=0) for _ in range(6)]
        for number, one in enumerate(self.messages[:5]):
            connections.live.append(one)
            connections._ranks[id(one)] = number
        self.conn = ConnectionRecord(
            None, 0.0, Login(request=0, instance=INSTANCE), subscriptions={0: ConnectedSubscription(("a/#",), 0.0, 0)}
        )
        connections.records.append(self.conn)
        self.checker = LiveChecker(connections, stream(models), counts=counts)

    def take(self, *numbers: int) -> None:
        self.checker.took(INSTANCE, [self.messages[number] for number in numbers])


def test_live_gaps_add_up() -> None:
    live = Live()
    live.take(0, 1)
    live.checker.notified_missed(2)
    live.take(4)
    live.take()


@pytest.mark.parametrize("reported", [0, 1, 3])
def test_wrong_live_gaps_are_caught(reported: int) -> None:
    live = Live()
    live.take(0)
    if reported:
        live.checker.notified_missed(reported)
    with pytest.raises(ViolationError, match="which was number 4"):
        live.take(3)


def test_a_message_that_never_reached_the_broker_is_caught() -> None:
    live = Live()
    with pytest.raises(ViolationError, match="never came to the broker"):
        live.take(5)
    with pytest.raises(ViolationError, match="0 messages"):
        live.checker.notified_missed(0)


def test_live_gaps_are_counted_only_on_the_first_connection() -> None:
    Live(counts=False).take(3)
    live = Live()
    live.checker.disconnected()
    live.take(3)
    live = Live()
    live.conn.subscriptions.clear()
    live.take(3)
    live.take(1)


def test_a_restored_copy_has_its_old_retained_messages() -> None:
    models, checker = Models(), RetainedChecker()
    old, new, late = models.publish(retain=True), models.publish(retain=True), models.publish("b", retain=True)
    checker.changed(old, 1.0)
    kept = checker.copy()
    checker.changed(new, 2.0)
    checker.changed(late, 2.0)
    checker.restore(kept, 3.0)
    assert checker.current() == {"a/b": old.payload}
    checker.check(stream(models, old), 4.0, all_is_there=True)
    with pytest.raises(ViolationError, match="was retained when it asked"):
        checker.check(stream(models, new), 4.0, all_is_there=True)
