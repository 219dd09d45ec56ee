"""A bridge between two brokers: the messages that open it, and the records of its channel.

The *edge* sends messages of its log to the *hub*. Record 0 of the channel is `relay`, answered on channel 0 by
`relaying` or `refused`. Every other record covers a range of offsets of the edge's log:

    flags u8 | begin u64 | end u64 | gaps u16 | names u16 | entries u32
    gap     reason u8 | first u64 | end u64 | count u64
    name    length u16 | UTF-8
    entry   offset u64 | flags u8 | published u64 | topic u16 | publisher u16 | count u32 | length u32 | rest

`begin` is the `end` of the record before, or the offset of `relaying`. Topics and publishers are places in the list of
names. `flags` and `rest` of an entry are those of its batch in the log (godwit.wire.batch). All numbers are big-endian.

A record whose flag REWIND is set begins below the hub's mark: the edge's log was replaced by an older copy of itself,
and has other messages from `begin` on.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from godwit.errors import DecodeError
from godwit.limits import MAX_RELAY_FILTERS, MAX_RELAY_SOURCES
from godwit.wire.batch import HEAD_FLAGS, Entry
from godwit.wire.control_base import BaseControlMessage, Channel, Count, Request, Text, TopicText
from godwit.wire.epochs import Epochs

LOG_ID_BYTES: Final = 16
LogId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=LOG_ID_BYTES, max_length=LOG_ID_BYTES)]
RelayFilters: TypeAlias = Annotated[list[TopicText], msgspec.Meta(min_length=1, max_length=MAX_RELAY_FILTERS)]
Sources: TypeAlias = Annotated[list[LogId], msgspec.Meta(max_length=MAX_RELAY_SOURCES)]

REWIND: Final = 1
_HEAD: Final = struct.Struct(">BQQHHI")
_GAP: Final = struct.Struct(">BQQQ")
_NAME: Final = struct.Struct(">H")
_ENTRY: Final = struct.Struct(">QBQHHII")
MAX_NAMES: Final = 0xFFFF
ENTRY_BYTES: Final = _ENTRY.size
"""Size of an entry without its rest."""
RECORD_BYTES: Final = _HEAD.size
LAST_OFFSET: Final = 2**63 - 1


class GapReason(IntEnum):
    """Why messages of the edge do not reach the hub."""

    DELETED = 0
    """Retention deleted them before they were sent."""
    DAMAGED = 1
    """The edge's log is damaged there."""
    TOO_LONG = 2
    """A message is longer than the hub accepts, or its topic with the prefix is too long."""
    REPLACED = 3
    """The edge's log was replaced by an older copy: these offsets stand for other messages now."""


# -- messages ---------------------------------------------------------------------------------------------------------


class RelayOpen(BaseControlMessage, frozen=True, kw_only=True, tag="relay"):
    """Record 0 of the channel of a bridge. The link is the name of the client."""

    log: LogId
    """The id of the edge's log."""
    epochs: Epochs = []
    """The newest ones of that log."""
    filters: RelayFilters
    """Filters of the topics that are sent, as they are at the hub: with the prefix."""
    sources: Sources = []
    """The ids of the logs whose messages flow into the edge by bridges, in any number of steps."""


class RelayOpened(BaseControlMessage, frozen=True, kw_only=True, tag="relaying"):
    """The hub accepts the messages of the bridge on this channel."""

    channel: Channel
    offset: Count | None = None
    """Of that log, the hub has everything below this offset. None: it has never had a message of it."""
    epochs: Epochs = []
    """The epochs with which the edge opened the bridge when the last message was stored."""


class ListBridges(BaseControlMessage, frozen=True, kw_only=True, tag="bridges"):
    """List the bridges from and to this broker."""

    request: Request


BridgeState: TypeAlias = Literal["connecting", "running", "refused", "stopped", "absent"]


class BridgeInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bridge, as the edge or the hub sees it."""

    name: str
    """The link: the name of the edge's client at the hub."""
    direction: Literal["out", "in"]
    """out: this broker is the edge."""
    peer: str = ""
    """The addresses of the hub, or the address of the edge."""
    state: BridgeState
    """in: running or absent."""
    log_id: str = ""
    """The id of the edge's log, in hexadecimal digits."""
    position: Count | None = None
    """The hub has everything below this offset; None if that is unknown."""
    lag: Count = 0
    """out: the number of messages from there to the end of the log, whether they match the filters or not."""
    messages: Count = 0
    """Relayed since this broker started."""
    missed: Count = 0
    """Messages that were reported as gaps, at most, since this broker started."""
    looped: Count = 0
    """in: messages that had come from this broker itself, and were dropped."""
    problem: Text = ""


class BridgeList(BaseControlMessage, frozen=True, kw_only=True, tag="bridge_list"):
    request: Request
    bridges: list[BridgeInfo] = []


# -- records ----------------------------------------------------------------------------------------------------------


class RelayGap(msgspec.Struct, frozen=True, gc=False):
    """Messages that are missing from the edge's log: up to `count`, with offsets from `first` on below `end`."""

    reason: int
    first: int
    end: int
    count: int


class RelayRecord(msgspec.Struct, frozen=True):
    """Everything that the edge relays of a range of its log."""

    begin: int
    end: int
    entries: list[tuple[int, Entry]]
    """With their offsets in the edge's log. Without a time of receipt."""
    gaps: list[RelayGap] = []
    is_rewind: bool = False


def encode_relay_record(
    begin: int,
    end: int,
    entries: Sequence[tuple[int, Entry]],
    gaps: Sequence[RelayGap] = (),
    *,
    prefix: str = "",
    is_rewind: bool = False,
) -> bytes:
    """Return the bytes of a record. `prefix` is put before every topic. There are at most MAX_NAMES names."""
    places: dict[tuple[bool, str], int] = {}
    parts: list[bytes] = []
    for offset, entry in entries:
        topic = places.setdefault((True, entry.topic), len(places))
        publisher = places.setdefault((False, entry.publisher), len(places))
        rest = entry.rest
        flags = entry.flags & ~HEAD_FLAGS
        parts.append(_ENTRY.pack(offset, flags, entry.published_us, topic, publisher, entry.count, len(rest)))
        parts.append(rest)
    names: list[bytes] = []
    for is_topic, text in places:
        name = (prefix + text if is_topic else text).encode()
        names += (_NAME.pack(len(name)), name)
    head = _HEAD.pack(REWIND if is_rewind else 0, begin, end, len(gaps), len(places), len(entries))
    packed = [_GAP.pack(gap.reason, gap.first, gap.end, gap.count) for gap in gaps]
    return b"".join([head, *packed, *names, *parts])


def decode_relay_record(data: bytes) -> RelayRecord:
    """Return a record. Raises DecodeError if it is malformed. The rests of its entries are not examined."""
    try:
        flags, begin, end, gap_count, name_count, entry_count = _HEAD.unpack_from(data)
        at = _HEAD.size
        if flags & ~REWIND or not begin <= end <= LAST_OFFSET:
            raise DecodeError("relay", f"the range {begin} to {end} with the flags {flags}")
        gaps: list[RelayGap] = []
        for _ in range(gap_count):
            gap = RelayGap(*_GAP.unpack_from(data, at))
            at += _GAP.size
            if gap.reason > max(GapReason) or not gap.first < gap.end <= LAST_OFFSET or gap.count > LAST_OFFSET:
                raise DecodeError("relay", f"a gap from {gap.first} to {gap.end} with the reason {gap.reason}")
            gaps.append(gap)
        names: list[str] = []
        for _ in range(name_count):
            (length,) = _NAME.unpack_from(data, at)
            at += _NAME.size
            names.append(str(data[at : at + length], "utf-8"))
            at += length
        entries: list[tuple[int, Entry]] = []
        next_offset = begin
        for _ in range(entry_count):
            offset, entry_flags, published_us, topic, publisher, count, length = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size
            if offset < next_offset or not count or offset + count > end:
                raise DecodeError("relay", f"offset {offset} with {count} messages in a range up to {end}")
            next_offset = offset + count
            entry = Entry(
                topic=names[topic],
                publisher=names[publisher],
                flags=entry_flags & ~HEAD_FLAGS,
                published_us=published_us,
                received_us=0,
                count=count,
                rest=data[at : at + length],
            )
            at += length
            entries.append((offset, entry))
    except (struct.error, IndexError):
        raise DecodeError("relay", f"cut off after {len(data)} bytes") from None
    except UnicodeDecodeError:
        raise DecodeError("relay", "a name is not UTF-8") from None
    if at != len(data):
        raise DecodeError("relay", f"{len(data)} bytes, and {at} of them are used")
    return RelayRecord(begin, end, entries, gaps, bool(flags & REWIND))
