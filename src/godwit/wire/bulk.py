"""Loops over the packets of a long record, in which a bulk transfer spends most of its time.

These functions exist twice. `bulk.c` beside this file has the same ones in C, and is a part of the compiled core (see
godwit.compiled_core); without that, this module runs. Both return the same for valid arguments, and
tests/wire/test_bulk.py compares them. For invalid ones those in C raise TypeError or ValueError.

A *run* is consecutive packets of equal length, each with one fragment of one record and nothing else. Only the last one
may be shorter, and has the type of a fragment that ends its record:

    packet head (9 bytes) | number u32 | frame head (9) | offset u32 | body | CRC-32C
"""

from __future__ import annotations

import struct
from itertools import chain, repeat, takewhile
from typing import Final

from crc32c import crc32c

from godwit.wire.packet import CHECKSUM, FRAGMENT_HEADER, HEADER, INTACT

_MASK: Final = 0xFFFFFFFF
_HEADERS: Final = struct.Struct(">9sI9sI")
"""The headers of a packet and of a fragment."""
assert _HEADERS.size == HEADER.size + FRAGMENT_HEADER.size


def encode_run(
    body: bytes,
    start: int,
    stop: int,
    body_bytes: int,
    packet_head: bytes,
    number: int,
    frame_head: bytes,
    last_frame_head: bytes,
) -> bytes:
    """Return the packets that carry a part of a record.

    Args:
        body: the record.
        start: the first of its bytes to send, and the offset in the first packet.
        stop: the end of these bytes, more than `start`.
        body_bytes: the length of the body of each packet but the last, which may be shorter.
        packet_head: the header of the packets without their numbers.
        number: the number of the first packet; its lower 32 bits are sent.
        frame_head: the header of the fragments without their offsets.
        last_frame_head: the same for the last packet.
    """
    view = memoryview(body)[:stop]
    # Each step is one call into C for all packets.
    starts = range(start, stop, body_bytes)
    frame_heads = [frame_head] * len(starts)
    frame_heads[-1] = last_frame_head
    numbers = [place & _MASK for place in range(number, number + len(starts))]
    headers = map(_HEADERS.pack, repeat(packet_head), numbers, frame_heads, starts)
    packets = [header + view[place : place + body_bytes] for header, place in zip(headers, starts, strict=True)]
    checksums = map(CHECKSUM.pack, map(crc32c, packets))
    return b"".join(chain.from_iterable(zip(packets, checksums, strict=True)))


def decode_run(
    data: bytes,
    at: int,
    segment_bytes: int,
    limit: int,
    packet_head: bytes,
    number: int,
    frame_head: bytes,
    offset: int,
    has_checksums: bool,
) -> bytes:
    """Return the joined bodies of packets, up to the first one that is not the next of a run.

    The headers of a run are known in advance, so they are compared, not decoded.

    Args:
        data: a train.
        at: the offset in it of the first packet.
        segment_bytes: the length of each packet, more than the headers and the checksum.
        limit: the largest number of packets to look at; all of them are in the train.
        packet_head: the expected header of the packets without their numbers.
        number: the expected number of the first packet.
        frame_head: the expected header of the fragments without their offsets.
        offset: the expected offset in the first packet.
        has_checksums: whether to compare the checksums; packets that were sealed have none.
    """
    view = memoryview(data)
    body_bytes = segment_bytes - _HEADERS.size - CHECKSUM.size
    headers = map(
        _HEADERS.pack,
        repeat(packet_head),
        [place & _MASK for place in range(number, number + limit)],
        repeat(frame_head),
        range(offset, offset + limit * body_bytes, body_bytes),
    )
    places = range(at, at + limit * segment_bytes, segment_bytes)
    count = sum(takewhile(bool, map(data.startswith, headers, places)))
    if has_checksums:
        checksums = map(crc32c, [view[place : place + segment_bytes] for place in places[:count]])
        count = sum(takewhile(bool, map(INTACT.__eq__, checksums)))
    first, last = _HEADERS.size, segment_bytes - CHECKSUM.size
    return b"".join([view[place + first : place + last] for place in places[:count]])
