"""The results of decoders: readings, or the reason why there are none."""

from __future__ import annotations

from typing import Final, NamedTuple

PAYLOAD: Final = "payload"
DECODER: Final = "decoder"
DEFINITION: Final = "definition"
CONFIGURATION: Final = "configuration"
DEFAULT: Final = "default"
UNIT_SOURCES: Final = (PAYLOAD, DECODER, DEFINITION, CONFIGURATION, DEFAULT)
"""Where the unit of a reading comes from: the payload, the definition of the format, an earlier message (a birth or a
discovery message), the configuration, or the documented default of the quantity because none is stated."""

OBJECT: Final = "object"
ARRAY: Final = "array"
TEXT: Final = "text"
WORDS: Final = "words"
BINARY: Final = "binary"
FORMS: Final = frozenset((OBJECT, ARRAY, TEXT, BINARY))
"""What a payload looks like: a JSON object, a JSON array, other text (WORDS: text but for plain numbers), or bytes that
are not text."""

REASONS: Final = {
    "empty": "the payload has no bytes, or blanks only",
    "too long": "the payload is longer than a payload of readings can be",
    "not text": "the bytes are not text in UTF-8 (or UTF-16 with a byte order mark), and no decoder reads them",
    "bad JSON": "it begins like JSON and is not: truncated, a duplicate key, NaN",
    "nested too deeply": "JSON, CBOR or MessagePack with too many levels",
    "too many fields": "more fields or readings than one message may have",
    "no number": "text that is not a number with an optional unit",
    "no quantity": "none of the fields is known, or the quantity of a number is ambiguous",
    "ambiguous": "two meanings are possible, and nothing in the message settles it",
    "type changed": "a field that should be a number has another type",
    "unit does not fit": "the unit is of another dimension than the quantity",
    "not finite": "NaN or infinity",
    "out of bounds": "no sensor of this quantity measures such a value",
    "error value": "a value by which a sensor reports that it failed",
    "bad time": "the time is unreadable",
    "time in the far past": "the clock of the device was never set",
    "time in the future": "the time is more than five minutes after the message was received",
    "definition missing": "the message refers to an earlier one (a birth, a discovery message) that is not known",
    "template not supported": "the discovery message computes the value by a template other than a path",
    "wrong format": "the decoder that is configured for the topic does not read this payload",
    "bad payload": "the format is recognised, and the payload breaks its rules",
    "decoder failed": "the decoder raised an exception",
}
"""The reasons for quarantine, to count by, with their meanings."""


class Reading(NamedTuple):
    """One number."""

    quantity: str
    """Canonical name of the quantity (see godwit.pipeline.quantities), or the metric's own name in protocols with named
    metrics."""
    value: float
    unit: str
    """The canonical unit of the quantity; an unknown unit as written; or ""."""
    name: str = ""
    """Which sensor or field within the message; "" for the only one."""
    time_us: int | None = None
    """The time of this reading, if it has its own."""
    unit_source: str = PAYLOAD
    """One of UNIT_SOURCES."""


class Decoded(NamedTuple):
    """The content of a message. Without readings it is a definition or a status: neither a reading nor an error."""

    readings: list[Reading]
    time_us: int | None = None
    device: str | None = None
    extra: str | None = None
    """JSON of the other fields."""


class Rejected(NamedTuple):
    """The reason why a message has no readings."""

    reason: str
    """One of REASONS."""
    detail: str
    """The finding, and how to teach it."""


class RejectedError(Exception):
    """Reject the message from within a decoder or its helpers."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.rejection = Rejected(reason, detail)
