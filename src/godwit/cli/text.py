"""Text for a terminal, in which no character from the network moves the cursor or changes a colour.

Also the forms in which times, sizes and positions in a log are written and read.
"""

from __future__ import annotations

import re
import textwrap
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal, TypeAlias

# Control characters other than the tab, marks that change the direction of writing, and characters that some programs
# treat as the end of a line. Lone surrogates come from arguments that are not UTF-8.
_UNFIT: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# The same for JSON, whose encoder escapes the characters below the space itself.
_UNFIT_JSON: Final = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]",
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r"}


def safe(text: str) -> str:
    """Return the text on one line, with escapes for the characters that a terminal would act upon."""
    return text if text.isprintable() else _UNFIT.sub(_escape, text)


def safe_payload(payload: bytes) -> str:
    """Return a payload on one line, with escapes for bytes that are not UTF-8."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = payload.decode(errors="backslashreplace")
    return text if text.isprintable() else _UNFIT.sub(_escape, text)


def safe_json(encoded: bytes) -> bytes:
    """Return equivalent JSON that a terminal can show."""
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded  # most JSON is ASCII, and this check is ten times as fast
    return _UNFIT_JSON.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), encoded)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 message`, `2,000 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def hanging(title: str, text: str, *, title_width: int = 24, width: int = 79) -> list[str]:
    """Return a title and its text as lines that fit a terminal, with a hanging indent."""
    return textwrap.wrap(
        f"{title:{title_width}}{text}",
        width,
        subsequent_indent=" " * title_width,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def iso_time(time_us: int) -> str:
    """Return microseconds since the epoch as `2025-03-01T12:00:00.000000Z`."""
    seconds, fraction_us = divmod(time_us, 1_000_000)
    return f"{_iso_second(seconds)}.{fraction_us:06d}Z"


@lru_cache(maxsize=1024)  # many messages share one second
def _iso_second(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):  # the clock was far off: show the last representable second
        return "9999-12-31T23:59:59"


def moment(time_us: int) -> str:
    """Return microseconds since the epoch as `2025-03-01 12:00:00` (UTC), for tables; an empty text for 0."""
    return _iso_second(time_us // 1_000_000).replace("T", " ") if time_us else ""


def short_moment(text: str) -> str:
    """Return a result of `moment` without the year and the seconds: `03-01 12:00`."""
    return text[5:16]


def size(amount_bytes: float) -> str:
    """Return a number of bytes with its unit: `812 B`, `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount_bytes < 1000:
            return f"{amount_bytes:.0f} B" if unit == "B" else f"{amount_bytes:.1f} {unit}"
        amount_bytes /= 1000
    return f"{amount_bytes:.1f} TB"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


LogPosition: TypeAlias = Literal["earliest", "latest"] | int | datetime
"""A position in a log as users write it: `earliest`, `latest`, an offset, or a time."""

_MAX_OFFSETS: Final = 2**63


def parse_position(text: str) -> LogPosition | None:
    """Return the position that a text names, or None if it is not a position.

    A time without a zone is UTC. A time before 1970 is not a position.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit() and int(text) < _MAX_OFFSETS:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return moment if moment.astimezone(UTC).year >= 1970 else None
    except (ValueError, OverflowError):
        return None
