"""Reads docs/PROTOCOL.md: its examples as bytes and described values, its tables as cells."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import msgspec
from crc32c import crc32c

from godwit.wire import packet as f
from godwit.wire.batch import Batch, Route, encode_batch, encode_joinable
from godwit.wire.control import ControlMessage, encode_control, encode_in_band
from godwit.wire.extension import Properties, encode_properties
from godwit.wire.packet import OVERHEAD_BYTES, Frame, encode_frame, encode_packet
from godwit.wire.parameters import Parameters, encode_parameters
from godwit.wire.work import FromBroker, FromClient, encode_group

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
FLAGS = {name: getattr(f, name) for name in ("HAS_LENGTH", "WHOLE", "LAST", "HAS_POSITION", "UNRELIABLE", "END")}

# -- reading the page -------------------------------------------------------------------------------------------------


def from_hex(text: str) -> bytes:
    """`aa bb`, or `00 * 1141` for many."""
    if match := re.fullmatch(r"\s*([0-9a-f]{2}) \* (\d+)\s*", text):
        return bytes.fromhex(match[1]) * int(match[2])
    return bytes.fromhex(text)


def read_vector(block: str) -> tuple[bytes, dict[str, Any]]:
    hex_lines, brace, description = block.partition("\n{")
    data = b"".join(from_hex(line.partition("|")[0]) for line in hex_lines.splitlines())
    return data, json.loads(brace + description)


def read_page(info: str) -> dict[str, str]:
    found = re.findall(rf"^```{info} (\S+)\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len({name for name, _ in found}) == len(found), "two examples have the same name"
    return dict(found)


def read_lines(name: str) -> list[tuple[bytes, dict[str, Any]]]:
    rows = [line.partition("|") for line in read_page("vectors")[name].splitlines()]
    return [(from_hex(left), json.loads(right)) for left, _, right in rows]


VECTORS = {name: read_vector(block) for name, block in read_page("vector").items()}
DATA_FRAMES = read_lines("data-frames")
NUMBERS = read_lines("numbers")
MATCHES = [tuple(cell.strip() for cell in line.split("|")) for line in read_page("matches")["filters"].splitlines()]


def read_table(heading: str, skip: int = 0) -> list[list[str]]:
    """The cells of the first table below a heading (or the one behind it), without its head."""
    section = re.sub(r"^```.*?^```$", "", PAGE.split(f"\n{heading}\n", 1)[1], flags=re.MULTILINE | re.DOTALL)
    rows: list[list[str]] = []
    for line in section.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
        elif rows and skip:
            rows, skip = [], skip - 1
        elif rows:
            break
        assert not line.startswith("#"), f"no table below {heading}"
    return rows[2:]


# -- values as the page writes them -----------------------------------------------------------------------------------


def to_bytes(text: str) -> bytes:
    return text.removeprefix("text:").encode() if text.startswith("text:") else bytes.fromhex(text)


def to_record(described: dict[str, Any] | str) -> bytes:
    if isinstance(described, str):
        return to_bytes(described)
    ((kind, value),) = described.items()
    return ENCODERS[kind](value)


def to_batch(described: dict[str, Any]) -> Batch:
    fields = dict(described, payloads=[to_bytes(payload) for payload in described["payloads"]])
    if "extension" in fields:
        fields["extension"] = to_bytes(fields["extension"])
    if "deltas_us" in fields:
        fields["deltas_us"] = tuple(fields["deltas_us"])
    if "route" in fields:
        fields["route"] = Route(**fields["route"])
    return Batch(**fields)


def to_properties(described: dict[str, Any]) -> Properties:
    fields = dict(described)
    if "headers" in fields:
        fields["headers"] = tuple(tuple(pair) for pair in fields["headers"])
    if "correlation" in fields:
        fields["correlation"] = to_bytes(fields["correlation"])
    return Properties(**fields)


def to_parameters(described: dict[str, Any]) -> Parameters:
    return Parameters(**dict(described, application=to_bytes(described["application"])))


def to_frame(described: dict[str, Any]) -> Frame:
    fields = dict(described)
    kind = getattr(f, fields.pop("frame") + "Frame")
    if kind is f.DataFrame:
        flags = sum(FLAGS[name] for name in fields["flags"])
        body = to_record(fields["body"])
        return f.DataFrame(
            flags, fields["channel"], fields["record"], fields.get("offset", 0), fields.get("position"), body
        )
    for name in fields.keys() & {"nonce", "cookie", "token", "mac", "challenge", "body"}:
        fields[name] = bytes.fromhex(fields[name])
    if "connection_id" in fields:
        fields["connection_id"] = int(fields["connection_id"], 16)
    if "parameters" in fields:
        fields["parameters"] = encode_parameters(to_parameters(fields["parameters"]))
    if "ranges" in fields:
        fields["ranges"] = tuple(tuple(span) for span in fields["ranges"])
    frame: Frame = kind(**fields)
    return frame


def encode_record(described: list[dict[str, Any]]) -> bytes:
    several = [to_batch(one) for one in described]
    return b"".join(map(encode_joinable, several[:-1])) + encode_batch(several[-1])


def encode_described_packet(described: dict[str, Any]) -> bytes:
    frames = b"".join(encode_frame(to_frame(one)) for one in described["frames"])
    frames = frames.ljust(described["bytes"] - OVERHEAD_BYTES, b"\x00")
    return encode_packet(int(described["connection_id"], 16), described["number"], frames)


BYTE_STRINGS = {"instance", "proof", "payload", "log", "id", "sha256"}
"""The fields of control messages that are bytes; JSON has none."""


def to_plain(described: Any, name: str = "") -> Any:
    """Control messages as CBOR has them: with byte strings."""
    match described:
        case dict():
            return {field: to_plain(value, field) for field, value in described.items()}
        case list():
            return [to_plain(value) for value in described]
        case str() if name in BYTE_STRINGS:
            return to_bytes(described)
    return described


def to_control(described: dict[str, Any]) -> ControlMessage:
    message: ControlMessage = msgspec.convert(to_plain(described), ControlMessage, builtin_types=(bytes,))
    return message


def to_group(described: dict[str, Any]) -> tuple[FromClient | FromBroker, list[bytes]]:
    head: FromClient | FromBroker = msgspec.convert(described["head"], FromClient | FromBroker)
    return head, [to_bytes(payload) for payload in described["payloads"]]


ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "record": encode_record,
    "packet": encode_described_packet,
    "control": lambda described: encode_control(to_control(described)),
    "group": lambda described: encode_group(*to_group(described)),
    "in-band": lambda described: encode_in_band(to_control(described)),
    "file": lambda described: cbor2.dumps({"file": to_plain(described)}),
    "properties": lambda described: encode_properties(to_properties(described)),
    "parameters": lambda described: encode_parameters(to_parameters(described)),
    "checksum": lambda described: struct.pack("<I", crc32c(to_bytes(described["of"]))),
}
