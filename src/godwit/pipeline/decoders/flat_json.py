"""JSON objects of numbers: {"temperature": 21.5, "humidity": 40, "time": "2026-11-15T12:00:00Z", "device": "b7"}.

The names of fields tell the quantity; see docs/DECODERS.md for the vocabulary. Units come from the end of the name
(temperature_F), from `unit`, `units`, `uom` or `unit_of_measurement` for the whole object, or from `temperature_unit`
and the like for one field. A value may be the text of a number, with its unit or without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.json_fields import OPTIONS, JsonFields
from godwit.pipeline.decoders.results import CONFIGURATION, DEFAULT, OBJECT, Decoded, Reading, Rejected


class FlatJsonDecoder(Decoder):
    """Reads JSON objects without objects or lists in them."""

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


DECODER: Final = FlatJsonDecoder
EXAMPLES: Final = (
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
