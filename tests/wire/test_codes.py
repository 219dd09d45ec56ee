"""Codes: their numbers never change, and tell at a glance whose they are."""

from __future__ import annotations

from godwit.wire.control_base import Code

TRANSPORT = {
    "NORMAL",
    "SHUTDOWN",
    "PROTOCOL",
    "LIMIT",
    "VERSION",
    "BUSY",
    "TIMEOUT",
    "RESET",
    "INTERNAL",
    "SEALING",
    "STANDBY",
}


def test_codes_fit_their_field_and_keep_to_their_range() -> None:
    for code in Code:
        assert 0 <= code < 2**16
        assert (code < 100) == (code.name in TRANSPORT)


def test_no_two_codes_share_a_number() -> None:
    assert len(Code.__members__) == len({code.value for code in Code})
