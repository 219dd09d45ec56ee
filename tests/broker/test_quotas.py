"""No client has all of what is there for everybody, and an error says whose quota it is and what to do."""

from __future__ import annotations

import pytest
from tests.broker.durable import DurableWorld
from tests.broker.world import Peer, World

from godwit.broker.access import Access, Rule
from godwit.broker.catalogue import RETAINED_COST_BYTES
from godwit.broker.quotas import UNPROVED, Usage, over_quota, owner_of
from godwit.broker.settings import Settings
from godwit.wire import control as c
from godwit.wire.control import Code

ALL = Rule(clients=("*",), allow=frozenset(("publish", "subscribe", "create")), topics=("#",))
SECRET = b"a long enough secret"
LISTED = Access(secrets={"alice": SECRET}, rules=(ALL,), allows_anonymous=True)
ROOM = 2 * (RETAINED_COST_BYTES + 100)
"""For two retained messages of 100 bytes."""


def retain(peer: Peer, topic: str, payload: bytes = bytes(100)) -> c.Refused | None:
    """Publishes a retained message; returns why it was refused, if it was."""
    refusals = len(peer.all(c.Refused))
    peer.publish(peer.open(topic), payload, retain=True)
    found = peer.all(c.Refused)[refusals:]
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
