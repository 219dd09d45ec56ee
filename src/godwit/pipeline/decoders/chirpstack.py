"""ChirpStack v4: events as JSON objects, on `application/APPLICATION/device/DEVEUI/event/EVENT`.

Sources: chirpstack.io/docs, "Event types" and "MQTT"; the Cayenne LPP codec of ChirpStack.

- `up` with `object`: the fields that the codec of the device profile makes, read as JSON (see nested JSON). Without a
  codec there is only `data`, whose bytes mean nothing here: rejected. The Cayenne LPP codec has fixed names and units:
  `{"temperatureSensor": {"1": 21.5}}`.
- `status`: the battery level in percent, unless the device has external power or does not know it; the margin in dB.
- `location`: the position. The time is `time` in all events.
- `join`, `ack`, `txack`, `log`, `integration` and commands are neither readings nor errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import time_of
from godwit.pipeline.decoders.fields import DeviceField, device_reading
from godwit.pipeline.decoders.json_fields import OPTIONS, JsonFields
from godwit.pipeline.decoders.results import DECODER as FROM_DECODER
from godwit.pipeline.decoders.results import DEFAULT, OBJECT, Decoded, Reading, Rejected, RejectedError

_CAYENNE: Final = {
    "temperatureSensor": DeviceField("temperature", "°C"),
    "humiditySensor": DeviceField("humidity", "%"),
    "barometer": DeviceField("pressure", "hPa"),
    "illuminanceSensor": DeviceField("light", "lx"),
}
"""By the type of a channel: those with a unit."""
_OTHER_CAYENNE: Final = frozenset(
    ("digitalInput", "digitalOutput", "analogInput", "analogOutput", "presenceSensor", "accelerometer", "gyrometer",
     "gpsLocation")
)  # fmt: skip
_LOCATION: Final = {
    "latitude": DeviceField("latitude", "°"),
    "longitude": DeviceField("longitude", "°"),
    "altitude": DeviceField("altitude", "m"),
    "accuracy": DeviceField("accuracy", "m"),
}
_EVENTS: Final = frozenset(("join", "ack", "txack", "log", "integration"))


class ChirpStackDecoder(Decoder):
    """Events of ChirpStack v4."""

    name = "chirpstack"
    title = "ChirpStack v4: uplink, status and location events"
    filters = ("application/+/device/+/#", "#")
    forms = frozenset((OBJECT,))
    keys = (frozenset(("deviceInfo",)), frozenset(("devEui", "confirmed")))
    option_names = OPTIONS

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._fields = JsonFields(self.options)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode an event by its topic, or on other topics by its fields."""
        found = message.json
        info = found.get("deviceInfo")
        levels = message.topic.split("/")
        if "command" in levels[-2:-1] and levels[0] == "application":
            return Decoded([])
        if not isinstance(info, dict) or not isinstance(info.get("devEui"), str):
            return None
        event = levels[-1] if levels[-2:-1] == ["event"] else _event(found)
        device, time_us = info["devEui"][:256], time_of(found.get("time"), "time")
        if event == "up":
            return self._uplink(found.get("object"), message.topic)._replace(time_us=time_us, device=device)
        if event == "status":
            return Decoded(_status(found), time_us, device)
        if event == "location":
            return Decoded(_location(found.get("location")), time_us, device)
        return Decoded([], device=device) if event in _EVENTS else None

    def _uplink(self, item: Any, topic: str) -> Decoded:
        if not isinstance(item, dict) or not item:
            raise RejectedError(
                "no quantity", "the uplink has no object: set a codec in the device profile in ChirpStack"
            )
        if all(isinstance(item.get(name), dict) for name in item) and item.keys() <= {*_CAYENNE, *_OTHER_CAYENNE}:
            return Decoded(_cayenne(item))
        return self._fields.read_nested(item, topic)


def _event(found: dict[str, Any]) -> str:
    """Return the type of an event that is not in the topic."""
    if "fPort" in found or "rxInfo" in found:
        return "up"
    if "margin" in found:
        return "status"
    return "location" if "location" in found else ""


def _cayenne(item: dict[str, Any]) -> list[Reading]:
    readings = []
    for kind, field in _CAYENNE.items():
        for channel, value in item.get(kind, {}).items():
            reading = device_reading(field, value, f"{kind}.{channel}")
            if reading is not None:
                readings.append(reading)
    return readings


def _status(found: dict[str, Any]) -> list[Reading]:
    readings = [device_reading(DeviceField("margin", "dB"), found.get("margin"), "margin")]
    if not found.get("externalPowerSource") and not found.get("batteryLevelUnavailable"):
        readings.append(device_reading(DeviceField("battery", "%"), found.get("batteryLevel"), "batteryLevel"))
    return [one for one in readings if one is not None]


def _location(found: Any) -> list[Reading]:
    fields = found if isinstance(found, dict) else {}
    readings = [device_reading(field, fields.get(name), name) for name, field in _LOCATION.items()]
    return [one for one in readings if one is not None]


DECODER = ChirpStackDecoder

_INFO: Final = (
    b'"time":"2022-07-18T09:34:15.775023242+00:00","deviceInfo":{"deviceName":"d","devEui":"0101010101010101"}'
)
_TIME_US: Final = 1_658_136_855_775_023
EXAMPLES: Final = (
    DecoderExample(
        "application/17c8/device/0101010101010101/event/up",
        b"{" + _INFO + b',"fPort":1,"data":"qg==","object":{"temperature":21.5,"outdoor":{"temperature":8.5}},'
        b'"rxInfo":[{"rssi":-36}]}',
        (
            Reading("temperature", 21.5, "°C", "", None, DEFAULT),
            Reading("temperature", 8.5, "°C", "outdoor.temperature", None, DEFAULT),
        ),
        time_us=_TIME_US,
    ),
    DecoderExample(
        "application/17c8/device/0101010101010101/event/up",
        b"{" + _INFO + b',"fPort":1,"object":{"temperatureSensor":{"1":21.5,"2":8.5}}}',
        (
            Reading("temperature", 21.5, "°C", "temperatureSensor.1", None, FROM_DECODER),
            Reading("temperature", 8.5, "°C", "temperatureSensor.2", None, FROM_DECODER),
        ),
        time_us=_TIME_US,
        note="Cayenne LPP",
    ),
    DecoderExample(
        "application/17c8/device/0101010101010101/event/status",
        b"{" + _INFO + b',"margin":10,"batteryLevel":88.3}',
        (
            Reading("margin", 10.0, "dB", "margin", None, FROM_DECODER),
            Reading("battery", 88.3, "%", "batteryLevel", None, FROM_DECODER),
        ),
        time_us=_TIME_US,
    ),
    DecoderExample(
        "application/17c8/device/0101010101010101/event/up",
        b"{" + _INFO + b',"fPort":1,"data":"qg=="}',
        reason="no quantity",
    ),
    DecoderExample(
        "application/17c8/device/0101010101010101/event/join",
        b"{" + _INFO + b',"devAddr":"00189440"}',
        note="neither a reading nor an error",
    ),
)
