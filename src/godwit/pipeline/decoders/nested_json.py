"""JSON with objects or lists in it: {"DS": {"temperature": 21.5}}. The name of a reading is the path to its field.

Within each object the rules for flat JSON hold. The name of an object may complete those of its fields
({"temperature": {"value": 21.5, "unit": "°C"}}), and objects such as `config` or `forecast` hold no measurements. The
objects of a list are distinguished by `id`, `name` or the like, else by their positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.json_fields import OPTIONS, JsonFields
from godwit.pipeline.decoders.results import ARRAY, DEFAULT, OBJECT, Decoded, Reading, Rejected


class NestedJsonDecoder(Decoder):
    """Reads JSON objects in objects and lists."""

    name = "nested_json"
    title = "JSON with objects or lists in it: paths as names"
    forms = frozenset((ARRAY, OBJECT))
    option_names = OPTIONS

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._fields = JsonFields(self.options)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        return self._fields.read_nested(message.json, message.topic)


DECODER: Final = NestedJsonDecoder
EXAMPLES: Final = (
    DecoderExample(
        "plant/line1",
        b'{"motor": {"temperature": 61.5, "voltage": 400}, "time": 1794744000123}',
        (
            Reading("temperature", 61.5, "°C", "motor.temperature", unit_source=DEFAULT),
            Reading("voltage", 400.0, "V", "motor.voltage", unit_source=DEFAULT),
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
