"""Zenoh as a system under test, run briefly: that messages come through, never how fast."""

from __future__ import annotations

from godwit_bench.forward_pair import measure
from godwit_bench.peers_zenoh import zenoh_pair


def test_messages_come_through() -> None:
    assert measure(zenoh_pair(), 0.1) > 100
