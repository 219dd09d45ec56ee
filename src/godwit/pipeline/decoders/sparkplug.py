"""Sparkplug B: metrics of edge nodes and devices in protobuf, on `spBv1.0/GROUP/TYPE/NODE/DEVICE`.

Source: the Eclipse Sparkplug specification 3.0.0, chapters 4 (topics), 5 (operational behaviour) and 6 (payloads).

- NBIRTH and DBIRTH define the metrics: name, alias, datatype and, as a property, the unit. They also carry the present
  values, which are read: a value that never changes is sent in births only. `bdSeq`, `Node Control/` and
  `Device Control/` are not measurements.
- NDATA and DDATA refer to the birth, by alias or by name: without it they are rejected ("definition missing"), unless
  a metric states its name, datatype and unit itself. So is a metric that its birth does not have.
- A metric that is null, or whose property `Quality` is not good, is left out; the others of the message are read. Its
  name, and values that are not numbers, remain in `extra`.
- The quantity is that of the last part of the metric's name, if the vocabulary has it, else the metric's own name. A
  unit that the birth does not state is the default of the quantity.
- Signed integers are sent as unsigned ones; the datatype tells them apart. Members of template instances (UDTs) are
  metrics with the path `instance/member`. Data sets, arrays, files and texts are not numbers.
- NDEATH, DDEATH, NCMD, DCMD and STATE are neither readings nor errors. Sequence numbers remain in `extra`: gaps are
  not detected here, where each message is decoded by itself.
"""

from __future__ import annotations

import json
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import EARLIEST_S, LATEST_S, extra_of
from godwit.pipeline.decoders.fields import quantity_in, unit_fits
from godwit.pipeline.decoders.results import DEFINITION, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.decoders.results import PAYLOAD as FROM_PAYLOAD
from godwit.pipeline.decoders.sparkplug_payload import (
    SparkplugMetric,
    number_of_metric,
    parse_payload,
    text_field,
)
from godwit.pipeline.quantities import field_of, measure

_NAMESPACE: Final = "spBv1.0"
_BIRTHS: Final = frozenset(("NBIRTH", "DBIRTH"))
_DATA: Final = frozenset(("NDATA", "DDATA"))
_OTHER: Final = frozenset(("NDEATH", "DDEATH", "NCMD", "DCMD"))
_LEVELS: Final = {"N": 4, "D": 5}
"""By the first letter of the type: the levels of its topic."""
_CONTROL: Final = ("Node Control/", "Device Control/")
_GOOD: Final = range(192, 256)
"""The qualities whose upper bits say good, as in OPC; 192 is that of the specification."""
MOST_SEQUENCE: Final = 255
_STRICT: Final = frozenset(
    ("temperature", "humidity", "pressure", "battery", "voltage", "current", "power", "energy", "co2", "light")
)
"""Quantities whose names are not ambiguous: a unit that does not fit is an error."""


class SparkplugDecoder(Decoder):
    """Sparkplug B."""

    name = "sparkplug"
    title = "Sparkplug B: metrics in protobuf, defined by births"
    filters = (f"{_NAMESPACE}/#",)
    definition_filters = (f"{_NAMESPACE}/+/NBIRTH/+", f"{_NAMESPACE}/+/DBIRTH/+/+")

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode a message by the type in its topic."""
        levels = message.topic.split("/")
        if len(levels) == 3 and levels[1] == "STATE":
            return Decoded([])
        kind = levels[2] if len(levels) > 3 else ""
        if kind not in _BIRTHS | _DATA | _OTHER or len(levels) != _LEVELS[kind[0]]:
            raise RejectedError("bad payload", f"{message.topic[:100]!r} is not a topic of Sparkplug B")
        source = "/".join([levels[1], *levels[3:]])
        if kind in _OTHER:
            return Decoded([], device=source)
        if not message.payload:
            raise RejectedError("empty", "the payload is empty")
        definition = None if kind in _BIRTHS else context.definition(source)
        return _decoded(message.payload, source, definition, kind in _BIRTHS)

    def define(self, message: DecoderMessage) -> list[tuple[str, str]]:
        """Return the metrics of a birth: datatype and unit by name, and the names by alias."""
        levels = message.topic.split("/")
        names: dict[str, list[Any]] = {}
        aliases: dict[str, str | None] = {}
        for one in parse_payload(message.payload).metrics:
            if one.name:
                names[one.name] = [one.datatype, one.unit]
                if one.alias is not None:
                    key = str(one.alias)
                    aliases[key] = None if key in aliases else one.name  # two metrics with one alias: neither
        return [("/".join([levels[1], *levels[3:]]), json.dumps({"names": names, "aliases": aliases}))]


def _decoded(payload: bytes, source: str, definition: Any, is_birth: bool) -> Decoded:
    found = parse_payload(payload)
    if found.seq is not None and found.seq > MOST_SEQUENCE:
        raise RejectedError("bad payload", f"the sequence number is {found.seq}: at most {MOST_SEQUENCE}")
    readings: list[Reading] = []
    extra: dict[str, Any] = {}
    for metric in found.metrics:
        name, datatype, unit, unit_source = _meaning(metric, definition, is_birth, source)
        if name == "bdSeq" or name.startswith(_CONTROL):
            continue
        if metric.is_null or metric.quality not in _GOOD:
            extra[name] = None
            continue
        number = number_of_metric(metric, datatype)
        if number is None:
            extra[name] = _other_value(metric)
        else:
            readings.append(_reading(name, number, unit, unit_source, _time_us(metric.time_ms)))
    if found.seq is not None:
        extra["seq"] = found.seq
    return Decoded(readings, _time_us(found.time_ms), source, extra_of(extra))


def _meaning(metric: SparkplugMetric, definition: Any, is_birth: bool, source: str) -> tuple[str, int, str | None, str]:
    """Return the name, datatype and unit of a metric, and the source of the unit."""
    if is_birth:
        if not metric.name:
            raise RejectedError("bad payload", f"a metric of the birth has no name (alias {metric.alias})")
        return metric.name, metric.datatype, metric.unit, FROM_PAYLOAD
    if metric.name and metric.unit and (metric.datatype or metric.kind in ("float_value", "double_value")):
        return metric.name, metric.datatype, metric.unit, FROM_PAYLOAD
    if definition is None:
        raise RejectedError(
            "definition missing",
            f"no birth of {source} before this message: send the edge node the command Node Control/Rebirth",
        )
    name = metric.name or definition["aliases"].get(str(metric.alias))
    known = definition["names"].get(name)
    if known is None:
        raise RejectedError(
            "definition missing",
            f"the birth of {source} does not have the metric {metric.name or f'with the alias {metric.alias}'}: send "
            "the edge node the command Node Control/Rebirth",
        )
    return name, known[0] or metric.datatype, metric.unit or known[1], FROM_PAYLOAD if metric.unit else DEFINITION


def _reading(name: str, number: float, unit: str | None, unit_source: str, time_us: int | None) -> Reading:
    field = field_of(name.rpartition("/")[2])
    if field is None:
        return measure(name, number, unit or "", name, unit_source=unit_source, time_us=time_us)
    unit = unit or field.unit
    quantity = field.quantity if unit is None else quantity_in(field.quantity, unit)
    if unit is not None and quantity not in _STRICT and not unit_fits(quantity, unit):
        quantity = name  # the speed of a motor in rpm
    return measure(quantity, number, unit, name, unit_source=unit_source, time_us=time_us)


def _other_value(metric: SparkplugMetric) -> Any:
    """Return a value that is not a number, for `extra`."""
    if metric.kind == "string_value":
        return text_field(metric.value, "a text")[:256]
    if isinstance(metric.value, bool | int):
        return metric.value
    return metric.kind.removesuffix("_value")


def _time_us(time_ms: int) -> int | None:
    """Return a time in milliseconds as microseconds; None for a clock that was never set."""
    return time_ms * 1000 if EARLIEST_S * 1000 <= time_ms <= LATEST_S * 1000 else None


DECODER = SparkplugDecoder

_BIRTH: Final = (  # bdSeq, Node Control/Rebirth, Boiler/Temperature (alias 5, Float, °F), Boiler/Level (6, Int16, mm)
    "spBv1.0/Plant/NBIRTH/Edge1",
    bytes.fromhex(
        "0880e48bbba83312120a0562645365711880e48bbba8332004580012210a144e6f646520436f6e74726f6c2f52656269727468"
        "1880e48bbba833200b700012380a12426f696c65722f54656d706572617475726510051880e48bbba83320094a120a07656e67"
        "556e69741207080c4203c2b046650000884212300a0c426f696c65722f4c6576656c10061880e48bbba83320024a110a07656e"
        "67556e69741206080c42026d6d50fdff031800"
    ),
)
_UPDATE: Final = bytes.fromhex("08e8eb8bbba833120e10051884eb8bbba833650000ac42120b10061885eb8bbba83338011801")
"""Alias 5 is 86, alias 6 is null."""
EXAMPLES: Final = (
    DecoderExample(
        *_BIRTH,
        (
            Reading("temperature", 20.0, "°C", "Boiler/Temperature", 1_763_208_000_000_000, FROM_PAYLOAD),
            Reading("Boiler/Level", -3.0, "mm", "Boiler/Level", 1_763_208_000_000_000, FROM_PAYLOAD),
        ),
        time_us=1_763_208_000_000_000,
        note="a birth: definitions and values; the unit is the property engUnit",
    ),
    DecoderExample(
        "spBv1.0/Plant/NDATA/Edge1",
        _UPDATE,
        (Reading("temperature", 30.0, "°C", "Boiler/Temperature", 1_763_208_000_900_000, DEFINITION),),
        definitions=(_BIRTH,),
        time_us=1_763_208_001_000_000,
        note="aliases; a null is left out",
    ),
    DecoderExample("spBv1.0/Plant/NDATA/Edge1", _UPDATE, reason="definition missing"),
    DecoderExample("spBv1.0/Plant/NDATA/Edge1", _UPDATE[:-5], reason="bad payload", note="truncated"),
    DecoderExample("spBv1.0/Plant/NDEATH/Edge1", b"", note="neither a reading nor an error"),
)
