"""Sparkplug B: metrics of edge nodes and devices in protobuf, on `spBv1.0/GROUP/TYPE/NODE/DEVICE`.

Source: the Eclipse Sparkplug specification 3.0.0, chapters 4 (topics), 5 (operational behaviour) and 6 (payloads).

- NBIRTH and DBIRTH define the metrics: name, alias, datatype and, as a property, the unit. They also carry the present
  values, which are read: a value that never changes is sent in births only. `bdSeq`, `Node Control/` and
  `Device Control/` are not measurements.
- NDATA and DDATA refer to the birth, by alias or by name: without it they are rejected ("definition missing"), unless
  a metric states its name, datatype and unit itself. So is a metric that its birth does not have.
- A metric that is null, or whose property `Quality` is not good, is left out; the others of the message are read. Its
  name, and values that are not numbers, remain in `extra`.
- The quantity is that of the last part of the metric's name, if the vocabulary has it, else the metric's own name; so
  it is in folders of settings and alarms. A unit that the birth does not state is the default of the quantity.
- Signed integers are sent as unsigned ones; the datatype tells them apart. Members of template instances (UDTs) are
  metrics with the path `instance/member`. Data sets, arrays, files and texts are not numbers.
- NDEATH, DDEATH, NCMD, DCMD and STATE are neither readings nor errors. Sequence numbers remain in `extra`: gaps are
  not detected here, where each message is decoded by itself.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Final, NamedTuple

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import EARLIEST_S, LATEST_S, extra_of
from godwit.pipeline.decoders.fields import quantity_in, unit_fits
from godwit.pipeline.decoders.results import DEFINITION, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.decoders.results import PAYLOAD as FROM_PAYLOAD
from godwit.pipeline.quantities import field_of, is_setting, is_setting_topic, measure

# -- the payload ------------------------------------------------------------------------------------------------------
# The payload of Sparkplug B: a protobuf message, parsed with the protobuf library (decision 49).
#
# The fields and numbers are those of `sparkplug_b.proto` in the Eclipse Sparkplug specification 3.0.0, chapter 6. The
# descriptor is built in code, in a pool of its own: a process that also has Tahu's generated module must not see two
# definitions of one file. Texts are declared as bytes, which is the same on the wire, so that text that is not UTF-8 is
# an error of this decoder rather than of the library. Parts that hold no numbers (data sets, metadata, extensions) are
# not declared, and skipped.

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""A birth of an edge node with thousands of metrics is longer than other payloads."""
MAX_METRICS: Final = 20_000
MAX_TEMPLATE_LEVELS: Final = 4

_BYTES: Final = "bytes"
_FIELD_TYPES: Final = {"double": 1, "float": 2, "uint64": 4, "bool": 8, "bytes": 12, "uint32": 13}
_MESSAGES: Final = {  # by message: fields with number, type (a scalar or a message) and whether it is repeated
    "PropertyValue": {
        "type": (1, "uint32", False),
        "is_null": (2, "bool", False),
        "int_value": (3, "uint32", False),
        "long_value": (4, "uint64", False),
        "string_value": (8, _BYTES, False),
    },
    "PropertySet": {"keys": (1, _BYTES, True), "values": (2, "PropertyValue", True)},
    "Template": {
        "metrics": (2, "Metric", True),
        "template_ref": (4, _BYTES, False),
        "is_definition": (5, "bool", False),
    },
    "Metric": {
        "name": (1, _BYTES, False),
        "alias": (2, "uint64", False),
        "timestamp": (3, "uint64", False),
        "datatype": (4, "uint32", False),
        "is_historical": (5, "bool", False),
        "is_null": (7, "bool", False),
        "properties": (9, "PropertySet", False),
        "int_value": (10, "uint32", False),
        "long_value": (11, "uint64", False),
        "float_value": (12, "float", False),
        "double_value": (13, "double", False),
        "boolean_value": (14, "bool", False),
        "string_value": (15, _BYTES, False),
        "bytes_value": (16, _BYTES, False),
        "dataset_value": (17, _BYTES, False),
        "template_value": (18, "Template", False),
        "extension_value": (19, _BYTES, False),
    },
    "Payload": {
        "timestamp": (1, "uint64", False),
        "metrics": (2, "Metric", True),
        "seq": (3, "uint64", False),
        "body": (5, _BYTES, False),
    },
}
_VALUES: Final = frozenset(name for name in _MESSAGES["Metric"] if name.endswith("_value"))

SIGNED_BITS: Final = {1: 8, 2: 16, 3: 32, 4: 64}
"""By datatype (Int8 to Int64): the bits of the two's complement, which is sent as an unsigned number."""
UNSIGNED_BITS: Final = {5: 8, 6: 16, 7: 32, 8: 64}
NUMBER_TYPES: Final = frozenset((*SIGNED_BITS, *UNSIGNED_BITS, 9, 10))
"""Integers, Float and Double."""
TYPE_NAMES: Final = (
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean",
    "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList",
    "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array",
    "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)  # fmt: skip
_MOST_FLOAT: Final = 3.4028234e38
GOOD: Final = 192
"""The quality of a usable value; a metric without the property is good."""
_UNIT_PROPERTIES: Final = frozenset(("engunit", "engunits", "engineeringunit", "engineeringunits", "unit", "units"))
"""Names of the property with the unit, in lower case, without blanks and underscores. The specification names none:
`engUnit` is that of Ignition, the others are in use by other edge nodes."""


class SparkplugMetric(NamedTuple):
    """One metric, or a member of a template instance."""

    name: str
    """"" if it is sent by its alias only; members of a template have the path `template/member`."""
    alias: int | None
    datatype: int
    """0 if it is not sent."""
    time_ms: int
    kind: str
    """The field that holds the value; "" without a value."""
    value: Any
    is_null: bool
    unit: str | None
    quality: int


class SparkplugPayload(NamedTuple):
    """A payload with its metrics, and the names of template instances within."""

    time_ms: int
    seq: int | None
    metrics: list[SparkplugMetric]


class _PayloadParser:
    """Holds the message class of the protobuf library. It is made anew on an executor: it cannot be pickled."""

    def __init__(self) -> None:
        self._message: Any = None

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return (_PayloadParser, ())

    def parse(self, payload: bytes) -> Any:
        """Return the protobuf message. Raise RejectedError if it is not one."""
        if self._message is None:
            self._message = _message_class()
        try:
            return self._message.FromString(payload)
        except Exception as error:  # DecodeError, imported with the library only
            text = " ".join(str(error).split())[:100]
            raise RejectedError("bad payload", f"it is not a Sparkplug payload in protobuf: {text}") from None


def _message_class() -> Any:
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(name="godwit_sparkplug_b.proto", package="godwit", syntax="proto2")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind, is_repeated) in fields.items():
            field = message.field.add(name=name, number=number, label=3 if is_repeated else 1)
            if kind in _FIELD_TYPES:
                field.type = _FIELD_TYPES[kind]
            else:
                field.type = 11  # a message
                field.type_name = f".godwit.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("godwit.Payload"))


_PARSER: Final = _PayloadParser()


def parse_payload(payload: bytes) -> SparkplugPayload:
    """Parse a payload. Members of template instances are metrics with a path; template definitions are left out.

    Raise RejectedError if it is not a payload of Sparkplug B.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise RejectedError("too long", f"{len(payload)} bytes: a Sparkplug payload has at most {MAX_PAYLOAD_BYTES}")
    found = _PARSER.parse(payload)
    metrics: list[SparkplugMetric] = []
    _add_metrics(found.metrics, "", metrics, 1)
    return SparkplugPayload(found.timestamp, found.seq if found.HasField("seq") else None, metrics)


def _add_metrics(found: Any, prefix: str, metrics: list[SparkplugMetric], level: int) -> None:
    if level > MAX_TEMPLATE_LEVELS:
        raise RejectedError("nested too deeply", f"more than {MAX_TEMPLATE_LEVELS} levels of templates")
    if len(metrics) + len(found) > MAX_METRICS:
        raise RejectedError("too many fields", f"more than {MAX_METRICS} metrics")
    for one in found:
        fields = {field.name: value for field, value in one.ListFields()}
        name = text_field(fields.get("name", b""), "the name of a metric")
        kinds = _VALUES.intersection(fields)
        if len(kinds) > 1:
            raise RejectedError(
                "bad payload", f"the metric {prefix + name!r} has two values: {', '.join(sorted(kinds))}"
            )
        kind = next(iter(kinds), "")
        if kind == "template_value":
            if not fields[kind].is_definition:
                _add_metrics(fields[kind].metrics, f"{prefix}{name}/", metrics, level + 1)
            continue
        unit, quality = _properties(fields.get("properties"))
        metrics.append(
            SparkplugMetric(
                prefix + name if name else "",
                fields.get("alias"),
                fields.get("datatype", 0),
                fields.get("timestamp", 0),
                kind,
                fields.get(kind),
                fields.get("is_null", False),
                unit,
                quality,
            )
        )


def _properties(found: Any) -> tuple[str | None, int]:
    """Return the unit and the quality of a metric; None for no unit."""
    unit, quality = None, GOOD
    if found is None:
        return unit, quality
    if len(found.keys) != len(found.values):
        raise RejectedError("bad payload", f"a property set with {len(found.keys)} keys and {len(found.values)} values")
    for key, value in zip(found.keys, found.values, strict=True):
        if key == b"Quality" and value.HasField("int_value"):
            quality = value.int_value
        elif value.HasField("string_value") and not value.is_null:
            name = key.decode(errors="replace").lower().replace("_", "").replace(" ", "")
            if name in _UNIT_PROPERTIES and (text := text_field(value.string_value, "a unit").strip()):
                unit = text
    return unit, quality


def text_field(value: bytes, what: str) -> str:
    """Decode a text of the payload. Raise RejectedError if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RejectedError("bad payload", f"{what} is not text in UTF-8") from None


def number_of_metric(metric: SparkplugMetric, datatype: int) -> float | None:
    """Return the number of a metric with this datatype (0 if it is unknown); None if it is not a number.

    Raise RejectedError if the value does not fit its datatype.
    """
    kind, value = metric.kind, metric.value
    if kind in ("float_value", "double_value"):
        if datatype not in (0, 9, 10):
            raise _misfit(metric, datatype)
        return float(value) if kind == "double_value" else _shortest(value)
    if kind not in ("int_value", "long_value") or datatype not in NUMBER_TYPES:
        return None
    bits = SIGNED_BITS.get(datatype) or UNSIGNED_BITS.get(datatype)
    if bits is None:
        raise _misfit(metric, datatype)
    if datatype in SIGNED_BITS:
        return float(_signed(value, bits, metric))
    if value >= 1 << bits:
        raise _misfit(metric, datatype)
    return float(value)


def _shortest(value: float) -> float:
    """Return the shortest decimal number of a float of 32 bits: 12.1 rather than 12.100000381469727."""
    if not math.isfinite(value):
        return value
    exact = struct.pack("<f", value)
    for digits in (6, 7, 8):
        number = float(f"{value:.{digits}g}")
        if abs(number) < _MOST_FLOAT and struct.pack("<f", number) == exact:
            return number
    return value


def _signed(value: int, bits: int, metric: SparkplugMetric) -> int:
    """Return the number of a two's complement: edge nodes extend the sign to the width of the field, or do not."""
    for width in {bits, 32 if metric.kind == "int_value" else 64}:
        if value >> (width - 1) == 1:
            negative = value - (1 << width)
            if negative >= -(1 << (bits - 1)):
                return negative
    if value >= 1 << (bits - 1):
        raise _misfit(metric, next(one for one, size in SIGNED_BITS.items() if size == bits))
    return value


def _misfit(metric: SparkplugMetric, datatype: int) -> RejectedError:
    name = TYPE_NAMES[datatype] if datatype < len(TYPE_NAMES) else str(datatype)
    return RejectedError(
        "type changed", f"the metric {metric.name or metric.alias} is of the type {name}, and its {metric.kind} is not"
    )


# -- the decoder ------------------------------------------------------------------------------------------------------

_NAMESPACE: Final = "spBv1.0"
_BIRTHS: Final = frozenset(("NBIRTH", "DBIRTH"))
_DATA: Final = frozenset(("NDATA", "DDATA"))
_OTHER: Final = frozenset(("NDEATH", "DDEATH", "NCMD", "DCMD"))
_LEVELS: Final = {"N": 4, "D": 5}
"""By the first letter of the type: the levels of its topic."""
_CONTROL: Final = ("Node Control/", "Device Control/")
_FOLDERS: Final = frozenset(("alarm", "alarms", "recipe", "recipes", "configuration"))
"""Folders whose metrics are not measurements; they keep their own names. So do those of settings and limits."""
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
    levels = name.split("/")
    is_other = is_setting_topic(name) or any(is_setting(one) or one.lower() in _FOLDERS for one in levels)
    field = None if is_other else field_of(levels[-1])
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

DECODERS: Final = {SparkplugDecoder: EXAMPLES}
