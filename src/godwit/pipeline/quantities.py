"""The vocabulary of quantities: names, units, bounds, error values, and the names of fields that carry them.

The names follow the device classes of Home Assistant. Each quantity has one unit, in which it is stored. If a message
does not state the unit, the default unit of the quantity is assumed only where there is a convention, and only for
values that would not be plausible in another common unit: a pressure of 1013 without a unit is in hPa, one of 101325,
760 or 29.92 is rejected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from godwit.pipeline.decoders.results import DEFAULT, PAYLOAD, Reading, RejectedError
from godwit.pipeline.units import BASE_UNITS, MAX_UNIT, plain, scale_of

GREATEST: Final = 1e15
"""A larger value is rejected."""
_ALL: Final = (-GREATEST, GREATEST)
MOST_WHOLE_VOLTS: Final = 260
"""Without a unit, a larger whole number may be in millivolts or centivolts. Mains are below."""
MOST_SPEED: Final = 1000
"""Without a unit, a larger number may be the speed of a motor, or of a serial port (9600)."""
VALUE: Final = "value"
"""The quantity of a number that is not stated."""


class Quantity(NamedTuple):
    """A quantity of the vocabulary."""

    unit: str
    """The unit in which it is stored."""
    kind: str
    """The kind of its units, see godwit.pipeline.units; "" if it has none."""
    bounds: tuple[float, float] = _ALL
    """Values beyond are rejected."""
    default: tuple[float, float] | None = None
    """The bounds of a value without a stated unit, which is then assumed to be in `unit`; None if nothing is assumed:
    the unit is then "" in the table."""
    errors: frozenset[float] = frozenset()
    """Values by which sensors report a failure, in `unit`."""


_WORDS: Final = frozenset((65535.0, 32767.0, -32768.0, 4294967295.0, 2147483647.0, -2147483648.0, -9999.0, 9999.0))
"""The limits of integers, which stand for "no value", and the markers of data loggers."""
_TENTHS: Final = frozenset((6553.5, 3276.7, -3276.8, 655.35, 327.67, -327.68, 655.34, 6553.4))
_COLD: Final = frozenset((-127.0, -999.0, -999.9, 999.0, 999.9, 998.0, -99.9))
_PERCENT: Final = (0.0, 100.0)

QUANTITIES: Final[dict[str, Quantity]] = {
    "temperature": Quantity("°C", "temperature", (-273.15, 3000), (-90, 50), _WORDS | _TENTHS | _COLD),
    "dew_point": Quantity("°C", "temperature", (-150, 100), (-90, 35), _WORDS | _TENTHS | _COLD),
    "humidity": Quantity("%", "percent", _PERCENT, (1, 100)),
    "absolute_humidity": Quantity("g/m³", "mass concentration", (0, 600), (0, 60)),
    "moisture": Quantity("%", "percent", _PERCENT, (1, 100)),
    "pressure": Quantity("hPa", "pressure", (-1100, 1e7), (800, 1100), _WORDS | _TENTHS),
    "battery": Quantity("%", "percent", _PERCENT, (0, 100)),
    "voltage": Quantity("V", "voltage", (-1e6, 1e6), (-1000, 1000)),
    "current": Quantity("A", "current", (-1e5, 1e5), (-100, 100)),
    "power": Quantity("W", "power", (-1e10, 1e10), (-1e5, 1e5)),
    "apparent_power": Quantity("VA", "apparent power", (-1e10, 1e10), (-1e5, 1e5)),
    "reactive_power": Quantity("var", "reactive power", (-1e10, 1e10), (-1e5, 1e5)),
    "power_factor": Quantity("", "", (-1, 1), (-1, 1)),
    "energy": Quantity("kWh", "energy", (-1e12, 1e12)),
    "frequency": Quantity("Hz", "frequency", (0, 1e12)),
    "co2": Quantity("ppm", "ppm", (0, 100_000), (200, 40_000), _WORDS),
    "co": Quantity("ppm", "ppm", (0, 100_000), (0, 10_000), _WORDS),
    "voc": Quantity("ppb", "ppm", (0, 1e7)),
    "voc_index": Quantity("", "", (0, 500), (0, 500)),
    "nox_index": Quantity("", "", (0, 500), (0, 500)),
    "aqi": Quantity("", "", (0, 1000), (0, 1000)),
    "pm1": Quantity("µg/m³", "mass concentration", (0, 100_000), (0, 2000), _WORDS),
    "pm25": Quantity("µg/m³", "mass concentration", (0, 100_000), (0, 2000), _WORDS),
    "pm4": Quantity("µg/m³", "mass concentration", (0, 100_000), (0, 2000), _WORDS),
    "pm10": Quantity("µg/m³", "mass concentration", (0, 100_000), (0, 5000), _WORDS),
    "formaldehyde": Quantity("mg/m³", "mass concentration", (0, 100)),
    "no2": Quantity("ppb", "ppm", (0, 1e6)),
    "ozone": Quantity("ppb", "ppm", (0, 1e6)),
    "methane": Quantity("ppm", "ppm", (0, 1e6)),
    "ammonia": Quantity("ppm", "ppm", (0, 1e6)),
    "light": Quantity("lx", "illuminance", (0, 500_000), (0, 200_000), _WORDS - {9999.0}),
    "irradiance": Quantity("W/m²", "irradiance", (-50, 5000), (0, 2000)),
    "uv_index": Quantity("", "", (0, 50), (0, 50)),
    "sound_level": Quantity("dB", "sound level", (-200, 250), (0, 200)),
    "signal_strength": Quantity("dBm", "signal level", (-200, 100), (-200, -1)),
    "snr": Quantity("dB", "sound level", (-100, 100), (-100, 100)),
    "distance": Quantity("m", "length", (-1e8, 1e8)),
    "altitude": Quantity("m", "length", (-12_000, 1e8)),
    "speed": Quantity("m/s", "speed", (-1e5, 1e5)),
    "wind_speed": Quantity("m/s", "speed", (0, 150)),
    "wind_gust": Quantity("m/s", "speed", (0, 150)),
    "wind_direction": Quantity("°", "angle", (0, 360), (0, 360)),
    "direction": Quantity("°", "angle", (-360, 360), (0, 360)),
    "precipitation": Quantity("mm", "length", (0, 1e6)),
    "precipitation_rate": Quantity("mm/h", "rain rate", (0, 2000)),
    "snow_depth": Quantity("cm", "length", (0, 1e4)),
    "latitude": Quantity("°", "angle", (-90, 90), (-90, 90)),
    "longitude": Quantity("°", "angle", (-180, 180), (-180, 180)),
    "weight": Quantity("kg", "mass", (-1e9, 1e9)),
    "volume": Quantity("L", "volume", (-1e12, 1e12)),
    "volume_flow": Quantity("L/min", "volume flow", (-1e9, 1e9)),
    "conductivity": Quantity("µS/cm", "conductivity", (0, 1e8)),
    "ph": Quantity("pH", "acidity", (-2, 16), (0, 14)),
    "radon": Quantity("Bq/m³", "radioactivity", (0, 1e7)),
    "radiation": Quantity("µSv/h", "dose rate", (0, 1e7)),
    "duration": Quantity("s", "time", (-1e12, 1e12)),
    "rotation": Quantity("rpm", "rotation", (-1e7, 1e7)),
    "acceleration": Quantity("m/s²", "acceleration", (-1e5, 1e5)),
    "magnetic_field": Quantity("µT", "magnetic field", (-1e9, 1e9)),
    "resistance": Quantity("Ω", "resistance", (0, 1e14)),
    "charge": Quantity("Ah", "charge", (-1e9, 1e9)),
    "data_size": Quantity("B", "data size", (0, GREATEST)),
    "data_rate": Quantity("B/s", "data rate", (0, GREATEST)),
    "count": Quantity("", "", _ALL, _ALL),
    VALUE: Quantity("", "", _ALL, _ALL),
}  # fmt: skip

_UNITS: Final[dict[str, float]] = {  # the canonical unit of a quantity, in the base unit of its kind
    one.unit: scale.factor for one in QUANTITIES.values() if (scale := scale_of(one.unit, one.kind)) is not None
}
DS18B20: Final = re.compile(r"ds18[bsx]?20|dallas|one_?wire", re.IGNORECASE)
"""A topic or a name of a known sensor: 85 °C is then its value after power-on, before the first measurement."""
POWER_ON: Final = 85.0
DS18B20_RANGE: Final = (-55.0, 125.0)
"""In °C."""


def measure(
    quantity: str,
    value: Any,
    unit: str | None,
    name: str = "",
    *,
    unit_source: str = PAYLOAD,
    time_us: int | None = None,
    is_ds18b20: bool = False,
) -> Reading:
    """Return a reading in the unit of its quantity.

    `value` is a number; `unit` as the device writes it, or None if it is not stated. `name` and `time_us` are those of
    the reading. `is_ds18b20`: whether it is such a sensor, whose value after power-on is an error, if `name` does not
    tell it. A quantity that is not in the vocabulary keeps its unit.

    Raise RejectedError if the unit does not fit the quantity, or if the value is out of bounds or an error value.
    """
    known = QUANTITIES.get(quantity)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RejectedError("type changed", f"{name or quantity} is {kind_of(value)} and should be a number") from None
    if not -GREATEST <= number <= GREATEST:
        reason = "out of bounds" if math.isfinite(number) else "not finite"
        raise RejectedError(reason, f"{name or quantity} is {number:g}")
    if known is None:
        return Reading(quantity, number, "" if unit is None else plain_unit(unit), name, time_us, unit_source)
    if not unit:
        return _with_default(quantity, known, number, name, time_us, is_ds18b20)
    canonical = known.unit
    if known.kind:
        scale = scale_of(unit, known.kind)
        if scale is None:
            return Reading(quantity, number, plain_unit(unit), name, time_us, unit_source)
        if quantity == "battery" and scale.kind == "voltage":
            return measure("voltage", number, unit, name or quantity, unit_source=unit_source, time_us=time_us)
        if scale.kind != known.kind:
            raise RejectedError("unit does not fit", f"{name or quantity} is in {unit[:MAX_UNIT]!r}")
        if number in known.errors:
            raise RejectedError("error value", f"{name or quantity} is {number:g}: the sensor reports a failure")
        number = (number * scale.factor + scale.offset) / _UNITS[canonical]
    else:
        scale = scale_of(unit, "")
        if scale is None:
            canonical = plain_unit(unit)
        elif quantity == "power_factor" and scale.kind == "percent":
            number /= 100
        elif quantity in (VALUE, "count"):
            if scale.kind == "temperature":
                measure("temperature", number, unit, name, is_ds18b20=is_ds18b20)  # raises for an error value
            number, canonical = number * scale.factor + scale.offset, BASE_UNITS[scale.kind]
        else:
            raise RejectedError("unit does not fit", f"{name or quantity} is in {unit[:MAX_UNIT]!r}")
    _check(quantity, known, number, known.bounds, name, is_ds18b20)
    return Reading(quantity, number, canonical, name, time_us, unit_source)


def _with_default(
    quantity: str, known: Quantity, number: float, name: str, time_us: int | None, is_ds18b20: bool
) -> Reading:
    """Return a reading whose unit is not stated."""
    if quantity == "power_factor" and 1 < abs(number) <= 100:
        raise RejectedError(
            "ambiguous",
            f"{name or quantity} is {number:g} without a unit: percent, or a failure; state the unit in the payload or "
            "in [[pipeline.decoder]]",
        )
    _check(quantity, known, number, known.bounds, name, is_ds18b20)
    if known.default is None:
        if quantity == "speed" and abs(number) > MOST_SPEED:
            raise RejectedError(
                "ambiguous", f"{name or quantity} is {number:g} without a unit: state it; it may be a rate of bits"
            )
        return Reading(quantity, number, "", name, time_us, DEFAULT)
    low, high = known.default
    if not low <= number <= high:
        raise RejectedError(
            "ambiguous",
            f"{name or quantity} is {number:g} without a unit, and {known.unit or 'its unit'} is assumed from {low:g} "
            f"to {high:g} only: state the unit in the payload or in [[pipeline.decoder]]",
        )
    is_whole = number == int(number)
    if quantity == "voltage" and is_whole and number > MOST_WHOLE_VOLTS:
        raise RejectedError(
            "ambiguous",
            f"{name or quantity} is {number:g} without a unit: volts, or a whole number of smaller units; state the "
            "unit in the payload or in [[pipeline.decoder]]",
        )
    if quantity == "current" and is_whole and number:  # amperes, or milliamperes as of a current loop
        return Reading(quantity, number, "", name, time_us, DEFAULT)
    if quantity == "battery" and (0 < number <= 1 or (number < 15 and not is_whole)):
        raise RejectedError(
            "ambiguous",
            f"{name or quantity} is {number:g} without a unit: percent, a fraction or volts; state the unit in the "
            "payload or in [[pipeline.decoder]]",
        )
    return Reading(quantity, number, known.unit, name, time_us, DEFAULT)


def _check(
    quantity: str, known: Quantity, number: float, bounds: tuple[float, float], name: str, is_ds18b20: bool
) -> None:
    is_error = round(number, 6) in known.errors
    coldest, hottest = DS18B20_RANGE
    if known.kind == "temperature" and (round(number, 6) == POWER_ON or not coldest <= number <= hottest):
        is_error = is_error or is_ds18b20 or DS18B20.search(name) is not None
    if is_error:
        raise RejectedError("error value", f"{name or quantity} is {number:g}: the sensor reports a failure")
    low, high = bounds
    if not low <= number <= high:
        raise RejectedError(
            "out of bounds", f"{name or quantity} is {number:g} {known.unit}; bounds are {low:g} and {high:g}"
        )


def plain_unit(unit: str) -> str:
    """Return an unknown unit as it is stored: as written, within the limits of a unit."""
    if len(unit) > 4 * MAX_UNIT:
        return unit[:MAX_UNIT]
    found = plain(unit)
    for sign, digit in (("²", "2"), ("³", "3")):
        if unit.rstrip().endswith(sign) and found.endswith(digit) and found[-2:-1].isalpha():
            found = found[:-1] + sign
    return found[:MAX_UNIT]


def kind_of(value: Any) -> str:
    """Return the JSON type of a value, for error texts."""
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    kinds = {dict: "an object", list: "a list", bool: "true or false", type(None): "null", bytes: "bytes"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "something else")


# -- the names of fields ----------------------------------------------------------------------------------------------

ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "temperature": ("temperature", "temp", "tmp", "celsius", "fahrenheit", "tempc", "tempf", "air_temperature",
                    "ambient_temperature", "temperatur", "temperatura"),
    "dew_point": ("dew_point", "dewpoint", "dew_point_temperature"),
    "humidity": ("humidity", "hum", "humi", "humid", "rh", "relative_humidity", "air_humidity", "rel_humidity",
                 "luftfeuchtigkeit", "luftfeuchte", "humedad"),
    "absolute_humidity": ("absolute_humidity", "abs_humidity"),
    "moisture": ("moisture", "soil_moisture", "soil_humidity"),
    "pressure": ("pressure", "press", "barometer", "barometric_pressure", "air_pressure", "atmospheric_pressure",
                 "baro", "luftdruck"),
    "battery": ("battery", "batt", "bat", "battery_level", "battery_percentage", "battery_percent", "batt_level",
                "battery_soc", "state_of_charge", "battery_state_of_charge", "soc"),
    "voltage": ("voltage", "volt", "volts", "spannung"),
    "current": ("current", "ampere", "amperes", "amps", "amperage"),
    "power": ("power", "watt", "watts", "active_power", "apower"),
    "apparent_power": ("apparent_power", "apparentpower"),
    "reactive_power": ("reactive_power", "reactivepower"),
    "power_factor": ("power_factor", "powerfactor"),
    "energy": ("energy", "total_energy", "energy_total"),
    "frequency": ("frequency",),
    "co2": ("co2", "eco2", "e_co2", "carbon_dioxide"),
    "co": ("carbon_monoxide",),
    "voc": ("voc", "tvoc"),
    "voc_index": ("voc_index",),
    "nox_index": ("nox_index",),
    "aqi": ("aqi", "iaq", "air_quality_index"),
    "pm1": ("pm1", "pm1_0", "pm_1_0", "pm_1"),
    "pm25": ("pm25", "pm2_5", "pm_2_5", "pm02_5", "pm2p5"),
    "pm4": ("pm4", "pm4_0"),
    "pm10": ("pm10", "pm10_0", "pm_10"),
    "formaldehyde": ("formaldehyde", "hcho", "formaldehyd"),
    "no2": ("no2", "nitrogen_dioxide"),
    "ozone": ("ozone", "o3"),
    "methane": ("methane", "ch4"),
    "ammonia": ("ammonia", "nh3"),
    "light": ("light", "lux", "illuminance", "illumination", "illuminance_lux", "ambient_light"),
    "irradiance": ("irradiance", "solar_radiation", "solar_irradiance"),
    "uv_index": ("uv_index", "uvi", "uv"),
    "sound_level": ("sound_level", "noise", "noise_level", "sound_pressure_level"),
    "signal_strength": ("rssi", "signal_strength", "wifi_rssi", "wifi_signal"),
    "snr": ("snr", "lora_snr"),
    "distance": ("distance",),
    "altitude": ("altitude", "elevation"),
    "speed": ("speed", "velocity"),
    "wind_speed": ("wind_speed", "windspeed", "wind_avg"),
    "wind_gust": ("wind_gust", "wind_max", "gust", "wind_gust_speed"),
    "wind_direction": ("wind_direction", "wind_dir", "wind_bearing", "winddir"),
    "direction": ("heading", "bearing"),
    "precipitation": ("precipitation", "rain", "rainfall", "rain_total"),
    "precipitation_rate": ("precipitation_rate", "rain_rate", "precipitation_intensity", "rain_intensity"),
    "snow_depth": ("snow_depth",),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng"),
    "weight": ("weight",),
    "volume": ("water_volume", "gas_volume"),
    "volume_flow": ("volume_flow", "flow_rate", "volume_flow_rate", "water_flow"),
    "conductivity": ("conductivity", "soil_conductivity", "electrical_conductivity"),
    "ph": ("ph", "ph_value"),
    "radon": ("radon",),
    "radiation": ("dose_rate", "radiation_dose_rate"),
    "acceleration": ("acceleration",),
    "rotation": ("rpm", "fan_speed_rpm"),
    "count": ("count", "counter"),
    VALUE: ("value", "val", "reading", "measurement_value", "sensor_value"),
}  # fmt: skip
"""By quantity: the names of its fields, in lower case with underscores."""
_COMPOUND: Final[dict[str, tuple[str, str | None]]] = {
    **dict.fromkeys(("vbat", "vbatt", "vbattery", "ac_voltage", "dc_voltage"), ("voltage", None)),
    **dict.fromkeys(("ac_power", "dc_power"), ("power", None)),
    **dict.fromkeys(("ac_current", "dc_current"), ("current", None)), "ac_frequency": ("frequency", None),
    **dict.fromkeys(("baromrelin", "baromabsin", "baromin"), ("pressure", "inHg")),
    **dict.fromkeys(("dailyrainin", "eventrainin", "weeklyrainin", "monthlyrainin", "yearlyrainin", "totalrainin"),
                    ("precipitation", "in")),
    "tempinf": ("temperature", "°F"), "humidityin": ("humidity", None), "dewpointf": ("dew_point", "°F"),
    "rainratein": ("precipitation_rate", "in/h"), "windspeedmph": ("wind_speed", "mph"),
    "windgustmph": ("wind_gust", "mph"), "solarradiation": ("irradiance", None),
}  # fmt: skip
"""Names of common devices in which words are not separated, with their units: of batteries, and of weather stations
that use the names of Weather Underground."""
_BY_ALIAS: Final = {alias: quantity for quantity, aliases in ALIASES.items() for alias in aliases}
_WITH_PREFIX: Final = frozenset(
    ("temperature", "temp", "humidity", "pressure", "voltage", "current", "energy", "co2", "illuminance", "lux",
     "moisture", "power", "pm25", "pm10", "pm1", "battery_level", "dew_point", "dewpoint", "power_factor", "irradiance",
     "wind_speed", "wind_direction", "apparent_power", "reactive_power", "active_power", "soil_moisture", "rainfall",
     "conductivity", "frequency", "hum", "volt", "soc", "tvoc", "weight", "distance", "tempc", "tempf", "humid",
     "wifi_signal")
)  # fmt: skip
"""The aliases that keep their meaning behind other words: outdoor_temperature, but not status_light."""
_NO_MEASUREMENTS: Final = frozenset(
    ("min", "max", "minimum", "maximum", "avg", "average", "mean", "target", "set", "setpoint", "setpt", "sp",
     "desired", "limit", "limits", "threshold", "alarm", "alert", "warning", "high", "low", "upper", "lower", "offset",
     "calibration", "correction", "delta", "diff", "difference", "change", "trend", "rate", "error", "err", "fault",
     "previous", "prev", "raw", "adc", "is", "has", "enable", "enabled", "status", "state", "mode", "type", "id",
     "unit", "units", "time", "timestamp", "date", "occupied", "unoccupied", "heating", "cooling", "comfort", "eco",
     "away", "forecast", "tx", "rx", "transmit", "nominal", "rated", "reference", "ref", "std", "stddev", "variance",
     "accuracy", "precision", "resolution", "interval", "hysteresis", "ok", "valid", "count", "mode", "color", "colour",
     "index", "sensors", "switch", "relay", "on", "off", "default", "override", "request", "requested")
)  # fmt: skip
"""Words of fields that do not carry a measurement: settings, statistics, states. Such fields go to `extra`."""
_PLACES: Final = frozenset(
    ("indoor", "outdoor", "inside", "outside", "int", "ext", "internal", "external", "local", "remote", "in", "out",
     "room", "living", "livingroom", "bed", "bedroom", "bath", "bathroom", "dining", "kids", "child", "guest", "main",
     "master", "hall", "hallway", "corridor", "entrance", "porch", "balcony", "terrace", "patio", "garden",
     "greenhouse", "shed", "barn", "stable", "roof", "loft", "attic", "cellar", "basement", "garage", "workshop",
     "laundry", "pantry", "kitchen", "office", "study", "lab", "server", "rack", "pool", "spa", "sauna", "pond",
     "lake", "river", "sea", "aquarium", "tank", "boiler", "buffer", "hot", "cold", "water", "dhw", "flow", "return",
     "supply", "inlet", "outlet", "intake", "exhaust", "extract", "fresh", "air", "ground", "soil", "surface", "floor",
     "wall", "ceiling", "leaf", "panel", "solar", "pv", "battery", "batt", "bat", "bms", "inverter", "grid", "mains",
     "line", "load", "phase", "input", "output", "bus", "cell", "pack", "string", "total", "motor", "engine", "oil",
     "coolant", "gearbox", "bearing", "winding", "stator", "cpu", "gpu", "chip", "board", "core", "mcu", "case",
     "ambient", "environment", "env", "probe", "sensor", "object", "skin", "body", "meat", "food", "grill", "oven",
     "fridge", "freezer", "refrigerator", "node", "station", "device", "module", "weather", "wind", "left", "right",
     "front", "rear", "back", "top", "bottom", "north", "south", "east", "west", "onboard", "process", "product", "rel",
     "relative", "barometric", "atmospheric",
     "l1", "l2", "l3", "a", "b", "ch1", "ch2", "ch3", "ch4", "t1", "t2", "u1", "u2", "u3", "i1", "i2", "i3", "usb",
     "ntc", "pt100", "pt1000", "sht", "sht20", "sht21", "sht30", "sht31", "sht35", "sht40", "sht41", "sht45", "ds",
     "ds18b20", "dht", "dht11", "dht22", "am2301", "am2302", "am2320", "bme", "bme280", "bme680", "bme688", "bmp180",
     "bmp280", "bmp388", "scd30", "scd40", "scd41", "mhz19", "si7021", "hdc1080", "htu21", "htu21d", "lm35", "tmp36",
     "max6675", "max31855", "mcp9808", "phone", "tablet", "car", "laptop", "washer", "dryer", "dishwasher", "lamp",
     "plug", "socket", "heatpump", "pump", "fan", "charger", "wallbox", "meter", "house", "home", "building", "zone",
     "area", "site", "red", "white", "black", "machine", "compressor", "condenser", "evaporator", "esp", "esp32", "rtc")
)  # fmt: skip
"""Words that may stand before or behind the name of a quantity: outdoor_temperature, temperature_outdoor. Other words
may make it a setting (frost_protection_temperature) or something else (over_voltage)."""
_SUFFIXES: Final[dict[tuple[str, ...], str]] = {
    **{(word,): word for word in (
        "celsius", "fahrenheit", "kelvin", "hpa", "kpa", "pa", "mbar", "bar", "psi", "mmhg", "inhg", "volts",
        "volt", "ma", "kw", "watts", "watt", "wh", "kwh", "pascal", "pascals", "hectopascals", "kilopascals", "joules",
        "amperes", "milliamperes", "millivolts", "kilowatts", "hertz", "kilowatthours", "lux", "lx", "ppm", "ppb",
        "pct", "percent", "mm", "cm", "km", "kmh", "kph", "mph", "knots", "hz",
        "khz", "mhz", "dbm", "db", "dba", "kg", "rpm", "percentage",
        "va", "var", "ah", "mah", "inches", "feet", "meters", "seconds", "minutes", "hours", "grams", "liters")},
    ("percentage",): "%", ("c",): "°C", ("f",): "°F", ("k",): "K", ("degc",): "°C", ("degf",): "°F",
    ("deg", "c"): "°C", ("deg", "f"): "°F", ("v",): "V", ("a",): "A", ("w",): "W", ("in", "hg"): "inHg",
    ("mm", "hg"): "mmHg", ("h", "pa"): "hPa", ("k", "pa"): "kPa", ("k", "wh"): "kWh", ("k", "w"): "kW",
    ("m", "v"): "mV", ("mv",): "mV", ("m", "a"): "mA", ("km", "h"): "km/h", ("m", "s"): "m/s", ("mi", "h"): "mph",
    ("ft",): "ft", ("m",): "m", ("in",): "in", ("mm", "h"): "mm/h", ("in", "h"): "in/h", ("mm", "hr"): "mm/h",
    ("deg",): "°", ("degrees",): "°", ("ug", "m3"): "µg/m³", ("mg", "m3"): "mg/m³", ("mg", "m", "3"): "mg/m³",
    ("ug", "m", "3"): "µg/m³", ("w", "m2"): "W/m²", ("w", "m", "2"): "W/m²", ("bq", "m3"): "Bq/m³",
    ("us", "cm"): "µS/cm", ("g", "m3"): "g/m³", ("l", "min"): "L/min", ("m3",): "m³", ("l",): "L", ("g",): "g",
    ("lb",): "lb", ("s",): "s", ("ms",): "ms",
}  # fmt: skip
"""Units at the end of a field's name, by their words in lower case."""
_SPLIT: Final = re.compile(r"[^0-9A-Za-z%]+")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z]?)|(?<=[A-Z])(?=[A-Z][a-z])")
_DIGITS: Final = re.compile(r"(.*?[a-z])_?(\d{1,3})\Z")
_MIXED: Final = ("hPa", "kPa", "inHg", "mmHg", "kWh", "mWh", "kW", "mV", "mA", "dBm", "dBA", "dB", "kHz", "MHz", "Hz")
_KNOWN_MIXED: Final = re.compile("(" + "|".join(_MIXED) + r")\Z")
MAX_FIELD: Final = 80
"""Characters of a field's name that is looked up."""


class Field(NamedTuple):
    """The meaning of a field's name."""

    quantity: str
    unit: str | None
    """The unit that the name ends with, as for temperature_F; None without one."""
    is_plain: bool
    """Whether the name is that of the quantity, without words that tell it from others."""


_fields: dict[str, Field | None] = {}


def field_of(key: str) -> Field | None:
    """Return the meaning of a field's name, such as temperature_F, tempC, pressure_hPa, outdoor_temperature, pm2_5.

    None if it is unknown, ambiguous as single letters are, or not a measurement as target_temperature.
    """
    try:
        return _fields[key]
    except KeyError:
        if len(_fields) >= 10_000:
            _fields.clear()
        found = _fields[key] = _field_of(key) if 1 < len(key) <= MAX_FIELD and key.isprintable() else None
        return found


def words_of(key: str) -> list[str]:
    """Return the words of a field's name in lower case, split at signs and at capital letters."""
    found = _KNOWN_MIXED.search(key)
    tail = [found[1]] if found is not None and found.start() else []
    head = key[: found.start()] if found is not None and tail else key
    parts = [word for part in _SPLIT.split(head) if part for word in _CAMEL.split(part)]
    return [word.lower() for word in [*parts, *tail] if word]


def _field_of(key: str) -> Field | None:
    lower = key.lower()
    if lower in _BY_ALIAS:
        return Field(_BY_ALIAS[lower], _own_unit(lower), True)
    if lower in _COMPOUND:
        return Field(*_COMPOUND[lower], False)
    words = words_of(key)
    if not words:
        return None
    if (joined := "_".join(words)) in _BY_ALIAS:
        return Field(_BY_ALIAS[joined], _own_unit(joined), True)
    for length in (3, 2, 1):
        unit = _SUFFIXES.get(tuple(words[-length:])) if len(words) > length else None
        if unit is not None and (found := _known(words[:-length])) is not None and found.unit is None:
            found = _with_unit(found, unit)
            if found is not None:
                return found
    return _known(words)


def _known(words: list[str]) -> Field | None:
    """Return the meaning of words, with a unit perhaps before words of a place: temp_c_indoor."""
    joined = "_".join(words)
    if joined in _BY_ALIAS:
        return Field(_BY_ALIAS[joined], _own_unit(joined), True)
    if _NO_MEASUREMENTS.intersection(words):
        return None
    if (digits := _DIGITS.match(joined)) is not None and digits[1] in _BY_ALIAS:  # temperature1, temp_2
        return None if digits[1] in ("co", "pm", "no") else Field(_BY_ALIAS[digits[1]], _own_unit(digits[1]), False)
    behind = len(words)
    while behind > 1 and _is_place(words[behind - 1]):
        behind -= 1
    before = 0  # words of a place
    while before < behind - 1 and (_is_place(words[before]) or words[before] in _ADJECTIVES):
        before += 1
    for first in range(before + 1):  # outdoor_temperature, temperature_outdoor
        alias = "_".join(words[first:behind])
        if alias in _WITH_PREFIX:
            return Field(_BY_ALIAS[alias], _own_unit(alias), False)
    for first in range(before + 1):  # temp_c_indoor
        for last in range(behind - 1, first, -1):
            alias, unit = "_".join(words[first:last]), _SUFFIXES.get(tuple(words[last:behind]))
            if alias in _WITH_PREFIX and unit is not None and _own_unit(alias) is None:
                return _with_unit(Field(_BY_ALIAS[alias], None, False), unit)
    return None


_ADJECTIVES: Final = frozenset(("current", "actual", "measured", "instant", "instantaneous", "active", "real"))
"""Words that may stand before the name of a quantity, not behind it: current_power, but not power_current."""
LOCATIONS: Final = frozenset(
    ("indoor", "outdoor", "inside", "outside", "internal", "external", "room", "kitchen", "bedroom", "bathroom",
     "livingroom", "garage", "basement", "attic", "garden", "office", "water", "air", "soil", "ground", "floor", "top",
     "bottom", "left", "right", "supply", "return", "inlet", "outlet", "l1", "l2", "l3")
)  # fmt: skip
"""Names of fields in an object that is named after a quantity: {"temperature": {"indoor": 21.5}}."""


def _is_place(word: str) -> bool:
    return word in _PLACES or word.isdecimal() or word.rstrip("0123456789") in _PLACES


def _own_unit(alias: str) -> str | None:
    """Return the unit that the name of a quantity is itself."""
    units: Mapping[str, str] = {
        "celsius": "°C", "fahrenheit": "°F", "lux": "lx", "amps": "A", "watts": "W", "watt": "W", "ampere": "A",
        "amperes": "A", "rpm": "rpm", "battery_percentage": "%", "battery_percent": "%", "illuminance_lux": "lx",
        "tempc": "°C", "tempf": "°F",
    }  # fmt: skip
    return units.get(alias)


def _with_unit(found: Field, unit: str) -> Field | None:
    """Return the field with the unit at the end of its name; None if that does not fit the quantity."""
    scale = scale_of(unit, QUANTITIES[found.quantity].kind)
    if scale is None:
        return None
    if scale.kind == QUANTITIES[found.quantity].kind:
        return Field(found.quantity, unit, found.is_plain)
    if found.quantity == "battery" and scale.kind == "voltage":
        return Field("voltage", unit, False)
    return None


def quantity_of_topic(topic: str) -> Field | None:
    """Return the quantity that the last level of a topic names, or the one before a word such as `state`.

    A last level that is a unit, a place or a number belongs to the level before it: temperature/F.

    A sensor of ESPHome and of Home Assistant (NODE/sensor/NAME/state) measures, whatever words begin its name.
    """
    levels = topic.split("/")
    is_sensor = len(levels) > 2 and levels[-3].lower() == "sensor" and levels[-1].lower() == "state"
    while len(levels) > 1 and (not levels[-1] or levels[-1].lower() in _GENERIC):
        levels.pop()
    found = field_of(levels[-1])
    if found is None and len(levels) > 1 and (before := field_of(levels[-2])) is not None and before.quantity != VALUE:
        found = field_of(f"{levels[-2]}_{levels[-1]}")  # temperature/F, temperature/kitchen, temperature/1
        found = found if found is not None and found.quantity == before.quantity else None
    return _last_words(words_of(levels[-1])) if found is None and is_sensor else found


def _last_words(words: list[str]) -> Field | None:
    """Return the quantity that the last words of a name are, unless others tell that it is not a measurement."""
    if not _NO_MEASUREMENTS.union(_SETTING_WORDS).isdisjoint(words):
        return None
    found = ["_".join(words[first:]) for first in range(1, len(words))]
    alias = next((one for one in found if one in _WITH_PREFIX), None)
    return None if alias is None or alias == "current" else Field(_BY_ALIAS[alias], _own_unit(alias), False)


_GENERIC: Final = frozenset(("state", "value", "reading", "data", "measurement", "latest"))
"""Last levels of topics that say nothing about the quantity."""
_SETTINGS: Final = frozenset(
    ("target", "setpoint", "setpoints", "desired", "forecast", "cmnd", "command", "commands", "cmd", "set", "get",
     "threshold", "thresholds", "limit", "limits", "config", "settings", "calibration", "offset", "tomorrow",
     "input_number", "min", "max", "minimum", "maximum", "avg", "average", "mean", "yesterday", "history", "alarm",
     "alarms", "rated", "nominal")
)  # fmt: skip
_SETTING_WORDS: Final = frozenset(
    (
        "protection",
        "protect",
        "window",
        "detection",
        "detect",
        "holiday",
        "frost",
        "antifrost",
        "freeze",
        "preset",
        "deadzone",
        "weekday",
        "weekend",
        "tgt",
        "boost",
        "cutoff",
        "trip",
        "over",
        "sag",
        "tomorrow",
        "next",
        "feels",
        "apparent",
        "chill",
        "price",
        "cost",
    )
)
"""Further words of settings of thermostats and meters."""
_STATED_SETTINGS: Final = frozenset(
    (
        "target",
        "setpoint",
        "setpoints",
        "setpt",
        "desired",
        "threshold",
        "thresholds",
        "limit",
        "limits",
        "hysteresis",
        "forecast",
        "calibration",
        "command",
    )
)
_CLIMATE: Final = re.compile(
    r"(?:.*/)?(?:homeassistant|statestream)/(?:.*/)?(?:climate|water_heater)/[^/]+/temperature\Z", re.DOTALL
)
"""Topics of Home Assistant with the attribute `temperature` of a thermostat, which is its set point."""
_NUMBER: Final = re.compile(r".+/number/[^/]+/state\Z", re.DOTALL)
"""Topics of ESPHome with the state of a number, which users set."""


def is_setting(text: str) -> bool:
    """Return whether a name is that of a setting, a limit or a forecast."""
    return not _STATED_SETTINGS.isdisjoint(words_of(text))


_LIMITS: Final = frozenset(
    ("alarm", "alert", "min", "max", "minimum", "maximum", "offset", "calibration", "setpoint", "threshold",
     "thresholds", "limit", "limits", "hysteresis")
)  # fmt: skip


def is_limit(text: str) -> bool:
    """Return whether a name is that of a setting or a limit, in a list of what a device reports."""
    return not _LIMITS.isdisjoint(words_of(text))


_SHORT_GASES: Final = re.compile(r"(?:.*/)?(?:ch4|o3|no2|nh3)\Z", re.DOTALL | re.IGNORECASE)


def is_short_gas(name: str) -> bool:
    """Return whether a name, or the last level of a topic, is that of a gas or of a channel, as ch4, o3 and no2."""
    return _SHORT_GASES.match(name) is not None


def is_setting_topic(topic: str) -> bool:
    """Return whether a topic is one of commands, settings or forecasts."""
    lower = topic.lower().removesuffix("/get/accepted")  # the answer of a device shadow
    levels = lower.split("/")
    last = next((one for one in reversed(topic.split("/")) if one.lower() not in _GENERIC), "")
    return (
        not _SETTINGS.isdisjoint(levels)
        or is_setting(last)
        or _CLIMATE.match(lower) is not None
        or _NUMBER.match(lower) is not None
    )
