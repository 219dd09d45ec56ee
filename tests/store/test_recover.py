"""Recover saves everything that is intact, and never assigns an offset or a job number twice."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw
import msgspec
import pytest
from tests.store.damage import Original, make_log
from tests.store.entries import LOG_ID, make_entry, make_job, make_task
from tests.store.older_logs import make_older_log, older_rows

from godwit.errors import DiskError, LogDamagedError, StorageError
from godwit.store.block import BLOCK_BYTES, HEAD_BYTES, encode_block, encode_blocks, make_row
from godwit.store.maintenance import verify
from godwit.store.port import OffsetRanges
from godwit.store.recover import LOST_END, LOST_JOBS, BlockSearch, RecoverReport, find_secret, recover
from godwit.store.retention import Retention, RetentionRule
from godwit.store.sqlite import SqliteStore
from godwit.store.sqlite_pages import PAGE_BYTES, PageFile, Tree, keyed_cells, read_chain, record
from godwit.store.state import apply_changes, collect_state, store_floor, with_checksum
from godwit.store.witness import SUFFIX
from godwit.wire.changes import JobPayloadRow, NextJobRow, RetainedRow, SubscriptionRow
from godwit.wire.retention_floors import BROKER_WIDE

NEW_ID = b"n" * 16
EVERYTHING = 2**40


@pytest.fixture
def original(tmp_path: Path) -> Original:
    return make_log(tmp_path / "log.sqlite", Random(2), 40, is_trimmed=False)


def run(path: Path, progress: Callable[[int, int], None] = lambda *_: None) -> RecoverReport:
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
    store.append([make_entry(bytes(50_000))], [SubscriptionRow("me", ("#",), None, 2)])
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
    places = roots(original.path)
    data = bytearray(original.path.read_bytes())
    at = data.find(b"marksmarks")
    assert data[at + 10] == places["marks"]
    data[at + 10] = places["state"]
    original.path.write_bytes(data)
    saved = run(original.path)
    assert saved.lost_tables == []
    store = opened(original.path)
    assert store.state() == original.state
    store.close()


def state_pages(path: Path) -> list[int]:
    """The pages of the table of state rows, the root first."""
    root = roots(path)["state"]
    with PageFile(path) as file:
        tree = Tree(file, root)
        list(tree.cells())
    return [root, *sorted(tree.pages - {root})]


def test_rows_that_the_tree_does_not_lead_to_are_saved(original: Original) -> None:
    """Only rows in the lost page itself are lost, here the root of the tree."""
    pages = state_pages(original.path)
    assert len(pages) > 4
    with PageFile(original.path) as file:
        kinds = Counter(str(record(cell.payload)[0]) for cell in keyed_cells(file, pages[0]))
    wipe(original.path, pages[0])
    with pytest.raises(LogDamagedError):
        SqliteStore.open(original.path, new_log_id=NEW_ID, now_us=9)
    assert run(original.path).lost_tables == ["state"]
    store = opened(original.path)
    state = store.state()
    store.close()
    for kind, name in (
        ("topic", "topics"),
        ("retained", "retained"),
        ("session", "sessions"),
        ("subscription", "subscriptions"),
        ("identity", "identities"),
        ("query", "queries"),
    ):
        before, after = getattr(original.state, name), getattr(state, name)
        assert len(after) == len(before) - kinds[kind]
        assert [row for row in after if row not in before] == []
    assert state.retention_floors == original.state.retention_floors


@pytest.mark.parametrize("place", range(1, 5))
def test_a_lost_page_of_state_rows_is_reported_and_the_others_are_saved(original: Original, place: int) -> None:
    wipe(original.path, state_pages(original.path)[place])
    assert run(original.path).lost_tables == ["state"]
    store = opened(original.path)
    state = store.state()
    store.close()
    saved = lost = 0
    for name in ("topics", "retained", "sessions", "subscriptions", "identities", "queries"):
        before, after = getattr(original.state, name), getattr(state, name)
        assert [row for row in after if row not in before] == []
        saved += len(after)
        lost += len(before) - len(after)
    assert saved > lost
    assert {row.job for row in state.payloads} == {row.job for row in state.jobs}
    assert {row.job for row in state.tasks} <= {row.job for row in state.jobs}
    assert state.next_job >= original.state.next_job


@pytest.mark.parametrize("kind", ["job", "job payload"])
def test_jobs_that_have_lost_what_they_need_are_not_saved(original: Original, kind: str) -> None:
    """No worker could run a job without its payload, or a task without its job. Their numbers remain used."""
    damage_rows(original.path, kind)
    assert run(original.path).lost_tables == ["state"]
    store = opened(original.path)
    state = store.state()
    assert (state.jobs, state.payloads, state.tasks) == ([], [], [])
    assert state.next_job == original.state.next_job
    assert state.topics == original.state.topics
    store.close()


def damage_rows(path: Path, kind: str) -> None:
    store = SqliteStore.open(path, new_log_id=NEW_ID, now_us=9)
    store.connection.execute("UPDATE state SET checksum = checksum + 1 WHERE kind = ?", (kind,))
    store.close()


def test_a_job_that_is_done_is_saved_with_all_its_results_or_not_at_all(original: Original) -> None:
    """One that goes on is saved in any case: it does again what is lost."""
    sound = run(original.path).kept_rows
    original.path.with_name("saved.sqlite").unlink()
    done, running = original.state.jobs[2], original.state.jobs[3]
    store = SqliteStore.open(original.path, new_log_id=NEW_ID, now_us=9)
    done = msgspec.structs.replace(done, state="done")
    store.append([], [done])
    keys = [msgspec.msgpack.encode((job.job, 1)) for job in (done, running)]
    store.connection.execute("UPDATE state SET checksum = checksum + 1 WHERE kind = 'task' AND key IN (?, ?)", keys)
    store.close()
    saved = run(original.path)
    assert saved.lost_tables == ["state"]
    assert sound - saved.kept_rows == 5  # of the one its job, its payload and two tasks, of the other a task
    store = opened(original.path)
    state = store.state()
    store.close()
    assert state.jobs == [job for job in original.state.jobs if job.job != done.job]
    assert state.payloads == [kept for kept in original.state.payloads if kept.job != done.job]
    assert state.tasks == [
        kept for kept in original.state.tasks if kept.job != done.job and (kept.job, kept.number) != (running.job, 1)
    ]


@pytest.mark.parametrize("is_done", [False, True])
def test_a_job_in_one_row_is_saved_with_its_payload_and_its_task(tmp_path: Path, is_done: bool) -> None:
    path = tmp_path / "log.sqlite"
    job = make_job(1, state="done" if is_done else "running")
    task = make_task(1, 0, b"result" if is_done else b"")
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    store.append([make_entry()], [msgspec.structs.replace(job, payload=b"" if is_done else b"payload", task=task)])
    state = store.state()
    store.close()
    run(path)
    store = opened(path)
    assert (store.state().jobs, store.state().payloads, store.state().tasks) == ([job], state.payloads, [task])
    store.close()


def test_numbers_of_jobs_are_not_given_out_twice(original: Original) -> None:
    """The number of jobs after the highest known one is unknown."""
    damage_rows(original.path, "next job")
    assert run(original.path).lost_tables == ["state"]
    store = opened(original.path)
    state = store.state()
    assert state.jobs == original.state.jobs
    assert state.next_job == max(job.job for job in state.jobs) + 1 + LOST_JOBS
    store.close()


def test_no_subscription_is_believed_to_have_everything(tmp_path: Path) -> None:
    """Its row may be older than the blocks that were saved: it goes on from where it stood when that was written."""
    path = tmp_path / "log.sqlite"
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    store.append([make_entry(), make_entry()], [SubscriptionRow("me", ("#",), None, 1, quiet_from=0, is_settled=True)])
    store.close()
    assert run(path).lost_tables == []
    store = opened(path)
    assert store.state().subscriptions == [SubscriptionRow("me", ("#",), None, 1)]
    store.close()


def test_a_log_of_0_3_0_has_lost_no_jobs(tmp_path: Path) -> None:
    """It never had any; what it had is in a log of the current version then."""
    path = tmp_path / "log.sqlite"
    entries = [make_entry(bytes(100_000), received_us=number) for number in range(5)]
    make_older_log(path, entries, older_rows(1, Random(1)))
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
    store.append([make_entry()], [SubscriptionRow("me", ("#",), "cursor", 50)])
    store.close()
    assert run(path).next_offset == 50
    found = opened(path)
    assert found.next_offset == 50
    found.close()


def test_holes_of_retention_are_not_lost(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log.sqlite", Random(3), 60, is_trimmed=True)
    assert log.state.retention_floors[BROKER_WIDE] > 0
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
    assert found.log_secret == store.log_secret
    assert dict(found.read(0, EVERYTHING).entries) == original.entries
    found.close()


def test_blocks_that_somebody_published_are_not_believed(tmp_path: Path) -> None:
    """With the page that held the rows, the messages around them are lost."""
    path = tmp_path / "log.sqlite"
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    hidden = [encode_blocks([make_entry(b"pay", topic="bank")], offset)[0].body for offset in (1, 2**62, 2**64 - 2)]
    store.append([make_entry((b"".join(hidden) + bytes(64)) * 100)], [SubscriptionRow("me", ("#",), None, 1)])
    store.close()
    wipe(path, roots(path)["blocks"])
    witness_of(path).unlink()
    saved = run(path)
    assert (saved.blocks, saved.messages) == (0, 0)
    assert saved.missing == [(0, 1 + LOST_END)]
    assert verify(tmp_path / "saved.sqlite", lambda *_: None).is_sound


HUGE = 2**63 - 1


@pytest.mark.parametrize(
    "forge",
    [
        lambda c: apply_changes(c, [SubscriptionRow("client 1", ("t/#",), "cursor 1", HUGE)]),
        lambda c: apply_changes(c, [RetainedRow("t/1", b"x", offset=HUGE)]),
        lambda c: store_floor(c, "#", HUGE),
        lambda c: c.execute("UPDATE meta SET value = 9223372036854775807 WHERE key = 'end_offset'"),
        lambda c: set_meta(c, "log_id", "text"),
        lambda c: set_meta(c, "stamp", "text"),
        lambda c: set_meta(c, "created_us", -1),
        lambda c: c.execute("UPDATE blocks SET end_offset = 9223372036854775807"),
        lambda c: apply_changes(c, [NextJobRow(HUGE)]),
        lambda c: apply_changes(c, [make_job(HUGE), JobPayloadRow(HUGE, b"")]),
        lambda c: apply_changes(c, [make_task(2**64 - 1, 0)]),
    ],
)
def test_implausible_numbers_end_in_no_error(original: Original, forge: Callable[[apsw.Connection], object]) -> None:
    """A forged file, with valid checksums."""
    connection = apsw.Connection(str(original.path))
    store_floor(connection, "#", 0)
    forge(connection)
    connection.close()
    saved = run(original.path)
    assert saved.next_offset <= 2**62 + LOST_END
    assert saved.blocks > 0
    assert original.next_offset <= saved.next_offset
    store = opened(original.path)
    assert store.state().next_job <= 2**62 + LOST_JOBS
    store.close()


def set_meta(connection: apsw.Connection, key: str, value: str | int) -> None:
    connection.execute("REPLACE INTO meta VALUES (?, ?, ?)", with_checksum((key, value)))


def test_a_value_of_another_type_is_not_saved(original: Original) -> None:
    """In a file that was made without our schema."""
    connection = apsw.Connection(str(original.path))
    connection.execute("DROP TABLE marks; CREATE TABLE marks (pattern, floor, seal)")
    connection.execute("INSERT INTO marks VALUES (?, ?, ?)", with_checksum(("a", "many")))
    connection.close()
    assert run(original.path).lost_tables == ["marks"]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("has_schema", [True, False])
def test_state_rows_of_older_logs_are_saved(tmp_path: Path, version: int, has_schema: bool) -> None:
    """They are in tables of their own. Without its first page the version of a file is unknown."""
    path = tmp_path / "log.sqlite"
    rows = older_rows(1, Random(1))
    make_older_log(path, [make_entry()], rows, version)
    if not has_schema:
        wipe(path, 1)
    saved = run(path)
    assert has_schema <= (saved.lost_tables == [])
    store = opened(path)
    state = store.state()
    store.close()
    if version == 1 and not has_schema:  # whether it had jobs is unknown
        assert state.next_job == 1 + LOST_JOBS
        state.next_job = 1
    assert state == collect_state(rows)


def test_a_damaged_table_of_an_older_log_is_reported_and_the_others_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    rows = older_rows(1, Random(1))
    make_older_log(path, [make_entry()], rows, 3)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE retained SET qos = 2; UPDATE topics SET seal = ?", (with_checksum(("t/1", "many"))[-1],))
    connection.close()
    assert run(path).lost_tables == ["topics", "retained"]
    store = opened(path)
    expected = collect_state(rows)
    expected.topics, expected.retained = [], []
    assert store.state() == expected
    store.close()


ROOT = 3
SECRET = bytes(range(200, 208))


@pytest.fixture(autouse=True)
def known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all logs that are made here."""
    monkeypatch.setattr("godwit.store.sqlite.new_secret", lambda connection: SECRET)


def make_sized_log(path: Path, sizes: list[int], topic: str = "a/b", *, max_bytes: int | None = None) -> None:
    """A block of each size, under its own offset."""
    rng = Random(len(sizes))
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    trimming = Retention(store, [RetentionRule(max_bytes=max_bytes)])
    for size in sizes:
        store.append([make_entry(rng.randbytes(size), topic=topic)])
        while trimming.step(0) is not None:
            pass
    assert store.connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'blocks'").get == ROOT
    store.close()


def search(path: Path, root: int = ROOT, floors: dict[str, int] | None = None) -> tuple[list[int], BlockSearch]:
    """The offsets of what is found, in order."""
    with PageFile(path) as file:
        found = BlockSearch(file, root, SECRET, floors or {}, OffsetRanges())
        return sorted(row.first_offset for row in found.rows(lambda *_: None)), found


def change(path: Path, alter: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    alter(data)
    path.write_bytes(data)


def leaves(path: Path) -> dict[int, int]:
    """The leaf of each row."""
    with PageFile(path) as file:
        return {cell.rowid: cell.page for cell in Tree(file, ROOT).cells()}


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_a_sound_log(tmp_path: Path) -> None:
    make_sized_log(tmp_path / "log", [10, 5_000, 16_200, 20_000, BLOCK_BYTES, 3 * BLOCK_BYTES, 0])
    seen: list[tuple[int, int]] = []
    with PageFile(tmp_path / "log") as file:
        found = BlockSearch(file, ROOT, SECRET, {}, OffsetRanges())
        rows = list(found.rows(lambda done, total: seen.append((done, total))))
    assert [row.first_offset for row in rows] == list(range(7))
    assert found.damaged == []
    assert found.is_all_known
    assert found.is_end_known
    assert seen[-1][0] == seen[-1][1] == file.page_count * PAGE_BYTES
    assert seen == sorted(seen)


@pytest.mark.parametrize("seed", range(8))
def test_without_any_tree_all_blocks_are_found(tmp_path: Path, seed: int) -> None:
    """Sizes such that the part in the leaf is all of the block, much, little, less than its head, or nothing."""
    rng = Random(seed)
    edges = [k * (PAGE_BYTES - 4) + more for k in (1, 2, 3) for more in range(-150, 40, 7)]
    sizes = [rng.choice([*edges, rng.randrange(100_000)]) for _ in range(60)]
    make_sized_log(tmp_path / "log", sizes)
    cells = Counter(leaves(tmp_path / "log").values())

    def ruin(data: bytearray) -> None:
        for page, count in cells.items():  # what kind of page it is, and where its cells are
            at = (page - 1) * PAGE_BYTES
            data[at] ^= rng.randrange(1, 256)
            data[at + 1 : at + 8 + 2 * count] = rng.randbytes(7 + 2 * count)

    change(tmp_path / "log", ruin)
    offsets, found = search(tmp_path / "log")
    assert offsets == list(range(60))
    assert not found.is_all_known
    assert not found.is_end_known


def test_a_block_that_begins_in_an_overflow_page(tmp_path: Path) -> None:
    """The topic index of the block fills the leaf page."""
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    for number in range(3):
        store.append([make_entry(b"x", topic=f"{number}/{index}/{'x' * 30}") for index in range(1000)])
    store.close()
    assert search(tmp_path / "log")[0] == [0, 1000, 2000]
    assert search(tmp_path / "log", root=999)[0] == [0, 1000, 2000]


def test_a_damaged_block_says_what_it_was(tmp_path: Path) -> None:
    make_sized_log(tmp_path / "log", [1000, 1000, 1000])

    def ruin(data: bytearray) -> None:
        row = encode_blocks([make_entry(b"")], 1, SECRET)[0]
        at = data.find(row.body[:20])  # magic, stamp and first offset
        data[at + 500] ^= 1

    change(tmp_path / "log", ruin)
    offsets, found = search(tmp_path / "log")
    assert offsets == [0, 2]
    assert found.damaged == [(1, 2)]
    assert found.is_all_known


def test_a_row_that_says_nothing(tmp_path: Path) -> None:
    make_sized_log(tmp_path / "log", [1000, 1000, 1000])

    def ruin(data: bytearray) -> None:
        at = data.find(encode_blocks([make_entry(b"")], 1, SECRET)[0].body[:20])
        data[at - 44 : at + 100] = bytes(144)

    change(tmp_path / "log", ruin)
    offsets, found = search(tmp_path / "log")
    assert offsets == [0, 2]
    assert found.damaged == []
    assert not found.is_all_known
    assert found.is_end_known


# -- what is no block of the log --------------------------------------------------------------------------------------


def test_a_block_in_a_message_is_no_block(tmp_path: Path) -> None:
    """A client publishes a payload that looks like a block of the log."""
    forged = encode_blocks([make_entry(b"forged", topic="bank/transfer")], 1_000_000)[0].body
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    store.append([make_entry(forged * 3)])
    store.append([make_entry(bytes(40_000) + forged + bytes(10))])
    store.append([make_entry(topic="GWB1/GWB1")])
    store.close()
    assert search(tmp_path / "log")[0] == [0, 1, 2]

    def ruin(data: bytearray) -> None:
        at = data.find(encode_blocks([make_entry(b"")], 0, SECRET)[0].body[:20])
        data[at + 100] ^= 1  # the block around it, and not the forged one

    change(tmp_path / "log", ruin)
    assert search(tmp_path / "log")[0] == [1, 2]


def ruin_tree(path: Path) -> None:
    """What bad sectors do: nothing is left of it, but for pages of overflow."""
    pages = {ROOT, *leaves(path).values()}

    def ruin(data: bytearray) -> None:
        for page in pages:
            data[(page - 1) * PAGE_BYTES : page * PAGE_BYTES] = bytes(PAGE_BYTES)

    change(path, ruin)


def test_a_block_in_a_message_whose_row_is_lost_is_no_block(tmp_path: Path) -> None:
    """Nothing is left that says where the message around it begins."""
    forged = encode_blocks([make_entry(b"pay me", topic="bank/transfer")], 3)[0].body
    guessed = encode_blocks([make_entry(b"pay me", topic="bank/transfer")], 3, bytes(range(199, 207)))[0].body
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    for hidden in (forged, guessed):
        store.append([make_entry((hidden + bytes(64)) * 200)])
    store.close()
    ruin_tree(tmp_path / "log")
    assert (tmp_path / "log").read_bytes().count(b"pay me") > 100
    assert search(tmp_path / "log")[0] == []


def test_heads_that_lie_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message full of what looks like long blocks, and of numbers of pages to follow."""
    followed: list[int] = []

    def counting(file: PageFile, number: int, size_bytes: int) -> tuple[bytes, list[int]]:
        followed.append(number)
        return read_chain(file, number, size_bytes)

    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    head = encode_blocks([make_entry(bytes(900_000))], 0)[0].body[:HEAD_BYTES]
    store.append([make_entry((head + (20).to_bytes(4, "big") * 9) * 10_000)])
    store.close()
    ruin_tree(tmp_path / "log")
    monkeypatch.setattr("godwit.store.recover.read_chain", counting)
    assert search(tmp_path / "log")[0] == []
    assert followed == []


@pytest.mark.parametrize(
    ("first_offset", "received_us"), [(2**62, 1), (2**63 - 1, 1), (2**64 - 2, 1), (3, 2**62 + 1), (3, 2**64 - 1)]
)
def test_numbers_that_cannot_be_are_no_block(tmp_path: Path, first_offset: int, received_us: int) -> None:
    """Even under the log's own stamp."""
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    store.append([make_entry(b"good")])
    bad = encode_block([(first_offset, make_entry(received_us=received_us))], SECRET).body
    store.connection.execute("INSERT INTO blocks VALUES (9, 10, 1, 1, 1, x'', ?)", (bad,))
    store.close()
    assert search(tmp_path / "log")[0] == search(tmp_path / "log", root=999)[0] == [0]


def test_a_row_with_numbers_that_cannot_be_says_nothing(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    for row in (make_row(5, 2**62 + 1, 1, 1, b"", b""), make_row(7, 7, 1, 1, b"", b"")):
        store.connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(row))
    store.close()
    assert search(tmp_path / "log")[1].damaged == []


def test_the_stamp_of_a_log_that_does_not_tell_it(tmp_path: Path) -> None:
    """It is read from the tree or from an orphaned leaf, never from a published payload."""
    path = tmp_path / "log"
    forged = encode_blocks([make_entry(b"x")], 0, b"forged!!")[0].body
    make_sized_log(path, [10] * 50 + [20_000] * 100)
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    kept = [RetainedRow(f"t/{number}", forged * 20) for number in range(20)]
    store.append([make_entry(forged * 500) for _ in range(30)], kept)
    store.close()
    with PageFile(path) as file:
        assert find_secret(file, ROOT) == SECRET
        assert find_secret(file, 999) == SECRET
    ruin_tree(path)
    with PageFile(path) as file:
        assert find_secret(file, ROOT) is None


def test_deleted_blocks_stay_deleted(tmp_path: Path) -> None:
    make_sized_log(tmp_path / "log", [30_000] * 60, max_bytes=800_000)
    marks = {BROKER_WIDE: min(leaves(tmp_path / "log"))}
    live = list(range(marks[BROKER_WIDE], 60))
    assert 10 < len(live) < 40
    assert search(tmp_path / "log", floors=marks)[0] == live
    change(tmp_path / "log", lambda data: data.__setitem__(slice(32, 40), bytes(8)))  # no list of free pages any more
    assert search(tmp_path / "log", floors=marks)[0] == live
    assert search(tmp_path / "log", root=999, floors=marks)[0] == live
    assert search(tmp_path / "log", root=999, floors={"other": 60})[0][-len(live) :] == live


def test_marks_of_topics_keep_out_what_they_deleted(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    store.append([make_entry(topic=topic) for topic in ("kept", "gone", "kept")])
    store.close()
    with PageFile(tmp_path / "log") as file:
        (row,) = BlockSearch(file, 999, SECRET, {"gone": 3, BROKER_WIDE: 0}, OffsetRanges()).rows(lambda *_: None)
    assert (row.first_offset, row.end_offset) == (0, 3)
    with PageFile(tmp_path / "log") as file:
        (row,) = BlockSearch(file, 999, SECRET, {"kept": 1}, OffsetRanges()).rows(lambda *_: None)
    assert (row.first_offset, row.end_offset) == (1, 3)
    assert search(tmp_path / "log", root=999, floors={BROKER_WIDE: 3})[0] == []
