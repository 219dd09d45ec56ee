"""A train gives its datagrams back as they were laid into it."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.transport.events import Train

ADDRESS = ("192.0.2.1", 4000)


@pytest.mark.parametrize(
    ("data", "segment_bytes", "expected"),
    [
        (b"", 10, []),
        (b"abc", 10, [b"abc"]),
        (b"abc", 3, [b"abc"]),
        (b"abcdef", 3, [b"abc", b"def"]),
        (b"abcdefg", 3, [b"abc", b"def", b"g"]),
        (b"abc", 1, [b"a", b"b", b"c"]),
    ],
)
def test_cuts_into_segments_and_a_shorter_last(data: bytes, segment_bytes: int, expected: list[bytes]) -> None:
    assert list(Train(ADDRESS, data, segment_bytes).datagrams()) == expected


@given(st.binary(max_size=2000), st.integers(1, 2500))
def test_loses_and_adds_nothing(data: bytes, segment_bytes: int) -> None:
    datagrams = list(Train(ADDRESS, data, segment_bytes).datagrams())
    assert b"".join(datagrams) == data
    assert all(len(datagram) == segment_bytes for datagram in datagrams[:-1])
    assert all(0 < len(datagram) <= segment_bytes for datagram in datagrams[-1:])


def test_a_lone_datagram_is_not_copied() -> None:
    train = Train(ADDRESS, b"x" * 1200, 1200)
    assert next(train.datagrams()) is train.data


def test_is_a_value_that_cannot_change() -> None:
    train = Train(ADDRESS, b"abc", 2)
    assert train == Train(ADDRESS, b"abc", 2)
    assert hash(train) == hash(Train(ADDRESS, b"abc", 2))
    with pytest.raises(AttributeError):
        train.data = b""  # type: ignore[misc]


def test_costs_the_garbage_collector_nothing() -> None:
    assert not gc.is_tracked(Train(ADDRESS, b"abc", 2))
