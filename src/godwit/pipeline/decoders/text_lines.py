"""Formats of one reading or more in a line of text: Influx, OpenMetrics and CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, time_of
from godwit.pipeline.decoders.json_checks import check_scale, check_system, is_channel, is_imperial, is_statistic
from godwit.pipeline.decoders.json_fields import DEVICES, OPTIONS, OTHER_SYSTEMS, PARTS, SYSTEMS, UNITS, JsonFields
from godwit.pipeline.decoders.results import DEFAULT, TEXT, WORDS, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.quantities import DS18B20, VALUE, Field, field_of, measure, words_of
from godwit.pipeline.units import is_unit

# -- Influx line protocol ---------------------------------------------------------------------------------------------

MAX_INFLUX_LINES: Final = 1024
_KEY: Final = r"(?:[^,=\s\\\"\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])+"
_TEXT: Final = r'"(?:[^"\\]|\\(?s:.))*"'
_FIELD_VALUE: Final = (
    r"(?:[-+]?\d+i|\+?\d+u|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?|"
    + _TEXT
    + r"|t|T|true|True|TRUE|f|F|false|False|FALSE)"
)
_INFLUX_LINE: Final = re.compile(
    rf"({_KEY})((?:,{_KEY}={_KEY})*) ({_KEY}={_FIELD_VALUE}(?:,{_KEY}={_FIELD_VALUE})*)"
    r"(?: (-?\d{1,19}))?\Z",
    re.ASCII,
)
_WITH_QUOTES: Final = re.compile(r'(?:[^"\n\\]|\\.|"(?:[^"\\]|\\.)*"|"|\\)+', re.DOTALL)
"""A line, in which a text in quotes may have line breaks."""
_TAG: Final = re.compile(rf",({_KEY})=({_KEY})")
_FIELD: Final = re.compile(rf"({_KEY})=({_FIELD_VALUE})(?:,|\Z)", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(.)")


class InfluxDecoder(Decoder):
    """Influx line protocol: weather,station=7 temperature=21.5,humidity=40 1794744000000000000.

    A reading has the quantity of its field, or the field's own name if that is not in the vocabulary; a field `value`
    has that of the measurement. Its name is the measurement with its tags and the field. The unit is that of the
    field's name, of a tag `unit`, or of a measurement that is itself a unit, as Home Assistant writes it.
    """

    name = "influx"
    title = "Influx line protocol"
    forms = frozenset((WORDS,))

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        text = message.text
        if "=" not in text or " " not in text:
            return None
        lines = text.splitlines() if '"' not in text else _WITH_QUOTES.findall(text)
        lines = [line.strip() for line in lines if line.strip() and line[:1] != "#"]
        if len(lines) > MAX_INFLUX_LINES:
            return Rejected("too many fields", f"{len(lines)} lines: at most {MAX_INFLUX_LINES}")
        found = [_INFLUX_LINE.match(line) for line in lines]
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
        pairs = _FIELD.findall(line[3])
        fields = {_plain(key): text for key, text in pairs}
        if len(fields) != len(pairs):
            raise RejectedError("bad payload", "a field is there twice")
        texts = tags | {key: text.strip('"') for key, text in fields.items() if text[:1] == '"'}
        unit = next((value for key, value in texts.items() if key.lower() in UNITS), None)
        unit = None if unit is not None and unit.lower() in SYSTEMS else unit
        if any(is_statistic(key, text) for key, text in texts.items()):
            raise RejectedError("no quantity", "the fields are statistics or settings, by a text beside them")
        if PARTS.intersection(words_of(measurement)):
            raise RejectedError("no quantity", f"{measurement[:40]!r} are not measurements, by their name")
        first = len(readings)
        names = [key.lower() for key in fields]
        series = ",".join([measurement, *[f"{key}={value}" for key, value in sorted(tags.items())]])
        for key, text in fields.items():
            name = f"{series}.{key}"
            if text[0] not in "+-.0123456789":
                rest[name] = text.strip('"')
                continue
            field = _influx_field(measurement, key, tags)
            if is_channel(key, names, {key: field}, unit is not None):
                field = Field(key, None, False)
            is_of_unit = is_unit(measurement) and (field.quantity != key or field.quantity == VALUE)
            stated = field.unit or unit or (measurement if is_of_unit else None)
            is_ds18b20 = DS18B20.search(f"{topic} {series}") is not None
            value = float(text.rstrip("iu"))
            if stated is not None and stated.lower() in OTHER_SYSTEMS:
                raise RejectedError(
                    "ambiguous", f"the units are {stated!r}, which does not name the unit of each field"
                )
            readings.append(measure(field.quantity, value, stated, name, time_us=time_us, is_ds18b20=is_ds18b20))
        if any(is_imperial(key) for key in fields):
            check_system(readings[first:])
        for key, text in texts.items():
            check_scale(key, text, readings[first:])


def _influx_field(measurement: str, key: str, tags: dict[str, str]) -> Field:
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


INFLUX_EXAMPLES: Final = (
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


# -- OpenMetrics ------------------------------------------------------------------------------------------------------

MAX_METRIC_LINES: Final = 4096
_LABEL: Final = r'[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*"(?:[^"\\\n]|\\.)*"'
_PAIR: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"')
_SAMPLE: Final = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{{\s*(?:{_LABEL}\s*(?:,\s*)?)*\}})?"
    r"[ \t]+(\S+)(?:[ \t]+(-?\d+(?:\.\d+)?))?(?:[ \t]+#.*)?\Z"
)
_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?\Z", re.ASCII)
_COMMENT: Final = re.compile(r"# (?:(TYPE|HELP|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(.*)|EOF\Z)")
_METRIC_UNITS: Final = {
    "celsius": "°C", "fahrenheit": "°F", "kelvin": "K", "seconds": "s", "milliseconds": "ms", "bytes": "B",
    "percent": "%", "volts": "V", "amperes": "A", "watts": "W", "joules": "J", "hertz": "Hz", "meters": "m",
    "pascals": "Pa", "grams": "g", "ratio": "",
}  # fmt: skip
_RATIOS: Final = frozenset(("humidity", "moisture", "battery"))
"""Quantities in percent of which a metric may be the ratio: humidity_ratio."""
_NO_SAMPLES: Final = ("_created", "_info")
"""Ends of the names of samples that are the time of a counter's creation, and texts in labels."""
_NO_NUMBERS: Final = frozenset(("nan", "+inf", "-inf", "inf"))


class OpenMetricsDecoder(Decoder):
    """OpenMetrics and the text format of Prometheus: room_temperature_celsius{room="kitchen"} 21.5.

    It is recognised by labels in braces or by lines that begin with # TYPE, # HELP, # UNIT or # EOF; a word and a
    number alone are not enough. A reading has the quantity and unit that the name of the metric ends with, or the
    metric's own name if that is not in the vocabulary; its name is the metric with its labels.
    """

    name = "openmetrics"
    title = "OpenMetrics and Prometheus text"
    forms = frozenset((WORDS,))

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        text = message.text
        if "{" not in text and "# " not in text:
            return None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        samples = [_SAMPLE.match(line) for line in lines if line[0] != "#"]
        comments = [_COMMENT.match(line) for line in lines if line[0] == "#"]
        if not any(comments) and not any(one is not None and one[2] is not None for one in samples[:1]):
            return None
        if len(lines) > MAX_METRIC_LINES:
            return Rejected("too many fields", f"{len(lines)} lines: at most {MAX_METRIC_LINES}")
        units = {one[2]: one[3].strip() for one in comments if one is not None and one[1] == "UNIT"}
        readings = []
        for one in samples:
            if one is None:
                return Rejected("bad payload", "a line is not a sample of OpenMetrics")
            if one[3].lower() not in _NO_NUMBERS and not one[1].endswith(_NO_SAMPLES):
                readings.append(_sample(one, units))
        if not readings:
            return Rejected("no number", "it has no sample with a number")
        return Decoded(readings)


def _sample(line: re.Match[str], units: dict[str, str]) -> Reading:
    metric, labels, text, time = line.groups()
    if not _NUMBER.match(text):
        raise RejectedError("bad payload", f"{text[:40]!r} is not the value of a sample")
    time_us = None
    if time is not None:
        time_us = time_of(float(time) if "." in time else int(time))
        if time_us is None:
            raise RejectedError("bad time", f"the timestamp {time} is in no range of s or ms since 2000")
    field = field_of(metric)
    unit = units.get(metric)
    texts = {} if labels is None else dict(_PAIR.findall(labels))
    unit = next((value for key, value in texts.items() if key.lower() in UNITS), unit)
    if metric.endswith("_ratio") and (known := field_of(metric.removesuffix("_ratio"))) is not None:
        field = Field(known.quantity, "ratio", known.is_plain) if known.quantity in _RATIOS else None
    if field is None or field.quantity == VALUE or "quantile" in texts:
        last = metric.removesuffix("_total").removesuffix("_sum").rpartition("_")[2]
        field = Field(metric, _METRIC_UNITS.get(last), False)
    if unit is not None and unit.lower() in SYSTEMS:
        unit = None
    stated = field.unit if field.unit is not None else _METRIC_UNITS.get(unit or "", unit)
    name = metric if labels is None else f"{metric}{{{','.join(sorted(re.findall(_LABEL, labels)))}}}"
    reading = measure(field.quantity, float(text), stated, name, time_us=time_us)
    for key, value in texts.items():
        check_scale(key, value, [reading])
    return reading


OPENMETRICS_EXAMPLES: Final = (
    DecoderExample(
        "metrics/house",
        b'room_temperature_celsius{room="kitchen"} 21.5',
        (Reading("temperature", 21.5, "°C", 'room_temperature_celsius{room="kitchen"}'),),
    ),
    DecoderExample(
        "metrics/house",
        b"# TYPE http_requests counter\nhttp_requests_total 1027 1794744000\n# EOF",
        (Reading("http_requests_total", 1027.0, "", "http_requests_total", 1_794_744_000_000_000),),
    ),
    DecoderExample("metrics/house", b"load 21.5", reason="no number", note="a word and a number are ambiguous"),
)


# -- CSV --------------------------------------------------------------------------------------------------------------

MAX_CSV_LINES: Final = 1024
IGNORED: Final = "-"


class CsvDecoder(Decoder):
    """CSV with declared columns, one or more lines. Only for topics for which the columns are configured.

    The columns are named as the fields of flat JSON: "time", "device", "temperature_F". "-" is a column that is not
    read. A line has exactly the declared columns. With `header = true` the first line is skipped.
    """

    name = "csv"
    title = "CSV with declared columns, for configured topics"
    filters = ()
    forms = frozenset((TEXT,))
    option_names = ("columns", "separator", "header", "decimal", *OPTIONS)

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        columns = self.options.get("columns", [])
        if not isinstance(columns, list) or not all(isinstance(one, str) and one for one in columns):
            raise PipelineError('the option columns of the decoder csv is not a list of names: ["time", "temperature"]')
        named = [one for one in columns if one != IGNORED]
        if len(set(named)) != len(named):
            raise PipelineError("the option columns of the decoder csv has a name twice")
        if options is not None and not named:
            raise PipelineError('the decoder csv needs columns: columns = ["time", "temperature"]')
        self._columns = columns
        self._separator = self._sign("separator", ",")
        self._decimal = self._sign("decimal", ".")
        self._has_header = self.options.get("header", False) is True
        self._fields = JsonFields({name: one for name, one in self.options.items() if name in OPTIONS})

    def _sign(self, name: str, default: str) -> str:
        found = self.options.get(name, default)
        if not isinstance(found, str) or len(found) != 1:
            raise PipelineError(f"the option {name} of the decoder csv is not one character")
        return found

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        lines = message.text.splitlines()[1 if self._has_header else 0 :]
        if len(lines) > MAX_CSV_LINES:
            return Rejected("too many fields", f"{len(lines)} lines: at most {MAX_CSV_LINES}")
        try:
            rows = [row for row in csv.reader(lines, delimiter=self._separator, strict=True) if row]
        except csv.Error as error:
            return Rejected("bad payload", f"it is not CSV: {error}")
        found = []
        for row in rows:
            if len(row) != len(self._columns):
                return Rejected("bad payload", f"a line has {len(row)} columns and should have {len(self._columns)}")
            found.append(self._line(row, message.topic))
        if not found:
            return Rejected("empty", "it has no line of values")
        if len(found) == 1:
            return found[0]
        readings = [one._replace(time_us=line.time_us) for line in found for one in line.readings]
        return Decoded(readings, None, found[0].device, found[0].extra)

    def _line(self, row: list[str], topic: str) -> Decoded:
        cells = {
            name: cell.strip().replace(self._decimal, ".") if self._decimal != "." else cell.strip()
            for name, cell in zip(self._columns, row, strict=True)
            if name != IGNORED
        }
        found = self._fields.read_flat(cells, topic)
        assert found is not None, "cells are texts"
        return found


CSV_EXAMPLES: Final = (
    DecoderExample(
        "logger/7",
        b"2026-11-15T12:00:00Z,21.5,40",
        (
            Reading("temperature", 21.5, "°C", unit_source=DEFAULT),
            Reading("humidity", 40.0, "%", unit_source=DEFAULT),
        ),
        options={"columns": ["time", "temperature", "humidity"]},
        is_configured=True,
        time_us=1_794_744_000_000_000,
    ),
    DecoderExample(
        "logger/7",
        b"a;68,0",
        (Reading("temperature", 20.0, "°C"),),
        options={"columns": ["device", "temperature_F"], "separator": ";", "decimal": ","},
        is_configured=True,
    ),
    DecoderExample(
        "logger/7",
        b"21.5",
        reason="bad payload",
        options={"columns": ["time", "temperature"]},
        is_configured=True,
    ),
)


DECODERS: Final = {
    InfluxDecoder: INFLUX_EXAMPLES,
    OpenMetricsDecoder: OPENMETRICS_EXAMPLES,
    CsvDecoder: CSV_EXAMPLES,
}
