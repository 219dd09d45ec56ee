"""Extensions of batches: what is encoded is decoded, unknown keys are carried, malformed ones are refused."""

from __future__ import annotations

import contextlib
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.errors import DecodeError
from godwit.limits import MAX_EXTENSION_BYTES, MAX_EXTENSION_FIELDS, MAX_EXTENSION_ITEMS
from godwit.wire.batch import Batch, decode_batches, encode_batch
from godwit.wire.extension import (
    MAX_KEY,
    ExtensionKey,
    decode_extension,
    decode_field,
    encode_extension,
)

SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=40),
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=5,
)
FIELDS = st.dictionaries(st.integers(2, MAX_KEY), VALUES, max_size=8)


class Header(msgspec.Struct):
    name: str
    id: bytes = b""


@given(FIELDS)
def test_what_is_encoded_is_decoded(fields: dict[int, Any]) -> None:
    data = encode_extension(fields)
    assert decode_extension(data) == fields
    assert list(decode_extension(data)) == sorted(fields)
    assert encode_extension(decode_extension(data)) == data


@given(FIELDS, st.binary(max_size=20))
def test_a_batch_carries_unknown_keys_unchanged(fields: dict[int, Any], payload: bytes) -> None:
    extension = encode_extension(fields)
    (batch,) = decode_batches(encode_batch(Batch([payload], 7, extension=extension)))
    assert batch.extension == extension


@given(st.binary(max_size=60))
def test_any_bytes_are_a_map_or_a_decode_error(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert all(0 <= key <= MAX_KEY for key in decode_extension(data))


def test_no_bytes_are_an_empty_map() -> None:
    assert decode_extension(b"") == decode_extension(encode_extension({})) == {}
    assert encode_extension({}) == b"\xa0"


@pytest.mark.parametrize(
    ("plain", "text"),
    [
        ([1, 2], "not a map"),
        ({-1: 2}, "a number from 0 to 65535"),
        ({MAX_KEY + 1: 2}, "a number from 0 to 65535"),
        ({"name": 2}, "a number from 0 to 65535"),
        ({True: 2}, "a number from 0 to 65535"),
        ({2.0: 2}, "a number from 0 to 65535"),
        ({1: "a file"}, "the value of key 1"),
        ({1: {1: 2}}, "the value of key 1"),
        ({1: {}, "file": {}}, "the key 1 occurs twice"),
        (dict.fromkeys(range(MAX_EXTENSION_FIELDS + 1), 0), f"at most {MAX_EXTENSION_FIELDS}"),
        ({2: [0] * MAX_EXTENSION_ITEMS}, f"more than {MAX_EXTENSION_ITEMS} values"),
        ({2: bytes(MAX_EXTENSION_BYTES)}, f"at most {MAX_EXTENSION_BYTES}"),
        ({2: cbor2.CBORTag(0, "2026-01-01T00:00:00Z")}, "not CBOR"),
    ],
)
def test_malformed_extensions_are_refused(plain: object, text: str) -> None:
    with pytest.raises(DecodeError, match=text) as caught:
        decode_extension(cbor2.dumps(plain))
    assert caught.value.reason == "extension"


@pytest.mark.parametrize("data", [b"\xff", b"\xa1\x02", b"\xa0\x00", b"\xa2\x02\x00\x02\x01", b"\xbf\xff"])
def test_bytes_that_are_not_one_map_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_extension(data)


@pytest.mark.parametrize("fields", [{-1: 0}, {MAX_KEY + 1: 0}, {1: 5}, {2: bytes(MAX_EXTENSION_BYTES)}])
def test_invalid_fields_are_not_encoded(fields: dict[int, Any]) -> None:
    with pytest.raises(ValueError, match="extension"):
        encode_extension(fields)


def test_a_field_is_read_with_its_type() -> None:
    data = encode_extension({ExtensionKey.FILE: {"name": "a.txt", "id": b"\x01"}, 300: 5})
    assert decode_field(data, ExtensionKey.FILE, Header) == Header("a.txt", b"\x01")
    assert decode_field(data, 300, int) == 5
    assert decode_field(data, 301, int) is None
    assert decode_field(None, 300, int) is None
    with pytest.raises(DecodeError, match="the value of key 300"):
        decode_field(data, 300, str)


def test_the_text_key_of_version_0_5_is_read_as_the_file_key() -> None:
    old = cbor2.dumps({"file": {"name": "a.txt", "id": b"\x01"}})
    assert decode_extension(old) == {ExtensionKey.FILE: {"name": "a.txt", "id": b"\x01"}}
    assert decode_field(old, ExtensionKey.FILE, Header) == Header("a.txt", b"\x01")
