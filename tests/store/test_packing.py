"""Columns and checksums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.store.packing import (
    DamagedBlockError,
    check_seal,
    cut_names,
    join_sealed,
    narrow,
    read_narrow,
    read_wide,
    wide,
)


@given(st.lists(st.integers(0, 2**32 - 1)), st.binary(max_size=9))
def test_columns_come_back(values: list[int], before: bytes) -> None:
    assert read_narrow(before + narrow(values), len(before), len(values)) == tuple(values)
    assert read_wide(before + wide(values), len(before), len(values)) == tuple(values)


@given(st.lists(st.binary(max_size=40)))
def test_the_seal_is_that_of_the_whole(pieces: list[bytes]) -> None:
    data = join_sealed(pieces)
    assert data[:-4] == b"".join(pieces)
    assert data == join_sealed([memoryview(b"".join(pieces))])
    check_seal(data)
    with pytest.raises(DamagedBlockError, match="checksum"):
        check_seal(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedBlockError):
        check_seal(data[:3])


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_names_are_cut_apart(names: list[str]) -> None:
    encoded = [name.encode() for name in names]
    assert cut_names(b"".join(encoded), list(map(len, encoded))) == names


@pytest.mark.parametrize(("data", "lengths"), [(b"abc", [2]), (b"abc", [2, 2]), (b"\xff", [1]), ("ä".encode(), [1, 1])])
def test_names_that_cannot_be(data: bytes, lengths: list[int]) -> None:
    with pytest.raises(DamagedBlockError):
        cut_names(data, lengths)
