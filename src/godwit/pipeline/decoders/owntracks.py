"""OwnTracks: locations of phones and trackers as JSON objects with `_type`, on `owntracks/USER/DEVICE`.

Source: owntracks.org/booklet/tech/json. The units are fixed: lat, lon and cog in degrees, acc, alt, vac and rad in
meters, batt in percent, vel in km/h, p in kPa; ubatt and uext of Queclink trackers in V, odometer in km.

- `location` is the position of the device, `transition` the position at which it entered or left a region, `steps` the
  steps in a period (-1: not supported). The time is `tst`, in seconds.
- `waypoint` is a region that the user defined: its center and radius are read under the name `waypoint`.
- All other types are neither readings nor errors, but for `encrypted`, which is rejected.
"""

from __future__ import annotations

from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, time_of
from godwit.pipeline.decoders.fields import DeviceField, device_reading
from godwit.pipeline.decoders.results import DECODER as FROM_DECODER
from godwit.pipeline.decoders.results import OBJECT, Decoded, Reading, Rejected, RejectedError

_POSITION: Final = {
    "lat": DeviceField("latitude", "°"),
    "lon": DeviceField("longitude", "°"),
    "acc": DeviceField("accuracy", "m"),
}
_FIELDS: Final = {
    "location": {
        **_POSITION,
        "alt": DeviceField("altitude", "m"),
        "vac": DeviceField("vertical_accuracy", "m"),
        "vel": DeviceField("speed", "km/h"),
        "cog": DeviceField("direction", "°"),
        "batt": DeviceField("battery", "%"),
        "p": DeviceField("pressure", "kPa"),
        "ubatt": DeviceField("voltage", "V"),
        "uext": DeviceField("voltage", "V"),
        "odometer": DeviceField("distance", "km"),
    },
    "transition": _POSITION,
    "waypoint": {**_POSITION, "rad": DeviceField("radius", "m")},
    "steps": {"steps": DeviceField("steps", "")},
}
"""By type: its fields."""
_OTHER: Final = frozenset(
    ("beacon", "card", "cmd", "configuration", "lwt", "request", "status", "waypoints", "dump", "msg", "locations")
)
_TOPIC: Final = "owntracks"


class OwnTracksDecoder(Decoder):
    """Locations of OwnTracks."""

    name = "owntracks"
    title = "OwnTracks: location, transition, waypoint and steps"
    filters = (f"{_TOPIC}/#", "#")
    forms = frozenset((OBJECT,))
    keys = (frozenset(("_type",)),)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        """Decode a message by its `_type`."""
        found = message.json
        kind = found["_type"]
        levels = message.topic.split("/")
        is_topic = levels[0] == _TOPIC
        if not isinstance(kind, str) or not (is_topic or "tst" in found):
            return None
        device = "/".join(levels[1:3]) if is_topic and len(levels) > 2 else None
        if kind not in _FIELDS:
            if kind == "encrypted":
                raise RejectedError("no quantity", "the message is encrypted: configure no encryptionKey in the app")
            return Decoded([], device=device) if kind in _OTHER else None
        return _decoded(found, kind, device)


def _decoded(found: dict[str, Any], kind: str, device: str | None) -> Decoded:
    readings: list[Reading] = []
    extra: dict[str, Any] = {}
    fields = _FIELDS[kind]
    for name, value in found.items():
        field = fields.get(name)
        if field is None or (name == "steps" and value == -1) or (name == "vel" and value == -1):
            if name != "tst":
                extra[name] = value
            continue
        reading = device_reading(field, value, f"waypoint.{name}" if kind == "waypoint" else name)
        if reading is not None:
            readings.append(reading)
    return Decoded(readings, time_of(found.get("tst"), "tst"), device, extra_of(extra))


EXAMPLES: Final = (
    DecoderExample(
        "owntracks/jane/phone",
        b'{"_type":"location","acc":15,"alt":72,"batt":87,"conn":"w","lat":52.5163,"lon":13.3777,"t":"u","tid":"jp",'
        b'"tst":1763208000,"vel":36,"p":101.325}',
        (
            Reading("accuracy", 15.0, "m", "acc", None, FROM_DECODER),
            Reading("altitude", 72.0, "m", "alt", None, FROM_DECODER),
            Reading("battery", 87.0, "%", "batt", None, FROM_DECODER),
            Reading("latitude", 52.5163, "°", "lat", None, FROM_DECODER),
            Reading("longitude", 13.3777, "°", "lon", None, FROM_DECODER),
            Reading("speed", 10.0, "m/s", "vel", None, FROM_DECODER),
            Reading("pressure", 1013.25, "hPa", "p", None, FROM_DECODER),
        ),
        time_us=1_763_208_000_000_000,
    ),
    DecoderExample(
        "owntracks/jane/phone/step",
        b'{"_type":"steps","tst":1763208000,"steps":1234,"from":1763164800,"to":1763208000}',
        (Reading("steps", 1234.0, "", "steps", None, FROM_DECODER),),
        time_us=1_763_208_000_000_000,
    ),
    DecoderExample("owntracks/jane/phone", b'{"_type":"lwt","tst":1763208000}', note="neither a reading nor an error"),
    DecoderExample("owntracks/jane/phone", b'{"_type":"encrypted","data":"SGVsbG8="}', reason="no quantity"),
)

DECODERS: Final = {OwnTracksDecoder: EXAMPLES}
