"""OpenMetrics and the text format of Prometheus: room_temperature_celsius{room="kitchen"} 21.5.

It is recognised by labels in braces or by lines that begin with # TYPE, # HELP, # UNIT or # EOF; a word and a number
alone are not enough. A reading has the quantity and unit that the name of the metric ends with, or the metric's own
name if that is not in the vocabulary; its name is the metric with its labels.
"""

from __future__ import annotations

import re
from typing import Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import time_of
from godwit.pipeline.decoders.json_fields import UNITS, check_scale
from godwit.pipeline.decoders.results import WORDS, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.quantities import VALUE, Field, field_of, measure

MAX_LINES: Final = 4096
_LABEL: Final = r'[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*"(?:[^"\\\n]|\\.)*"'
_PAIR: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"')
_SAMPLE: Final = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{{\s*(?:{_LABEL}\s*(?:,\s*)?)*\}})?"
    r"[ \t]+(\S+)(?:[ \t]+(-?\d+(?:\.\d+)?))?(?:[ \t]+#.*)?\Z"
)
_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?\Z", re.ASCII)
_COMMENT: Final = re.compile(r"# (?:(TYPE|HELP|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(.*)|EOF\Z)")
_UNITS: Final = {
    "celsius": "°C", "fahrenheit": "°F", "kelvin": "K", "seconds": "s", "milliseconds": "ms", "bytes": "B",
    "percent": "%", "volts": "V", "amperes": "A", "watts": "W", "joules": "J", "hertz": "Hz", "meters": "m",
    "pascals": "Pa", "grams": "g", "ratio": "",
}  # fmt: skip
_NO_NUMBERS: Final = frozenset(("nan", "+inf", "-inf", "inf"))


class OpenMetricsDecoder(Decoder):
    """Reads the samples of an exposition."""

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
        if len(lines) > MAX_LINES:
            return Rejected("too many fields", f"{len(lines)} lines: at most {MAX_LINES}")
        units = {one[2]: one[3].strip() for one in comments if one is not None and one[1] == "UNIT"}
        readings = []
        for one in samples:
            if one is None:
                return Rejected("bad payload", "a line is not a sample of OpenMetrics")
            if one[3].lower() not in _NO_NUMBERS:
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
    if field is None or field.quantity == VALUE:
        last = metric.removesuffix("_total").removesuffix("_sum").rpartition("_")[2]
        field = Field(metric, _UNITS.get(last, ""), False)
    stated = field.unit if field.unit is not None else _UNITS.get(unit or "", unit)
    name = metric if labels is None else f"{metric}{{{','.join(sorted(re.findall(_LABEL, labels)))}}}"
    reading = measure(field.quantity, float(text), stated, name, time_us=time_us)
    for key, value in texts.items():
        check_scale(key, value, [reading])
    return reading


DECODER: Final = OpenMetricsDecoder
EXAMPLES: Final = (
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
