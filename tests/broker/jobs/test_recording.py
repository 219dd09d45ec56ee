"""What happens to jobs, on `$jobs/<kind>` and in the log with the change itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.broker.durable import DurableWorld
from tests.broker.jobs.hands import Hand
from tests.broker.world import Peer, World

from godwit.broker.access import Access, Rule
from godwit.broker.jobs import recording
from godwit.broker.settings import Settings
from godwit.wire import changes as ch
from godwit.wire.control_base import Code


def told(peer: Peer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(got.payload) for got in peer.got]


@pytest.mark.parametrize("kind_of_world", [World, DurableWorld])
def test_subscribers_hear_everything_but_progress(kind_of_world: type[World]) -> None:
    world = kind_of_world()
    eve = world.client("eve")
    eve.subscribe("$jobs/#")
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("print/colour")
    ann.submit("print/colour", b"x", retry_delay_ms=0)
    bob.fail(*bob.leases, error="out of ink")
    bob.finish(bob.leases[-1])
    assert [event["event"] for event in told(eve)] == ["submitted", "leased", "failed", "leased", "finished", "done"]
    assert {(got.topic, got.publisher, got.qos) for got in eve.got} == {("$jobs/print/colour", "$broker", 1)}
    assert told(eve)[2]["error"] == "out of ink"
    assert all(event["job"] == 1 and event["controller"] == "ann" for event in told(eve))


def test_a_turn_is_one_batch_of_each_kind_in_the_same_append_as_the_change() -> None:
    world = DurableWorld()
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("a", "b", capacity=9)
    ann.submit("a", b"1", b"2", run=False)
    ann.submit("b", b"3")
    entries, changes = world.keeping.appends[-1]
    assert [(entry.topic, entry.count) for entry in entries] == [("$jobs/a", 4), ("$jobs/b", 2)]
    kept = [change.job for change in changes if isinstance(change, ch.JobKept)]
    assert kept == [1, 2, 3]
    assert [type(change) for change in changes if not isinstance(change, ch.TopicKept)] == [
        ch.NextJob, *[ch.JobKept] * 3, *[ch.JobPayload] * 3, *[ch.TaskKept] * 3,
    ]  # fmt: skip


def test_very_many_events_are_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MESSAGES_A_BATCH", 4)
    world = DurableWorld()
    ann = Hand.of(world, "ann")
    ann.submit("a", *(b"%d" % number for number in range(10)))
    entries, _ = world.keeping.appends[-1]
    assert [entry.count for entry in entries] == [4, 4, 2]
    eve = world.client("eve")
    eve.subscribe("$jobs/a", start="earliest")
    assert [event["job"] for event in told(eve)] == list(range(1, 11))


def test_events_of_an_append_that_failed_are_written_with_the_change_later() -> None:
    world = DurableWorld()
    eve = world.client("eve")
    eve.subscribe("$jobs/#")
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize")
    ann.submit("resize", b"x")
    before = len(eve.got)
    world.hold()
    bob.finish(*bob.leases)
    world.fail()
    assert len(eve.got) == before
    ann.submit("resize", b"y")  # goes with whatever else is written
    assert [(event["job"], event["event"]) for event in told(eve)[before:]] == [
        (1, "finished"), (1, "done"), (2, "submitted"), (2, "leased"),
    ]  # fmt: skip
    assert world.keeping.of("job")[1].state == "done"


def test_a_job_that_was_discarded_is_never_told_of() -> None:
    world = DurableWorld()
    eve = world.client("eve")
    eve.subscribe("$jobs/#")
    ann, bob = Hand.of(world, "ann"), Hand.of(world, "bob")
    bob.volunteer("resize", capacity=2)
    ann.submit("resize", b"x")
    world.hold()
    bob.finish(*bob.leases, run=False)
    ann.submit("resize", b"y")
    world.fail()
    world.pass_s(2)
    assert [(event["job"], event["event"]) for event in told(eve)] == [
        (1, "submitted"), (1, "leased"), (1, "finished"), (1, "done"),
    ]  # fmt: skip


def test_the_right_to_subscribe_is_needed() -> None:
    rules = (
        Rule(clients=("*",), allow=frozenset(("submit",)), topics=("#",)),
        Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("#", "$jobs/open")),
    )
    world = World(Settings(access=Access(rules=rules)))
    eve = world.client("eve")
    assert eve.refused_subscribe("$jobs/#") == Code.NOT_ALLOWED
    eve.subscribe("$jobs/open")
    eve.subscribe("#")
    ann = Hand.of(world, "ann")
    ann.submit("open", b"x")
    ann.submit("secret", b"x")
    assert [event["job"] for event in told(eve)] == [1]


@pytest.mark.parametrize("policy", ["open", "publishers", "explicit"])
def test_a_kind_can_be_subscribed_to_before_the_first_job(policy: str) -> None:
    world = World(Settings(default_policy=policy))  # type: ignore[arg-type]
    eve = world.client("eve")
    eve.subscribe("$jobs/resize")
    Hand.of(world, "ann").submit("resize", b"x")
    assert [event["event"] for event in told(eve)] == ["submitted"]


def test_nobody_publishes_under_jobs_himself() -> None:
    eve = World().client("eve")
    assert eve.refused_open("$jobs/resize") == Code.NOT_ALLOWED
