"""Units as devices write them, and their conversion.

The units that devices commonly send are in a table, by kind: units of one kind are converted into each other. A test
compares the table with pint, which also reads every unit that is not in it (UCUM's names that pint lacks are in the
table). Pint is imported only then: it takes a second to start.

The kinds are finer than the dimensions of physics. Percent, ppm and degrees of an angle have no dimension, watt and
volt-ampere have the same, and none of them can stand for the other.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

MAX_UNIT: Final = 32
"""Characters of a unit."""
MAX_CACHED: Final = 10_000


class UnitScale(NamedTuple):
    """A unit: a value in the base unit of its kind is `value * factor + offset`."""

    kind: str
    factor: float
    offset: float = 0.0


BASE_UNITS: Final = {
    "temperature": "°C", "percent": "%", "pressure": "hPa", "voltage": "V", "current": "A", "power": "W",
    "apparent power": "VA", "reactive power": "var", "energy": "kWh", "ppm": "ppm", "mass concentration": "µg/m³",
    "illuminance": "lx", "frequency": "Hz", "speed": "m/s", "length": "m", "mass": "kg", "volume": "L",
    "volume flow": "L/min", "time": "s", "angle": "°", "sound level": "dB", "signal level": "dBm", "data size": "B",
    "data rate": "B/s", "radioactivity": "Bq/m³", "dose rate": "µSv/h", "conductivity": "µS/cm",
    "irradiance": "W/m²", "charge": "Ah", "resistance": "Ω", "acceleration": "m/s²", "magnetic field": "µT",
    "rain rate": "mm/h", "rotation": "rpm", "acidity": "pH", "area": "m²", "force": "N", "luminous flux": "lm",
}  # fmt: skip
"""By kind."""

_F: Final = 5 / 9
_TABLE: Final[dict[str, tuple[tuple[float, float, str], ...]]] = {
    # by kind: factor, offset, and spellings, separated by blanks; _ is a blank within a spelling
    "temperature": (
        (1, 0, "°C degC deg_C Cel celsius degree_celsius degrees_celsius degree_C degrees_C centigrade °_C ºCelsius"),
        (_F, -32 * _F, "°F degF deg_F [degF] fahrenheit degree_fahrenheit degrees_fahrenheit degree_F degrees_F °_F"),
        (1, -273.15, "K kelvin °K degK"),
        (1, 0, "*C Grad_Celsius celcius degreesC deg._C °_Celsius"),
        (_F, -32 * _F, "*F farenheit degreesF deg._F °_Fahrenheit Grad_Fahrenheit"),
    ),
    "percent": (
        (1, 0, "% percent pct %RH %_RH RH% %rh %_humidity %_r.H. %r.H. %rF percent_RH %EL"),
        (100, 0, "ratio fraction m3/m3 m3.m-3"),
    ),
    "pressure": (
        (0.01, 0, "Pa pascal pascals"),
        (1, 0, "hPa hectopascal hectopascals mbar mb millibar millibars"),
        (10, 0, "kPa kilopascal kilopascals"),
        (10_000, 0, "MPa"),
        (1000, 0, "bar bars"),
        (0.01 * 133.322387415, 0, "mmHg mm_Hg mm[Hg] m[Hg]e-3 mm-Hg"),
        (0.01 * 133.32236842105263, 0, "Torr torr"),
        (0.01 * 3386.38864034, 0, "inHg in_Hg inch_Hg [in_i'Hg] inches_Hg in-Hg inHG \"Hg"),
        (0.01 * 6894.757293168361, 0, "psi PSI [psi] lbf/in2 psig psia"),
        (1013.25, 0, "atm"), (0.01 * 249.08891, 0, "inH2O inWC in_WC"), (0.0980665, 0, "mmH2O"), (0.980665, 0, "cmH2O"),
    ),
    "voltage": (
        (1, 0, "V volt volts Volts VDC VAC V_DC V_AC"), (1e-3, 0, "mV millivolt millivolts"), (1e-6, 0, "µV uV"),
        (1e3, 0, "kV"), (1e6, 0, "MV"),
    ),
    "current": (
        (1, 0, "A amp amps ampere amperes Ampere"), (1e-3, 0, "mA milliampere milliamperes milliamps"),
        (1e-6, 0, "µA uA"), (1e3, 0, "kA"),
    ),
    "power": (
        (1, 0, "W watt watts"), (1e-3, 0, "mW"), (1e3, 0, "kW kilowatt kilowatts"), (1e6, 0, "MW"), (1e9, 0, "GW"),
    ),
    "apparent power": ((1, 0, "VA voltampere"), (1e-3, 0, "mVA"), (1e3, 0, "kVA")),
    "reactive power": ((1, 0, "var VAr VAR vars"), (1e3, 0, "kvar kVAr kVAR"), (1e-3, 0, "mvar")),
    "energy": (
        (1e-3, 0, "Wh W.h Watt-hours watt-hour W*h W-hr"),
        (1, 0, "kWh kW.h kilowatt_hour kilowatt_hours kilowatthours kW-h kW-hr"),
        (1e3, 0, "MWh"), (1e6, 0, "GWh"), (1e-6, 0, "mWh"), (1 / 3.6e6, 0, "J joule joules Ws W.s"),
        (1 / 3.6e3, 0, "kJ"), (1 / 3.6, 0, "MJ"), (1e3 / 3.6, 0, "GJ"), (1 / 6e4, 0, "Wmin W.min Watt-minute"),
    ),
    "ppm": (
        (1, 0, "ppm ppmv [ppm] µmol/mol parts_per_million"), (1e-3, 0, "ppb ppbv [ppb] nmol/mol parts_per_billion"),
    ),
    "mass concentration": (
        (1, 0, "µg/m3 ug/m3 µg/m_3 ug/m_3 µgm-3"), (1e3, 0, "mg/m3 mg/m_3"), (1e6, 0, "g/m3 g/m_3"),
        (1e-3, 0, "ng/m3"),
    ),
    "illuminance": ((1, 0, "lx lux Lux lm/m2"), (1e3, 0, "klx klux kilolux")),
    "frequency": (
        (1, 0, "Hz hertz"), (1e3, 0, "kHz KHz"), (1e6, 0, "MHz"), (1e9, 0, "GHz"), (1e-3, 0, "mHz"),
    ),
    "speed": (
        (1, 0, "m/s mps m.s-1 meters_per_second"), (1 / 3.6, 0, "km/h kmh kph km/hr kmph km.h-1"),
        (0.44704, 0, "mph mi/h [mi_i]/h miles/h"), (1852 / 3600, 0, "kn kt kts knot knots [kn_i]"),
        (0.3048, 0, "ft/s"), (1e-3, 0, "mm/s"), (1e-2, 0, "cm/s"),
    ),
    "length": (
        (1, 0, "m meter meters metre metres"), (1e-3, 0, "mm millimeter millimeters"), (1e-2, 0, "cm centimeter"),
        (1e3, 0, "km kilometer"), (1e-6, 0, "µm um"), (0.0254, 0, 'in inch inches [in_i] "'),
        (0.3048, 0, "ft foot feet [ft_i]"), (1609.344, 0, "mi mile miles [mi_i]"), (0.9144, 0, "yd yards"),
    ),
    "mass": (
        (1, 0, "kg kilogram kilograms"), (1e-3, 0, "g gram grams"), (1e-6, 0, "mg"), (1e-9, 0, "µg ug"),
        (0.45359237, 0, "lb lbs pound pounds [lb_av]"), (0.028349523125, 0, "oz ounce ounces [oz_av]"),
        (1e3, 0, "t tonne tonnes"), (6.35029318, 0, "st"),
    ),
    "volume": (
        (1, 0, "L l liter liters litre litres"), (1e-3, 0, "mL ml milliliter"), (1e3, 0, "m3 cbm"),
        (3.785411784, 0, "gal gallon gallons [gal_us]"), (28.316846592, 0, "ft3 cuft cu_ft"),
        (2831.6846592, 0, "CCF"),
    ),
    "volume flow": (
        (1, 0, "L/min l/min lpm LPM L/m"), (1 / 60, 0, "L/h l/h"), (60, 0, "L/s l/s"), (1000 / 60, 0, "m3/h m3/hr"),
        (60_000, 0, "m3/s"), (3.785411784, 0, "gal/min gpm GPM"), (28.316846592, 0, "ft3/min cfm CFM"),
    ),
    "time": (
        (1, 0, "s sec secs second seconds"), (1e-3, 0, "ms msec millisecond milliseconds"), (1e-6, 0, "µs us"),
        (60, 0, "min mins minute minutes"), (3600, 0, "h hr hrs hour hours"), (86_400, 0, "d day days"),
    ),
    "angle": ((1, 0, "° deg degree degrees"), (57.29577951308232, 0, "rad radian radians")),
    "sound level": ((1, 0, "dB dBA dB(A) dB_A dBa dB_SPL"),),
    "signal level": ((1, 0, "dBm"), (1, 30, "dBW")),
    "data size": (
        (1, 0, "B byte bytes Byte Bytes"), (1e3, 0, "kB KB"), (1e6, 0, "MB"), (1e9, 0, "GB"), (1e12, 0, "TB"),
        (1024, 0, "KiB kiB"), (1024**2, 0, "MiB"), (1024**3, 0, "GiB"), (0.125, 0, "bit bits"),
    ),
    "data rate": (
        (1, 0, "B/s"), (1e3, 0, "kB/s KB/s"), (1e6, 0, "MB/s"), (0.125, 0, "bit/s bps"), (125, 0, "kbit/s kbps"),
        (125_000, 0, "Mbit/s Mbps"), (1024, 0, "KiB/s"), (1024**2, 0, "MiB/s"),
    ),
    "radioactivity": ((1, 0, "Bq/m3"), (37, 0, "pCi/L pCi/l")),
    "dose rate": ((1, 0, "µSv/h uSv/h"), (1e-3, 0, "nSv/h"), (1e3, 0, "mSv/h")),
    "conductivity": (
        (1, 0, "µS/cm uS/cm"), (1e3, 0, "mS/cm dS/m"), (1e4, 0, "S/m"), (10, 0, "mS/m"), (0.01, 0, "µS/m"),
    ),
    "irradiance": ((1, 0, "W/m2 W/m_2 Watts/m2 watts/m2"), (1e3, 0, "kW/m2"), (10, 0, "mW/cm2")),
    "charge": ((1, 0, "Ah A.h"), (1e-3, 0, "mAh")),
    "resistance": ((1, 0, "Ω Ohm ohm ohms"), (1e3, 0, "kΩ kOhm kohm"), (1e6, 0, "MΩ MOhm")),
    "acceleration": ((1, 0, "m/s2 m/s_2"),),
    "magnetic field": ((1, 0, "µT uT"), (1e3, 0, "mT"), (1e6, 0, "T"), (100, 0, "Gauss gauss"), (1e-3, 0, "nT")),
    "rain rate": ((1, 0, "mm/h mm/hr"), (25.4, 0, "in/h in/hr"), (1 / 24, 0, "mm/d mm/day")),
    "rotation": ((1, 0, "rpm RPM r/min rev/min 1/min"),),
    "acidity": ((1, 0, "pH [pH]"),),
    "area": ((1, 0, "m2"), (1e-4, 0, "cm2"), (1e4, 0, "ha")),
    "force": ((1, 0, "N newton"), (1e3, 0, "kN")),
    "luminous flux": ((1, 0, "lm lumen lumens"),),
}  # fmt: skip

_PINT_NAMES: Final = {
    "temperature": "degC", "pressure": "hPa", "voltage": "V", "current": "A", "power": "W", "energy": "kWh",
    "mass concentration": "microgram/meter**3", "illuminance": "lux", "frequency": "Hz", "speed": "m/s", "length": "m",
    "mass": "kg", "volume": "liter", "volume flow": "liter/min", "time": "s", "data size": "byte",
    "data rate": "byte/s", "radioactivity": "Bq/m**3", "dose rate": "microsievert/hour",
    "conductivity": "microsiemens/cm", "irradiance": "W/m**2", "charge": "ampere*hour", "resistance": "ohm",
    "acceleration": "m/s**2", "magnetic field": "microtesla", "rain rate": "mm/hour", "rotation": "rpm", "area": "m**2",
    "force": "N", "luminous flux": "lumen",
}  # fmt: skip
"""By kind: its base unit for pint. Kinds without a dimension are missing: pint would convert percent to ppm."""

_SIGNS: Final = str.maketrans(
    {"º": "°", "˚": "°", "゜": "°", "⁰": "°", "℃": "°C", "℉": "°F", "\u212a": "K", "\u2126": "Ω", "μ": "µ", "¹": "1",
     "²": "2", "³": "3", "₂": "2", "₃": "3", "⁻": "-", "\u2212": "-", "⋅": ".", "·": ".", "\uff05": "%", "\u2215": "/",
     "\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u200b": None, "\ufeff": None, "^": None}
)  # fmt: skip
_TWICE_ENCODED: Final = re.compile("Â(?=[°ºµ²³])|&deg;")
"""Signs that were read as Latin-1 and written as UTF-8 again, and the sign of HTML."""
_BLANKS: Final = re.compile(r"\s+")
_PINT_TEXT: Final = re.compile(r"[A-Za-zµΩ°][A-Za-z0-9µΩ°./*_() -]{0,31}\Z")
_SMALL_POWER: Final = re.compile(r"\*\*-?[1-4](?![\d.*(])")
_NOT_FOR_PINT: Final = frozenset(("mhg", "k", "c", "f"))
"""Texts that pint reads as units that no device means: metres of mercury, degrees without a sign."""
_EXPONENT: Final = re.compile(r"(?<=[A-Za-z])(-?[123])(?![0-9A-Za-z])")
_PRODUCT: Final = re.compile(r"[ .](?=[^\W\d])")
"""A blank or a point between two units: W.m-2."""


def _tables() -> tuple[dict[str, UnitScale], dict[str, tuple[UnitScale, str]]]:
    """Return the units by spelling, and by spelling in lower case, with the exact one, where that is not ambiguous."""
    exact: dict[str, UnitScale] = {}
    for kind, rows in _TABLE.items():
        for factor, offset, spellings in rows:
            for spelling in spellings.split():
                exact[plain(spelling.replace("_", " ") if "[" not in spelling else spelling)] = UnitScale(
                    kind, float(factor), float(offset)
                )
    folded: dict[str, dict[UnitScale, str]] = {}
    for spelling, scale in exact.items():
        folded.setdefault(spelling.lower(), {})[scale] = spelling
    return exact, {
        lower: next(iter(scales.items())) for lower, scales in folded.items() if len(scales) == 1 and len(lower) > 1
    }


def plain(text: str) -> str:
    """Return a unit in plain spelling: one degree sign, one micro sign, exponents as digits, single blanks."""
    if "Â" in text or "&" in text:
        text = _TWICE_ENCODED.sub(lambda one: "°" if one[0] == "&deg;" else "", text)
    return _BLANKS.sub(" ", text.translate(_SIGNS)).strip()


_EXACT, _FOLDED = _tables()
_IN_KIND: Final = {
    ("temperature", "c"): _EXACT["°C"],
    ("temperature", "f"): _EXACT["°F"],
    ("acceleration", "g"): UnitScale("acceleration", 9.80665),
    ("speed", "fps"): _EXACT["ft/s"],
    ("voltage", "v"): _EXACT["V"],
    ("current", "a"): _EXACT["A"],
    ("power", "w"): _EXACT["W"],
}
"""Spellings in lower case that have this meaning for a quantity of this kind only: C and F are coulomb and farad,
fps counts frames."""
_ANY_CASE: Final = frozenset(
    ("hpa", "kpa", "mbar", "mmhg", "inhg", "psi", "ppm", "ppb", "lux", "lx", "kwh", "kw", "rpm", "mph", "kmh", "kph",
     "khz", "ghz", "hz", "dbm", "°c", "°f", "degc", "degf", "cel", "%rh", "km/h", "volt", "watt", "amp", "amps", "bar")
)  # fmt: skip
"""Short units that mean the same in small and capital letters. Others do not: mS and ms, pA and Pa, Gb and GB."""
_cache: dict[tuple[str, str], UnitScale | None] = {}


def scale_of(unit: str, kind: str) -> UnitScale | None:
    """Return the unit that a text means for a quantity of this kind ("" for any); None if it is unknown.

    The kind of the result may differ from the one asked for: then the unit does not fit the quantity.
    """
    key = (unit, kind)
    try:
        return _cache[key]
    except KeyError:
        if len(_cache) >= MAX_CACHED:
            _cache.clear()
        found = _cache[key] = _scale_of(plain(unit), kind)
        return found


def _scale_of(text: str, kind: str) -> UnitScale | None:
    lower = text.lower()
    found = _IN_KIND.get((kind, lower)) or _EXACT.get(text)
    if found is None and lower in _FOLDED:
        scale, spelling = _FOLDED[lower]
        is_word = len(text) > 4 or lower in _ANY_CASE
        is_fitting = scale.kind == kind and (text[0] == spelling[0] or text[0] not in "mM")  # mega is not milli
        if is_word or is_fitting:
            found = scale
    if found is not None or not kind or not _PINT_TEXT.match(text) or lower in _NOT_FOR_PINT:
        return found
    if "**" in _SMALL_POWER.sub("", text):  # pint would compute m**9**9**9
        return None
    if kind == "temperature":  # no thermometer has prefixes of kelvin
        return None
    return _scale_by_pint(text, kind)


def _scale_by_pint(text: str, kind: str) -> UnitScale | None:
    """Ask pint for a unit that is not in the table; None if it does not know it."""
    import pint

    registry: Any = pint.get_application_registry()  # type: ignore[no-untyped-call]
    joined = _PRODUCT.sub("*", text) if " per " not in text else text
    written = _EXPONENT.sub(lambda one: f"**{one[1]}", joined)
    try:
        unit = registry.Unit(written)
        base = registry.Unit(_PINT_NAMES[kind]) if kind in _PINT_NAMES else None
        if base is None or unit.dimensionality != base.dimensionality:
            return UnitScale(str(unit.dimensionality) or "another kind", 1.0)
        zero, one = [registry.Quantity(value, unit).to(base).magnitude for value in (0.0, 1.0)]
    except Exception:  # pint raises many types for texts that are not units
        return None
    return UnitScale(kind, one - zero, zero)


def is_unit(text: str) -> bool:
    """Return whether a text is a unit of the table, of any kind."""
    return _scale_of(plain(text), "") is not None
