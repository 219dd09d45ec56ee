"""Shapes of payloads: the skeleton of a payload is its bytes with each number and each time replaced by a mark.

Payloads of one topic and one skeleton differ in their numbers and times only, and a decoder can state once how all of
them are read: which number is which reading, within which bounds, which one is the time. Such a statement is a Shape.
It holds for numbers within its bounds; a message with another number is decoded by itself.

A skeleton is exact: in a flat JSON object each run of digits, points and minus signs outside strings becomes one mark,
and each string that is a time of ISO 8601 one of two others, with a zone or without. So two payloads of one skeleton
have the same keys, texts and constants at the same places. godwit.pipeline.decoders.skeletons finds them.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MARK: Final = b"\xff"
"""Replaces a number in a skeleton."""
TIME_MARK: Final = b"\xfe"
"""Replaces the text of a time with a zone."""
LOCAL_TIME_MARK: Final = b"\xfd"
"""Replaces the text of a time without a zone. These bytes are not in any text of UTF-8."""
MAX_WHOLE: Final = 2.0**53
"""Whole numbers below this are exact as double."""
_DATE: Final = r"20\d\d-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
"""All dates from 2000 to 2099 but the last day of February in leap years."""
_CLOCK: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
_ZONE: Final = r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME: Final = f"{_DATE}[T ]{_CLOCK}{_ZONE}?"
TIME: Final = re.compile(_TIME, re.ASCII)
ZONE: Final = re.compile(rf".*{_ZONE}", re.ASCII)


class Slot:
    """The place of a number in a payload: takes the place of the number in the content that a decoder is given."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class TimeSlot:
    """The place of a text that is a time: takes the place of the text, in the same way."""

    __slots__ = ("has_zone", "index")

    def __init__(self, index: int, has_zone: bool) -> None:
        self.index = index
        self.has_zone = has_zone


class ShapeField(NamedTuple):
    """A reading of each message of a shape, if the number is within the bounds.

    Its value is `(number * factor + offset) / divisor`.
    """

    slot: int
    quantity: str
    unit: str
    name: str
    unit_source: str
    low: float
    high: float
    errors: frozenset[float] = frozenset()
    """Numbers and values that are not read here, nor are those close to them."""
    factor: float = 1.0
    offset: float = 0.0
    divisor: float = 1.0


class Layout(NamedTuple):
    """The part of a shape that determines how its numbers are processed, the same for many topics."""

    decoder: str
    slots: int
    """Numbers in a payload."""
    fields: tuple[ShapeField, ...]
    zeros: tuple[int, ...] = ()
    """Slots whose number must be 0, such as the number of an error."""
    time: int | None = None
    """The slot of the time, or ~index of a TimeSlot; without one, that of the readings is `Shape.time_us`, or else the
    time of publishing."""
    device: int | None = None
    """The slot of the device, whose name is a whole number; without one, `Shape.device` is the device."""
    extra: tuple[int, ...] = ()
    """The slots in the other fields, or ~index of a TimeSlot, between the texts of `Shape.extra`."""


class Shape(NamedTuple):
    """How messages of one topic and skeleton are read."""

    layout: Layout
    time_us: int | None = None
    device: str | None = None
    extra: tuple[str, ...] = ()
    """The JSON of the other fields: the texts before, between and after its slots; () if there are no other fields."""
