"""What other fields of a message tell about its readings: another unit, an error, a statistic.

A reading whose unit is not stated is in the default unit of its quantity only if nothing in the message contradicts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from godwit.pipeline.decoders.content import MAX_LEVELS, number_of
from godwit.pipeline.decoders.results import DEFAULT, PAYLOAD, Reading, RejectedError
from godwit.pipeline.quantities import QUANTITIES, Field, field_of, words_of
from godwit.pipeline.units import MAX_UNIT, scale_of

MAX_TWIN_GAP: Final = 0.6
"""Kelvin between a temperature and the same one in another unit, both rounded."""
OTHER_SCALES: Final = frozenset(
    ("f", "°f", "fahrenheit", "degf", "deg f", "k", "kelvin", "imperial", "us_customary", "us")
)
"""Texts in any field that tell that a temperature is not in °C."""
_SCALE_FLAGS: Final = {"fahrenheit": True, "kelvin": True, "imperial": True, "celsius": False, "metric": False}
"""Words of fields that are true or false, with the value that tells that a temperature is not in °C."""
_FAILED: Final = frozenset(("error", "fault", "failed", "failure", "invalid", "bad"))
"""States of a sensor whose values are not to be used."""
_NO_ERRORS: Final = frozenset(
    ("", "0", "no", "none", "null", "ok", "false", "no error", "no_error", "noerror", "n/a", "-")
)
"""Texts of a field such as `error` that state no error."""
_STATISTICS: Final = frozenset(
    ("min", "max", "minimum", "maximum", "avg", "average", "mean", "median", "sum", "std", "stddev", "variance",
     "forecast", "prediction", "predicted", "target", "setpoint", "limit", "threshold")
)  # fmt: skip
"""Texts of a field such as `aggregation` that state that values are not measurements."""
_IMPERIAL_NAMES: Final = frozenset(("lsid",))
"""Fields, in lower case, of interfaces whose values are in °F, mph and inHg: those of WeatherLink."""
_IMPERIAL: Final = frozenset(("°f", "fahrenheit", "inhg", "mph", "in", "in/h", "inches"))
"""Units, in lower case, beside which a temperature without a unit may be in °F."""


def check_scale_of(key: str, text: str, readings: list[Reading]) -> None:
    """Raise RejectedError if a temperature was taken to be in °C, and another field states another scale."""
    if any(one.unit_source == DEFAULT and one.unit == "°C" for one in readings):
        raise RejectedError(
            "ambiguous",
            f"a temperature without a unit beside the field {key[:40]!r}, which is {text!r}: name it `unit`",
        )


def check_units(item: Any, readings: list[Reading], level: int) -> None:
    """Raise RejectedError if an object at any depth states another unit than the default of a reading."""
    if isinstance(item, list):
        for one in item:
            check_units(one, readings, level + 1)
    if not isinstance(item, dict) or level > MAX_LEVELS:
        return
    for key, value in item.items():
        if isinstance(value, dict | list):
            check_units(value, readings, level + 1)
        elif isinstance(value, str) and len(value) <= MAX_UNIT:
            if value.lower() in OTHER_SCALES:
                check_scale_of(str(key), value, readings)
            elif "unit" in str(key).lower():
                check_unit(str(key), value, readings)


def check_unit(key: str, text: str, readings: list[Reading]) -> None:
    """Raise RejectedError if a text is another unit of a quantity whose unit was taken to be the default."""
    for one in readings:
        known = QUANTITIES.get(one.quantity)
        if one.unit_source == DEFAULT and known is not None and known.kind:
            scale = scale_of(text, known.kind)
            if scale is not None and scale.kind == known.kind and scale != scale_of(known.unit, known.kind):
                raise RejectedError(
                    "ambiguous", f"{one.name or one.quantity} has no unit, and the field {key!r} is {text!r}"
                )


_VALID: Final = frozenset(
    ("valid", "is_valid", "isvalid", "data_valid", "sensor_valid", "reading_valid", "ok", "is_ok", "success")
)
_STATES: Final = frozenset(("status", "quality", "sensor_status", "data_quality"))
_ERRORS: Final = frozenset(
    ("error", "err", "fault", "failure", "error_code", "errorcode", "err_code", "fault_code", "sensor_error",
     "sensor_fault", "sensor_failure")
)  # fmt: skip
_UNREAL: Final = frozenset(("stale", "is_stale", "simulated", "is_simulated", "test", "is_test"))
_AGGREGATIONS: Final = frozenset(
    ("aggregation", "aggregate", "agg", "stat", "statistic", "statistics", "function", "type", "kind", "reading_type",
     "value_type")
)  # fmt: skip
_FLAG_NAMES: Final = _VALID | _STATES | _ERRORS | _UNREAL | _AGGREGATIONS


def is_flag(key: str) -> bool:
    """Return whether a field may tell that values are in another unit or no measurements: isFahrenheit, valid."""
    return key.lower() in _FLAG_NAMES or not _SCALE_FLAGS.keys().isdisjoint(words_of(key))


def check_flags(item: Mapping[str, Any], flags: tuple[str, ...], readings: list[Reading]) -> None:
    """Raise RejectedError if a flag tells that values are not in the default unit, or no measurements to be used."""
    for key in flags:
        value, name = item[key], key.lower()
        text = value.strip().lower() if isinstance(value, str) else None
        if type(value) is bool and any(_SCALE_FLAGS.get(word) is value for word in words_of(key)):
            check_scale_of(key, str(value).lower(), readings)
        if name in _AGGREGATIONS:
            if text is not None and readings and is_statistic(key, text):
                raise RejectedError("no quantity", f"by the field {key[:40]!r}, which is {text!r}, no measurement")
            is_bad = False
        elif name in _ERRORS:
            is_bad = text not in _NO_ERRORS if text is not None else isinstance(value, int | float) and value != 0
        else:
            is_bad = (value is False and name in _VALID) or (value is True and name in _UNREAL) or text in _FAILED
        if is_bad:
            raise RejectedError("error value", f"the field {key[:40]!r} is {str(value)[:40].lower()!r}")


_FACTORS: Final = frozenset(
    ("scale", "scaling", "scalefactor", "scale_factor", "scalingfactor", "scaling_factor", "factor", "multiplier",
     "divisor", "divider", "exponent", "decimals")
)  # fmt: skip
_US_UNITS: Final = "usunits"
"""The field of weewx with its system of units: 1 is that of the USA, 16 and 17 are metric."""


def is_factor(key: str) -> bool:
    """Return whether the number of a field may tell that the values beside it are in other units: scale, divisor."""
    return key.lower() in _FACTORS or key.lower() == _US_UNITS


def check_factors(item: Mapping[str, Any], factors: tuple[str, ...], readings: list[Reading]) -> None:
    """Raise RejectedError if the values beside such a field are to be multiplied, or are in units of the USA."""
    for key in factors:
        value, name = item[key], key.lower()
        if isinstance(value, str):
            value = number_of(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not readings:
            continue
        if name == _US_UNITS:
            if value == 1:
                check_scale_of(key, "1", readings)
            continue
        if name == "factor" and any(one.quantity in ("power", "apparent_power") for one in readings):
            continue  # the power factor
        if name == "decimals" and not all(one.value == int(one.value) for one in readings):
            continue  # for the display
        if value not in ((0,) if name in ("exponent", "decimals") else (0, 1)):
            raise RejectedError("ambiguous", f"the field {key[:40]!r} is {value:g}: publish the values that it yields")


def is_error_code(key: str) -> bool:
    """Return whether a field has the number of an error, 0 for none."""
    return key.lower() in _ERRORS


def is_statistic(key: str, text: str) -> bool:
    """Return whether a field states that the values beside it are statistics or settings: {"aggregation": "max"}."""
    return key.lower() in _AGGREGATIONS and text.strip().lower() in _STATISTICS


def is_imperial(key: str) -> bool:
    """Return whether a temperature beside this field may be in °F, by the unit in the field's name."""
    found = field_of(key)
    unit = None if found is None else found.unit
    is_stated = unit is not None and unit.lower() in _IMPERIAL
    return is_stated or key.lower().endswith(("mph", "inhg")) or key.lower() in _IMPERIAL_NAMES


def check_system(readings: list[Reading]) -> None:
    """Raise RejectedError for a temperature without a unit beside a unit of the imperial system.

    A temperature in °F of the same value confirms it.
    """
    stated = [one.value for one in readings if one.quantity == "temperature" and one.unit_source == PAYLOAD]
    for one in readings:
        is_confirmed = any(abs(value - one.value) < MAX_TWIN_GAP for value in stated)
        if one.unit_source == DEFAULT and one.unit == "°C" and not is_confirmed:
            raise RejectedError(
                "ambiguous",
                f"{one.name or one.quantity} has no unit, and another field is in a unit of the imperial system: "
                f"{teaching(one.name or one.quantity)}",
            )


def check_scale(key: str, text: str, readings: list[Reading]) -> None:
    """Raise RejectedError if a text in another field tells that a temperature is not in °C."""
    if text.strip().lower() in OTHER_SCALES:
        check_scale_of(key, text, readings)


_NUMBERED: Final = re.compile(r"(ch|o|no|nh|co|pm)_?(\d{1,2})\Z")
_FORMULAS: Final = {
    "ch": ("4",), "o": ("2", "3"), "no": ("2", "3"), "nh": ("3", "4"), "co": ("2",),
    "pm": ("1", "2", "4", "10", "25", "01", "02", "03", "04", "05"),
}  # fmt: skip
_GASES: Final = frozenset(("co2", "co", "voc", "no2", "ozone", "ammonia", "formaldehyde", "aqi"))


def is_channel(key: str, names: Iterable[str], found: Mapping[str, Field], has_unit: bool) -> bool:
    """Return whether a name is that of a channel rather than of a gas: ch4 beside ch1, and o3 beside o1.

    `names` are all names of the object in lower case, `found` the fields that may be measurements, and `has_unit` is
    whether the object states a unit.
    """
    name = _NUMBERED.match(key.lower())
    if name is None:
        return False
    others = {one[2] for other in names if (one := _NUMBERED.match(other)) is not None and one[1] == name[1]}
    if not others.issubset(_FORMULAS[name[1]]):
        return True
    if name[1] == "pm" and "2" in others and others.isdisjoint(("10", "25")):
        return True
    is_gas = has_unit or not _GASES.isdisjoint(one.quantity for one in found.values())
    return name[1] == "ch" and not is_gas


def same_unit(first: str | None, second: str | None, label: str) -> str | None:
    """Return the unit that one of two places states. Raise RejectedError if they state different ones."""
    if not first or not second:
        return first or second
    if first.lower() != second.lower():
        found = [(scale_of(first, kind), scale_of(second, kind)) for kind in ("", "temperature")]
        if not any(one is not None and one == other for one, other in found):
            raise RejectedError("ambiguous", f"{label} has two units: {first[:32]!r} and {second[:32]!r}")
    return first


def without_twins(readings: list[Reading], twins: tuple[str, ...]) -> list[Reading]:
    """Return the readings except repetitions of another one. Raise RejectedError if one contradicts it."""
    kept: list[Reading] = []
    for one in readings:
        if one.name not in twins:
            kept.append(one)
        elif not any(other.quantity == one.quantity and abs(other.value - one.value) < MAX_TWIN_GAP for other in kept):
            raise RejectedError("ambiguous", f"{one.name} is not the value of the same field in another unit")
    return kept


def teaching(key: str, topic: str = "...") -> str:
    return (
        f'name the quantity with [[pipeline.decoder]] filter = "{topic[:100]}", decoder = "json", '
        f'fields = {{ "{key[:40]}" = "temperature" }}'
    )
