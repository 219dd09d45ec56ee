"""A broker that is killed and begins again: what it promised holds."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import LOG_ID, START_US, Got, Peer

from godwit.broker.admission import RESTART_GRACE_US
from godwit.broker.effects import Import, Imported
from godwit.broker.imports import LAST_BATCH
from godwit.broker.publications import LATEST_US
from godwit.broker.settings import Settings
from godwit.limits import PUBLISHER_EXPIRY_S
from godwit.store.sqlite import SqliteStore
from godwit.wire import control as c
from godwit.wire.batch import LONE, Entry
from godwit.wire.control_base import Code, Qos
from godwit.wire.extension import encode_extension

LONG: dict[str, Any] = {"session_expiry_s": 1000}
GRACE_S = RESTART_GRACE_US / 1e6
WILL = c.Will(topic="state", payload=b"gone")
RUN = b"one run of a ..."


def subscriber(world: DurableWorld, pattern: str = "#") -> Peer:
    peer = world.client()
    peer.subscribe(pattern)
    return peer


# -- topics, retained messages ----------------------------------------------------------------------------------------


def test_topics_are_there_again_with_their_figures() -> None:
    world = DurableWorld(Settings(default_policy="explicit"))
    alice = world.client("alice")
    for request, topic in enumerate(("news", "empty"), 70):
        alice.expect(c.Create(request=request, topic=topic), c.Done)
    alice.publish(alice.open("news"), b"12345", b"6789")
    alice.publish(alice.open("news", 0), b"live", qos=0, reliable=False)
    world.pass_s(2)
    before = {topic.name: topic for topic in alice.expect(c.Topics(request=80), c.TopicList).topics}
    assert before["news"].messages == 3
    world.restart()
    again = world.client("alice")
    after = {topic.name: topic for topic in again.expect(c.Topics(request=80), c.TopicList).topics}
    assert set(after) == {"news", "empty"}
    for name, info in after.items():
        figures = (info.messages, info.payload_bytes, info.last_us)
        assert figures == (before[name].messages, before[name].payload_bytes, before[name].last_us)
    again.publish(again.open("empty"), b"x")
    assert again.refused_open("unknown") is Code.NO_SUCH_TOPIC


def test_a_topic_that_only_the_log_knows_is_delivered() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    alice.publish(alice.open("news"), b"x")
    del world.keeping.kept["topic", "news"]
    world.restart()
    bob = world.client("bob")
    bob.subscribe("#", start="earliest")
    assert bob.payloads == [b"x"]
    assert "news" in {topic.name for topic in bob.expect(c.Topics(request=70), c.TopicList).topics}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages_are_there_again(qos: Qos) -> None:
    world = DurableWorld()
    alice = world.client("alice")
    for number, topic in enumerate(("a/1", "a/2", "b")):
        sequence = 0 if qos == 2 else None
        alice.publish(alice.open(topic, qos), b"%d" % number, b"last", qos=qos, retain=True, sequence=sequence)
    alice.publish(alice.open("b"), b"", retain=True)
    before = subscriber(world, "+/+").got
    world.restart()
    bob = subscriber(world)
    assert sorted(got.topic for got in bob.got) == ["a/1", "a/2"]
    assert bob.got == before
    assert all(got.retain and got.payload == b"last" and got.publisher == "alice" for got in bob.got)


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_subscription_goes_on_where_it_stood() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob", **LONG)
    bob.subscribe("news", number=1)
    channel = alice.open("news")
    alice.publish(channel, b"taken")
    bob.leave()
    alice.publish(channel, b"missed")
    world.restart()
    again = world.client("alice")
    again.publish(again.open("news"), b"after the restart")
    bob = world.peer()
    assert bob.login("bob", **LONG).resumed
    bob.subscribe("news")
    assert bob.payloads == [b"missed", b"after the restart"]


def test_one_that_was_connected_gets_at_most_the_last_second_again() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob", **LONG)
    bob.subscribe("news")
    channel = alice.open("news")
    alice.publish(channel, b"0")
    world.pass_s(2)
    alice.publish(channel, b"1")
    world.restart()
    bob = world.client("bob", **LONG)
    bob.subscribe("news")
    assert bob.payloads == [b"1"]


def test_a_cursor_stands_where_it_was_committed() -> None:
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob", **LONG)
    bob.subscribe("news", cursor="mine", number=1)
    channel = alice.open("news")
    for number in range(5):
        alice.publish(channel, b"%d" % number)
    bob.expect(c.CursorCommit(request=70, subscription=1, offset=2), c.Done)
    world.restart()
    for _ in range(2):
        bob = world.client("bob", **LONG)
        bob.subscribe("news", cursor="mine")
        assert bob.payloads == [b"2", b"3", b"4"]
        bob.leave()


def test_what_a_session_had_given_up_stays_so() -> None:
    world = DurableWorld()
    bob = world.client("bob", **LONG)
    bob.subscribe("a", number=1)
    bob.subscribe("b", number=2)
    bob.expect(c.Unsubscribe(request=70, subscription=1), c.Done)
    world.restart()
    (kept,) = world.server.broker.sessions["bob"].subscriptions
    assert kept == (("b",), None)
    bob = world.client("bob", fresh=True, **LONG)
    assert world.keeping.of("feed") == {}
    assert world.keeping.of("session") == {}


def test_a_session_that_is_begun_anew_in_one_turn_has_only_what_is_new() -> None:
    world = DurableWorld()
    bob = world.client("bob", instance=RUN, **LONG)
    bob.subscribe("a", number=1)
    again = world.peer()
    again.say(c.Login(request=1, name="bob", instance=RUN, fresh=True, session_expiry_s=1000))
    again.say(c.Subscribe(request=2, subscription=1, filters=["b"]))
    world.run()
    assert set(world.keeping.of("feed")) == {("bob", ("b",), None)}


def test_a_session_expires_while_the_broker_is_away() -> None:
    world = DurableWorld()
    bob = world.client("bob", **LONG)
    bob.subscribe("news")
    bob.leave()
    world.restart(after_s=999)
    assert "bob" in world.server.broker.sessions
    world.restart(after_s=2)
    assert world.server.broker.sessions == {}
    assert world.keeping.of("session") == {}


def test_one_that_does_not_come_back_is_kept_for_as_long_as_was_asked() -> None:
    world = DurableWorld()
    bob = world.client("bob", **LONG)
    bob.subscribe("news")
    world.restart()
    world.pass_s(GRACE_S + 999)
    assert "bob" in world.server.broker.sessions
    world.pass_s(2)
    assert world.server.broker.sessions == {}


def test_sessions_that_hold_nothing_are_not_written() -> None:
    world = DurableWorld()
    for name, fields in ((None, {"will": WILL}), ("alice", LONG), ("carol", {})):
        client = world.client(name, **fields)
        client.publish(client.open("news"), b"x")
        if name != "alice":
            client.subscribe("news")
    assert world.keeping.of("session") == {}


# -- wills ------------------------------------------------------------------------------------------------------------


def test_the_will_of_one_that_does_not_come_back_is_published() -> None:
    world = DurableWorld()
    world.client("alice", will=WILL)
    world.restart()
    bob = subscriber(world)
    world.pass_s(GRACE_S - 1)
    assert bob.got == []
    world.pass_s(2)
    assert [(got.payload, got.publisher) for got in bob.got] == [(b"gone", "alice")]
    world.restart()
    world.pass_s(GRACE_S + 1)
    assert world.keeping.next_offset == 1  # once
    assert world.told("disconnected")[-1] == "alice did not come back after the broker's restart"


def test_one_that_comes_back_in_time_keeps_its_will() -> None:
    world = DurableWorld()
    world.client("alice", will=WILL, instance=RUN)
    world.restart()
    bob = subscriber(world)
    alice = world.client("alice", will=WILL, instance=RUN)
    world.pass_s(2 * GRACE_S)
    assert bob.got == []
    alice.die()
    assert bob.payloads == [b"gone"]


def test_another_run_of_the_client_shows_that_the_former_one_is_gone() -> None:
    world = DurableWorld()
    world.client("alice", will=WILL, instance=RUN)
    world.restart()
    bob = subscriber(world)
    world.client("alice")
    assert bob.payloads == [b"gone"]


def test_one_that_is_removed_before_it_is_back_is_gone() -> None:
    world = DurableWorld()
    world.client("alice", will=WILL)
    world.restart()
    bob = subscriber(world)
    bob.expect(c.Kick(request=70, client="alice"), c.Done)
    assert bob.payloads == [b"gone"]
    assert world.keeping.of("session") == {}


def test_a_broker_that_is_stopped_waits_for_its_clients_like_one_that_died() -> None:
    world = DurableWorld()
    alice = world.client("alice", will=WILL, instance=RUN, **LONG)
    alice.subscribe("news", number=1)
    bob = world.client("bob")
    bob.publish(bob.open("news"), b"taken")
    for peer in (alice, bob):
        peer.close(world.now, Code.SHUTDOWN, "the broker is being stopped")
    world.run()
    assert world.keeping.of("feed")["alice", ("news",), None].resume_at == 1
    world.restart()
    watcher = subscriber(world)
    world.client("alice", instance=RUN, will=WILL, **LONG)
    world.pass_s(2 * GRACE_S)
    assert watcher.got == []


# -- publishers -------------------------------------------------------------------------------------------------------


def test_what_was_sent_before_the_restart_is_recognised() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    alice.publish(alice.open("orders", 2, publisher="till", epoch=2), b"0", b"1", qos=2, sequence=0)
    world.restart()
    again = world.client("alice")
    expected = c.Progressed(request=70, epoch=2, next_sequence=2)
    assert again.ask(c.ProgressQuery(request=70, topic="orders", publisher="till")) == expected
    assert again.refused_open("orders", 2, publisher="till", epoch=1) is Code.STALE_EPOCH
    channel = again.open("orders", 2, publisher="till", epoch=2)
    again.publish(channel, b"1", b"2", qos=2, sequence=1)
    assert again.confirmed[channel] == (1, 0)
    assert world.keeping.next_offset == 3


def test_a_publisher_that_is_forgotten_is_forgotten_for_good() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    alice.publish(alice.open("orders", 2, publisher="till"), b"0", qos=2, sequence=0)
    world.restart()
    world.pass_s(PUBLISHER_EXPIRY_S)
    again = world.client("alice")
    again.publish(again.open("orders", 2, publisher="other"), b"1", qos=2, sequence=0)
    assert set(world.keeping.of("identity")) == {("alice", "other", "orders")}


def test_a_publisher_is_not_forgotten_while_no_broker_runs() -> None:
    """Nor if the clock of the next broker is ahead."""
    world = DurableWorld()
    alice = world.client("alice")
    alice.publish(alice.open("orders", 2, publisher="till"), b"0", qos=2, sequence=0)
    world.restart(after_s=2 * PUBLISHER_EXPIRY_S)
    again = world.client("alice")
    again.publish(again.open("orders", 2, publisher="other"), b"1", qos=2, sequence=0)
    again.publish(again.open("orders", 2, publisher="till"), b"0", qos=2, sequence=0)
    assert world.keeping.next_offset == 2


# -- histories --------------------------------------------------------------------------------------------------------


class History:
    """Random deeds of a few clients, with kills in between, against what was promised to them."""

    TOPICS = ("a", "b/1", "b/2")

    def __init__(self, seed: int, world: DurableWorld) -> None:
        self.rng = random.Random(seed)
        self.world = world
        self.confirmed: set[bytes] = set()
        """Payloads that were confirmed to their publishers."""
        self.count = 0
        self.orders: dict[str, int] = defaultdict(int)
        """By topic, the next sequence of the publisher of QoS 2, which sends again what was not confirmed."""
        self.cursor = (0, 0)
        """What the last commit that was answered said, and the last one that was asked."""
        self.connect()

    def connect(self) -> None:
        world = self.world
        self.alice, self.bob = world.peer(), world.peer()
        self.alice.try_login("alice", instance=RUN)
        self.bob.try_login("bob", **LONG)
        world.commit()
        self.open_channels()
        before = len(self.bob.got)
        self.bob.subscribe("#", cursor="mine", number=1)
        world.commit()
        self.check_cursor(self.bob.got[before:])

    def open_channels(self) -> None:
        self.channels = {topic: self.alice.start(topic) for topic in self.TOPICS}
        self.numbered = {topic: self.alice.start(topic, 2, publisher="till") for topic in self.TOPICS}
        self.sent: dict[tuple[int, int], bytes] = {}

    def go_back(self) -> None:
        """What was not confirmed is sent again, with the same sequence."""
        for topic in self.TOPICS:
            orders = [one for one in self.confirmed if one.startswith(b"order %s " % topic.encode())]
            self.orders[topic] = max([int(one.split()[-1]) + 1 for one in orders], default=0)

    def check_cursor(self, got: list[Got]) -> None:
        """It begins behind a commit that was answered, or one that was asked later."""
        begun = self.bob.last(c.Subscribed).next_offset
        assert self.cursor[0] <= begun <= self.cursor[1]
        self.cursor = (begun, begun)
        end = self.world.log.next_offset
        assert [one.offset for one in got] == list(range(begun, end))

    def step(self) -> None:
        rng, world = self.rng, self.world
        topic = rng.choice(self.TOPICS)
        match rng.randrange(13):
            case 0 | 1 | 2 | 3:
                payload = b"%s %d" % (topic.encode(), self.count)
                self.count += 1
                fields = {"retain": rng.random() < 0.3}
                number = self.alice.publish(self.channels[topic], payload, **fields)
                self.sent[self.channels[topic], number] = payload
            case 4 | 5 | 6:
                sequence = self.orders[topic]
                count = rng.randint(1, 3)
                payloads = [b"order %s %d" % (topic.encode(), sequence + place) for place in range(count)]
                number = self.alice.publish(self.numbered[topic], *payloads, qos=2, sequence=sequence)
                self.orders[topic] += count
                self.sent[self.numbered[topic], number] = payloads[-1]
            case 7:
                offset = rng.randint(self.cursor[1], world.server.broker._delivery.next_offset)
                self.bob.say(c.CursorCommit(request=(number := self.bob.number()), subscription=1, offset=offset))
                self.cursor = (self.cursor[0], offset)
                world.run()
                if c.Done(request=number) in self.bob.said:
                    self.cursor = (offset, offset)
            case 8:
                world.hold()
            case 9:
                world.commit()
            case 10 if world.log.waiting:
                world.log.commit(world.now_us)
                world.run()
            case 11:
                world.pass_s(rng.random())
            case 12 if world.log.waiting:
                world.fail()
                self.note_confirms()
                self.open_channels()
                self.go_back()
        self.note_confirms()

    def note_confirms(self) -> None:
        for (channel, number), payload in self.sent.items():
            if number <= self.alice.confirmed.get(channel, (0, 0))[0]:
                self.confirmed.add(payload)

    def kill(self) -> None:
        self.world.restart()
        logged = self.logged()
        assert self.confirmed <= set(logged)
        for topic in self.TOPICS:
            orders = [one for one in logged if one.startswith(b"order %s " % topic.encode())]
            assert orders == [b"order %s %d" % (topic.encode(), number) for number in range(len(orders))]
        self.go_back()
        self.check_retained()
        self.connect()

    def logged(self) -> list[bytes]:
        found = []
        for _, entry in self.world.log.store.read(0, 2**30).entries:
            if entry.flags & LONE:
                found.append(entry.rest)
            else:
                lengths = [int.from_bytes(entry.rest[at : at + 4], "big") for at in range(4, 4 + 4 * entry.count, 4)]
                at = 4 + 4 * entry.count
                for length in lengths:
                    found.append(entry.rest[at : at + length])
                    at += length
        return found

    def check_retained(self) -> None:
        newest = {
            entry.topic: entry.rest for _, entry in self.world.log.store.read(0, 2**30).entries if entry.flags & 0x04
        }
        late = subscriber(self.world)
        assert {got.topic: got.payload for got in late.got} == newest
        assert all(got.retain for got in late.got)
        late.leave()

    def run(self) -> None:
        for _ in range(6):
            for _ in range(self.rng.randint(1, 40)):
                self.step()
            self.kill()
        self.world.commit()


class DiskWorld(DurableWorld):
    """With the real store, opened anew each time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.sqlite"
        self.opened: list[SqliteStore] = []
        super().__init__()

    def open(self) -> SqliteStore:
        if self.opened:
            self.opened[-1].close()
        self.opened.append(SqliteStore.open(self.path, new_log_id=LOG_ID, now_us=START_US))
        return self.opened[-1]


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_with_kills(seed: int) -> None:
    History(seed, DurableWorld()).run()


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_on_disk(seed: int, tmp_path: Path) -> None:
    world = DiskWorld(tmp_path)
    History(seed, world).run()
    world.opened[-1].close()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_has_its_extension_after_a_restart(qos: Qos, tmp_path: Path) -> None:
    world = DiskWorld(tmp_path)
    alice = world.client("alice")
    extension = encode_extension({300: "until noon"})
    sequence = 0 if qos == 2 else None
    channel = alice.open("a", qos)
    alice.publish(channel, b"first", b"last", qos=qos, retain=True, sequence=sequence, extension=extension)
    alice.publish(alice.open("b", qos), b"plain", qos=qos, retain=True, sequence=sequence)
    expected = [("a", b"last", extension), ("b", b"plain", None)]
    assert retained(world) == expected
    world.pass_s(2)
    world.restart()
    assert retained(world) == expected
    world.opened[-1].close()


def retained(world: DurableWorld) -> list[tuple[str, bytes, bytes | None]]:
    return sorted((got.topic, got.payload, got.extension) for got in subscriber(world).got if got.topic < "c")


def test_the_greatest_values_that_come_from_outside_can_be_written(tmp_path: Path) -> None:
    """A change that the store could not take would be tried again for ever, and no append could be made."""
    world = DiskWorld(tmp_path)
    name, topic = "\U0001f999" * 64, "\U0001f999" * 256
    greatest = 2**63 - 1
    alice = world.client(name, session_expiry_s=2**32 - 1, will=c.Will(topic=topic, payload=bytes(65_536), qos=2))
    assert alice.refused_subscribe(topic, cursor=name, start=greatest) is Code.NO_SUCH_OFFSET
    alice.subscribe(topic, cursor=name)
    alice.subscribe(topic, "#", since_us=greatest)
    channel = alice.open(topic, 2, publisher="\U0001f999\0" * 128, epoch=greatest)
    alice.publish(channel, b"x", qos=2, sequence=2**62, published_us=2**62, retain=True, deltas_us=(2**32 - 1,))
    assert alice.confirmed[channel][0] == 1
    number = alice.all(c.Subscribed)[-1].subscription
    alice.expect(c.Unsubscribe(request=90, subscription=number, keep=True, offset=greatest), c.Done)
    world.server.import_staged(
        Import(
            1,
            name,
            LAST_BATCH,
            [
                Entry(
                    topic=topic,
                    publisher=name,
                    flags=LONE,
                    published_us=LATEST_US,
                    received_us=0,
                    sequence=greatest,
                    epoch=greatest,
                    count=1,
                    rest=b"",
                )
            ],
        )
    )
    world.run()
    assert world.server.imported == [Imported(1, first_offset=1, count=1)]
    alice.die()
    world.pass_s(5)
    state = world.opened[-1].state()
    assert (len(state.sessions), len(state.subscriptions), len(state.identities), len(state.queries)) == (1, 2, 1, 1)
    assert state.retained[0].published_us == 2**62 + 2**32 - 1
    world.restart()
    assert world.client(name, session_expiry_s=10, instance=bytes(16)).all(c.Welcome)[0].resumed
    world.opened[-1].close()
