"""Wireshark's dissector, in a real tshark: every frame, control message, batch and work group, field by field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import cbor2
import pytest
from tests.capture.dissected import (
    CLIENT_ID,
    DISSECTOR,
    SERVER_ID,
    Expected,
    needs_tshark,
    plain,
    read_json,
    run_tshark,
    write_capture,
)
from tests.wire.protocol_page import DATA_FRAMES, FLAGS, VECTORS, read_table

from godwit.capture.conversation import read_reports
from godwit.capture.pcapng import read_capture
from godwit.errors import Code
from godwit.net.tls import ordered_suites
from godwit.transport.protection import DirectionKey, Suite
from godwit.wire import control
from godwit.wire import packet as wire
from godwit.wire.batch import Batch, Entry, encode_batch, make_entry, pack_rest
from godwit.wire.control import encode_control
from godwit.wire.packet import encode_frame, encode_packet
from godwit.wire.relay import GapReason, RelayGap, encode_relay_record

HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[31mred",
    "[bold]x[/bold]",
    "\u202eabc",
    'quote"back\\slash',
    "nul\x00line\n",
]


HANDSHAKE = ("Hello", "Cookie", "Connect", "Accept", "Refuse", "Reset", "Crypto")


class Capture:
    """Packets of one connection, in the order of the capture."""

    def __init__(self) -> None:
        self.packets: list[tuple[bool, bytes]] = []
        self._numbers = {True: 1000, False: 1000}
        self._records: dict[tuple[bool, int], int] = {}

    def add(self, packet: bytes, *, to_server: bool = True) -> None:
        self.packets.append((to_server, packet))

    def frames(self, *frames: bytes, to_server: bool = True) -> None:
        """Add a packet with these frames and the next number."""
        number = self._numbers[to_server]
        self._numbers[to_server] += 1
        connection_id = SERVER_ID if to_server else CLIENT_ID
        self.add(encode_packet(connection_id, number, b"".join(frames)), to_server=to_server)

    def skip(self, count: int) -> None:
        self._numbers[True] += count

    def record(self, body: bytes, channel: int = 0, *, to_server: bool = True) -> None:
        """Add a packet with a whole record, which has the next number of its channel."""
        number = self._records.get((to_server, channel), 10 if channel == 0 else 0)
        self._records[to_server, channel] = number + 1
        frame = wire.DataFrame(wire.WHOLE | wire.LAST, channel, number, 0, None, body)
        self.frames(encode_frame(frame), to_server=to_server)


def session() -> Capture:
    """The session of section 25."""
    capture = Capture()
    for name, (data, _) in VECTORS.items():
        if name.startswith("session-"):
            is_to_client = int.from_bytes(data[1:9], "big") == CLIENT_ID or name == "session-2-cookie"
            capture.add(data, to_server=not is_to_client)
    return capture


def everything() -> Capture:
    """All examples of the protocol's page, as packets of one connection."""
    capture = session()
    for data, described in VECTORS.values():
        if "frame" in described and described["frame"] not in HANDSHAKE:
            capture.frames(data)
        elif "frame" in described:
            connection_id = 0 if described["frame"] in ("Hello", "Connect", "Reset") else CLIENT_ID
            capture.add(encode_packet(connection_id, 0, data), to_server=described["frame"] in ("Hello", "Connect"))
        elif "control" in described and described["control"]["kind"] not in ("open", "feed", "work", "relay"):
            capture.record(data)
            capture.record(data, to_server=False)
    data_frames(capture)
    for channel, name in enumerate(("control-open", "control-open-qos-2"), 20):
        capture.record(VECTORS[name][0], channel)
    for data, described in VECTORS.values():
        if "record" in described:
            capture.record(data, 20)
            capture.frames(encode_frame(wire.DataFrame(wire.WHOLE | wire.UNRELIABLE, 20, 7, 0, None, data)))
    capture.record(VECTORS["control-feed"][0], 30, to_server=False)
    capture.record(VECTORS["control-feed-live"][0], 31, to_server=False)
    for data, described in VECTORS.values():
        if "in-band" in described:
            capture.record(data, 30, to_server=False)
    for is_to_server in (True, False):
        capture.record(VECTORS["control-work"][0], 40, to_server=is_to_server)
    for name, (data, described) in VECTORS.items():
        if "group" in described:
            capture.record(data, 40, to_server=name in ("group-submit", "group-report"))
    capture.record(VECTORS["control-relay"][0], 60)
    for record in relay_records():
        capture.record(record, 60)
    fragments(capture)
    return capture


def relay_records() -> list[bytes]:
    """Records of a bridge: empty, with gaps, and with all kinds of batches."""
    payloads: list[list[bytes]] = [[b"21.5"], [b""], [b"a", b"", b"ccc"]]
    entries = [
        (100 + 10 * place, make_entry("site7/plant/a", f"sensor-{place}", list(one), qos=1, retain=False, now_us=5))
        for place, one in enumerate(payloads)
    ]
    flags, rest = pack_rest([b"x", b"y"], extension=bytes.fromhex("a10361 74".replace(" ", "")))
    entries.append(
        (140, Entry(topic="b", publisher="", flags=flags, published_us=7, received_us=0, count=2, rest=rest))
    )
    gaps = [RelayGap(reason, 1 + reason, 9 + reason, reason) for reason in GapReason]
    return [
        encode_relay_record(0, 0, []),
        encode_relay_record(0, 100, [], gaps),
        encode_relay_record(100, 200, entries, gaps[:1]),
        encode_relay_record(50, 60, [], is_rewind=True),
    ]


def data_frames(capture: Capture) -> None:
    """Add data frames with all combinations of flags that the protocol's page shows, each on a channel of its own."""
    body = VECTORS["batch-several"][0]
    for channel, (_, described) in enumerate(DATA_FRAMES, 900):
        flags = sum(FLAGS[name] for name in described["flags"])
        position = 77 if flags & wire.HAS_POSITION else None
        frame = wire.DataFrame(flags, channel, 9, 0 if flags & wire.WHOLE else 1160, position, body)
        capture.frames(encode_frame(frame), b"\x01" if flags & wire.HAS_LENGTH else b"")


def fragments(capture: Capture) -> None:
    """Add a record in three fragments, out of order, and one that is cut differently when it is sent again."""
    body = encode_batch(Batch([bytes(range(256)) * 4, b"", b"x" * 500], published_us=1_763_200_000_000_000, qos=1))
    parts = [(0, body[:600]), (1200, body[1200:]), (600, body[600:1200])]
    for offset, part in parts:
        flags = wire.LAST if offset == 1200 else 0
        capture.frames(encode_frame(wire.DataFrame(flags, 20, 500, offset, None, part)))


@needs_tshark
def test_all_values_are_those_of_our_decoders(tmp_path: Path) -> None:
    capture = everything()
    path = tmp_path / "all.pcapng"
    write_capture(path, capture.packets)
    found = read_json(path)
    assert len(found) == len(capture.packets)
    expected = Expected()
    for number, ((_, packet), values) in enumerate(zip(capture.packets, found, strict=True), 1):
        shown = plain(values)
        wanted = expected.packet(packet)
        assert without_lone(shown) == without_lone(wanted), f"frame {number}"
    assert "godwit.expert.malformed" not in json.dumps(found)
    assert run_tshark(path, "-Y", "_ws.malformed || godwit.expert.malformed || godwit.checksum_status == bad") == ""


def without_lone(values: Any) -> Any:
    """Leave out whether a batch is lone, which our decoder does not keep, and the count that a lone one lacks."""
    if isinstance(values, list):
        return [without_lone(one) for one in values]
    if not isinstance(values, dict):
        return values
    found = {key: without_lone(value) for key, value in values.items() if key != "godwit.batch.lone"}
    if found.get("godwit.batch.count") == "1":
        del found["godwit.batch.count"], found["godwit.batch.message_length"]
    return found


@needs_tshark
def test_every_frame_and_every_control_message_is_in_the_capture(tmp_path: Path) -> None:
    path = tmp_path / "all.pcapng"
    write_capture(path, everything().packets)
    text = run_tshark(
        path, "-T", "fields", "-e", "godwit.frame_type", "-e", "godwit.control.kind", "-e", "godwit.work.kind"
    )
    kinds = set(re.split(r"[\s,]+", text))
    assert {f"0x{number:02x}" for number in range(wire.TOKEN + 1)} <= kinds
    assert {struct_type.__struct_config__.tag for struct_type in control.ControlMessage.__args__} <= kinds
    assert {"submit", "report", "taken", "lease", "revoke", "update"} <= kinds


@needs_tshark
def test_requests_and_replies_are_linked(tmp_path: Path) -> None:
    path = tmp_path / "session.pcapng"
    write_capture(path, session().packets)
    rows = run_tshark(
        path, "-2", "-T", "fields", "-e", "frame.number", "-e", "godwit.request_in", "-e", "godwit.reply_in"
    )
    links = {row.split("\t")[0]: row.split("\t")[1:] for row in rows.splitlines()}
    assert links["5"] == ["", "6"]  # login and welcome
    assert links["6"] == ["5", ""]
    assert links["8"] == ["", "9"]  # open and opened
    assert links["9"] == ["8", ""]


@needs_tshark
def test_a_bridge_is_recognised_in_the_middle_of_its_connection(tmp_path: Path) -> None:
    capture = session()
    begin = len(capture.packets)
    records = relay_records()
    for number, record in enumerate(records, 70):
        flags = wire.WHOLE | wire.LAST
        capture.frames(encode_frame(wire.DataFrame(flags, 60, number, 0, None, record)))
    path = tmp_path / "bridge.pcapng"
    write_capture(path, capture.packets)
    shown = run_tshark(
        path, "-Y", "godwit.relay", "-T", "fields", "-e", "godwit.relay.begin", "-e", "godwit.batch.topic"
    )
    assert [line.split("\t") for line in shown.splitlines()] == [
        ["0", ""], ["0", ""], ["100", "site7/plant/a,site7/plant/a,site7/plant/a,b"], ["50", ""],
    ]  # fmt: skip
    assert frames_with(path, "malformed", begin) == []
    assert frames_with(path, "gap", begin) == [2, 3]


def test_replies_are_those_of_the_protocol() -> None:
    """All messages that answer another one, in the table of section 15, are linked with it."""
    source = DISSECTOR.read_text(encoding="utf-8")
    table = source.partition("local REPLIES = {")[2].partition("}")[0]
    openings = source.partition("local OPENINGS = {")[2].partition("}")[0]
    known = set(re.findall(r"(\w+) = true", table + openings)) | {"welcome"}
    rows = read_table("## 15 Control messages")
    answers = {
        kind for row in rows for kind in re.findall(r"`?(\w+)`?", row[3]) if kind in {other[0] for other in rows}
    }
    assert {"done", "relaying", "welcome", "group_list"} < answers
    assert known == answers | {"error"}


@needs_tshark
def test_repeats_gaps_and_damage_are_reported(tmp_path: Path) -> None:
    capture = session()
    body = encode_control(control.Ping(request=1))
    data = encode_frame(wire.DataFrame(wire.WHOLE | wire.LAST, 0, 50, 0, None, body))
    begin = len(capture.packets)
    capture.frames(data)  # 1
    capture.frames(data)  # 2: sent again
    capture.add(capture.packets[-1][1])  # 3: a duplicate
    capture.skip(3)
    capture.frames(b"\x01")  # 4: three packets are missing
    capture.add(encode_packet(SERVER_ID, 1003, b"\x01"))  # 5: out of order
    damaged = bytearray(encode_packet(SERVER_ID, 1009, b"\x01"))
    damaged[-1] ^= 1
    capture.add(bytes(damaged))  # 6
    capture.add(encode_packet(SERVER_ID, 1010, b"\x3f"))  # 7: an unknown frame
    capture.skip(6)
    capture.record(encode_control(control.DeliveryOpen(subscription=1)), 33)  # 8
    capture.record(b"\xff" + encode_control(control.Gap(count=5, next_offset=9)), 33)  # 9
    path = tmp_path / "bad.pcapng"
    write_capture(path, capture.packets)
    assert frames_with(path, "retransmit", begin) == [2, 3]
    assert frames_with(path, "repeated", begin) == [3]
    assert 4 in frames_with(path, "missing", begin)
    assert frames_with(path, "late", begin) == [5]
    assert frames_with(path, "checksum", begin) == [6]
    assert frames_with(path, "malformed", begin) == [7]
    assert 9 in frames_with(path, "gap", begin)


def frames_with(path: Path, name: str, begin: int) -> list[int]:
    """Return the packets after the first `begin` ones that have this expert information, counted from there."""
    shown = run_tshark(path, "-Y", f"godwit.expert.{name}", "-T", "fields", "-e", "frame.number")
    return [int(line) - begin for line in shown.split() if int(line) > begin]


@needs_tshark
def test_sealed_packets_show_their_header(tmp_path: Path) -> None:
    capture = session()  # its handshake makes the connection ids known
    begin = len(capture.packets)
    header = bytes([0x11]) + SERVER_ID.to_bytes(8, "big")
    for number in (70, 71, 75, 75):
        capture.add(header + number.to_bytes(4, "big") + b"\x5a" * 40 + bytes(range(16)))
    capture.add(bytes([0x13]) + header[1:] + (76).to_bytes(4, "big") + b"\x5a" * 17)
    capture.add(header + (77).to_bytes(4, "big") + b"\x5a" * 16)  # too short for a frame
    path = tmp_path / "sealed.pcapng"
    write_capture(path, capture.packets, server=("198.51.100.1", 47_114))  # recognised by the ids, not by the port
    first, *_, last, short = read_json(path)[begin:]
    assert first["godwit.sealed"] == "1"
    assert first["godwit.key_phase"] == "0"
    assert first["godwit.number"] == "70"
    assert first["godwit.length"] == "69"
    assert first["godwit.encrypted"] == ":".join(["5a"] * 40)
    assert first["godwit.tag"] == bytes(range(16)).hex(":")
    assert "godwit.frame" not in first
    assert "godwit.checksum" not in first
    assert last["godwit.key_phase"] == "1"
    assert last["godwit.encrypted"] == "5a"
    assert "godwit.tag" not in short
    assert frames_with(path, "missing", begin) == [1, 3]
    assert frames_with(path, "repeated", begin) == [4]
    assert frames_with(path, "malformed", begin) == [6]
    assert frames_with(path, "checksum", begin) == []


def sealed_session(suite: Suite, key_log: Path) -> tuple[Capture, list[tuple[bool, bytes]]]:
    """A sealed connection: its packets, and the plain packets that its sealed ones contain. The secrets are logged."""
    random, client_secret, server_secret = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
    key_log.write_text(
        f"# a comment\nGODWIT_CLIENT_SECRET {random.hex()} {client_secret.hex()}\n"
        f"GODWIT_SERVER_SECRET {random.hex()} {server_secret.hex()}\n"
    )
    capture = Capture()
    accept = wire.AcceptFrame(SERVER_ID, bytes(16), bytes(16), cbor2.dumps({"seal": [suite.code]}))
    capture.add(encode_packet(CLIENT_ID, 0, encode_frame(accept)), to_server=False)
    hello = bytes.fromhex("160301003b 0100003703 03".replace(" ", "")) + random + b"\0" * 20
    capture.add(encode_packet(SERVER_ID, 0, encode_frame(wire.CryptoFrame(0, 0, hello))))
    batch = encode_batch(Batch([bytes(range(256)) * 4], published_us=1_763_200_000_000_000, qos=1))
    contents = [
        encode_frame(wire.PingFrame()),
        encode_frame(wire.DataFrame(wire.WHOLE | wire.LAST, 0, 0, 0, None, encode_control(control.Ping(request=7)))),
        encode_frame(wire.DataFrame(wire.WHOLE | wire.LAST, 20, 1, 0, None, batch)),
    ]
    keys = {True: DirectionKey(suite, client_secret), False: DirectionKey(suite, server_secret)}
    plain: list[tuple[bool, bytes]] = []
    for number in range(9):
        for to_server in (True, False):
            if number == 6 and to_server:
                keys[True] = keys[True].next(suite)
            key, frames = keys[to_server], contents[number % 3]
            connection_id = SERVER_ID if to_server else CLIENT_ID
            header = wire.HEADER.pack(key.first_byte, connection_id, number)
            nonce = key.salt + (key.iv ^ number).to_bytes(8, "big")
            capture.add(header + key.encrypt(nonce, frames, header), to_server=to_server)
            plain.append((to_server, encode_packet(connection_id, number, frames)))
    return capture, plain


@needs_tshark
@pytest.mark.parametrize("suite", ordered_suites(), ids=lambda suite: f"suite {suite.code}")
def test_sealed_packets_are_decrypted_with_a_key_log(tmp_path: Path, suite: Suite) -> None:
    """All frames are those of our decoder, also after a key update of one side."""
    path, key_log = tmp_path / "sealed.pcapng", tmp_path / "keys.log"
    capture, plain_packets = sealed_session(suite, key_log)
    write_capture(path, capture.packets)
    found = read_json(path, "-o", f"godwit.key_log:{key_log}")[2:]
    expected = Expected()
    for (_, packet), values in zip(plain_packets, found, strict=True):
        assert values["godwit.opened"] == "1"
        assert without_lone(plain(values)["godwit.frame"]) == without_lone(expected.packet(packet)["godwit.frame"])
    assert found[12]["godwit.key_phase"] == "1"
    assert frames_with(path, "malformed", 0) == []
    for missing in ("", str(tmp_path / "none")):
        assert all("godwit.opened" not in values for values in read_json(path, "-o", f"godwit.key_log:{missing}"))
    key_log.write_text("GODWIT_CLIENT_SECRET 00 xx\n\x00\xff GODWIT\n" * 3)
    assert all("godwit.opened" not in values for values in read_json(path, "-o", f"godwit.key_log:{key_log}"))


@needs_tshark
def test_trains_are_shown_packet_by_packet(tmp_path: Path) -> None:
    """As recorded before the network card cuts them, or after it has joined them."""
    path, train = tmp_path / "x.pcapng", Capture()
    own_id = SERVER_ID.to_bytes(8, "big")
    body = b"\x10" + own_id + b"\x00\x00\x03\xe9" + b"x" * 40  # looks as if a packet began there
    for place, part in enumerate((body, body[::-1], body[:20])):
        flags = wire.LAST if place == 2 else 0
        train.frames(encode_frame(wire.DataFrame(flags, 7, 0, place * len(body), None, part)))
    plain_train = b"".join(packet for _, packet in train.packets)
    sealed_train = b"".join(
        b"\x11" + own_id + number.to_bytes(4, "big") + b"s" * (300 if number < 1005 else 40)
        for number in (1003, 1004, 1005)
    )
    write_capture(path, [(True, plain_train), (True, sealed_train), (True, b"\x10" + own_id * 200)])
    lines = run_tshark(path).splitlines()
    assert re.search(r"1000: DATA.* \| 1001: DATA.* \| 1002: DATA", lines[0]), lines[0]
    assert "1003: sealed, 313 bytes | 1004: sealed, 313 bytes | 1005: sealed, 53 bytes" in lines[1]
    assert lines[2].endswith("bad checksum")
    assert run_tshark(path, "-Y", "_ws.malformed || godwit.expert.malformed") == ""
    reports = read_reports(read_capture(path.read_bytes()))
    assert [report.packet_number for report in reports] == [1000, 1001, 1002, 1003, 1004, 1005, None]
    assert [bool(report.problem) for report in reports] == [False] * 6 + [True]


@needs_tshark
def test_hostile_texts_and_bytes_do_no_harm(tmp_path: Path) -> None:
    capture = session()
    for text in HOSTILE:
        capture.record(encode_control(control.PublishOpen(topic=text)), 50 + HOSTILE.index(text))
        capture.record(encode_control(control.Error(code=1, text=text)))
    for junk in (b"\xa1" * 40, b"\xbf\xff", b"\x9b" + b"\xff" * 8, b"\x5b\x7f" + b"\xff" * 7, b"\xa1\x64kind\xfb"):
        capture.record(junk)
        capture.record(junk, 20)
    capture.frames(b"\x40")
    capture.frames(b"\x07\x00\x00\x00\x00\xff")
    path = tmp_path / "hostile.pcapng"
    write_capture(path, capture.packets)
    found = read_json(path)
    texts = [
        json.loads(values["godwit.frame"]["godwit.record"]["godwit.control"]["godwit.control.json"]).get("topic")
        for values in found[15 : 15 + 2 * len(HOSTILE)]
    ]
    shown = [text for text in texts if text is not None]
    assert len(shown) == len(HOSTILE)
    assert shown[0] == HOSTILE[0]
    assert shown[4] == HOSTILE[4]
    listed = run_tshark(path, "-V")
    assert "\x1b" not in listed


def test_codes_are_those_of_the_protocol() -> None:
    source = DISSECTOR.read_text(encoding="utf-8")
    table = source.partition("local CODES = {")[2].partition("}")[0]
    assert {int(number): name for number, name in re.findall(r'\[(\d+)\] = "(\w+)"', table)} == {
        int(code): code.name for code in Code
    }


@pytest.mark.parametrize("word", ["os.execute", "io.popen", "dofile", "require", "io.write", "io.output"])
def test_it_only_reads_packets_and_the_key_log(word: str) -> None:
    source = DISSECTOR.read_text(encoding="utf-8")
    assert word not in source
    assert re.findall(r"io\.\w+\(.*?\)", source) == ['io.open(godwit.prefs.key_log, "r")']
