"""The thread that writes the log: grouping, the order of answers, failures of the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.net.log_stands import PATIENCE_S, Answers, DiskStore, append, entry

from godwit.broker.effects import Append, Committed, Failed, Losing, Notice
from godwit.errors import DiskError, LogDamagedError
from godwit.limits import MIB
from godwit.net import checkpoints, log_writer
from godwit.net.checkpoints import (
    CHECKPOINT_BYTES,
    COMMIT_PAGES_BYTES,
    IDLE_WAL_BYTES,
    RESERVED_WAL_BYTES,
    TRUNCATE_BYTES,
)
from godwit.net.log_writer import COMMIT_BYTES, LogWriter, PendingAppend
from godwit.wire.batch import Entry
from godwit.wire.changes import Change, QueryRow

FULL = DiskError("the disk is full: make room")
BROKEN = LogDamagedError("the file is damaged: run godwit log recover")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "IDLE_S", 3600.0)
    monkeypatch.setattr(checkpoints, "MAINTENANCE_S", 0.001)
    monkeypatch.setattr(log_writer, "MAINTENANCE_S", 0.001)
    monkeypatch.setattr(checkpoints, "RETRY_S", 0.0)
    monkeypatch.setattr(log_writer, "RECOVERED_S", 0.0)


@contextmanager
def writing(store: DiskStore, **more: Any) -> Iterator[tuple[LogWriter, Answers]]:
    answers = Answers()
    writer = LogWriter(store, answers, **more)
    writer.start()
    try:
        yield writer, answers
    finally:
        store.is_slow = False
        store.may_end.release(1000)
        writer.end()
        assert writer.join(PATIENCE_S)


def put(writer: LogWriter, effect: Append, era: int = 0) -> None:
    writer.append(PendingAppend(effect, sum(len(entry.rest) for entry in effect.entries), era))


# -- group commit -----------------------------------------------------------------------------------------------------


def test_what_waits_while_a_commit_runs_is_the_next_commit() -> None:
    store = DiskStore(is_slow=True)
    with writing(store) as (writer, answers):
        put(writer, append(2, 3))
        assert store.begun.get(timeout=PATIENCE_S) == 2
        put(writer, append(1))
        put(writer, Append([], [QueryRow("q", 1)]))
        put(writer, Append([entry(5)], [QueryRow("q", 2)]))
        assert answers.is_empty  # nothing is claimed before the disk has it
        store.may_end.release()
        assert answers.next(1) == [Committed(0)]
        assert store.begun.get(timeout=PATIENCE_S) == 2
        store.may_end.release()
        assert answers.next(3) == [Committed(5), Committed(6), Committed(6)]
        assert writer.commits == 2
        assert answers.calls == 2
    assert store.changes == [[], [QueryRow("q", 1), QueryRow("q", 2)]]
    assert store.next_offset == 11
    assert store.threads == {"godwit-log-writer"}


def test_a_commit_is_bounded() -> None:
    store = DiskStore(is_slow=True)
    with writing(store) as (writer, answers):
        put(writer, append(1))
        store.begun.get(timeout=PATIENCE_S)
        for _ in range(3):
            writer.append(PendingAppend(append(1), COMMIT_BYTES // 2, 0))
        store.may_end.release(3)
        assert answers.next(4) == [Committed(offset) for offset in range(4)]
        assert [store.begun.get(timeout=PATIENCE_S) for _ in range(2)] == [2, 1]


def test_ten_thousand_appends_are_answered_in_order() -> None:
    store = DiskStore()
    with writing(store) as (writer, answers):
        for number in range(10_000):
            put(writer, append(number % 3 + 1))
        offsets = [answer.first_offset for answer in answers.next(10_000)]
        assert offsets[:5] == [0, 1, 3, 6, 7]
        assert offsets == sorted(set(offsets))
        assert writer.commits < 10_000


# -- trouble ----------------------------------------------------------------------------------------------------------


def test_a_failed_commit_fails_all_that_were_given_before_it_was_known_and_the_next_one_is_tried() -> None:
    store = DiskStore(is_slow=True)
    store.errors = [FULL, FULL, None]
    with writing(store) as (writer, answers):
        put(writer, append(1))
        store.begun.get(timeout=PATIENCE_S)
        for _ in range(4):
            put(writer, append(1))
        store.may_end.release()
        failed, notice, *late = answers.next(6)
        assert [failed, *late] == [Failed(str(FULL))] * 5
        assert notice == Notice("warning", f"messages are refused: {FULL}")
        put(writer, append(1))  # queued before the broker knew of it
        put(writer, append(1), era=1)
        store.may_end.release()
        assert answers.next(2) == [Failed(str(FULL))] * 2  # and not reported again
        store.may_end.release()
        put(writer, append(1), era=1)
        put(writer, append(7), era=2)
        late_one, committed, notice = answers.next(3)
        assert (late_one, committed) == (Failed(str(FULL)), Committed(0))
        assert "can be written again" in notice.text
        assert store.begun.qsize() == 2  # late ones did not try the disk


def test_where_only_changes_or_little_fits_the_trouble_is_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "RECOVERED_S", 3600.0)
    store = DiskStore()
    store.errors = [FULL, None, None, FULL]
    with writing(store) as (writer, answers):
        put(writer, append(1))
        assert answers.next(2)[0] == Failed(str(FULL))
        for effect in (Append([], [QueryRow("q", 1)]), append(1)):
            put(writer, effect, era=1)
            assert answers.next(1) == [Committed(0)]
        put(writer, append(1), era=1)
        assert answers.next(1) == [Failed(str(FULL))]
        monkeypatch.setattr(log_writer, "RECOVERED_S", 0.0)
        put(writer, Append([], [QueryRow("q", 1)]), era=2)
        assert answers.next(1) == [Committed(1)]
        assert answers.is_empty
        put(writer, append(1), era=2)
        assert [type(answer) for answer in answers.next(2)] == [Committed, Notice]


def test_something_unforeseen_is_a_failure_like_any_other() -> None:
    store = DiskStore()
    store.errors = [ValueError("a bug")]
    with writing(store) as (writer, answers):
        put(writer, append(1))
        failed, notice = answers.next(2)
        assert "unexpectedly" in failed.text
        assert "a bug" not in failed.text  # details are for the operator of the broker
        assert notice.kind == "warning"
        assert "ValueError: a bug" in notice.text
        put(writer, append(1), era=1)
        assert answers.next(2)[0] == Committed(0)


def test_what_cannot_be_written_at_all_fails_alone_and_is_not_to_be_tried_again() -> None:
    poison = QueryRow("q", 2**63)

    class Picky(DiskStore):
        def append(self, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
            if poison in changes:
                self.begun.put(-1)
                raise OverflowError("int too large")
            return super().append(entries, changes)

    store = Picky(is_slow=True)
    with writing(store) as (writer, answers):
        put(writer, append(1))
        store.begun.get(timeout=PATIENCE_S)
        put(writer, append(2))
        put(writer, Append([entry(3)], [poison]))
        put(writer, append(4))
        store.may_end.release(10)
        assert answers.next(2) == [Committed(0), Committed(1)]  # the second was joined with the bad one
        guilty, notice, behind_it = answers.next(3)
        assert "OverflowError: int too large" in notice.text
        assert (guilty.is_lasting, behind_it) == (True, Failed(guilty.text))
        assert notice.kind == "warning"
        put(writer, append(4), era=1)
        assert answers.next(1) == [Committed(3)]


@pytest.mark.parametrize("error", [FULL, BROKEN, OSError("no memory"), MemoryError()])
def test_what_is_the_disk_s_or_the_machine_s_fault_may_be_tried_again(error: Exception) -> None:
    store = DiskStore()
    store.errors = [error]
    with writing(store) as (writer, answers):
        put(writer, append(1))
        assert answers.next(1)[0].is_lasting is False


def test_clients_do_not_see_the_path_of_the_file() -> None:
    store = DiskStore()
    path = Path("/secret/place/log.sqlite")
    store.errors = [
        DiskError(f"the log {path} cannot be written: the disk is full"),
        LogDamagedError(f"the log {path} cannot be written: it is damaged"),
    ]
    with writing(store, path=path) as (writer, answers):
        for era, reason in enumerate(("the disk is full", "it is damaged")):
            put(writer, append(1), era)
            failed, notice = answers.next(2)
            assert failed.text == f"the broker's log cannot be written: {reason}"
            assert f"the log {path} cannot be written: {reason}" in notice.text
        put(writer, append(1), 2)
        assert answers.next(1) == [Failed("the broker's log cannot be written: it is damaged")]


def test_a_damaged_file_is_not_written_to_again() -> None:
    store = DiskStore()
    store.errors = [None, BROKEN]
    store.wal_bytes_a_commit = 1
    with writing(store, retention=lambda now_us: None) as (writer, answers):
        for expected in (Committed(0), Failed(str(BROKEN))):
            put(writer, append(1))
            assert answers.next(1) == [expected]
        assert answers.next(1)[0].kind == "warning"
        for era in range(3):
            put(writer, append(1), era)
            assert answers.next(1) == [Failed(str(BROKEN))]
    assert store.begun.qsize() == 2
    assert store.checkpoints.empty()  # also not at the end
    assert store.is_closed


# -- between commits --------------------------------------------------------------------------------------------------


def test_after_much_was_written_a_checkpoint_lets_it_be_written_over() -> None:
    store = DiskStore()
    store.wal_bytes_a_commit = 1
    half = CHECKPOINT_BYTES // 2 - COMMIT_PAGES_BYTES
    with writing(store) as (writer, answers):
        for number in range(6):
            writer.append(PendingAppend(append(1), half, 0))
            answers.next(1)
            if number % 2:
                assert store.checkpoints.get(timeout=PATIENCE_S) is False
        assert store.checkpoints.empty()
        for _ in range(CHECKPOINT_BYTES // COMMIT_PAGES_BYTES):  # small commits take their pages too
            put(writer, append(1))
            answers.next(1)
        assert store.checkpoints.get(timeout=PATIENCE_S) is False
        assert store.checkpoints.empty()


def test_the_write_ahead_log_is_lengthened_at_the_start_and_when_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskStore()
    store.extensions_missing = 3
    with writing(store) as (writer, answers):
        for _ in range(3):
            assert store.extensions.get(timeout=PATIENCE_S) == RESERVED_WAL_BYTES
        for number in range(5):
            put(writer, append(1))
            assert answers.next(1) == [Committed(number)]
        assert store.extensions.empty()
        monkeypatch.setattr(checkpoints, "IDLE_S", 0.0)
        store.wal_bytes = IDLE_WAL_BYTES + 1
        put(writer, append(1))
        answers.next(1)
        while store.checkpoints.get(timeout=PATIENCE_S) is not True:
            pass
        assert store.extensions.empty()
        put(writer, append(1))
        answers.next(1)
        store.extensions.get(timeout=PATIENCE_S)


def test_commits_do_not_wait_for_the_write_ahead_log_to_be_lengthened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "RESERVING_PAUSE_S", PATIENCE_S)
    store = DiskStore()
    store.extensions_missing = 1000
    with writing(store) as (writer, answers):
        put(writer, append(1))
        answers.next(1)
        begun = store.extensions.qsize()
        for _ in range(20):
            put(writer, append(1))
            answers.next(1)
        assert store.extensions.qsize() == begun


def test_a_write_ahead_log_that_cannot_be_lengthened_is_used_as_it_is() -> None:
    store = DiskStore()
    store.extension_error = OSError(28, "No space left on device")
    with writing(store) as (writer, answers):
        for number in range(3):
            put(writer, append(1))
            assert answers.next(1) == [Committed(number)]
        assert store.extensions.get(timeout=PATIENCE_S) == RESERVED_WAL_BYTES
    assert store.extensions.empty()


def test_a_write_ahead_log_that_readers_made_long_is_shortened_as_soon_as_they_let_it_be() -> None:
    store = DiskStore()
    store.wal_bytes = store.blocked_wal_bytes = TRUNCATE_BYTES + 1
    with writing(store) as (writer, answers):
        for _ in range(3):  # by itself, whether something is to be committed or not
            assert store.checkpoints.get(timeout=PATIENCE_S) is True
        assert not writer.lets_read.is_set()
        put(writer, append(1))
        assert answers.next(1) == [Committed(0)]
        store.blocked_wal_bytes = 0
        assert writer.lets_read.wait(PATIENCE_S)
        assert store.wal_bytes == 0
        while not store.checkpoints.empty():
            assert store.checkpoints.get() is True
        put(writer, append(1))
        answers.next(1)
        assert store.checkpoints.empty()


@pytest.mark.parametrize(("wal_bytes", "truncates"), [(IDLE_WAL_BYTES, False), (IDLE_WAL_BYTES + 1, True)])
def test_when_nothing_comes_there_is_a_checkpoint_that_cuts_off_what_is_very_long(
    monkeypatch: pytest.MonkeyPatch, wal_bytes: int, truncates: bool
) -> None:
    monkeypatch.setattr(checkpoints, "IDLE_S", 0.01)
    store = DiskStore()
    store.wal_bytes_a_commit = wal_bytes
    with writing(store) as (writer, answers):
        put(writer, append(1))
        answers.next(1)
        assert store.checkpoints.get(timeout=PATIENCE_S) is truncates
        assert store.wal_bytes == (0 if truncates else wal_bytes)
        with pytest.raises(queue.Empty):
            store.checkpoints.get(timeout=0.05)  # once is enough


def test_what_a_broker_that_was_killed_left_behind_is_taken_into_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "IDLE_S", 0.0)
    store = DiskStore()
    store.wal_bytes = 1
    with writing(store):
        assert store.checkpoints.get(timeout=PATIENCE_S) is False


def test_a_checkpoint_that_fails_is_reported_once_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "IDLE_S", 0.0)
    store = DiskStore()
    store.wal_bytes_a_commit, store.checkpoint_error = 1, FULL
    with writing(store) as (writer, answers):
        put(writer, append(1))
        committed, notice = answers.next(2)
        assert committed == Committed(0)
        assert "tried again: the disk is full" in notice.text
        for _ in range(3):
            store.checkpoints.get(timeout=PATIENCE_S)
        store.checkpoint_error = None
        while not store.checkpoints.empty():
            store.checkpoints.get()
        assert answers.is_empty


def test_retention_has_a_step_between_commits_and_tells_what_left() -> None:
    losing = Losing([(0, entry(3))], 3)
    steps: list[list[Losing] | None] = [[losing], [], [losing], None]
    seen = threading.Event()
    times: list[int] = []

    def retain(now_us: int) -> list[Losing] | None:
        times.append(now_us)
        if len(times) > len(steps):
            seen.set()
            return None
        return steps[len(times) - 1]

    store = DiskStore()
    with writing(store, retention=retain, clock_us=lambda: 77) as (writer, answers):
        assert answers.next(2) == [losing, losing]
        assert seen.wait(PATIENCE_S)
        assert set(times) == {77}
        writer.change_retention(None)
        put(writer, append(1))
        assert answers.next(1) == [Committed(0)]


def test_a_retention_that_fails_delays_no_append() -> None:
    def retain(now_us: int) -> None:
        raise FULL

    with writing(DiskStore(), retention=retain) as (writer, answers):
        assert "old messages could not be deleted: the disk is full" in answers.next(1)[0].text
        put(writer, append(1))
        assert answers.next(1) == [Committed(0)]


def test_errors_between_commits_are_reported_and_end_nothing() -> None:
    store = DiskStore()
    with writing(store) as (writer, answers):
        store.wal_errors = [NotADirectoryError(20, "Not a directory")]
        put(writer, append(1))
        committed, notice = answers.next(2)
        assert committed == Committed(0)
        assert (notice.kind, "Not a directory" in notice.text) == ("warning", True)
        put(writer, append(1))
        assert answers.next(1) == [Committed(1)]


def test_deletions_that_cannot_be_reported_keep_no_reader_waiting() -> None:
    class Deaf(Answers):
        def __call__(self, answers: list[Any]) -> None:
            if any(isinstance(answer, Losing) for answer in answers):
                raise RuntimeError("no listener")
            super().__call__(answers)

    store, answers = DiskStore(), Deaf()
    steps = iter([[Losing([], 3)]])
    writer = LogWriter(store, answers, retention=lambda now_us: next(steps, None))
    writer.start()
    assert "no listener" in answers.next(1)[0].text
    assert writer.has_reported_all.wait(PATIENCE_S)
    put(writer, append(1))
    assert answers.next(1) == [Committed(0)]
    writer.end()
    assert writer.join(PATIENCE_S)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_the_end_commits_what_waits_and_empties_the_write_ahead_log() -> None:
    store = DiskStore(is_slow=True)
    answers = Answers()
    writer = LogWriter(store, answers)
    writer.start()
    put(writer, append(1))
    store.begun.get(timeout=PATIENCE_S)
    for _ in range(100):
        put(writer, Append([entry(1, MIB // 4)]))
    writer.end()
    assert not writer.join(0)
    store.may_end.release(100)
    assert writer.join(PATIENCE_S)
    assert answers.next(101) == [Committed(offset) for offset in range(101)]
    assert writer.commits == 3  # the first, the maximum at once, the others
    assert [store.checkpoints.get() for _ in range(store.checkpoints.qsize())][-1] is True
    assert store.is_closed
    assert "godwit-log-writer" not in {thread.name for thread in threading.enumerate()}


def test_the_end_comes_also_when_the_disk_fails() -> None:
    store = DiskStore(is_slow=True)
    store.errors, store.checkpoint_error, store.close_error = [FULL], FULL, BROKEN
    answers = Answers()
    writer = LogWriter(store, answers)
    writer.start()
    put(writer, append(1))
    store.begun.get(timeout=PATIENCE_S)
    put(writer, append(1))
    writer.end()
    store.may_end.release()
    assert writer.join(PATIENCE_S)
    first, _, second, *last = answers.next(5)
    assert first == second == Failed(str(FULL))
    assert "the write-ahead log was not merged into the log: the disk is full" in last[0].text
    assert "the log could not be closed: the file is damaged" in last[1].text
    assert store.is_closed
