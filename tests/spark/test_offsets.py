"""Offsets: shares of a limit, ranges of equal length, and positions in checkpoints."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.spark.offsets import (
    MAX_EPOCHS,
    MIN_PARTITION_ROWS,
    Position,
    Range,
    epochs_below,
    parse,
    partition_count,
    same_below,
    share_limit,
    split,
)
from godwit.wire.epochs import MAX_EPOCHS_TOLD, Epoch
from godwit.wire.epochs import same_below as same_below_of_broker

A, B, C = (letter * 32 for letter in "abc")
lags = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 10**7), max_size=3)
ranges = st.lists(
    st.builds(lambda log, start, rows: Range(log, start, start + rows), st.sampled_from([A, B, C]),
              st.integers(0, 10**6), st.integers(0, 10**6)),
    max_size=3,
)  # fmt: skip


@given(st.integers(1, 10**6), lags)
def test_shares_use_up_the_limit_and_never_more_than_there_is(limit: int, lags: dict[str, int]) -> None:
    found = share_limit(limit, lags)
    assert all(0 <= found[log] <= lags[log] for log in found)
    assert sum(found.values()) == min(limit, sum(lags.values()))


@given(st.integers(3, 10**6), lags)
def test_each_log_with_a_lag_gets_a_share(limit: int, lags: dict[str, int]) -> None:
    assert all(share_limit(limit, lags)[log] > 0 for log, lag in lags.items() if lag)


def test_shares_are_in_proportion_to_the_lag() -> None:
    assert share_limit(100, {A: 9001, B: 1001, C: 0}) == {A: 89, B: 11}
    assert share_limit(2, {A: 1000, B: 1}) == {A: 1, B: 1}


@given(ranges, st.integers(1, 50))
def test_split_ranges_have_the_same_rows_once_and_similar_lengths(ranges: list[Range], parts: int) -> None:
    pieces = split(ranges, parts)
    assert all(piece.rows > 0 for piece in pieces)
    for log in (A, B, C):
        offsets = [(one.start, one.end) for one in ranges if one.log == log and one.rows]
        again = [(one.start, one.end) for one in pieces if one.log == log]
        assert sum(end - start for start, end in again) == sum(end - start for start, end in offsets)
        assert {start for start, _ in offsets} <= {start for start, _ in again}
    if len(ranges) == 1 and pieces:
        lengths = [piece.rows for piece in pieces]
        assert max(lengths) - min(lengths) <= 1
        assert len(pieces) == min(parts, ranges[0].rows)


def test_the_number_of_partitions() -> None:
    assert partition_count(10, 8, None) == 1
    assert partition_count(3 * MIN_PARTITION_ROWS, 8, None) == 3
    assert partition_count(100 * MIN_PARTITION_ROWS, 8, None) == 8
    assert partition_count(10, 8, 5) == 5


def test_a_position_comes_back_from_the_checkpoint() -> None:
    position = Position({A: 5, B: 0}, {A: 3}, {B: 0})
    plain = position.to_dict()
    assert plain == {A: 5, B: 0, "gaps": {A: 3}, "begins": {B: 0}}
    assert Position.from_dict(plain) == position
    assert Position({A: 5}, {}, {}).to_dict() == {A: 5}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("yesterday", "'earliest', 'latest', or JSON"),
        ("[1]", "must be an object"),
        ('{"abc": 1}', "'abc' is not a log id"),
        (f'{{"{A}": -1}}', "-1 is not a valid offset"),
        (f'{{"{A}": true}}', "True is not a valid offset"),
        (f'{{"{A}": "1"}}', "'1' is not a valid offset"),
    ],
)
def test_invalid_offsets_are_explained(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="startingOffsets") as raised:
        parse("startingOffsets", text)
    assert complaint in str(raised.value)


def test_offsets_as_words_and_for_each_log() -> None:
    assert parse("startingOffsets", " Earliest ") == "earliest"
    assert parse("startingOffsets", f'{{"{A}": 7}}') == {A: 7}


def test_epochs_come_back_from_the_checkpoint_and_older_ones_have_none() -> None:
    position = Position({A: 5}, {}, {}, {A: [("0011223344556677", 0), ("8899aabbccddeeff", 3)]})
    plain = json.loads(json.dumps(position.to_dict()))
    assert plain == {A: 5, "epochs": {A: [["0011223344556677", 0], ["8899aabbccddeeff", 3]]}}
    assert Position.from_dict(plain) == position
    assert Position.from_dict({A: 5}).epochs == {}
    for wrong in ([1], [["a", "b"]], [["a"]], 5, "ab"):
        with pytest.raises(ValueError, match="is not a list of epochs"):
            Position.from_dict({A: 5, "epochs": {A: wrong}})


def test_the_newest_epochs_below_an_offset() -> None:
    epochs = [(f"{number:016x}", 10 * number) for number in range(30)]
    assert epochs_below(epochs, 0) == []
    assert epochs_below(epochs, 1) == epochs[:1]
    assert epochs_below(epochs, 11) == epochs[:2]
    assert MAX_EPOCHS <= MAX_EPOCHS_TOLD  # the limit of a request to the archive
    assert epochs_below(epochs, 200) == epochs[20 - MAX_EPOCHS : 20]


EPOCHS = st.lists(
    st.tuples(st.sampled_from([bytes([letter]) * 8 for letter in b"abcd"]), st.integers(0, 9)), max_size=5
)


@given(EPOCHS, EPOCHS, st.integers(0, 12))
def test_it_compares_as_the_broker_does(
    known: list[tuple[bytes, int]], epochs: list[tuple[bytes, int]], next_offset: int
) -> None:
    """The source has a copy of the function, because executors do not have the rest of Godwit."""
    theirs = same_below_of_broker([Epoch(*one) for one in known], [Epoch(*one) for one in epochs], next_offset)
    ours = [[(id_.hex(), first_offset) for id_, first_offset in one] for one in (known, epochs)]
    assert same_below(ours[0], ours[1], next_offset) == theirs
