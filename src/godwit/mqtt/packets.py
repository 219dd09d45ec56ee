"""MQTT packets of clients, bytes -> values: what a server reads of MQTT 3.1, 3.1.1 and 5.0.

    PacketReader.feed(data)    packets of a client, as many as are complete; `error` if the next one is invalid

Packets of the server are in godwit.mqtt.encoding.

A packet is refused with the reason code of MQTT 5.0 (PacketError.code). Nothing is allocated for a length that a client
merely claims: a packet is decoded when it is complete, and one that is longer than the limit is refused at its header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from enum import IntEnum
from typing import Any, Final, TypeAlias

import msgspec

from godwit.limits import KIB, MAX_WILL_BYTES

V3_1: Final = 3
V3_1_1: Final = 4
V5: Final = 5
MAX_REMAINING_BYTES: Final = 268_435_455
"""The largest length that the header of a packet can express."""
MAX_CONNECT_BYTES: Final = MAX_WILL_BYTES + 192 * KIB
"""The longest packet before the login: a will, and the longest client identifier, user name and password."""
MAX_CONTROL_PACKET_BYTES: Final = 1024 * KIB
"""The longest packet that is not a PUBLISH: a longer one would keep the broker busy for seconds."""
MAX_PACKET_FILTERS: Final = 8192
"""Filters in one SUBSCRIBE or UNSUBSCRIBE."""
MAX_PROPERTIES_BYTES: Final = 64 * KIB
MAX_USER_PROPERTIES: Final = 1024
"""Of one packet. A message keeps fewer of them, see godwit.wire.extension."""
MAX_RUN_BYTES: Final = 256 * KIB
"""Of a PublishRun, with the heads of its packets."""
MAX_CACHED_TOPICS: Final = 16_384
MAX_CACHED_TOPIC_BYTES: Final = 256
"""Topics whose text is remembered for all clients together, so that it is decoded and checked once."""


class PacketType(IntEnum):
    """The high four bits of a packet."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


_PUBLISH: Final = 3
_PUBACK: Final = 0x40
_PUBACK_HEAD: Final = b"\x40\x02"


class Reason(IntEnum):
    """The reason codes of MQTT 5.0 that the broker sends or looks at."""

    SUCCESS = 0x00
    DISCONNECT_WITH_WILL = 0x04
    NO_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION = 0x11
    CONTINUE = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED = 0x81
    PROTOCOL = 0x82
    IMPLEMENTATION = 0x83
    BAD_VERSION = 0x84
    BAD_CLIENT_ID = 0x85
    BAD_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    BUSY = 0x89
    SHUTDOWN = 0x8B
    BAD_AUTH_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    TAKEN_OVER = 0x8E
    BAD_FILTER = 0x8F
    BAD_TOPIC = 0x90
    UNKNOWN_PACKET_ID = 0x92
    RECEIVE_MAXIMUM = 0x93
    BAD_ALIAS = 0x94
    TOO_LARGE = 0x95
    RATE = 0x96
    QUOTA = 0x97
    ADMINISTRATIVE = 0x98
    NO_SHARED = 0x9E


class PacketError(Exception):
    """A packet of a client is refused; the connection ends with this reason code."""

    def __init__(self, code: int, text: str, *, is_silent: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.is_silent = is_silent
        """Whether the connection is closed without a packet that has the code."""
        self.version = 0
        """Of a CONNECT that is refused, as far as it was read."""


# -- properties of MQTT 5.0 -------------------------------------------------------------------------------------------


class Property(IntEnum):
    """The properties, by their numbers."""

    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTH_METHOD = 0x15
    AUTH_DATA = 0x16
    REQUEST_PROBLEM_INFO = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE_INFO = 0x19
    RESPONSE_INFO = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARDS_AVAILABLE = 0x28
    SUBSCRIPTION_IDS_AVAILABLE = 0x29
    SHARED_AVAILABLE = 0x2A


PacketProperties: TypeAlias = Mapping[int, Any]
"""By number. A user property is a list of pairs, in order; a subscription identifier to send may be a list."""
NO_PACKET_PROPERTIES: Final[PacketProperties] = {}

BYTE, SHORT, LONG, VARINT, BINARY, TEXT, PAIR = range(7)
_WILL: Final = 16
"""The will of a CONNECT, among the packet types."""
KINDS: Final[dict[int, int]] = {
    0x01: BYTE, 0x02: LONG, 0x03: TEXT, 0x08: TEXT, 0x09: BINARY, 0x0B: VARINT, 0x11: LONG, 0x12: TEXT,
    0x13: SHORT, 0x15: TEXT, 0x16: BINARY, 0x17: BYTE, 0x18: LONG, 0x19: BYTE, 0x1A: TEXT, 0x1C: TEXT,
    0x1F: TEXT, 0x21: SHORT, 0x22: SHORT, 0x23: SHORT, 0x24: BYTE, 0x25: BYTE, 0x26: PAIR, 0x27: LONG,
    0x28: BYTE, 0x29: BYTE, 0x2A: BYTE,
}  # fmt: skip
_OF_MESSAGES: Final = frozenset((0x01, 0x02, 0x03, 0x08, 0x09, 0x26))
_OF_ACKS: Final = frozenset((0x1F, 0x26))
_ALLOWED: Final[dict[int, frozenset[int]]] = {
    PacketType.CONNECT: frozenset((0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27)),
    PacketType.PUBLISH: _OF_MESSAGES | {0x23},
    PacketType.PUBACK: _OF_ACKS,
    PacketType.PUBREC: _OF_ACKS,
    PacketType.PUBREL: _OF_ACKS,
    PacketType.PUBCOMP: _OF_ACKS,
    PacketType.SUBSCRIBE: frozenset((0x0B, 0x26)),
    PacketType.UNSUBSCRIBE: frozenset((0x26,)),
    PacketType.DISCONNECT: frozenset((0x11, 0x1C, 0x1F, 0x26)),
    PacketType.AUTH: frozenset((0x15, 0x16, 0x1F, 0x26)),
    _WILL: _OF_MESSAGES | {0x18},
}
"""The properties that a client may send, by the type of the packet."""
_FLAGS: Final = frozenset((0x01, 0x17, 0x19))
_NOT_ZERO: Final = frozenset((0x0B, 0x21, 0x23, 0x27))

# -- texts ------------------------------------------------------------------------------------------------------------

_BAD_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
_WILDCARD: Final = re.compile("[+#]")
_SHARE: Final = "$share/"


def _decode_text(raw: bytes, code: int = Reason.MALFORMED) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise PacketError(code, "a text is not valid UTF-8") from None
    if _BAD_CHARACTER.search(text):
        raise PacketError(code, "a text has a control character or a character that does not exist")
    return text


def _check_topic(topic: str) -> str:
    if not topic or _WILDCARD.search(topic):
        raise PacketError(Reason.MALFORMED, "the topic is empty or has a wildcard")
    return topic


def _check_filter(text: str) -> str:
    levels = text.split("/")
    if text.startswith(_SHARE) and (len(levels) < 3 or not levels[1] or _WILDCARD.search(levels[1]) or not levels[2:]):
        raise PacketError(Reason.MALFORMED, "a shared subscription lacks its group or its filter")
    if not text or (text.startswith(_SHARE) and not text[len(_SHARE) + len(levels[1]) + 1 :]):
        raise PacketError(Reason.MALFORMED, "the filter is empty")
    if "#" in levels[:-1] or any(len(level) > 1 and _WILDCARD.search(level) for level in levels):
        raise PacketError(Reason.MALFORMED, "the filter has a wildcard at a place where it is not allowed")
    return text


# -- packets of clients -----------------------------------------------------------------------------------------------


class WillMessage(msgspec.Struct, frozen=True):
    """The will in a CONNECT."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: PacketProperties = NO_PACKET_PROPERTIES


class ConnectPacket(msgspec.Struct, frozen=True, kw_only=True):
    """CONNECT."""

    version: int
    is_bridge: bool = False
    client_id: str
    is_clean: bool
    keep_alive_s: int
    user: str | None = None
    password: bytes | None = None
    will: WillMessage | None = None
    properties: PacketProperties = NO_PACKET_PROPERTIES

    def __repr__(self) -> str:  # without the password
        return f"<ConnectPacket of version {self.version}, client {self.client_id!r}, user {self.user!r}>"


class PublishPacket(msgspec.Struct, frozen=True, gc=False):
    """PUBLISH of a client. `flags`: the low four bits of the packet; `topic` is empty if there is only an alias."""

    topic: str
    payload: bytes
    flags: int
    packet_id: int
    properties: PacketProperties = NO_PACKET_PROPERTIES

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3


class PublishRun(msgspec.Struct, frozen=True, gc=False):
    """Several PUBLISH of QoS 0 or 1 in a row that differ only in their payloads and packet identifiers."""

    topic: str
    payloads: list[bytes]
    flags: int
    packet_ids: list[int]


class AckPacket(msgspec.Struct, frozen=True, gc=False):
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    kind: int
    packet_id: int
    code: int = 0


class AckRun(msgspec.Struct, frozen=True, gc=False):
    """Several PUBACK in a row."""

    packet_ids: list[int]


class SubscribePacket(msgspec.Struct, frozen=True):
    """SUBSCRIBE. `filters`: with their options; bits 0-1 QoS, 2 no local, 3 retain as published, 4-5 handling."""

    packet_id: int
    filters: list[tuple[str, int]]
    properties: PacketProperties = NO_PACKET_PROPERTIES


class UnsubscribePacket(msgspec.Struct, frozen=True):
    """UNSUBSCRIBE."""

    packet_id: int
    filters: list[str]


class PingPacket(msgspec.Struct, frozen=True):
    """PINGREQ."""


class DisconnectPacket(msgspec.Struct, frozen=True):
    """DISCONNECT."""

    code: int = 0
    properties: PacketProperties = NO_PACKET_PROPERTIES


class AuthPacket(msgspec.Struct, frozen=True):
    """AUTH."""

    code: int = 0
    properties: PacketProperties = NO_PACKET_PROPERTIES


Packet: TypeAlias = (
    ConnectPacket
    | PublishPacket
    | PublishRun
    | AckPacket
    | AckRun
    | SubscribePacket
    | UnsubscribePacket
    | PingPacket
    | DisconnectPacket
    | AuthPacket
)


# -- reading ----------------------------------------------------------------------------------------------------------


class _Cursor:
    """A position in the body of one packet. Reading beyond its end is a PacketError."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    def take(self, count: int) -> bytes:
        stop = self.at + count
        if stop > self.end:
            raise PacketError(Reason.MALFORMED, "the packet is cut short")
        piece = self.data[self.at : stop]
        self.at = stop
        return piece

    def byte(self) -> int:
        return self.take(1)[0]

    def short(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def long(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def varint(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if not byte and shift:
                    raise PacketError(Reason.MALFORMED, "a number has more bytes than it needs")
                return value
        raise PacketError(Reason.MALFORMED, "a number has more than four bytes")

    def binary(self) -> bytes:
        return self.take(self.short())

    def text(self) -> str:
        return _decode_text(self.binary())

    def pair(self) -> tuple[str, str]:
        return self.text(), self.text()

    def packet_id(self, code: int = Reason.MALFORMED) -> int:
        number = self.short()
        if not number:
            raise PacketError(code, "packet identifier 0")
        return number

    def require_end(self) -> None:
        if self.at != self.end:
            raise PacketError(Reason.MALFORMED, f"the packet has {self.end - self.at} bytes too many")

    def properties(self, where: int) -> PacketProperties:
        """Read the properties of a packet of type `where`."""
        length = self.varint()
        if not length:
            return NO_PACKET_PROPERTIES
        stop = self.at + length
        if stop > self.end:
            raise PacketError(Reason.MALFORMED, "the properties are cut short")
        if length > MAX_PROPERTIES_BYTES:
            raise PacketError(Reason.TOO_LARGE, f"{length} bytes of properties: at most {MAX_PROPERTIES_BYTES}")
        inner = _Cursor(self.data, self.at, stop)
        found: dict[int, Any] = {}
        problem: PacketError | None = None
        while inner.at < stop:
            number = inner.varint()
            kind = KINDS.get(number)
            if kind is None:
                raise PacketError(Reason.MALFORMED, f"property {number:#x} does not exist")
            value: Any = _READERS[kind](inner)
            if number not in _ALLOWED[where]:
                code = Reason.MALFORMED if where in _STRICT else Reason.PROTOCOL
                problem = problem or PacketError(code, f"property {number:#x} is not allowed in this packet")
            elif kind == PAIR:
                pairs = found.setdefault(number, [])
                if len(pairs) == MAX_USER_PROPERTIES:
                    raise PacketError(Reason.QUOTA, f"more than {MAX_USER_PROPERTIES} user properties")
                pairs.append(value)
            elif number in found:
                raise PacketError(Reason.PROTOCOL, f"property {number:#x} occurs twice")
            elif (number in _FLAGS and value > 1) or (number in _NOT_ZERO and not value):
                raise PacketError(Reason.PROTOCOL, f"property {number:#x} must not be {value}")
            else:
                found[number] = value
        if problem is not None:
            raise problem
        if Property.AUTH_DATA in found and Property.AUTH_METHOD not in found:
            raise PacketError(Reason.PROTOCOL, "authentication data without a method")
        response = found.get(Property.RESPONSE_TOPIC)
        if response is not None and (not response or _WILDCARD.search(response)):
            raise PacketError(Reason.PROTOCOL, "the response topic is empty or has a wildcard")
        self.at = stop
        return found


_READERS: Final = (
    _Cursor.byte, _Cursor.short, _Cursor.long, _Cursor.varint, _Cursor.binary, _Cursor.text, _Cursor.pair,
)  # fmt: skip
_STRICT: Final = frozenset((PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE))
"""Packets in which a property that is not allowed counts as malformed."""
_BRIDGE: Final = 0x80
"""A bridge of Mosquitto sets this bit of the version."""


def _read_connect(flags: int, cursor: _Cursor) -> ConnectPacket:
    name = cursor.binary()
    version = cursor.byte()
    if name not in (b"MQTT", b"MQIsdp"):
        raise PacketError(Reason.MALFORMED, "this is not MQTT")
    is_bridge = bool(version & _BRIDGE)
    version &= ~_BRIDGE
    if version not in ((V3_1,) if name == b"MQIsdp" else (V3_1_1, V5)):
        error = PacketError(Reason.BAD_VERSION, f"version {version} is not supported")
        error.version = V3_1_1 if version in (V3_1, V3_1_1) else V5
        raise error
    try:
        return _read_connect_fields(flags, cursor, version, is_bridge)
    except PacketError as error:
        error.version = version
        raise


def _read_connect_fields(flags: int, cursor: _Cursor, version: int, is_bridge: bool) -> ConnectPacket:
    if flags and version != V3_1:
        raise PacketError(Reason.MALFORMED, "a CONNECT has flags in its header", is_silent=True)
    if cursor.end - cursor.at < 3:
        raise PacketError(Reason.MALFORMED, "the packet is cut short", is_silent=True)
    bits = cursor.byte()
    keep_alive_s = cursor.short()
    qos = bits >> 3 & 3
    if bits & 1 and version != V3_1:
        raise PacketError(Reason.MALFORMED, "the reserved flag of a CONNECT is set")
    if qos == 3 or (not bits & 4 and bits & 0x38) or (bits & 0xC0 == 0x40 and version < V5):
        raise PacketError(
            Reason.MALFORMED, f"the flags {bits:#x} of a CONNECT contradict each other", is_silent=qos == 3
        )
    properties = cursor.properties(PacketType.CONNECT) if version == V5 else NO_PACKET_PROPERTIES
    client_id = _decode_text(cursor.binary(), Reason.BAD_CLIENT_ID if version == V5 else Reason.MALFORMED)
    will = None
    if bits & 4:
        will_properties = cursor.properties(_WILL) if version == V5 else NO_PACKET_PROPERTIES
        topic = _check_topic(cursor.text())
        will = WillMessage(topic, cursor.binary(), qos, bool(bits & 0x20), will_properties)
    try:
        user = cursor.text() if bits & 0x80 else None
        password = cursor.binary() if bits & 0x40 else None
    except PacketError as error:
        error.is_silent = True
        raise
    cursor.require_end()
    if not client_id and (version == V3_1 or (version == V3_1_1 and not bits & 2)):
        raise PacketError(Reason.BAD_CLIENT_ID, "a session that is kept needs a client identifier")
    return ConnectPacket(
        version=version,
        is_bridge=is_bridge,
        client_id=client_id,
        is_clean=bool(bits & 2),
        keep_alive_s=keep_alive_s,
        user=user,
        password=password,
        will=will,
        properties=properties,
    )


_PUBACK_CODES: Final = frozenset((0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_PUBREL_CODES: Final = frozenset((0, 0x92))
_ACK_CODES: Final = {
    PacketType.PUBACK: _PUBACK_CODES,
    PacketType.PUBREC: _PUBACK_CODES,
    PacketType.PUBREL: _PUBREL_CODES,
    PacketType.PUBCOMP: _PUBREL_CODES,
}
_DISCONNECT_CODES: Final = frozenset((0, 4, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99))
_AUTH_CODES: Final = frozenset((0, 0x18, 0x19))


def _read_ack(kind: int, flags: int, cursor: _Cursor, version: int) -> AckPacket:
    if flags != (2 if kind == PacketType.PUBREL else 0) and not (version == V3_1 and kind == PacketType.PUBREL):
        reason = Reason.PROTOCOL if kind == PacketType.PUBREL else Reason.MALFORMED
        raise PacketError(reason, "the flags in the header are not those of this packet")
    packet_id = cursor.packet_id(Reason.PROTOCOL)
    code = 0
    if version == V5 and cursor.at < cursor.end:
        code = cursor.byte()
        if code not in _ACK_CODES[PacketType(kind)]:
            raise PacketError(Reason.PROTOCOL, f"reason code {code:#x} is not allowed in this packet")
        if cursor.at < cursor.end:
            cursor.properties(kind)
    cursor.require_end()
    return AckPacket(kind, packet_id, code)


def _require_few(filters: Sized) -> None:
    if len(filters) == MAX_PACKET_FILTERS:
        raise PacketError(Reason.QUOTA, f"more than {MAX_PACKET_FILTERS} filters in one packet")


def _read_subscribe(flags: int, cursor: _Cursor, version: int) -> SubscribePacket:
    if flags & ~8 != 2 or (flags & 8 and version != V3_1):
        raise PacketError(Reason.MALFORMED, "the flags in the header are not those of a SUBSCRIBE")
    packet_id = cursor.packet_id()
    properties = cursor.properties(PacketType.SUBSCRIBE) if version == V5 else NO_PACKET_PROPERTIES
    filters: list[tuple[str, int]] = []
    while not filters or cursor.at < cursor.end:
        text = _check_filter(cursor.text())
        options = cursor.byte()
        if options & 3 == 3 or options & (0xC0 if version == V5 else 0xFC) or options & 0x30 == 0x30:
            raise PacketError(Reason.MALFORMED, f"the options {options:#x} of a subscription are not valid")
        if options & 4 and text.startswith(_SHARE):
            raise PacketError(Reason.PROTOCOL, "a shared subscription must not have `no local`")
        _require_few(filters)
        filters.append((text, options))
    return SubscribePacket(packet_id, filters, properties)


def _read_unsubscribe(flags: int, cursor: _Cursor, version: int) -> UnsubscribePacket:
    if flags & ~8 != 2 or (flags & 8 and version != V3_1):
        raise PacketError(Reason.MALFORMED, "the flags in the header are not those of an UNSUBSCRIBE")
    packet_id = cursor.packet_id()
    if version == V5:
        cursor.properties(PacketType.UNSUBSCRIBE)
    filters: list[str] = []
    while not filters or cursor.at < cursor.end:
        _require_few(filters)
        filters.append(_check_filter(cursor.text()))
    return UnsubscribePacket(packet_id, filters)


def _read_short(kind: int, flags: int, cursor: _Cursor, version: int) -> Packet:
    """Read PINGREQ, DISCONNECT or AUTH."""
    is_empty = cursor.at == cursor.end
    if flags or (not is_empty and (kind == PacketType.PINGREQ or version < V5)):
        is_ping = kind == PacketType.PINGREQ or version < V5
        text = "the packet has flags or bytes that it must not have"
        raise PacketError(Reason.MALFORMED if is_ping else Reason.PROTOCOL, text, is_silent=not is_empty)
    code, properties = 0, NO_PACKET_PROPERTIES
    if not is_empty:
        is_disconnect = kind == PacketType.DISCONNECT
        code = cursor.byte()
        if code not in (_DISCONNECT_CODES if is_disconnect else _AUTH_CODES):
            text = f"reason code {code:#x} is not allowed in this packet"
            raise PacketError(Reason.PROTOCOL, text, is_silent=is_disconnect)
        if cursor.at < cursor.end:
            properties = cursor.properties(kind)
        cursor.require_end()
    if kind == PacketType.PINGREQ:
        return PingPacket()
    return DisconnectPacket(code, properties) if kind == PacketType.DISCONNECT else AuthPacket(code, properties)


class PacketReader:
    """Cuts the bytes of one client into packets."""

    __slots__ = ("_buffer", "_needed_bytes", "_topics", "error", "max_bytes", "version")

    def __init__(self, topics: dict[bytes, str] | None = None) -> None:
        """`topics`: the known ones, for all clients together. The reader adds to them."""
        self.version = 0
        """Of the CONNECT; 0 before it."""
        self.max_bytes = MAX_CONNECT_BYTES
        """Of one packet with its header. Set it when the login has been decided."""
        self.error: PacketError | None = None
        """Why the next packet is refused: nothing more is read."""
        self._buffer = bytearray()
        self._needed_bytes = 0
        """The buffer has a complete packet only when it has this many."""
        self._topics: dict[bytes, str] = {} if topics is None else topics

    @property
    def is_empty(self) -> bool:
        """Whether everything was read, without an error."""
        return not self._buffer and self.error is None

    @property
    def held_bytes(self) -> int:
        """The bytes of an incomplete packet."""
        return len(self._buffer)

    def feed(self, data: bytes, max_packets: int = 1 << 30) -> list[Packet]:
        """Return the packets that are complete with these bytes, up to a CONNECT, `max_packets` or `error`.

        Call it again with b"" for the packets after that.
        """
        if self.error is not None:
            return []
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed_bytes:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        self._needed_bytes = 0
        packets: list[Packet] = []
        at = 0
        try:
            at = self._read_all(data, packets, max_packets)
        except PacketError as error:
            self.error = error
            return packets
        if at < len(data):
            self._buffer += data[at:] if at else data
        return packets

    def _read_all(self, data: bytes, packets: list[Packet], max_packets: int) -> int:
        """Append the packets in `data` to a list, and return the offset behind the last one."""
        at, end = 0, len(data)
        if not self.version and data and data[0] >> 4 != PacketType.CONNECT:
            raise PacketError(Reason.PROTOCOL, "the first packet is not a CONNECT")
        while end - at >= 2:
            if len(packets) >= max_packets:
                return at
            if data[at] < PacketType.CONNECT << 4:
                raise PacketError(Reason.PROTOCOL, "packets of type 0 do not exist")
            size = data[at + 1]
            body = at + 2
            if size >= 0x80:
                size, body = self._read_length(data, at, end)
                if not body:
                    return at
            stop = body + size
            if stop - at > self.max_bytes or stop - at > MAX_CONTROL_PACKET_BYTES:
                self._check_size(data[at] >> 4, stop - at)
            if stop > end:
                self._needed_bytes = stop - at
                return at
            first = data[at]
            begin, at = at, stop
            if first >> 4 == _PUBLISH and self.version:
                packet = self._read_publish(first & 15, data, body, stop)
                if stop < end and first & 12 == 0 and not packet.properties:
                    head = data[begin : body + 2 + (data[body] << 8 | data[body + 1])]
                    if data.startswith(head, stop):
                        at = self._read_run(packets, packet, data, head, begin, stop)
                        continue
                packets.append(packet)
                continue
            if first == _PUBACK and size == 2 and self.version and (data[body] or data[body + 1]):
                at = self._read_acks(packets, data, body)
                continue
            other = self._read_packet(first >> 4, first & 15, _Cursor(data, body, stop))
            packets.append(other)
            if isinstance(other, ConnectPacket):
                self.version = other.version
                return at
        return at

    def _check_size(self, kind: int, size: int) -> None:
        """Raise PacketError if a packet of this type is too long."""
        limit = self.max_bytes if kind == PacketType.PUBLISH else min(self.max_bytes, MAX_CONTROL_PACKET_BYTES)
        if size > limit:
            raise PacketError(Reason.TOO_LARGE, f"a packet of {size} bytes: at most {limit} are allowed")

    def _read_length(self, data: bytes, at: int, end: int) -> tuple[int, int]:
        """Return the length of a packet whose length has more than one byte, and where its body begins (0: unknown)."""
        size = data[at + 1] & 0x7F
        for index, shift in ((2, 7), (3, 14), (4, 21)):
            if at + index >= end:
                return 0, 0
            byte = data[at + index]
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                return size, at + index + 1
        raise PacketError(Reason.MALFORMED, "the length of a packet has more than four bytes", is_silent=True)

    def _read_run(
        self, packets: list[Packet], packet: PublishPacket, data: bytes, head: bytes, begin: int, stop: int
    ) -> int:
        """Append a PUBLISH and the next ones that begin with the same head: length, flags and topic. Return the offset
        behind them.

        Devices often send such runs, and comparing their heads is much faster than reading each.
        """
        size = stop - begin
        id_at = len(head)
        payload_at = size - len(packet.payload)
        at = stop
        last = min(len(data), begin + MAX_RUN_BYTES) - size
        if self.version == V5:
            while at <= last and data.startswith(head, at) and not data[at + payload_at - 1]:
                at += size
        else:
            while at <= last and data.startswith(head, at):
                at += size
        if packet.packet_id:
            ids = [data[id] << 8 | data[id + 1] for id in range(begin + id_at, at, size)]
            if 0 in ids:  # it is refused when it is read alone
                at = begin + size * ids.index(0)
                ids = ids[: ids.index(0)]
        else:
            ids = []
        if at == stop:
            packets.append(packet)
        else:
            payloads = [data[start + payload_at : start + size] for start in range(begin, at, size)]
            packets.append(PublishRun(packet.topic, payloads, packet.flags, ids))
        return at

    def _read_acks(self, packets: list[Packet], data: bytes, body: int) -> int:
        """Append a PUBACK, whose body is at this offset, and the next ones. Return the offset behind them."""
        last = len(data) - 2
        ids = [data[body] << 8 | data[body + 1]]
        body += 4
        while body <= last and data[body - 2 : body] == _PUBACK_HEAD and (data[body] or data[body + 1]):
            ids.append(data[body] << 8 | data[body + 1])
            body += 4
        # An identifier of 0 is refused when it is read alone.
        packets.append(AckRun(ids) if len(ids) > 1 else AckPacket(_PUBACK >> 4, ids[0]))
        return body - 2

    def _read_publish(self, flags: int, data: bytes, at: int, stop: int) -> PublishPacket:
        qos = flags >> 1 & 3
        if qos == 3 or (flags & 8 and not qos):
            raise PacketError(Reason.MALFORMED, f"the flags {flags:#x} of a PUBLISH are not valid")
        body = at + 2 + (data[at] << 8 | data[at + 1]) if stop - at >= 2 else stop + 1
        if body > stop:
            raise PacketError(Reason.MALFORMED, "the packet is cut short")
        raw = data[at + 2 : body]
        topic = self._topics.get(raw)
        is_known = topic is not None
        if topic is None:
            topic = _decode_text(raw)
        packet_id = 0
        if qos:
            if body + 2 > stop:
                raise PacketError(Reason.MALFORMED, "the packet is cut short")
            packet_id = data[body] << 8 | data[body + 1]
            body += 2
            if not packet_id:
                raise PacketError(Reason.PROTOCOL, "packet identifier 0")
        properties = NO_PACKET_PROPERTIES
        if self.version == V5:
            if body < stop and not data[body]:
                body += 1
            else:
                cursor = _Cursor(data, body, stop)
                properties = cursor.properties(PacketType.PUBLISH)
                body = cursor.at
        if not is_known and (topic or Property.TOPIC_ALIAS not in properties):
            _check_topic(topic)
            if len(raw) <= MAX_CACHED_TOPIC_BYTES:
                if len(self._topics) >= MAX_CACHED_TOPICS:
                    self._topics.clear()
                self._topics[raw] = topic
        return PublishPacket(topic, data[body:stop], flags, packet_id, properties)

    def _read_packet(self, kind: int, flags: int, cursor: _Cursor) -> Packet:
        version = self.version
        if (kind == PacketType.CONNECT) != (not version):
            raise PacketError(Reason.PROTOCOL, "a second CONNECT, or another packet before it")
        if kind == PacketType.CONNECT:
            return _read_connect(flags, cursor)
        if PacketType.PUBACK <= kind <= PacketType.PUBCOMP:
            return _read_ack(kind, flags, cursor, version)
        if kind == PacketType.SUBSCRIBE:
            return _read_subscribe(flags, cursor, version)
        if kind == PacketType.UNSUBSCRIBE:
            return _read_unsubscribe(flags, cursor, version)
        if kind in (PacketType.PINGREQ, PacketType.DISCONNECT) or (kind == PacketType.AUTH and version == V5):
            return _read_short(kind, flags, cursor, version)
        code = Reason.MALFORMED if flags and kind != PacketType.CONNACK else Reason.PROTOCOL
        is_silent = kind == PacketType.PINGRESP and cursor.at < cursor.end
        raise PacketError(code, f"a client must not send packets of type {kind}", is_silent=is_silent)
