"""Text and numbers for the report: escaped, and shortened.

Names of topics and publishers, payloads and error details are untrusted. All of them pass through `safe`, which escapes
HTML and makes invisible characters visible.
"""

from __future__ import annotations

import html
import math
import unicodedata
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

NONE: Final = "\N{EN DASH}"
"""Shown for a missing number."""
LONGEST: Final = 96
"""Characters shown of an untrusted text."""
_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Categories of Unicode that are invisible or change the direction of text."""
_STEPS: Final = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def safe(text: object, longest: int = LONGEST) -> str:
    """Escape text for element content and quoted attributes."""
    whole = str(text)
    shown = "".join(_visible(character) for character in whole[:longest])
    return html.escape(shown + ("…" if len(whole) > longest else ""), quote=True)


def breakable(topic: str) -> str:
    """Escape a topic, and allow line breaks between its levels."""
    return safe(topic).replace("/", "/<wbr>")


def safe_payload(payload: bytes, longest: int = LONGEST) -> str:
    """Escape a payload: as text if it is valid UTF-8, else its first bytes in hexadecimal."""
    head = payload[: longest * 4]  # a character has at most four bytes
    try:
        text = head.decode() if len(head) == len(payload) else head.decode(errors="ignore")
    except UnicodeDecodeError:
        return safe(f"0x{payload[: longest // 2].hex()}" + ("…" if len(payload) > longest // 2 else ""), 2 * longest)
    return safe(text, longest) if text.strip() else "<em>empty</em>"


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return " " if character in "\t\n\r" else f"\\u{ord(character):04x}"


def whole(number: float) -> str:
    """Format an integer."""
    return f"{number:,.0f}"


def value(number: float | None) -> str:
    """Format a measurement with four digits."""
    if number is None or not math.isfinite(number):
        return NONE
    return f"{number:,.0f}" if 1_000 <= abs(number) < 1e7 else f"{number:.4g}"


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def duration(seconds: float | None) -> str:
    """Format a duration in its two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    for (unit, length_s), (next_unit, next_length_s) in pairwise(_STEPS):
        if seconds >= length_s:
            rest = int(seconds % length_s // next_length_s)
            return f"{int(seconds // length_s)} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{seconds:.3g} s"


def moment(at_s: float, *, has_seconds: bool = True) -> str:
    """Format a time in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S" if has_seconds else "%Y-%m-%d %H:%M")


def short_moment(at_s: float, span_s: float) -> str:
    """Format a time with the precision that a range of `span_s` needs."""
    pattern = "%H:%M:%S" if span_s < 600 else "%H:%M" if span_s < 86_400 else "%d %b %H:%M"
    if span_s > 30 * 86_400:
        pattern = "%d %b %Y"
    return datetime.fromtimestamp(at_s, UTC).strftime(pattern)


def several(count: float, one: str, many: str | None = None) -> str:
    """Format a number with a noun: `3 gaps`, `1 gap`."""
    return f"{whole(count)} {one if count == 1 else many or one + 's'}"
