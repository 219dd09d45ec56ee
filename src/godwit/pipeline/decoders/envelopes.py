"""Messages that carry the data of a device, with their own time and device: CloudEvents and networks of LoRaWAN."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, time_of
from godwit.pipeline.decoders.fields import DeviceField, device_reading
from godwit.pipeline.decoders.json_fields import OPTIONS, JsonFields
from godwit.pipeline.decoders.results import DECODER as FROM_DECODER
from godwit.pipeline.decoders.results import DEFAULT, OBJECT, Decoded, Reading, Rejected, RejectedError
from godwit.pipeline.quantities import is_setting

# -- CloudEvents ------------------------------------------------------------------------------------------------------

_ATTRIBUTES: Final = frozenset(("specversion", "type", "source", "id"))
MAX_DEVICE: Final = 256


class CloudEventsDecoder(Decoder):
    """CloudEvents 1.0, structured mode in JSON: the data is decoded as a message of its own, of the same topic.

    The time of the event is used if the data has none, its source names the device if the data does not, and the other
    attributes are kept in `extra`.
    """

    name = "cloudevents"
    title = "CloudEvents in JSON"
    forms = frozenset((OBJECT,))
    keys = (_ATTRIBUTES,)
    content_types = ("application/cloudevents+json",)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        event = message.json
        if type(event) is not dict or not _ATTRIBUTES.issubset(event) or not isinstance(event["specversion"], str):
            return None
        if isinstance(kind := event["type"], str) and is_setting(kind):
            return Rejected("no quantity", f"the type of the event is {kind[:60]!r}: not a measurement")
        payload = _event_data(event)
        if isinstance(payload, Rejected):
            return payload
        content_type = event.get("datacontenttype")
        inner = DecoderMessage(
            message.topic,
            payload,
            content_type if isinstance(content_type, str) else None,
            message.received_us,
            message.broker,
            message.offset,
        )
        found = context.decode_inner(inner)
        if isinstance(found, Rejected):
            return found
        attributes = {name: value for name, value in event.items() if name not in ("data", "data_base64", "time")}
        if found.extra is not None:
            attributes["data"] = json.loads(found.extra)
        time_us = found.time_us
        if time_us is None and "time" in event and (time_us := time_of(event["time"])) is None:
            attributes["time"] = event["time"]
        source = event["source"]
        device = found.device or (source[:MAX_DEVICE] if isinstance(source, str) else None)
        return Decoded(found.readings, time_us, device, extra_of(attributes))


def _event_data(event: dict[str, Any]) -> bytes | Rejected:
    """Return the data of an event as the payload of a message."""
    if "data_base64" in event:
        try:
            return base64.b64decode(event["data_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            return Rejected("bad payload", "data_base64 is not in base64")
    if "data" not in event:
        return Rejected("empty", "the event has no data")
    data = event["data"]
    return data.encode() if isinstance(data, str) else json.dumps(data).encode()


CLOUDEVENTS_EXAMPLES: Final = (
    DecoderExample(
        "events/room",
        b'{"specversion": "1.0", "type": "reading", "source": "/rooms/7", "id": "a1", "time": "2026-11-15T12:00:00Z", '
        b'"data": {"temperature": 21.5}}',
        (Reading("temperature", 21.5, "°C", unit_source=DEFAULT),),
        time_us=1_794_744_000_000_000,
    ),
    DecoderExample(
        "events/room",
        b'{"specversion": "1.0", "type": "reading", "source": "/rooms/7", "id": "a1", "data": {"state": "open"}}',
        reason="no quantity",
    ),
)


# -- The Things Stack -------------------------------------------------------------------------------------------------

_NORMALIZED: Final = {
    "battery": DeviceField("voltage", "V"),
    "soil.depth": DeviceField("distance", "cm"),
    "soil.moisture": DeviceField("moisture", "%"),
    "soil.temperature": DeviceField("temperature", "°C"),
    "soil.ec": DeviceField("conductivity", "dS/m"),
    "soil.pH": DeviceField("ph", "pH"),
    "soil.n": DeviceField("nitrogen", "ppm"),
    "soil.p": DeviceField("phosphorus", "ppm"),
    "soil.k": DeviceField("potassium", "ppm"),
    "air.temperature": DeviceField("temperature", "°C"),
    "air.relativeHumidity": DeviceField("humidity", "%"),
    "air.pressure": DeviceField("pressure", "hPa"),
    "air.co2": DeviceField("co2", "ppm"),
    "air.lightIntensity": DeviceField("light", "lx"),
    "wind.speed": DeviceField("wind_speed", "m/s"),
    "wind.direction": DeviceField("wind_direction", "°"),
    "rain.intensity": DeviceField("precipitation_rate", "mm/h"),
    "rain.cumulative": DeviceField("precipitation", "mm"),
    "water.temperature.current": DeviceField("temperature", "°C"),
    "metering.water.total": DeviceField("volume", "L"),
    "action.motion.count": DeviceField("motion_count", ""),
    "position.latitude": DeviceField("latitude", "°"),
    "position.longitude": DeviceField("longitude", "°"),
}
"""By path in a normalized payload."""
_LOCATION: Final = {
    "latitude": DeviceField("latitude", "°"),
    "longitude": DeviceField("longitude", "°"),
    "altitude": DeviceField("altitude", "m"),
    "accuracy": DeviceField("accuracy", "m"),
}
_THINGS_EVENTS: Final = (
    "join_accept", "downlink_ack", "downlink_nack", "downlink_queued", "downlink_sent", "downlink_failed",
    "downlink_queue_invalidated", "service_data",
)  # fmt: skip


class TheThingsNetworkDecoder(Decoder):
    """The Things Stack (The Things Network v3): uplinks as JSON objects, on `v3/APPLICATION@TENANT/devices/DEVICE/up`.

    Sources: thethingsindustries.com/docs, "Data Formats" and "MQTT Server"; the schema of normalized payloads in
    TheThingsNetwork/lorawan-devices (lib/payload.json).

    - `normalized_payload` has fixed names and units: it is read if it is there. A measurement in it may have its own
      time.
    - Otherwise `decoded_payload` is read: it is made by the payload formatter of the device, and its fields are those
      of JSON (see nested JSON). Without a formatter there is only `frm_payload`, whose bytes mean nothing here:
      rejected.
    - The time is `received_at` of the uplink, at the network server. Metadata of gateways and radio is not read.
    - A solved location is read. Joins, downlinks and service data are neither readings nor errors.
    """

    name = "thethingsnetwork"
    title = "The Things Network (The Things Stack v3): uplinks"
    filters = ("v3/+/devices/#", "#")
    forms = frozenset((OBJECT,))
    keys = (frozenset(("end_device_ids",)), frozenset(("downlinks",)))
    option_names = OPTIONS

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._fields = JsonFields(self.options)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode an uplink."""
        found = message.json
        ids = found.get("end_device_ids")
        if not isinstance(ids, dict):
            is_command = message.topic.startswith("v3/") and message.topic.endswith(("/down/push", "/down/replace"))
            return Decoded([]) if is_command else None
        device = str(ids["device_id"])[:256] if isinstance(ids.get("device_id"), str) else None
        received = found.get("received_at")
        if isinstance(found.get("uplink_message"), dict):
            return self._uplink(found["uplink_message"], device, received, message.topic)
        if isinstance(found.get("uplink_normalized"), dict):
            uplink = found["uplink_normalized"]
            return _normalized([uplink.get("normalized_payload")], device, _time(uplink, received))
        if isinstance(found.get("location_solved"), dict):
            return _solved(found["location_solved"].get("location"), device, received)
        return Decoded([], device=device) if any(event in found for event in _THINGS_EVENTS) else None

    def _uplink(self, uplink: dict[str, Any], device: str | None, received: Any, topic: str) -> Decoded:
        time_us = _time(uplink, received)
        normalized = uplink.get("normalized_payload")
        if isinstance(normalized, list) and normalized:
            return _normalized(normalized, device, time_us)
        payload = uplink.get("decoded_payload")
        if not isinstance(payload, dict) or not payload:
            raise RejectedError(
                "no quantity",
                "the uplink has no decoded_payload: set a payload formatter for the device in The Things Stack",
            )
        found = self._fields.read_nested(payload, topic)
        return found._replace(time_us=time_us if found.time_us is None else found.time_us, device=device)


def _time(uplink: dict[str, Any], received: Any) -> int | None:
    time_us = time_of(uplink.get("received_at"), "received_at")
    return time_us if time_us is not None else time_of(received, "received_at")


def _normalized(measurements: list[Any], device: str | None, time_us: int | None) -> Decoded:
    readings: list[Reading] = []
    extra: dict[str, Any] = {}
    for index, one in enumerate(measurements):
        if not isinstance(one, dict):
            raise RejectedError("bad payload", "a normalized payload is a list of objects")
        own_us = time_of(one.get("time"), "time")
        prefix = f"{index}." if len(measurements) > 1 else ""
        _add(one, "", prefix, own_us, readings, extra)
    return Decoded(readings, time_us, device, extra_of(extra))


def _add(
    item: dict[str, Any], path: str, prefix: str, time_us: int | None, readings: list[Reading], extra: dict[str, Any]
) -> None:
    for key, value in item.items():
        place = f"{path}{key}"
        field = _NORMALIZED.get(place)
        if isinstance(value, dict) and field is None and place.count(".") < 3:
            _add(value, f"{place}.", prefix, time_us, readings, extra)
        elif field is not None:
            reading = device_reading(field, value, prefix + place, time_us)
            if reading is not None:
                readings.append(reading)
        elif place != "time":
            extra[prefix + place] = value


def _solved(location: Any, device: str | None, received: Any) -> Decoded:
    found = location if isinstance(location, dict) else {}
    readings = [device_reading(field, found.get(name), name) for name, field in _LOCATION.items()]
    return Decoded([one for one in readings if one is not None], time_of(received, "received_at"), device)


THINGS_EXAMPLES: Final = (
    DecoderExample(
        "v3/app1@tenant1/devices/dev1/up",
        b'{"end_device_ids":{"device_id":"dev1","application_ids":{"application_id":"app1"}},'
        b'"received_at":"2020-02-12T15:15:46.014773143Z","uplink_message":{"f_port":1,"frm_payload":"gkHe",'
        b'"decoded_payload":{"temperature":21.5,"relative_humidity":40},"rx_metadata":[{"rssi":-35,"snr":5}],'
        b'"received_at":"2020-02-12T15:15:45.789585559Z"}}',
        (
            Reading("temperature", 21.5, "°C", "", None, DEFAULT),
            Reading("humidity", 40.0, "%", "", None, DEFAULT),
        ),
        time_us=1_581_520_545_789_585,
        note="the fields of the payload formatter",
    ),
    DecoderExample(
        "v3/app1@tenant1/devices/dev1/up",
        b'{"end_device_ids":{"device_id":"dev1"},"received_at":"2020-02-12T15:15:46Z","uplink_message":{'
        b'"decoded_payload":{"t":215},"normalized_payload":[{"air":{"temperature":21.5,"relativeHumidity":40.5}}]}}',
        (
            Reading("temperature", 21.5, "°C", "air.temperature", None, FROM_DECODER),
            Reading("humidity", 40.5, "%", "air.relativeHumidity", None, FROM_DECODER),
        ),
        time_us=1_581_520_546_000_000,
        note="a normalized payload fixes names and units",
    ),
    DecoderExample(
        "v3/app1@tenant1/devices/dev1/up",
        b'{"end_device_ids":{"device_id":"dev1"},"uplink_message":{"f_port":1,"frm_payload":"gkHe"}}',
        reason="no quantity",
    ),
    DecoderExample(
        "v3/app1@tenant1/devices/dev1/join",
        b'{"end_device_ids":{"device_id":"dev1"},"join_accept":{"session_key_id":"AXBSH1Pk6Z0G166RlH16CQ=="}}',
        note="neither a reading nor an error",
    ),
)


# -- ChirpStack -------------------------------------------------------------------------------------------------------

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
_CHIRPSTACK_EVENTS: Final = frozenset(("join", "ack", "txack", "log", "integration"))


class ChirpStackDecoder(Decoder):
    """ChirpStack v4: events as JSON objects, on `application/APPLICATION/device/DEVEUI/event/EVENT`.

    Sources: chirpstack.io/docs, "Event types" and "MQTT"; the Cayenne LPP codec of ChirpStack.

    - `up` with `object`: the fields that the codec of the device profile makes, read as JSON (see nested JSON). Without
      a codec there is only `data`, whose bytes mean nothing here: rejected. The Cayenne LPP codec has fixed names and
      units: `{"temperatureSensor": {"1": 21.5}}`.
    - `status`: the battery level in percent, unless the device has external power or does not know it; the margin in
      dB.
    - `location`: the position. The time is `time` in all events.
    - `join`, `ack`, `txack`, `log`, `integration` and commands are neither readings nor errors.
    """

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
        if not isinstance(info, dict):
            return None
        device = info.get("devEui", levels[3] if levels[0] == "application" and levels[4:5] == ["event"] else None)
        if not isinstance(device, str):
            return None
        event = levels[-1] if levels[-2:-1] == ["event"] else _event(found)
        device, time_us = device[:MAX_DEVICE], time_of(found.get("time"), "time")
        if event == "up":
            return self._uplink(found.get("object"), message.topic)._replace(time_us=time_us, device=device)
        if event == "status":
            return Decoded(_status(found), time_us, device)
        if event == "location":
            return Decoded(_location(found.get("location")), time_us, device)
        return Decoded([], device=device) if event in _CHIRPSTACK_EVENTS else None

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


_INFO: Final = (
    b'"time":"2022-07-18T09:34:15.775023242+00:00","deviceInfo":{"deviceName":"d","devEui":"0101010101010101"}'
)
_TIME_US: Final = 1_658_136_855_775_023
CHIRPSTACK_EXAMPLES: Final = (
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


DECODERS: Final = {
    CloudEventsDecoder: CLOUDEVENTS_EXAMPLES,
    TheThingsNetworkDecoder: THINGS_EXAMPLES,
    ChirpStackDecoder: CHIRPSTACK_EXAMPLES,
}
