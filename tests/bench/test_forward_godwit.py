"""Godwit as a system under test, run briefly: that messages come through, never how fast."""

from __future__ import annotations

from godwit_bench import forward_pair, small_senders
from godwit_bench.forward_godwit import godwit_pair, godwit_system


def test_messages_come_through() -> None:
    assert forward_pair.measure(godwit_pair(), 0.1) > 100


def test_small_senders_come_through() -> None:
    assert small_senders.measure(godwit_system(), 20, 0.2) > 20
