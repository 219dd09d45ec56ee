"""One datagram is one packet: a short header, frames, and a CRC-32C over all of it.

     0        1                            9              13                 n-4          n
    +--------+----------------------------+--------------+-------- - - -----+------------+
    | vvvvffff  connection id (u64)        number (u32)   frames             CRC-32C     |
    +--------+----------------------------+--------------+-------- - - -----+------------+

`v` is the version, `f` flags: 1 is set in sealed packets (godwit.transport.protection), 2 is their key phase. The
connection id is the *receiver's*, 0 while it is unknown. The number is the lower half of a 64-bit packet number. All
integers are big-endian but the checksum: sent little-endian, it makes the checksum of every intact packet the same
constant, one call to check.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from crc32c import crc32c

from godwit.errors import DecodeError
from godwit.limits import LARGEST_DATAGRAM_BYTES, LARGEST_RECORD_BYTES, MAX_ACK_RANGES, MAX_FRAMES, MAX_REASON_BYTES

VERSION: Final = 1
FIRST_BYTE: Final = VERSION << 4
FLAG_SEALED: Final = 0x01
"""The frames are encrypted, and an authentication tag replaces the checksum."""
FLAG_PHASE: Final = 0x02
"""The lowest bit of the number of key updates; only in sealed packets."""

HEADER: Final = struct.Struct(">BQI")
CHECKSUM: Final = struct.Struct("<I")
OVERHEAD_BYTES: Final = HEADER.size + CHECKSUM.size
SMALLEST_PACKET_BYTES: Final = OVERHEAD_BYTES + 1
INTACT: Final = 0x48674BC7
"""The CRC-32C of any packet with its own checksum behind it."""

_HALF: Final = 1 << 31
_WRAP: Final = 1 << 32
_MASK: Final = _WRAP - 1
_LAST_TURN: Final = (1 << 64) - _WRAP


def encode_packet(connection_id: int, number: int, frames: bytes) -> bytes:
    """A whole datagram. (transport/transmitter.py writes the same bytes in fewer calls.)"""
    head = HEADER.pack(FIRST_BYTE, connection_id, number & _MASK) + frames
    return head + CHECKSUM.pack(crc32c(head))


def decode_packet(datagram: bytes) -> tuple[int, int, bytes]:
    """The connection id, the truncated number and the frames; DecodeError if it is no packet of this version."""
    check_packet(datagram)
    _, connection_id, number = HEADER.unpack_from(datagram)
    return connection_id, number, datagram[HEADER.size : -CHECKSUM.size]


def check_packet(datagram: bytes) -> None:
    """Raises DecodeError unless the datagram is an intact packet of this version."""
    if len(datagram) < SMALLEST_PACKET_BYTES:
        raise DecodeError("truncated", f"{len(datagram)} bytes, a packet has at least {SMALLEST_PACKET_BYTES}")
    if len(datagram) > LARGEST_DATAGRAM_BYTES:
        raise DecodeError("oversized", f"{len(datagram)} bytes, a packet has at most {LARGEST_DATAGRAM_BYTES}")
    if crc32c(datagram) != INTACT:
        raise DecodeError("checksum")
    if datagram[0] != FIRST_BYTE:
        if datagram[0] >> 4 != VERSION:
            raise DecodeError("version", f"version {datagram[0] >> 4}, this is {VERSION}")
        raise DecodeError("flags", f"unknown flags {datagram[0] & 0x0F:#x}")


def expand_number(truncated: int, expected: int) -> int:
    """The 64-bit number nearest to `expected` whose lower 32 bits are `truncated` (RFC 9000, A.3)."""
    candidate = (expected & ~_MASK) | truncated
    if candidate + _HALF <= expected and candidate < _LAST_TURN:
        return candidate + _WRAP
    if candidate > expected + _HALF and candidate >= _WRAP:
        return candidate - _WRAP
    return candidate


PADDING: Final = 0x00
PING: Final = 0x01
HELLO: Final = 0x02
COOKIE: Final = 0x03
CONNECT: Final = 0x04
ACCEPT: Final = 0x05
REFUSE: Final = 0x06
ACK: Final = 0x07
ACK_POSITION: Final = 0x08
CONFIRM: Final = 0x09
CREDIT: Final = 0x0A
BLOCKED: Final = 0x0B
PATH_PROBE: Final = 0x0C
PATH_RESPONSE: Final = 0x0D
CLOSE: Final = 0x0E
RESET: Final = 0x0F
CRYPTO: Final = 0x10
TOKEN: Final = 0x11
DATA: Final = 0x40

# The flags of a data frame.
HAS_LENGTH: Final = 0x01
"""A u16 length follows: another frame stands behind this one. Without it the data runs to the end of the packet."""
WHOLE: Final = 0x02
"""The record is in this one frame: no offset is sent."""
LAST: Final = 0x04
"""The fragment is the last of its record. With WHOLE it is redundant and may be left out."""
HAS_POSITION: Final = 0x08
"""A u32 position follows (go-back-n and stop-and-wait)."""
UNRELIABLE: Final = 0x10
"""Never sent again, delivered as it comes. Always whole."""
END: Final = 0x20
"""The record is the last of its channel. Only with LAST or WHOLE."""

NONCE_BYTES: Final = 16
COOKIE_BYTES: Final = 20
TOKEN_BYTES: Final = 16
MAC_BYTES: Final = 16
PROBE_BYTES: Final = 8

DATA_HEADER: Final = struct.Struct(">BII")
FRAGMENT_HEADER: Final = struct.Struct(">BIII")
U32: Final = struct.Struct(">I")
U16: Final = struct.Struct(">H")
_CONNECT: Final = struct.Struct(">BQ16s20sH")
_ACCEPT: Final = struct.Struct(">BQ16s16sH")
_REFUSE: Final = struct.Struct(">B16sHH")
_ACK: Final = struct.Struct(">BIB")
_ACK_POSITION: Final = struct.Struct(">BIIB")
_CLOSE: Final = struct.Struct(">BHH")
CRYPTO_HEADER: Final = struct.Struct(">BIIH")


class PingFrame(msgspec.Struct, frozen=True):
    """Asks for an acknowledgement."""


class HelloFrame(msgspec.Struct, frozen=True):
    """A client's first word: its own connection id and a nonce. The packet is padded to 1200 bytes."""

    connection_id: int
    nonce: bytes


class CookieFrame(msgspec.Struct, frozen=True):
    """The answer to hello: prove your address by sending this back."""

    cookie: bytes
    nonce: bytes


class ConnectFrame(msgspec.Struct, frozen=True):
    """HelloFrame again with the cookie, and the client's parameters (CBOR)."""

    connection_id: int
    nonce: bytes
    cookie: bytes
    parameters: bytes


class AcceptFrame(msgspec.Struct, frozen=True):
    """The connection stands: the server's connection id, its nonce, the token of its resets, its parameters (CBOR)."""

    connection_id: int
    nonce: bytes
    token: bytes
    parameters: bytes


class RefuseFrame(msgspec.Struct, frozen=True):
    """No connection: why. The client's nonce shows that it answers this client's hello."""

    nonce: bytes
    code: int
    reason: str


class AckFrame(msgspec.Struct, frozen=True):
    """Packets received: ranges (first, last) of truncated numbers, newest first, and how long the newest waited.

    `next_position`: with go-back-n and stop-and-wait, the next position expected (truncated).
    """

    delay_us: int
    ranges: tuple[tuple[int, int], ...]
    next_position: int | None = None


class ConfirmFrame(msgspec.Struct, frozen=True):
    """Confirms every record of the channel up to `sequence`; `reached` is the count for the last one."""

    channel: int
    sequence: int
    reached: int


class CreditFrame(msgspec.Struct, frozen=True):
    """How many bytes may have been sent in all on the channel, or with channel 0 on the whole connection."""

    channel: int
    limit: int


class BlockedFrame(msgspec.Struct, frozen=True):
    """The sender has something to send but the limit it knows is used up."""

    channel: int
    limit: int


class PathProbeFrame(msgspec.Struct, frozen=True):
    """Who sees this can answer it: a check of an address."""

    challenge: bytes


class PathResponseFrame(msgspec.Struct, frozen=True):
    """The answer to a path probe, proved with the connection's key."""

    challenge: bytes
    mac: bytes


class CloseFrame(msgspec.Struct, frozen=True):
    """The end of the connection, proved with its key."""

    code: int
    reason: str
    mac: bytes


class ResetFrame(msgspec.Struct, frozen=True):
    """The server does not know this connection (any more): the token from accept proves it."""

    token: bytes


class CryptoFrame(msgspec.Struct, frozen=True):
    """A part of the TLS handshake: bytes of the sender's stream, and how many of the receiver's stream have arrived."""

    offset: int
    acknowledged: int
    body: bytes


class TokenFrame(msgspec.Struct, frozen=True):
    """The token of the server's resets, on a sealed connection: the accept does not have it."""

    token: bytes


class DataFrame(msgspec.Struct, frozen=True, gc=False):
    """A fragment of a record, or all of it. `record` and `position` are truncated to 32 bits."""

    flags: int
    channel: int
    record: int
    offset: int
    position: int | None
    body: bytes


Frame: TypeAlias = (
    PingFrame | HelloFrame | CookieFrame | ConnectFrame | AcceptFrame | RefuseFrame | AckFrame | ConfirmFrame
    | CreditFrame | BlockedFrame | PathProbeFrame | PathResponseFrame | CloseFrame | ResetFrame | CryptoFrame
    | TokenFrame | DataFrame
)  # fmt: skip

# Frames of one size, their fields in the order of their struct.
_FIXED: Final[tuple[tuple[int, str, type[Frame]], ...]] = (
    (PING, ">B", PingFrame),
    (HELLO, ">BQ16s", HelloFrame),
    (COOKIE, ">B20s16s", CookieFrame),
    (CONFIRM, ">BIQI", ConfirmFrame),
    (CREDIT, ">BIQ", CreditFrame),
    (BLOCKED, ">BIQ", BlockedFrame),
    (PATH_PROBE, ">B8s", PathProbeFrame),
    (PATH_RESPONSE, ">B8s16s", PathResponseFrame),
    (RESET, ">B16s", ResetFrame),
    (TOKEN, ">B16s", TokenFrame),
)
_FIXED_BY_TYPE: Final = {kind: (struct.Struct(layout), frame) for kind, layout, frame in _FIXED}
_FIXED_BY_CLASS: Final = {frame: (struct.Struct(layout), kind) for kind, layout, frame in _FIXED}


def encode_frame(frame: Frame) -> bytes:
    """The bytes of one frame. The fields must be in range: they are the caller's own."""
    fixed = _FIXED_BY_CLASS.get(type(frame))
    if fixed is not None:
        layout, kind = fixed
        return layout.pack(kind, *msgspec.structs.astuple(frame))
    match frame:
        case DataFrame():
            return _encode_data(frame)
        case AckFrame():
            return _encode_ack(frame)
        case ConnectFrame(connection_id, nonce, cookie, parameters):
            return _CONNECT.pack(CONNECT, connection_id, nonce, cookie, len(parameters)) + parameters
        case AcceptFrame(connection_id, nonce, token, parameters):
            return _ACCEPT.pack(ACCEPT, connection_id, nonce, token, len(parameters)) + parameters
        case RefuseFrame(nonce, code, reason):
            text = encode_reason(reason)
            return _REFUSE.pack(REFUSE, nonce, code, len(text)) + text
        case CloseFrame(code, reason, mac):
            text = encode_reason(reason)
            return _CLOSE.pack(CLOSE, code, len(text)) + text + mac
        case CryptoFrame(offset, acknowledged, body):
            return CRYPTO_HEADER.pack(CRYPTO, offset, acknowledged, len(body)) + body
    raise TypeError(f"not a frame: {frame!r}")


def _encode_ack(frame: AckFrame) -> bytes:
    numbers = [number for span in frame.ranges for number in span]
    if frame.next_position is None:
        head = _ACK.pack(ACK, frame.delay_us, len(frame.ranges))
    else:
        head = _ACK_POSITION.pack(ACK_POSITION, frame.delay_us, frame.next_position, len(frame.ranges))
    return head + struct.pack(f">{len(numbers)}I", *numbers)


def _encode_data(frame: DataFrame) -> bytes:
    kind = DATA | frame.flags
    if frame.flags & WHOLE:
        parts = [DATA_HEADER.pack(kind, frame.channel, frame.record)]
    else:
        parts = [FRAGMENT_HEADER.pack(kind, frame.channel, frame.record, frame.offset)]
    if frame.position is not None:
        parts.append(U32.pack(frame.position))
    if frame.flags & HAS_LENGTH:
        parts.append(U16.pack(len(frame.body)))
    parts.append(frame.body)
    return b"".join(parts)


def encode_reason(reason: str) -> bytes:
    """The text as UTF-8, cut to what a frame holds without cutting a character."""
    text = reason.encode("utf-8", "replace")
    return text if len(text) <= MAX_REASON_BYTES else text[:MAX_REASON_BYTES].decode("utf-8", "ignore").encode()


def decode_frames(frames: bytes) -> list[Frame]:
    """All frames of a packet, or DecodeError: a packet with one bad frame is bad as a whole."""
    found: list[Frame] = []
    at = 0
    end = len(frames)
    while at < end:
        kind = frames[at]
        if kind == PADDING:
            if frames.count(0, at) != end - at:
                raise DecodeError("frame", "padding that is not zero")
            break
        frame, at = _decode_frame(frames, at)
        found.append(frame)
        if len(found) > MAX_FRAMES:
            raise DecodeError("frame", f"more than {MAX_FRAMES} frames")
    if not found:
        raise DecodeError("frame", "no frame")
    return found


def decode_first_frame(frames: bytes) -> Frame:
    """Only the frame that a packet begins with: all that matters of a packet that belongs to no connection."""
    return _decode_frame(frames, 0)[0]


def _decode_frame(frames: bytes, at: int) -> tuple[Frame, int]:
    """The frame that begins at `at`, and where the next one does."""
    kind = frames[at]
    decoder = _decode_data if kind & 0xC0 == DATA else _DECODERS.get(kind, _decode_fixed)
    try:
        return decoder(frames, at)
    except struct.error:
        raise DecodeError("frame", f"type {kind:#04x} is cut short") from None


def _decode_fixed(frames: bytes, at: int) -> tuple[Frame, int]:
    fixed = _FIXED_BY_TYPE.get(frames[at])
    if fixed is None:
        raise DecodeError("frame", f"unknown type {frames[at]:#04x}")
    layout, frame = fixed
    return frame(*layout.unpack_from(frames, at)[1:]), at + layout.size


def _decode_data(frames: bytes, at: int) -> tuple[Frame, int]:
    flags = frames[at] & 0x3F
    position = None
    if flags & WHOLE:
        _, channel, record = DATA_HEADER.unpack_from(frames, at)
        offset = 0
        at += DATA_HEADER.size
    else:
        _, channel, record, offset = FRAGMENT_HEADER.unpack_from(frames, at)
        at += FRAGMENT_HEADER.size
    if flags & HAS_POSITION:
        (position,) = U32.unpack_from(frames, at)
        at += U32.size
    stop = len(frames)
    if flags & HAS_LENGTH:
        (length,) = U16.unpack_from(frames, at)
        at += U16.size
        stop = at + length
        if stop > len(frames):
            raise DecodeError("frame", "data is cut short")
    if flags & UNRELIABLE and flags & (WHOLE | HAS_POSITION | END) != WHOLE:
        raise DecodeError("frame", "an unreliable record is whole, has no position and ends no channel")
    if flags & END and not flags & (WHOLE | LAST):
        raise DecodeError("frame", "a channel ends with the end of a record")
    if stop == at and not flags & (WHOLE | LAST):
        raise DecodeError("frame", "an empty fragment")
    if offset + stop - at > LARGEST_RECORD_BYTES:
        raise DecodeError("frame", "a fragment beyond the largest record")
    return DataFrame(flags, channel, record, offset, position, frames[at:stop]), stop


def _decode_connect(frames: bytes, at: int) -> tuple[Frame, int]:
    _, connection_id, nonce, cookie, length = _CONNECT.unpack_from(frames, at)
    at += _CONNECT.size
    return ConnectFrame(connection_id, nonce, cookie, _take(frames, at, length)), at + length


def _decode_accept(frames: bytes, at: int) -> tuple[Frame, int]:
    _, connection_id, nonce, token, length = _ACCEPT.unpack_from(frames, at)
    at += _ACCEPT.size
    return AcceptFrame(connection_id, nonce, token, _take(frames, at, length)), at + length


def _decode_refuse(frames: bytes, at: int) -> tuple[Frame, int]:
    _, nonce, code, length = _REFUSE.unpack_from(frames, at)
    at += _REFUSE.size
    return RefuseFrame(nonce, code, _reason(_take(frames, at, length))), at + length


def _decode_ack(frames: bytes, at: int) -> tuple[Frame, int]:
    next_position = None
    if frames[at] == ACK:
        _, delay_us, count = _ACK.unpack_from(frames, at)
        at += _ACK.size
    else:
        _, delay_us, next_position, count = _ACK_POSITION.unpack_from(frames, at)
        at += _ACK_POSITION.size
    return AckFrame(delay_us, _ranges(frames, at, count), next_position), at + 8 * count


def _ranges(frames: bytes, at: int, count: int) -> tuple[tuple[int, int], ...]:
    if not 1 <= count <= MAX_ACK_RANGES:
        raise DecodeError("frame", f"{count} ranges, an acknowledgement has 1 to {MAX_ACK_RANGES}")
    numbers = struct.unpack_from(f">{2 * count}I", frames, at)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _decode_close(frames: bytes, at: int) -> tuple[Frame, int]:
    _, code, length = _CLOSE.unpack_from(frames, at)
    at += _CLOSE.size
    reason = _reason(_take(frames, at, length))
    at += length
    return CloseFrame(code, reason, _take(frames, at, MAC_BYTES)), at + MAC_BYTES


def _decode_crypto(frames: bytes, at: int) -> tuple[Frame, int]:
    _, offset, acknowledged, length = CRYPTO_HEADER.unpack_from(frames, at)
    at += CRYPTO_HEADER.size
    return CryptoFrame(offset, acknowledged, _take(frames, at, length)), at + length


def _take(frames: bytes, at: int, length: int) -> bytes:
    if at + length > len(frames):
        raise DecodeError("frame", "a field is cut short")
    return frames[at : at + length]


def _reason(text: bytes) -> str:
    if len(text) > MAX_REASON_BYTES:
        raise DecodeError("frame", f"a reason of {len(text)} bytes, at most {MAX_REASON_BYTES}")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise DecodeError("frame", "a reason that is not UTF-8") from None


_DECODERS: Final[dict[int, Callable[[bytes, int], tuple[Frame, int]]]] = {
    CONNECT: _decode_connect,
    ACCEPT: _decode_accept,
    REFUSE: _decode_refuse,
    ACK: _decode_ack,
    ACK_POSITION: _decode_ack,
    CLOSE: _decode_close,
    CRYPTO: _decode_crypto,
}
