"""QoS 2: what is sent again is recognised, whatever the connection, the channel and the cutting into batches."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.durable import DurableWorld
from tests.broker.world import World

from godwit.broker import identities
from godwit.broker.dirty_state import DirtyState
from godwit.broker.identities import Identities
from godwit.limits import PUBLISHER_EXPIRY_S
from godwit.wire import control as c
from godwit.wire.changes import IdentityRow
from godwit.wire.control_base import Code

KEY = ("alice", "till", "orders")


def test_what_is_known_is_counted() -> None:
    known = Identities(DirtyState({}, is_durable=False))
    assert known.open(KEY, 0)
    assert known.record_sequences(KEY, 0, 0, 3, 0) == 0
    assert known.record_sequences(KEY, 0, 0, 3, 0) == 3
    assert known.record_sequences(KEY, 0, 1, 4, 0) == 2  # 1 and 2 are known, 3 and 4 are not
    assert known.record_sequences(KEY, 0, 9, 1, 0) == 0  # a gap is the publisher's affair
    progress = known.get(KEY)
    assert progress is not None
    assert (progress.epoch, progress.next_sequence) == (0, 10)


def test_a_higher_epoch_begins_anew_and_a_lower_one_is_over() -> None:
    known = Identities(DirtyState({}, is_durable=False))
    assert known.open(KEY, 1)
    assert known.record_sequences(KEY, 1, 0, 5, 0) == 0
    assert known.open(KEY, 2)
    assert known.record_sequences(KEY, 2, 0, 5, 0) == 0
    assert not known.open(KEY, 1)
    assert known.record_sequences(KEY, 1, 5, 1, 0) is None


def test_a_run_whose_publisher_was_forgotten_meanwhile_goes_on() -> None:
    known = Identities(DirtyState({}, is_durable=False))
    assert known.record_sequences(KEY, 5, 7, 2, 0) == 0  # its channel is still open
    assert known.open(KEY, 6)
    assert known.record_sequences(KEY, 8, 0, 2, 0) == 0  # so is that of a newer run
    assert known.record_sequences(KEY, 6, 0, 2, 0) is None


def test_after_a_restart_idle_time_begins_with_the_clock_of_this_broker() -> None:
    """It may be years ahead, also at each further restart."""
    idle, busy, new = ("alice", "idle", "orders"), ("alice", "busy", "orders"), ("bob", "till", "orders")
    known = Identities(DirtyState({}, is_durable=False))
    day_us = 24 * 3600 * 1_000_000
    now_us = 20 * 365 * day_us
    rows = [IdentityRow(*idle, 1, 5, day_us), IdentityRow(*busy, 1, 7, 6 * day_us)]
    known.restore(rows, now_us)
    assert known.record_sequences(new, 1, 0, 1, now_us) == 0  # deletes publishers that are due
    assert known.record_sequences(busy, 1, 5, 3, now_us) == 2
    assert known.get(idle) is not None

    later_us = now_us + day_us
    known = Identities(DirtyState({}, is_durable=False))
    known.restore([rows[0], IdentityRow(*busy, 1, 8, now_us), IdentityRow(*new, 1, 1, now_us)], later_us)
    assert known.record_sequences(("bob", "other", "orders"), 1, 0, 1, later_us) == 0
    assert known.record_sequences(idle, 1, 0, 5, later_us) == 5

    end_us = later_us + PUBLISHER_EXPIRY_S * 1_000_000
    assert known.record_sequences(("bob", "third", "orders"), 1, 0, 1, end_us) == 0
    assert known.get(busy) is None


def test_what_is_not_in_the_log_is_new_again() -> None:
    known = Identities(DirtyState({}, is_durable=True))
    assert known.record_sequences(KEY, 1, 0, 3, 0) == 0
    known.on_stored(KEY, 1, 2)
    known.rewind([KEY, ("never", "heard", "of")])
    assert known.record_sequences(KEY, 1, 0, 3, 0) == 2
    assert known.open(KEY, 2)
    assert known.record_sequences(KEY, 2, 0, 3, 0) == 0
    known.rewind([KEY])
    progress = known.get(KEY)
    assert progress is not None
    assert (progress.epoch, progress.next_sequence) == (2, 0)  # the older run stays retired


def test_what_was_silent_for_long_is_forgotten() -> None:
    known = Identities(DirtyState({}, is_durable=False))
    known.record_sequences(KEY, 0, 0, 1, 0)
    known.record_sequences(("bob", "x", "y"), 0, 0, 1, PUBLISHER_EXPIRY_S * 1_000_000 + 1)
    assert known.get(KEY) is None
    assert len(known) == 1


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "MAX_PUBLISHERS_REMEMBERED", 3)
    known = Identities(DirtyState({}, is_durable=False))
    for number in range(5):
        known.record_sequences(("alice", str(number), "t"), 0, 0, 1, number)
    assert len(known) == 3
    assert known.get(("alice", "1", "t")) is None
    assert known.get(("alice", "2", "t")) is not None


def test_one_owner_does_not_push_out_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "MAX_PUBLISHERS_REMEMBERED", 6)
    known = Identities(DirtyState({}, is_durable=False))
    few = [("bob", "1", "t"), ("carol", "1", "t"), ("carol", "2", "t")]
    for key in few:
        known.record_sequences(key, 0, 0, 1, 0)
    for number in range(50):
        known.record_sequences(("mallory", str(number), "t"), 0, 0, 1, number)
    assert len(known) == 6
    assert all(known.get(key) is not None for key in few)
    kept = [number for number in range(50) if known.get(("mallory", str(number), "t")) is not None]
    assert kept == [47, 48, 49]
    for number in range(4):  # each of the three has two in the end
        known.record_sequences(("bob", str(number), "t"), 0, 0, 1, 100)
    assert len(known) == 6
    assert [number for number in range(4) if known.get(("bob", str(number), "t")) is not None] == [2, 3]
    assert [number for number in range(50) if known.get(("mallory", str(number), "t")) is not None] == [48, 49]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=60))
def test_the_counts_of_owners_are_right(senders: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identities, "MAX_PUBLISHERS_REMEMBERED", 8)
        known = Identities(DirtyState({}, is_durable=False))
        for now_us, (owner, number) in enumerate(senders):
            known.record_sequences((owner, str(number), "t"), 0, 0, 1, now_us)
            counts = Counter(key[0] for key in known._known)
            assert {name: len(keys) for name, keys in known._of_owner.items()} == counts
            assert known._most == max(counts.values())
            assert {name: count for count, names in known._owners_with.items() for name in names} == counts
            assert len(known) <= 8


def test_an_open_alone_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves no row and pushes out no other publisher; yet a newer run retires one that has sent nothing either."""
    monkeypatch.setattr(identities, "MAX_OPENED", 3)
    world = DurableWorld()
    alice, bob = world.client("alice"), world.client("bob")
    alice.publish(alice.open("orders", 2, publisher="till", epoch=3), b"0", qos=2, sequence=0)
    for number in range(9):
        bob.open("orders", 2, publisher=f"p{number}", epoch=2**63 - 1)
    assert set(world.keeping.of("identity")) == {("alice", "till", "orders")}
    assert bob.refused_open("orders", 2, publisher="p8", epoch=1) is Code.STALE_EPOCH
    bob.open("orders", 2, publisher="p0", epoch=1)
    assert alice.refused_open("orders", 2, publisher="till", epoch=2) is Code.STALE_EPOCH


# -- through the broker -----------------------------------------------------------------------------------------------


def test_a_message_sent_again_is_confirmed_and_not_kept_twice() -> None:
    world = World()
    alice, bob = world.client("alice", session_expiry_s=100), world.client("bob")
    bob.subscribe("orders")
    channel = alice.open("orders", 2, publisher="till")
    alice.publish(channel, b"0", b"1", qos=2, sequence=0)
    alice.die()
    again = world.client("alice", session_expiry_s=100)
    channel = again.open("orders", 2, publisher="till")
    again.publish(channel, b"0", b"1", qos=2, sequence=0)
    assert again.confirmed[channel] == (1, 1)
    again.publish(channel, b"1", b"2", b"3", qos=2, sequence=1)  # its head is known
    assert again.confirmed[channel] == (2, 1)
    assert bob.payloads == [b"0", b"1", b"2", b"3"]
    assert [got.offset for got in bob.got] == [0, 1, 2, 3]


def test_a_repeat_is_not_confirmed_before_what_it_repeats() -> None:
    """Both come in one turn: the second brings nothing new, and waits in line all the same."""
    world = World()
    alice = world.client("alice")
    first, second = (alice.open("orders", 2, publisher="till") for _ in range(2))
    alice.publish(first, b"0", qos=2, sequence=0)
    alice.publish(second, b"0", qos=2, sequence=0)
    assert alice.confirmed[first] == alice.confirmed[second] == (1, 0)
    assert world.store.next_offset == 1


def test_an_identity_belongs_to_its_client_and_topic() -> None:
    world = World()
    for name, topic, identity in (("alice", "a", "x"), ("bob", "a", "x"), ("alice", "b", "x"), ("alice", "a", "y")):
        client = world.client(name)
        client.publish(client.open(topic, 2, publisher=identity), b"0", qos=2, sequence=0)
        client.leave()
    assert world.store.next_offset == 4


def test_without_an_identity_each_run_of_a_client_counts_for_itself() -> None:
    world = World()
    for instance in (b"a" * 16, b"a" * 16, b"b" * 16):
        client = world.client("alice", instance=instance)
        client.publish(client.open("orders", 2), b"0", qos=2, sequence=0)
        client.leave()
    assert world.store.next_offset == 2


def test_an_old_epoch_is_refused_also_in_the_middle() -> None:
    world = World()
    alice = world.client("alice")
    old = alice.open("orders", 2, publisher="till", epoch=1)
    alice.publish(old, b"0", qos=2, sequence=0)
    new = alice.open("orders", 2, publisher="till", epoch=2)
    alice.publish(new, b"0 of run 2", qos=2, sequence=0)
    alice.publish(old, b"1", qos=2, sequence=1)
    refused = alice.last(c.PublishRefused)
    assert (refused.channel, refused.code) == (old, Code.STALE_EPOCH)
    assert alice.refused_open("orders", 2, publisher="till", epoch=1) is Code.STALE_EPOCH
    assert world.store.next_offset == 2


def test_a_batch_of_qos_2_must_have_a_sequence() -> None:
    alice = World().client("alice")
    alice.publish(alice.open("orders", 2), b"0", qos=2)
    assert alice.end == Code.PROTOCOL


def test_progress_tells_where_to_go_on() -> None:
    world = World()
    alice = world.client("alice")
    ask = {"topic": "orders", "publisher": "till"}
    assert alice.expect(c.ProgressQuery(request=1, **ask), c.Progressed) == c.Progressed(request=1)
    alice.publish(alice.open("orders", 2, publisher="till", epoch=5), b"0", b"1", qos=2, sequence=0)
    expected = c.Progressed(request=2, epoch=5, next_sequence=2)
    assert alice.expect(c.ProgressQuery(request=2, **ask), c.Progressed) == expected
    bob = world.client("bob")
    assert bob.expect(c.ProgressQuery(request=1, **ask), c.Progressed) == c.Progressed(request=1)  # not his till
