"""Plain text: a number with an optional unit, and sentences with one number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import NUMBER, json_of, number_and_unit
from godwit.pipeline.decoders.results import CONFIGURATION, DEFAULT, PAYLOAD, TEXT, WORDS, Decoded, Reading, Rejected
from godwit.pipeline.decoders.results import DECODER as FROM_DECODER
from godwit.pipeline.decoders.shapes import Layout, Shape, ShapeField
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.quantities import (
    DS18B20,
    QUANTITIES,
    VALUE,
    Field,
    field_of,
    is_setting_topic,
    is_short_gas,
    measure,
    quantity_of_topic,
    words_of,
)
from godwit.pipeline.units import is_unit, scale_of

# -- numbers ----------------------------------------------------------------------------------------------------------

MAX_TEXT: Final = 100
"""Characters of a number with its unit."""
MAX_TOPICS: Final = 50_000
MAX_QUICK: Final = 32
"""Bytes of a number that is read in the quick way."""
_LETTERS: Final = frozenset(("V", "A", "W", "%", "°"))
"""Units of one character that are not ambiguous."""
_UNKNOWN: Final = re.compile(
    r"[-+.\deE]+\s([^\W\dA-Z_]{3,24}|[^\W\d_]{3,5}|[^\W\d_%°]*[%°]?[^\W\d_]+/[^\W\d_]+[23²³]?)\Z"
)
"""A number, a blank and one word, which is a unit that no library knows."""
_NO_UNITS: Final = frozenset(
    ("free", "used", "left", "remaining", "total", "max", "min", "avg", "mean", "sum", "ago", "noon", "midnight",
     "okay", "fail", "failed", "error", "err", "errors", "fault", "warning", "alarm", "alert", "high", "low", "hot",
     "cold", "warm", "open", "closed", "off", "true", "false", "yes", "none", "null", "nan", "unknown", "unavailable",
     "online", "offline", "idle", "active", "inactive", "busy", "ready", "done", "complete", "completed", "pending",
     "running", "stopped", "charging", "charged", "discharging", "full", "empty", "now", "today", "tomorrow",
     "yesterday", "and", "the", "for", "from", "with", "not", "per", "out", "due", "new", "old", "set", "target",
     "more", "less", "above", "below", "over", "under", "north", "south", "east", "west", "raw", "adc", "grad",
     "dimensionless", "january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
     "november", "december", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "mon",
     "tue", "wed", "thu", "fri", "sat", "sun", "plus", "minus", "und", "oder", "von", "bis", "jan", "feb", "mar",
     "apr", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
)  # fmt: skip
"""Words behind a number that are not units."""
_DECIMAL_COMMA: Final = re.compile(r"\A([-+]?\d{1,6}),(\d{1,2})\s?(?=[^\d\s,.;:])")
"""A number with a decimal comma, only with a unit behind it: 21,5 may be two numbers, and 1,013 a thousand."""
_NO_READINGS: Final = frozenset(
    ("version", "firmware", "fw", "build", "ip", "mac", "id", "serial", "date", "time", "timestamp", "datetime", "port",
     "pid", "set", "cmd", "command", "cmnd", "lwt", "availability", "ssid", "bssid", "hostname", "uuid", "code")
)  # fmt: skip
"""Words at the end of topics whose messages are commands, names, versions and clocks."""
_CURRENT: Final = re.compile(
    r"(?!.*(?:plug|socket|meter|power|energy|phase|inverter|battery|solar|pv|grid|circuit|line|outlet|relay|electric|"
    r"switch|motor|pump|charger|l[123]\b)).*(?:^|/)current\Z",
    re.DOTALL | re.IGNORECASE,
)
"""Topics whose last level may mean a present value as well as an electric current."""
_OTHER_UNITS: Final = re.compile(r"teslamate/.*power\Z", re.DOTALL)
"""Topics of projects whose documented units are not the defaults: TeslaMate publishes power in kW."""


class NumberDecoder(Decoder):
    """Plain numbers: 21.5, or 21.5 °C, and nothing else. The topic names the quantity, or it is `value`.

    The text is one decimal number and an optional unit. Dates, addresses, versions, names and numbers within other text
    are no readings. The quantity is that of the topic's last level (home/kitchen/temperature); it is never derived from
    the unit. A unit that is not known is kept as it is written, if it is one word and the topic names no quantity.
    """

    name = "number"
    title = "plain number with an optional unit"
    forms = frozenset((TEXT,))
    option_names = ("quantity", "unit", "name")
    is_quick = True

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        for name, value in self.options.items():
            if not isinstance(value, str):
                raise PipelineError(f"the option {name} of the decoder number is not a text")
        self._topics: dict[str, tuple[Field, bool, bool]] = {}
        self._ranges: dict[str, tuple[float, float, frozenset[float], str, str]] = {}

    def decode_quickly(self, topic: str, item: Any) -> Decoded | None:
        if len(item) > MAX_QUICK or not item.isascii() or not (text := item.decode()).isprintable() or "_" in text:
            return None
        try:
            value = float(text)
            low, high, errors, quantity, unit = self._ranges[topic]
        except ValueError:
            return None
        except KeyError:
            self._add_range(topic)
            return None
        if low <= value <= high and value not in errors:
            return Decoded([Reading(quantity, value, unit, "", None, DEFAULT)])
        return None

    def shape(self, topic: str, item: Any) -> Shape | None:
        if topic not in self._ranges:
            self._add_range(topic)
        low, high, errors, quantity, unit = self._ranges[topic]
        if low > high:
            return None
        field = ShapeField(item.index, quantity, unit, "", DEFAULT, low, high, errors)
        return Shape(Layout(self.name, 1, (field,)))

    def _add_range(self, topic: str) -> None:
        """Add the range of numbers that need no call of `measure` for this topic."""
        field, is_none, is_ds18b20 = self._topic(topic)
        known = QUANTITIES.get(field.quantity)
        is_odd = known is None or known.default is None or field.unit is not None or self.options
        found: tuple[float, float, frozenset[float], str, str]
        if known is None or known.default is None or is_odd or is_none or is_ds18b20:
            found = (1.0, 0.0, frozenset(), "", "")
        elif field.quantity in ("battery", "light", "current", "voltage"):
            found = (1.0, 0.0, known.errors, "", "")
        else:
            found = (*known.default, known.errors, field.quantity, known.unit)
        if len(self._ranges) >= MAX_TOPICS:
            self._ranges.clear()
        self._ranges[topic] = found

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        text = message.text
        if text[:1] == '"':
            text = json_of(text)
        if len(text) > MAX_TEXT:
            return None
        if "," in text:
            text = _DECIMAL_COMMA.sub(r"\1.\2 ", text, count=1)
        if (split := number_and_unit(text)) is None:
            return None
        value, unit = split
        field, is_none, is_ds18b20 = self._topic(message.topic)
        if unit and not _is_clear(unit, field.quantity):
            found = _UNKNOWN.match(text) if field.quantity in (VALUE, "count") and not is_none else None
            if found is None or found[1].lower() in _NO_UNITS or found[1].istitle():  # 5 Alice: a name
                return None
        if not unit and not self.options and is_short_gas(message.topic):
            field = Field(VALUE, None, True)
        if not unit and field.quantity == "current" and not self.options and _CURRENT.match(message.topic):
            field = Field(VALUE, None, True)
        if is_none:
            return Rejected("no quantity", f"a number, and by its topic no measurement: {_teach(message)}")
        source = PAYLOAD
        if not unit and field.unit is not None:
            unit, source = field.unit, CONFIGURATION if "unit" in self.options else PAYLOAD
        if field.quantity == "light" and not unit and value <= 255 and value == int(value) and not self.options:
            return Rejected("ambiguous", f"{value:g} may be the illuminance or the state of a lamp: {_teach(message)}")
        name = self.options.get("name", "")
        reading = measure(field.quantity, value, unit or None, name, unit_source=source, is_ds18b20=is_ds18b20)
        return Decoded([reading])

    def _topic(self, topic: str) -> tuple[Field, bool, bool]:
        """Return the meaning of a topic: the quantity, whether it has no readings, whether it names a DS18B20."""
        found = self._topics.get(topic)
        if found is None:
            field = quantity_of_topic(topic) or Field(VALUE, None, True)
            unit = self.options.get("unit", field.unit)
            field = Field(self.options.get("quantity", field.quantity), unit, True)
            words = words_of(topic.rpartition("/")[2])
            is_none = (bool(words) and words[-1] in _NO_READINGS) or _OTHER_UNITS.match(topic) is not None
            is_none = is_none or is_setting_topic(topic)
            is_none = is_none and not self.options
            if len(self._topics) >= MAX_TOPICS:
                self._topics.clear()
            found = self._topics[topic] = (field, is_none, DS18B20.search(topic) is not None)
        return found


def _is_clear(unit: str, quantity: str) -> bool:
    """Whether a text is a unit and nothing else: of the quantity, or of any without a doubt."""
    known = QUANTITIES.get(quantity)
    if known is not None and known.kind:
        found = scale_of(unit, known.kind)
        return found is not None
    return (len(unit) > 1 or unit in _LETTERS) and is_unit(unit)


def _teach(message: DecoderMessage) -> str:
    return f'[[pipeline.decoder]] filter = "{message.topic[:100]}", decoder = "number", quantity = "..." reads it'


NUMBER_EXAMPLES: Final = (
    DecoderExample("home/kitchen/temperature", b"21.5", (Reading("temperature", 21.5, "°C", unit_source=DEFAULT),)),
    DecoderExample("home/kitchen/temperature", "68 °F".encode(), (Reading("temperature", 20.0, "°C"),)),
    DecoderExample("home/kitchen/temperature", b"68 deg F", (Reading("temperature", 20.0, "°C"),)),
    DecoderExample("home/kitchen/pressure", b"760 mmHg", (Reading("pressure", 1013.250144354, "hPa"),)),
    DecoderExample("home/kitchen/temperature_f", b"68", (Reading("temperature", 20.0, "°C"),)),
    DecoderExample("home/kitchen/x", b"21.5", (Reading("value", 21.5, "", unit_source=DEFAULT),)),
    DecoderExample("home/kitchen/x", b"40 %", (Reading("value", 40.0, "%"),), note="% is not a humidity"),
    DecoderExample("home/kitchen/x", b"42 bananas", (Reading("value", 42.0, "bananas"),), note="an unknown unit"),
    DecoderExample(
        "home/kitchen/x",
        b"68",
        (Reading("temperature", 20.0, "°C", unit_source=CONFIGURATION),),
        options={"quantity": "temperature", "unit": "°F"},
        is_configured=True,
    ),
    DecoderExample("home/kitchen/temperature", b"-127", reason="error value"),
    DecoderExample("home/kitchen/pressure", b"760", reason="ambiguous", note="mmHg, or hPa in the mountains"),
    DecoderExample("home/kitchen/humidity", "21 °C".encode(), reason="unit does not fit"),
    DecoderExample("home/kitchen/x", b"2026-11-15T12:00:00Z,21.5", reason="no number"),
    DecoderExample("home/kitchen/x", b"192.168.1.17", reason="no number"),
    DecoderExample("home/kitchen/x", b"512 MB free", reason="no number"),
    DecoderExample("home/kitchen/x", b"sensor-7 21.5", reason="no number"),
)  # fmt: skip


# -- sentences --------------------------------------------------------------------------------------------------------

_SENTENCE: Final = re.compile(
    rf"(?:the\s+)?([a-z][a-z0-9_ ]{{0,40}}?)\s+(?:is|was|=|:)\s+({NUMBER.pattern})\s*([^\s\d]\D{{0,30}}?)?\s*[.!]?\Z",
    re.IGNORECASE | re.ASCII,
)
_DEGREES: Final = frozenset(("degree", "degrees", "deg", "°"))


class SentenceDecoder(Decoder):
    """Sentences with one number: The Temp is 54 degree. Only for topics for which it is configured.

    The sentence is [The] QUANTITY is NUMBER [UNIT]. `degree` and `degrees` mean the option `unit`, °C without it.
    """

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
            unit, source = self._unit, CONFIGURATION if self.options else FROM_DECODER
        elif unit is not None and not is_unit(unit):
            return Rejected("no number", f"{unit[:40]!r} behind the number is not a unit")
        name = "" if field.is_plain else found[1]
        return Decoded([measure(field.quantity, float(found[2]), unit or field.unit, name, unit_source=source)])


SENTENCE_EXAMPLES: Final = (
    DecoderExample(
        "r1/room",
        b"The Temp is 54 degree",
        (Reading("temperature", 54.0, "°C", unit_source=FROM_DECODER),),
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


DECODERS: Final = {
    NumberDecoder: NUMBER_EXAMPLES,
    SentenceDecoder: SENTENCE_EXAMPLES,
}
