"""Shelly devices of generation 2 and later: notifications on `DEVICE/events/rpc`, states on `DEVICE/status/COMPONENT`.

Sources: shelly-api-docs.shelly.cloud/gen2: "Notifications", "MQTT", and the status of each component.

- `NotifyStatus` and `NotifyFullStatus` have the time `ts` and the states of components (`switch:0`, `temperature:100`);
  a status topic has the state of one. `NotifyEvent` (buttons) is neither a reading nor an error.
- An answer on `.../rpc` to Shelly.GetStatus has the same states in `result`. Answers to other methods do not say which
  component they describe, and are not read.
- Temperatures are sent twice, as tC and tF: one reading is made, of tC. Energy totals are in Wh; `by_minute` is in mWh
  and repeats a part of the total: it is not read. A value that a sensor cannot measure is null.
- `xvoltage`, `xpercent`, `xfreq` are computed by a formula of the user, without a unit, and the values of
  `bthomesensor` have none: they are not read.
"""

from __future__ import annotations

import re
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, time_of
from godwit.pipeline.decoders.fields import DeviceField, device_reading
from godwit.pipeline.decoders.results import DECODER as FROM_DECODER
from godwit.pipeline.decoders.results import OBJECT, Decoded, Reading, Rejected

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
_INSTANCE: Final = re.compile(r"([a-z_0-9]+):\d+\Z")
_FAHRENHEIT: Final = DeviceField("temperature", "°F")
_METHODS: Final = frozenset(("NotifyStatus", "NotifyFullStatus"))


class ShellyGen2Decoder(Decoder):
    """Shelly devices of generation 2 and later."""

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
            readings.append(reading)
    return readings


DECODER = ShellyGen2Decoder

EXAMPLES: Final = (
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
