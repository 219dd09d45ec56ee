"""Capture files: writes pcapng with nanoseconds, reads pcapng and pcap as tcpdump and Wireshark write them.

A capture of a broker has UDP datagrams without a network: each is written with made-up IP and UDP headers (link type
RAW), which have its real addresses. When a file is read, datagrams inside Ethernet, Linux's "cooked" header, the
loopback header of BSD and plain IP are found. Packets of other protocols, and fragments of IP, are skipped.

    pcapng    section header block, interface description block, then an enhanced packet block for each datagram
    block     type u32 | length u32 | body, padded to 4 bytes | length u32
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from godwit.errors import GodwitError

LINK_RAW: Final = 101
RECEIVED: Final = 1
SENT: Final = 2
NS: Final = 1_000_000_000
MAX_BLOCK_BYTES: Final = 16 * 1024 * 1024
"""A block that claims to be longer is a damaged file."""

_SECTION: Final = 0x0A0D0D0A
_INTERFACE: Final = 1
_PACKET: Final = 6
_SIMPLE_PACKET: Final = 3
_STATISTICS: Final = 5
_BYTE_ORDER: Final = 0x1A2B3C4D
_PCAP_US: Final = 0xA1B2C3D4
_PCAP_NS: Final = 0xA1B23C4D
_IP_HEADER: Final = struct.Struct(">BBHHHBBH4s4s")
_IP6_HEADER: Final = struct.Struct(">IHBB16s16s")
_UDP_HEADER: Final = struct.Struct(">HHHH")
_UDP: Final = 17
_LINKS: Final = {0: 4, 1: 14, 12: 0, 14: 0, 101: 0, 108: 4, 113: 16, 276: 20, 228: 0, 229: 0}
"""The length of the header before IP, by link type."""


class CaptureError(GodwitError):
    """A file is not a capture, or is damaged."""


class CapturedDatagram(NamedTuple):
    """One UDP datagram of a capture."""

    time_ns: int
    """Since 1970."""
    source: tuple[str, int]
    destination: tuple[str, int]
    data: bytes
    direction: int = 0
    """RECEIVED or SENT by the program that captured it, or 0."""
    length: int = 0
    """The length on the network, if it is more than that of `data`; else 0."""


# -- writing ----------------------------------------------------------------------------------------------------------


def file_header(application: str) -> bytes:
    """Return the beginning of a capture file."""
    section = struct.pack("<IHHq", _BYTE_ORDER, 1, 0, -1) + _option(4, application.encode()) + _option(0, b"")
    interface = struct.pack("<HHI", LINK_RAW, 0, 0) + _option(2, b"godwit") + _option(9, b"\x09") + _option(0, b"")
    return _block(_SECTION, section) + _block(_INTERFACE, interface)


def packet_block(datagram: CapturedDatagram) -> bytes:
    """Return a datagram as a block of a capture file."""
    packet = ip_packet(datagram.source, datagram.destination, datagram.data)
    missing = max(datagram.length - len(datagram.data), 0)
    high, low = divmod(datagram.time_ns, 1 << 32)
    body = struct.pack("<IIIII", 0, high, low, len(packet), len(packet) + missing) + _padded(packet)
    if datagram.direction:
        body += _option(2, struct.pack("<I", datagram.direction)) + _option(0, b"")
    return _block(_PACKET, body)


def statistics_block(packets: int, dropped: int) -> bytes:
    """Return the block with the number of packets in a file, and of packets that could not be recorded."""
    counts = _option(4, struct.pack("<Q", packets)) + _option(5, struct.pack("<Q", dropped)) + _option(0, b"")
    return _block(_STATISTICS, struct.pack("<III", 0, 0, 0) + counts)


def count_packets(data: bytes) -> int:
    """Return the number of packets in whole blocks that were written here."""
    found = at = 0
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<II", data, at)
        found += kind == _PACKET
        at += max(length, 8)
    return found


def ip_packet(source: tuple[str, int], destination: tuple[str, int], data: bytes) -> bytes:
    """Return a datagram with headers of IP and UDP. Its UDP checksum is absent, or for IPv6 computed."""
    first, second = (ipaddress.ip_address(address[0].partition("%")[0]) for address in (source, destination))
    if first.version != second.version:  # an IPv4 address on a socket of IPv6
        first, second = (one if one.version == 6 else ipaddress.ip_address(f"::ffff:{one}") for one in (first, second))
    length = _UDP_HEADER.size + len(data)
    if first.version == 4:
        udp = _UDP_HEADER.pack(source[1], destination[1], length, 0) + data
        header = _IP_HEADER.pack(0x45, 0, 20 + length, 0, 0x4000, 64, _UDP, 0, first.packed, second.packed)
        return header[:10] + struct.pack(">H", _checksum(header)) + header[12:] + udp
    pseudo = first.packed + second.packed + struct.pack(">II", length, _UDP)
    udp = _UDP_HEADER.pack(source[1], destination[1], length, 0) + data
    udp = udp[:6] + struct.pack(">H", _checksum(pseudo + udp) or 0xFFFF) + udp[8:]
    return _IP6_HEADER.pack(6 << 28, length, _UDP, 64, first.packed, second.packed) + udp


def _checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)


def _block(kind: int, body: bytes) -> bytes:
    length = len(body) + 12
    return struct.pack("<II", kind, length) + body + struct.pack("<I", length)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_capture(data: bytes) -> Iterator[CapturedDatagram]:
    """Yield the UDP datagrams of a capture file.

    Raises:
        CaptureError: It is not a capture, or it is damaged. A file that ends in the middle of a packet raises it too,
            after everything before was yielded.
    """
    if len(data) < 4:
        raise CaptureError("this is not a capture: it is empty; give a file of godwit capture, tcpdump or Wireshark")
    (magic,) = struct.unpack_from("<I", data)
    (swapped,) = struct.unpack_from(">I", data)
    if magic == _SECTION:
        yield from _read_pcapng(data)
    elif magic in (_PCAP_US, _PCAP_NS):
        yield from _read_pcap(data, "<", magic)
    elif swapped in (_PCAP_US, _PCAP_NS):
        yield from _read_pcap(data, ">", swapped)
    else:
        raise CaptureError(
            "this is not a capture: it begins neither like pcapng nor like pcap; "
            "give a file of godwit capture, tcpdump or Wireshark"
        )


def _truncated(packets: int, at: int) -> CaptureError:
    return CaptureError(
        f"the capture is truncated: it ends inside the block that begins at byte {at:,}, after {packets:,} packets; "
        "capture again, or copy the whole file"
    )


def _damaged(packets: int, at: int, what: str) -> CaptureError:
    return CaptureError(f"the capture is damaged at byte {at:,}, after {packets:,} packets: {what}; capture again")


class _Interface(NamedTuple):
    link: int
    ticks_per_s: int


def _read_pcapng(data: bytes) -> Iterator[CapturedDatagram]:
    order = "<"
    interfaces: list[_Interface] = []
    at = packets = 0
    while at < len(data):
        if at + 12 > len(data):
            raise _truncated(packets, at)
        (kind,) = struct.unpack_from(f"{order}I", data, at)
        if kind == _SECTION:
            order = "<" if struct.unpack_from("<I", data, at + 8)[0] == _BYTE_ORDER else ">"
            interfaces = []
        (length,) = struct.unpack_from(f"{order}I", data, at + 4)
        if length < 12 or length % 4 or length > MAX_BLOCK_BYTES:
            raise _damaged(packets, at, f"a block of {length:,} bytes")
        if at + length > len(data):
            raise _truncated(packets, at)
        body = data[at + 8 : at + length - 4]
        try:
            if kind == _INTERFACE:
                interfaces.append(_interface(body, order))
            elif kind == _PACKET:
                packets += 1
                found = _enhanced_packet(body, order, interfaces)
                if found is not None:
                    yield found
            elif kind == _SIMPLE_PACKET and interfaces:
                packets += 1
                found = datagram_in(body[4:], interfaces[0].link, 0)
                if found is not None:
                    yield found
        except (struct.error, IndexError):
            raise _damaged(packets, at, "a block whose fields do not fit into it") from None
        at += length


def _interface(body: bytes, order: str) -> _Interface:
    (link,) = struct.unpack_from(f"{order}H", body)
    for code, value in _options(body, 8, order):
        if code == 9 and value:
            exponent = value[0] & 0x7F
            if exponent > 63:
                raise IndexError
            return _Interface(link, (2 if value[0] & 0x80 else 10) ** exponent)
    return _Interface(link, 1_000_000)


def _enhanced_packet(body: bytes, order: str, interfaces: list[_Interface]) -> CapturedDatagram | None:
    number, high, low, captured, original = struct.unpack_from(f"{order}IIIII", body)
    interface = interfaces[number]
    if 20 + captured > len(body):
        raise IndexError
    packet = body[20 : 20 + captured]
    time_ns = ((high << 32) + low) * NS // interface.ticks_per_s
    direction = 0
    for code, value in _options(body, 20 + captured + -captured % 4, order):
        if code == 2 and len(value) == 4:
            direction = int(struct.unpack(f"{order}I", value)[0]) & 3
    return datagram_in(packet, interface.link, time_ns, direction, original - captured)


def _options(body: bytes, at: int, order: str) -> Iterator[tuple[int, bytes]]:
    while at + 4 <= len(body):
        code, length = struct.unpack_from(f"{order}HH", body, at)
        if code == 0:
            return
        yield code, body[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4


def _read_pcap(data: bytes, order: str, magic: int) -> Iterator[CapturedDatagram]:
    if len(data) < 24:
        raise _truncated(0, 0)
    (link,) = struct.unpack_from(f"{order}I", data, 20)
    unit_ns = 1 if magic == _PCAP_NS else 1000
    at, packets = 24, 0
    while at < len(data):
        if at + 16 > len(data):
            raise _truncated(packets, at)
        seconds, parts, captured, original = struct.unpack_from(f"{order}IIII", data, at)
        if captured > MAX_BLOCK_BYTES:
            raise _damaged(packets, at, f"a packet of {captured:,} bytes")
        if at + 16 + captured > len(data):
            raise _truncated(packets, at)
        packets += 1
        packet = data[at + 16 : at + 16 + captured]
        found = datagram_in(packet, link & 0xFFFF, seconds * NS + parts * unit_ns, 0, original - captured)
        if found is not None:
            yield found
        at += 16 + captured


def datagram_in(
    packet: bytes, link: int, time_ns: int, direction: int = 0, missing: int = 0
) -> CapturedDatagram | None:
    """Return the UDP datagram in a packet of this link type, or None without a whole one."""
    if link not in _LINKS:
        raise CaptureError(
            f"the capture is of link type {link}, which is not supported; capture on Ethernet, loopback or `any`"
        )
    start = _LINKS[link]
    if link == 1 and packet[12:14] == b"\x81\x00":  # a VLAN
        start += 4
    network = packet[start:]
    if len(network) < 20:
        return None
    if network[0] >> 4 == 4:
        fragment = struct.unpack_from(">H", network, 6)[0] & 0x3FFF
        header_bytes = (network[0] & 15) * 4
        if network[9] != _UDP or fragment:
            return None
        hosts = (str(ipaddress.ip_address(network[12:16])), str(ipaddress.ip_address(network[16:20])))
    elif network[0] >> 4 == 6 and len(network) >= 40 and network[6] == _UDP:
        header_bytes = 40
        hosts = (str(ipaddress.ip_address(network[8:24])), str(ipaddress.ip_address(network[24:40])))
    else:
        return None
    datagram = network[header_bytes:]
    if len(datagram) < _UDP_HEADER.size:
        return None
    source, destination, length, _ = _UDP_HEADER.unpack_from(datagram)
    payload = datagram[_UDP_HEADER.size : max(length, _UDP_HEADER.size)]
    return CapturedDatagram(
        time_ns,
        (hosts[0], source),
        (hosts[1], destination),
        payload,
        direction,
        len(payload) + missing if missing > 0 else 0,
    )
