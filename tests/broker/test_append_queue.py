"""The line of appends: one a turn, replies that wait for it, and what happens when it cannot be written."""

from __future__ import annotations

import pytest
from tests.broker.durable import FULL, DurableWorld
from tests.broker.world import Peer, World

from godwit.broker import publications
from godwit.broker.append_queue import RETRY_US
from godwit.broker.effects import Failed, Import
from godwit.broker.publications import MAX_UNRELIABLE_WAITING_BYTES
from godwit.broker.settings import Settings
from godwit.wire import changes as ch
from godwit.wire import control as c
from godwit.wire.batch import LONE, QOS_SHIFT, Batch, Entry, encode_batch
from godwit.wire.control_base import Code

WILL = c.Will(topic="state", payload=b"gone", retain=True)
LONG = {"session_expiry_s": 1000}


def lone(payload: bytes, **fields: object) -> bytes:
    return encode_batch(Batch([payload], 5, **fields))  # type: ignore[arg-type]


# -- one append a turn ------------------------------------------------------------------------------------------------


def test_what_a_turn_brought_is_one_append_with_what_it_changed() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    channels = [alice.open("a"), bob.open("b")]
    before = len(world.keeping.appends)
    for _ in range(50):
        alice.record(channels[0], lone(bytes(4000)))
        bob.record(channels[1], lone(b"x", retain=True))
    world.run()
    (entries, changes), *others = world.keeping.appends[before:]
    assert others == []
    assert [entry.topic for entry in entries] == ["a", "b"] * 50
    assert changes == [
        ch.TopicRow("a", 50, 200_000, world.now_us),  # these are their first messages
        ch.TopicRow("b", 50, 50, world.now_us),
        ch.RetainedRow("b", b"x", "bob", 5, world.now_us, 1, 99),
    ]


def test_without_a_log_that_keeps_there_are_no_changes_and_nothing_waits() -> None:
    world = World()
    alice = world.client("alice", will=WILL, **LONG)
    alice.expect(c.Create(request=5, topic="news"), c.Done)
    assert not world.server.broker.append_queue._under_way
    dirty = world.server.broker._dirty
    assert (dirty.is_marked, dirty.used, dirty.moved) == (False, {}, {})


def test_it_tells_whether_there_is_something_to_append() -> None:
    world = DurableWorld()
    queue = world.server.broker.append_queue
    assert not queue.is_filled(world.now_us)
    alice = world.client("alice")
    channel = alice.open("a")
    alice.record(channel, lone(b"x"))
    world.handle_fed()
    assert queue.is_filled(world.now_us)
    world.run()
    assert not queue.is_filled(world.now_us)


def test_a_change_without_a_message_is_an_append_too() -> None:
    world = DurableWorld()
    world.client("alice").expect(c.Create(request=5, topic="news"), c.Done)
    assert world.keeping.appends[-1] == ([], [ch.TopicRow("news", is_created=True)])


def test_what_comes_to_nothing_new_waits_for_what_is_under_way() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    first, second = (alice.open("orders", 2, publisher="till") for _ in range(2))
    world.hold()
    alice.publish(first, b"0", qos=2, sequence=0)
    alice.publish(second, b"0", qos=2, sequence=0)
    assert alice.confirmed == {}
    world.commit()
    assert alice.confirmed == {first: (1, 0), second: (1, 0)}
    assert world.keeping.next_offset == 1


# -- replies ----------------------------------------------------------------------------------------------------------


def test_nothing_is_confirmed_or_forwarded_before_it_is_committed() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news")
    world.hold()
    alice.publish(channel, b"x", retain=True)
    late = world.client("late")
    late.say(c.Subscribe(request=70, subscription=1, filters=["news"]))
    world.run()
    assert (alice.confirmed, bob.got, late.got) == ({}, [], [])
    world.commit()
    assert alice.confirmed[channel] == (1, 2)
    assert bob.payloads == late.payloads == [b"x"]
    assert [got.retain for got in late.got] == [False]  # it was there when the message came


def test_a_reply_waits_for_its_own_turn_and_not_for_an_earlier_one() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    channel = alice.open("news")
    world.hold()
    alice.publish(channel, b"x")
    alice.say(c.Create(request=70, topic="other"))
    world.run()
    world.log.commit(world.now_us)
    world.run()
    assert alice.confirmed[channel] == (1, 0)
    assert alice.all(c.Done) == []
    world.commit()
    assert alice.all(c.Done) == [c.Done(request=70)]


@pytest.mark.parametrize("what", ["create", "commit", "unsubscribe", "kick"])
def test_done_means_that_it_is_safe(what: str) -> None:
    world = DurableWorld()
    alice = world.client("alice", **LONG)
    alice.subscribe("news", number=1, cursor="mine")
    requests: dict[str, c.ControlMessage] = {
        "create": c.Create(request=70, topic="other"),
        "commit": c.CursorCommit(request=70, subscription=1, offset=0),
        "unsubscribe": c.Unsubscribe(request=70, subscription=1),
        "kick": c.Kick(request=70, client="alice", filters=["news"]),
    }
    world.hold()
    alice.say(requests[what])
    world.run()
    assert alice.all(c.Done) == []
    world.commit()
    assert alice.all(c.Done) == [c.Done(request=70)]


def test_a_client_that_leaves_something_with_the_broker_is_welcome_once_that_is_safe() -> None:
    world = DurableWorld()
    world.hold()
    plain, careful = world.peer(), world.peer()
    plain.try_login("plain", **LONG)
    careful.try_login("careful", will=WILL)
    assert len(plain.all(c.Welcome)) == 1
    assert careful.all(c.Welcome) == []
    world.commit()
    assert len(careful.all(c.Welcome)) == 1
    world.hold()
    for client, waits in ((plain, True), (world.client(), False)):
        client.say(c.Subscribe(request=70, subscription=1, filters=["news"]))
        world.run()
        assert (client.all(c.Subscribed) == []) is waits  # a session remembers it
    world.commit()
    assert len(plain.all(c.Subscribed)) == 1


def test_progress_tells_of_nothing_that_may_still_be_lost() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    channel = alice.open("orders", 2, publisher="till")
    ask = c.ProgressQuery(request=70, topic="orders", publisher="till")
    world.hold()
    alice.publish(channel, b"0", b"1", qos=2, sequence=0)
    alice.say(ask)
    world.run()
    assert alice.all(c.Progressed) == []
    world.fail()
    assert alice.last(c.Error).code == Code.STORAGE
    assert alice.expect(c.ProgressQuery(request=71, topic="orders", publisher="till"), c.Progressed).next_sequence == 0


def test_who_is_gone_gets_no_reply() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    world.hold()
    alice.say(c.Create(request=70, topic="other"))
    world.run()
    said = len(alice.said)
    alice.leave()
    world.commit()
    assert len(alice.said) == said


# -- failure ----------------------------------------------------------------------------------------------------------


def refusals(peer: Peer) -> list[tuple[int, Code, str]]:
    return [(one.channel, Code(one.code), one.text) for one in peer.all(c.PublishRefused)]


def test_publishers_are_told_and_nothing_is_forwarded() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news")
    world.keeping.is_full = True
    before = alice.consumed[channel]
    alice.publish(channel, b"lost", retain=True)
    assert refusals(alice) == [(channel, Code.STORAGE, FULL)]
    assert alice.consumed[channel] - before == 13
    assert bob.got == []
    alice.publish(channel, b"on a channel that is over")
    world.keeping.is_full = False
    again = alice.open("news")
    alice.publish(again, b"kept")
    assert alice.confirmed == {again: (1, 1)}
    assert bob.payloads == [b"kept"]
    late = world.client("late")
    late.subscribe("news")
    assert late.got == []  # the lost one is not retained


def test_what_is_refused_is_not_counted() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    will = c.Will(topic="news", payload=b"gone!", qos=1)
    alice.publish(alice.open("news"), b"a", b"bc")
    world.keeping.is_full = True
    alice.publish(alice.open("news"), b"lost", b"too")
    alice.publish(alice.open("news"), b"x")
    world.server.import_staged(
        Import(
            1,
            "q",
            1,
            [
                Entry(
                    topic="news",
                    publisher="q",
                    flags=LONE | 1 << QOS_SHIFT,
                    published_us=1,
                    received_us=0,
                    count=1,
                    rest=b"y",
                )
            ],
        )
    )
    world.run()
    world.keeping.is_full = False
    world.client(will=will).die()
    (news,) = alice.expect(c.Topics(request=70), c.TopicList).topics
    assert (news.messages, news.payload_bytes) == (3, 8)


def test_what_was_published_later_fails_too() -> None:
    """Else the log could have the later one without the earlier one."""
    world = DurableWorld()
    alice = world.client("alice")
    channel = alice.open("orders", 2, publisher="till")
    other = alice.open("orders", 2, publisher="till")
    world.hold()
    alice.publish(channel, b"0", qos=2, sequence=0)
    alice.publish(other, b"1", qos=2, sequence=1)
    alice.record(channel, lone(b"2", qos=2, sequence=2))
    world.handle_fed()  # fresh: it is in no append yet
    world.fail()
    assert {channel for channel, _, _ in refusals(alice)} == {channel, other}
    assert alice.confirmed == {}
    again = alice.open("orders", 2, publisher="till")
    alice.publish(again, b"0", b"1", b"2", qos=2, sequence=0)
    assert alice.confirmed == {again: (1, 0)}
    assert world.keeping.next_offset == 3


def test_what_is_asked_between_two_failures_is_answered() -> None:
    """The log has said that the first of two appends failed, and will say so of the second."""
    world = DurableWorld()
    alice = world.client("alice")
    till, news = alice.open("orders", 2, publisher="till"), alice.open("news")
    alice.publish(till, b"0", qos=2, sequence=0)
    alice.publish(news, b"w")
    world.hold()
    for _ in range(2):
        alice.publish(news, b"x", b"y")
    assert len(world.log.waiting) == 2
    world.log.waiting.popleft()
    world.server.broker.handle(Failed(FULL), world.now_us)
    world.run()
    asked = alice.expect(c.ProgressQuery(request=70, topic="orders", publisher="till"), c.Progressed)
    assert asked.next_sequence == 1
    again = alice.open("news")
    alice.publish(again, b"z", retain=True)
    expected = world.log.waiting[-1].changes
    world.log.waiting.popleft()
    world.server.broker.handle(Failed(FULL), world.now_us)
    world.commit()
    assert alice.confirmed[again] == (1, 0)
    assert [change.offset for change in expected if isinstance(change, ch.RetainedRow)] == [2]
    assert world.keeping.next_offset == 3


def test_after_a_failure_a_repeat_is_new_but_what_was_safe_is_known() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    channel = alice.open("orders", 2, publisher="till", epoch=3)
    alice.publish(channel, b"0", qos=2, sequence=0)
    world.keeping.is_full = True
    alice.publish(channel, b"1", qos=2, sequence=1)
    world.keeping.is_full = False
    again = alice.open("orders", 2, publisher="till", epoch=3)
    alice.publish(again, b"0", b"1", qos=2, sequence=0)
    assert [entry.count for _, entry in world.keeping.read(0, 9999).entries] == [1, 1]
    assert world.keeping.of("identity")["alice", "till", "orders"].next_sequence == 2
    assert alice.refused_open("orders", 2, publisher="till", epoch=2) is Code.STALE_EPOCH


def test_of_two_that_failed_the_newer_one_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.broker.identities.MAX_PUBLISHERS_REMEMBERED", 1)
    world = DurableWorld()
    alice = world.client("alice")
    world.hold()
    for identity in ("old", "new"):  # the new one drives the old one out
        alice.publish(alice.open("orders", 2, publisher=identity), b"x", qos=2, sequence=0)
    world.fail()
    alice.expect(c.Create(request=70, topic="other"), c.Done)
    assert set(world.keeping.of("identity")) == {("alice", "new", "orders")}


def test_the_end_of_a_channel_and_its_failure_count_once() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    channel = alice.open("news")
    world.hold()
    alice.record(channel, lone(b"x"), last=True)
    world.run()
    world.fail()
    assert refusals(alice) == [(channel, Code.STORAGE, FULL)]
    (topic,) = alice.expect(c.Topics(request=70), c.TopicList).topics
    assert topic.publishers == 0


def test_what_was_asked_for_is_answered_with_an_error_and_tried_again() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    world.keeping.is_full = True
    error = alice.expect(c.Create(request=70, topic="news"), c.Error)
    assert (error.code, error.text) == (Code.STORAGE, FULL)
    world.pass_s(5)
    world.keeping.is_full = False
    assert world.keeping.of("topic") == {}
    world.pass_s(RETRY_US / 1e6)
    assert set(world.keeping.of("topic")) == {"news"}


def test_reading_goes_on_while_nothing_can_be_written() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    alice.publish(alice.open("news"), b"old")
    world.keeping.is_full = True
    bob = world.client("bob", will=WILL, **LONG)
    bob.subscribe("news", start="earliest")
    assert bob.payloads == [b"old"]
    world.keeping.is_full = False
    world.pass_s(RETRY_US / 1e6)
    assert set(world.keeping.of("session")) == {"bob"}
    assert len(world.keeping.of("feed")) == 1


def test_a_will_is_published_as_soon_as_it_can_be() -> None:
    world = DurableWorld()
    bob = world.client("bob")
    bob.subscribe("state")
    alice = world.client("alice", will=WILL)
    world.keeping.is_full = True
    alice.die()
    world.pass_s(3)
    assert bob.got == []
    assert "alice" in world.keeping.of("session")  # if the broker died now, the next one would see to it
    world.keeping.is_full = False
    world.pass_s(RETRY_US / 1e6)
    assert bob.payloads == [b"gone"]
    assert bob.got[0].received_us > bob.got[0].published_us  # times in the log do not go backwards
    assert world.keeping.of("session") == {}
    assert world.keeping.of("retained")["state"].payload == b"gone"


# -- QoS 0 that is logged ---------------------------------------------------------------------------------------------

LOGGED = Settings(logged=("sensor/#",))


def test_what_can_never_be_written_is_not_tried_again() -> None:
    """Else it would fail every append that comes after it. What was given behind it is tried again."""
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    dying = world.client(will=c.Will(topic="state", payload=b"gone", qos=1))
    till = alice.open("orders", 2, publisher="till")
    world.hold()
    alice.say(c.Create(request=50, topic="bad"))
    alice.record(till, lone(b"0", qos=2, sequence=0))
    dying.die()  # all three in one turn
    bob.say(c.Create(request=51, topic="good"))
    world.run()
    assert len(world.log.waiting) == 2
    world.fail(is_lasting=True)
    world.pass_s(5)
    assert [error.request for peer in (alice, bob) for error in peer.all(c.Error)] == [50, 51]
    assert "good" in world.keeping.of("topic")
    assert "bad" not in world.keeping.of("topic")
    assert world.keeping.of("identity") == {}
    assert world.keeping.next_offset == 0  # the will is given up, too
    again = alice.open("orders", 2, publisher="till")
    alice.record(again, lone(b"0", qos=2, sequence=0))
    world.run()
    assert world.keeping.next_offset == 1  # and what was refused is new


def test_wills_wait_in_bounded_room_while_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    most_bytes = 5 * (1000 + publications.WILL_COST_BYTES)
    monkeypatch.setattr(publications, "MAX_WILLS_WAITING_BYTES", most_bytes)
    world = DurableWorld()
    watcher = world.client("watcher")
    watcher.subscribe("state")
    will = c.Will(topic="state", payload=bytes(1000), qos=1)
    for hangs in (False, True):
        before = len(watcher.got), len(world.told("warning"))
        if hangs:
            world.hold()
        else:
            world.keeping.is_full = True
        for _ in range(9):
            world.client(will=will).die()
            world.pass_s(3)
        assert len(watcher.got) == before[0]
        texts = world.told("warning")[before[1] :]
        assert len(texts) == 4
        assert all("last will" in text and "state" in text for text in texts)
        world.keeping.is_full = False
        world.commit()
        world.pass_s(3)
        assert len(watcher.got) == before[0] + 5
        world.client(will=will).die()
        assert len(watcher.got) == before[0] + 6  # there is room again


def test_unreliable_messages_are_logged_where_a_rule_says_so() -> None:
    world = DurableWorld(LOGGED)
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("#")
    for topic in ("sensor/1", "other"):
        alice.publish(alice.open(topic, 0), b"a", b"b", qos=0, reliable=False, retain=True)
    assert [(got.topic, got.payload, got.qos, got.live) for got in bob.got] == [
        ("sensor/1", b"a", 0, False),
        ("sensor/1", b"b", 0, False),
        ("other", b"a", 0, True),
        ("other", b"b", 0, True),
    ]
    assert [entry.topic for _, entry in world.keeping.read(0, 9999).entries] == ["sensor/1"]
    assert {kept.payload for kept in world.keeping.of("retained").values()} == {b"b"}
    late = world.client("late")
    late.subscribe("#", start="earliest")
    assert late.payloads == [b"a", b"b"]
    assert alice.confirmed == {}


def test_they_are_delivered_all_the_same_when_they_cannot_be_logged() -> None:
    world = DurableWorld(LOGGED)
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("#")
    channel = alice.open("sensor/1", 0)
    world.keeping.is_full = True
    alice.publish(channel, b"a", qos=0, reliable=False)
    assert [(got.payload, got.live) for got in bob.got] == [(b"a", True)]
    assert refusals(alice) == []


def test_what_the_log_cannot_keep_up_with_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.broker.publications.MAX_UNRELIABLE_WAITING_BYTES", 1000)
    world = DurableWorld(LOGGED)
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("#")
    channel = alice.open("sensor/1", 0)
    world.hold()
    for _ in range(10):
        alice.publish(channel, bytes(291), qos=0, reliable=False)
    world.commit()
    assert len(bob.got) == 3
    assert world.server.broker.figures()["messages/dropped"] == 7
    alice.publish(channel, b"room again", qos=0, reliable=False)
    assert bob.payloads[-1] == b"room again"
    assert MAX_UNRELIABLE_WAITING_BYTES > 1000


# -- retained messages ------------------------------------------------------------------------------------------------


def test_offsets_of_retained_messages_are_foretold_or_mended() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    for topic in ("news", "other"):
        alice.expect(c.Create(request=alice.number(), topic=topic), c.Done)
    news, other = alice.open("news"), bob.open("other")
    world.hold()
    bob.publish(other, b"1", b"2")
    alice.publish(news, b"x", retain=True)
    assert world.log.waiting[-1].changes == [ch.RetainedRow("news", b"x", "alice", world.now_us, world.now_us, 1, 2)]
    world.log.waiting[0].entries.clear()  # as if something else had been appended, or nothing
    world.commit()
    assert world.keeping.of("retained")["news"].offset == 0


def test_the_newest_of_two_ways_is_what_is_written_in_the_end() -> None:
    """QoS 0 is retained at once, QoS 1 once it is committed: whatever a subscriber would get now, it gets later too."""
    world = DurableWorld()
    alice = world.client("alice")
    safe, quick = alice.open("news"), alice.open("news", 0)
    world.hold()
    alice.publish(safe, b"logged", retain=True)
    alice.publish(quick, b"live", qos=0, reliable=False, retain=True)
    world.commit()
    got = []
    for _ in range(2):
        late = world.client()
        late.subscribe("news")
        got += late.payloads
        world.restart()
    assert len(got) == 2
    assert len(set(got)) == 1


def test_what_has_no_room_is_not_written_either() -> None:
    world = DurableWorld(Settings(max_retained_bytes=1000))
    alice = world.client("alice")
    for channel in [alice.open(f"news/{number}") for number in range(10)]:
        alice.record(channel, lone(bytes(100), retain=True))
    world.run()
    late = world.client("late")
    late.subscribe("#")
    assert 0 < len(late.got) < 10
    assert set(world.keeping.of("retained")) == {got.topic for got in late.got}
