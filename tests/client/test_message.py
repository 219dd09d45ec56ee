"""A message: exact times, cheap to make."""

from __future__ import annotations

import gc
from datetime import UTC, datetime

from godwit.client.message import Message


def test_times_are_exact_to_the_microsecond() -> None:
    message = Message("a", b"x", "p", 1_700_000_000_123_457, 1_700_000_000_999_999, 1, False, 5)
    assert message.published == datetime(2023, 11, 14, 22, 13, 20, 123_457, tzinfo=UTC)
    assert message.received.microsecond == 999_999
    assert message.received.tzinfo is UTC


def test_far_times_do_not_break() -> None:
    message = Message("a", b"", "p", 0, 253_402_300_799_999_999, 1, False, 5)
    assert message.published == datetime(1970, 1, 1, tzinfo=UTC)
    assert message.received == datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def test_times_beyond_the_calendar_are_its_last_moment() -> None:
    """A publisher's clock may say anything."""
    assert Message("a", b"", "p", 2**64 - 1, 0, 1, False, 5).published == datetime.max.replace(tzinfo=UTC)


def test_garbage_collector_does_not_look_at_messages() -> None:
    """Millions of them would make every collection slow."""
    assert not gc.is_tracked(Message("a", b"x", "p", 1, 2, 1, False, 5))
