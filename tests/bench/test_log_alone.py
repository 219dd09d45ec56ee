"""The log's writer alone, run briefly: that what is counted is committed, never how fast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from godwit.errors import DiskError, GodwitError
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry
from godwit.wire.changes import Change
from godwit_bench.log_alone import BATCH_BYTES, write_and_commit


def test_payload_is_committed_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = 0
    append = SqliteStore.append

    def watched(store: SqliteStore, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        nonlocal committed
        offset = append(store, entries, changes)
        committed += sum(entry.count for entry in entries)
        return offset

    monkeypatch.setattr(SqliteStore, "append", watched)
    rate = write_and_commit(tmp_path, 0.1, 8192)
    assert committed % (BATCH_BYTES // 8192) == 0
    assert 0 < rate <= committed * 8192 / 0.1
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: SqliteStore, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        raise DiskError("the disk is full: make room")

    monkeypatch.setattr(SqliteStore, "append", fail)
    with pytest.raises(GodwitError, match="the log could not be written: the disk is full"):
        write_and_commit(tmp_path, 5.0, 8192)
