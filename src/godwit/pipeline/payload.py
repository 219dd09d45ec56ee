"""Parses payloads: numbers with their quantity and unit, or the reason why there are none.

    JSON objects     {"temperature": 21.5, "humidity": 40, "time": "2026-11-15T12:00:00Z", "device": "b7"}
    numbers          21.5
    text             The Temp is 54 degree        12C        54.1 °F

Units are converted to one for each quantity. Any payload yields readings or a reason, never an exception, in time that
is bounded by its length. This module runs on executors and uses the standard library only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from godwit.pipeline.decoders.results import Reading

SCHEMA_VERSION: Final = 1
"""Of silver/readings: it grows when the meaning of a field or a unit changes."""
MAX_TEXT_BYTES: Final = 64 * 1024
MAX_JSON_LEVELS: Final = 16
MAX_FIELDS: Final = 64
GREATEST: Final = 1e15
"""A larger value is rejected."""
EARLIEST_US: Final = 946_684_800_000_000
"""The year 2000: a clock that shows an earlier time was never set."""

QUANTITIES: Final = {
    "temperature": ("temperature", "temp", "t", "tempc", "temp_c", "temperature_c", "celsius"),
    "humidity": ("humidity", "hum", "h", "rh", "relative_humidity"),
    "pressure": ("pressure", "press", "p", "hpa", "barometer"),
    "battery": ("battery", "batt", "battery_level"),
    "voltage": ("voltage", "volt", "v", "volts"),
    "current": ("current", "ampere", "amps"),
    "power": ("power", "watt", "watts"),
    "co2": ("co2", "carbon_dioxide"),
    "light": ("light", "lux", "illuminance", "brightness"),
    "value": ("value", "val", "reading", "x"),
}
"""By quantity: the names of its fields in JSON, in lower case."""
_TIMES: Final = ("time", "timestamp", "time_us", "ts", "at", "datetime", "date")
_DEVICES: Final = ("device", "device_id", "sensor", "sensor_id", "id", "mac")
_UNITS: Final = ("unit", "units", "uom")
_QUANTITY_BY_NAME: Final = {name: quantity for quantity, names in QUANTITIES.items() for name in names}

_IDENTITY: Final[Callable[[float], float]] = float
_Conversion: TypeAlias = tuple[str, str, Callable[[float], float]]
"""Quantity, unit as stored, and the function that converts the number."""
_CONVERSIONS: Final[dict[str, _Conversion]] = {  # by the unit as written, in lower case
    **dict.fromkeys(
        ("c", "°c", "celsius", "degc", "deg c", "degree", "degrees", "°"), ("temperature", "°C", _IDENTITY)
    ),
    **dict.fromkeys(("f", "°f", "fahrenheit", "degf", "deg f"), ("temperature", "°C", lambda x: (x - 32) * 5 / 9)),
    **dict.fromkeys(("k", "kelvin"), ("temperature", "°C", lambda x: x - 273.15)),
    **dict.fromkeys(("%", "percent", "%rh"), ("humidity", "%", _IDENTITY)),
    **dict.fromkeys(("hpa", "mbar", "mb"), ("pressure", "hPa", _IDENTITY)),
    **dict.fromkeys(("pa",), ("pressure", "hPa", lambda x: x / 100)),
    **dict.fromkeys(("kpa",), ("pressure", "hPa", lambda x: x * 10)),
    **dict.fromkeys(("bar",), ("pressure", "hPa", lambda x: x * 1000)),
    **dict.fromkeys(("v", "volt", "volts"), ("voltage", "V", _IDENTITY)),
    **dict.fromkeys(("mv",), ("voltage", "V", lambda x: x / 1000)),
    **dict.fromkeys(("a", "amp", "ampere"), ("current", "A", _IDENTITY)),
    **dict.fromkeys(("ma",), ("current", "A", lambda x: x / 1000)),
    **dict.fromkeys(("w", "watt", "watts"), ("power", "W", _IDENTITY)),
    **dict.fromkeys(("kw",), ("power", "W", lambda x: x * 1000)),
    **dict.fromkeys(("ppm",), ("co2", "ppm", _IDENTITY)),
    **dict.fromkeys(("lx", "lux"), ("light", "lx", _IDENTITY)),
}
DEFAULT_UNITS: Final = {
    "temperature": "°C", "humidity": "%", "pressure": "hPa", "battery": "%", "voltage": "V", "current": "A",
    "power": "W", "co2": "ppm", "light": "lx", "value": "",
}  # fmt: skip

_NUMBER: Final = r"[-+]?(?:\d+(?:[.,]\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?"
_PLAIN: Final = re.compile(rf"\s*({_NUMBER})\s*\Z")
_TEXT: Final = re.compile(rf"(?<![\w.,])({_NUMBER})\s*(°?\s?[A-Za-z%°]+(?:/[A-Za-z0-9]+)?)?")
_WORD: Final = re.compile(r"[A-Za-z_0-9]+")


class ParsedPayload(NamedTuple):
    """The content of a payload."""

    readings: list[Reading]
    time_us: int | None = None
    device: str | None = None
    extra: str | None = None
    """JSON of all other fields."""


class RejectedPayload(NamedTuple):
    """The reason why a payload has no readings."""

    reason: str
    """One of a fixed set, to count by."""
    detail: str


class _RejectedError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.rejection = RejectedPayload(reason, detail)


def parse(payload: bytes, topic: str) -> ParsedPayload | RejectedPayload:
    """Return the readings in a payload, or the reason why there are none. The topic may name the quantity."""
    try:
        return _parse(payload, topic)
    except _RejectedError as error:
        return error.rejection


def _parse(payload: bytes, topic: str) -> ParsedPayload:
    if len(payload) > MAX_TEXT_BYTES:
        raise _RejectedError("too long", f"{len(payload)} bytes: a reading has at most {MAX_TEXT_BYTES}")
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise _RejectedError("not text", f"invalid UTF-8 at byte {error.start}") from None
    stripped = text.strip()
    if not stripped:
        raise _RejectedError("empty", "the payload is empty")
    if stripped[0] in "{[":
        return _from_json(stripped)
    if found := _PLAIN.match(text):
        quantity = _quantity_of(topic)
        return ParsedPayload([Reading(quantity, _checked(_number(found[1]), quantity), DEFAULT_UNITS[quantity])])
    return _from_text(stripped, topic)


# -- JSON -------------------------------------------------------------------------------------------------------------


def _from_json(text: str) -> ParsedPayload:
    if _levels(text) > MAX_JSON_LEVELS:
        raise _RejectedError("nested too deeply", f"more than {MAX_JSON_LEVELS} levels of JSON")
    try:
        value = json.loads(text, parse_int=_whole)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # raises for an unpaired surrogate
    except UnicodeEncodeError:
        raise _RejectedError("not text", "it has an unpaired surrogate") from None
    except (ValueError, RecursionError) as error:
        raise _RejectedError("bad JSON", str(error)[:200]) from None
    if not isinstance(value, dict):
        raise _RejectedError("no object", "JSON, but not an object with named values")
    if len(value) > MAX_FIELDS:
        raise _RejectedError("too many fields", f"{len(value)}: at most {MAX_FIELDS}")
    unit = next((value[name] for name in value if name.lower() in _UNITS), None)
    readings: dict[str, Reading] = {}
    time_us: int | None = None
    device: str | None = None
    extra: dict[str, Any] = {}
    for name, item in value.items():
        low = name.lower()
        if low in _TIMES:
            time_us = _time_us(item, name)
        elif low in _DEVICES and isinstance(item, str | int):
            device = str(item)[:256]
        elif low in _QUANTITY_BY_NAME:
            reading = _reading(_QUANTITY_BY_NAME[low], item, unit, name)
            readings.setdefault(reading.quantity, reading)
        elif low not in _UNITS:
            extra[name] = item
    if not readings:
        raise _RejectedError("no quantity", f"none of its fields is known: {', '.join(list(value)[:8])}"[:200])
    return ParsedPayload(list(readings.values()), time_us, device, _json(extra) if extra else None)


def _json(extra: dict[str, Any]) -> str:
    """Encode the fields as JSON, with numbers that are not finite as text."""
    try:
        return json.dumps(extra, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(extra), parse_constant=str))


def _reading(quantity: str, item: Any, unit: Any, name: str) -> Reading:
    """Return the reading of a field, whose value is a number or the text of one."""
    if isinstance(item, bool) or not isinstance(item, int | float | str):
        raise _RejectedError("type changed", f"the field {name!r} is {_kind(item)} and should be a number")
    if isinstance(item, str):
        found = _PLAIN.match(item)
        if not found:
            raise _RejectedError("type changed", f"the field {name!r} is the text {item[:40]!r} and should be a number")
        item = _number(found[1])
    value = _checked(float(item), name)
    if isinstance(unit, str):
        known = _CONVERSIONS.get(unit.strip().lower())
        if known is not None and quantity in (known[0], "value"):
            return _converted(value, known, name)
        if quantity == "value":
            return Reading(quantity, value, unit.strip()[:32])
    return Reading(quantity, value, DEFAULT_UNITS[quantity])


def _converted(value: float, known: _Conversion, name: str) -> Reading:
    quantity, unit, conversion = known
    return Reading(quantity, _checked(conversion(value), name), unit)


def _whole(digits: str) -> int | float:
    """Convert an integer. Python would parse any length, in quadratic time."""
    return int(digits) if len(digits) <= 32 else math.inf


def _levels(text: str) -> int:
    """Return an estimate of the depth of JSON without parsing it, which also counts brackets in strings."""
    depth = deepest = 0
    for character in text:
        if character in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}]":
            depth -= 1
    return deepest


def _kind(item: Any) -> str:
    return {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}.get(
        type(item), "something else"
    )


# -- text -------------------------------------------------------------------------------------------------------------


def _from_text(text: str, topic: str) -> ParsedPayload:
    """Parse text: the first number, the unit after it, and words before it that may name the quantity."""
    if text.lower() in ("nan", "inf", "-inf", "+inf", "infinity", "-infinity"):
        raise _RejectedError("no number", f"{text!r} is not a measurement")
    found = _TEXT.search(text)
    if found is None:
        raise _RejectedError("no number", f"no number in {text[:60]!r}")
    value = _checked(_number(found[1]), "the number")
    unit = " ".join((found[2] or "").lower().replace("°", " °").split()).replace("° ", "°")
    known = _CONVERSIONS.get(unit) or _CONVERSIONS.get(unit.replace(" ", ""))
    if known is not None:
        return ParsedPayload([_converted(value, known, "the number")])
    words = [word.lower() for word in _WORD.findall(text[: found.start()])]
    quantity = next(
        (_QUANTITY_BY_NAME[word] for word in words if len(word) > 1 and word in _QUANTITY_BY_NAME), _quantity_of(topic)
    )
    return ParsedPayload([Reading(quantity, value, DEFAULT_UNITS[quantity])])


def _quantity_of(topic: str) -> str:
    """Return the quantity that the last levels of a topic name, else "value"."""
    for level in reversed(topic.lower().split("/")):
        if level in _QUANTITY_BY_NAME and len(level) > 1:
            return _QUANTITY_BY_NAME[level]
    return "value"


# -- numbers and times ------------------------------------------------------------------------------------------------


def _number(text: str) -> float:
    return float(text.replace(",", "."))


def _checked(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise _RejectedError("not finite", f"{name} is {value}")
    if abs(value) > GREATEST:
        raise _RejectedError("too large", f"{name} is {value:g}")
    return value


def _time_us(item: Any, name: str) -> int:
    """Parse a time: ISO 8601 (UTC without a zone), or seconds, milli-, micro- or nanoseconds since 1970."""
    try:
        if isinstance(item, str) and not _PLAIN.match(item):
            moment = datetime.fromisoformat(item.strip())
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            time_us = int(moment.timestamp() * 1e6)
        elif isinstance(item, bool) or not isinstance(item, int | float | str):
            raise _RejectedError("bad time", f"the field {name!r} is {_kind(item)}")
        else:
            number = float(item)
            scale = next(
                (scale for limit, scale in ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0)) if abs(number) < limit), 1e-3
            )
            time_us = int(number * scale)
    except (ValueError, OverflowError):
        raise _RejectedError("bad time", f"the field {name!r} is {str(item)[:40]!r}") from None
    if time_us < EARLIEST_US:
        raise _RejectedError("time in the far past", f"the field {name!r} is {str(item)[:40]!r}")
    return time_us
