"""Influx line protocol: weather,station=7 temperature=21.5,humidity=40 1794744000000000000.

A reading has the quantity of its field, or the field's own name if that is not in the vocabulary; a field `value` has
that of the measurement. Its name is the measurement with its tags and the field. The unit is that of the field's name,
of a tag `unit`, or of a measurement that is itself a unit, as Home Assistant writes it.
"""

from __future__ import annotations

import re
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, time_of
from godwit.pipeline.decoders.json_fields import DEVICES, OTHER_SYSTEMS, PARTS, UNITS, check_scale
from godwit.pipeline.decoders.results import DEFAULT, WORDS, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.quantities import DS18B20, VALUE, Field, field_of, measure, words_of
from godwit.pipeline.units import is_unit

MAX_LINES: Final = 1024
_KEY: Final = r"(?:[^,=\s\\\"]|\\.)+"
_TEXT: Final = r'"(?:[^"\\]|\\(?s:.))*"'
_VALUE: Final = (
    r"(?:[-+]?\d+i|\+?\d+u|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?|"
    + _TEXT
    + r"|t|T|true|True|TRUE|f|F|false|False|FALSE)"
)
_LINE: Final = re.compile(
    rf"((?:[^,\s\\]|\\.)+)((?:,{_KEY}={_KEY})*) ({_KEY}={_VALUE}(?:,{_KEY}={_VALUE})*)(?: (-?\d{{1,19}}))?\Z", re.ASCII
)
_WITH_QUOTES: Final = re.compile(r'(?:[^"\n\\]|\\.|"(?:[^"\\]|\\.)*"|"|\\)+', re.DOTALL)
"""A line, in which a text in quotes may have line breaks."""
_TAG: Final = re.compile(rf",({_KEY})=({_KEY})")
_FIELD: Final = re.compile(rf"({_KEY})=({_VALUE})(?:,|\Z)", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(.)")


class InfluxDecoder(Decoder):
    """Reads lines of the Influx line protocol."""

    name = "influx"
    title = "Influx line protocol"
    forms = frozenset((WORDS,))

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        text = message.text
        if "=" not in text or " " not in text:
            return None
        lines = text.splitlines() if '"' not in text else _WITH_QUOTES.findall(text)
        lines = [line.strip() for line in lines if line.strip() and line[:1] != "#"]
        if len(lines) > MAX_LINES:
            return Rejected("too many fields", f"{len(lines)} lines: at most {MAX_LINES}")
        found = [_LINE.match(line) for line in lines]
        if not found or found[0] is None:
            return None
        readings: list[Reading] = []
        rest: dict[str, Any] = {}
        devices: set[str] = set()
        for number, line in enumerate(found):
            if line is None:
                return Rejected("bad payload", f"line {number + 1} is not of the Influx line protocol")
            self._line(line, message.topic, readings, rest, devices)
        if not readings:
            return Rejected("no number", "none of the fields is a number")
        return Decoded(readings, None, devices.pop() if len(devices) == 1 else None, extra_of(rest))

    def _line(
        self, line: re.Match[str], topic: str, readings: list[Reading], rest: dict[str, Any], devices: set[str]
    ) -> None:
        measurement = _plain(line[1])
        tags = {_plain(key): _plain(value) for key, value in _TAG.findall(line[2])}
        if len(tags) != len(_TAG.findall(line[2])):
            raise RejectedError("bad payload", "a tag is there twice")
        device = next((tags[name] for name in DEVICES if name in tags), None)
        if device is not None:
            devices.add(device)
        time_us = None
        if line[4] is not None:
            time_us = time_of(int(line[4]))
            if time_us is None:
                raise RejectedError("bad time", f"the timestamp {line[4]} is in no range of s, ms, µs or ns since 2000")
        fields = {_plain(key): text for key, text in _FIELD.findall(line[3])}
        texts = tags | {key: text.strip('"') for key, text in fields.items() if text[:1] == '"'}
        unit = next((value for key, value in texts.items() if key.lower() in UNITS), None)
        if PARTS.intersection(words_of(measurement)):
            raise RejectedError("no quantity", f"{measurement[:40]!r} are not measurements, by their name")
        first = len(readings)
        series = ",".join([measurement, *[f"{key}={value}" for key, value in sorted(tags.items())]])
        for key, text in fields.items():
            name = f"{series}.{key}"
            if text[0] not in "+-.0123456789":
                rest[name] = text.strip('"')
                continue
            field = _field(measurement, key, tags)
            stated = field.unit or unit or (measurement if is_unit(measurement) and field.quantity != key else None)
            is_ds18b20 = DS18B20.search(f"{topic} {series}") is not None
            value = float(text.rstrip("iu"))
            if stated is not None and stated.lower() in OTHER_SYSTEMS:
                raise RejectedError(
                    "ambiguous", f"the units are {stated!r}, which does not name the unit of each field"
                )
            readings.append(measure(field.quantity, value, stated, name, time_us=time_us, is_ds18b20=is_ds18b20))
        for key, text in texts.items():
            check_scale(key, text, readings[first:])


def _field(measurement: str, key: str, tags: dict[str, str]) -> Field:
    """Return the meaning of a field; its own name if that is not known."""
    found = field_of(key)
    if found is not None and found.quantity != VALUE:
        return found
    if found is None:
        return Field(key, None, False)
    for name in (measurement, tags.get("entity_id", ""), tags.get("type", "")):
        other = field_of(name)
        if other is not None and other.quantity != VALUE:
            return other
    return found if is_unit(measurement) else Field(measurement, None, False)


def _plain(text: str) -> str:
    return _ESCAPE.sub(r"\1", text) if "\\" in text else text


DECODER: Final = InfluxDecoder
EXAMPLES: Final = (
    DecoderExample(
        "telegraf/weather",
        b"weather,station=7 temperature=21.5,humidity=40i 1794744000000000000",
        (
            Reading(
                "temperature", 21.5, "°C", "weather,station=7.temperature", 1_794_744_000_000_000, unit_source=DEFAULT
            ),
            Reading("humidity", 40.0, "%", "weather,station=7.humidity", 1_794_744_000_000_000, unit_source=DEFAULT),
        ),
    ),
    DecoderExample(
        "telegraf/cpu",
        b"cpu,host=a usage_idle=98.2",
        (Reading("usage_idle", 98.2, "", "cpu,host=a.usage_idle"),),
        note="a metric that is not in the vocabulary keeps its own name",
    ),
    DecoderExample("telegraf/weather", b"weather temperature=21.5 12", reason="bad time"),
)
