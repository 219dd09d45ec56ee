"""Places in a log as people write them: `earliest`, `latest`, an offset, or a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

Place: TypeAlias = Literal["earliest", "latest"] | int | datetime

_OFFSETS: Final = 2**63


def read_place(text: str) -> Place | None:
    """What was meant; None if it is no place. A time without a zone is meant in UTC, and none lies before 1970."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit() and int(text) < _OFFSETS:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return moment if moment.astimezone(UTC).year >= 1970 else None
    except (ValueError, OverflowError):
        return None
