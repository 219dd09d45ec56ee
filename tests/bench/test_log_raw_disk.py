"""The bare disk, written briefly: that every piece is synced and counted, never how fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from godwit_bench import log_raw_disk
from godwit_bench.log_raw_disk import SYNC_BYTES, append_and_sync


def test_every_piece_is_synced_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    sync = log_raw_disk._sync

    def watched(file: int) -> None:
        sync(file)
        (written,) = tmp_path.iterdir()
        sizes.append(written.stat().st_size)

    monkeypatch.setattr(log_raw_disk, "_sync", watched)
    clock = iter([0.0, 0.25, 0.5, 1.0])  # at the start, then after each piece
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert append_and_sync(tmp_path, 1.0) == 3 * SYNC_BYTES
    assert sizes == [SYNC_BYTES, 2 * SYNC_BYTES, 3 * SYNC_BYTES]
    assert list(tmp_path.iterdir()) == []
