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
    ):
        key = gone.__struct_fields__
        assert kept.__struct_fields__[: len(key)] == key


def test_a_state_begins_empty_and_shares_nothing() -> None:
    one, other = State(), State()
    one.topics.append(ch.TopicKept("a"))
    one.queries.append(ch.QueryDone("q", 1))
    one.marks["a"] = 1
    assert other == State()
