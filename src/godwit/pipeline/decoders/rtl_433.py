"""rtl_433: radio sensors as JSON objects on `rtl_433/HOST/events`, or one topic for each field below `devices`.

Source: docs/DATA_FORMAT.md, docs/INTEGRATION.md and examples/rtl_433_mqtt_hass.py of merbanan/rtl_433.

- Names of fields end with their unit: temperature_C, wind_avg_km_h, rain_in. `humidity` and `moisture` are in percent.
- `battery_ok` is a level between 0 and 1, or only 0 for low and 1 for good: it is not a percentage, and not read.
  Set points are not measurements. `rssi`, `snr` and `noise` are those of the receiver: they remain in `extra`.
- `time` depends on the options of rtl_433: without a zone (the default) it is not known which moment is meant, and the
  time of publishing counts; `-M time:utc` with `time:iso:tz`, or `time:unix`, is used.
- A temperature above 500 °C or below -100 °C is that of a probe that is not connected.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, number_of, time_of
from godwit.pipeline.decoders.fields import field_number, has_numbers, some_names, unit_fits
from godwit.pipeline.decoders.results import DECODER as FROM_DECODER
from godwit.pipeline.decoders.results import OBJECT, PAYLOAD, TEXT, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.quantities import measure

_UNITS: Final = {
    "C": "°C", "F": "°F", "hPa": "hPa", "kPa": "kPa", "inHg": "inHg", "PSI": "psi", "psi": "psi", "bar": "bar",
    "m_s": "m/s", "km_h": "km/h", "mi_h": "mph", "kph": "km/h", "mph": "mph", "mm": "mm", "in": "in", "mm_h": "mm/h",
    "in_h": "in/h", "deg": "°", "lux": "lx", "klx": "klx", "W": "W", "kW": "kW", "VA": "VA", "kWh": "kWh", "Wh": "Wh",
    "V": "V", "mV": "mV", "A": "A", "mA": "mA", "cm": "cm", "m": "m", "km": "km", "ppm": "ppm", "ppb": "ppb",
    "ug_m3": "µg/m³", "pct": "%", "Hz": "Hz", "m3": "m³", "l": "L", "gal": "gal", "kg": "kg", "W_m2": "W/m²",
}  # fmt: skip
"""By the end of a field's name."""
_QUANTITIES: Final = {
    "temperature": "temperature", "dewpoint": "dew_point", "humidity": "humidity", "moisture": "moisture",
    "pressure": "pressure", "wind_avg": "wind_speed", "wind_max": "wind_gust", "wind_speed": "wind_speed",
    "wind_gust": "wind_gust", "gust_speed": "wind_gust", "wind_spd": "wind_speed", "wind_dir": "wind_direction",
    "rain": "precipitation", "rain_rate": "precipitation_rate", "light": "light", "solar": "irradiance",
    "power0": "power", "power1": "power", "power2": "power", "power": "power", "energy": "energy", "total": "energy",
    "voltage": "voltage", "battery": "battery",
    "supercap": "voltage", "current": "current", "depth": "distance", "co2": "co2", "pm2_5": "pm25", "pm1": "pm1",
    "pm4": "pm4", "pm10": "pm10", "estimated_pm10_0": "pm10", "storm_dist": "distance", "distance": "distance",
    "volume": "volume", "water_usage": "volume", "weight": "weight", "frequency": "frequency",
}  # fmt: skip
"""By the beginning of a field's name, without a number at its end."""
_WITHOUT_UNIT: Final = {
    "humidity": ("humidity", "%"), "moisture": ("moisture", "%"), "uvi": ("uv_index", ""), "uv_index": ("uv_index", ""),
    "lux": ("light", "lx"),
}  # fmt: skip
_RADIO: Final = frozenset(("rssi", "snr", "noise", "freq", "freq1", "freq2", "mod"))
_IDENTITY: Final = ("model", "channel", "id")
_NAME: Final = re.compile(r"([a-z][a-z0-9_]*?)(?:_(\d))?_(" + "|".join(sorted(_UNITS, key=len, reverse=True)) + r")\Z")
_NUMBERED: Final = re.compile(r"([a-z]+)_(\d)\Z")
_LEAST_CELSIUS: Final = -100
_MOST_CELSIUS: Final = 500
_SPEEDS: Final = frozenset(("wind_gust",))
_STATES: Final = re.compile(r"(?:time|id|channel|mic|model|subtype|type|button|code|rssi|snr|noise|mod|freq\d?)\Z")


class RadioField(NamedTuple):
    """The meaning of a field's name."""

    quantity: str
    unit: str


class Rtl433Decoder(Decoder):
    """Radio sensors that rtl_433 receives."""

    name = "rtl_433"
    title = "rtl_433: fields whose names carry the unit"
    filters = ("#",)
    text_filters = ("rtl_433/#", "*/rtl_433/#")
    forms = frozenset((OBJECT, TEXT))
    keys = (frozenset(("model",)),)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode an event, or the topic of one field."""
        levels = message.topic.split("/")
        is_topic = "rtl_433" in levels[:-1]
        if message.is_json:
            found = message.json
            if not isinstance(found, dict) or not isinstance(found.get("model"), str):
                return None
            if not is_topic and not _is_radio(found):
                return None
            return _event(found)
        if not is_topic or levels[-1] in ("availability", "states"):
            return Decoded([]) if is_topic else None
        return _value(message, levels)


def _is_radio(found: dict[str, Any]) -> bool:
    """Whether the fields are those of rtl_433, on any topic: its own ones, and a name with a unit."""
    is_own = not found.keys().isdisjoint(("mic", "protocol", "battery_ok")) or "time" in found
    return is_own and any(_NAME.match(name) and _field(name) is not None for name in found)


def _value(message: DecoderMessage, levels: list[str]) -> Decoded | Rejected | None:
    """Decode a topic such as rtl_433/HOST/devices/MODEL/CHANNEL/ID/temperature_C."""
    name = levels[-1]
    number = number_of(message.text)
    field = _field(name)
    device = "/".join(levels[levels.index("devices") + 1 : -1] if "devices" in levels else levels[1:-1])
    if field is None:
        if number is None or name in _RADIO or _STATES.match(name) or name.endswith("_ok"):
            return Decoded([], device=device)
        return Rejected("no quantity", f"the name of the field {name[:60]!r} does not state a quantity and a unit")
    reading = _reading(field, field_number(message.text, name), name)
    return Decoded([] if reading is None else [reading], device=device)


def _event(found: dict[str, Any]) -> Decoded | Rejected:
    readings: list[Reading] = []
    extra: dict[str, Any] = {}
    time_us = time_of(found.get("time"), "time")
    for name, value in found.items():
        field = _field(name)
        if field is not None:
            reading = _reading(field, field_number(value, name), name)
            if reading is not None:
                readings.append(reading)
        elif name not in _IDENTITY and not (name == "time" and time_us is not None):
            extra[name] = value
    if not readings:
        unknown = {name: value for name, value in extra.items() if name not in _RADIO and "_" in name}
        unknown = {name: value for name, value in unknown.items() if not name.endswith(("_ok", "_id", "_code"))}
        if has_numbers(unknown) and not _is_event(found):
            return Rejected("no quantity", f"no field states a quantity and a unit: {some_names(unknown)}")
    device = "/".join(str(found[name])[:64] for name in _IDENTITY if isinstance(found.get(name), str | int))
    return Decoded(readings, time_us, device, extra_of(extra))


def _is_event(found: dict[str, Any]) -> bool:
    """Whether it is a button, a contact or an alarm."""
    return not found.keys().isdisjoint(
        ("button", "event", "state", "code", "alarm", "motion", "cmd", "command", "data")
    )


def _reading(field: RadioField, number: float | None, name: str) -> Reading | None:
    if number is None:
        return None
    if field.quantity in _SPEEDS:  # in the unit of the wind's speed
        one = measure("wind_speed", number, field.unit, name, unit_source=PAYLOAD)
        return one._replace(quantity=field.quantity)
    source = PAYLOAD if name not in _WITHOUT_UNIT and not _NUMBERED.match(name) else FROM_DECODER
    found = measure(field.quantity, number, field.unit, name, unit_source=source)
    if field.quantity == "temperature" and not _LEAST_CELSIUS <= found.value <= _MOST_CELSIUS:
        raise RejectedError("out of bounds", f"{name} is {number:g}: the probe is not connected")
    return found


_fields: dict[str, RadioField | None] = {}


def _field(name: str) -> RadioField | None:
    """Return the meaning of a field's name; None if it does not state a quantity and a unit."""
    if name not in _fields:
        if len(_fields) >= 10_000:
            _fields.clear()
        _fields[name] = _field_of(name) if len(name) <= 64 else None
    return _fields[name]


def _field_of(name: str) -> RadioField | None:
    numbered = _NUMBERED.match(name)
    plain = numbered[1] if numbered is not None else name
    if plain in _WITHOUT_UNIT:
        return RadioField(*_WITHOUT_UNIT[plain])
    found = _NAME.match(name.removesuffix("_ext"))
    if found is None:
        return None
    quantity = _QUANTITIES.get(f"{found[1]}_{found[2]}") or _QUANTITIES.get(found[1])
    if quantity is None:
        return None
    unit = _UNITS[found[3]]
    if quantity == "battery":
        return RadioField("battery", unit) if unit == "%" else RadioField("voltage", unit)
    return RadioField(quantity, unit) if unit_fits(quantity, unit) else None


EXAMPLES: Final = (
    DecoderExample(
        "rtl_433/pi/events",
        b'{"time":"2026-11-15 12:00:00","model":"Acurite-5n1","id":1234,"channel":"A","battery_ok":1,'
        b'"wind_avg_km_h":36.0,"temperature_F":68.0,"humidity":44,"mic":"CHECKSUM"}',
        (
            Reading("wind_speed", 10.0, "m/s", "wind_avg_km_h", None, PAYLOAD),
            Reading("temperature", 20.0, "°C", "temperature_F", None, PAYLOAD),
            Reading("humidity", 44.0, "%", "humidity", None, FROM_DECODER),
        ),
        note="battery_ok is not a percentage; the time has no zone",
    ),
    DecoderExample(
        "rtl_433/pi/events",
        b'{"time":"1763208000.123456","model":"Fineoffset-WHx080","id":7,"temperature_1_C":21.5,"temperature_2_C":4.0,'
        b'"rain_mm":107.7,"battery_mV":2900}',
        (
            Reading("temperature", 21.5, "°C", "temperature_1_C", None, PAYLOAD),
            Reading("temperature", 4.0, "°C", "temperature_2_C", None, PAYLOAD),
            Reading("precipitation", 107.7, "mm", "rain_mm", None, PAYLOAD),
            Reading("voltage", 2.9, "V", "battery_mV", None, PAYLOAD),
        ),
        time_us=1_763_208_000_123_456,
    ),
    DecoderExample(
        "rtl_433/pi/devices/Prologue-TH/5/3/147/temperature_C",
        b"33.200001",
        (Reading("temperature", 33.200001, "°C", "temperature_C", None, PAYLOAD),),
    ),
    DecoderExample("rtl_433/pi/devices/Prologue-TH/5/3/147/battery_ok", b"1", note="neither a reading nor an error"),
    DecoderExample(
        "rtl_433/pi/events", b'{"model":"Nexus-TH","id":1,"mic":"CRC","temperature_C":-127}', reason="error value"
    ),
)

DECODERS: Final = {Rtl433Decoder: EXAMPLES}
