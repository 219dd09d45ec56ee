"""Objects of named fields: flat JSON, nested JSON, and maps of CBOR and MessagePack."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import MAX_LEVELS, MAX_TEXT_BYTES
from godwit.pipeline.decoders.json_fields import OPTIONS, JsonFields
from godwit.pipeline.decoders.json_shapes import flat_shape
from godwit.pipeline.decoders.results import ARRAY, BINARY, CONFIGURATION, DEFAULT, OBJECT, Decoded, Reading, Rejected
from godwit.pipeline.decoders.shapes import Shape

# -- flat JSON --------------------------------------------------------------------------------------------------------


class FlatJsonDecoder(Decoder):
    """JSON objects of numbers: {"temperature": 21.5, "humidity": 40, "time": "2026-11-15T12:00:00Z", "device": "b7"}.

    The names of fields tell the quantity; see docs/DECODERS.md for the vocabulary. Units come from the end of the name
    (temperature_F), from `unit`, `units`, `uom` or `unit_of_measurement` for the whole object, or from
    `temperature_unit` and the like for one field. A value may be the text of a number, with its unit or without.
    """

    name = "json"
    title = "JSON object of numbers"
    forms = frozenset((OBJECT,))
    option_names = OPTIONS
    is_quick = True

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._fields = JsonFields(self.options)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        item = message.json
        if type(item) is not dict:
            return None
        found = self._fields.read_flat(item, message.topic)
        if found is None and self.options:  # the configuration means this decoder, not the one for nested JSON
            return self._fields.read_nested(item, message.topic)
        return found

    def decode_quickly(self, topic: str, item: Any) -> Decoded | None:
        return self._fields.read_flat(item, topic, is_flat=True)

    def shape(self, topic: str, item: Any) -> Shape | None:
        return flat_shape(self._fields, self.name, topic, item)


FLAT_EXAMPLES: Final = (
    DecoderExample(
        "home/kitchen",
        b'{"temperature": 21.5, "humidity": 40, "time": "2026-11-15T12:00:00Z", "device": "b7"}',
        (
            Reading("temperature", 21.5, "°C", unit_source=DEFAULT),
            Reading("humidity", 40.0, "%", unit_source=DEFAULT),
        ),
        time_us=1_794_744_000_000_000,
    ),
    DecoderExample("home/kitchen", b'{"temperature_F": 68.0}', (Reading("temperature", 20.0, "°C"),)),
    DecoderExample(
        "home/kitchen",
        '{"temperature": 68, "unit_of_measurement": "°F"}'.encode(),
        (Reading("temperature", 20.0, "°C"),),
    ),
    DecoderExample(
        "home/kitchen",
        b'{"temperature": 68, "temperature_unit": "F", "pressure": 760, "pressure_unit": "mmHg"}',
        (Reading("temperature", 20.0, "°C"), Reading("pressure", 1013.250144354, "hPa")),
    ),
    DecoderExample(
        "home/kitchen",
        b'{"t": 1794744000, "temperature": 21.5}',
        (Reading("temperature", 21.5, "°C", unit_source=DEFAULT),),
        time_us=1_794_744_000_000_000,
        note="`t` is a time, because it is in the range of one; else a single letter is ambiguous",
    ),
    DecoderExample("home/kitchen", b'{"t": 21.5, "h": 40}', reason="no quantity"),
    DecoderExample(
        "home/kitchen",
        b'{"t": 21.5, "h": 40}',
        (
            Reading("temperature", 21.5, "°C", unit_source=CONFIGURATION),
            Reading("humidity", 40.0, "%", unit_source=DEFAULT),
        ),
        options={"fields": {"t": {"quantity": "temperature", "unit": "°C"}, "h": "humidity"}},
        is_configured=True,
    ),
    DecoderExample(
        "home/kitchen",
        b'{"type": "humidity", "value": 40, "unit": "%"}',
        (Reading("humidity", 40.0, "%"),),
    ),
    DecoderExample(
        "home/kitchen", b'{"indoor_temp": 21.5, "outdoor_temp": 4, "target_temp": 22}',
        (
            Reading("temperature", 21.5, "°C", "indoor_temp", unit_source=DEFAULT),
            Reading("temperature", 4.0, "°C", "outdoor_temp", unit_source=DEFAULT),
        ),
        note="settings such as target_temp are kept in `extra`",
    ),
    DecoderExample("home/kitchen", b'{"temperature": -127}', reason="error value"),
    DecoderExample("home/kitchen", b'{"humidity": 40, "unit": "hPa"}', reason="unit does not fit"),
    DecoderExample("home/kitchen", b'{"temperature": 21.5, "temperature": 22.5}', reason="bad JSON"),
)  # fmt: skip


# -- nested JSON ------------------------------------------------------------------------------------------------------


class NestedJsonDecoder(Decoder):
    """JSON with objects or lists in it: {"DS": {"temperature": 21.5}}. The name of a reading is the path to its field.

    Within each object the rules for flat JSON hold. The name of an object may complete those of its fields
    ({"temperature": {"value": 21.5, "unit": "°C"}}), and objects such as `config` or `forecast` hold no measurements.
    The objects of a list are distinguished by `id`, `name` or the like, else by their positions.
    """

    name = "nested_json"
    title = "JSON with objects or lists in it: paths as names"
    forms = frozenset((ARRAY, OBJECT))
    option_names = OPTIONS

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._fields = JsonFields(self.options)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        return self._fields.read_nested(message.json, message.topic)


NESTED_EXAMPLES: Final = (
    DecoderExample(
        "plant/line1",
        b'{"motor": {"temperature": 41.5, "voltage": 230}, "time": 1794744000123}',
        (
            Reading("temperature", 41.5, "°C", "motor.temperature", unit_source=DEFAULT),
            Reading("voltage", 230.0, "V", "motor.voltage", unit_source=DEFAULT),
        ),
        time_us=1_794_744_000_123_000,
    ),
    DecoderExample(
        "plant/line1",
        '{"temperature": {"value": 68, "unit": "°F"}}'.encode(),
        (Reading("temperature", 20.0, "°C", "temperature.value"),),
    ),
    DecoderExample(
        "plant/line1",
        b'{"sensors": [{"id": "a", "temperature": 21.5}, {"id": "b", "temperature": 22.5}]}',
        (
            Reading("temperature", 21.5, "°C", "sensors.a.temperature", unit_source=DEFAULT),
            Reading("temperature", 22.5, "°C", "sensors.b.temperature", unit_source=DEFAULT),
        ),
    ),
    DecoderExample("plant/line1", b'{"config": {"temperature": 30}}', reason="no quantity"),
    DecoderExample("plant/line1", b'[[1, 2], [3, 4]]', reason="no quantity"),
)  # fmt: skip


# -- CBOR and MessagePack ---------------------------------------------------------------------------------------------

_CBOR_MARK: Final = b"\xd9\xd9\xf7"
"""The tag of self-described CBOR."""


PACK_TYPES: Final = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
"""Content types of MessagePack, which has one of its own only since lately."""


class BinaryMapDecoder(Decoder):
    """Maps of CBOR (RFC 8949) and MessagePack with names as keys, read like the JSON object of the same content.

    The first byte tells the two apart: a map begins with A1 to BF in CBOR, with 81 to 8F, DE or DF in MessagePack. The
    map must be the whole payload.
    """

    name = "binary_map"
    title = "CBOR or MessagePack map of numbers"
    forms = frozenset((BINARY,))
    content_types = ("application/cbor", *PACK_TYPES)
    option_names = OPTIONS

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._fields = JsonFields(self.options)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        payload = message.payload
        if len(payload) > MAX_TEXT_BYTES:
            return None
        first = payload[:1]
        is_pack = (message.content_type or "").partition(";")[0].strip().lower() in PACK_TYPES
        if not is_pack and (payload.startswith(_CBOR_MARK) or b"\xa1" <= first <= b"\xbf"):
            payload = payload.removeprefix(_CBOR_MARK)
            item, is_pack = _cbor(payload), False
        elif b"\x81" <= first <= b"\x8f" or first in (b"\xde", b"\xdf"):
            item, is_pack = _message_pack(payload), True
        else:
            return None
        if not isinstance(item, dict) or not all(isinstance(key, str) for key in item):
            return None
        if not _is_bounded(item, 1):
            return Rejected("nested too deeply", f"more than {MAX_LEVELS} levels")
        if not is_pack:
            try:
                _end(payload, 0)
            except ValueError as error:
                return Rejected("bad payload", str(error))
        return self._fields.read_flat(item, message.topic) or self._fields.read_nested(item, message.topic)


def _cbor(payload: bytes) -> Any:
    """Return the value of a payload; None if it is not one value of CBOR."""
    import cbor2

    stream = io.BytesIO(payload)
    try:
        value = cbor2.CBORDecoder(stream).decode()
    except Exception:  # cbor2 raises many types for bytes that are not CBOR
        return None
    return value if stream.tell() == len(payload) else None


_TEXT: Final = 3
_MAP: Final = 5
_TAG: Final = 6
_LENGTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
"""Bytes of a length or a number behind the first byte of an item, by the low bits of that."""
_OPEN: Final = 31
_BREAK: Final = 0xFF
"""An item with _OPEN for its length ends with this byte."""


def _end(payload: bytes, at: int) -> int:
    """Return the end of an item in valid CBOR. Raise ValueError if a map in it has a key twice.

    cbor2 returns the last value of such a key.
    """
    kind, short = payload[at] >> 5, payload[at] & 0x1F
    size = _LENGTHS.get(short, 0)
    count = int.from_bytes(payload[at + 1 : at + 1 + size], "big") if size else short
    at += 1 + size
    is_open = short == _OPEN and kind != 7
    if kind == _TAG:
        return _end(payload, at)
    if kind in (0, 1, 7):
        return at
    if kind in (2, _TEXT) and not is_open:
        return at + count
    keys: set[bytes] = set()
    number = 0
    while payload[at] != _BREAK if is_open else number < (2 * count if kind == _MAP else count):
        end = _end(payload, at)
        if kind == _MAP and number % 2 == 0:
            is_text = payload[at] >> 5 == _TEXT  # a length has more than one spelling
            key = payload[at + (1 + _LENGTHS.get(payload[at] & 0x1F, 0) if is_text else 0) : end]
            if key in keys:
                raise ValueError("a key is there twice")
            keys.add(key)
        at, number = end, number + 1
    return at + is_open


def _message_pack(payload: bytes) -> Any:
    """Return the value of a payload; None if it is not one value of MessagePack, or has a key twice."""
    import msgpack

    try:
        return msgpack.unpackb(payload, object_pairs_hook=_pairs, timestamp=3)  # as datetime
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


BINARY_EXAMPLES: Final = (
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


DECODERS: Final = {
    FlatJsonDecoder: FLAT_EXAMPLES,
    NestedJsonDecoder: NESTED_EXAMPLES,
    BinaryMapDecoder: BINARY_EXAMPLES,
}
