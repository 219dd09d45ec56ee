"""Records of bridges, and the origin of messages."""

from __future__ import annotations

import random

import pytest
from tests.wire.protocol_page import PAGE

from godwit.errors import DecodeError
from godwit.limits import MAX_EXTENSION_BYTES
from godwit.wire.batch import HAS_EXTENSION, LONE, Entry, extension_of, is_rest_valid, make_entry, with_extension
from godwit.wire.extension import (
    Properties,
    add_origin,
    check_properties,
    decode_properties,
    encode_extension,
    encode_properties,
    shift_origin,
    split_origin,
)
from godwit.wire.relay import GapReason, RelayGap, RelayRecord, decode_relay_record, encode_relay_record

LOG = bytes(range(0x40, 0x50))
NOW_US = 1_763_200_000_000_000


def entry(*payloads: bytes, topic: str = "plant/a", publisher: str = "sensor-1") -> Entry:
    return make_entry(topic, publisher, payloads, qos=1, now_us=NOW_US)


def test_a_record_is_decoded_as_it_was_encoded() -> None:
    entries = [
        (5, entry(b"a")),
        (6, entry(b"b", b"cc", topic="plant/b", publisher="sensor-2")),
        (9, entry(b"", topic="sensor-1", publisher="plant/a")),  # names may be both
    ]
    gaps = [RelayGap(GapReason.DELETED, 0, 5, 4)]
    data = encode_relay_record(0, 10, entries, gaps, prefix="site/", is_rewind=True)
    found = decode_relay_record(data)
    assert (found.begin, found.end, found.gaps, found.is_rewind) == (0, 10, gaps, True)
    assert [offset for offset, _ in found.entries] == [5, 6, 9]
    for (_, was), (_, now) in zip(entries, found.entries, strict=True):
        assert now.topic == "site/" + was.topic
        assert (now.publisher, now.flags, now.published_us) == (was.publisher, was.flags, was.published_us)
        assert (now.count, now.rest, now.received_us) == (was.count, was.rest, 0)


def test_the_example_of_the_protocol() -> None:
    block = PAGE.split("One message for `site7/plant/a`")[1].split("```text\n")[1].split("\n```")[0]
    data = b"".join(bytes.fromhex(line.partition("|")[0]) for line in block.splitlines())
    gaps = [RelayGap(GapReason.DELETED, 4096, 4098, 2)]
    assert encode_relay_record(4096, 4100, [(4098, entry(b"21.5"))], gaps, prefix="site7/") == data


def test_every_malformed_record_is_a_decode_error() -> None:
    data = encode_relay_record(0, 9, [(0, entry(b"a")), (3, entry(b"b", b"c"))], [RelayGap(1, 1, 3, 2)])
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode_relay_record(data[:length])
    with pytest.raises(DecodeError):
        decode_relay_record(data + b"x")
    rng = random.Random(5)
    for _ in range(3000):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            found = decode_relay_record(bytes(changed))
        except DecodeError:
            continue
        assert isinstance(found, RelayRecord)
        for _, one in found.entries:
            is_rest_valid(one)  # raises nothing


@pytest.mark.parametrize(
    ("begin", "end", "entries"),
    [
        (5, 4, []),
        (0, 2, [(1, entry(b"a", b"b"))]),  # beyond the end
        (5, 9, [(4, entry(b"a"))]),  # before the beginning
        (0, 9, [(5, entry(b"a")), (5, entry(b"b"))]),  # twice
    ],
)
def test_entries_have_offsets_of_the_range_in_their_order(
    begin: int, end: int, entries: list[tuple[int, Entry]]
) -> None:
    with pytest.raises(DecodeError):
        decode_relay_record(encode_relay_record(begin, end, entries))


@pytest.mark.parametrize(
    ("flags", "count", "rest", "is_valid"),
    [
        (LONE, 1, b"abc", True),
        (LONE, 2, b"abc", False),
        (0, 2, entry(b"a", b"bc").rest, True),
        (0, 3, entry(b"a", b"bc").rest, False),
        (0, 2, entry(b"a", b"bc").rest + b"x", False),
        (0, 2, entry(b"a", b"bc").rest[:-1], False),
        (0, 1, b"", False),
        (LONE | HAS_EXTENSION, 1, b"\0\0\0\5ab", False),
        (LONE | HAS_EXTENSION, 1, b"\0\0", False),
        (LONE | HAS_EXTENSION, 1, b"\0\0\0\1\xa0abc", True),
    ],
)
def test_rests_from_outside_are_checked(flags: int, count: int, rest: bytes, is_valid: bool) -> None:
    one = Entry(topic="t", publisher="p", flags=flags, published_us=1, received_us=1, count=count, rest=rest)
    assert is_rest_valid(one) is is_valid


# -- origins ----------------------------------------------------------------------------------------------------------


def test_an_origin_is_added_and_removed() -> None:
    full = encode_properties(Properties(headers=(("unit", "C"),), content_type="text/plain", lifetime_us=5))
    for plain in (b"", full):
        extension = add_origin(plain, LOG, 77)
        assert extension is not None
        assert split_origin(extension) == (plain, (LOG, 77))
        properties = decode_properties(extension)
        assert properties.origin == (LOG, 77)
        assert properties.content_type == decode_properties(plain).content_type
        with pytest.raises(DecodeError, match="ORIGIN is written by brokers only"):
            check_properties(extension)
    assert add_origin(b"", LOG, 4098) == bytes.fromhex("a1075818" + LOG.hex() + "0000000000001002")


def test_bytes_that_only_look_like_an_origin() -> None:
    looks = b"\x07\x58\x18" + LOG + bytes(8)
    extension = encode_extension({5: b"12345" + looks})
    assert split_origin(extension) == (extension, None)


def test_an_extension_without_room_for_an_origin() -> None:
    assert add_origin(encode_extension({300: b"x" * (MAX_EXTENSION_BYTES - 10)}), LOG, 1) is None
    many = encode_extension(dict.fromkeys(range(300, 323), 1))
    assert add_origin(many, LOG, 1) is None
    assert split_origin(encode_extension(dict.fromkeys(range(300, 330), 1)))[1] is None


def test_the_origin_of_the_rest_of_a_batch() -> None:
    extension = add_origin(b"", LOG, 10)
    assert extension is not None
    shifted = shift_origin(with_extension(entry(b"a", b"b"), extension), 3)
    assert decode_properties(extension_of(shifted)).origin == (LOG, 13)
    assert shift_origin(entry(b"a"), 3) == entry(b"a")


def test_an_origin_of_any_bytes_can_be_shifted() -> None:
    for offset in (2**63 - 1, 2**64 - 1):
        extension = add_origin(b"", LOG, offset)
        assert extension is not None
        shifted = shift_origin(with_extension(entry(b"a", b"b"), extension), 1)
        assert decode_properties(extension_of(shifted)).origin is None  # beyond 63 bits
