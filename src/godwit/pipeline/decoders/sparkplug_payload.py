"""The payload of Sparkplug B: a protobuf message, parsed with the protobuf library (decision 49).

The fields and numbers are those of `sparkplug_b.proto` in the Eclipse Sparkplug specification 3.0.0, chapter 6. The
descriptor is built in code, in a pool of its own: a process that also has Tahu's generated module must not see two
definitions of one file. Texts are declared as bytes, which is the same on the wire, so that text that is not UTF-8 is
an error of this decoder rather than of the library. Parts that hold no numbers (data sets, metadata, extensions) are
not declared, and skipped.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final, NamedTuple

from godwit.pipeline.decoders.results import RejectedError

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
