"""Text made fit for a terminal: nothing that came over the network moves a cursor or changes a colour."""

from __future__ import annotations

import re
import textwrap
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

# Control characters (the tab may pass), the marks that turn the direction of writing, and what some programs take for
# the end of a line. Lone surrogates come from arguments that are no UTF-8.
_UNFIT: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# The same in JSON, whose encoder escapes what lies below a blank.
_UNFIT_JSON: Final = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]",
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r"}


def safe(text: str) -> str:
    """The text on one line; what a terminal would act upon is shown as an escape."""
    return text if text.isprintable() else _UNFIT.sub(_escape, text)


def safe_payload(payload: bytes) -> str:
    """A payload on one line; bytes that are no UTF-8 are shown as escapes."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = payload.decode(errors="backslashreplace")
    return text if text.isprintable() else _UNFIT.sub(_escape, text)


def safe_json(encoded: bytes) -> bytes:
    """JSON with the same meaning that a terminal can show."""
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded  # most is plain, and this look is ten times as quick
    return _UNFIT_JSON.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), encoded)


def count(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def hanging(title: str, text: str, *, title_width: int = 24, width: int = 79) -> list[str]:
    """A title and what there is to say of it, in lines that fit a usual terminal."""
    return textwrap.wrap(
        f"{title:{title_width}}{text}",
        width,
        subsequent_indent=" " * title_width,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def iso_time(time_us: int) -> str:
    """Microseconds since the epoch as `2025-03-01T12:00:00.000000Z`."""
    seconds, fraction_us = divmod(time_us, 1_000_000)
    return f"{_iso_second(seconds)}.{fraction_us:06d}Z"


@lru_cache(maxsize=1024)  # messages come in crowds within one second
def _iso_second(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):  # a clock that is far off: the year 9999 is as good as any
        return "9999-12-31T23:59:59"


def moment(time_us: int) -> str:
    """Microseconds since the epoch as `2025-03-01 12:00:00` (UTC), for tables; nothing for 0."""
    return _iso_second(time_us // 1_000_000).replace("T", " ") if time_us else ""


def short_moment(text: str) -> str:
    """What `moment` gave, without the year and the seconds: `03-01 12:00`."""
    return text[5:16]


def size(amount_bytes: float) -> str:
    """`812 B`, `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount_bytes < 1000:
            return f"{amount_bytes:.0f} B" if unit == "B" else f"{amount_bytes:.1f} {unit}"
        amount_bytes /= 1000
    return f"{amount_bytes:.1f} TB"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
