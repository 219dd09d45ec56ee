"""What broker and store hand to each other beside the batches: plain values, with a key each."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from godwit.wire import changes as ch
from godwit.wire.changes import Change, State
from godwit.wire.control import Will

KEPT = (
    ch.TopicKept("a", 1, 2, 3, True),
    ch.TopicGone("a"),
    ch.RetainedKept("a", b"x", "p", 1, 2, 1, 7),
    ch.SessionKept("bob", bytes(16), True, 60, None, Will(topic="a", payload=b"x", qos=2)),
    ch.SessionGone("bob"),
    ch.FeedKept("bob", ("a", "b/#"), "mine", 7, 2),
    ch.FeedGone("bob", ("a", "b/#"), "mine"),
    ch.IdentityKept("bob", "p", "a", 1, 2, 3),
    ch.IdentityGone("bob", "p", "a"),
    ch.QueryDone("q", 4, 5),
    ch.QueryGone("q"),
    ch.JobKept(7, "bob", "k", "resize", 2, 0, 1, 1, None, 3, 1000, None, "running", 2, None),
    ch.JobPayload(7, b"x"),
    ch.JobGone(7),
    ch.TaskKept(7, 1, "leased", "anna", bytes(16), 1, 0, 0, 1, 2, ("anna",), b"", ""),
    ch.NextJob(8),
)


def test_every_kind_is_here() -> None:
    assert {type(change) for change in KEPT} == set(get_args(Change))


@pytest.mark.parametrize("change", KEPT)
def test_a_change_is_a_value(change: Change) -> None:
    with pytest.raises(AttributeError):
        setattr(change, change.__struct_fields__[0], "another")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=type(change)) == change


def test_what_is_gone_has_the_key_of_what_was_kept() -> None:
    for kept, gone in (
        (ch.TopicKept, ch.TopicGone),
        (ch.SessionKept, ch.SessionGone),
        (ch.FeedKept, ch.FeedGone),
        (ch.IdentityKept, ch.IdentityGone),
        (ch.QueryDone, ch.QueryGone),
        (ch.JobKept, ch.JobGone),
        (ch.JobPayload, ch.JobGone),
        (ch.TaskKept, ch.JobGone),
    ):
        key = gone.__struct_fields__
        assert kept.__struct_fields__[: len(key)] == key


def test_a_state_begins_empty_and_shares_nothing() -> None:
    one, other = State(), State()
    one.topics.append(ch.TopicKept("a"))
    one.queries.append(ch.QueryDone("q", 1))
    one.marks["a"] = 1
    one.jobs.append(ch.JobKept(7, "bob", "k", "resize", 2, 0, 1, 1, None, 3, 1000, None, "running", 2, None))
    one.payloads.append(ch.JobPayload(7, b"x"))
    one.tasks.append(ch.TaskKept(7, 1, "leased", "anna", bytes(16), 1, 0, 0, 1, 2))
    assert other == State()
