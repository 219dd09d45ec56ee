"""A new log from a damaged one. Flipped bytes of all kinds are in test_bit_flips."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw
import msgspec
import pytest
from tests.store.damage import Original, make_log, make_older_log, older_changes
from tests.store.entries import LOG_ID, make_entry

from godwit.errors import DiskError, LogDamagedError, StorageError
from godwit.store.block import encode_blocks
from godwit.store.kept import sealed, set_mark
from godwit.store.opening import LOST_JOBS
from godwit.store.pages import PAGE_BYTES
from godwit.store.recover import LOST_END, Recovered, recover
from godwit.store.sqlite import SqliteStore
from godwit.store.verify import verify
from godwit.store.witness import SUFFIX
from godwit.wire.changes import FeedKept, State
from godwit.wire.marks import BROKER_WIDE

NEW_ID = b"n" * 16
KEYS = {
    "feeds": "rowid",
    "retained": "rowid",
    "marks": "pattern",
    "meta": "key",
    "next_job": "place",
    "jobs": "job",
}
EVERYTHING = 2**40


@pytest.fixture
def original(tmp_path: Path) -> Original:
    return make_log(tmp_path / "log.sqlite", Random(2), 40, is_trimmed=False)


def run(path: Path, progress: Callable[[int, int], None] = lambda *_: None) -> Recovered:
    return recover(path, path.with_name("saved.sqlite"), new_log_id=NEW_ID, now_us=9, progress=progress)


def opened(path: Path) -> SqliteStore:
    return SqliteStore.open(path.with_name("saved.sqlite"), new_log_id=b"unused", now_us=10)


def witness_of(path: Path) -> Path:
    return Path(f"{path}{SUFFIX}")


def wipe(path: Path, page: int, begin: int = 0, end: int = PAGE_BYTES) -> None:
    data = bytearray(path.read_bytes())
    at = (page - 1) * PAGE_BYTES
    data[at + begin : at + end] = bytes(end - begin)
    path.write_bytes(data)


def roots(path: Path) -> dict[str, int]:
    store = SqliteStore.open(path, new_log_id=NEW_ID, now_us=10)
    found = {
        str(name): int(str(root)) for name, root in store.connection.execute("SELECT name, rootpage FROM sqlite_schema")
    }
    store.close()
    return found


def test_a_sound_log_becomes_the_same_log(original: Original) -> None:
    seen: list[tuple[int, int]] = []
    saved = run(original.path, lambda done, total: seen.append((done, total)))
    assert saved.missing == []
    assert saved.lost_tables == []
    assert saved.has_old_id
    assert saved.log_id == LOG_ID
    assert saved.messages == sum(entry.count for entry in original.entries.values())
    assert seen[-1][0] == seen[-1][1]
    store = opened(original.path)
    found = store.read(0, EVERYTHING)
    assert dict(found.entries) == original.entries
    assert found.damaged == []
    assert store.state() == original.state
    assert (store.log_id, store.created_us, store.next_offset) == (LOG_ID, 1, original.next_offset)
    assert store.append([make_entry(received_us=10**9)]) == original.next_offset
    store.close()


def test_the_write_ahead_log_counts(tmp_path: Path) -> None:
    """As after a kill of the broker: nothing but the write-ahead log has the newest."""
    store = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    store.append([make_entry(bytes(100_000))])
    store.checkpoint(truncate=False)
    store.append([make_entry(bytes(50_000))], [FeedKept("me", ("#",), None, 2)])
    folder = tmp_path / "killed"
    folder.mkdir()
    for ending in ("", "-wal"):
        shutil.copy(f"{store.path}{ending}", folder / f"log.sqlite{ending}")
    state = store.state()
    store.close()
    saved = run(folder / "log.sqlite")
    assert (saved.blocks, saved.missing) == (2, [])
    found = opened(folder / "log.sqlite")
    assert found.state() == state
    found.close()


def test_a_damage_in_the_write_ahead_log_does_not_take_what_came_later(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    for number in range(10):
        store.append([make_entry(Random(number).randbytes(40_000), received_us=number)])
    folder = tmp_path / "killed"
    folder.mkdir()
    for ending in ("", "-wal"):
        shutil.copy(f"{store.path}{ending}", folder / f"log.sqlite{ending}")
    entries = store.read(0, EVERYTHING).entries
    store.close()
    wal = folder / "log.sqlite-wal"
    data = bytearray(wal.read_bytes())
    data[data.find(entries[2][1].rest[20_000:20_100])] ^= 1
    wal.write_bytes(data)
    run(folder / "log.sqlite")
    found = opened(folder / "log.sqlite")
    assert found.read(0, EVERYTHING).entries == [pair for pair in entries if pair[0] != 2]
    assert found.read(0, EVERYTHING).damaged == [(2, 3)]
    found.close()


def test_what_is_lost_stays_told(original: Original) -> None:
    """The range is in the new log as damaged, and goes on being so after other restarts."""
    _, entry = max(original.entries.items(), key=lambda pair: len(pair[1].rest))
    data = bytearray(original.path.read_bytes())
    data[data.find(entry.rest[-1000:])] ^= 1
    original.path.write_bytes(data)
    saved = run(original.path)
    (lost,) = saved.missing
    assert lost[0] <= next(offset for offset, other in original.entries.items() if other is entry) < lost[1]
    for _ in range(2):
        store = opened(original.path)
        found = store.read(0, EVERYTHING)
        assert found.damaged == [lost]
        assert dict(found.entries).keys() == {offset for offset in original.entries if not lost[0] <= offset < lost[1]}
        store.close()


def test_without_its_first_page(original: Original) -> None:
    wipe(original.path, 1)
    with pytest.raises(StorageError):
        SqliteStore.open(original.path, new_log_id=NEW_ID, now_us=9)
    saved = run(original.path)
    assert (saved.log_id, saved.missing, saved.lost_tables) == (LOG_ID, [], [])
    store = opened(original.path)
    assert store.state() == original.state
    assert dict(store.read(0, EVERYTHING).entries) == original.entries
    store.close()


def test_without_its_id_a_log_gets_the_new_one(original: Original) -> None:
    wipe(original.path, roots(original.path)["meta"])
    witness_of(original.path).unlink()
    saved = run(original.path)
    assert not saved.has_old_id
    assert saved.log_id == NEW_ID
    store = opened(original.path)
    assert store.log_id == NEW_ID
    assert dict(store.read(0, EVERYTHING).entries) == original.entries
    store.close()


def test_the_witness_knows_the_id_of_a_log_that_has_lost_it(original: Original) -> None:
    wipe(original.path, roots(original.path)["meta"])
    saved = run(original.path)
    assert (saved.has_old_id, saved.log_id) == (True, LOG_ID)


def test_two_tables_at_one_place_are_not_believed(original: Original) -> None:
    """Rows of queries look like marks."""
    places = roots(original.path)
    data = bytearray(original.path.read_bytes())
    at = data.find(b"marksmarks")
    assert data[at + 10] == places["marks"]
    data[at + 10] = places["queries"]
    original.path.write_bytes(data)
    saved = run(original.path)
    assert saved.lost_tables == []
    store = opened(original.path)
    assert store.state() == original.state
    store.close()


@pytest.mark.parametrize("table", ["topics", "retained", "sessions", "feeds", "identities", "queries"])
def test_a_lost_table_is_told_and_the_others_are_saved(original: Original, table: str) -> None:
    wipe(original.path, roots(original.path)[table])
    with pytest.raises(LogDamagedError):
        SqliteStore.open(original.path, new_log_id=NEW_ID, now_us=9)
    assert run(original.path).lost_tables == [table]
    store = opened(original.path)
    state = store.state()
    empty = State()
    for name in empty.__struct_fields__:
        kept = getattr(empty if name == table else original.state, name)
        assert getattr(state, name) == kept
    store.close()


@pytest.mark.parametrize("table", ["jobs", "job_payloads"])
def test_jobs_that_have_lost_what_they_need_are_not_saved(original: Original, table: str) -> None:
    """Nobody could do a job without its payload, and no task without its job. Their numbers stay used."""
    wipe(original.path, roots(original.path)[table])
    assert run(original.path).lost_tables == [table]
    store = opened(original.path)
    state = store.state()
    assert (state.jobs, state.payloads, state.tasks) == ([], [], [])
    assert state.next_job == original.state.next_job
    assert state.topics == original.state.topics
    store.close()


def test_a_job_that_is_done_is_saved_with_all_its_results_or_not_at_all(original: Original) -> None:
    """One that goes on is saved in any case: it does again what is lost."""
    sound = run(original.path).kept_rows
    original.path.with_name("saved.sqlite").unlink()
    done, running = original.state.jobs[2], original.state.jobs[3]
    store = SqliteStore.open(original.path, new_log_id=NEW_ID, now_us=9)
    done = msgspec.structs.replace(done, state="done")
    store.append([], [done])
    store.connection.execute(
        "UPDATE tasks SET seal = seal + 1 WHERE job IN (?, ?) AND number = 1", (done.job, running.job)
    )
    store.close()
    saved = run(original.path)
    assert saved.lost_tables == ["tasks"]
    assert sound - saved.kept_rows == 5  # of the one its job, its payload and two tasks, of the other a task
    store = opened(original.path)
    state = store.state()
    store.close()
    assert state.jobs == [job for job in original.state.jobs if job.job != done.job]
    assert state.payloads == [kept for kept in original.state.payloads if kept.job != done.job]
    assert state.tasks == [
        kept for kept in original.state.tasks if kept.job != done.job and (kept.job, kept.number) != (running.job, 1)
    ]


def test_numbers_of_jobs_are_not_given_out_twice(original: Original) -> None:
    """Behind the highest that is known nobody can tell how many there were."""
    wipe(original.path, roots(original.path)["next_job"])
    assert run(original.path).lost_tables == ["next_job"]
    store = opened(original.path)
    state = store.state()
    assert state.jobs == original.state.jobs
    assert state.next_job == max(job.job for job in state.jobs) + 1 + LOST_JOBS
    store.close()


def test_no_subscription_is_believed_to_have_everything(tmp_path: Path) -> None:
    """Its row may be older than the blocks that were saved: it goes on from where it stood when that was written."""
    path = tmp_path / "log.sqlite"
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    store.append([make_entry(), make_entry()], [FeedKept("me", ("#",), None, 1, quiet_from=0, is_settled=True)])
    store.close()
    assert run(path).lost_tables == []
    store = opened(path)
    assert store.state().feeds == [FeedKept("me", ("#",), None, 1)]
    store.close()


def test_a_log_of_0_3_0_has_lost_no_jobs(tmp_path: Path) -> None:
    """It never had any; what it had is in a log of the current version then."""
    path = tmp_path / "log.sqlite"
    entries = [make_entry(bytes(100_000), received_us=number) for number in range(5)]
    make_older_log(path, entries, older_changes(1, Random(1)))
    saved = run(path)
    assert (saved.messages, saved.missing, saved.lost_tables) == (5, [], [])
    store = opened(path)
    assert [entry for _, entry in store.read(0, EVERYTHING).entries] == entries
    state = store.state()
    assert (len(state.topics), len(state.retained), state.next_job, state.jobs) == (1, 1, 1, [])
    store.close()


@pytest.mark.parametrize("has_witness", [True, False])
def test_offsets_are_not_given_out_twice(tmp_path: Path, has_witness: bool) -> None:
    """The last blocks are lost with the page that said where they end. The witness knows, and nothing else does."""
    path = tmp_path / "log.sqlite"
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    for _ in range(30):
        store.append([make_entry(bytes(5000))])
    store.close()
    data = bytearray(path.read_bytes())
    newest = data.rfind(b"GWB1")
    begin = newest - newest % PAGE_BYTES
    lost = data.count(b"GWB1", begin, begin + PAGE_BYTES)
    data[begin : begin + PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(data)
    if not has_witness:
        witness_of(path).unlink()
    saved = run(path)
    end = 30 if has_witness else 30 - lost + LOST_END
    assert (saved.missing, saved.next_offset) == ([(30 - lost, end)], end)
    found = opened(path)
    assert found.append([make_entry(received_us=10**9)]) == saved.next_offset
    found.close()


def test_offsets_that_a_cursor_had_got_to_are_not_given_out_again(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    store.append([make_entry()], [FeedKept("me", ("#",), "cursor", 50)])
    store.close()
    assert run(path).next_offset == 50
    found = opened(path)
    assert found.next_offset == 50
    found.close()


def test_holes_of_retention_are_not_lost(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log.sqlite", Random(3), 60, is_trimmed=True)
    assert log.state.marks[BROKER_WIDE] > 0
    assert run(log.path).missing == []
    store = opened(log.path)
    assert dict(store.read(0, EVERYTHING).entries) == log.entries
    assert store.read(0, EVERYTHING).damaged == []
    store.close()


@pytest.mark.parametrize("content", [b"", b"no log at all", bytes(5 * PAGE_BYTES), b"\xff" * 5 * PAGE_BYTES])
def test_from_rubbish_nothing_is_saved(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.sqlite"
    path.write_bytes(content)
    saved = run(path)
    assert (saved.blocks, saved.kept_rows, saved.has_old_id) == (0, 0, False)
    store = opened(path)
    assert store.read(0, EVERYTHING).entries == []
    store.close()


def test_a_missing_log(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="No such file"):
        run(tmp_path / "log.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_it_writes_over_nothing(original: Original) -> None:
    (original.path.parent / "saved.sqlite").write_text("mine")
    with pytest.raises(StorageError, match="is there already"):
        run(original.path)
    assert (original.path.parent / "saved.sqlite").read_text() == "mine"


def test_an_interrupt_leaves_nothing_behind(original: Original) -> None:
    before = sorted(path.name for path in original.path.parent.iterdir())

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(original.path, interrupt)
    assert sorted(path.name for path in original.path.parent.iterdir()) == before


def test_a_log_that_has_lost_its_stamp_keeps_it(original: Original) -> None:
    """Its blocks know it."""
    store = SqliteStore.open(original.path, new_log_id=NEW_ID, now_us=9)
    store.close()
    places = roots(original.path)
    wipe(original.path, places["meta"])
    wipe(original.path, places["blocks"])
    saved = run(original.path)
    assert saved.messages == sum(entry.count for entry in original.entries.values())
    found = opened(original.path)
    assert found.stamp == store.stamp
    assert dict(found.read(0, EVERYTHING).entries) == original.entries
    found.close()


def test_blocks_that_somebody_published_are_not_believed(tmp_path: Path) -> None:
    """With the page that held the rows, the messages around them are lost."""
    path = tmp_path / "log.sqlite"
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    hidden = [encode_blocks([make_entry(b"pay", topic="bank")], offset)[0].body for offset in (1, 2**62, 2**64 - 2)]
    store.append([make_entry((b"".join(hidden) + bytes(64)) * 100)], [FeedKept("me", ("#",), None, 1)])
    store.close()
    wipe(path, roots(path)["blocks"])
    witness_of(path).unlink()
    saved = run(path)
    assert (saved.blocks, saved.messages) == (0, 0)
    assert saved.missing == [(0, 1 + LOST_END)]
    assert verify(tmp_path / "saved.sqlite", lambda *_: None).is_sound


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE feeds SET resume_at = 9223372036854775807",
        "UPDATE retained SET offset = 9223372036854775807",
        "UPDATE marks SET floor = 9223372036854775807",
        "UPDATE meta SET value = 9223372036854775807 WHERE key = 'end_offset'",
        "UPDATE meta SET value = 'text' WHERE key <> 'end_offset'",
        "UPDATE meta SET value = -1 WHERE key = 'created_us'",
        "UPDATE blocks SET end_offset = 9223372036854775807",
        "UPDATE next_job SET job = 9223372036854775807",
        "UPDATE jobs SET job = 9223372036854775807 WHERE job = (SELECT max(job) FROM jobs)",
    ],
)
def test_numbers_that_cannot_be_end_in_no_error(original: Original, statement: str) -> None:
    """A file that somebody has made up, with seals that hold."""
    connection = apsw.Connection(str(original.path))
    set_mark(connection, "#", 0)
    connection.execute(statement)
    for table, keys in KEYS.items():
        for key, *row in connection.execute(f"SELECT {keys}, * FROM {table}").fetchall():
            update = f"UPDATE {table} SET seal = ? WHERE {keys} = ?"
            connection.execute(update, (sealed(tuple(row[:-1]))[-1], key))
    connection.close()
    saved = run(original.path)
    assert saved.next_offset <= 2**62 + LOST_END
    assert saved.blocks > 0
    assert original.next_offset <= saved.next_offset
    store = opened(original.path)
    assert store.state().next_job <= 2**62 + LOST_JOBS
    store.close()


def test_a_value_of_another_type_is_not_kept(original: Original) -> None:
    """In a file that was made without our schema."""
    connection = apsw.Connection(str(original.path))
    connection.execute("DROP TABLE topics; CREATE TABLE topics (name, messages, payload_bytes, last_us, seal)")
    columns = int(connection.execute("SELECT count(*) FROM pragma_table_info('topics')").get)
    values = sealed(("a", "many", *[0] * (columns - 3)))
    connection.execute(f"INSERT INTO topics VALUES ({', '.join('?' * columns)})", values)
    connection.close()
    assert run(original.path).lost_tables == ["topics"]
