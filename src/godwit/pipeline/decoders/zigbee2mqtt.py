"""Zigbee2MQTT: the state of a device as a JSON object, on the topic `zigbee2mqtt/FRIENDLY_NAME`.

Sources: zigbee2mqtt.io, "MQTT topics and messages" and "Exposes"; the expose presets of zigbee-herdsman-converters
(src/lib/exposes.ts), which fix the unit of the common properties.

- `zigbee2mqtt/bridge/devices` lists all devices with their exposes: name, property, unit and access rights. With this
  definition, the numeric exposes that a device reports and that cannot be set are read, with their units (if a list
  has no access rights, those whose names are known). Settings
  (setpoints, calibrations, brightness) are not measurements, and remain in `extra`.
- Without it, the properties whose unit is the same for all devices are read. The unit of `voltage` depends on the
  device: mains are in V, batteries in mV. Without a definition it is mV from 1000 on, which no mains voltage is, and V
  below 500 if the message also has power, current or energy. Other voltages remain in `extra`. So do properties whose
  unit differs between devices, such as `voc` and `formaldehyd`.
- Without a definition, a device that is set to °F (`temperature_unit`) is rejected: for some that is its display only.
- Before version 2, `illuminance` was a raw value, and `illuminance_lux` the one in lx: if both are there, or if the
  definition has no unit for it, `illuminance` is not read as light.
- With `output: attribute` each property has a topic of its own, with the value as text.
- `bridge/#`, `/set`, `/get` and `/availability` are neither readings nor errors.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, json_of, number_of, time_of
from godwit.pipeline.decoders.fields import DeviceField, field_number, has_numbers, quantity_in, some_names
from godwit.pipeline.decoders.results import (
    DECODER as FROM_DECODER,
)
from godwit.pipeline.decoders.results import (
    DEFINITION,
    Decoded,
    Reading,
    Rejected,
    RejectedError,
)
from godwit.pipeline.quantities import QUANTITIES, field_of, is_limit, measure

MAX_DEVICES_BYTES: Final = 8 * 1024 * 1024
"""Of `bridge/devices`, which is longer than other payloads: some kilobytes for each device."""
BASE: Final = "zigbee2mqtt"
_COMMANDS: Final = frozenset(("set", "get", "availability"))

_FIELDS: Final = {
    "temperature": DeviceField("temperature", "°C"),
    "local_temperature": DeviceField("temperature", "°C"),
    "device_temperature": DeviceField("temperature", "°C"),
    "cpu_temperature": DeviceField("temperature", "°C"),
    "humidity": DeviceField("humidity", "%"),
    "soil_moisture": DeviceField("moisture", "%"),
    "pressure": DeviceField("pressure", "hPa"),
    "illuminance": DeviceField("light", "lx"),
    "illuminance_lux": DeviceField("light", "lx"),
    "battery": DeviceField("battery", "%"),
    "power": DeviceField("power", "W"),
    "power_phase_b": DeviceField("power", "W"),
    "power_phase_c": DeviceField("power", "W"),
    "power_apparent": DeviceField("apparent_power", "VA"),
    "power_reactive": DeviceField("reactive_power", "var"),
    "power_factor": DeviceField("power_factor", ""),
    "ac_frequency": DeviceField("frequency", "Hz"),
    "energy": DeviceField("energy", "kWh"),
    "produced_energy": DeviceField("energy", "kWh"),
    "energy_produced": DeviceField("energy", "kWh"),
    "voltage_phase_b": DeviceField("voltage", "V"),
    "voltage_phase_c": DeviceField("voltage", "V"),
    "current_phase_b": DeviceField("current", "A"),
    "current_phase_c": DeviceField("current", "A"),
    "co2": DeviceField("co2", "ppm"),
    "pm1": DeviceField("pm1", "µg/m³"),
    "pm25": DeviceField("pm25", "µg/m³"),
    "pm10": DeviceField("pm10", "µg/m³"),
    "noise": DeviceField("sound_level", "dBA"),
    "voc_index": DeviceField("voc_index", ""),
}
"""By property: quantity and unit, where the exposes of all devices agree."""
_METERS: Final = DeviceField("current", "A")
_METER_PROPERTIES: Final = frozenset(("power", "energy", "ac_frequency", "power_factor"))
"""`current` is the setting or the flow of a few devices: it is electrical beside these or a voltage."""
_QUANTITIES: Final = {
    **{name: field.quantity for name, field in _FIELDS.items()},
    "voltage": "voltage",
    "current": "current",
    "voc": "voc",
    "eco2": "co2",
    "hcho": "formaldehyde",
    "formaldehyd": "formaldehyde",
    "water_consumed": "volume",
    "linkquality": "",
}
"""By name of an expose; "" for values that are no measurements."""
_STATES: Final = frozenset(
    ("linkquality", "brightness", "color_temp", "position", "tilt", "color", "update", "illuminance_raw", "last_seen")
)
"""Properties with numbers that need no definition to be known as no measurements."""
_LEAST_MILLIVOLTS: Final = 1000
_MOST_VOLTS: Final = 500
_LEAST_HECTOPASCALS: Final = 300
_MOST_HECTOPASCALS: Final = 1200
"""Other pressures are not those of the air in hPa: some devices report kPa."""
_UNIT_SETTINGS: Final = ("temperature_unit", "temperature_unit_convert", "temperature_scale")
"""Properties with the unit that a device is set to: on some devices of the display, on others of `temperature`."""


class Zigbee2MqttDecoder(Decoder):
    """The state messages of Zigbee2MQTT."""

    name = "zigbee2mqtt"
    title = "Zigbee2MQTT: device states, with units from bridge/devices"
    filters = (f"{BASE}/#",)
    definition_filters = (f"{BASE}/bridge/devices",)
    option_names: ClassVar[tuple[str, ...]] = ("base",)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode a state or an attribute. Messages of the bridge and commands have no readings."""
        base = str(self.options.get("base", BASE))
        if not message.topic.startswith(base + "/"):
            return None
        device = message.topic[len(base) + 1 :]
        levels = device.split("/")
        if levels[0] == "bridge" or _COMMANDS.intersection(levels[1:]):
            return Decoded([])
        if not message.is_json:
            return _attribute(message, context, device)
        state = message.json
        if not isinstance(state, dict):
            raise RejectedError("bad payload", "the state of a device is a JSON object")
        exposes = context.definition(device)
        return _state(state, device, exposes)

    def define(self, message: DecoderMessage) -> list[tuple[str, str]]:
        """Return the numeric exposes of each device, by friendly name."""
        if len(message.payload) > MAX_DEVICES_BYTES:
            return []
        devices = json_of(message.payload.decode())
        found = []
        for device in devices if isinstance(devices, list) else []:
            if not isinstance(device, dict) or not isinstance(device.get("definition"), dict):
                continue
            exposes: dict[str, Any] = {}
            _add_exposes(device["definition"].get("exposes"), exposes)
            for key in ("friendly_name", "ieee_address"):
                if isinstance(device.get(key), str):
                    found.append((device[key], json.dumps(exposes)))
        return found


def _add_exposes(found: Any, exposes: dict[str, Any]) -> None:
    """Add the numeric exposes: by property, the name and unit; None for one that is not a measurement."""
    for one in found if isinstance(found, list) else []:
        if not isinstance(one, dict):
            continue
        kind, access, name, unit = one.get("type"), one.get("access"), one.get("name"), one.get("unit")
        if kind == "numeric" and isinstance(one.get("property"), str) and isinstance(name, str):
            if isinstance(access, int):
                is_measured = access & 1 and not access & 2 and one.get("category") != "config"
            else:
                is_measured = _QUANTITIES.get(name)
            exposes[one["property"]] = [name, unit if isinstance(unit, str) else None] if is_measured else None
        elif kind not in ("composite", "list"):
            _add_exposes(one.get("features"), exposes)


def _attribute(message: DecoderMessage, context: DecoderContext, device: str) -> Decoded | Rejected | None:
    """Decode a property on a topic of its own."""
    device, _, name = device.rpartition("/")
    if not device:
        raise RejectedError("bad payload", "the state of a device is a JSON object")
    number = number_of(message.text)
    if number is None:
        return Decoded([], device=device)  # a state such as ON
    return _state({name: number}, device, context.definition(device))


def _state(state: dict[str, Any], device: str, exposes: Any) -> Decoded | Rejected:
    readings: list[Reading] = []
    extra: dict[str, Any] = {}
    is_meter = "voltage" in state or not _METER_PROPERTIES.isdisjoint(state)
    if exposes is None and "temperature" in state and any(_is_fahrenheit(state.get(name)) for name in _UNIT_SETTINGS):
        return Rejected(
            "ambiguous",
            f"the device is set to °F: of its display, or of `temperature`; {BASE}/bridge/devices would tell it",
        )
    for name, value in state.items():
        if isinstance(exposes, dict) and name in exposes:
            reading = _exposed(name, value, exposes[name])
        else:
            reading = _documented(name, value, state, is_meter)
        if reading is None:
            extra[name] = value
        else:
            readings.append(reading)
    time_us = time_of(state["last_seen"], "last_seen") if "last_seen" in state else None
    if not readings and exposes is None:
        unknown = {name: value for name, value in extra.items() if name not in _STATES and value is not None}
        if has_numbers(unknown):
            return Rejected(
                "definition missing",
                f"no {BASE}/bridge/devices before this message defines these properties: {some_names(unknown)}",
            )
    return Decoded(readings, time_us, device, extra_of(extra))


def _is_fahrenheit(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() in ("fahrenheit", "f", "°f")


def _exposed(name: str, value: Any, expose: Any) -> Reading | None:
    """Return the reading of a property with a definition."""
    if expose is None or value is None:
        return None
    kind, unit = expose
    quantity = _QUANTITIES.get(kind)
    if quantity is None:
        field = field_of(kind)
        quantity = field.quantity if field is not None else "" if is_limit(kind) else name
    if not quantity:
        return None
    number = field_number(value, name)
    if number is None:
        return None
    if unit is None or not unit.strip():
        known = QUANTITIES.get(quantity)
        is_raw = known is None or quantity == "light"  # illuminance without a unit is the raw value of Zigbee
        return measure(name if is_raw else quantity, number, None, name, unit_source=DEFINITION)
    return measure(quantity_in(quantity, unit), number, unit, name, unit_source=DEFINITION)


def _documented(name: str, value: Any, state: dict[str, Any], is_meter: bool) -> Reading | None:
    """Return the reading of a property whose unit is the same for all devices."""
    if value is None:
        return None
    field = _FIELDS.get(name) if name != "illuminance" or "illuminance_lux" not in state else None
    if name == "voltage":
        field = _voltage(field_number(value, name), state)
    elif name == "current" and is_meter:
        field = _METERS
    if field is None:
        return None
    number = field_number(value, name)
    if number is None or (name == "pressure" and not _LEAST_HECTOPASCALS <= number <= _MOST_HECTOPASCALS):
        return None
    return measure(field.quantity, number, field.unit, name, unit_source=FROM_DECODER)


def _voltage(value: float | None, state: dict[str, Any]) -> DeviceField | None:
    if value is None:
        return None
    if value >= _LEAST_MILLIVOLTS:
        return DeviceField("voltage", "mV")
    is_mains = not state.keys().isdisjoint(("power", "current", "energy"))
    return DeviceField("voltage", "V") if is_mains and 0 <= value < _MOST_VOLTS else None


_DEVICES: Final = (
    "zigbee2mqtt/bridge/devices",
    json.dumps(
        [
            {
                "ieee_address": "0x00158d00018255df",
                "friendly_name": "cellar/freezer",
                "definition": {
                    "exposes": [
                        {
                            "type": "numeric",
                            "name": "temperature",
                            "property": "temperature",
                            "unit": "°F",
                            "access": 1,
                        },
                        {"type": "numeric", "name": "voltage", "property": "voltage", "unit": "mV", "access": 1},
                        {
                            "type": "climate",
                            "features": [
                                {
                                    "type": "numeric",
                                    "name": "occupied_heating_setpoint",
                                    "property": "occupied_heating_setpoint",
                                    "unit": "°C",
                                    "access": 7,
                                }
                            ],
                        },
                    ]
                },
            }
        ]
    ).encode(),
)
EXAMPLES: Final = (
    DecoderExample(
        "zigbee2mqtt/bedroom",
        b'{"battery": 97, "humidity": 44.72, "linkquality": 120, "temperature": 27.34, "voltage": 3005}',
        (
            Reading("battery", 97.0, "%", "battery", None, FROM_DECODER),
            Reading("humidity", 44.72, "%", "humidity", None, FROM_DECODER),
            Reading("temperature", 27.34, "°C", "temperature", None, FROM_DECODER),
            Reading("voltage", 3.005, "V", "voltage", None, FROM_DECODER),
        ),
        note="without a definition: the units that all devices share; from 1000 on, a voltage is in mV",
    ),
    DecoderExample(
        "zigbee2mqtt/cellar/freezer",
        b'{"temperature": 14, "voltage": 900, "occupied_heating_setpoint": 20}',
        (
            Reading("temperature", -10.0, "°C", "temperature", None, DEFINITION),
            Reading("voltage", 0.9, "V", "voltage", None, DEFINITION),
        ),
        definitions=(_DEVICES,),
        note="with bridge/devices: its units, and no settings",
    ),
    DecoderExample(
        "zigbee2mqtt/plug/power",
        b"12.5",
        (Reading("power", 12.5, "W", "power", None, FROM_DECODER),),
        note="output: attribute",
    ),
    DecoderExample("zigbee2mqtt/button", b'{"action": "single"}', note="no numbers: neither a reading nor an error"),
    DecoderExample("zigbee2mqtt/air", b'{"voc": 120}', reason="definition missing", note="µg/m³, ppb or ppm"),
)

DECODERS: Final = {Zigbee2MqttDecoder: EXAMPLES}
