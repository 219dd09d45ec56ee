"""Payloads as text, JSON, numbers and times, by rules that leave no room for guesses.

Text is UTF-8, with or without a byte order mark, or UTF-16 with one. Bytes that are ASCII but for the signs ° µ ² ³ of
Latin-1 are read as Latin-1: in UTF-8 they are invalid, and the character sets of Western Europe agree on them.

A number of seconds, milli-, micro- or nanoseconds since 1970 is recognised by its range: the times from 2000 to 2100
of the four units do not overlap. Other numbers are no times.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

from godwit.pipeline.decoders.results import RejectedError

MAX_TEXT_BYTES: Final = 64 * 1024
MAX_LEVELS: Final = 16
EARLIEST_S: Final = 946_684_800
"""The year 2000: a clock that shows an earlier time was never set."""
LATEST_S: Final = 4_102_444_800
"""The year 2100."""
EARLIEST_US: Final = EARLIEST_S * 1_000_000
_LATIN_1: Final = re.compile(rb"[\t\n\r\x20-\x7e\xb0\xb2\xb3\xb5]*\Z")
_NUMBER: Final = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?"
NUMBER: Final = re.compile(_NUMBER, re.ASCII)
"""A decimal number with a point. A comma is ambiguous: it separates decimals, thousands, or fields."""
_NUMBER_WITH_UNIT: Final = re.compile(rf"({_NUMBER})\s*(\D.*)?\Z", re.ASCII | re.DOTALL)
_ISO: Final = re.compile(
    r"\d{4}-?\d\d-?\d\d[T ]\d\d:?\d\d(?::?\d\d(?:[.,]\d+)?)?\s?(Z|z|UTC|GMT|[-+]\d\d:?\d\d|[-+]\d\d)?\Z", re.ASCII
)
_FRACTION: Final = re.compile(r"[.,](\d+)", re.ASCII)


def text_of(payload: bytes) -> str:
    """Return a payload as text without blanks at both ends. Raise RejectedError if it is not text."""
    if len(payload) > MAX_TEXT_BYTES:
        raise RejectedError(
            "too long", f"{len(payload)} bytes: a payload that is read as text has at most {MAX_TEXT_BYTES}"
        )
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        return _other_text(payload, error.start)
    return text.removeprefix("\ufeff").strip()


def _other_text(payload: bytes, at: int) -> str:
    if payload[:2] in (b"\xff\xfe", b"\xfe\xff"):
        try:
            return payload.decode("utf-16").removeprefix("\ufeff").strip()
        except UnicodeDecodeError:
            pass
    elif _LATIN_1.match(payload):
        return payload.decode("latin-1").strip()
    raise RejectedError("not text", f"invalid UTF-8 at byte {at}, and no decoder reads these bytes")


# -- JSON -------------------------------------------------------------------------------------------------------------


class _JsonReader:
    """A parser and a writer that are quick to call. They are made anew on an executor, as they cannot be pickled."""

    def __init__(self) -> None:
        decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
        self.read = decoder.decode
        self.scan = decoder.scan_once  # type: ignore[attr-defined]  # of the C library
        self.write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, skipkeys=True, default=_json_text).encode

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return (_JsonReader, ())


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise RejectedError("bad JSON", f"the key {twice[:60]!r} is there twice")
    return found


def _constant(name: str) -> Any:
    raise RejectedError("bad JSON", f"{name} is not JSON; a device without a value should send null")


def _json_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_READER: Final = _JsonReader()


def quick_object(payload: bytes) -> dict[str, Any] | None:
    """Return the flat JSON object that a payload is; None if it needs a closer look.

    It accepts what `text_of` and `json_of` accept, without blanks around it, escapes and brackets in it.
    """
    try:
        text = payload.decode()
        if len(payload) > MAX_TEXT_BYTES or "\\u" in text or text.count("{") > 1 or "[" in text:
            return None
        value, end = _READER.scan(text, 0)
    except (ValueError, StopIteration, RejectedError):
        return None
    return value if type(value) is dict and end == len(text) else None


def json_of(text: str) -> Any:
    """Parse JSON. Raise RejectedError if it is invalid, has a duplicate key, or too many levels."""
    if text.count("{") + text.count("[") > MAX_LEVELS and _levels(text) > MAX_LEVELS:
        raise RejectedError("nested too deeply", f"more than {MAX_LEVELS} levels of JSON")
    try:
        value = _READER.read(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # raises for an unpaired surrogate
    except UnicodeEncodeError:
        raise RejectedError("not text", "it has an unpaired surrogate") from None
    except (ValueError, RecursionError) as error:
        raise RejectedError("bad JSON", str(error)[:200]) from None
    return value


def _levels(text: str) -> int:
    """Return an estimate of the depth of JSON without parsing it, which also counts brackets in strings."""
    depth = deepest = 0
    for found in re.finditer(r"[][{}]", text):
        if found[0] in "{[":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def extra_of(fields: dict[str, Any]) -> str | None:
    """Return other fields as JSON, bytes as hexadecimal text, infinite numbers as text; None if there are none."""
    if not fields:
        return None
    try:
        return _READER.write(fields)
    except ValueError:
        plain = json.loads(json.dumps(fields, skipkeys=True, default=_json_text), parse_constant=str)
        return _READER.write(plain)


# -- numbers ----------------------------------------------------------------------------------------------------------


def number_of(text: str) -> float | None:
    """Return the number that a text is, nothing else; None if it is not one."""
    text = text.strip()
    return float(text) if NUMBER.fullmatch(text) else None


def number_and_unit(text: str) -> tuple[float, str] | None:
    """Split a number from the text behind it, "" or the candidate of a unit; None if it begins otherwise."""
    found = _NUMBER_WITH_UNIT.match(text.strip())
    return None if found is None else (float(found[1]), (found[2] or "").strip())


# -- times ------------------------------------------------------------------------------------------------------------


def time_of(value: Any, name: str = "time") -> int | None:
    """Return the microseconds since 1970 of a time in ISO 8601 with a zone, or of a number in a documented range.

    Values of CBOR and MessagePack may be a `datetime`. None means that it is not known which moment is meant: a
    clock without a zone, or a number in no range (an uptime, a year). The caller then uses the time of publishing
    and keeps the value in `extra`. Raise RejectedError for a time with a zone before 2000.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        number = number_of(value)
        if number is None:
            return iso_time(value, name)
        value = int(value) if value.strip().isdigit() else number
    if isinstance(value, datetime):
        return iso_time(value.isoformat(), name)
    if not isinstance(value, int | float):
        return None
    for scale in (1_000_000, 1000, 1):  # seconds, milli-, microseconds
        if EARLIEST_S * 1_000_000 <= value * scale <= LATEST_S * 1_000_000:
            return round(value * scale)
    if EARLIEST_S * 1_000_000_000 <= value <= LATEST_S * 1_000_000_000:
        return int(value) // 1000
    return None


def iso_time(text: str, name: str = "time") -> int | None:
    """Return the microseconds since 1970 of a time in ISO 8601; None without a zone, or if it is not one.

    Raise RejectedError for a time before 2000.
    """
    text = text.strip()
    found = _ISO.fullmatch(text)
    if found is None or found[1] is None:
        return None
    zone = {"Z": "+00:00", "z": "+00:00", "UTC": "+00:00", "GMT": "+00:00"}.get(found[1], found[1])
    body = text[: -len(found[1])].strip().replace(" ", "T")
    body = _FRACTION.sub(lambda one: "." + one[1][:6].ljust(6, "0"), body)  # Python reads microseconds
    try:
        moment = datetime.fromisoformat(body + zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    time_us = round(moment.timestamp() * 1e6)
    if time_us < EARLIEST_US:
        raise RejectedError("time in the far past", f"the field {name!r} is {text[:40]!r}")
    return time_us
