"""CBOR from outside: plain data of the right shape, or DecodeError."""

from __future__ import annotations

import math
import struct
import tracemalloc
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import damaged, value_or_refusal

from godwit.errors import DecodeError
from godwit.limits import MAX_CONTROL_DEPTH
from godwit.wire.cbor import decode, encode, load


class Thing(msgspec.Struct):
    """Takes anything, and a few things of a kind."""

    anything: Any = None
    number: int = 0
    amount: float = 0.0
    text: str = ""
    raw: bytes = b""


KEY = cbor2.dumps("anything")


def with_value(encoded: bytes) -> bytes:
    """A map whose one field is written as given."""
    return b"\xa1" + KEY + encoded


def anything(encoded: bytes) -> Any:
    return decode(with_value(encoded), Thing).anything


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def depth(value: object) -> int:
    match value:
        case list():
            return 1 + max(map(depth, value), default=0)
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
    return 0


# -- round trip -------------------------------------------------------------------------------------------------------


@given(plain)
def test_plain_data_comes_back(value: object) -> None:
    encoded = encode(Thing(anything=value))
    if depth(value) < MAX_CONTROL_DEPTH:
        assert decode(encoded, Thing).anything == value
    else:
        assert value_or_refusal(lambda data: decode(data, Thing), encoded) is None


def test_unknown_fields_are_ignored_whatever_they_hold() -> None:
    data = cbor2.dumps({"number": 5, "later": {"deep": [1, cbor2.undefined]}, "other": math.nan})
    assert decode(data, Thing) == Thing(number=5)


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"\xf9\x7c\x00", math.inf),
        (b"\xf9\xfc\x00", -math.inf),
        (b"\x1b" + b"\xff" * 8, 2**64 - 1),
        (b"\x3b" + b"\xff" * 8, -(2**64)),
        (b"\x1b" + bytes(7) + b"\x01", 1),  # not the shortest way to write it, but valid
        (b"\x60", ""),
        (b"\x40", b""),
    ],
)
def test_the_ends_of_what_plain_data_can_be(encoded: bytes, value: object) -> None:
    assert anything(encoded) == value


def test_not_a_number_is_a_number_but_no_integer() -> None:
    assert math.isnan(anything(b"\xf9\x7e\x00"))
    for special in (math.nan, math.inf, -math.inf, 1.0):
        with pytest.raises(DecodeError, match="Expected `int`, got `float`"):
            decode(cbor2.dumps({"number": special}), Thing)


# -- hostile input ----------------------------------------------------------------------------------------------------

things = st.builds(Thing, anything=plain, number=st.integers(-(2**64), 2**64 - 1), text=st.text(max_size=9)).map(encode)


@given(st.binary(max_size=100) | st.binary(max_size=100).map(with_value) | damaged(things))
def test_hostile_bytes_give_a_value_or_an_error(data: bytes) -> None:
    found = value_or_refusal(lambda data: decode(data, Thing), data)
    assert found is None or isinstance(found, Thing)


@given(things, st.binary(min_size=1, max_size=20))
def test_bytes_behind_the_value_are_refused(data: bytes, behind: bytes) -> None:
    with pytest.raises(DecodeError, match=f"{len(behind)} bytes behind the value"):
        decode(data + behind, Thing)


@given(things)
def test_every_truncation_is_refused(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(DecodeError, match="not CBOR"):
            decode(data[:size], Thing)


def head(major: int, claim: int) -> bytes:
    return struct.pack(">BQ", major << 5 | 27, claim)


BILLIONS = (10**9, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
CLAIMS = [
    head(major, claim)
    for major in (2, 3, 4, 5)  # bytes, text, list, map
    for claim in BILLIONS
]

REFUSED: list[tuple[str, bytes]] = [
    ("not CBOR", b""),
    ("not CBOR", b"\xff"),
    *(("not CBOR", with_value(claim)) for claim in CLAIMS),
    *(("not CBOR", claim) for claim in CLAIMS),
    ("text string", with_value(b"\x62\xff\xfe")),
    ("text string", with_value(b"\x63\xed\xa0\x80")),  # a lone surrogate
    ("text string", with_value(b"\x62\xc0\x80")),  # an overlong zero
    ("text string", b"\xa1\x62\xff\xfe\x01"),  # in a key
    ("indefinite", with_value(b"\x5f\x41a\xff")),
    ("indefinite", with_value(b"\x7f\x61a\xff")),
    ("indefinite", with_value(b"\x9f\x01\xff")),
    ("indefinite", b"\xbf\xff"),
    ("not CBOR", with_value(b"\x1c")),
    ("not CBOR", with_value(b"\xf8\x00")),
    ("not CBOR", with_value(b"\xff")),
    ("key must be", b"\xa1\x01\x01"),
    ("key must be", b"\xa1\xf6\x01"),
    ("key must be", b"\xa1\x80\x01"),
    ("key must be", b"\xa1\xa0\x01"),
    ("key must be", with_value(b"\xa1\x01\x02")),
    ("Expected `str`", b"\xa1\x44text\x01"),  # a key of bytes
    ("Duplicate", b"\xa2\x61a\x01\x61a\x02"),
    ("depth", with_value(b"\x81" * MAX_CONTROL_DEPTH + b"\x01")),
    ("depth", with_value(b"\x81" * 100_000 + b"\x01")),
    ("depth", b"\xa1\x61a" * 40_000 + b"\x01"),
    ("depth", with_value(b"\xc6" * 100_000 + b"\x01")),
    ("Expected `object`", b"\x01"),
    ("Expected `object`", b"\x80"),
    ("Expected `object`", b"\xf6"),
    ("Expected `int`, got `bool`", cbor2.dumps({"number": True})),
    ("Expected `int`, got `str`", cbor2.dumps({"number": "1"})),
    ("Expected `str`, got `bytes`", cbor2.dumps({"text": b"x"})),
    ("Expected `bytes`, got `str`", cbor2.dumps({"raw": "eA=="})),
    ("cbor2.UndefinedType", cbor2.dumps({"text": cbor2.undefined})),
    ("cbor2.CBORSimpleValue", cbor2.dumps({"text": cbor2.CBORSimpleValue(40)})),
]


@pytest.mark.parametrize(("why", "data"), REFUSED)
def test_every_refusal(why: str, data: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data, Thing)
    assert caught.value.reason == "control"
    assert why in str(caught.value)


def test_every_tag_is_refused() -> None:
    """Those that the library knows, and those that it does not: none is acted on."""
    for tag in [*range(0x1000), *range(0x1000, 0x10000, 7), 43000, 55799, 2**32, 2**64 - 1]:
        size = 1 if tag < 256 else 2 if tag < 65536 else 8
        tagged = bytes([0xC0 | {1: 24, 2: 25, 8: 27}[size]]) + tag.to_bytes(size, "big")
        assert value_or_refusal(lambda data: decode(data, Thing), with_value(tagged + b"\x40")) is None, tag


@pytest.mark.parametrize("content", [b"\x00", b"\x40", b"\x60", b"\x80", b"\xa0", b"\x82\x01\x02", b"\x61(", b"\xf6"])
@pytest.mark.parametrize(
    "tag", [0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 43, 52, 54, 100, 256, 258, 260, 261, 1004]
)
def test_known_tags_are_refused_whatever_they_hold(tag: int, content: bytes) -> None:
    with pytest.raises(DecodeError, match="not CBOR"):
        anything(b"\xd9" + tag.to_bytes(2, "big") + content)


def test_a_number_of_any_size_is_refused() -> None:
    for tag in (b"\xc2", b"\xc3"):
        with pytest.raises(DecodeError):
            anything(tag + b"\x59\xff\xff" + b"\xff" * 0xFFFF)


def test_a_wide_map_costs_what_its_bytes_cost() -> None:
    count = 20_000
    data = b"\xb9" + count.to_bytes(2, "big") + b"".join(b"\x64%04x\x01" % index for index in range(count))
    assert decode(data, Thing) == Thing()


def test_work_is_bounded_by_the_bytes_that_are_there() -> None:
    tracemalloc.start()
    try:
        for claim in CLAIMS:
            value_or_refusal(anything, claim)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 512 * 1024


def test_what_is_quoted_from_outside_is_short() -> None:
    long_key = b"\x79\x27\x10" + b"k" * 10_000 + b"\x01"
    with pytest.raises(DecodeError) as caught:
        decode(b"\xa2" + long_key + long_key, Thing)
    assert "Duplicate" in str(caught.value)
    assert len(str(caught.value)) < 300


# -- the number of values ---------------------------------------------------------------------------------------------


def count(value: object) -> int:
    """Values in plain data, with keys and containers counted."""
    match value:
        case list():
            return 1 + sum(map(count, value))
        case dict():
            return 1 + sum(1 + count(one) for one in value.values())
    return 1


@given(plain, st.integers(0, 3))
def test_values_are_counted_before_they_are_decoded(value: object, fewer: int) -> None:
    encoded = cbor2.dumps({"anything": value, "padding": bytes(300)})
    items = count(value) + 4
    if depth(value) >= MAX_CONTROL_DEPTH:
        return
    if fewer:
        with pytest.raises(DecodeError, match=f"more than {items - fewer} values"):
            load(encoded, max_items=items - fewer)
    else:
        assert load(encoded, max_items=items) == {"anything": value, "padding": bytes(300)}


@given(damaged(things), st.integers(1, 20))
def test_counting_never_refuses_what_has_few_values(data: bytes, max_items: int) -> None:
    found = value_or_refusal(load, data)
    bounded = value_or_refusal(lambda data: load(data, max_items=max_items), data)
    if found is not None and count(found) <= max_items:
        assert repr(bounded) == repr(found)
    elif found is not None:
        assert bounded is None or len(data) <= max_items


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x81" * 100_000,
        b"\x9a\x00\x01\x00\x00" + b"\x81\x81\x81\x81\x80" * 20_000,
        b"\x9b" + b"\xff" * 8 + bytes(1000),
        b"\xbb" + b"\xff" * 8 + bytes(1000),
        b"\x9a\x00\x01\x00\x00" + b"\x60" * 65_536,
        b"\xba\x00\x01\x00\x00" + b"\x5b" + bytes(8) + b"\x01" * 100_000,
    ],
)
def test_records_of_very_many_values_are_refused_without_decoding_them(
    encoded: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.wire.cbor.cbor2", None)
    with pytest.raises(DecodeError, match="more than 1000 values"):
        load(with_value(encoded), max_items=1000)
