"""Sentences with one number: The Temp is 54 degree. Only for topics for which it is configured.

The sentence is [The] QUANTITY is NUMBER [UNIT]. `degree` and `degrees` mean the option `unit`, °C without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import NUMBER
from godwit.pipeline.decoders.results import CONFIGURATION, PAYLOAD, WORDS, Decoded, Reading, Rejected
from godwit.pipeline.decoders.results import DECODER as BY_FORMAT
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.quantities import VALUE, field_of, measure
from godwit.pipeline.units import is_unit

_SENTENCE: Final = re.compile(
    rf"(?:the\s+)?([a-z][a-z0-9_ ]{{0,40}}?)\s+(?:is|was|=|:)\s+({NUMBER.pattern})\s*([^\s\d]\D{{0,30}}?)?\s*[.!]?\Z",
    re.IGNORECASE | re.ASCII,
)
_DEGREES: Final = frozenset(("degree", "degrees", "deg", "°"))


class SentenceDecoder(Decoder):
    """Reads a sentence with one number."""

    name = "sentence"
    title = "sentence with one number, for configured topics"
    filters = ()
    forms = frozenset((WORDS,))
    option_names = ("unit",)

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._unit = self.options.get("unit", "°C")
        if not isinstance(self._unit, str):
            raise PipelineError("the option unit of the decoder sentence is not a text")

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        found = _SENTENCE.match(message.text)
        if found is None:
            return None
        field = field_of("_".join(found[1].split()))
        if field is None or field.quantity == VALUE:
            return Rejected("no quantity", f"{found[1][:40]!r} is not the name of a quantity")
        unit, source = found[3], PAYLOAD
        if unit is not None and unit.lower() in _DEGREES:
            unit, source = self._unit, CONFIGURATION if self.options else BY_FORMAT
        elif unit is not None and not is_unit(unit):
            return Rejected("no number", f"{unit[:40]!r} behind the number is not a unit")
        name = "" if field.is_plain else found[1]
        return Decoded([measure(field.quantity, float(found[2]), unit or field.unit, name, unit_source=source)])


DECODER: Final = SentenceDecoder
EXAMPLES: Final = (
    DecoderExample(
        "r1/room",
        b"The Temp is 54 degree",
        (Reading("temperature", 54.0, "°C", unit_source=BY_FORMAT),),
        is_configured=True,
    ),
    DecoderExample(
        "r1/room",
        b"The humidity is 40 %",
        (Reading("humidity", 40.0, "%"),),
        is_configured=True,
    ),
    DecoderExample("r1/room", b"The Temp is 54 degree", reason="no number", note="without configuration"),
)
