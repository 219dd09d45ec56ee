"""Which topics a request is about."""

from __future__ import annotations

import pytest
from tests.archive import logs

from godwit.archive import choosing
from godwit.store.block import encode_blocks, encode_topic_index
from godwit.store.reader import TopicSelection


def table(*topics: str) -> bytes:
    (row,) = encode_blocks([logs.make_entry(topic) for topic in topics], 0)
    return row.topics


def test_filters_and_topics() -> None:
    chosen = TopicSelection(["home/+", "x"])
    assert chosen.among(["home/a", "home/a/b", "x", "y"]) == [True, False, True, False]
    assert not chosen.is_everything


def test_no_filter_is_everything_and_hash_is_not() -> None:
    assert TopicSelection([]).is_everything
    assert TopicSelection([]).has("$jobs/build")
    assert not TopicSelection(["#"]).has("$jobs/build")
    assert TopicSelection(["#"]).has("home")


def test_blocks_that_concern_nobody_are_known_by_their_topics() -> None:
    chosen = TopicSelection(["home/#"])
    assert chosen.concerns(table("a", "home/x"))
    assert not chosen.concerns(table("a", "b"))
    assert TopicSelection([]).concerns(table("a"))


def test_a_table_that_says_nothing_may_hold_anything() -> None:
    """What is damaged is read, so that it is told."""
    chosen = TopicSelection(["home/#"])
    assert chosen.concerns(table("a")[:-1])
    assert chosen.concerns(encode_topic_index([]))


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "MAX_REMEMBERED", 3)
    chosen = TopicSelection(["t/+"])
    for number in range(20):
        assert chosen.has(f"t/{number}")
        assert not chosen.has(f"u/{number}")
        assert len(chosen._known) <= 3
