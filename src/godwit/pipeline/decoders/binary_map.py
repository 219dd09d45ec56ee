"""Maps of CBOR (RFC 8949) and MessagePack with names as keys: they are read like the JSON object of the same content.

The first byte tells the two apart: a map begins with A1 to BF in CBOR, with 81 to 8F, DE or DF in MessagePack. The map
must be the whole payload.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import MAX_LEVELS, MAX_TEXT_BYTES
from godwit.pipeline.decoders.json_fields import OPTIONS, JsonFields
from godwit.pipeline.decoders.results import BINARY, DEFAULT, Decoded, Reading, Rejected

_CBOR_MARK: Final = b"\xd9\xd9\xf7"
"""The tag of self-described CBOR."""


class BinaryMapDecoder(Decoder):
    """Reads maps of CBOR and MessagePack."""

    name = "binary_map"
    title = "CBOR or MessagePack map of numbers"
    forms = frozenset((BINARY,))
    option_names = OPTIONS

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._fields = JsonFields(self.options)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        payload = message.payload
        if len(payload) > MAX_TEXT_BYTES:
            return None
        first = payload[:1]
        if payload.startswith(_CBOR_MARK) or b"\xa1" <= first <= b"\xbf":
            item = _cbor(payload.removeprefix(_CBOR_MARK))
        elif b"\x81" <= first <= b"\x8f" or first in (b"\xde", b"\xdf"):
            item = _message_pack(payload)
        else:
            return None
        if not isinstance(item, dict) or not all(isinstance(key, str) for key in item):
            return None
        if not _is_bounded(item, 1):
            return Rejected("nested too deeply", f"more than {MAX_LEVELS} levels")
        return self._fields.read_flat(item, message.topic) or self._fields.read_nested(item, message.topic)


def _cbor(payload: bytes) -> Any:
    """Return the value of a payload; None if it is not one value of CBOR."""
    import cbor2

    stream = io.BytesIO(payload)
    try:
        value = cbor2.CBORDecoder(stream).decode()
    except Exception:  # cbor2 raises many types for bytes that are not CBOR
        return None
    return value if stream.tell() == len(payload) and not _has_key_twice(payload) else None


def _has_key_twice(payload: bytes) -> bool:
    """Return whether the map that a payload is has a key twice; cbor2 returns the last value only.

    Only the map at the top is searched: keys are texts, whose lengths are known, and values are skipped.
    """
    import cbor2

    stream = io.BytesIO(payload)
    count = payload[0] & 0x1F
    if count > 23:  # the length follows, or the end is marked
        size = {24: 1, 25: 2, 26: 4, 27: 8, 31: 0}.get(count, 0)
        count = int.from_bytes(payload[1 : 1 + size], "big") if size else len(payload)
        stream.seek(1 + size)
    else:
        stream.seek(1)
    keys = []
    decoder = cbor2.CBORDecoder(stream)
    for _ in range(count):
        if payload[stream.tell() : stream.tell() + 1] == b"\xff":
            break
        keys.append(decoder.decode())
        decoder.decode()
    return len(set(keys)) != len(keys)


def _message_pack(payload: bytes) -> Any:
    """Return the value of a payload; None if it is not one value of MessagePack, or has a key twice."""
    import msgpack

    try:
        return msgpack.unpackb(payload, object_pairs_hook=_pairs)
    except Exception:  # msgpack raises many types for bytes that are not MessagePack
        return None


def _pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _is_bounded(item: Any, level: int) -> bool:
    if not isinstance(item, dict | list):
        return True
    values = item.values() if isinstance(item, dict) else item
    return level <= MAX_LEVELS and all(_is_bounded(one, level + 1) for one in values)


DECODER: Final = BinaryMapDecoder
EXAMPLES: Final = (
    DecoderExample(
        "home/kitchen",
        bytes.fromhex("a16b74656d7065726174757265f94d60"),
        (Reading("temperature", 21.5, "°C", unit_source=DEFAULT),),
        note='CBOR {"temperature": 21.5}',
    ),
    DecoderExample(
        "home/kitchen",
        bytes.fromhex("81ab74656d7065726174757265cb4035800000000000"),
        (Reading("temperature", 21.5, "°C", unit_source=DEFAULT),),
        note='MessagePack {"temperature": 21.5}',
    ),
    DecoderExample("home/kitchen", bytes.fromhex("a16b74656d70"), reason="not text", note="truncated CBOR"),
)
