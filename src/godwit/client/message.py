"""What a subscriber gets: one message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message as it was published, and what the broker knows of it. Times are microseconds since the epoch."""

    topic: str
    payload: bytes
    publisher: str
    published_us: int
    """By the publisher's clock."""
    received_us: int
    """By the broker's clock."""
    qos: int
    retained: bool
    """Delivered because the broker kept it for new subscriptions; it may be old."""
    offset: int | None
    """Its place in the broker's log; None at QoS 0."""
    extension: bytes | None = None

    @property
    def published(self) -> datetime:
        """When it was published, in UTC, to the microsecond."""
        return _at(self.published_us)

    @property
    def received(self) -> datetime:
        """When the broker received it, in UTC, to the microsecond."""
        return _at(self.received_us)


def _at(time_us: int) -> datetime:
    """Exactly; what lies beyond the calendar (a publisher's clock may say anything) is its last moment."""
    return _EPOCH + timedelta(microseconds=min(time_us, _LAST_US))
