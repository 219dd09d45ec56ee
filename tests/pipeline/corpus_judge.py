"""Judges decoders by a corpus of payloads with the readings that an expert expects: tests/pipeline/corpus/*.json.

It has its own table of units, and shares no code with the decoders.

A file has a family, and in `allowed` names of fields that may be read or not. An entry has:

- `payload` (text) or `payload_base64`, `topic`, and if needed `content_type`, `configuration` (rules for decoders),
  `before` (earlier messages: definitions, births) and `received` (by default shortly after noon on 15 November 2026);
- `expect.readings`: readings that an expert would sign. A `quantity` may be a list of names; `*` is any name that is
  not one of the ten basic quantities. With `unit_any` the payload states no unit: the default or none is right.
  `name` must be part of the reading's name if it has one;
- `expect.quarantine` or `expect.nothing` (a definition or a status), with the reason in `why`;
- `expect.allowed`: readings that may be made as well, or names of fields; `expect.never`: patterns of wrong readings;
  `expect.no_time`: the payload has no time that may be used;
- `readable`: whether the readings can be read from the payload, its definitions and the documentation of its format.

Every reading that is neither expected nor allowed is wrong, and so is one with the wrong unit or time. A reading
without the time that the payload states counts as unread.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "corpus"
NOON: Final = "2026-11-15T12:00:05Z"
BASIC: Final = frozenset(
    ("temperature", "humidity", "pressure", "battery", "voltage", "current", "power", "energy", "co2", "light", "value")
)

RIGHT: Final = "right"
UNREAD: Final = "unread"
WRONG: Final = "wrong"
NOISE: Final = "noise"
"""A message without readings, such as a definition, that was quarantined."""

SCALES: Final[dict[str, tuple[str, float]]] = {
    # unit: dimension, factor to its base
    "Pa": ("pressure", 1.0), "hPa": ("pressure", 100.0), "kPa": ("pressure", 1e3), "MPa": ("pressure", 1e6),
    "mPa": ("pressure", 1e-3), "bar": ("pressure", 1e5), "mbar": ("pressure", 100.0),
    "mmHg": ("pressure", 133.322387415), "Torr": ("pressure", 101325 / 760), "inHg": ("pressure", 3386.388640341),
    "psi": ("pressure", 6894.757293168), "atm": ("pressure", 101325.0),
    "V": ("voltage", 1.0), "mV": ("voltage", 1e-3), "kV": ("voltage", 1e3),
    "A": ("current", 1.0), "mA": ("current", 1e-3),
    "W": ("power", 1.0), "mW": ("power", 1e-3), "kW": ("power", 1e3), "MW": ("power", 1e6),
    "VA": ("apparent power", 1.0), "var": ("reactive power", 1.0),
    "J": ("energy", 1.0), "MJ": ("energy", 1e6), "Wh": ("energy", 3600.0), "mWh": ("energy", 3.6),
    "kWh": ("energy", 3.6e6), "MWh": ("energy", 3.6e9), "W·min": ("energy", 60.0),
    "%": ("ratio", 1e-2), "ratio": ("ratio", 1.0), "ppm": ("ratio", 1e-6), "ppb": ("ratio", 1e-9),
    "lx": ("light", 1.0),
    "m/s": ("speed", 1.0), "km/h": ("speed", 1 / 3.6), "mph": ("speed", 0.44704), "kn": ("speed", 1852 / 3600),
    "m": ("length", 1.0), "km": ("length", 1e3), "cm": ("length", 1e-2), "mm": ("length", 1e-3),
    "in": ("length", 0.0254),
    "s": ("time", 1.0), "min": ("time", 60.0), "h": ("time", 3600.0),
    "g/m³": ("concentration", 1.0), "µg/m³": ("concentration", 1e-6),
    "m³": ("volume", 1.0), "l": ("volume", 1e-3), "l/min": ("flow", 1e-3 / 60), "l/h": ("flow", 1e-3 / 3600),
    "m³/s": ("flow", 1.0), "m³/h": ("flow", 1 / 3600),
    "Hz": ("frequency", 1.0), "rpm": ("rotation", 1.0), "dB": ("level", 1.0), "dBm": ("power level", 1.0),
    "kg": ("mass", 1.0), "g": ("mass", 1e-3), "W/m²": ("irradiance", 1.0),
    "bytes": ("data", 1.0), "kB": ("data", 1e3), "MB": ("data", 1e6), "F": ("capacitance", 1.0), "C": ("charge", 1.0),
    "°": ("angle", 1.0), "mired": ("mired", 1.0), "pH": ("acidity", 1.0),
}  # fmt: skip
TEMPERATURES: Final[dict[str, tuple[float, float]]] = {
    # unit: factor and offset to °C
    "°C": (1.0, 0.0), "K": (1.0, -273.15), "°F": (5 / 9, -32 * 5 / 9), "°R": (5 / 9, -273.15),
}  # fmt: skip
SPELLINGS: Final = {
    "degC": "°C", "celsius": "°C", "Cel": "°C", "degF": "°F", "kelvin": "K", "lux": "lx", "ug/m3": "µg/m³",
    "μg/m³": "µg/m³", "µg/m3": "µg/m³", "μg/m3": "µg/m³", "L": "l", "L/min": "l/min", "L/h": "l/h", "RPM": "rpm",
    "r/min": "rpm", "1/min": "rpm", "B": "bytes", "byte": "bytes", "seconds": "s", "second": "s", "m3": "m³",
    "W/m2": "W/m²", "percent": "%", "%RH": "%", "deg": "°", "degree": "°", "torr": "Torr", "kt": "kn", "knot": "kn",
    "mi/h": "mph", "kph": "km/h", "VAr": "var", "VAR": "var", "mb": "mbar", "Wmin": "W·min", "W*min": "W·min",
    "farad": "F", "coulomb": "C",
}  # fmt: skip


class JudgedReading(NamedTuple):
    """A reading as the corpus compares it, from the interface of decoders or from the command."""

    quantity: str
    value: float
    unit: str
    name: str = ""
    time_s: float | None = None


class Verdict(NamedTuple):
    """The result of one entry."""

    family: str
    id: str
    readable: bool
    outcome: str
    """RIGHT, UNREAD, WRONG or NOISE."""
    detail: str


def entries() -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Return the family, the fields that its file allows, and the entry, for each entry of the corpus."""
    for path in sorted(FOLDER.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for entry in content["entries"]:
            yield content["family"], content.get("allowed", []), entry


def payload_of(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of an entry or of a message before it."""
    if "payload_base64" in message:
        return base64.b64decode(message["payload_base64"])
    text: str = message["payload"]
    return text.encode()


def seconds(time: str) -> float:
    """Return a time in ISO 8601 as seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()


def judge(
    family: str,
    fields: Iterable[Any],
    entry: Mapping[str, Any],
    readings: list[JudgedReading] | None,
    reason: str = "",
) -> Verdict:
    """Compare the readings of an entry with the expected ones; None for readings if it was quarantined."""
    expect = entry["expect"]
    wanted: list[dict[str, Any]] = expect.get("readings", [])
    allowed = [*expect.get("allowed", []), *fields]

    def verdict(outcome: str, detail: str = "") -> Verdict:
        return Verdict(family, entry["id"], entry["readable"], outcome, detail)

    for reading in readings or ():
        if problem := _problem(reading, wanted, allowed, expect):
            return verdict(WRONG, f"{problem}: {_shown(reading)}")
    if expect.get("nothing") and readings is None:
        return verdict(NOISE, f"quarantined: {reason}")
    if entry["readable"]:
        missing = [
            one
            for one in wanted
            if not any(
                _fits(reading, one) and ("time" not in one or _is_at(reading, one)) for reading in readings or ()
            )
        ]
        if missing:
            found = f"quarantined: {reason}" if readings is None else f"read {[*map(_shown, readings)]}"
            return verdict(UNREAD, f"missing {[_wanted(one) for one in missing]}, {found}")
    return verdict(RIGHT)


def table(verdicts: Iterable[Verdict]) -> str:
    """Return a table of the outcomes by family, and a line for each entry that is not right."""
    rows: dict[str, list[Verdict]] = {}
    for one in verdicts:
        rows.setdefault(one.family, []).append(one)
    lines = [f"{'family':20}{'entries':>8}{'wrong':>7}{'noise':>7}{'readable':>10}{'read':>6}{'unread':>8}"]
    for family, found in [*rows.items(), ("all", [one for some in rows.values() for one in some])]:
        readable = [one for one in found if one.readable]
        counts = [
            len(found),
            sum(one.outcome == WRONG for one in found),
            sum(one.outcome == NOISE for one in found),
            len(readable),
            sum(one.outcome == RIGHT for one in readable),
            sum(one.outcome == UNREAD for one in readable),
        ]
        lines.append("{:20}{:>8}{:>7}{:>7}{:>10}{:>6}{:>8}".format(family, *counts))
    for outcome in (WRONG, NOISE, UNREAD):
        lines += [
            f"{outcome}: {one.family}/{one.id}: {one.detail[:400]}"
            for some in rows.values()
            for one in some
            if one.outcome == outcome
        ]
    return "\n".join(lines)


def _problem(reading: JudgedReading, wanted: list[Any], allowed: list[Any], expect: Mapping[str, Any]) -> str:
    """Return the mistake in a reading; "" for a right one."""
    if not math.isfinite(reading.value):
        return "not finite"
    if any(_matches(reading, one) for one in expect.get("never", [])):
        return "must not be read"
    if expect.get("no_time") and reading.time_s is not None:
        return "a time that the payload does not state"
    fitting = [one for one in (*wanted, *allowed) if _fits(reading, one)]
    if not fitting:
        return "" if _is_unnamed(reading, wanted) else "not expected"
    timed = [one for one in fitting if isinstance(one, dict) and "time" in one]
    if (
        reading.time_s is not None
        and timed
        and len(timed) == len(fitting)
        and not any(_is_at(reading, one) for one in timed)
    ):
        return f"another time than {timed[0]['time']}"
    return ""


def _fits(reading: JudgedReading, expected: Any) -> bool:
    """Return whether a reading is the expected one, apart from its time."""
    if isinstance(expected, str):
        levels = {_plain(one) for one in re.split(r"[./\[\]]", reading.name)}
        field = _plain(expected)
        return field in levels or field in (_plain(reading.quantity), _plain(reading.name))
    names = expected["quantity"]
    names = [names] if isinstance(names, str) else names
    quantity = reading.quantity.casefold()
    if quantity not in names and not ("*" in names and quantity not in BASIC):
        return False
    name = expected.get("name")
    if name and reading.name and "*" not in names and _plain(name) not in _plain(reading.name):
        return False
    if expected.get("unit_any") and (not reading.unit or not expected["unit"]):
        return _close(reading.value, expected["value"])
    return _equal(reading, expected["value"], expected["unit"])


def _is_unnamed(reading: JudgedReading, wanted: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a reading has no quantity and no unit, but an expected number: it is unread, not wrong."""
    return (reading.quantity, reading.unit) == ("value", "") and any(
        one.get("unit_any") and _close(reading.value, one["value"]) for one in wanted
    )


def _matches(reading: JudgedReading, pattern: Mapping[str, Any]) -> bool:
    """Return whether a reading is of a kind that must not be read."""
    names = pattern.get("quantity", reading.quantity.casefold())
    if reading.quantity.casefold() not in ([names] if isinstance(names, str) else names):
        return False
    if "name" in pattern and _plain(pattern["name"]) not in _plain(reading.name):
        return False
    if "value" not in pattern:
        return "unit" not in pattern or _unit(reading.unit) == _unit(pattern["unit"])
    if "unit" in pattern:
        return _equal(reading, pattern["value"], pattern["unit"])
    return _close(reading.value, pattern["value"])


def _equal(reading: JudgedReading, value: float, unit: str) -> bool:
    """Return whether a reading has this value in this unit or, converted, in another one."""
    mine, theirs = _unit(reading.unit), _unit(unit)
    if mine == theirs:
        return _close(reading.value, value)
    if mine in TEMPERATURES and theirs in TEMPERATURES:
        ours, wanted = (
            number * TEMPERATURES[one][0] + TEMPERATURES[one][1]
            for number, one in ((reading.value, mine), (value, theirs))
        )
        return math.isclose(ours, wanted, rel_tol=1e-6, abs_tol=1e-5)
    (dimension, factor), (other, scale) = (SCALES.get(one, (one, 1.0)) for one in (mine, theirs))
    return dimension == other and _close(reading.value * factor, value * scale)


def _is_at(reading: JudgedReading, expected: Mapping[str, Any]) -> bool:
    within = expected.get("time_within_s", 0.001)
    return reading.time_s is not None and abs(reading.time_s - seconds(expected["time"])) <= within


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def _unit(unit: str) -> str:
    return SPELLINGS.get(unit, unit)


def _plain(text: str) -> str:
    return re.sub(r"[^0-9a-z]", "", text.casefold())


def _shown(reading: JudgedReading) -> str:
    name = f" ({reading.name})" if reading.name else ""
    time = "" if reading.time_s is None else f" at {reading.time_s:.3f}"
    return f"{reading.quantity}{name} {reading.value:.10g} {reading.unit}".strip() + time


def _wanted(expected: Mapping[str, Any]) -> str:
    time = f" at {expected['time']}" if "time" in expected else ""
    return f"{expected['quantity']} {expected['value']} {expected['unit']}".strip() + time
