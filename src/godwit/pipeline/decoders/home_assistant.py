"""Home Assistant and ESPHome: discovery messages say what the values of other topics are.

Sources: home-assistant.io/integrations/mqtt ("MQTT Discovery", "Sensor"), the abbreviations, the base topic and the
device classes in the source of Home Assistant (components/mqtt, components/sensor/const.py); esphome's mqtt_component.

- `homeassistant/sensor/[NODE/]OBJECT/config` defines one sensor, `homeassistant/device/.../config` several: topic of
  the state, unit, device class and template. An empty message removes it. These are neither readings nor errors.
- The template is a path, `{{ value_json.x }}`, `{{ value_json['x'].y[0] }}` or `{{ value }}`, possibly with the filters
  `is_defined`, `float`, `round` and `default`: the value is read as it was sent, not rounded, and a missing one is not
  replaced. Other templates compute something, and are rejected as such.
- `climate` entities have topics with the current temperature, in `temperature_unit` (without it, in a unit that only
  Home Assistant knows: rejected), and the current humidity. Set points are not measurements.
- Two sensors that read one value in different units contradict each other: rejected.
- ESPHome publishes plain numbers on `NODE/sensor/OBJECT/state`, and defines them in this way. `nan` is rejected.
- The quantity is that of the device class; without one, that of the field's or object's name if the unit fits it; or
  else the object's own name. A sensor without unit, device class and state class may be a text: then it is not read.
- States of other components (switch, light, binary_sensor, ...) and availabilities are neither readings nor errors.
- A topic without a discovery message before it is left to other decoders.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Final

from godwit.pipeline.decoders.base import GROUP_SEPARATOR, Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import number_of
from godwit.pipeline.decoders.fields import field_number, quantity_in, unit_fits
from godwit.pipeline.decoders.results import DEFINITION, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.quantities import DS18B20, field_of, measure

PREFIX: Final = "homeassistant"
_CONFIG: Final = re.compile(
    r"homeassistant/(?P<component>\w+)/(?:(?P<node>[a-zA-Z0-9_-]+)/)?(?P<object>[a-zA-Z0-9_-]+)/config\Z"
)
_LONG: Final = {
    "stat_t": "state_topic", "val_tpl": "value_template", "unit_of_meas": "unit_of_measurement",
    "dev_cla": "device_class", "stat_cla": "state_class", "dev": "device", "cmps": "components", "p": "platform",
    "avty_t": "availability_topic", "temp_unit": "temperature_unit", "temp_stat_t": "temperature_state_topic",
    "curr_temp_t": "current_temperature_topic", "curr_temp_tpl": "current_temperature_template",
    "curr_hum_t": "current_humidity_topic", "curr_hum_tpl": "current_humidity_template",
    "mode_stat_t": "mode_state_topic", "bri_stat_t": "brightness_state_topic", "pos_t": "position_topic",
    "hum_stat_t": "target_humidity_state_topic", "temp_hi_stat_t": "temperature_high_state_topic",
    "temp_lo_stat_t": "temperature_low_state_topic", "act_t": "action_topic", "fan_mode_stat_t": "fan_mode_state_topic",
    "pct_stat_t": "percentage_state_topic", "clr_temp_stat_t": "color_temp_state_topic",
}  # fmt: skip
"""The abbreviations of the fields that are used here."""
_CLASSES: Final = {
    **{name: name for name in (
        "temperature", "humidity", "absolute_humidity", "moisture", "pressure", "battery", "voltage", "current",
        "power", "apparent_power", "reactive_power", "power_factor", "energy", "frequency", "aqi", "pm1", "pm25",
        "pm4", "pm10", "ozone", "irradiance", "signal_strength", "distance", "speed", "wind_speed",
        "wind_direction", "precipitation", "weight", "volume", "conductivity", "ph", "radon", "duration",
        "data_size", "data_rate")},
    "atmospheric_pressure": "pressure", "carbon_dioxide": "co2", "carbon_monoxide": "co", "illuminance": "light",
    "volatile_organic_compounds": "voc", "volatile_organic_compounds_parts": "voc", "nitrogen_dioxide": "no2",
    "sound_pressure": "sound_level", "precipitation_intensity": "precipitation_rate", "energy_storage": "energy",
    "volume_storage": "volume", "water": "volume", "gas": "volume", "volume_flow_rate": "volume_flow",
}  # fmt: skip
"""By device class: the quantity."""
_CURRENT: Final = {
    "current_temperature_topic": ("temperature", "current_temperature_template", ""),
    "current_humidity_topic": ("humidity", "current_humidity_template", "%"),
}
"""Topics of a climate entity with measurements: quantity, the field with the template, and the unit."""
_NO_NUMBERS: Final = frozenset(("date", "enum", "timestamp", "uptime"))
_NO_VALUES: Final = frozenset(("", "unknown", "unavailable", "none", "null"))
_TEMPLATE: Final = re.compile(
    r"\{\{-?\s*value(?P<json>_json(?P<path>(?:\.\w+|\[\s*(?:'[^'\]]*'|\"[^\"\]]*\"|\d+)\s*\])+))?\s*"
    r"(?:\|\s*(?:is_defined|(?:float|round|default)(?:\(\s*[-+.\w]*\s*\))?)\s*)*-?\}\}\Z"
)
_STEP: Final = re.compile(r"\.(\w+)|\[\s*(?:'([^'\]]*)'|\"([^\"\]]*)\"|(\d+))\s*\]")
_MAX_TEMPLATE: Final = 500


class HomeAssistantDecoder(Decoder):
    """Topics that discovery messages of Home Assistant define."""

    name = "home_assistant"
    title = "Home Assistant discovery and ESPHome: units and classes from discovery messages"
    filters = (f"{PREFIX}/#",)  # and the topics that its definitions name
    definition_filters = (f"{PREFIX}/#",)
    option_names: ClassVar[tuple[str, ...]] = ()

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode a topic that is defined."""
        if message.topic.startswith(f"{PREFIX}/") and (
            _CONFIG.match(message.topic) or message.topic == f"{PREFIX}/status"
        ):
            if message.payload and message.topic != f"{PREFIX}/status":
                message.json  # noqa: B018  # a discovery message that is not JSON is rejected
            return Decoded([])
        defined = [
            one
            for one in context.definition_group(message.topic)
            if one["key"] in (context.definition(one["config"]) or ())
        ]
        return _decoded(message, defined) if defined else None

    def define(self, message: DecoderMessage) -> list[tuple[str, str]]:
        """Return the sensors of a discovery message by topic, and the sensors that it defines at all."""
        found = _CONFIG.match(message.topic)
        if found is None:
            return []
        sensors = _sensors(message, found) if message.payload.strip() else []
        keys = [one["key"] for one in sensors]
        return [
            (message.topic, json.dumps(keys)),
            *((f"{one['topic']}{GROUP_SEPARATOR}{one['key']}", json.dumps(one)) for one in sensors),
        ]


# -- discovery messages -----------------------------------------------------------------------------------------------


def _sensors(message: DecoderMessage, found: re.Match[str]) -> list[dict[str, Any]]:
    config = _unabbreviated(message.json)
    if found["component"] != "device":
        return _sensor(config, found["component"], found["object"], message.topic)
    sensors = []
    components = config.get("components")
    for name, one in components.items() if isinstance(components, dict) else ():
        if isinstance(one, dict):
            one = _unabbreviated(one)
            shared: dict[str, Any] = {key: config[key] for key in ("state_topic", "device", "~") if key in config}
            sensors += _sensor({**shared, **one}, str(one.get("platform")), str(name), message.topic)
    return sensors


def _unabbreviated(config: Any) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise RejectedError("bad payload", "a discovery message is a JSON object")
    return {_LONG.get(str(name), str(name)): value for name, value in config.items()}


def _sensor(config: dict[str, Any], component: str, name: str, topic: str) -> list[dict[str, Any]]:
    """Return the definitions of the topics of an entity: those of sensors, and others without readings."""
    entity = {"config": topic, "sensor": False, "device": _device(config.get("device"))}
    found = []
    for key in config:
        state_topic = _topic(config, key) if key.endswith("_topic") and not key.endswith("command_topic") else None
        if state_topic is None:
            continue
        one: dict[str, Any] = {**entity, "key": f"{topic}#{name}#{key}", "topic": state_topic}
        if component == "sensor" and key == "state_topic":
            one |= _state(config, name)
        elif component == "climate" and key in _CURRENT:
            one |= _current(config, key)
        found.append(one)
    return found


def _state(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the definition of the state of a sensor."""
    unit = config.get("unit_of_measurement")
    unit = unit if isinstance(unit, str) and unit.strip() else None
    device_class = config.get("device_class")
    template = config.get("value_template")
    path, is_supported = _path(template)
    return {
        "sensor": device_class not in _NO_NUMBERS,
        "number": unit is not None or device_class is not None or config.get("state_class") is not None,
        "path": path,
        "template": None if is_supported else str(template)[:100],
        "quantity": _quantity(device_class, unit, str(path[-1]) if path else name, name),
        "unit": unit,
    }


def _current(config: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the definition of the current temperature or humidity of a climate entity."""
    quantity, template_key, unit = _CURRENT[key]
    template = config.get(template_key)
    path, is_supported = _path(template)
    if quantity == "temperature":
        stated = config.get("temperature_unit")
        unit = f"°{stated}" if stated in ("C", "F") else ""
    return {
        "sensor": True,
        "number": True,
        "path": path,
        "template": None if is_supported else str(template)[:100],
        "quantity": quantity,
        "unit": unit,
    }


def _topic(config: dict[str, Any], name: str) -> str | None:
    """Return a topic of a discovery message, with its base in place of the sign for it."""
    topic, base = config.get(name), config.get("~")
    if not isinstance(topic, str) or not topic:
        return None
    if isinstance(base, str):
        if topic.startswith("~"):
            topic = base + topic[1:]
        if topic.endswith("~"):
            topic = topic[:-1] + base
    return topic


def _path(template: Any) -> tuple[list[str | int] | None, bool]:
    """Return the path in JSON that a template reads, None for the payload; and whether it is as simple as that."""
    if template is None:
        return None, True
    found = _TEMPLATE.match(template.strip()) if isinstance(template, str) and len(template) <= _MAX_TEMPLATE else None
    if found is None:
        return None, False
    if found["path"] is None:
        return None, True
    steps = _STEP.findall(found["path"])
    return [
        int(index or word) if (index or word).isdigit() else word or one or two for word, one, two, index in steps
    ], True


def _quantity(device_class: Any, unit: str | None, field: str, name: str) -> str:
    if isinstance(device_class, str) and device_class in _CLASSES:
        quantity = _CLASSES[device_class]
        if unit is None:
            return quantity
        quantity = quantity_in(quantity, unit)
        return "snr" if quantity == "signal_strength" and unit.strip() == "dB" else quantity
    for one in (field, name):
        known = field_of(one)
        if known is not None and unit is not None and unit_fits(quantity_in(known.quantity, unit), unit):
            return quantity_in(known.quantity, unit)
    return str(device_class) if isinstance(device_class, str) else field


def _device(device: Any) -> str | None:
    if not isinstance(device, dict):
        return None
    identifiers = device.get("identifiers", device.get("ids"))
    first = identifiers[0] if isinstance(identifiers, list) and identifiers else identifiers
    name = device.get("name", first)
    return name[:256] if isinstance(name, str) else None


# -- states -----------------------------------------------------------------------------------------------------------


def _decoded(message: DecoderMessage, defined: list[dict[str, Any]]) -> Decoded | Rejected:
    readings: list[Reading] = []
    templates: list[str] = []
    for one in defined:
        if not one["sensor"]:
            continue
        if one["template"] is not None:
            templates.append(one["template"])
            continue
        reading = _reading(message, one)
        if reading is None or reading in readings:
            continue
        if any((reading.quantity, reading.name) == (other.quantity, other.name) for other in readings):
            raise RejectedError("ambiguous", f"two discovery messages give {reading.quantity} different units")
        readings.append(reading)
    if templates and not readings:
        return Rejected(
            "template not supported",
            f"the value is computed by {templates[0]!r}: publish it in a field of its own, or choose a decoder with "
            f'[[pipeline.decoder]] filter = "{message.topic[:100]}"',
        )
    return Decoded(readings, device=next((one["device"] for one in defined if one["device"]), None))


def _reading(message: DecoderMessage, one: dict[str, Any]) -> Reading | None:
    path = one["path"]
    name = "" if path is None else ".".join(map(str, path))
    value: Any = message.text if path is None else message.json
    for step in path or ():
        if isinstance(value, dict):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step] if step < len(value) else None
        else:
            value = None
    if value is None or (isinstance(value, str) and value.strip().lower() in _NO_VALUES):
        return None
    if one["number"] and isinstance(value, str) and value.strip().lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise RejectedError("not finite", f"{name or message.topic[:100]} is {value.strip()[:20]}")
    if not one["number"] and (isinstance(value, bool | dict | list) or number_of(str(value)) is None):
        return None  # a text
    if isinstance(value, str) and number_of(value) is None:
        raise RejectedError("type changed", f"{name or message.topic[:100]} is {value[:40]!r} and should be a number")
    number = field_number(value, name)
    if one["unit"] == "":
        raise RejectedError("ambiguous", "the discovery message of the climate entity has no temperature_unit: add it")
    is_ds18b20 = DS18B20.search(message.topic) is not None
    return measure(one["quantity"], number, one["unit"], name, unit_source=DEFINITION, is_ds18b20=is_ds18b20)


_ESPHOME: Final = (
    "homeassistant/sensor/livingroom/outside_temperature/config",
    b'{"dev_cla":"temperature","unit_of_meas":"\xc2\xb0F","stat_cla":"measurement","name":"Outside Temperature",'
    b'"stat_t":"livingroom/sensor/outside_temperature/state","avty_t":"livingroom/status",'
    b'"uniq_id":"ESPsensoroutside_temperature","dev":{"ids":"5c013b48e1a4","name":"livingroom"}}',
)
_PLUG: Final = (
    "homeassistant/device/plug1/config",
    b'{"dev":{"ids":["plug1"],"name":"plug1"},"o":{"name":"gateway"},"state_topic":"plugs/1","cmps":{'
    b'"p1":{"p":"sensor","device_class":"power","unit_of_measurement":"kW","value_template":"{{ value_json.P }}"},'
    b'"t1":{"p":"sensor","device_class":"temperature","unit_of_measurement":"\xc2\xb0C",'
    b'"value_template":"{{ value_json[\'chip\'].t }}"},'
    b'"s1":{"p":"switch","value_template":"{{ value_json.on }}"}}}',
)
_COMPUTED: Final = (
    "homeassistant/sensor/meter/config",
    b'{"~":"meters/7","stat_t":"~/pulses","unit_of_meas":"kWh","dev_cla":"energy",'
    b'"val_tpl":"{{ value_json.pulses / 1000 }}"}',
)
EXAMPLES: Final = (
    DecoderExample(
        "livingroom/sensor/outside_temperature/state",
        b"68.0",
        (Reading("temperature", 20.0, "\u00b0C", "", None, DEFINITION),),
        definitions=(_ESPHOME,),
        note="ESPHome: the number as text, everything else in the discovery message",
    ),
    DecoderExample(
        "plugs/1",
        b'{"P":0.25,"chip":{"t":41.5},"on":true}',
        (
            Reading("power", 250.0, "W", "P", None, DEFINITION),
            Reading("temperature", 41.5, "\u00b0C", "chip.t", None, DEFINITION),
        ),
        definitions=(_PLUG,),
        note="several sensors on one topic",
    ),
    DecoderExample("meters/7/pulses", b'{"pulses":7}', reason="template not supported", definitions=(_COMPUTED,)),
    DecoderExample("livingroom/sensor/outside_temperature/state", b"nan", reason="not finite", definitions=(_ESPHOME,)),
    DecoderExample(*_ESPHOME, note="a discovery message: neither a reading nor an error"),
)

DECODERS: Final = {HomeAssistantDecoder: EXAMPLES}
