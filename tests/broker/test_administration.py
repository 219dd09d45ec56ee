"""Requests about topics and clients, and pages of lists within a budget of work."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import Peer, World

from godwit.broker.access import Access, Rule
from godwit.broker.administration import MAX_LISTS_WAITING, STEPS_PER_S, STEPS_PER_SEARCH, STEPS_PER_TURN
from godwit.broker.settings import Settings
from godwit.limits import MAX_CONTROL_RECORD_BYTES
from godwit.wire import control as c
from godwit.wire.batch import Batch, encode_batch
from godwit.wire.control import encode_control
from godwit.wire.control_base import Code


def rules(*rows: tuple[str, str, str]) -> Settings:
    """Everyone may do this on these topics."""
    made = tuple(
        Rule(clients=(who,), allow=frozenset(actions.split()), topics=tuple(topics.split()))  # type: ignore[arg-type]
        for who, actions, topics in rows
    )
    return Settings(access=Access(rules=made))


# -- create -----------------------------------------------------------------------------------------------------------


def test_create() -> None:
    world = World()
    alice = world.client("alice")
    alice.expect(c.Create(request=50, topic="a/b"), c.Done)
    assert alice.refusal(c.Create(request=51, topic="a/b")) is Code.TOPIC_EXISTS
    assert alice.refusal(c.Create(request=52, topic="a/+")) is Code.BAD_TOPIC
    assert alice.refusal(c.Create(request=53, topic="")) is Code.BAD_TOPIC
    assert alice.refusal(c.Create(request=54, topic="$mine")) is Code.NOT_ALLOWED
    assert world.told("topic_created") == ["alice created topic a/b"]


def test_create_needs_its_right_and_room() -> None:
    alice = World(rules(("*", "create", "mine/#"))).client("alice")
    assert alice.refusal(c.Create(request=50, topic="yours")) is Code.NOT_ALLOWED
    alice.expect(c.Create(request=51, topic="mine/x"), c.Done)
    world = World(Settings(max_topics=20, topics=tuple(f"t{number}" for number in range(20))))
    alice = world.client("alice")
    assert alice.refusal(c.Create(request=50, topic="one more")) is Code.TOO_MANY
    assert alice.refused_open("one more") is Code.TOO_MANY
    assert alice.refused_subscribe("one more") is Code.TOO_MANY
    alice.subscribe("one/+")


# -- delete -----------------------------------------------------------------------------------------------------------


def test_delete() -> None:
    world = World()
    alice = world.client("alice")
    channel = alice.open("news")
    alice.publish(channel, b"1", retain=True)
    assert alice.refusal(c.DeleteTopic(request=50, topic="news")) is Code.TOPIC_EXISTS
    alice.record(channel, b"", last=True)
    world.run()
    bob = world.client("bob")
    bob.subscribe("news", number=7)
    assert alice.refusal(c.DeleteTopic(request=51, topic="news")) is Code.TOPIC_EXISTS
    bob.expect(c.Unsubscribe(request=60, subscription=7), c.Done)
    bob.subscribe("+", start="latest")
    alice.expect(c.DeleteTopic(request=52, topic="news"), c.Done)
    assert [topic.name for topic in all_topics(alice)] == []
    assert alice.refusal(c.DeleteTopic(request=53, topic="news")) is Code.NO_SUCH_TOPIC
    assert world.told("topic_deleted") == ["alice deleted topic news"]
    alice.publish(alice.open("news"), b"2")
    assert bob.payloads[-1] == b"2"
    (news,) = all_topics(alice)
    assert (news.messages, news.retained) == (1, False)


def test_a_deleted_topic_is_gone_after_a_restart() -> None:
    world = DurableWorld()
    alice = world.client("alice")
    for topic in ("kept", "deleted"):
        channel = alice.open(topic)
        alice.publish(channel, b"1", retain=True)
        alice.record(channel, b"", last=True)
    world.run()
    alice.expect(c.DeleteTopic(request=50, topic="deleted"), c.Done)
    world.restart()
    assert [topic.name for topic in all_topics(world.client("alice"))] == ["kept"]


@pytest.mark.parametrize("is_retained_again", [False, True])
def test_a_topic_that_is_deleted_and_created_at_once_loses_its_retained_message(is_retained_again: bool) -> None:
    world = DurableWorld()
    alice = world.client("alice")
    channel = alice.open("news")
    alice.publish(channel, b"old", retain=True)
    alice.record(channel, b"", last=True)
    world.run()
    alice.say(c.DeleteTopic(request=50, topic="news"))
    alice.say(c.Create(request=51, topic="news"))
    world.run()
    if is_retained_again:
        alice.publish(alice.open("news"), b"new", retain=True)
    world.restart()
    bob = world.client("bob")
    bob.subscribe("#")
    assert bob.payloads == ([b"new"] if is_retained_again else [])


def test_delete_needs_its_right() -> None:
    alice = World(rules(("*", "create publish", "mine/#"))).client("alice")
    assert alice.refusal(c.DeleteTopic(request=50, topic="yours")) is Code.NOT_ALLOWED
    alice.expect(c.Create(request=51, topic="mine/x"), c.Done)
    alice.expect(c.DeleteTopic(request=52, topic="mine/x"), c.Done)
    assert alice.refusal(c.DeleteTopic(request=53, topic="$sys/topics")) is Code.NOT_ALLOWED
    alice = World(Settings(topics=("configured",))).client("alice")
    assert alice.refusal(c.DeleteTopic(request=54, topic="configured")) is Code.NOT_ALLOWED


# -- cursors ----------------------------------------------------------------------------------------------------------


def cursors(peer: Peer, client: str | None = None) -> list[c.CursorInfo]:
    """All pages, each checked for its size."""
    found: list[c.CursorInfo] = []
    after: str | None = None
    while True:
        page = peer.expect(c.Cursors(request=peer.number(), client=client, after=after), c.CursorList)
        assert len(encode_control(page)) <= MAX_CONTROL_RECORD_BYTES
        found += page.cursors
        if not page.more:
            return found
        assert page.after > (after or "")
        after = page.after


def test_a_cursor_shows_its_position_and_lag() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob", session_expiry_s=60)
    subscription = bob.subscribe("news", cursor="screen").subscription
    bob.subscribe("other")
    channel = alice.open("news")
    for _ in range(3):
        alice.publish(channel, b"x")
    bob.expect(c.CursorCommit(request=bob.number(), subscription=subscription, offset=2), c.Done)
    screen, other = cursors(alice)
    assert screen == c.CursorInfo(
        client="bob", filters=["news"], cursor="screen", connected=True, position=2, lag=1, idle=True
    )
    assert other == c.CursorInfo(client="bob", filters=["other"], connected=True, position=3, idle=True)
    bob.die()
    alice.publish(channel, b"x")
    screen, _ = cursors(alice, "bob")
    assert (screen.connected, screen.position, screen.lag, screen.idle) == (False, 2, 2, False)


def test_a_subscription_is_idle_when_everything_is_confirmed() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    alice.publish(alice.open("news"), b"retained", retain=True)
    bob.confirms_itself = False
    bob.subscribe("news", start="latest")
    assert bob.payloads == [b"retained"]
    (one,) = cursors(bob, "bob")
    assert not one.idle
    bob.confirm_all()
    (one,) = cursors(bob, "bob")
    assert one.idle
    alice.publish(alice.open("news"), b"next")
    (one,) = cursors(bob, "bob")
    assert (one.idle, one.lag) == (False, 1)


def test_cursors_of_others_need_the_right_to_kick() -> None:
    world = World(rules(("*", "subscribe", "#")))
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    assert alice.refusal(c.Cursors(request=50)) is Code.NOT_ALLOWED
    assert alice.refusal(c.Cursors(request=51, client="bob")) is Code.NOT_ALLOWED
    assert [one.filters for one in cursors(bob, "bob")] == [["news"]]
    assert World().client("alice").refusal(c.Cursors(request=52, client="absent")) is Code.NO_SUCH_CLIENT


def test_many_cursors_come_in_pages() -> None:
    world = World()
    alice = world.client("alice")
    names = [f"client-{number:03}" for number in range(100)]
    for name in names:
        world.client(name).subscribe(*(f"{letter * 60}/{name}" for letter in "abcdefg"))
    assert [one.client for one in cursors(alice)] == names
    assert alice.expect(c.Cursors(request=alice.number()), c.CursorList).more


# -- topics -----------------------------------------------------------------------------------------------------------


def all_topics(peer: Peer, pattern: str | None = None) -> list[c.TopicInfo]:
    """All pages, each checked for its size."""
    found: list[c.TopicInfo] = []
    after: str | None = None
    while True:
        page = peer.expect(c.Topics(request=peer.number(), filter=pattern, after=after), c.TopicList)
        assert len(encode_control(page)) <= MAX_CONTROL_RECORD_BYTES
        found += page.topics
        if not page.more:
            return found
        assert page.after > (after or "")
        after = page.after


def test_a_topic_is_described() -> None:
    world = World(Settings(topics=("configured",), default_policy="publishers"))
    alice, bob = world.client("alice"), world.client("bob")
    channel = alice.open("news")
    bob.subscribe("news")
    world.pass_s(1)
    alice.publish(channel, b"12345", b"678", retain=True)
    configured, news = all_topics(alice)
    assert configured == c.TopicInfo(name="configured", policy="publishers")
    assert (news.name, news.subscribers, news.publishers, news.messages) == ("news", 1, 1, 2)
    assert news.retained
    assert news.payload_bytes >= 8
    assert news.last_us == world.now_us


def test_topics_come_in_order_and_in_pages() -> None:
    names = sorted({f"{'long' * 100}/{number}" for number in range(400)} | {f"\u00fc{number}" for number in range(50)})
    world = World(Settings(topics=tuple(names)))
    alice = world.client("alice")
    first = alice.expect(c.Topics(request=900), c.TopicList)
    assert first.more
    assert [info.name for info in all_topics(alice)] == names
    assert [info.name for info in all_topics(alice, "+")] == [name for name in names if "/" not in name]


def test_topics_by_filter_and_the_brokers_own_when_asked_for() -> None:
    world = World(Settings(topics=("a/b", "a/c", "b")))
    alice = world.client("alice")
    assert [info.name for info in all_topics(alice)] == ["a/b", "a/c", "b"]
    assert [info.name for info in all_topics(alice, "a/+")] == ["a/b", "a/c"]
    assert [info.name for info in all_topics(alice, "$sys/clients/#")] == [
        "$sys/clients/connected",
        "$sys/clients/sessions",
    ]
    assert alice.refusal(c.Topics(request=90, filter="a/#/b")) is Code.BAD_FILTER


def test_topics_are_hidden_from_clients_without_rights() -> None:
    settings = rules(("*", "subscribe", "open/#"), ("*", "publish", "inbox"))
    world = World(Settings(access=settings.access, topics=("open/a", "inbox", "secret")))
    assert [info.name for info in all_topics(world.client("alice"))] == ["inbox", "open/a"]


# -- clients ----------------------------------------------------------------------------------------------------------


def all_clients(peer: Peer) -> list[c.ClientInfo]:
    found: list[c.ClientInfo] = []
    after: str | None = None
    while True:
        page = peer.expect(c.Clients(request=peer.number(), after=after), c.ClientList)
        assert len(encode_control(page)) <= MAX_CONTROL_RECORD_BYTES
        found += page.clients
        if not page.more:
            return found
        after = page.clients[-1].name


def test_clients_are_described() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob", session_expiry_s=100)
    carol = world.client("carol", session_expiry_s=100)
    carol.subscribe("c")
    carol.leave()
    bob.subscribe("b", "a")
    alice.publish(alice.open("a"), b"1", b"2")
    first, second, third = all_clients(alice)
    assert (first.name, first.address, first.since_us) == ("alice", "192.0.2.1:40000", world.now_us)
    assert (first.subscriptions, first.messages_in, first.messages_out) == ([], 2, 0)
    assert (first.protocol, first.arq) == ("native", "selective-repeat")
    assert (second.name, second.subscriptions, second.messages_out) == ("bob", [["a", "b"]], 2)
    assert (third.name, third.address) == ("carol", "")


def test_clients_come_in_pages() -> None:
    world = World()
    names = sorted(f"{'client' * 30}-{number}" for number in range(600))
    for name in names:
        world.client(name)
    assert [info.name for info in all_clients(world.peers[0])] == names


def test_a_client_with_very_many_subscriptions_does_not_break_the_list() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    for number in range(20):
        bob.subscribe(*[f"{number}/{place}/{'x' * 1000}/#" for place in range(64)])
    assert [info.name for info in all_clients(alice)] == ["alice", "bob"]


def test_who_is_there_is_for_those_who_may_kick() -> None:
    alice = World(rules(("*", "subscribe", "#"))).client("alice")
    assert alice.refusal(c.Clients(request=50)) is Code.NOT_ALLOWED


# -- kick -------------------------------------------------------------------------------------------------------------


def test_a_client_is_removed_and_told_why() -> None:
    world = World()
    admin, bob = world.client("admin"), world.client("bob", session_expiry_s=1000)
    bob.subscribe("news")
    admin.expect(c.Kick(request=50, client="bob", reason="maintenance"), c.Done)
    assert bob.closed == (Code.KICKED, "admin removed this client: maintenance")
    assert "bob" not in world.server.broker.sessions
    assert not world.peer().login("bob").resumed
    assert world.told("kicked") == ["admin removed bob: maintenance"]


def test_a_client_is_disconnected_and_keeps_its_session() -> None:
    world = World()
    admin, bob = world.client("admin"), world.client("bob", session_expiry_s=1000)
    bob.subscribe("news")
    admin.expect(c.Kick(request=50, client="bob", reason="new address", keep=True), c.Done)
    assert bob.closed == (Code.SHUTDOWN, "admin disconnected this client: new address")
    assert world.told("kicked") == ["admin disconnected bob: new address"]
    assert admin.refusal(c.Kick(request=51, client="bob", keep=True)) is Code.NO_SUCH_CLIENT
    assert world.peer().login("bob").resumed


def test_who_waits_for_the_name_of_a_removed_client_gets_a_session_of_its_own() -> None:
    world = World()
    admin, holder = world.client("admin"), world.client("bob", session_expiry_s=1000)
    holder.answers_pings = False
    holder.subscribe("news")
    second = world.peer()
    second.try_login("bob")
    admin.expect(c.Kick(request=50, client="bob"), c.Done)
    assert holder.end == Code.KICKED
    assert not second.last(c.Welcome).resumed
    assert [info.name for info in admin.expect(c.Clients(request=51), c.ClientList).clients] == ["admin", "bob"]


def test_a_subscription_is_removed_and_the_client_is_told() -> None:
    world = World()
    admin, bob = world.client("admin"), world.client("bob")
    bob.subscribe("news", "weather", number=3)
    bob.subscribe("news", number=4)
    admin.expect(c.Kick(request=50, client="bob", filters=["weather", "news"], reason="noise"), c.Done)
    assert bob.all(c.Kicked) == [c.Kicked(subscription=3, by="admin", reason="noise")]
    assert bob.closed is None
    admin.publish(admin.open("weather"), b"rain")
    admin.publish(admin.open("news"), b"headline")
    assert bob.payloads == [b"headline"]
    assert world.told("kicked") == ["admin removed bob from weather, news: noise"]


def test_a_session_that_is_away_can_be_removed_too() -> None:
    world = World()
    admin = world.client("admin")
    bob = world.client("bob", session_expiry_s=100)
    bob.subscribe("news")
    bob.die()
    admin.expect(c.Kick(request=50, client="bob", filters=["news"]), c.Done)
    assert world.server.broker.figures()["subscriptions"] == 0
    admin.expect(c.Kick(request=51, client="bob"), c.Done)
    assert not world.peer().login("bob").resumed


def test_kicks_that_cannot_be() -> None:
    world = World()
    admin = world.client("admin")
    world.client("bob").subscribe("news")
    assert admin.refusal(c.Kick(request=50, client="unknown")) is Code.NO_SUCH_CLIENT
    assert admin.refusal(c.Kick(request=51, client="bob", filters=["#"])) is Code.NOT_SUBSCRIBED
    alice = World(rules(("*", "subscribe publish", "#"))).client("alice")
    assert alice.refusal(c.Kick(request=50, client="alice")) is Code.NOT_ALLOWED


def test_who_kicks_himself_is_gone() -> None:
    world = World()
    admin = world.client("admin")
    admin.say(c.Kick(request=50, client="admin"))
    world.run()
    assert admin.end == Code.KICKED


def test_topics_that_a_client_may_not_see_are_passed_over_in_bounded_steps() -> None:
    seen = Rule(clients=("*",), allow=frozenset(("publish", "subscribe")), topics=("z/#",))
    names = tuple(f"hidden/{number}" for number in range(STEPS_PER_SEARCH + 5))
    world = World(Settings(topics=(*names, "z/1"), access=Access(rules=(seen,))))
    alice = world.client("alice")
    first = alice.expect(c.Topics(request=50), c.TopicList)
    assert (first.topics, first.more) == ([], True)
    assert [info.name for info in all_topics(alice)] == ["z/1"]


def test_a_filter_that_matches_little_is_answered_in_short_pages_with_a_place_to_continue() -> None:
    names = tuple(f"room{number}/temperature" for number in range(2 * STEPS_PER_SEARCH))
    world = World(Settings(topics=(*names, "room17/", "room17/zzz", "zzz")))
    alice = world.client("alice")
    after, pages, found = "", 0, []
    while True:
        page = alice.expect(c.Topics(request=alice.number(), filter="*/zzz", after=after), c.TopicList)
        pages += 1
        found += page.topics
        if not page.more:
            break
        assert page.after > after, "a client of any version continues here"
        after = page.after
        world.pass_s(0.1)
    assert [info.name for info in found] == ["room17/zzz"]
    assert pages >= 4
    assert [info.name for info in all_topics(alice, "room17/+")] == ["room17/", "room17/temperature", "room17/zzz"]


def test_retained_messages_are_found_by_a_filter_that_matches_few() -> None:
    world = World()
    alice, bob = world.client("alice"), world.client("bob")
    for number in range(3000):
        channel = alice.open(f"room{number}/temperature", 0)
        alice.record(channel, encode_batch(Batch([b"x"], world.now_us, qos=0, retain=True)), last=True)
        if number % 500 == 0:
            world.pass_s(1)
    channel = alice.open("room7/zzz")
    alice.publish(channel, b"the only one", retain=True)
    bob.subscribe("*/zzz")
    assert bob.payloads == [b"the only one"]


# -- list queue -------------------------------------------------------------------------------------------------------


TOPICS = 3 * STEPS_PER_TURN
PAGE_S = STEPS_PER_SEARCH / STEPS_PER_S


def crowded() -> World:
    return World(Settings(topics=tuple(f"room{number}/temperature" for number in range(TOPICS))))


def ask(peer: Peer, count: int) -> None:
    """Lists that match nothing, all in one turn."""
    for _ in range(count):
        peer.say(c.Topics(request=peer.number(), filter="*/zzz"))


def test_requests_that_match_nothing_do_not_stop_the_broker() -> None:
    world = crowded()
    eve, alice = world.client("eve"), world.client("alice")
    ask(eve, 120)
    alice.say(c.Ping(request=77))
    world.run()
    answered = len(eve.all(c.TopicList))
    assert answered <= STEPS_PER_TURN // STEPS_PER_SEARCH + 1, "one turn answers only a few"
    assert alice.last(c.Pong).request == 77
    world.pass_s(120 * PAGE_S)
    pages = eve.all(c.TopicList)
    assert len(pages) == 120, "the others follow"
    assert all(page.more and not page.topics and page.after for page in pages)


def test_a_client_with_many_requests_does_not_keep_another_waiting() -> None:
    world = crowded()
    eve, alice = world.client("eve"), world.client("alice")
    ask(eve, 200)
    ask(alice, 1)
    world.run()
    world.pass_s(3 * PAGE_S)
    assert len(alice.all(c.TopicList)) == 1
    assert len(eve.all(c.TopicList)) < 10


def test_requests_that_wait_are_bounded_and_the_one_too_many_is_answered() -> None:
    world = crowded()
    eve = world.client("eve")
    ask(eve, 2 * MAX_LISTS_WAITING)
    world.run()
    errors = eve.all(c.Error)
    assert {Code(error.code) for error in errors} == {Code.TOO_MANY}
    world.pass_s(2 * MAX_LISTS_WAITING * PAGE_S)
    assert len(eve.all(c.TopicList)) + len(eve.all(c.Error)) == 2 * MAX_LISTS_WAITING
    assert eve.closed is None


def test_requests_of_a_client_that_left_are_dropped() -> None:
    world = crowded()
    eve = world.client("eve")
    ask(eve, 100)
    world.run()
    eve.die()
    world.pass_s(2 * PAGE_S)
    assert world.server.broker.lists.due_us is None


def test_a_bad_request_in_the_queue_is_answered_with_its_error() -> None:
    world = crowded()
    eve = world.client("eve")
    ask(eve, 30)
    eve.say(c.Topics(request=99, filter="a/#/b"))
    world.run()
    world.pass_s(31 * PAGE_S)
    (error,) = eve.all(c.Error)
    assert (error.request, error.code) == (99, Code.BAD_FILTER)
