"""Threads with a connection each."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.archive import logs
from tests.archive.running import PATIENCE_S, log_in

from godwit.archive import readers as readers_module
from godwit.archive.readers import READERS, Readers
from godwit.errors import StorageError
from godwit.store.reader import LogReader


def test_each_thread_has_its_own_connection_and_keeps_it(tmp_path: Path) -> None:
    with log_in(tmp_path):
        readers = Readers(tmp_path / "log.sqlite")
        together = threading.Barrier(READERS)

        def look(reader: LogReader) -> tuple[int, int]:
            together.wait(PATIENCE_S)  # so that no thread does two of them
            return threading.get_ident(), id(reader)

        first, second = (
            {future.result(PATIENCE_S) for future in [readers.start(look) for _ in range(READERS)]} for _ in range(2)
        )
        assert len({thread for thread, _ in first}) == len({reader for _, reader in first}) == READERS
        assert first == second
        readers.close()


def test_answers_and_errors_come_back(tmp_path: Path) -> None:
    with log_in(tmp_path) as store:
        readers = Readers(tmp_path / "log.sqlite")
        assert readers.log_id == logs.LOG_ID
        assert readers.ask(LogReader.next_offset) == 0
        store.append([logs.make_entry()])
        assert readers.ask(LogReader.next_offset) == 1
        with pytest.raises(ZeroDivisionError):
            readers.ask(lambda reader: 1 // reader.first_offset())
        readers.close()


def test_a_log_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"log\.sqlite"):
        Readers(tmp_path / "log.sqlite")


def test_a_job_waits_while_the_wal_is_long_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that are never all idle would keep the broker from taking it back."""
    with log_in(tmp_path) as store:
        readers = Readers(tmp_path / "log.sqlite")
        store.append([logs.make_entry(payloads=[bytes(100_000)])])
        monkeypatch.setattr(readers_module, "LONG_WAL_BYTES", 50_000)
        monkeypatch.setattr(readers_module, "MAX_WAIT_S", PATIENCE_S)
        waiting = [readers.start(LogReader.next_offset) for _ in range(READERS)]
        with pytest.raises(TimeoutError):
            waiting[0].result(0.2)
        store.checkpoint(truncate=True)
        assert [job.result(PATIENCE_S) for job in waiting] == [1] * READERS
        store.append([logs.make_entry(payloads=[bytes(100_000)])])
        monkeypatch.setattr(readers_module, "MAX_WAIT_S", 0.05)
        assert readers.ask(LogReader.next_offset) == 2
        readers.close()
