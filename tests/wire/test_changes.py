"""State rows and deletions: plain values with a key each, which may gain fields."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from godwit.wire import changes as ch
from godwit.wire.changes import Change, StoredState
from godwit.wire.control import Will
from godwit.wire.epochs import Epoch

CHANGES = (
    ch.TopicRow("a", 1, 2, 3, True),
    ch.TopicDeleted("a"),
    ch.RetainedRow("a", b"x", "p", 1, 2, 1, 7),
    ch.SessionRow("bob", bytes(16), True, 60, None, Will(topic="a", payload=b"x", qos=2)),
    ch.SessionDeleted("bob"),
    ch.SubscriptionRow("bob", ("a", "b/#"), "mine", 7, 2),
    ch.SubscriptionDeleted("bob", ("a", "b/#"), "mine"),
    ch.FilterRow("bob", "a/#", 3, 7, 1, 9),
    ch.FilterDeleted("bob", "a/#"),
    ch.PacketRow("bob", True, 7),
    ch.PacketDeleted("bob", True, 7),
    ch.IdentityRow("bob", "p", "a", 1, 2, 3),
    ch.IdentityDeleted("bob", "p", "a"),
    ch.QueryRow("q", 4, 5),
    ch.QueryDeleted("q"),
    ch.RelayRow("edge", bytes(16), 7, (Epoch(bytes(8), 3),), 5),
    ch.JobRow(7, "bob", "k", "resize", 2, 0, 1, 1, None, 3, 1000, None, "running", 2, None),
    ch.JobPayloadRow(7, b"x"),
    ch.JobDeleted(7),
    ch.TaskRow(7, 1, "leased", "anna", bytes(16), 1, 0, 0, 1, 2, ("anna",), b"", ""),
    ch.NextJobRow(8),
)


def test_every_kind_is_here() -> None:
    assert {type(change) for change in CHANGES} == set(get_args(Change))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_a_value(change: Change) -> None:
    with pytest.raises(AttributeError):
        setattr(change, change.__struct_fields__[0], "another")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=type(change)) == change


def test_a_deletion_has_the_key_of_its_row() -> None:
    for row, deletion in (
        (ch.TopicRow, ch.TopicDeleted),
        (ch.SessionRow, ch.SessionDeleted),
        (ch.SubscriptionRow, ch.SubscriptionDeleted),
        (ch.FilterRow, ch.FilterDeleted),
        (ch.PacketRow, ch.PacketDeleted),
        (ch.IdentityRow, ch.IdentityDeleted),
        (ch.QueryRow, ch.QueryDeleted),
        (ch.JobRow, ch.JobDeleted),
        (ch.JobPayloadRow, ch.JobDeleted),
        (ch.TaskRow, ch.JobDeleted),
    ):
        key = deletion.__struct_fields__
        assert row.__struct_fields__[: len(key)] == key


def test_a_state_begins_empty_and_shares_nothing() -> None:
    one, other = StoredState(), StoredState()
    one.topics.append(ch.TopicRow("a"))
    one.queries.append(ch.QueryRow("q", 1))
    one.retention_floors["a"] = 1
    one.jobs.append(ch.JobRow(7, "bob", "k", "resize", 2, 0, 1, 1, None, 3, 1000, None, "running", 2, None))
    one.payloads.append(ch.JobPayloadRow(7, b"x"))
    one.tasks.append(ch.TaskRow(7, 1, "leased", "anna", bytes(16), 1, 0, 0, 1, 2))
    assert other == StoredState()


def test_a_row_gains_fields_without_a_migration() -> None:
    """A row that was stored before has the defaults; a row of a newer version loses what is unknown."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(["bob", ["a"], None, 7]), type=ch.SubscriptionRow) == (
        ch.SubscriptionRow("bob", ("a",), None, 7)
    )
    newer = [*msgspec.to_builtins(ch.QueryRow("q", 4, 5)), {"added": "later"}]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(newer), type=ch.QueryRow) == ch.QueryRow("q", 4, 5)


def test_every_row_can_gain_fields() -> None:
    for row_type in get_args(ch.StateRow):
        assert row_type.__struct_config__.array_like
