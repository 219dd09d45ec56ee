"""The edge's side of a bridge, without a hub."""

from __future__ import annotations

from godwit.client.relay import LogPiece, RelaySender
from godwit.wire.relay import RelayOpened


def test_a_commit_that_is_reported_during_a_read_is_read_afterwards() -> None:
    sender = RelaySender(["#"], "", bytes(16), [])
    sender.channel = 1
    sender.end = 5
    sender.handle_opened(RelayOpened(channel=1), 0.0)
    assert sender.wanted_read() == (0, 1024 * 1024)
    sender.end = 6  # while the reader's thread reads a snapshot in which the log ends at 5
    sender.handle_read(LogPiece(0, [], 5, end=5), 0.0, 0)
    assert sender.position == 5
    assert sender.end == 6, "nothing would wake the bridge before the next commit"
