"""Subscriptions: what is the same one, where it begins, what it remembers."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld, KeepingStore
from tests.broker.world import Peer, World

from godwit.broker import subscriptions
from godwit.broker.access import Access, Rule
from godwit.broker.effects import Losing
from godwit.broker.settings import Settings
from godwit.limits import MAX_FILTER_LEVELS, MAX_FILTERS, MAX_TOPIC_LEVELS
from godwit.wire import changes as ch
from godwit.wire import control as c
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch


def publisher_of(world: World, topic: str, *payloads: bytes) -> tuple[Peer, int]:
    """A client that has published these, one batch each, and its channel."""
    peer = world.client("publisher")
    channel = peer.open(topic)
    for payload in payloads:
        peer.publish(channel, payload)
    return peer, channel


def test_a_subscriber_gets_what_comes_after_its_subscription() -> None:
    world = World()
    publisher, channel = publisher_of(world, "news", b"before")
    bob = world.client("bob")
    reply = bob.subscribe("news")
    assert (reply.is_new, reply.next_offset) == (True, 1)
    publisher.publish(channel, b"after")
    assert [(got.payload, got.offset, got.retain) for got in bob.got] == [(b"after", 1, False)]
    assert world.told("subscribed") == ["bob subscribed to news"]


def test_each_message_comes_once_even_if_several_filters_match() -> None:
    world = World()
    bob = world.client("bob")
    bob.subscribe("news/+", "news/#", "news/today")
    publisher_of(world, "news/today", b"x")
    assert bob.payloads == [b"x"]


def test_two_subscriptions_get_a_copy_each() -> None:
    world = World()
    bob = world.client("bob")
    bob.subscribe("news/+")
    bob.subscribe("news/today")
    publisher, channel = publisher_of(world, "news/today", b"x")
    assert bob.payloads == [b"x", b"x"]
    assert publisher.confirmed[channel] == (1, 2)


def test_the_same_filters_again_are_the_same_subscription() -> None:
    world = World()
    bob = world.client("bob")
    first = bob.subscribe("b", "a", number=7)
    again = bob.subscribe("a", "b", "a", number=8)
    assert first.is_new
    assert (again.is_new, again.subscription) == (False, 7)
    publisher_of(world, "a", b"x")
    assert bob.payloads == [b"x"]
    assert len(bob.lanes) == 2


def test_a_number_stands_for_one_subscription() -> None:
    bob = World().client("bob")
    bob.subscribe("a", number=1)
    assert bob.refusal(c.Subscribe(request=50, subscription=1, filters=["b"])) is Code.MALFORMED


def test_many_subscribers_and_many_topics() -> None:
    world = World()
    peers = [world.client(f"client-{number}") for number in range(20)]
    for number, peer in enumerate(peers):
        peer.subscribe(f"room/{number % 5}/#", "all")
    publisher = world.client("publisher")
    for room in range(5):
        publisher.publish(publisher.open(f"room/{room}/temperature"), b"%d" % room)
    channel = publisher.open("all")
    publisher.publish(channel, b"everybody")
    assert publisher.confirmed[channel] == (1, 20)
    assert [peer.payloads for peer in peers] == [[b"%d" % (number % 5), b"everybody"] for number in range(20)]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a+", "**", "a\nb", "\u00fc" * 600, "/".join("a" * 65)])
def test_filters_that_cannot_be(pattern: str) -> None:
    assert World().client("bob").refused_subscribe("fine", pattern) is Code.BAD_FILTER


def test_no_right_to_subscribe() -> None:
    rule = Rule(clients=("*",), allow=frozenset({"subscribe"}), topics=("open/#",))
    bob = World(Settings(access=Access(rules=(rule,)))).client("bob")
    for pattern in ("secret", "#", "+/x", "*", "openly"):
        assert bob.refused_subscribe(pattern) is Code.NOT_ALLOWED, pattern
    assert bob.refused_subscribe("open/x", "secret") is Code.NOT_ALLOWED
    for pattern in ("open", "open/+/x", "open/*", "open/#"):
        bob.subscribe(pattern)


def test_there_are_only_so_many_subscriptions() -> None:
    bob = World(Settings(max_subscriptions=2)).client("bob")
    bob.subscribe("a")
    bob.subscribe("b")
    assert bob.refused_subscribe("c") is Code.TOO_MANY
    bob.expect(c.Unsubscribe(request=90, subscription=2), c.Done)
    bob.subscribe("c")


def test_a_start_and_a_time_together_are_nonsense() -> None:
    assert World().client("bob").refused_subscribe("a", start=1, since_us=1) is Code.MALFORMED


def test_a_cursor_needs_a_name() -> None:
    assert World().client("bob").refused_subscribe("a", cursor="") is Code.BAD_NAME


# -- policies ---------------------------------------------------------------------------------------------------------

POLICIES = Settings(
    policies=(("open/#", "open"), ("publishers/#", "publishers"), ("explicit/#", "explicit")),
    topics=("explicit/there",),
)


def test_open_topics_come_into_being_by_any_use() -> None:
    world = World(POLICIES)
    bob = world.client("bob")
    bob.subscribe("open/a")
    names = [info.name for info in bob.expect(c.Topics(request=99), c.TopicList).topics]
    assert names == ["explicit/there", "open/a"]


def test_topics_of_publishers_are_made_by_publishing() -> None:
    world = World(POLICIES)
    bob = world.client("bob")
    assert bob.refused_subscribe("publishers/a") is Code.NO_SUCH_TOPIC
    publisher_of(world, "publishers/a", b"x")
    bob.subscribe("publishers/a")


def test_explicit_topics_must_be_created() -> None:
    world = World(POLICIES)
    alice = world.client("alice")
    assert alice.refused_open("explicit/a") is Code.NO_SUCH_TOPIC
    assert alice.refused_subscribe("explicit/a") is Code.NO_SUCH_TOPIC
    alice.expect(c.Create(request=70, topic="explicit/a"), c.Done)
    alice.subscribe("explicit/a")
    alice.publish(alice.open("explicit/a"), b"x")
    alice.publish(alice.open("explicit/there"), b"from the configuration")
    assert alice.payloads == [b"x"]


def test_a_wildcard_needs_no_topic_and_sees_later_ones() -> None:
    world = World(POLICIES)
    bob = world.client("bob")
    bob.subscribe("publishers/#", "explicit/+")
    publisher_of(world, "publishers/a", b"x")
    assert bob.payloads == [b"x"]


def test_a_subscription_that_is_refused_creates_nothing() -> None:
    world = World(POLICIES)
    bob = world.client("bob")
    assert bob.refused_subscribe("open/a", "publishers/a") is Code.NO_SUCH_TOPIC
    assert world.server.broker._catalogue.get("open/a") is None


# -- where it begins --------------------------------------------------------------------------------------------------


def test_start_positions() -> None:
    world = World()
    publisher, channel = publisher_of(world, "news", b"0", b"1", b"2")
    noon_us = world.now_us + 60_000_000
    world.pass_s(60)
    publisher.publish(channel, b"3", b"4")
    for start, expected in (
        ({"start": "latest"}, []),
        ({}, []),
        ({"start": "earliest"}, [b"0", b"1", b"2", b"3", b"4"]),
        ({"start": 0}, [b"0", b"1", b"2", b"3", b"4"]),
        ({"start": 2}, [b"2", b"3", b"4"]),
        ({"start": 4}, [b"4"]),  # in the middle of a batch
        ({"start": 5}, []),
        ({"since_us": noon_us}, [b"3", b"4"]),
        ({"since_us": 0}, [b"0", b"1", b"2", b"3", b"4"]),
        ({"since_us": noon_us + 1}, []),
    ):
        peer = world.client()
        peer.subscribe("news", **start)
        assert peer.payloads == expected, start
        peer.leave()
    bob = world.client("bob")
    bob.subscribe("news", start=3)
    publisher.publish(channel, b"5")
    assert bob.payloads == [b"3", b"4", b"5"]  # history runs into the present


def test_a_start_that_does_not_exist_yet_is_refused() -> None:
    """The client knows another log, or a longer one: it must not wait in silence for what has other offsets."""
    world = World()
    publisher_of(world, "news", b"0", b"1")
    bob = world.client("bob")
    assert bob.refused_subscribe("other", start=3) is Code.NO_SUCH_OFFSET
    assert "the log ends at 2" in bob.last(c.Error).text
    assert world.server.broker.figures()["subscriptions"] == 0
    assert "other" not in {topic.name for topic in bob.expect(c.Topics(request=70), c.TopicList).topics}
    assert bob.subscribe("other", start=2).next_offset == 2


# -- sessions and cursors ---------------------------------------------------------------------------------------------


def test_a_session_goes_on_where_the_application_stood() -> None:
    world = World()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news")
    publisher, channel = publisher_of(world, "news", b"0", b"1")
    bob.confirms_itself = False
    publisher.publish(channel, b"2")  # arrives, and is not taken
    assert bob.payloads == [b"0", b"1", b"2"]
    bob.die()
    publisher.publish(channel, b"3")
    bob = world.peer()
    assert bob.login("bob", session_expiry_s=100).resumed
    assert bob.got == []  # nothing comes by itself
    assert bob.subscribe("news").next_offset == 2
    assert bob.payloads == [b"2", b"3"]
    publisher.publish(channel, b"4")
    assert bob.payloads == [b"2", b"3", b"4"]


def test_a_client_that_knows_better_says_where_to_go_on() -> None:
    world = World()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news")
    bob.confirms_itself = False
    publisher_of(world, "news", b"0", b"1", b"2")
    bob.die()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news", start=2)
    assert bob.payloads == [b"2"]


def test_a_named_cursor_moves_by_commits_alone() -> None:
    world = World()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news", cursor="billing", number=1)
    publisher_of(world, "news", b"0", b"1", b"2", b"3")
    assert len(bob.got) == 4
    bob.expect(c.CursorCommit(request=50, subscription=1, offset=2), c.Done)
    bob.die()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news", cursor="billing")
    assert bob.payloads == [b"2", b"3"]
    bob.subscribe("news", cursor="other", start="earliest")
    assert len(bob.got) == 2 + 4


def test_a_cursor_is_one_position_whatever_its_filters() -> None:
    world = World()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news", cursor="billing", number=1)
    alice = world.client("alice")
    news, sport = alice.open("news"), alice.open("sport")
    for number in range(4):
        alice.publish(news, b"news %d" % number)
        alice.publish(sport, b"sport %d" % number)
    assert bob.payloads == [b"news 0", b"news 1", b"news 2", b"news 3"]
    bob.expect(c.CursorCommit(request=50, subscription=1, offset=3), c.Done)  # after news 1
    text = bob.expect(c.Subscribe(request=51, subscription=2, filters=["sport"], cursor="billing"), c.Error).text
    assert text.startswith("the cursor 'billing' is in use by the subscription to news: end that first")
    bob.expect(c.Unsubscribe(request=52, subscription=1, keep=True), c.Done)
    assert bob.subscribe("sport", "news", cursor="billing", number=3).next_offset == 3
    assert bob.payloads[4:] == [b"sport 1", b"news 2", b"sport 2", b"news 3", b"sport 3"]
    bob.expect(c.CursorCommit(request=53, subscription=3, offset=6), c.Done)
    bob.die()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("sport", cursor="billing", number=1)
    assert bob.payloads == [b"sport 3"]  # its former filters are forgotten


def test_a_cursor_with_other_filters_misses_nothing_that_did_not_match_before() -> None:
    """A subscription that has everything is stored at the end of the log: other filters may match before it."""
    world = World()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news", cursor="billing", number=1)
    publisher, _ = publisher_of(world, "news", b"0")
    bob.expect(c.CursorCommit(request=50, subscription=1, offset=1), c.Done)
    bob.die()
    sport = publisher.open("sport")
    publisher.publish(sport, b"1")
    publisher.publish(sport, b"2")
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("#", cursor="billing")
    assert bob.payloads == [b"1", b"2"]


def test_a_start_does_not_move_a_cursor_with_other_filters() -> None:
    world = World()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news", cursor="billing", number=1)
    publisher_of(world, "news", b"0", b"1")
    bob.expect(c.Unsubscribe(request=50, subscription=1, keep=True), c.Done)
    assert bob.subscribe("#", cursor="billing", number=2, start="latest").next_offset == 2
    bob.die()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news", cursor="billing")
    assert bob.payloads == [b"0", b"1"], "without a commit the cursor has not moved"


def test_all_subscriptions_of_a_cursor_from_an_older_log_are_replaced() -> None:
    """Godwit 0.5.0 had a position for each set of filters."""
    world = DurableWorld()
    publisher, _ = publisher_of(world, "a", b"0", b"1")
    channel = publisher.open("b")
    publisher.publish(channel, b"2")
    publisher.publish(channel, b"3")
    session = ch.SessionRow("bob", b"", is_proved=False, expiry_s=100, ends_at_us=None)
    rows = [ch.SubscriptionRow("bob", (text,), "billing", at) for text, at in (("a", 1), ("b", 3))]
    world.keeping.append([], [session, *rows])
    world.restart()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("a", "b", cursor="billing", number=1)
    assert bob.payloads == [b"1", b"2", b"3"]
    bob.expect(c.CursorCommit(request=50, subscription=1, offset=4), c.Done)
    bob.die()
    for text in ("a", "b", "#"):
        bob = world.client("bob", session_expiry_s=100)
        bob.subscribe(text, cursor="billing")
        assert bob.payloads == []
        bob.die()


def test_a_cursor_needs_the_name_of_a_client() -> None:
    nameless = World().client(None)
    assert nameless.refused_subscribe("news", cursor="billing") is Code.BAD_NAME


def test_what_cannot_be_committed() -> None:
    world = World()
    bob = world.client("bob")
    bob.subscribe("news", number=1)
    bob.subscribe("news", cursor="c", number=2)
    assert bob.refusal(c.CursorCommit(request=50, subscription=1, offset=0)) is Code.MALFORMED
    assert bob.refusal(c.CursorCommit(request=51, subscription=2, offset=1)) is Code.MALFORMED  # nothing is there yet
    assert bob.refusal(c.CursorCommit(request=52, subscription=3, offset=0)) is Code.NOT_SUBSCRIBED


def test_unsubscribing_ends_both_channels_and_the_memory() -> None:
    world = World()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news", number=1)
    publisher, channel = publisher_of(world, "news", b"0")
    bob.expect(c.Unsubscribe(request=50, subscription=1), c.Done)
    assert [lane.ended for lane in bob.lanes.values()] == [True, True]
    publisher.publish(channel, b"1")
    assert bob.payloads == [b"0"]
    assert bob.refusal(c.Unsubscribe(request=51, subscription=1)) is Code.NOT_SUBSCRIBED
    assert bob.subscribe("news", number=1).next_offset == 2  # a new one, with channels of its own
    assert len(bob.lanes) == 4
    assert world.told("unsubscribed") == ["bob unsubscribed from news"]


def test_a_subscription_that_is_kept_goes_on_where_it_stood() -> None:
    world = World()
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news", cursor="billing", number=1)
    publisher, channel = publisher_of(world, "news", b"0", b"1")
    bob.expect(c.CursorCommit(request=49, subscription=1, offset=1), c.Done)
    bob.expect(c.Unsubscribe(request=50, subscription=1, keep=True), c.Done)
    assert [lane.ended for lane in bob.lanes.values()] == [True, True]
    publisher.publish(channel, b"2")
    assert publisher.confirmed[channel] == (3, 0)
    assert bob.payloads == [b"0", b"1"]
    assert bob.subscribe("news", cursor="billing", number=1).next_offset == 1
    assert bob.payloads == [b"0", b"1", b"1", b"2"]


def test_a_subscription_that_is_left_in_one_turn_with_its_beginning_is_gone() -> None:
    """A start by time is looked up in the log, which takes until the end of the turn."""
    world = World()
    bob = world.client("bob", session_expiry_s=100)
    bob.say(c.Subscribe(request=50, subscription=1, filters=["news"], since_us=0))
    bob.say(c.Unsubscribe(request=51, subscription=1))
    world.run()
    assert world.server.broker.figures()["subscriptions"] == 0
    publisher, channel = publisher_of(world, "news", b"x")
    assert publisher.confirmed[channel] == (1, 0)
    assert bob.subscribe("news", number=1).is_new


def test_a_right_that_ends_ends_the_subscription() -> None:
    world = World()
    bob = world.client("bob")
    bob.subscribe("a", number=1)
    bob.subscribe("b", number=2)
    rule = Rule(clients=("*",), allow=frozenset({"subscribe", "publish"}), topics=("b",))
    world.server.change_settings(Settings(access=Access(rules=(rule,))))
    world.run()
    assert [message.subscription for message in bob.all(c.Kicked)] == [1]
    publisher_of(world, "b", b"x")
    assert bob.payloads == [b"x"]


def test_the_levels_of_all_filters_of_a_client_are_bounded() -> None:
    world = World()
    bob = world.client("bob")
    deep = "/".join(["x"] * (MAX_TOPIC_LEVELS - 1))
    fits = MAX_FILTER_LEVELS // (MAX_FILTERS * MAX_TOPIC_LEVELS)
    replies = [bob.subscribe(*(f"{deep}/{place}-{at}" for at in range(MAX_FILTERS))) for place in range(fits)]
    assert bob.refused_subscribe("one/more") is Code.TOO_MANY
    bob.ask(c.Unsubscribe(request=99, subscription=replies[0].subscription))
    assert bob.subscribe("one/more").is_new


def test_all_clients_together_have_so_many_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.broker.subscriptions.MAX_FILTER_PLACES", 5)
    world = World()
    for name in ("alice", "bob"):
        peer = world.client(name, session_expiry_s=100)
        peer.subscribe("a", "b")
        peer.leave()
    carol = world.client("carol")
    carol.subscribe("a", cursor="1")
    assert carol.refused_subscribe("a", cursor="2") == Code.TOO_MANY  # though the filter is there already
    world.pass_s(101)
    carol.subscribe("a", cursor="2")


# -- starts by time ---------------------------------------------------------------------------------------------------


def ask(peer: Peer, number: int) -> None:
    peer.say(c.Subscribe(request=100 + number, subscription=number, filters=[f"t/{number}/#"], since_us=1))


def subscribed(peer: Peer) -> list[int]:
    return [reply.subscription for reply in peer.all(c.Subscribed)]


def test_a_client_has_few_starts_looked_up_at_once_and_few_that_wait() -> None:
    world = DurableWorld()
    bob = world.client("bob")
    world.log.has_slow_reader = True
    most = subscriptions.LOOKUPS_AT_ONCE + subscriptions.MAX_LOOKUPS
    for number in range(most + 5):
        ask(bob, number)
    world.run()
    assert len(world.log.questions) == subscriptions.LOOKUPS_AT_ONCE
    assert [error.code for error in bob.all(c.Error)] == [Code.TOO_MANY] * 5
    while world.log.questions:
        world.answer_one()
        assert len(world.log.questions) <= subscriptions.LOOKUPS_AT_ONCE
    assert subscribed(bob) == list(range(most))
    ask(bob, 500)
    world.run()
    world.answer_one()
    assert subscribed(bob)[-1] == 500


def test_a_lookup_that_was_given_up_counts_until_it_is_answered() -> None:
    world = DurableWorld()
    bob = world.client("bob")
    world.log.has_slow_reader = True
    for number in range(30):
        ask(bob, number)
        if number % 2:
            bob.say(c.Unsubscribe(request=200 + number, subscription=number))
    world.run()
    assert len(bob.all(c.Done)) == 15
    assert len(world.log.questions) == subscriptions.LOOKUPS_AT_ONCE
    while world.log.questions:
        world.answer_one()
    assert subscribed(bob) == list(range(0, 30, 2))


def test_there_must_be_room_before_a_start_is_looked_up() -> None:
    world = DurableWorld(Settings(max_subscriptions=2))
    bob = world.client("bob")
    bob.subscribe("a")
    bob.subscribe("b")
    world.log.has_slow_reader = True
    assert bob.refused_subscribe("c", since_us=1) is Code.TOO_MANY
    assert not world.log.questions


def test_who_leaves_has_no_more_looked_up() -> None:
    world = DurableWorld()
    bob = world.client("bob", session_expiry_s=100)
    world.log.has_slow_reader = True
    for number in range(20):
        ask(bob, number)
    world.run()
    bob.leave()
    for _ in range(subscriptions.LOOKUPS_AT_ONCE):
        world.answer_one()
    assert not world.log.questions
    assert world.server.broker.figures()["subscriptions"] == 0


# -- an older copy of the log was put back ----------------------------------------------------------------------------

FIRST, OURS, LOST = Epoch(b"first..!", 0), Epoch(b"ours...!", 4), Epoch(b"lost...!", 6)


class CopiedWorld(DurableWorld):
    """Its log has 4 messages of one epoch, then 4 of another; clients may know another history of it."""

    def __init__(self) -> None:
        super().__init__()
        self.publisher, self.channel = publisher_of(self, "news", *(b"%d" % place for place in range(4)))
        KeepingStore.epochs = [FIRST, OURS]
        try:
            self.restart()
        finally:
            KeepingStore.epochs = ()
        self.publisher, self.channel = publisher_of(self, "news", *(b"%d" % place for place in range(4, 8)))


@pytest.mark.parametrize(
    ("epochs", "start", "begins", "same_below"),
    [
        ([FIRST, OURS], 7, 7, 8),
        ([FIRST], 4, 4, 4),
        ([FIRST], 6, 4, 4),
        ([FIRST, LOST], 12, 4, 4),
        ([FIRST, Epoch(b"lost...!", 2)], 3, 2, 2),
        ([LOST], 7, 0, 0),
        ([FIRST], 0, 0, 4),
        ([LOST], 0, 0, 0),
    ],
)
def test_a_position_of_another_history(epochs: list[Epoch], start: int, begins: int, same_below: int) -> None:
    world = CopiedWorld()
    bob = world.client("bob")
    reply = bob.subscribe("news", start=start, epochs=epochs)
    assert (reply.next_offset, reply.same_below) == (begins, same_below)
    assert [got.offset for got in bob.got] == list(range(begins, 8))
    assert bob.gaps == []
    assert len(world.told("replaced")) == (begins < start)


@pytest.mark.parametrize(
    ("offset", "epochs", "expected"),
    [(3, [FIRST], 3), (6, [FIRST], 4), (7, [OURS], 7), (7, [LOST], 1), (7, [], 7), (20, [OURS], 8)],
)
def test_where_a_commit_of_another_history_goes(offset: int, epochs: list[Epoch], expected: int) -> None:
    world = CopiedWorld()
    bob = world.client("bob", session_expiry_s=60)
    cursor = bob.subscribe("news", cursor="mine", start=1).subscription
    bob.expect(c.CursorCommit(request=bob.number(), subscription=cursor, offset=1), c.Done)
    bob.expect(c.CursorCommit(request=bob.number(), subscription=cursor, offset=offset, epochs=epochs), c.Done)
    bob.leave()
    assert world.client("bob", session_expiry_s=60).subscribe("news", cursor="mine").next_offset == expected


def test_who_has_read_nothing_yet_is_told_what_is_gone_whatever_epoch_it_knows() -> None:
    """A client may know a process that died before its first message: then nothing is known in common."""
    world = CopiedWorld()
    world.server.broker.handle(Losing(world.keeping.read(0, 2**20).entries[:3], 3), world.now_us)
    for start, begins, gaps in ((0, 0, [c.Gap(count=3, next_offset=3)]), (7, 3, [])):
        bob = world.client(f"bob-{start}")
        assert bob.subscribe("news", start=start, epochs=[LOST]).next_offset == begins
        assert bob.gaps == gaps
