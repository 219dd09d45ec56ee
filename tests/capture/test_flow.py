"""Sequence diagrams: repeats, losses and acknowledgements are marked, and hostile texts are escaped."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.etree import ElementTree

import cbor2
from tests.capture.dissected import BEGAN_NS, CLIENT, CLIENT_ID, SERVER, SERVER_ID

from godwit.capture.conversation import CaptureReader, PacketReport, read_reports
from godwit.capture.flow import as_html, as_svg, as_text, make_diagram
from godwit.capture.key_log import KeyLog
from godwit.capture.pcapng import CapturedDatagram
from godwit.net.tls import ordered_suites
from godwit.transport.protection import DirectionKey
from godwit.wire import packet as wire
from godwit.wire.batch import Batch, encode_batch, make_entry
from godwit.wire.control import Error, Ping, Pong, Work, encode_control
from godwit.wire.packet import encode_frame, encode_packet
from godwit.wire.relay import RelayOpen, encode_relay_record
from godwit.wire.work import ReportGroup, encode_group

HOSTILE = '<script>alert("x")</script>\x1b[31m\u202e]]>&'


@dataclass
class Line:
    """Datagrams in both directions of one connection."""

    datagrams: list[CapturedDatagram] = field(default_factory=list)

    def send(self, number: int, *frames: wire.Frame, to_server: bool = True) -> None:
        connection_id = SERVER_ID if to_server else CLIENT_ID
        self.raw(encode_packet(connection_id, number, b"".join(map(encode_frame, frames))), to_server=to_server)

    def raw(self, data: bytes, *, to_server: bool = True) -> None:
        source, destination = (CLIENT, SERVER) if to_server else (SERVER, CLIENT)
        time_ns = BEGAN_NS + len(self.datagrams) * 1_000_000
        self.datagrams.append(CapturedDatagram(time_ns, source, destination, data))

    def reports(self) -> list[PacketReport]:
        return read_reports(self.datagrams)


def record(number: int, body: bytes, channel: int = 0, position: int | None = None) -> wire.DataFrame:
    flags = wire.WHOLE | wire.LAST | (wire.HAS_POSITION if position is not None else 0)
    return wire.DataFrame(flags, channel, number, 0, position, body)


PING = encode_control(Ping(request=1))
PONG = encode_control(Pong(request=1))


def lossy() -> Line:
    line = Line()
    for number in range(5):
        line.send(number, record(number, PING))
    line.send(0, wire.AckFrame(0, ((2, 4), (0, 0))), to_server=False)
    line.send(5, record(1, PING))
    line.send(1, wire.AckFrame(0, ((5, 5),)), record(0, PONG), to_server=False)
    return line


def test_losses_repeats_and_acknowledgements() -> None:
    reports = lossy().reports()
    assert [report.is_lost for report in reports] == [False, True, False, False, False, False, False, False]
    assert [report.acknowledged_in for report in reports[:7]] == [6, 0, 6, 6, 6, 0, 8]
    assert reports[5].acknowledges == [3, 4, 5, 1]
    assert reports[6].repeats == 2
    assert reports[0].parts == ["DATA channel 0 record 0: ping"]
    assert reports[7].parts == ["ACK 5", "DATA channel 0 record 0: pong"]


def test_a_sealed_connection_shows_its_handshake_and_the_headers() -> None:
    line = Line()
    line.send(0, wire.CryptoFrame(0, 0, b"hello"))
    line.send(0, wire.CryptoFrame(0, 5, b""), to_server=False)
    for first, number in ((0x11, 0), (0x11, 3), (0x13, 4), (0x13, 4)):
        line.raw(wire.HEADER.pack(first, SERVER_ID, number) + b"\x5a" * 20)
    line.raw(wire.HEADER.pack(0x11, SERVER_ID, 5) + b"\x5a" * 16)
    reports = line.reports()
    assert [one.parts for one in reports[:3]] == [
        ["CRYPTO bytes 0-4, 0 acknowledged"], ["CRYPTO, 5 acknowledged"], ["sealed, 33 bytes"],
    ]  # fmt: skip
    assert [one.packet_number for one in reports] == [None, None, 0, 3, 4, 4, None]
    assert [one.missing_before for one in reports] == [0, 0, 0, 2, 0, 0, 0]
    assert [one.is_duplicate for one in reports] == [False] * 5 + [True, False]
    assert [bool(one.problem) for one in reports] == [False] * 6 + [True]
    assert "sealed, 33 bytes" in as_text(make_diagram(reports, 10))


def test_a_key_log_opens_sealed_packets_also_after_updates_of_the_key() -> None:
    suite = ordered_suites()[0]
    random, client_secret, server_secret = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
    lines = f"GODWIT_CLIENT_SECRET {random.hex()} {client_secret.hex()}\nGODWIT_SERVER_SECRET {random.hex()} "
    keys = KeyLog(f"# a comment\n{lines}{server_secret.hex()}\n", ordered_suites())
    assert len(keys) == 2
    line = Line()
    parameters = cbor2.dumps({"seal": [suite.code]})
    line.send(0, wire.AcceptFrame(SERVER_ID, bytes(16), bytes(16), parameters), to_server=False)
    line.send(0, wire.CryptoFrame(0, 0, bytes(11) + random + bytes(20)))
    ours, theirs = DirectionKey(suite, client_secret), DirectionKey(suite, server_secret)

    def send(key: DirectionKey, number: int, frame: wire.Frame, *, to_server: bool = True) -> None:
        header = wire.HEADER.pack(key.first_byte, SERVER_ID if to_server else CLIENT_ID, number)
        nonce = key.salt + (key.iv ^ number).to_bytes(8, "big")
        line.raw(header + key.encrypt(nonce, encode_frame(frame), header), to_server=to_server)

    send(ours, 0, record(0, PING))
    send(ours.next(suite), 2, record(2, PING))
    send(ours, 1, record(1, PING))  # late, with the former key
    send(theirs, 0, wire.AckFrame(0, ((1, 2),)), to_server=False)
    line.raw(line.datagrams[-1].data[:-1] + b"\0", to_server=False)  # forged
    reader = CaptureReader(keys)
    reports = read_reports(line.datagrams, reader)
    assert [one.parts for one in reports[2:6]] == [
        *(["sealed", f"DATA channel 0 record {number}: ping"] for number in (0, 2, 1)), ["sealed", "ACK 1-2"],
    ]  # fmt: skip
    assert reports[5].acknowledges == [5, 4]
    assert reader.opened == 4
    for one in (reports[6], line.reports()[2]):
        assert one.parts == [f"sealed, {len(one.datagram.data)} bytes"]


def test_records_of_a_bridge() -> None:
    log = bytes(16)
    body = encode_relay_record(0, 9, [(4, make_entry("t", "p", [b"x"], qos=1, retain=False, now_us=5))])
    line = Line()
    line.send(1, record(0, encode_control(RelayOpen(log=log, filters=["t"])), 60))
    line.send(2, record(1, body, 60))
    line.send(3, record(5, body, 61))  # its record 0 is not in the capture
    line.send(4, record(2, b"cut", 60))
    described = [one.parts[0].partition(": ")[2] for one in line.reports()]
    text = "relay of offsets 0 to 9, 1 message"
    assert described == ["relay", text, text, "3 bytes"]


def test_missing_and_duplicated_packets() -> None:
    line = Line()
    line.send(10, wire.PingFrame())
    line.send(14, wire.PingFrame())
    line.send(14, wire.PingFrame())
    line.send(12, wire.PingFrame())
    assert [(one.missing_before, one.is_duplicate) for one in line.reports()] == [
        (0, False), (3, False), (0, True), (0, False),
    ]  # fmt: skip


def test_all_kinds_of_records_are_named() -> None:
    line = Line()
    batch = encode_batch(Batch([b"a", b"b"], published_us=1, qos=2, sequence=0))
    line.send(0, record(0, encode_control(Work()), channel=4))
    line.send(1, record(1, encode_group(ReportGroup()), channel=4))
    line.send(2, record(5, batch, channel=3, position=7))
    line.send(3, wire.DataFrame(0, 3, 6, 0, None, batch[:4]))
    line.send(4, wire.DataFrame(wire.LAST, 3, 6, 4, None, batch[4:]))
    line.send(5, record(7, b"", channel=3))
    line.send(6, record(8, b"\xc0", channel=3))
    line.send(7, wire.CloseFrame(3, HOSTILE, b"m" * 16), to_server=False)
    texts = ["; ".join(report.parts) for report in line.reports()]
    assert texts[:7] == [
        "DATA channel 4 record 0: work",
        "DATA channel 4 record 1: report",
        "DATA channel 3 record 5 position 7: 2 messages, QoS 2",
        "DATA channel 3 record 6 bytes 0-3",
        f"DATA channel 3 record 6 bytes 4-{len(batch) - 1}: 2 messages, QoS 2",
        "DATA channel 3 record 7: empty",
        "DATA channel 3 record 8: 1 bytes",
    ]
    assert texts[7].startswith("CLOSE code 3: <script>")


def test_a_range_of_billions_costs_no_time() -> None:
    line = Line()
    line.send(4_000_000_000, wire.PingFrame())
    line.send(0, wire.AckFrame(0, ((0, 4_294_967_295),)), to_server=False)
    assert line.reports()[0].acknowledged_in in (0, 2)


def test_the_text_form() -> None:
    text = as_text(make_diagram(lossy().reports(), 500))
    lines = text.splitlines()
    assert "192.0.2.7:40001" in lines[0]
    assert "198.51.100.1:50000" in lines[0]
    assert "xxx" in lines[3]
    assert "(LOST)" in lines[3]
    assert "(again, first in #2)" in lines[8]
    assert "(acknowledges #1, #3, #4, #5)" in lines[7]


def test_packets_beyond_the_limit_are_counted() -> None:
    diagram = make_diagram(lossy().reports(), 3)
    assert (len(diagram.rows), diagram.omitted) == (3, 5)
    for text in (as_text(diagram), as_svg(diagram), as_html(diagram, "x")):
        assert "5 further packets are not shown" in text


def hostile() -> Line:
    line = lossy()
    line.send(9, record(9, encode_control(Error(code=1, text=HOSTILE))), wire.CloseFrame(1, HOSTILE, b"m" * 16))
    line.raw(b"\x10" + b"junk" * 10)
    line.send(10, record(11, b"\xa1dkind\x78\x1e" + HOSTILE.encode()[:30]))
    return line


def test_hostile_texts_are_escaped_in_every_form() -> None:
    diagram = make_diagram(hostile().reports(), 500)
    svg, html, text = as_svg(diagram), as_html(diagram, HOSTILE), as_text(diagram)
    for form in (svg, html, text):
        assert "\x1b" not in form
        assert "\u202e" not in form
    assert "<script>" not in svg
    assert "<script>" not in html
    root = ElementTree.fromstring(svg)  # it is well-formed
    assert "&lt;script" in svg
    assert not [one for one in root.iter() if one.tag.endswith(("script", "image", "use", "foreignObject", "}a"))]
    assert "default-src 'none'" in html
    assert text.isprintable() or set(text) - {"\n"}


def test_damaged_packets_are_shown() -> None:
    reports = hostile().reports()
    assert reports[9].problem.startswith("checksum")
    assert "(DAMAGED)" in as_text(make_diagram(reports, 500))
