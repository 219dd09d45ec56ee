"""CloudEvents 1.0, structured mode in JSON: the data is decoded as a message of its own, of the same topic.

The time of the event is used if the data has none, its source names the device if the data does not, and the other
attributes are kept in `extra`.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final

from godwit.pipeline.decoders.base import Decoder, DecoderContext, DecoderExample, DecoderMessage
from godwit.pipeline.decoders.content import extra_of, time_of
from godwit.pipeline.decoders.results import DEFAULT, OBJECT, Decoded, Reading, Rejected

_ATTRIBUTES: Final = frozenset(("specversion", "type", "source", "id"))
MAX_DEVICE: Final = 256


class CloudEventsDecoder(Decoder):
    """Reads events and hands their data to the decoder of its format."""

    name = "cloudevents"
    title = "CloudEvents in JSON"
    forms = frozenset((OBJECT,))
    keys = (_ATTRIBUTES,)

    def decode(self, message: DecoderMessage, context: DecoderContext) -> Decoded | Rejected | None:
        event = message.json
        if type(event) is not dict or not _ATTRIBUTES.issubset(event) or not isinstance(event["specversion"], str):
            return None
        payload = _data(event)
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


def _data(event: dict[str, Any]) -> bytes | Rejected:
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


DECODER: Final = CloudEventsDecoder
EXAMPLES: Final = (
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
