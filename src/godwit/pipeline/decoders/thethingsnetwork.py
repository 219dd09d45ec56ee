"""The Things Stack (The Things Network v3): uplinks as JSON objects, on `v3/APPLICATION@TENANT/devices/DEVICE/up`.

Sources: thethingsindustries.com/docs, "Data Formats" and "MQTT Server"; the schema of normalized payloads in
TheThingsNetwork/lorawan-devices (lib/payload.json).

- `normalized_payload` has fixed names and units: it is read if it is there. A measurement in it may have its own time.
- Otherwise `decoded_payload` is read: it is made by the payload formatter of the device, and its fields are those of
  JSON (see nested JSON). Without a formatter there is only `frm_payload`, whose bytes mean nothing here: rejected.
- The time is `received_at` of the uplink, at the network server. Metadata of gateways and radio is not read.
- A solved location is read. Joins, downlinks and service data are neither readings nor errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, time_of
from godwit.pipeline.decoders.fields import DeviceField, device_reading
from godwit.pipeline.decoders.json_fields import OPTIONS, JsonFields
from godwit.pipeline.decoders.results import DECODER as FROM_DECODER
from godwit.pipeline.decoders.results import DEFAULT, OBJECT, Decoded, Reading, Rejected, RejectedError

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
_EVENTS: Final = (
    "join_accept", "downlink_ack", "downlink_nack", "downlink_queued", "downlink_sent", "downlink_failed",
    "downlink_queue_invalidated", "service_data",
)  # fmt: skip


class TheThingsNetworkDecoder(Decoder):
    """Uplinks of The Things Stack."""

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
        return Decoded([], device=device) if any(event in found for event in _EVENTS) else None

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


DECODER = TheThingsNetworkDecoder

EXAMPLES: Final = (
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
