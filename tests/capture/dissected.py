"""Packets as the JSON of tshark shows them: computed with our own decoders, and read from tshark."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import cbor2
import pytest

from godwit.capture.pcapng import CapturedDatagram, file_header, packet_block
from godwit.wire import packet as wire
from godwit.wire.batch import Batch, decode_batches, decode_entry
from godwit.wire.packet import Frame, decode_frames, decode_packet
from godwit.wire.relay import RelayRecord, decode_relay_record

ROOT = Path(__file__).resolve().parents[2]
DISSECTOR = ROOT / "src" / "godwit" / "capture" / "godwit.lua"
TSHARK = shutil.which("tshark")
needs_tshark = pytest.mark.skipif(TSHARK is None, reason="tshark is missing: apt install tshark")

CLIENT = ("192.0.2.7", 40001)
SERVER = ("198.51.100.1", 50000)
CLIENT_ID = 0x5F3A91C2D4E80617
SERVER_ID = 0x9B1D46A0C37E52F8
BEGAN_NS = 1_763_200_000_000_000_123

Values = dict[str, Any]
DERIVED = {
    "godwit.to", "godwit.request_in", "godwit.reply_in", "godwit.data.first_sent_in", "godwit.batch.topic",
    "godwit.batch.publisher", "godwit.control.field", "godwit.work.field", "_ws.expert",
}  # fmt: skip
"""Shown beside the values: not in the bytes of the packet itself, or shown twice."""
TEXTS = ("godwit.control.json", "godwit.work.json", "godwit.parameters", "godwit.batch.extension_json")


def write_capture(path: Path, packets: list[tuple[bool, bytes]], server: tuple[str, int] = SERVER) -> None:
    """Write packets, each with whether it goes to the server, a millisecond and a bit apart."""
    data = file_header("test")
    for index, (is_to_server, packet) in enumerate(packets):
        source, destination = (CLIENT, server) if is_to_server else (server, CLIENT)
        data += packet_block(CapturedDatagram(BEGAN_NS + index * 1_000_123, source, destination, packet))
    path.write_bytes(data)


def run_tshark(path: Path, *arguments: str) -> str:
    """Return the output of tshark with the dissector, for a file."""
    assert TSHARK is not None
    command = [TSHARK, "-X", f"lua_script:{DISSECTOR}", "-r", str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr, done.stderr
    return done.stdout


def read_json(path: Path, *arguments: str) -> list[Values]:
    """Return the layer of the protocol of each packet."""
    packets = json.loads(run_tshark(path, "-T", "json", "--no-duplicate-keys", *arguments))
    return [packet["_source"]["layers"]["godwit"] for packet in packets]


def plain(values: Any) -> Any:
    """Return values of tshark without derived ones, and with the JSON in them parsed."""
    if isinstance(values, list):
        return [plain(one) for one in values]
    if not isinstance(values, dict):
        return values
    return {
        key: json.loads(value) if key in TEXTS else plain(value) for key, value in values.items() if key not in DERIVED
    }


# -- the same with our own decoders -----------------------------------------------------------------------------------


class Expected:
    """Makes the values of one packet after another."""

    def __init__(self) -> None:
        self._fragments: dict[tuple[int, int, int], dict[int, bytes]] = {}
        self._done: set[tuple[int, int, int]] = set()
        self._kinds: dict[tuple[int, int], str] = {}

    def packet(self, data: bytes) -> Values:
        """Return the values of an intact packet."""
        connection_id, number, content = decode_packet(data)
        frames = [self._frame(frame, connection_id) for frame in decode_frames(content)]
        encoded = sum(len(wire.encode_frame(frame)) for frame in decode_frames(content))
        if encoded < len(content):
            frames.append({"godwit.frame_type": "0x00", "godwit.padding": str(len(content) - encoded)})
        return {
            "godwit.version": "1",
            "godwit.flags": "0x00",
            "godwit.sealed": "0",
            "godwit.key_phase": "0",
            "godwit.connection_id": colons(connection_id.to_bytes(8, "big")),
            "godwit.number": str(number),
            "godwit.length": str(len(data)),
            "godwit.checksum": f"0x{int.from_bytes(data[-4:], 'little'):08x}",
            "godwit.checksum_status": "good",
            "godwit.frame": joined(frames),
        }

    def _frame(self, frame: Frame, direction: int) -> Values:
        kind = wire.encode_frame(frame)[0]
        found: Values = {"godwit.frame_type": f"0x{kind:02x}"}
        if isinstance(frame, wire.DataFrame):
            return found | self._data(frame, direction)
        if isinstance(frame, wire.AckFrame):
            found["godwit.ack.delay_us"] = str(frame.delay_us)
            if frame.next_position is not None:
                found["godwit.ack.next_position"] = str(frame.next_position)
            found["godwit.ack.count"] = str(len(frame.ranges))
            found["godwit.ack.first"] = joined([str(first) for first, _ in frame.ranges])
            found["godwit.ack.last"] = joined([str(last) for _, last in frame.ranges])
            return found
        name = {
            wire.HelloFrame: "hello", wire.CookieFrame: "cookie", wire.ConnectFrame: "connect",
            wire.AcceptFrame: "accept", wire.RefuseFrame: "refuse", wire.ConfirmFrame: "confirm",
            wire.CreditFrame: "credit", wire.BlockedFrame: "blocked", wire.PathProbeFrame: "path_probe",
            wire.PathResponseFrame: "path_response", wire.CloseFrame: "close", wire.ResetFrame: "reset",
            wire.PingFrame: "ping", wire.CryptoFrame: "crypto", wire.TokenFrame: "token",
        }[type(frame)]  # fmt: skip
        for field in frame.__struct_fields__:
            value = getattr(frame, field)
            if field == "parameters":
                found["godwit.parameters"] = jsonable(cbor2.loads(value))
            elif field == "connection_id":
                found[f"godwit.{name}.{field}"] = colons(value.to_bytes(8, "big"))
            else:
                found[f"godwit.{name}.{field}"] = colons(value) if isinstance(value, bytes) else str(value)
        return found

    def _data(self, frame: wire.DataFrame, direction: int) -> Values:
        flags = {
            "has_length": wire.HAS_LENGTH, "whole": wire.WHOLE, "last": wire.LAST, "has_position": wire.HAS_POSITION,
            "unreliable": wire.UNRELIABLE, "end": wire.END,
        }  # fmt: skip
        found: Values = {f"godwit.data.{name}": str(int(bool(frame.flags & bit))) for name, bit in flags.items()}
        found["godwit.data.channel"] = str(frame.channel)
        found["godwit.data.record"] = str(frame.record)
        if not frame.flags & wire.WHOLE:
            found["godwit.data.offset"] = str(frame.offset)
        if frame.position is not None:
            found["godwit.data.position"] = str(frame.position)
        if frame.flags & wire.HAS_LENGTH:
            found["godwit.data.length"] = str(len(frame.body))
        if frame.body:
            found["godwit.data.body"] = colons(frame.body)
        record = self._join(frame, direction)
        if record is not None:
            found["godwit.record"] = self._record(record, frame, direction)
        return found

    def _join(self, frame: wire.DataFrame, direction: int) -> bytes | None:
        key = (direction, frame.channel, frame.record)
        if frame.flags & wire.UNRELIABLE:
            return frame.body
        if key in self._done:
            return None
        parts = self._fragments.setdefault(key, {})
        parts[frame.offset] = frame.body
        if frame.flags & (wire.LAST | wire.WHOLE):
            parts[-1] = b"." * (frame.offset + len(frame.body))
        if -1 not in parts or sum(len(part) for at, part in parts.items() if at >= 0) < len(parts[-1]):
            return None
        self._done.add(key)
        return b"".join(part for at, part in sorted(parts.items()) if at >= 0)

    def _record(self, record: bytes, frame: wire.DataFrame, direction: int) -> Values:
        found: Values = {"godwit.record.bytes": str(len(record))}
        is_first = frame.record == 0 and not frame.flags & wire.UNRELIABLE
        if not record:
            return found
        if frame.channel == 0 or (is_first and record[0] >> 5 == 5):
            control = self._control(record)
            if frame.channel:
                self._kinds[direction, frame.channel] = control["godwit.control.kind"]
            return found | {"godwit.control": control}
        if self._kinds.get((direction, frame.channel)) == "work":
            return found | {"godwit.work": work(record)}
        if self._kinds.get((direction, frame.channel)) == "relay":
            return found | {"godwit.relay": relay_values(decode_relay_record(record))}
        if record[0] == 0xFF:
            return found | {"godwit.control": self._control(record[1:])}
        return found | {"godwit.batch": joined([batch_values(batch) for batch in decode_batches(record)])}

    def _control(self, data: bytes) -> Values:
        message = cbor2.loads(data)
        found: Values = {"godwit.control.kind": message["kind"]}
        if "request" in message:
            found["godwit.control.request"] = str(message["request"])
        return found | {"godwit.control.json": jsonable(message)}


def work(record: bytes) -> Values:
    """Return the values of a work group."""
    length = int.from_bytes(record[:4], "big")
    head = cbor2.loads(record[4 : 4 + length])
    found: Values = {"godwit.work.kind": head["kind"], "godwit.work.json": jsonable(head)}
    if len(record) > 4 + length:
        found["godwit.work.payloads"] = colons(record[4 + length :])
    return found


def relay_values(record: RelayRecord) -> Values:
    """Return the values of a record of a bridge."""
    names: dict[tuple[bool, str], int] = {}
    entries: list[Values] = []
    for offset, entry in record.entries:
        topic = names.setdefault((True, entry.topic), len(names))
        publisher = names.setdefault((False, entry.publisher), len(names))
        entries.append({
            "godwit.relay.offset": str(offset),
            "godwit.relay.topic": str(topic),
            "godwit.relay.publisher": str(publisher),
            "godwit.relay.count": str(entry.count),
            "godwit.relay.length": str(len(entry.rest)),
            **batch_values(decode_entry(entry)),
        })  # fmt: skip
    gaps: list[Values] = [
        {
            "godwit.relay.gap.reason": str(gap.reason),
            "godwit.relay.gap.first": str(gap.first),
            "godwit.relay.gap.end": str(gap.end),
            "godwit.relay.gap.count": str(gap.count),
        }
        for gap in record.gaps
    ]
    found: Values = {
        "godwit.relay.rewind": str(int(record.is_rewind)),
        "godwit.relay.begin": str(record.begin),
        "godwit.relay.end": str(record.end),
    }
    for name, values in (("gap", gaps), ("name", [name for _, name in names]), ("entry", entries)):
        if values:
            found[f"godwit.relay.{name}"] = joined(values)
    return found


def batch_values(batch: Batch) -> Values:
    """Return the values of a batch."""
    is_lone = len(batch.payloads) == 1 and batch.deltas_us is None and not getattr(batch, "is_joinable", False)
    found: Values = {
        "godwit.batch.deltas": str(int(batch.deltas_us is not None)),
        "godwit.batch.retain": str(int(batch.retain)),
        "godwit.batch.has_sequence": str(int(batch.sequence is not None)),
        "godwit.batch.has_route": str(int(batch.route is not None)),
        "godwit.batch.has_extension": str(int(batch.extension is not None)),
        "godwit.batch.qos": str(batch.qos),
        "godwit.batch.published_us": str(batch.published_us),
    }
    if batch.sequence is not None:
        found["godwit.batch.sequence"] = str(batch.sequence)
    if batch.route is not None:
        found["godwit.batch.topic_label"] = str(batch.route.topic)
        found["godwit.batch.publisher_label"] = str(batch.route.publisher)
        found["godwit.batch.offset"] = str(batch.route.offset)
        found["godwit.batch.received_us"] = str(batch.route.received_us)
    if batch.extension:
        found["godwit.batch.extension"] = colons(batch.extension)
        found["godwit.batch.extension_json"] = jsonable(cbor2.loads(batch.extension))
    if not is_lone or len(batch.payloads) > 1:
        found["godwit.batch.count"] = str(len(batch.payloads))
        found["godwit.batch.message_length"] = joined([str(len(payload)) for payload in batch.payloads])
    if batch.deltas_us is not None:
        found["godwit.batch.delta_us"] = joined([str(delta) for delta in batch.deltas_us])
    if payloads := [colons(payload) for payload in batch.payloads if payload]:
        found["godwit.batch.payload"] = joined(payloads)
    if empty := [""] * sum(not payload for payload in batch.payloads):
        found["godwit.batch.empty_payload"] = joined(empty)
    return found


def colons(data: bytes) -> str:
    return data.hex(":")


def joined(values: list[Any]) -> Any:
    """Return one value, or a list of several, as tshark has them."""
    return values[0] if len(values) == 1 else values


def jsonable(value: Any) -> Any:
    """Return a value of CBOR as the dissector writes it: byte strings in hexadecimal, keys as texts."""
    if isinstance(value, dict):
        return {str(key): jsonable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [jsonable(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value
