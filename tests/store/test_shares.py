"""The topics of a block."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.store.packing import DamagedBlockError, join_sealed
from godwit.store.shares import TopicShare, decode_topics, encode_topics

SHARES = st.builds(
    TopicShare, st.text(st.characters(codec="utf-8")), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
)


@given(st.lists(SHARES))
def test_shares_come_back(shares: list[TopicShare]) -> None:
    assert decode_topics(encode_topics(shares)) == shares


@given(st.lists(SHARES, max_size=3), st.data())
def test_other_bytes_are_damaged(shares: list[TopicShare], data: st.DataObject) -> None:
    encoded = bytearray(encode_topics(shares))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedBlockError):
        decode_topics(bytes(encoded))
    with suppress(DamagedBlockError):
        decode_topics(join_sealed([bytes(encoded[:-4])]))
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(DamagedBlockError):
        decode_topics(encode_topics(shares)[:cut])
