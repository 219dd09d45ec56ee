"""Extensions of batches: what is encoded is decoded, unknown keys are carried, malformed ones are refused; properties
are checked where a publisher sends them, and absent where a stored one is malformed."""

from __future__ import annotations

import contextlib
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.errors import DecodeError
from godwit.limits import (
    MAX_CONTENT_TYPE_BYTES,
    MAX_CORRELATION_BYTES,
    MAX_EXTENSION_BYTES,
    MAX_EXTENSION_FIELDS,
    MAX_EXTENSION_ITEMS,
    MAX_HEADER_NAME_BYTES,
    MAX_HEADER_VALUE_BYTES,
    MAX_HEADERS,
    MAX_LIFETIME_US,
    MAX_TOPIC_BYTES,
)
from godwit.wire.batch import Batch, decode_batches, encode_batch, make_entry
from godwit.wire.extension import (
    MAX_KEY,
    ExtensionKey,
    Properties,
    check_properties,
    decode_extension,
    decode_field,
    decode_properties,
    encode_extension,
    encode_properties,
    expiry_of,
    with_lifetime,
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


# -- properties -------------------------------------------------------------------------------------------------------

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
LIFETIMES = st.sampled_from((0, 1, 60_000_000, MAX_LIFETIME_US)) | st.integers(0, MAX_LIFETIME_US)
PROPERTIES = st.builds(
    Properties,
    headers=st.lists(
        st.tuples(st.text(CHARACTERS, min_size=1, max_size=20), st.text(CHARACTERS, max_size=20)), max_size=5
    ).map(tuple),
    content_type=st.none() | st.text(st.characters(codec="utf-8", min_codepoint=0xA0), min_size=1, max_size=20),
    reply_topic=st.none() | st.text(CHARACTERS, min_size=1, max_size=20),
    correlation=st.none() | st.binary(max_size=20),
    payload_format=st.sampled_from((None, 0, 1)),
    lifetime_us=st.none() | LIFETIMES,
)


@given(PROPERTIES)
def test_properties_that_are_encoded_are_decoded(properties: Properties) -> None:
    data = encode_properties(properties)
    assert check_properties(data) == decode_properties(data) == properties
    assert list(decode_extension(data)) == sorted(decode_extension(data))
    assert (data == b"") == (properties == Properties())


@given(PROPERTIES, LIFETIMES, st.integers(0, 2**50))
def test_the_expiry_is_found_and_rewritten_without_decoding(
    properties: Properties, lifetime_us: int, now_us: int
) -> None:
    data = encode_properties(properties)
    entry = make_entry("a", "b", [b"x"], qos=1, now_us=now_us, published_us=5, extension=data)
    if properties.lifetime_us is None:
        assert expiry_of(entry) is None
        with pytest.raises(ValueError, match="no EXPIRY"):
            with_lifetime(data, lifetime_us)
        return
    assert expiry_of(entry) == now_us + properties.lifetime_us
    changed = with_lifetime(data, lifetime_us)
    assert changed == encode_properties(msgspec.structs.replace(properties, lifetime_us=lifetime_us))


def test_a_batch_without_extension_does_not_expire() -> None:
    body = bytes.fromhex("0000000ba1001b0000000003938700")
    assert expiry_of(make_entry("a", "b", [body], qos=1, now_us=7)) is None


@pytest.mark.parametrize(
    "extension",
    [
        b"",
        b"\xa1\x00\x1b",
        b"\xa1\x00\x1b" + (MAX_LIFETIME_US + 1).to_bytes(8, "big"),
        cbor2.dumps({0: 60_000_000}),
        cbor2.dumps({0: 2**40, **dict.fromkeys(range(300, 323), 0)}),
        cbor2.dumps({3: "a", 0: 2**40}),
        b"\xa1\x00\x1b" + bytes(7) + b"\x09" + bytes(MAX_EXTENSION_BYTES),
        b"\x81\x00\x1b" + bytes(8),
    ],
)
def test_a_malformed_expiry_of_a_stored_batch_is_absent(extension: bytes) -> None:
    assert expiry_of(make_entry("a", "b", [bytes(40)], qos=1, now_us=7, extension=extension)) is None
    assert decode_properties(extension).lifetime_us is None
    if extension:
        with pytest.raises(DecodeError):
            check_properties(extension)


@given(st.binary(max_size=60))
def test_any_bytes_have_properties_or_none(data: bytes) -> None:
    found = decode_properties(data)
    with contextlib.suppress(DecodeError):
        assert check_properties(data) == found
    entry = make_entry("a", "b", [b"x"], qos=1, now_us=7, extension=data)
    assert expiry_of(entry) == (None if found.lifetime_us is None else 7 + found.lifetime_us)


@given(st.dictionaries(st.integers(0, 8), VALUES, max_size=6))
def test_a_malformed_property_is_absent_and_others_are_read(fields: dict[int, Any]) -> None:
    data = cbor2.dumps({**fields, 5: b"id"})
    assert decode_properties(data).correlation == b"id"
    with contextlib.suppress(DecodeError):
        assert check_properties(data) == decode_properties(data)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({0: 5}, "EXPIRY must be the first key"),
        ({0: -1}, "EXPIRY must be the first key"),
        ({2: ["a"]}, "not a list of names and values"),
        ({2: []}, "not a list of names and values"),
        ({2: {"a": "b"}}, "not a list of names and values"),
        ({2: ["a", 5]}, "the value of a header is not a text"),
        ({2: [b"a", "b"]}, "the name of a header is not a text"),
        ({2: ["", "b"]}, "the name of a header has 0 bytes"),
        ({2: ["a" * (MAX_HEADER_NAME_BYTES + 1), ""]}, f"1 to {MAX_HEADER_NAME_BYTES} are allowed"),
        ({2: ["a", "\u00e9" * (MAX_HEADER_VALUE_BYTES // 2) + "b"]}, f"0 to {MAX_HEADER_VALUE_BYTES} are allowed"),
        ({2: ["a\0", "b"]}, "the name of a header contains U"),
        ({2: ["a", "\0"]}, "the value of a header contains U"),
        ({2: ["a", "b"] * (MAX_HEADERS + 1)}, f"at most {MAX_HEADERS}"),
        ({3: b"text/plain"}, "the content type is not a text"),
        ({3: ""}, "the content type has 0 bytes"),
        ({3: "a" * (MAX_CONTENT_TYPE_BYTES + 1)}, f"1 to {MAX_CONTENT_TYPE_BYTES} are allowed"),
        ({3: "text\x1b"}, "a control character"),
        ({4: 5}, "the reply topic is not a text"),
        ({4: "a" * (MAX_TOPIC_BYTES + 1)}, f"1 to {MAX_TOPIC_BYTES} are allowed"),
        ({5: "text"}, "not a byte string"),
        ({5: bytes(MAX_CORRELATION_BYTES + 1)}, f"at most {MAX_CORRELATION_BYTES}"),
        ({6: 2}, "the payload format is not 0"),
        ({6: True}, "the payload format is not 0"),
    ],
)
def test_malformed_properties_are_refused(fields: dict[int, Any], text: str) -> None:
    data = cbor2.dumps(fields)
    for _ in range(2):  # a refusal is not cached as a result
        with pytest.raises(DecodeError, match=text) as caught:
            check_properties(data)
        assert caught.value.reason == "extension"
    assert decode_properties(data) == Properties()


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (Properties(headers=(("a", "\ud800"),)), "not valid Unicode"),
        (Properties(headers=(("a", "b"),) * (MAX_HEADERS + 1)), "65 headers: at most 64 are allowed"),
        (Properties(headers=(("a", "b" * 2000),) * 3), "bytes together: at most 4096 are allowed"),
        (Properties(lifetime_us=-1), "a lifetime of -1 us"),
        (Properties(lifetime_us=MAX_LIFETIME_US + 1), "a lifetime of"),
        (Properties(content_type=""), "the content type has 0 bytes"),
        (Properties(payload_format=2), "the payload format"),
    ],
)
def test_invalid_properties_are_not_encoded(properties: Properties, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        encode_properties(properties)
    assert not str(caught.value).startswith("extension")


def test_the_largest_properties_of_each_type_pass() -> None:
    for properties in (
        Properties(headers=(("a" * MAX_HEADER_NAME_BYTES, "b" * MAX_HEADER_VALUE_BYTES),)),
        Properties(headers=(("name", "value"),) * MAX_HEADERS),
        Properties(content_type="a" * MAX_CONTENT_TYPE_BYTES, correlation=bytes(MAX_CORRELATION_BYTES)),
        Properties(reply_topic="a" * MAX_TOPIC_BYTES, lifetime_us=MAX_LIFETIME_US),
    ):
        assert check_properties(encode_properties(properties)) == properties


def test_a_long_extension_is_not_cached() -> None:
    data = encode_properties(Properties(headers=(("a", "b" * 100),)))
    assert check_properties(data) is check_properties(data)
    long = encode_properties(Properties(headers=(("a", "b" * 600),)))
    assert check_properties(long) is not check_properties(long)


def test_a_lifetime_out_of_range_is_not_written() -> None:
    data = encode_properties(Properties(lifetime_us=5))
    with pytest.raises(ValueError, match="a lifetime of"):
        with_lifetime(data, MAX_LIFETIME_US + 1)
