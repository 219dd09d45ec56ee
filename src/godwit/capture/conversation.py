"""The content of a capture, packet by packet: frames and records, repeats, losses and acknowledgements.

A packet carries the connection id of its receiver, so all packets with one id are a *direction*. The two directions of
a connection are known from the ACCEPT of its handshake; without it, from the addresses.

A recording on the machine of the sender or the receiver may have trains: packets of a connection in one datagram, which
its network card would cut or has joined (GSO, GRO). They are reported on one by one.

The frames of a sealed packet are shown if a key log has the secrets of its connection, and the capture its handshake.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

from godwit.capture.key_log import CLIENT, SERVER, KeyLog, SealedOpener
from godwit.capture.pcapng import CapturedDatagram
from godwit.errors import DecodeError
from godwit.wire import cbor
from godwit.wire import packet as wire
from godwit.wire.batch import QOS_SHIFT, decode_head
from godwit.wire.batch import decode_batches as decode_all_batches
from godwit.wire.relay import REWIND, RelayRecord, decode_relay_record

LOST_BEHIND: Final = 3
"""A packet without an acknowledgement counts as lost if one that is newer by this much has one (RFC 9002)."""
MAX_JOINED_BYTES: Final = 64 * 1024 * 1024
"""Of unfinished records together. Further fragments are shown, and not joined."""
MAX_CANDIDATES: Final = 8
"""Places where the second packet of a train may begin: payloads may have connection ids, too."""
IN_BAND: Final = 0xFF
SMALLEST_SEALED_BYTES: Final = wire.HEADER.size + 1 + 16
"""Of a sealed packet: a header, a byte of frames and a tag."""


class PacketReport(msgspec.Struct):
    """The content of a packet of a capture, and its fate."""

    number: int
    """In the capture, from 1."""
    datagram: CapturedDatagram
    packet_number: int | None = None
    """None for a packet of the handshake, and for a datagram that is not a packet."""
    parts: list[str] = []
    """Its frames, in a few words each."""
    problem: str = ""
    """Why it is not an intact packet."""
    is_data: bool = False
    acknowledges: list[int] = []
    """Packets of the capture that this one acknowledges, and no earlier one did."""
    acknowledged_in: int = 0
    """The packet of the capture that acknowledges it; 0 without one."""
    repeats: int = 0
    """The packet of the capture that had one of its fragments before; 0 if it has only new ones."""
    is_duplicate: bool = False
    """Whether the network has delivered it before."""
    missing_before: int = 0
    """Packet numbers before this one that are not in the capture: lost on the way, or skipped."""
    is_lost: bool = False
    """Whether it was not acknowledged, although newer packets were, or its data was sent again."""
    is_repeated: bool = False
    """Whether a later packet has one of its fragments."""


class _Direction:
    """The packets to one connection id."""

    def __init__(self) -> None:
        self.other: _Direction | None = None
        self.expected = 0
        self.seen: dict[int, PacketReport] = {}
        self.fragments: dict[tuple[int, int, int], int] = {}
        self.unfinished: dict[tuple[int, int], _Unfinished] = {}
        self.channels: dict[int, str] = {}
        """Channels by the kind of their record 0."""
        self.largest_acknowledged = -1
        self.sender = ""
        """CLIENT or SERVER, if the capture has the accept."""
        self.suite = 0
        """The algorithm of a sealed connection, from its accept."""
        self.opener: SealedOpener | None = None


class _Unfinished:
    """The fragments of a record that has not arrived completely."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.end: int | None = None

    def whole(self) -> bytes | None:
        """Return the record if it is complete."""
        if self.end is None:
            return None
        joined = bytearray()
        for offset, part in sorted(self.parts.items()):
            if offset > len(joined):
                return None
            joined += part[len(joined) - offset :] if offset < len(joined) else part
        return bytes(joined) if len(joined) >= self.end else None


class CaptureReader:
    """Reads datagrams in the order of the capture, and reports on each."""

    def __init__(self, keys: KeyLog | None = None) -> None:
        """Begin. With `keys`, sealed packets are opened as far as possible."""
        self._keys = keys
        self.opened = 0
        """Sealed packets whose frames are shown."""
        self.reports: list[PacketReport] = []
        self._directions: dict[int, _Direction] = {}
        self._by_addresses: dict[tuple[Any, Any], _Direction] = {}
        self._joined_bytes = 0

    def add(self, datagram: CapturedDatagram) -> PacketReport:
        """Add the next datagram. Return its report, which later packets complete."""
        report = PacketReport(len(self.reports) + 1, datagram)
        self.reports.append(report)
        if datagram.data[:1] in _SEALED:
            self._add_sealed(datagram, report)
            return report
        try:
            connection_id, number, content = wire.decode_packet(datagram.data)
            frames = wire.decode_frames(content)
        except DecodeError as error:
            report.problem = f"cut by the capture at {len(datagram.data)} bytes" if datagram.length else str(error)
            return report
        direction = self._direction(connection_id, datagram)
        if not isinstance(frames[0], _HANDSHAKE):
            self._track(direction, number, report)
        for frame in frames:
            report.parts.append(self._describe(frame, direction, report))
        if isinstance(frames[0], wire.AcceptFrame):
            self._link(connection_id, frames[0])
        elif isinstance(frames[0], wire.CryptoFrame):
            self._find_keys(direction, frames[0])
        return report

    def _add_sealed(self, datagram: CapturedDatagram, report: PacketReport) -> None:
        """Report on the header of a sealed packet; its frames are encrypted."""
        length = datagram.length or len(datagram.data)
        if length < SMALLEST_SEALED_BYTES or len(datagram.data) < wire.HEADER.size:
            report.problem = f"a sealed packet is cut short at {len(datagram.data)} bytes"
            return
        _, connection_id, number = wire.HEADER.unpack_from(datagram.data)
        direction = self._direction(connection_id, datagram)
        self._track(direction, number, report)
        report.parts.append(f"sealed, {length} bytes")
        if direction.opener is None or report.packet_number is None:
            return
        content = direction.opener.open(datagram.data, report.packet_number)
        if content is None:
            return
        self.opened += 1
        try:
            frames = wire.decode_frames(content)
        except DecodeError as error:
            report.problem = str(error)
            return
        report.parts = ["sealed", *(self._describe(frame, direction, report) for frame in frames)]

    def _find_keys(self, direction: _Direction, frame: wire.CryptoFrame) -> None:
        """Look for the secrets of a sealed connection, when its client hello is there."""
        if self._keys is None or direction.sender != CLIENT or direction.opener is not None or frame.offset:
            return
        direction.opener = self._keys.opener(frame.body, direction.suite, CLIENT)
        if direction.other is not None:
            direction.other.opener = self._keys.opener(frame.body, direction.suite, SERVER)

    def finish(self) -> list[PacketReport]:
        """Return all reports, after lost packets were marked."""
        for direction in self._directions.values():
            for number, report in direction.seen.items():
                is_old = number + LOST_BEHIND <= direction.largest_acknowledged
                is_missed = report.is_data and not report.acknowledged_in
                report.is_lost = is_missed and (is_old or report.is_repeated)
        return self.reports

    # -- connections --------------------------------------------------------------------------------------------------

    def _direction(self, connection_id: int, datagram: CapturedDatagram) -> _Direction:
        found = self._directions.get(connection_id)
        if found is None:
            found = self._directions[connection_id] = _Direction()
        if found.other is None and connection_id:
            back = self._by_addresses.get((datagram.destination, datagram.source))
            if back is not None and back is not found and back.other is None:
                found.other, back.other = back, found
            self._by_addresses[datagram.source, datagram.destination] = found
        return found

    def _link(self, client_id: int, accept: wire.AcceptFrame) -> None:
        to_client = self._directions.setdefault(client_id, _Direction())
        to_server = self._directions.setdefault(accept.connection_id, _Direction())
        to_client.other, to_server.other = to_server, to_client
        to_client.sender, to_server.sender = SERVER, CLIENT
        with suppress(DecodeError):
            match cbor.load(accept.parameters):
                case {"seal": [int(suite), *_]}:
                    to_client.suite = to_server.suite = suite

    def _track(self, direction: _Direction, truncated: int, report: PacketReport) -> None:
        is_first = not direction.seen
        number = wire.expand_number(truncated, direction.expected)
        report.packet_number = number
        if number in direction.seen:
            report.is_duplicate = True
            return
        direction.seen[number] = report
        if number >= direction.expected:
            report.missing_before = 0 if is_first else number - direction.expected
            direction.expected = number + 1

    # -- frames -------------------------------------------------------------------------------------------------------

    def _describe(self, frame: wire.Frame, direction: _Direction, report: PacketReport) -> str:
        match frame:
            case wire.DataFrame():
                report.is_data = True
                return self._describe_data(frame, direction, report)
            case wire.AckFrame():
                self._acknowledge(frame, direction, report)
                spans = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in frame.ranges)
                position = "" if frame.next_position is None else f" next position {frame.next_position}"
                return f"ACK {spans}{position}"
            case wire.ConfirmFrame():
                return f"CONFIRM channel {frame.channel} to record {frame.sequence}"
            case wire.CreditFrame():
                return f"CREDIT channel {frame.channel}"
            case wire.BlockedFrame():
                return f"BLOCKED channel {frame.channel}"
            case wire.CryptoFrame():
                span = f" bytes {frame.offset}-{frame.offset + len(frame.body) - 1}" if frame.body else ""
                return f"CRYPTO{span}, {frame.acknowledged} acknowledged"
            case wire.CloseFrame() | wire.RefuseFrame():
                name = "CLOSE" if isinstance(frame, wire.CloseFrame) else "REFUSE"
                return f"{name} code {frame.code}{f': {frame.reason}' if frame.reason else ''}"
        return _NAMES[type(frame)]

    def _acknowledge(self, frame: wire.AckFrame, direction: _Direction, report: PacketReport) -> None:
        """Mark the packets of the other direction that this frame acknowledges. A long range costs no more work."""
        other = direction.other
        if other is None or not other.seen:
            return
        for first, last in frame.ranges:
            end = wire.expand_number(last, other.expected)
            begin = end - ((last - first) & 0xFFFF_FFFF)
            other.largest_acknowledged = max(other.largest_acknowledged, min(end, other.expected - 1))
            numbers = range(max(begin, 0), min(end, other.expected) + 1)
            for number in numbers if len(numbers) <= len(other.seen) else list(other.seen):
                sent = other.seen.get(number)
                if sent is not None and begin <= number <= end and not sent.acknowledged_in:
                    sent.acknowledged_in = report.number
                    report.acknowledges.append(sent.number)

    def _describe_data(self, frame: wire.DataFrame, direction: _Direction, report: PacketReport) -> str:
        place = f"DATA channel {frame.channel} record {frame.record}"
        if frame.position is not None:
            place += f" position {frame.position}"
        if frame.flags & wire.UNRELIABLE:
            return f"{place} unreliable: {describe_record(frame.body, frame.channel, 1, '')}"
        key = (frame.channel, frame.record, frame.offset)
        first = direction.fragments.setdefault(key, report.number)
        if first != report.number:
            report.repeats = first
            self.reports[first - 1].is_repeated = True
        if frame.flags & wire.WHOLE:
            record: bytes | None = frame.body
        else:
            place += f" bytes {frame.offset}-{frame.offset + len(frame.body) - 1}"
            record = self._join(frame, direction)
        if record is None:
            return place
        text = describe_record(record, frame.channel, frame.record, direction.channels.get(frame.channel, ""))
        if frame.record == 0 and frame.channel:
            direction.channels[frame.channel] = text
        return f"{place}: {text}"

    def _join(self, frame: wire.DataFrame, direction: _Direction) -> bytes | None:
        key = (frame.channel, frame.record)
        unfinished = direction.unfinished.setdefault(key, _Unfinished())
        if frame.flags & wire.LAST:
            unfinished.end = frame.offset + len(frame.body)
        known = unfinished.parts.get(frame.offset, b"")
        if len(frame.body) > len(known) and self._joined_bytes + len(frame.body) <= MAX_JOINED_BYTES:
            self._joined_bytes += len(frame.body) - len(known)
            unfinished.parts[frame.offset] = frame.body
        record = unfinished.whole()
        if record is not None:
            del direction.unfinished[key]
            self._joined_bytes -= sum(map(len, unfinished.parts.values()))
        return record


_SEALED: Final = (
    bytes((wire.FIRST_BYTE | wire.FLAG_SEALED,)), bytes((wire.FIRST_BYTE | wire.FLAG_SEALED | wire.FLAG_PHASE,)),
)  # fmt: skip
_HANDSHAKE: Final = (
    wire.HelloFrame, wire.CookieFrame, wire.ConnectFrame, wire.AcceptFrame, wire.RefuseFrame, wire.ResetFrame,
    wire.CryptoFrame,
)  # fmt: skip
_NAMES: Final[dict[type[Any], str]] = {
    wire.PingFrame: "PING", wire.HelloFrame: "HELLO", wire.CookieFrame: "COOKIE", wire.ConnectFrame: "CONNECT",
    wire.AcceptFrame: "ACCEPT", wire.PathProbeFrame: "PATH_PROBE", wire.PathResponseFrame: "PATH_RESPONSE",
    wire.ResetFrame: "RESET", wire.TokenFrame: "TOKEN",
}  # fmt: skip


def describe_record(record: bytes, channel: int, number: int, channel_kind: str) -> str:
    """Return what a record contains, in a few words.

    Args:
        record: The whole record.
        channel: Its channel.
        number: Its number.
        channel_kind: The kind of the channel's first record, if it is known.
    """
    try:
        if not record:
            return "empty"
        if channel == 0 or (number == 0 and record[0] >> 5 == 5):
            return _kind_of(cbor.load(record))
        if channel_kind == "relay":
            return _describe_relay(decode_relay_record(record))
        if record[0] == IN_BAND:
            return _kind_of(cbor.load(record[1:]))
        if channel_kind == "work":
            length = int.from_bytes(record[:4], "big")
            return _kind_of(cbor.load(record[4 : 4 + length]))
        if record[0] <= REWIND:
            with suppress(DecodeError):  # record 0 of the channel may not be in the capture
                return _describe_relay(decode_relay_record(record))
        qos = decode_head(record).flags >> QOS_SHIFT
        messages = sum(len(batch.payloads) for batch in decode_all_batches(record))
    except (DecodeError, ValueError):
        return f"{len(record)} bytes"
    return f"{messages} message{'' if messages == 1 else 's'}, QoS {qos}"


def _describe_relay(record: RelayRecord) -> str:
    messages = sum(entry.count for _, entry in record.entries)
    gaps = f", {len(record.gaps)} gaps" if record.gaps else ""
    return f"relay of offsets {record.begin} to {record.end}, {messages} message{'' if messages == 1 else 's'}{gaps}"


def _kind_of(plain: Any) -> str:
    kind = plain.get("kind") if isinstance(plain, dict) else None
    return kind if isinstance(kind, str) else "unknown"


def first_packet_bytes(data: bytes) -> int:
    """Return the size of the first packet of a datagram: less than the datagram's if it is a train.

    Another packet of the connection follows a packet of a train. One with a checksum ends with it; a sealed one is
    followed by one with the next number.
    """
    if len(data) < 2 * wire.SMALLEST_PACKET_BYTES:
        return len(data)
    _, _, number = wire.HEADER.unpack_from(data)
    is_sealed = data[:1] in _SEALED
    found = wire.SMALLEST_PACKET_BYTES
    for _ in range(MAX_CANDIDATES):
        found = data.find(data[1:9], found + 1)
        at = found - 1
        if found == -1 or len(data) - at < wire.SMALLEST_PACKET_BYTES:
            break
        kind, _, following = wire.HEADER.unpack_from(data, at)
        if is_sealed:
            if bytes([kind]) in _SEALED and following == (number + 1) & 0xFFFFFFFF:
                return at
        elif kind == wire.FIRST_BYTE:
            with suppress(DecodeError):
                wire.check_packet(data[:at])
                return at
    return len(data)


def read_reports(datagrams: Iterable[CapturedDatagram], reader: CaptureReader | None = None) -> list[PacketReport]:
    """Return the reports on all packets of a capture, with a reader of its own or this one."""
    reader = reader or CaptureReader()
    for datagram in datagrams:
        data = datagram.data
        size = len(data) if datagram.length else first_packet_bytes(data)
        if size == len(data):
            reader.add(datagram)
            continue
        for at in range(0, len(data), size):
            reader.add(datagram._replace(data=data[at : at + size]))
    return reader.finish()
