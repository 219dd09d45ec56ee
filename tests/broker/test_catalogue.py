"""Topics: which exist, how many, and their retained messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import Peer, World

from godwit.broker import catalogue as catalogues
from godwit.broker.catalogue import Catalogue, PublisherNumbers, RetainedMessage, TooManyTopicsError, Topic
from godwit.broker.dirty_state import DirtyState
from godwit.broker.settings import Settings
from godwit.errors import BadTopicError
from godwit.limits import KIB
from godwit.wire import changes as ch
from godwit.wire import control as c
from godwit.wire.batch import Batch, Entry, decode_head, encode_batch, last_message
from godwit.wire.control_base import Code

NO_JOURNAL = DirtyState({}, is_durable=False)


def found(places: Iterator[tuple[str, Topic | None]]) -> list[str]:
    """The topics of a search, without the places where it found none."""
    return [topic.name for _, topic in places if topic is not None]


def test_topics_of_the_configuration_are_there() -> None:
    catalogue = Catalogue(Settings(topics=("a", "b"), policies=(("a", "explicit"),)), NO_JOURNAL)
    assert len(catalogue) == 2
    topic = catalogue.get("a")
    assert topic is not None
    assert topic.policy == "explicit"
    assert catalogue.get("c") is None


def test_each_topic_has_a_number_of_its_own() -> None:
    catalogue = Catalogue(Settings(), NO_JOURNAL)
    numbers = {catalogue.create(f"t{number}").number for number in range(10)}
    assert len(numbers) == 10


def test_what_cannot_be_created() -> None:
    catalogue = Catalogue(Settings(max_topics=1), NO_JOURNAL)
    with pytest.raises(BadTopicError):
        catalogue.create("a/+")
    catalogue.create("a", is_created=True)
    with pytest.raises(TooManyTopicsError):
        catalogue.create("b")


def test_topics_by_filter_and_in_order() -> None:
    catalogue = Catalogue(Settings(topics=("b/2", "a/1", "b/1")), NO_JOURNAL)
    assert found(catalogue.after("b/+", None)) == ["b/1", "b/2"]
    assert found(catalogue.after("#", None)) == ["a/1", "b/1", "b/2"]
    assert found(catalogue.after("#", "a/1")) == ["b/1", "b/2"]


def test_new_settings_change_the_policy_of_what_is_there() -> None:
    catalogue = Catalogue(Settings(topics=("a",)), NO_JOURNAL)
    catalogue.on_settings(Settings(topics=("a", "b"), default_policy="publishers"))
    assert [topic.policy for _, topic in catalogue.after("#", None) if topic is not None] == [
        "publishers",
        "publishers",
    ]


def test_a_name_keeps_its_number_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogues, "MAX_NAMES", 3)
    names = PublisherNumbers()
    first = names.number("a")
    seen = {first}
    for number in range(10):
        assert names.number("a") == first
        seen.add(names.number(f"other {number}"))
    assert len(seen) == 11  # no number is ever used twice


# -- what is forgotten ------------------------------------------------------------------------------------------------


def names(world: World) -> set[str]:
    """Without the broker's own."""
    client = world.client()
    found = client.expect(c.Topics(request=70), c.TopicList).topics
    client.leave()
    return {topic.name for topic in found}


def test_a_topic_that_only_subscriptions_made_goes_with_the_last_of_them() -> None:
    world = DurableWorld()
    bob, carol = world.client("bob", session_expiry_s=100), world.client("carol")
    bob.subscribe("a", "b", "c")
    carol.subscribe("a", number=9)
    carol.subscribe("#")
    carol.expect(c.Create(request=50, topic="c"), c.Done)  # it stays from now on
    assert carol.refusal(c.Create(request=51, topic="c")) is Code.TOPIC_EXISTS
    carol.publish(carol.open("b"), b"x")
    assert names(world) == {"a", "b", "c"}
    assert set(world.keeping.of("topic")) == {"b", "c"}
    bob.leave()
    assert names(world) == {"a", "b", "c"}  # the session has them still
    world.pass_s(101)
    assert names(world) == {"a", "b", "c"}
    carol.expect(c.Unsubscribe(request=52, subscription=9), c.Done)
    assert names(world) == {"b", "c"}
    world.restart()
    assert names(world) == {"b", "c"}


def test_a_channel_alone_makes_no_topic_that_lasts() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    alice.open("opened")
    sent = alice.open("sent", 0)
    alice.publish(sent, b"x", qos=0)
    world.pass_s(2)
    assert set(world.keeping.of("topic")) == {"sent"}


def test_a_topic_is_written_with_its_first_message() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    channel = alice.open("news")
    world.keeping.is_full = True
    alice.publish(channel, b"x")
    world.keeping.is_full = False
    alice.publish(alice.open("news"), b"x")
    entries, changes = world.keeping.appends[-1]
    assert [entry.topic for entry in entries] == ["news"]
    assert [change.name for change in changes if isinstance(change, ch.TopicRow)] == ["news"]


def test_unused_topics_make_room() -> None:
    """First those of no use at all; what is created, retained or in use stays, and who subscribes notices nothing."""
    world = DurableWorld(Settings(max_topics=6, topics=("configured",)))
    alice, bob = world.client("alice"), world.client("bob")
    alice.expect(c.Create(request=50, topic="created"), c.Done)
    kept, used = alice.open("kept"), alice.open("used")
    alice.publish(kept, b"x", retain=True)
    alice.record(kept, b"", last=True)
    bob.subscribe("mine")
    bob.subscribe("yours")
    assert len(names(world)) == 6
    alice.publish(alice.open("new/1"), b"1")
    alice.publish(alice.open("new/2"), b"2")
    assert names(world) == {"configured", "created", "kept", "used", "new/1", "new/2"}
    assert alice.refused_open("mine") is Code.TOO_MANY  # all the others are in use
    alice.record(used, b"", last=True)
    alice.publish(alice.open("mine"), b"3")
    assert bob.payloads == [b"3"]
    assert "used" not in names(world)


def test_a_topic_that_was_published_to_makes_room_when_it_is_idle() -> None:
    world = DurableWorld(Settings(max_topics=3, policies=(("held/#", "publishers"),)))
    alice = world.client("alice")
    for topic in ("old", "busy", "held/1"):
        channel = alice.open(topic)
        alice.publish(channel, b"x")
        alice.record(channel, b"", last=True)
    world.pass_s(2)
    assert set(world.keeping.of("topic")) == {"old", "busy", "held/1"}
    assert alice.refused_open("new") is Code.TOO_MANY  # now they have been looked at
    channel = alice.open("busy")
    alice.publish(channel, b"y")
    alice.record(channel, b"", last=True)
    alice.publish(alice.open("new"), b"z")
    assert set(world.keeping.of("topic")) == {"new", "busy", "held/1"}
    world.restart()
    assert names(world) == {"new", "busy", "held/1"}
    bob = world.client("bob")
    bob.subscribe("#", start="earliest")
    assert bob.payloads == [b"x", b"x", b"x", b"y", b"z"]  # the log has them all


@pytest.mark.parametrize("policy", ["open", "explicit"])
def test_the_topics_of_jobs_make_room_when_they_are_idle(policy: str) -> None:
    """The broker brings them back itself, whatever the policy."""
    catalogue = Catalogue(Settings(max_topics=1, default_policy=policy), NO_JOURNAL)  # type: ignore[arg-type]
    catalogue.own("$sys/uptime_s")
    catalogue.create("$jobs/resize").messages = 1
    with pytest.raises(TooManyTopicsError):
        catalogue.create("$jobs/scan")
    catalogue.create("$jobs/scan")  # the other one has had no message since
    assert catalogue.get("$jobs/resize") is None
    assert catalogue.get("$sys/uptime_s") is not None
    assert len(catalogue) == 1


def test_what_is_retained_by_a_topic_that_is_gone_meanwhile_is_not_lost() -> None:
    """Its message was on the way into the log until its room was given to another topic."""
    world = DurableWorld(Settings(max_topics=1))
    alice = world.client("alice")
    channel = alice.open("slow")
    world.hold()
    alice.publish(channel, b"x", retain=True)
    alice.record(channel, b"", last=True)
    world.run()
    assert alice.refused_open("other") is Code.TOO_MANY
    alice.open("other")
    assert names(world) == {"other"}
    world.commit()
    assert {"slow"} <= names(world)
    for _ in range(2):
        bob = world.client()
        bob.subscribe("slow")
        assert bob.payloads == [b"x"]
        world.pass_s(2)
        world.restart()


def test_the_log_is_replayed_with_more_topics_than_there_may_be() -> None:
    world = DurableWorld(Settings(max_topics=300))
    alice = world.client("alice")
    channels = [alice.open(f"t/{number}") for number in range(300)]
    for channel in channels:
        alice.publish(channel, b"x")
        alice.record(channel, b"", last=True)
    world.settings = Settings(max_topics=100)
    world.keeping.kept.clear()
    world.restart()
    bob = world.client("bob")
    bob.subscribe("#", start="earliest")
    assert len(bob.got) == 300
    assert world.server.broker.figures()["topics"] == 100


# -- retained ---------------------------------------------------------------------------------------------------------


def entry_of(batch: Batch) -> Entry:
    record = encode_batch(batch)
    head = decode_head(record)
    return Entry(
        topic="t",
        publisher="p",
        flags=head.flags,
        published_us=head.published_us,
        received_us=9,
        count=head.count,
        rest=record[head.rest_at :],
    )


@pytest.mark.parametrize(
    ("batch", "last"),
    [
        (Batch([b"only"], 5), (b"only", 5)),
        (Batch([b"only"], 5, extension=b"xyz"), (b"only", 5)),
        (Batch([b"first", b"last"], 5), (b"last", 5)),
        (Batch([b"first", b"last"], 5, deltas_us=(1, 20)), (b"last", 25)),
        (Batch([b"first", b"last"], 5, deltas_us=(1, 20), extension=b""), (b"last", 25)),
        (Batch([b"first", b""], 5), (b"", 5)),
        (Batch([b""], 5), (b"", 5)),
    ],
)
def test_the_last_message_of_a_batch(batch: Batch, last: tuple[bytes, int]) -> None:
    assert last_message(entry_of(batch)) == last


def test_an_empty_one_is_not_kept() -> None:
    assert RetainedMessage.of(entry_of(Batch([b"x", b""], 5)), 3, 1) is None
    kept = RetainedMessage.of(entry_of(Batch([b"x"], 5)), 3, 1)
    assert kept is not None
    assert (kept.payload, kept.offset, kept.qos) == (b"x", 3, 1)


# -- through the broker -----------------------------------------------------------------------------------------------


def publish(peer: Peer, topic: str, *payloads: bytes, qos: c.Qos = 1) -> None:
    sequence = 0 if qos == 2 else None
    peer.publish(peer.open(topic, qos), *payloads, qos=qos, retain=True, sequence=sequence)


def kept_for(world: World, *filters: str, **fields: Any) -> list[tuple[str, bytes]]:
    """What a newcomer gets at once."""
    peer = world.client()
    peer.subscribe(*filters, **fields)
    assert all(got.retain for got in peer.got)
    assert not any(got.live for got in peer.got)
    peer.leave()
    return sorted((got.topic, got.payload) for got in peer.got)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_newcomer_gets_the_last_message_with_the_flag(qos: c.Qos) -> None:
    world = World()
    alice = world.client("alice")
    publish(alice, "door", b"open", qos=qos)
    publish(alice, "door", b"ajar", b"closed", qos=qos) if qos < 2 else None
    alice.publish(alice.open("door"), b"not retained")
    bob = world.client("bob")
    bob.subscribe("door")
    (got,) = bob.got
    assert (got.payload, got.publisher, got.qos, got.retain) == (b"closed" if qos < 2 else b"open", "alice", qos, True)
    assert got.offset == {0: 0, 1: 2, 2: 0}[qos]


def test_also_by_wildcards_and_each_once() -> None:
    world = World()
    alice = world.client("alice")
    for room in ("1", "2"):
        publish(alice, f"home/{room}/light", b"on")
    publish(alice, "home/light", b"off")
    both = [("home/1/light", b"on"), ("home/2/light", b"on")]
    assert kept_for(world, "home/+/light") == both
    assert kept_for(world, "home/*/light", "home/1/#") == both
    assert kept_for(world, "#") == sorted([*both, ("home/light", b"off")])
    assert kept_for(world, "home/3/light") == []


def test_those_who_are_there_see_no_flag() -> None:
    world = World()
    bob = world.client("bob")
    bob.subscribe("door")
    publish(world.client("alice"), "door", b"open")
    assert [(got.payload, got.retain) for got in bob.got] == [(b"open", False)]


def test_an_empty_message_clears_it_and_is_delivered() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    publish(alice, "door", b"open")
    bob.subscribe("door")
    publish(alice, "door", b"")
    assert [(got.payload, got.retain) for got in bob.got] == [(b"open", True), (b"", False)]
    assert kept_for(world, "door") == []
    publish(alice, "door", b"shut")
    assert kept_for(world, "door") == [("door", b"shut")]


def test_only_a_subscription_that_begins_at_the_end_gets_them() -> None:
    world = World()
    alice = world.client("alice")
    publish(alice, "door", b"open")
    assert kept_for(world, "door", start="latest") == [("door", b"open")]
    for start in ({"start": "earliest"}, {"start": 0}, {"since_us": 0}):
        peer = world.client()
        peer.subscribe("door", **start)
        assert [(got.payload, got.retain) for got in peer.got] == [(b"open", False)], start
        peer.leave()


def test_a_resumed_subscription_does_not_get_them_again() -> None:
    world = World()
    publish(world.client("alice"), "door", b"open")
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("door")
    assert len(bob.got) == 1
    bob.die()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("door")
    assert bob.got == []


def test_a_resumed_subscription_can_ask_for_them() -> None:
    """Its connection broke before they had all come."""
    world = World()
    publish(world.client("alice"), "door", b"open")
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("door")
    bob.die()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("door", start=1, retained=True)
    assert [(got.payload, got.retain) for got in bob.got] == [(b"open", True)]


def test_very_many_come_as_the_client_takes_them() -> None:
    world = World(Settings(client_window_bytes=64 * KIB))
    alice = world.client("alice")
    for number in range(100):
        publish(alice, f"room/{number}", bytes(4 * KIB))
    bob = world.client("bob")
    bob.confirms_itself = False
    bob.subscribe("room/#")
    assert len(bob.got) < 20
    bob.confirms_itself = True
    world.run()
    assert sorted(got.topic for got in bob.got) == sorted(f"room/{number}" for number in range(100))
    alice.publish(alice.open("room/1"), b"new")
    assert bob.payloads[-1] == b"new"


def test_a_message_that_replaces_it_meanwhile_is_not_told_twice() -> None:
    world = World(Settings(client_window_bytes=64 * KIB))
    alice = world.client("alice")
    for number in range(60):
        publish(alice, f"room/{number:02}", bytes(4 * KIB))
    bob = world.client("bob")
    bob.confirms_itself = False
    bob.subscribe("room/#")
    for number in range(60):
        publish(alice, f"room/{number:02}", b"new %02d" % number)
    bob.confirms_itself = True
    world.run()
    news = [got for got in bob.got if got.payload.startswith(b"new")]
    assert [got.payload for got in news] == [b"new %02d" % number for number in range(60)]
    assert not any(got.retain for got in news)


def test_a_live_message_that_replaces_it_meanwhile_is_not_told_twice() -> None:
    world = World(Settings(client_window_bytes=64 * KIB))
    alice = world.client("alice")
    for number in range(60):
        publish(alice, f"room/{number:02}", bytes(4 * KIB))
    bob = world.client("bob")
    bob.confirms_itself = False
    bob.subscribe("room/#")
    for number in range(60):
        publish(alice, f"room/{number:02}", b"new %02d" % number, qos=0)
    bob.confirms_itself = True
    world.run()
    news = [got.payload for got in bob.got if got.payload.startswith(b"new")]
    assert sorted(news) == [b"new %02d" % number for number in range(60)]


def test_all_retained_messages_together_are_bounded() -> None:
    world = World(Settings(max_retained_bytes=2000))
    alice = world.client("alice")
    first = alice.open("a")
    alice.publish(first, bytes(1000), retain=True)
    alice.publish(first, bytes(1500), retain=True)  # takes the place of the former
    second = alice.open("b")
    alice.publish(second, bytes(1000), retain=True)
    assert alice.last(c.PublishRefused).code == Code.TOO_MANY
    unkept = alice.open("c", qos=0)
    alice.publish(unkept, bytes(1000), qos=0, retain=True)
    bob = world.client("bob")
    bob.subscribe("#")
    assert [(got.topic, len(got.payload)) for got in bob.got] == [("a", 1500)]
    alice.publish(first, b"", retain=True)
    third = alice.open("d")
    alice.publish(third, bytes(1000), retain=True)
    carol = world.client("carol")
    carol.subscribe("#")
    assert [(got.topic, len(got.payload)) for got in carol.got] == [("d", 1000)]
