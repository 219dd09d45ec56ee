"""Shelly devices: those of generation 1, and of generation 2 and later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, number_of, time_of
from godwit.pipeline.decoders.fields import DeviceField, device_reading, field_number
from godwit.pipeline.decoders.results import (
    CONFIGURATION,
    DEFAULT,
    OBJECT,
    PAYLOAD,
    Decoded,
    Reading,
    Rejected,
    RejectedError,
)
from godwit.pipeline.decoders.results import DECODER as FROM_DECODER
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.quantities import POWER_ON, measure

# -- generation 1 -----------------------------------------------------------------------------------------------------

_TOPICS: Final = {
    "temperature": DeviceField("temperature", "°C"),
    "temperature_f": DeviceField("temperature", "°F"),
    "ext_temperature/N": DeviceField("temperature", "°C"),
    "ext_temperature_f/N": DeviceField("temperature", "°F"),
    "ext_humidity/N": DeviceField("humidity", "%"),
    "sensor/humidity": DeviceField("humidity", "%"),
    "sensor/battery": DeviceField("battery", "%"),
    "sensor/lux": DeviceField("light", "lx"),
    "sensor/concentration": DeviceField("gas_concentration", "ppm"),
    "sensor/tilt": DeviceField("tilt", "°"),
    "voltage": DeviceField("voltage", "V"),
    "voltage/N": DeviceField("voltage", "V"),
    "adc/N": DeviceField("voltage", "V"),
    "relay/power": DeviceField("power", "W"),
    "relay/energy": DeviceField("energy", "Wmin"),
    **{
        f"{part}/N/{name}": field
        for part in ("relay", "roller", "light", "white", "color", "emeter")
        for name, field in (("power", DeviceField("power", "W")), ("energy", DeviceField("energy", "Wmin")))
    },
    "emeter/N/returned_energy": DeviceField("energy", "Wmin"),
    "emeter/N/total": DeviceField("energy", "Wh"),
    "emeter/N/total_returned": DeviceField("energy", "Wh"),
    "emeter/N/voltage": DeviceField("voltage", "V"),
    "emeter/N/current": DeviceField("current", "A"),
    "emeter/N/reactive_power": DeviceField("reactive_power", "var"),
    "emeter/N/pf": DeviceField("power_factor", ""),
    "emeter_n/current": DeviceField("current", "A"),
    "emeter_n/ixsum": DeviceField("current", "A"),
}
"""By the topic after the device, with N for a number."""
_STATES: Final = re.compile(
    r"(?:online|announce|command|.*/command|.*/set|settings|overtemperature|temperature_status|overpower|overload"
    r"|loaderror|totalworktime|fw|charger|settings/.*|relay/N|relay/N/overpower_value|roller/N|roller/N/(?:pos|stop_reason)"
    r"|(?:light|white|color)/N|(?:light|white|color)/N/(?:status|source|overpower_value)|input/N|input_event/N"
    r"|longpush/N|ext_switch/N|ext_temperatures|ext_humidities|ext_switches|valve/.*|thermostat/.*"
    r"|sensor/(?:flood|state|motion|vibration|smoke|gas|operation|self_test|mute|unmute|start_self_test|charger"
    r"|act_reasons|wakeupevent|ext_power|illumination|error|temperature_status))\Z"
)
_NUMBER: Final = re.compile(r"/\d+(?=/|\Z)")
_BATTERY_SENSOR: Final = "sensor/temperature"
MOST_CELSIUS: Final = 60
"""The limit of the devices with this topic."""
_NO_ANSWER: Final = 999.0


class ShellyGen1Decoder(Decoder):
    """Shelly devices of generation 1: one topic for each value, `shellies/DEVICE/...`, with the number as text.

    Sources: shelly-api-docs.shelly.cloud/gen1 (MQTT sections of the devices), and captures in the issues of
    bieniu/ha-shellies-discovery and enesbcs/Shelly_MQTT.

    - `temperature` and `ext_temperature/N` are in °C, `temperature_f` and `ext_temperature_f/N` repeat them in °F.
    - `sensor/temperature` of battery devices (H&T, Flood, Door/Window, Smoke) is "in °C or °F depending on
      configuration". °C is the default of the device, and assumed with the source "default" up to 60 °C, the limit of
      these devices; a higher value can only be in °F, and is rejected as ambiguous. The option `temperature_unit` ("C"
      or "F") settles it.
    - `energy` and `returned_energy` count watt-minutes, `total` and `total_returned` watt-hours.
    - 999 is the value of an external sensor that does not answer, 85 °C that of a DS18B20 after power-on.
    - `info` and `status` are JSON: battery, temperature with its unit, humidity and light are read.
    - Switch states, inputs, events, announcements and commands are neither readings nor errors.
    """

    name = "shelly_gen1"
    title = "Shelly, generation 1: a topic for each value"
    filters = ("shellies/#",)
    option_names: ClassVar[tuple[str, ...]] = ("temperature_unit",)

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """`temperature_unit`: C or F, of `sensor/temperature`."""
        super().__init__(options)
        unit = self.options.get("temperature_unit")
        if unit not in (None, "C", "F"):
            raise PipelineError(f"the decoder {self.name}: temperature_unit is {unit!r} and must be C or F")
        self._unit = None if unit is None else f"°{unit}"

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode the value of a topic."""
        levels = message.topic.split("/", 2)
        if len(levels) < 3:
            return Decoded([])  # shellies/announce and shellies/command
        device, rest = levels[1], levels[2]
        if rest.startswith(("status/", "events/", "rpc")):
            return None  # a device of generation 2 below the same topic
        path = _NUMBER.sub("/N", rest)
        if rest in ("info", "status"):
            return _from_json(message.json, device)
        field = _TOPICS.get(path)
        if field is None and path != _BATTERY_SENSOR:
            if _STATES.match(path):
                return Decoded([], device=device)
            raise RejectedError("no quantity", f"the topic {rest[:60]!r} of a Shelly device is not known")
        number = number_of(message.text)
        if number is None:
            if message.text in ("null", "unknown"):
                return Decoded([], device=device)
            if not message.text:
                raise RejectedError("empty", "the payload is empty")
            raise RejectedError("type changed", f"{rest[:60]} is {message.text[:40]!r} and should be a number")
        if number == _NO_ANSWER:
            raise RejectedError("error value", f"{rest[:60]} is 999: the sensor does not answer")
        if field is None:
            return Decoded([self._battery_sensor(number, rest)], device=device)
        is_external = rest.startswith("ext_temperature")  # a DS18B20
        reading = measure(field.quantity, number, field.unit, rest, unit_source=FROM_DECODER, is_ds18b20=is_external)
        return Decoded([reading], device=device)

    def _battery_sensor(self, number: float, name: str) -> Reading:
        if self._unit is not None:
            return measure("temperature", number, self._unit, name, unit_source=CONFIGURATION)
        if number > MOST_CELSIUS:
            raise RejectedError(
                "ambiguous",
                f"{name} is {number:g}: °C or °F, as the device is configured; set temperature_unit in "
                f'[[pipeline.decoder]] decoder = "shelly_gen1"',
            )
        return measure("temperature", number, "°C", name, unit_source=DEFAULT)


_BATTERY: Final = DeviceField("battery", "%")
_HUMIDITY: Final = DeviceField("humidity", "%")
_LIGHT: Final = DeviceField("light", "lx")


def _from_json(found: Any, device: str) -> Decoded:
    """Decode `info` (the status of the device) and `status` (of a motion sensor)."""
    if not isinstance(found, dict):
        raise RejectedError("bad payload", "the status of a device is a JSON object")
    readings = [
        *_part(found.get("bat"), "bat", _BATTERY),
        *_part(found.get("hum"), "hum", _HUMIDITY),
        *_part(found.get("lux"), "lux", _LIGHT),
        *_temperature(found.get("tmp"), "tmp"),
    ]
    thermostats = found.get("thermostats")
    for index, one in enumerate(thermostats if isinstance(thermostats, list) else []):
        if isinstance(one, dict):
            readings += _temperature(one.get("tmp"), f"thermostats.{index}.tmp")
    return Decoded(readings, device=device)


def _part(found: Any, name: str, field: DeviceField) -> list[Reading]:
    """Return the reading of a number, or of an object with `value`, unless that is not valid."""
    if isinstance(found, dict):
        if found.get("is_valid") is False:
            return []
        found, name = found.get("value"), f"{name}.value"
    if field is _BATTERY and found == -1:  # on external power
        return []
    reading = device_reading(field, found, name)
    return [] if reading is None else [reading]


def _temperature(found: Any, name: str) -> list[Reading]:
    """Return the temperature of an object with tC, or with `value` and `units`."""
    if not isinstance(found, dict) or found.get("is_valid") is False:
        return []
    if found.get("tC") is not None:
        return _part(found["tC"], f"{name}.tC", DeviceField("temperature", "°C"))
    number = field_number(found.get("value"), f"{name}.value")
    units = found.get("units")
    if number is None or units not in ("C", "F"):
        return []
    return [measure("temperature", number, f"°{units}", f"{name}.value", unit_source=PAYLOAD)]


GEN1_EXAMPLES: Final = (
    DecoderExample(
        "shellies/shelly1pm-84CCA8/relay/0/power",
        b"34.18",
        (Reading("power", 34.18, "W", "relay/0/power", None, FROM_DECODER),),
    ),
    DecoderExample(
        "shellies/shelly1pm-84CCA8/relay/0/energy",
        b"60000",
        (Reading("energy", 1.0, "kWh", "relay/0/energy", None, FROM_DECODER),),
        note="in watt-minutes",
    ),
    DecoderExample(
        "shellies/shellyem-123456/emeter/0/total",
        b"1891.9",
        (Reading("energy", 1.8919, "kWh", "emeter/0/total", None, FROM_DECODER),),
        note="in watt-hours",
    ),
    DecoderExample(
        "shellies/shelly1-E0980694E3E7/ext_temperature_f/0",
        b"113.0",
        (Reading("temperature", 45.0, "°C", "ext_temperature_f/0", None, FROM_DECODER),),
    ),
    DecoderExample(
        "shellies/shellyht-746E93/sensor/temperature",
        b"21.5",
        (Reading("temperature", 21.5, "°C", "sensor/temperature", None, DEFAULT),),
    ),
    DecoderExample(
        "shellies/shellyht-746E93/sensor/temperature",
        b"71.6",
        (Reading("temperature", 22.0, "°C", "sensor/temperature", None, CONFIGURATION),),
        options={"temperature_unit": "F"},
        is_configured=True,
    ),
    DecoderExample("shellies/shellyht-746E93/sensor/temperature", b"71.6", reason="ambiguous"),
    DecoderExample("shellies/shelly1-E0980694E3E7/ext_temperature/0", b"999", reason="error value"),
    DecoderExample("shellies/shelly1-E0980694E3E7/relay/0", b"on", note="neither a reading nor an error"),
)


# -- generation 2 and later -------------------------------------------------------------------------------------------

_METER: Final = {
    "apower": DeviceField("power", "W"),
    "act_power": DeviceField("power", "W"),
    "aprtpower": DeviceField("apparent_power", "VA"),
    "aprt_power": DeviceField("apparent_power", "VA"),
    "voltage": DeviceField("voltage", "V"),
    "current": DeviceField("current", "A"),
    "pf": DeviceField("power_factor", ""),
    "freq": DeviceField("frequency", "Hz"),
    "aenergy.total": DeviceField("energy", "Wh"),
    "ret_aenergy.total": DeviceField("energy", "Wh"),
    "temperature.tC": DeviceField("temperature", "°C"),
}
_PHASES: Final = {
    f"{phase}_{name}": _METER[name]
    for phase in "abc"
    for name in ("act_power", "aprt_power", "voltage", "current", "pf", "freq")
}
_ENERGY: Final = DeviceField("energy", "Wh")
_COMPONENTS: Final = {
    **dict.fromkeys(("switch", "cover", "light", "rgb", "rgbw", "rgbcct", "cct", "pm1", "em1"), _METER),
    "em": {
        **_PHASES,
        "n_current": DeviceField("current", "A"),
        "total_current": DeviceField("current", "A"),
        "total_act_power": DeviceField("power", "W"),
        "total_aprt_power": DeviceField("apparent_power", "VA"),
    },
    "emdata": {
        "total_act": _ENERGY,
        "total_act_ret": _ENERGY,
        **{f"{phase}_total_act_energy": _ENERGY for phase in "abc"},
        **{f"{phase}_total_act_ret_energy": _ENERGY for phase in "abc"},
    },
    "em1data": {"total_act_energy": _ENERGY, "total_act_ret_energy": _ENERGY},
    "temperature": {"tC": DeviceField("temperature", "°C")},
    "humidity": {"rh": DeviceField("humidity", "%")},
    "illuminance": {"lux": DeviceField("light", "lx")},
    "voltmeter": {"voltage": DeviceField("voltage", "V")},
    "devicepower": {"battery.V": DeviceField("voltage", "V"), "battery.percent": DeviceField("battery", "%")},
    "thermostat": {
        "current_C": DeviceField("temperature", "°C"),
        "current_humidity": DeviceField("humidity", "%"),
    },
    "blutrv": {"current_C": DeviceField("temperature", "°C"), "battery": DeviceField("battery", "%")},
    "input": {"freq": DeviceField("frequency", "Hz")},
    "wifi": {"rssi": DeviceField("signal_strength", "dBm")},
}
"""By the type of a component: its fields, as paths."""
_OTHER: Final = frozenset(
    ("smoke", "flood", "presence", "presencezone", "script", "bthome", "bthomedevice", "bthomesensor", "knx", "ble",
     "cloud", "mqtt", "modbus", "ws", "sys", "eth", "matter", "plugs_ui", "ht_ui", "wall_display", "ui", "media",
     "boolean", "number", "text", "enum", "button", "group", "object", "cury", "occupancy", "matter", "zigbee", "dali",
     "plugpm_ui", "plugm_ui", "service", "schedule", "rpc")
)  # fmt: skip
"""Components without readings."""
_OWN_FIELDS: Final = {
    "apower": "switch", "a_act_power": "em", "act_power": "em1", "total_act": "emdata",
    "total_act_energy": "em1data", "tC": "temperature", "rh": "humidity", "lux": "illuminance",
}  # fmt: skip
"""By field that the state of one type of component has, or of types with the same fields: that type."""
_INSTANCE: Final = re.compile(r"([a-z_0-9]+):\d+\Z")
_ADDED: Final = re.compile(r"temperature:1\d\d\Z")
"""Sensors of the add-on: DS18B20 for the most part."""
_FAHRENHEIT: Final = DeviceField("temperature", "°F")
_METHODS: Final = frozenset(("NotifyStatus", "NotifyFullStatus"))


class ShellyGen2Decoder(Decoder):
    """Shelly devices of generation 2 and later: topics `DEVICE/events/rpc` and `DEVICE/status/COMPONENT`.

    Sources: shelly-api-docs.shelly.cloud/gen2: "Notifications", "MQTT", and the status of each component.

    - `NotifyStatus` and `NotifyFullStatus` have the time `ts` and the states of components (`switch:0`,
      `temperature:100`); a status topic has the state of one. `NotifyEvent` (buttons) is neither a reading nor an
      error.
    - An answer on `.../rpc` to Shelly.GetStatus has the same states in `result`. The answer for one component is
      recognised by its fields. Other answers are not read.
    - Temperatures are sent twice, as tC and tF: one reading is made, of tC. Energy totals are in Wh; `by_minute` is in
      mWh and repeats a part of the total: it is not read. A value that a sensor cannot measure is null.
    - `xvoltage`, `xpercent`, `xfreq` are computed by a formula of the user, without a unit, and the values of
      `bthomesensor` have none: they are not read.
    """

    name = "shelly_gen2"
    title = "Shelly, generation 2 and later: NotifyStatus and status topics"
    filters = ("*/events/rpc", "*/rpc", "*/status/+")
    forms = frozenset((OBJECT,))

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode a notification, an answer, or the state of a component."""
        found = message.json
        head, _, last = message.topic.rpartition("/")
        if last != "rpc":
            return _component(found, head.removesuffix("/status"), last)
        source = found.get("src")
        if not isinstance(source, str):
            return None
        if found.get("method") == "NotifyEvent":
            return Decoded([], device=source)
        states = found.get("params") if found.get("method") in _METHODS else found.get("result")
        if not isinstance(states, dict):
            return Decoded([], device=source) if "method" in found or "error" in found else None
        readings: list[Reading] = []
        extra: dict[str, Any] = {}
        if "id" in states and "method" not in found:  # the answer to GetStatus of one component
            kind = next((one for key, one in _OWN_FIELDS.items() if key in states), None)
            readings = [] if kind is None else _readings(kind, f"{kind}:{str(states['id'])[:20]}", states)
            return Decoded(readings, None, source, extra_of({"result": states}))
        for name, state in states.items():
            kind = _kind(name)
            if kind is not None and isinstance(state, dict):
                readings += _readings(kind, name, state)
            elif kind is None and name != "ts":
                extra[name] = state
        return Decoded(readings, time_of(states.get("ts"), "ts"), source, extra_of(extra))


def _kind(name: str) -> str | None:
    """Return the type of a component with readings; None for others."""
    found = _INSTANCE.match(name)
    kind = name if found is None else found[1]
    return kind if kind in _COMPONENTS else None


def _component(state: dict[str, Any], device: str, name: str) -> Decoded | None:
    """Decode a status topic; None if it is not one of these devices."""
    found = _INSTANCE.match(name)
    kind = name if found is None else found[1]
    if kind in _COMPONENTS and (found is not None or (kind == "wifi" and "sta_ip" in state)):
        if found is not None and "id" not in state:
            return None
        return Decoded(_readings(kind, name, state), device=device)
    if kind in _OTHER and (found is not None or kind in ("sys", "cloud", "mqtt", "ble", "ws", "eth", "modbus")):
        return Decoded([], device=device)
    return None


def _readings(kind: str, name: str, state: dict[str, Any]) -> list[Reading]:
    readings = []
    for path, field in _COMPONENTS[kind].items():
        value: Any = state
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None and path.endswith("tC"):
            path, field = path[:-1] + "F", _FAHRENHEIT
            holder = state.get("temperature") if "." in path else state
            value = holder.get("tF") if isinstance(holder, dict) else None
        reading = device_reading(field, value, f"{name}.{path}")
        if reading is not None:
            if _ADDED.match(name) and round(reading.value, 6) == POWER_ON:
                raise RejectedError("error value", f"{name}.{path} is that of a DS18B20 after power-on")
            readings.append(reading)
    return readings


GEN2_EXAMPLES: Final = (
    DecoderExample(
        "shellyplus1pm-a8032abe54dc/events/rpc",
        b'{"src":"shellyplus1pm-a8032abe54dc","dst":"shellyplus1pm-a8032abe54dc/events","method":"NotifyStatus",'
        b'"params":{"ts":1631186545.04,"switch:0":{"id":0,"apower":8.9,"voltage":237.5,"current":0.042,'
        b'"aenergy":{"total":6532.0,"by_minute":[45.199,47.141,88.397],"minute_ts":1631186544},'
        b'"temperature":{"tC":42.5,"tF":108.5}}}}',
        (
            Reading("power", 8.9, "W", "switch:0.apower", None, FROM_DECODER),
            Reading("voltage", 237.5, "V", "switch:0.voltage", None, FROM_DECODER),
            Reading("current", 0.042, "A", "switch:0.current", None, FROM_DECODER),
            Reading("energy", 6.532, "kWh", "switch:0.aenergy.total", None, FROM_DECODER),
            Reading("temperature", 42.5, "°C", "switch:0.temperature.tC", None, FROM_DECODER),
        ),
        time_us=1_631_186_545_040_000,
    ),
    DecoderExample(
        "shellyplusht-b8d61a8b17cc/status/temperature:0",
        b'{"id": 0, "tC": 19.8, "tF": 67.6}',
        (Reading("temperature", 19.8, "°C", "temperature:0.tC", None, FROM_DECODER),),
    ),
    DecoderExample(
        "shellyplusht-b8d61a8b17cc/status/devicepower:0",
        b'{"id": 0, "battery": {"V": 5.43, "percent": 71}, "external": {"present": false}}',
        (
            Reading("voltage", 5.43, "V", "devicepower:0.battery.V", None, FROM_DECODER),
            Reading("battery", 71.0, "%", "devicepower:0.battery.percent", None, FROM_DECODER),
        ),
    ),
    DecoderExample(
        "garage/status/temperature:100",
        b'{"id": 100, "tC": null, "tF": null, "errors": ["out_of_range"]}',
        note="a sensor that failed: no reading",
    ),
    DecoderExample(
        "shellyplusi4-a8032ab2b3c4/events/rpc",
        b'{"src":"shellyplusi4-a8032ab2b3c4","method":"NotifyEvent","params":{"ts":1631266595.44,'
        b'"events":[{"component":"input:0","id":0,"event":"single_push","ts":1631266595.44}]}}',
        note="neither a reading nor an error",
    ),
)


DECODERS: Final = {
    ShellyGen1Decoder: GEN1_EXAMPLES,
    ShellyGen2Decoder: GEN2_EXAMPLES,
}
