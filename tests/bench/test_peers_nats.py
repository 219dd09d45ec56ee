"""NATS as a system under test, run briefly: that messages come through, never how fast."""

from __future__ import annotations

import pytest

from godwit_bench import peers
from godwit_bench.forward_pair import measure
from godwit_bench.peers_nats import nats_pair

SERVER = peers.find("nats-server")


@pytest.mark.skipif(SERVER is None, reason="needs the program nats-server")
def test_messages_come_through() -> None:
    assert SERVER is not None
    assert measure(nats_pair(SERVER), 0.1) > 100
