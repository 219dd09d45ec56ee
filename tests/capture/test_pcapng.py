"""Capture files: written and read back, by tshark too; other link types; truncated and damaged files."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from tests.capture.dissected import CLIENT, SERVER, needs_tshark, run_tshark

from godwit.capture.pcapng import (
    RECEIVED,
    SENT,
    CapturedDatagram,
    CaptureError,
    datagram_in,
    file_header,
    ip_packet,
    packet_block,
    read_capture,
)

TIME_NS = 1_763_200_000_123_456_789
DATAGRAMS = [
    CapturedDatagram(TIME_NS, CLIENT, SERVER, b"one", RECEIVED),
    CapturedDatagram(TIME_NS + 1, SERVER, CLIENT, b"", SENT),
    CapturedDatagram(TIME_NS + 2, ("2001:db8::1", 5), ("2001:db8::2", 6), b"three", RECEIVED),
    CapturedDatagram(TIME_NS + 3, ("2001:db8::1", 5), ("2001:db8::2", 6), b"fo", RECEIVED, 1200),
]


def capture() -> bytes:
    return file_header("test") + b"".join(map(packet_block, DATAGRAMS))


def test_what_is_written_is_read() -> None:
    assert list(read_capture(capture())) == DATAGRAMS


@needs_tshark
def test_tshark_reads_nanoseconds_directions_and_checksums(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    path.write_bytes(capture())
    fields = ["-e", "frame.time_epoch", "-e", "frame.packet_flags_direction", "-e", "udp.length"]
    lines = run_tshark(path, "-o", "udp.check_checksum:TRUE", "-T", "fields", *fields).splitlines()
    assert lines[0].startswith("1763200000.123456789\t")
    assert [line.split("\t")[2] for line in lines] == ["11", "8", "13", "10"]
    assert [int(line.split("\t")[1], 0) for line in lines[:2]] == [1, 2]
    assert run_tshark(path, "-o", "udp.check_checksum:TRUE", "-Y", "udp.checksum.status == 0 || _ws.malformed") == ""


def classic(packets: list[bytes], *, link: int, order: str = "<", magic: int = 0xA1B2C3D4) -> bytes:
    data = struct.pack(f"{order}IHHIIII", magic, 2, 4, 0, 0, 65535, link)
    for packet in packets:
        data += struct.pack(f"{order}IIII", 1_763_200_000, 7, len(packet), len(packet)) + packet
    return data


@pytest.mark.parametrize(
    ("link", "header"),
    [
        (1, b"\0" * 12 + b"\x08\x00"),
        (1, b"\0" * 12 + b"\x81\x00\x00\x07\x08\x00"),
        (113, b"\0" * 16),
        (276, b"\0" * 20),
        (0, b"\2\0\0\0"),
        (101, b""),
    ],
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_captures_of_other_programs_are_read(link: int, header: bytes, order: str) -> None:
    packet = header + ip_packet(CLIENT, SERVER, b"data")
    (found,) = read_capture(classic([packet], link=link, order=order))
    assert found == CapturedDatagram(1_763_200_000_000_007_000, CLIENT, SERVER, b"data")


def test_nanoseconds_of_pcap() -> None:
    (found,) = read_capture(classic([ip_packet(CLIENT, SERVER, b"x")], link=101, magic=0xA1B23C4D))
    assert found.time_ns == 1_763_200_000_000_000_007


def test_other_packets_are_skipped() -> None:
    tcp = bytearray(ip_packet(CLIENT, SERVER, b"x"))
    tcp[9] = 6
    fragment = bytearray(ip_packet(CLIENT, SERVER, b"x"))
    fragment[6:8] = b"\x20\x00"
    assert not list(read_capture(classic([bytes(tcp), bytes(fragment), b"", b"\x45", b"\x60" * 50], link=101)))
    with pytest.raises(CaptureError, match="link type 147, which is not supported"):
        datagram_in(b"", 147, 0)


@pytest.mark.parametrize("make", [capture, lambda: classic([ip_packet(CLIENT, SERVER, b"data")] * 3, link=101)])
def test_a_truncated_capture_is_a_clear_error(make: object) -> None:
    data: bytes = make()  # type: ignore[operator]
    whole = len(list(read_capture(data)))
    seen = set()
    for end in range(4, len(data)):
        found = []
        reason = ""
        try:
            for one in read_capture(data[:end]):
                found.append(one)
        except CaptureError as error:
            reason = str(error)
            seen.add(len(found))
        assert len(found) < whole
        assert reason.startswith("the capture is truncated: it ends inside the block") or not reason
    assert seen >= {0, whole - 1}


@pytest.mark.parametrize("data", [b"", b"abc", b"not a capture at all", b"\0" * 100])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(CaptureError, match="this is not a capture"):
        list(read_capture(data))


def test_damaged_captures_raise_nothing_else() -> None:
    seed = 7
    chance = random.Random(seed)
    for _ in range(2000):
        data = bytearray(capture())
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        try:
            list(read_capture(bytes(data)))
        except CaptureError:
            pass
        except Exception as error:
            pytest.fail(f"seed {seed}: {error!r} for {data.hex()}")
