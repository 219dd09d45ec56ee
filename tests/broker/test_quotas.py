"""Limits of one client: rates with a burst, deferred credit, amounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.durable import DurableWorld
from tests.broker.world import Peer, World

from godwit.broker.access import Access, Rule
from godwit.broker.catalogue import RETAINED_COST_BYTES
from godwit.broker.quotas import UNPROVED, Bucket, Usage, over_quota, owner_of
from godwit.broker.settings import Settings
from godwit.wire import control as c
from godwit.wire.control import encode_control
from godwit.wire.control_base import Code

ALL = Rule(clients=("*",), allow=frozenset(("publish", "subscribe", "create")), topics=("#",))
SECRET = b"a long enough secret"
LISTED = Access(secrets={"alice": SECRET}, rules=(ALL,), allows_anonymous=True)
ROOM = 2 * (RETAINED_COST_BYTES + 100)
"""For two retained messages of 100 bytes."""


def retain(peer: Peer, topic: str, payload: bytes = bytes(100)) -> c.PublishRefused | None:
    """Publishes a retained message; returns why it was refused, if it was."""
    refusals = len(peer.all(c.PublishRefused))
    peer.publish(peer.open(topic), payload, retain=True)
    found = peer.all(c.PublishRefused)[refusals:]
    return found[0] if found else None


def test_who_something_counts_for() -> None:
    open_access, listed = Access.open(), LISTED
    assert owner_of("bob", open_access) == "bob"
    assert owner_of("anonymous-12", open_access) == UNPROVED
    assert owner_of("alice", listed) == "alice"
    assert owner_of("bob", listed) == owner_of("anonymous-12", listed) == UNPROVED


def test_usage_forgets_who_has_nothing() -> None:
    usage = Usage()
    usage.add("a", 5)
    usage.add("a", -2)
    assert (usage.of("a"), usage.of("b")) == (3, 0)
    usage.add("a", -3)
    assert usage._amounts == {}


def test_the_text_names_the_quota_and_what_to_do() -> None:
    text = over_quota("bob", "topics", 1000, "topics_per_client", "use those that exist")
    assert text == (
        "client 'bob' may have at most 1,000 topics on this broker: use those that exist, "
        "or have its operator raise limits.topics_per_client"
    )
    assert over_quota(UNPROVED, "x", 1, "y", "z").startswith("all clients together that have not proved a name may")


# -- retained messages ------------------------------------------------------------------------------------------------


def test_a_client_has_a_quota_of_retained_bytes() -> None:
    world = World(Settings(max_client_retained_bytes=ROOM))
    alice, bob = world.client("alice"), world.client("bob")
    assert retain(alice, "a/1") is None
    assert retain(alice, "a/2") is None
    refused = retain(alice, "a/3")
    assert refused is not None
    assert refused.code == Code.TOO_MANY
    assert "client 'alice'" in refused.text
    assert "limits.client_retained_bytes" in refused.text
    assert retain(bob, "b/1") is None, "others have their own"
    assert retain(alice, "a/2", b"shorter") is None, "another one in the place of the last is fine"
    assert retain(alice, "a/1", b"") is None
    assert retain(alice, "a/3", bytes(90)) is None


def test_a_message_that_another_client_replaces_counts_for_that_one() -> None:
    world = World(Settings(max_client_retained_bytes=ROOM))
    alice, bob = world.client("alice"), world.client("bob")
    assert retain(alice, "a/1") is None
    assert retain(alice, "a/2") is None
    assert retain(bob, "a/1") is None
    assert retain(alice, "a/3") is None
    assert retain(bob, "b/1") is None
    assert retain(bob, "a/2") is not None


def test_retained_bytes_are_known_after_a_restart() -> None:
    world = DurableWorld(Settings(max_client_retained_bytes=ROOM))
    alice = world.client("alice")
    assert retain(alice, "a/1") is None
    assert retain(alice, "a/2") is None
    world.restart()
    alice, bob = world.client("alice"), world.client("bob")
    assert retain(alice, "a/3") is not None
    assert retain(bob, "b/1") is None


def test_nameless_clients_share_one_quota() -> None:
    world = World(Settings(max_client_retained_bytes=ROOM))
    assert retain(world.client(), "a/1") is None
    assert retain(world.client(), "a/2") is None
    assert retain(world.client(), "a/3") is not None
    assert retain(world.client("named"), "a/3") is None


def test_where_names_are_listed_all_others_share_one_quota_until_they_are_listed() -> None:
    world = World(Settings(max_client_retained_bytes=ROOM, access=LISTED))
    assert retain(world.client("bob"), "a/1") is None
    assert retain(world.client("carol"), "a/2") is None
    assert retain(world.client("dave"), "a/3") is not None
    assert retain(world.client("alice", secret=SECRET), "a/3") is None
    world.server.change_settings(Settings(max_client_retained_bytes=ROOM))
    assert retain(world.client("erin"), "a/4") is None


# -- topics -----------------------------------------------------------------------------------------------------------


def held_topic(peer: Peer, topic: str) -> None:
    """One that is not forgotten while others need room."""
    peer.expect(c.Create(request=peer.number() + 1000, topic=topic), c.Done)


def test_a_client_has_a_quota_of_topics_however_it_creates_them() -> None:
    world = World(Settings(max_topics_per_client=2))
    alice, bob = world.client("alice"), world.client("bob")
    held_topic(alice, "a/1")
    held_topic(alice, "a/2")
    error = alice.expect(c.Create(request=50, topic="a/3"), c.Error)
    assert error.code == Code.TOO_MANY
    assert "limits.topics_per_client" in error.text
    assert alice.refused_open("a/3") is Code.TOO_MANY
    assert alice.refused_subscribe("a/3") is Code.TOO_MANY
    alice.open("a/1")
    held_topic(bob, "b/1")
    alice.open("b/1")


def test_topics_that_are_no_longer_used_make_room_for_new_ones_of_the_same_client() -> None:
    world = World(Settings(max_topics_per_client=16))
    alice, bob = world.client("alice"), world.client("bob")
    bob.publish(bob.open("b/1"), b"x")
    for number in range(300):
        channel = alice.open(f"a/{number}")
        alice.publish(channel, b"x")
        alice.record(channel, b"", last=True)
        world.run()
    catalogue = world.server.broker._catalogue
    assert catalogue.get("b/1") is not None
    assert catalogue.get("a/299") is not None
    assert 14 <= catalogue._topics_of.of("alice") <= 16


def test_after_a_restart_topics_count_for_the_first_client_that_publishes_to_them() -> None:
    world = DurableWorld(Settings(max_topics_per_client=2))
    alice = world.client("alice")
    held_topic(alice, "a/1")
    held_topic(alice, "a/2")
    world.restart()
    alice = world.client("alice")
    alice.open("a/1")
    alice.open("a/2")
    assert alice.refusal(c.Create(request=50, topic="a/3")) is Code.TOO_MANY


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_host_has_a_quota_of_sessions_under_names_that_were_not_proved() -> None:
    world = World(Settings(max_sessions_per_host=2, access=LISTED))
    for name in ("bob", "carol"):
        client = world.client(name, session_expiry_s=1000)
        client.subscribe("news")
        client.die()
    late = world.peer()
    late.try_login("dave")
    assert late.closed is not None
    assert late.end is Code.TOO_MANY
    assert "limits.sessions_per_host" in late.closed[1]
    assert world.client("bob").closed is None, "it has its session already"
    assert world.client().closed is None, "a nameless client leaves none"
    assert world.client("alice", secret=SECRET).closed is None
    elsewhere = world.peer("198.51.100.7")
    elsewhere.try_login("dave")
    assert elsewhere.closed is None


def test_a_session_that_ends_or_moves_makes_room() -> None:
    world = World(Settings(max_sessions_per_host=1))
    bob = world.client("bob")
    late = world.peer()
    late.try_login("carol")
    assert late.end is Code.TOO_MANY
    bob.leave()
    carol = world.client("carol", session_expiry_s=1000, instance=b"c" * 16)
    carol.subscribe("news")
    moved = world.peer("198.51.100.7")
    moved.login("carol", instance=b"c" * 16)
    assert world.client("dave").closed is None
    assert world.server.broker.sessions.of_host("198.51.100.7") == 1


@pytest.mark.parametrize("name", ["max_client_retained_bytes", "max_topics_per_client", "max_sessions_per_host"])
def test_the_defaults_leave_half_to_others(name: str) -> None:
    totals = {
        "max_client_retained_bytes": "max_retained_bytes",
        "max_topics_per_client": "max_topics",
        "max_sessions_per_host": "max_sessions",
    }
    assert getattr(Settings(), name) * 2 == getattr(Settings(), totals[name])


# -- rate -------------------------------------------------------------------------------------------------------------


def test_a_burst_then_the_rate() -> None:
    bucket = Bucket(10, 5, 0)
    assert all(bucket.take(1, 0) for _ in range(5))
    assert not bucket.take(1, 0)
    assert bucket.due_us == 100_001
    assert bucket.take(1, 200_000)


def test_it_holds_no_more_than_its_burst() -> None:
    bucket = Bucket(10, 5, 0)
    assert not bucket.take(6, 10**9)


def test_time_that_goes_backwards_gives_nothing() -> None:
    bucket = Bucket(1, 1, 1_000_000)
    assert bucket.take(1, 1_000_000)
    assert not bucket.take(1, 0)
    assert bucket.due_us > 1_000_000


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10**7)), max_size=50))
def test_never_more_than_rate_and_burst(steps: list[tuple[int, int]]) -> None:
    bucket = Bucket(3, 7, 0)
    now_us = taken = 0
    for count, wait_us in steps:
        now_us += wait_us
        if bucket.take(count, now_us):
            taken += count
    assert taken <= 7 + 3 * now_us / 1e6 + 1e-6


def test_what_is_there_can_be_looked_at_without_taking_it() -> None:
    bucket = Bucket(1, 2, 0)
    assert bucket.has(2, 0)
    assert not bucket.has(3, 0)
    assert bucket.take(2, 0)
    assert not bucket.has(1, 999_999)
    assert bucket.has(1, 1_000_000)


# -- pace -------------------------------------------------------------------------------------------------------------


def test_a_client_above_its_rate_gets_its_credit_later() -> None:
    world = World(Settings(messages_per_s=10))
    alice, bob = world.client("alice"), world.client("bob")
    channel = alice.open("news")
    for _ in range(25):
        alice.publish(channel, b"x")
    paid = alice.consumed[channel]
    assert alice.confirmed[channel][0] == 25  # safe all the same
    world.pass_s(2)
    assert alice.consumed[channel] > paid
    other = bob.open("news")
    bob.publish(other, b"x")
    assert bob.consumed[other] == len(encode_control(c.PublishOpen(topic="news"))) + 10


def test_above_the_rate_what_may_be_lost_is_dropped() -> None:
    world = World(Settings(messages_per_s=10))
    alice, bob = world.client("alice"), world.client("bob")
    bob.subscribe("news")
    channel = alice.open("news", 0)
    for _ in range(25):
        alice.publish(channel, b"x", qos=0, reliable=False)
    assert len(bob.got) == 10
    assert world.server.broker.figures()["messages/dropped"] == 15


def test_a_live_publisher_beyond_its_rate_gets_its_credit_back_without_help_of_others() -> None:
    world = World(Settings(messages_per_s=10))
    alice = world.client("alice")
    channel = alice.open("news", 0)
    before = alice.consumed[channel]
    for _ in range(30):
        alice.publish(channel, b"x" * 20, qos=0)
    assert alice.consumed[channel] - before < 30 * 29
    world.pass_s(10)
    assert alice.consumed[channel] - before == 30 * 29


def test_who_is_gone_is_owed_nothing() -> None:
    world = World(Settings(messages_per_s=10))
    alice = world.client("alice")
    channel = alice.open("news")
    for _ in range(30):
        alice.publish(channel, b"x")
    paid = alice.consumed[channel]
    owing = [bool(world.server.broker.deferred_credit.waiting)]
    alice.leave()
    world.pass_s(10)
    assert [*owing, bool(world.server.broker.deferred_credit.waiting)] == [True, False]
    assert alice.consumed[channel] == paid
