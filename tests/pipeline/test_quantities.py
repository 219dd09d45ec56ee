"""Units and quantities: the table of units agrees with pint, names of fields, and values that are checked."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.pipeline.decoders.results import RejectedError
from godwit.pipeline.quantities import ALIASES, QUANTITIES, Field, field_of, measure, quantity_of_topic
from godwit.pipeline.units import _PINT_NAMES, _TABLE, BASE_UNITS, plain, scale_of

FOR_PINT = {
    "°C": "degC", "°F": "degF", "*C": "degC", "*F": "degF", "K": "kelvin", "mb": "mbar", "Ω": "ohm", "kΩ": "kiloohm",
    "MΩ": "megaohm", "L": "liter",
    "CCF": "100 foot**3", "gal": "gallon", "ft3": "foot**3", "µg/m3": "ug/m**3", "mg/m3": "mg/m**3", "g/m3": "g/m**3",
    "ng/m3": "ng/m**3", "m3": "m**3", "lx": "lux", "klx": "kilolux", "m2": "m**2", "cm2": "cm**2", "ha": "hectare",
    "W/m2": "W/m**2", "kW/m2": "kW/m**2", "mW/cm2": "mW/cm**2", "m/s2": "m/s**2", "m3/h": "m**3/h", "m3/s": "m**3/s",
    "ft3/min": "ft**3/min", "Bq/m3": "Bq/m**3", "pCi/L": "pCi/L", "Ah": "ampere*hour", "mAh": "milliampere*hour",
    "Wmin": "W*min", "st": "stone", "in": "inch", "mi": "mile", "t": "tonne", "B": "byte", "kB": "kilobyte",
    "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "B/s": "byte/s", "kB/s": "kilobyte/s", "MB/s": "megabyte/s",
    "µSv/h": "microsievert/h", "h": "hour", "d": "day", "min": "minute", "kn": "knot", "mmHg": "mmHg", "Torr": "torr",
    "Gauss": "1e-4 tesla", "lm": "lumen", "rpm": "rpm", "mm/d": "mm/day",
}  # fmt: skip
"""Names for pint, where they differ from the first spelling of a unit."""


@pytest.mark.parametrize("kind", sorted(_PINT_NAMES))
def test_the_table_agrees_with_pint(kind: str) -> None:
    import pint

    registry: Any = pint.get_application_registry()  # type: ignore[no-untyped-call]
    for factor, offset, spellings in _TABLE[kind]:
        first = spellings.split()[0]
        unit = registry.Quantity(FOR_PINT.get(first, first)) if " " in FOR_PINT.get(first, "") else None
        for value in (0.0, 1.0, 50.0):
            given = registry.Quantity(value, FOR_PINT.get(first, first)) if unit is None else unit * value
            expected = given.to(_PINT_NAMES[kind]).magnitude
            assert value * factor + offset == pytest.approx(expected, rel=1e-6, abs=1e-6), first


def test_each_spelling_is_read() -> None:
    for kind, rows in _TABLE.items():
        assert scale_of(BASE_UNITS[kind], kind) == (kind, 1.0, 0.0)
        for factor, offset, spellings in rows:
            for spelling in spellings.split():
                text = spelling if "[" in spelling else spelling.replace("_", " ")
                assert scale_of(text, kind) == (kind, factor, offset), text


@pytest.mark.parametrize("text", ["°F", "º F", "˚F", "℉", "deg F", "degF", "Fahrenheit", "degrees F", "[degF]"])
def test_spellings_of_fahrenheit(text: str) -> None:
    assert measure("temperature", 68, text).value == pytest.approx(20.0)


def test_units_that_only_pint_knows() -> None:
    assert measure("pressure", 10, "cmH2O").value == pytest.approx(9.80665, rel=1e-4)
    assert measure("power", 1000, "BTU/h").value == pytest.approx(293.07, rel=1e-4)
    assert measure("value", 3, "pcs").unit == "pcs", "not parsecs"


@pytest.mark.parametrize(
    ("quantity", "value", "unit", "reason"),
    [
        ("temperature", 21, "hPa", "unit does not fit"),
        ("humidity", 40, "ppm", "unit does not fit"),
        ("power", 21, "VA", "unit does not fit"),
        ("co2", 600, "mg/m3", "unit does not fit"),
        ("temperature", -300, "°C", "out of bounds"),
        ("humidity", 101, "%", "out of bounds"),
        ("temperature", -127, "°C", "error value"),
        ("temperature", float("nan"), "°C", "not finite"),
        ("temperature", 1e300, "°C", "out of bounds"),
        ("temperature", "warm", "°C", "type changed"),
        ("pressure", 101325, None, "ambiguous"),
    ],
)
def test_values_that_are_rejected(quantity: str, value: Any, unit: str | None, reason: str) -> None:
    with pytest.raises(RejectedError) as caught:
        measure(quantity, value, unit)
    assert caught.value.rejection.reason == reason


@pytest.mark.parametrize(
    ("key", "quantity", "unit"),
    [
        ("temperature", "temperature", None),
        ("temperature_F", "temperature", "°F"),
        ("tempC", "temperature", "°C"),
        ("temp_c", "temperature", "°C"),
        ("TempC_SHT", "temperature", "°C"),
        ("outdoorTemperature", "temperature", None),
        ("temp_2", "temperature", None),
        ("pressure_hPa", "pressure", "hpa"),
        ("barometric_pressure_inHg", "pressure", "inhg"),
        ("battery_mV", "voltage", "mV"),
        ("current_power", "power", None),
        ("wind_avg_km_h", "wind_speed", "km/h"),
        ("PM2.5", "pm25", None),
        ("eCO2_ppm", "co2", "ppm"),
    ],
)
def test_names_of_fields(key: str, quantity: str, unit: str | None) -> None:
    found = field_of(key)
    assert found is not None
    assert (found.quantity, found.unit) == (quantity, unit)


@pytest.mark.parametrize(
    "key",
    ["t", "h", "target_temperature", "temperature_max", "temperature_unit", "status_light", "tx_power", "over_voltage",
     "frost_protection_temperature", "phase_power_current_l1", "co", "brightness", "", "x" * 100, "temperature\u200b"],
)  # fmt: skip
def test_names_that_are_not_measurements(key: str) -> None:
    assert field_of(key) is None


def test_names_are_of_one_quantity() -> None:
    names = [name for aliases in ALIASES.values() for name in aliases]
    assert len(set(names)) == len(names)
    assert set(ALIASES) <= set(QUANTITIES)


def test_topics() -> None:
    assert quantity_of_topic("home/kitchen/temperature") == Field("temperature", None, True)
    assert quantity_of_topic("node/sensor/outdoor_temperature/state") == Field("temperature", None, False)
    assert quantity_of_topic("home/temperature/kitchen") == Field("temperature", None, False)
    assert quantity_of_topic("home/temperature/F") == Field("temperature", "°F", True)
    assert quantity_of_topic("home/temperature/1/") == Field("temperature", None, False)
    assert quantity_of_topic("home/temperature/max") is None
    assert quantity_of_topic("home/temperature/bananas") is None
    assert plain(" µg/m³ ") == "µg/m3"


@pytest.mark.parametrize("text", ["m**9**9**9**9", "Pa**(9**9**9)", "Pa**99999999", "(Pa)**9**9**9**9"])
def test_powers_that_nobody_can_compute_are_no_units(text: str) -> None:
    assert scale_of(text, "pressure") is None
