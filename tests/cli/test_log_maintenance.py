"""`godwit log verify`, `recover`, `compact`, `purge` and `backup` as a user sees them."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import apsw
import pytest
from tests.cli.logs import LOG_ID, entry, opened, write_log
from tests.cli.real import Running, error_of, eventually, godwit, lines, needs_posix

from godwit.cli import log_maintenance
from godwit.cli.log_maintenance import missing_text
from godwit.net.checkpoints import TRUNCATE_BYTES
from godwit.store.maintenance import VerifyReport
from godwit.store.recover import LOST_END, RecoverReport
from godwit.store.replica import ClaimStep, Place, ReplicaStore
from godwit.store.state import LogMeta
from godwit.wire.changes import RetainedRow, TopicRow

ROWS = [("home/a" if number % 3 else "home/b", str(number)) for number in range(30)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_log(tmp_path / "data", [ROWS[at : at + 4] for at in range(0, len(ROWS), 4)])


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Enough for a second of work or so."""
    with opened(tmp_path / "data") as store:
        commit = [entry(f"home/{number}", *[b"x" * 1000] * 100) for number in range(100)]
        for _ in range(15):
            store.append(commit)
    return tmp_path / "data"


def payloads(folder: Path) -> list[str]:
    return [
        line.partition(": ")[2] for line in lines(godwit("log", "tail", "-n", "1000", "--data", str(folder)).stdout)
    ]


def ruin(folder: Path) -> None:
    """SQLite's own pages: the tree of blocks is read no more, most blocks are as they were."""
    path = folder / "log.sqlite"
    with path.open("r+b") as file:
        file.write(b"no database".ljust(100, b"!"))


def change(folder: Path, statement: str) -> None:
    """Change an unused log behind its checksums."""
    connection = apsw.Connection(str(folder / "log.sqlite"))
    connection.execute(statement)
    connection.close()


def hurt(folder: Path, first_offset: int) -> None:
    """One block."""
    change(folder, f"UPDATE blocks SET body = zeroblob(length(body)) WHERE first_offset = {first_offset}")


# -- verify -----------------------------------------------------------------------------------------------------------


def test_verify_a_sound_log(data: Path) -> None:
    result = godwit("log", "verify", "--data", str(data))
    assert result.returncode == 0
    first, second = lines(result.stdout)
    assert first.startswith(f"{data}/log.sqlite: 8 blocks with 30 messages, ")
    assert second == "everything is intact"
    found = json.loads(godwit("log", "verify", "--json", "--data", str(data)).stdout)
    assert (found["is_sound"], found["log_id"], found["messages"]) == (True, LOG_ID.hex(), 30)


def test_verify_beside_a_broker(data: Path) -> None:
    with opened(data):
        assert godwit("log", "verify", "--data", str(data)).returncode == 0


def test_verify_names_what_is_damaged(data: Path) -> None:
    hurt(data, 8)
    result = godwit("log", "verify", "--data", str(data))
    assert result.returncode == 1
    (text,) = lines(result.stderr)
    assert "offsets 8 to 11 are damaged" in text
    assert "godwit log recover" in text
    result = godwit("log", "verify", "--json", "--data", str(data))
    assert result.returncode == 1
    assert json.loads(result.stdout)["damaged"] == [[8, 12]]


def test_verify_names_what_keeps_a_broker_from_starting(data: Path) -> None:
    with opened(data) as store:
        store.append([], [TopicRow("home/a", 1)])
    change(data, "UPDATE state SET value = x'00'")  # its checksum does not match
    hurt(data, 8)
    result = godwit("log", "verify", "--data", str(data))
    assert result.returncode == 1
    (text,) = lines(result.stderr)
    assert "offsets 8 to 11 are damaged; " in text
    assert "table state" in text
    assert "Stop the broker, then save the intact messages with godwit log recover" in text


def test_verify_lists_a_few_problems(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = VerifyReport(
        log_id=LOG_ID,
        first_offset=0,
        next_offset=1,
        blocks=1,
        messages=1,
        size_bytes=1,
        damaged=[],
        given_up=[],
        missing=(1, 3),
        lacks_changes=True,
        has_needless_wal=False,
        problems=[f"problem {number}" for number in range(5)],
    )
    monkeypatch.setattr(log_maintenance, "verify", lambda path, progress, is_locked: verdict)
    (text,) = lines(godwit("log", "verify", "--data", str(data)).stderr)
    assert (
        "log.sqlite: offsets 1 to 2 were confirmed and are missing; the write-ahead log is shorter than it was: its "
        "last commits are missing; problem 0; problem 1; problem 2; and 2 problems more. Stop the broker" in text
    )


def test_verify_what_is_no_log_any_more(data: Path) -> None:
    ruin(data)
    assert "godwit log recover" in error_of("log", "verify", "--data", str(data))


def test_verify_a_recovered_log(data: Path) -> None:
    """Known losses are not reported as new damage."""
    hurt(data, 8)
    assert godwit("log", "recover", "--data", str(data)).returncode == 0
    result = godwit("log", "verify", "--data", str(data))
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout)[1] == (
        "everything is intact, except for offsets 8 to 11, which were lost before an earlier godwit log recover"
    )
    found = json.loads(godwit("log", "verify", "--json", "--data", str(data)).stdout)
    assert (found["is_sound"], found["damaged"], found["given_up"]) == (True, [], [[8, 12]])


def test_no_command_does_what_a_file_says(data: Path, tmp_path: Path) -> None:
    """A view without an end in the place of the blocks; `recover` looks at bytes alone."""
    change(
        data,
        "ALTER TABLE blocks RENAME TO old; CREATE VIEW blocks AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL "
        "SELECT n + 1 FROM r) SELECT n first_offset, 0 end_offset, 0 received_us, 0 until_us, 0 seal, x'' topics, "
        "x'' body FROM r",
    )
    for command in ("info", "tail", "verify", "compact", "backup"):
        more = ["--output", str(tmp_path / "copy")] if command == "backup" else []
        assert "in it is not ours" in error_of("log", command, *more, "--data", str(data))
    assert godwit("log", "recover", "--data", str(data)).returncode == 0
    assert len(payloads(data)) == 30


# -- recover ----------------------------------------------------------------------------------------------------------


def test_recover_saves_what_is_intact(data: Path) -> None:
    hurt(data, 8)
    ruin(data)
    damaged = (data / "log.sqlite").read_bytes()
    result = godwit("log", "recover", "--data", str(data))
    assert result.returncode == 0, result.stderr
    rows = lines(result.stdout)
    assert rows[0] == f"{data}/log.sqlite: saved 7 blocks with 26 messages"
    assert rows[1] == "missing: offsets 8 to 11"
    assert rows[-1].startswith(f"the damaged file is kept as {data}/log.sqlite.damaged")
    assert (data / "log.sqlite.damaged").read_bytes() == damaged
    assert payloads(data) == [payload for offset, (_, payload) in enumerate(ROWS) if not 8 <= offset < 12]
    with opened(data) as store:  # as a broker does it
        assert (store.log_id, store.next_offset) == (LOG_ID, 30)


def test_recover_reports_other_losses(data: Path) -> None:
    hurt(data, 8)
    with opened(data) as store:
        store.append([], [TopicRow("home/a", 1)])
    change(data, "UPDATE state SET value = x'00'")
    change(data, "UPDATE meta SET value = zeroblob(16) WHERE key = 'log_id'")
    (data / "log.sqlite-witness").unlink()
    rows = lines(godwit("log", "recover", "--data", str(data)).stdout)
    assert rows[1:4] == [
        "missing: offsets 8 to 11",
        "partly unreadable tables beside the messages: state",
        "the id of the log was unreadable: the new log has a new id, and clients start at its beginning",
    ]


@pytest.mark.parametrize(
    ("missing", "next_offset", "text"),
    [
        ([], 30, "nothing"),
        ([(5, 7), (29, 30)], 30, "offsets 5 to 6, 29"),
        ([(30, 30 + LOST_END)], 30 + LOST_END, "perhaps some from offset 30 on: the end was unreadable"),
        ([(5, 7), (30, 30 + LOST_END)], 30 + LOST_END, "offsets 5 to 6, and perhaps some from offset 30 on"),
        ([(5, 5 + LOST_END)], 6 + LOST_END, f"offsets 5 to {LOST_END + 4:,}"),
    ],
)
def test_what_is_missing(missing: list[tuple[int, int]], next_offset: int, text: str) -> None:
    """Where the end of a log was not readable, offsets are left out that perhaps never were."""
    saved = RecoverReport(
        log_id=LOG_ID,
        has_old_id=True,
        next_offset=next_offset,
        blocks=1,
        messages=1,
        missing=missing,
        kept_rows=0,
        lost_tables=[],
        lacks_changes=False,
        was_replica=False,
    )
    assert missing_text(saved).startswith(text)


def test_a_damaged_wal_is_reported_and_repaired(data: Path, tmp_path: Path) -> None:
    """First one that is needed by nothing, then one whose commits are lost."""
    copy = tmp_path / "copy"
    with opened(data) as store:
        for number in range(9):
            store.append([entry("home/new", b"x" * 9_000)], [TopicRow("home/new", number)])
        store.checkpoint(truncate=False)
        shutil.copytree(data, copy)
        store.append([entry("home/new", b"last")], [TopicRow("home/new", 9)])
        shutil.copytree(data, tmp_path / "short")
    for folder, complaint, lines_of_recover in [
        (copy, "log.sqlite-wal is damaged. Nothing is lost: log.sqlite has all of it. Start the broker", 3),
        (tmp_path / "short", "the write-ahead log is shorter than it was: its last commits are missing", 4),
    ]:
        wal = folder / "log.sqlite-wal"
        wal.write_bytes(wal.read_bytes()[:60_000] if folder == copy else b"")
        assert "the newest messages of" in godwit("log", "tail", "--data", str(folder)).stderr.decode()
        assert complaint in godwit("log", "verify", "--data", str(folder)).stderr.decode()
        rows = lines(godwit("log", "recover", "--data", str(folder)).stdout)
        assert len(rows) == lines_of_recover
        assert ("the last commits are missing: sessions, cursors" in " ".join(rows)) == (folder != copy)
        assert "everything is intact" in godwit("log", "verify", "--data", str(folder)).stdout.decode()
        assert "the newest messages of" not in godwit("log", "tail", "--data", str(folder)).stderr.decode()


def test_a_witness_that_may_not_be_read_is_not_called_damaged(data: Path) -> None:
    (data / "log.sqlite-witness").unlink()
    (data / "log.sqlite-witness").mkdir()  # reading it fails for the system's owner too
    problem = godwit("log", "verify", "--data", str(data)).stderr.decode()
    assert "reading log.sqlite-witness fails, so the end of the log is unchecked. Check its permissions" in problem


def test_recover_keeps_every_damaged_file(data: Path) -> None:
    for number in range(3):
        hurt(data, 4 * number)
        found = json.loads(godwit("log", "recover", "--json", "--data", str(data)).stdout)
        assert found["kept"] == str(data / f"log.sqlite.damaged{'' if not number else f'-{number + 1}'}")
        assert found["messages"] == 26 - 4 * number
    assert sorted(path.name for path in data.iterdir() if path.name.startswith("log")) == [
        "log.sqlite",
        "log.sqlite-witness",
        "log.sqlite.damaged",
        "log.sqlite.damaged-2",
        "log.sqlite.damaged-3",
    ]


def test_recover_takes_the_wal_into_account_and_away(data: Path, tmp_path: Path) -> None:
    """A broker was killed: the newest messages are in the WAL alone."""
    killed = tmp_path / "killed"
    killed.mkdir()
    with opened(data) as store:
        store.append([entry("home/a", "in the WAL")])
        for path in data.glob("log.sqlite*"):
            (killed / path.name).write_bytes(path.read_bytes())
    assert (killed / "log.sqlite-wal").stat().st_size
    ruin(killed)
    assert godwit("log", "recover", "--data", str(killed)).returncode == 0
    assert payloads(killed)[-1] == "in the WAL"
    assert (killed / "log.sqlite.damaged-wal").exists()
    with opened(killed) as store:
        assert store.next_offset == 31


def test_recover_leaves_a_sound_log_alone(data: Path) -> None:
    for name in ("lock", "stages", "reserve"):
        (data / name).rename(data.parent / name)
    before = (data / "log.sqlite").stat()
    result = godwit("log", "recover", "--data", str(data))
    assert result.returncode == 0
    assert lines(result.stdout) == [f"{data}/log.sqlite: nothing is damaged; the file is unchanged"]
    found = json.loads(godwit("log", "recover", "--json", "--data", str(data)).stdout)
    assert (found["is_sound"], found["kept"]) == (True, None)
    assert (data / "log.sqlite").stat().st_ino == before.st_ino
    assert own_names(data) == ["lock", "log.sqlite", "log.sqlite-witness"]


def test_verify_names_a_wal_that_is_alone(data: Path) -> None:
    (data / "log.sqlite").rename(data / "log.sqlite-wal")
    text = error_of("log", "verify", "--data", str(data))
    assert "log.sqlite is missing or empty, and log.sqlite-wal beside it has messages" in text


def test_recover_of_a_log_that_is_gone(data: Path) -> None:
    """Nothing can be saved of it. But its witness knows which offsets must not be used again."""
    (data / "log.sqlite").unlink()
    for command in ("verify", "info", "compact"):
        text = error_of("log", command, "--data", str(data))
        assert "log.sqlite is missing or empty, and messages up to offset 29 were confirmed in it" in text
    result = godwit("log", "recover", "--data", str(data))
    assert lines(result.stdout)[:2] == [
        f"{data}/log.sqlite: saved 0 blocks with 0 messages",
        "missing: offsets 0 to 29",
    ]
    with opened(data) as store:
        assert (store.log_id, store.findings) == (LOG_ID, [])
        assert store.append([entry("home/a", "new")]) == 30


@pytest.mark.parametrize("command", ["verify", "backup"])
def test_a_broker_is_let_empty_its_wal(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Between two pieces, if it has become too long; not for ever."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            monkeypatch.setattr(log_maintenance, "_size", lambda path: 0)

    monkeypatch.setattr(log_maintenance, "_size", lambda path: TRUNCATE_BYTES + 1)
    monkeypatch.setattr(time, "sleep", sleep)
    if command == "verify":
        log_maintenance.run_verify(data, as_json=True)
    else:
        log_maintenance.run_backup(data, tmp_path / "copy", force=False, as_json=True)
    assert len(waited) == 3


def test_recover_where_nothing_can_be_saved(tmp_path: Path) -> None:
    (tmp_path / "log.sqlite").write_bytes(b"x" * 100_000)
    error_of("log", "recover", "--data", str(tmp_path))
    assert (tmp_path / "log.sqlite").read_bytes() == b"x" * 100_000
    assert not list(tmp_path.glob("*.damaged*"))
    assert not list(tmp_path.glob(".godwit*"))


def test_recover_that_was_killed_does_not_hinder_the_next(data: Path) -> None:
    for name in ("log.sqlite.saved", "log.sqlite.saved.draft"):
        (data / name).write_bytes(b"left")
    hurt(data, 8)
    assert godwit("log", "recover", "--data", str(data)).returncode == 0
    assert len(payloads(data)) == 26
    assert not list(data.glob("*.saved*"))


def test_a_recover_killed_in_the_middle_of_the_swap_loses_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest message is in the WAL alone; the next broker that opens the folder finishes."""
    killed = tmp_path / "killed"
    killed.mkdir()
    with opened(data) as store:
        store.append([entry("home/a", "in the WAL")])
        for path in data.glob("log.sqlite*"):
            (killed / path.name).write_bytes(path.read_bytes())
    ruin(killed)
    monkeypatch.setattr("godwit.store.folder.sync", lambda path: 1 / 0)  # behind the WAL's end, before the new file
    with pytest.raises(ZeroDivisionError):
        log_maintenance.run_recover(killed, as_json=True)
    monkeypatch.undo()
    assert not (killed / "log.sqlite-wal").exists()
    with opened(killed) as store:
        assert store.next_offset == 31
    assert payloads(killed)[-1] == "in the WAL"
    assert (killed / "log.sqlite.damaged-wal").stat().st_size


@pytest.mark.parametrize("command", ["recover", "compact"])
def test_not_while_a_broker_runs(data: Path, command: str) -> None:
    with opened(data):
        before = sorted(data.iterdir())
        text = error_of("log", command, "--data", str(data))
        assert sorted(data.iterdir()) == before
    assert text == (f"a broker uses {data}, and {command} needs the log for itself; stop the broker, then try again")


# -- compact ----------------------------------------------------------------------------------------------------------


def test_compact_gives_space_back(large: Path) -> None:
    with opened(large) as store:
        store.connection.execute("DELETE FROM blocks WHERE first_offset < 100000")
    before = (large / "log.sqlite").stat().st_size
    found = json.loads(godwit("log", "compact", "--json", "--data", str(large)).stdout)
    after = (large / "log.sqlite").stat().st_size
    assert (found["before_bytes"], found["after_bytes"]) == (before, after)
    assert after < 0.5 * before
    with opened(large) as store:
        assert store.next_offset == 150_000
    text = godwit("log", "compact", "--data", str(large)).stdout.decode()
    assert text.startswith(f"{large}/log.sqlite: ")
    assert text.endswith(" now\n")


def test_compact_refuses_a_damaged_file(data: Path) -> None:
    ruin(data)
    assert "godwit log recover" in error_of("log", "compact", "--data", str(data))


# -- backup -----------------------------------------------------------------------------------------------------------


def test_backup_beside_a_broker_is_a_log_to_start_with(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    with opened(data) as store:
        store.append([entry("home/a", "new")])
        result = godwit("log", "backup", "--output", str(out), "--data", str(data))
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout)[0].startswith(f"{out}/log.sqlite: 9 blocks, ")
    assert sorted(path.name for path in out.iterdir()) == ["log.sqlite", "log.sqlite-witness"]
    assert payloads(out) == [*(payload for _, payload in ROWS), "new"]
    assert out.stat().st_mode & 0o777 == 0o700
    with opened(out) as store:
        assert (store.log_id, store.next_offset) == (LOG_ID, 31)


def test_backup_replaces_only_with_force(data: Path, tmp_path: Path) -> None:
    out = write_log(tmp_path / "copy", [[("old", "old")]])
    (out / "log.sqlite-wal").write_bytes(b"of the old log")
    arguments = ("log", "backup", "--output", str(out), "--data", str(data))
    assert "exists already" in error_of(*arguments)
    assert (out / "log.sqlite-wal").exists()
    found = json.loads(godwit(*arguments, "--force", "--json").stdout)
    assert (found["path"], found["blocks"], found["next_offset"]) == (f"{out}/log.sqlite", 8, 30)
    assert not (out / "log.sqlite-wal").exists()
    assert len(payloads(out)) == 30


def test_backup_goes_into_no_log_that_is_used(data: Path, tmp_path: Path) -> None:
    arguments = ("log", "backup", "--force", "--data", str(data))
    assert "is the folder of the log itself" in error_of(*arguments, "--output", str(data / "."))
    write_log(tmp_path / "other", [])
    with opened(tmp_path / "other"):
        assert "a broker uses" in error_of(*arguments, "--output", str(tmp_path / "other"))
    assert "cannot create the folder" in error_of(*arguments, "--output", str(tmp_path / "a" / "b"))


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


@needs_posix
@pytest.mark.parametrize("command", ["verify", "recover", "compact", "backup"])
def test_ctrl_c_ends_it_at_once_and_leaves_all_as_it_was(large: Path, tmp_path: Path, command: str) -> None:
    """At a moment that differs from run to run: whether the work was done or not, nothing is left half-way."""
    if command == "recover":
        hurt(large, 0)
    before = (large / "log.sqlite").stat().st_ino
    out = tmp_path / "copy"
    names = own_names(large)
    more = ["--output", str(out)] if command == "backup" else []
    running = Running("log", command, *more, "--data", str(large))
    try:
        watched = out if command == "backup" else large
        eventually(lambda: running.process.poll() is not None or has_begun(watched, command))
        running.process.send_signal(signal.SIGINT)
        code = running.wait()
    finally:
        running.stop()
    if code == 0:
        pytest.skip("it was done already")
    assert code == 130
    assert running.err.rest() == []
    assert not out.exists()
    assert own_names(large) == names
    assert (large / "log.sqlite").stat().st_ino == before


def own_names(folder: Path) -> list[str]:
    """Without what SQLite leaves beside a log that it has read."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm")))


def has_begun(folder: Path, command: str) -> bool:
    names = [path.name for path in folder.glob("*")]
    return any((name.endswith("-shm") if command == "verify" else ".draft" in name) for name in names)


# -- purge ------------------------------------------------------------------------------------------------------------


def test_purge_deletes_the_messages_of_some_topics(tmp_path: Path) -> None:
    folder = write_log(
        tmp_path / "data",
        [[("a/debug", "1"), ("a/door", "2")], [("b/debug", "3")], [("a/door", "4"), ("a/debug", "5")]],
    )
    with opened(folder) as store:
        store.append(
            (), [RetainedRow("a/debug", b"5", "me", 1, 1, 1, 4), RetainedRow("a/door", b"4", "me", 1, 1, 1, 3)]
        )
        end = store.next_offset
    data = ("--data", str(folder))
    assert "confirm it with --yes" in error_of("log", "purge", "+/debug", *data)
    assert "a wildcard" in error_of("log", "purge", "a#", "--yes", *data)
    result = godwit("log", "purge", "+/debug", "--yes", "--json", *data)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["messages"], found["retained"]) == (3, 1)
    assert godwit("log", "tail", *data).stdout == b"a/door: 2\na/door: 4\n"
    assert godwit("log", "verify", *data).returncode == 0
    with opened(folder) as store:
        assert store.next_offset == end
        assert [row.topic for row in store.state().retained] == ["a/door"]
    again = godwit("log", "purge", "+/debug", "--yes", *data)
    assert b"deleted 0 messages and 0 retained messages" in again.stdout


def test_purge_reports_missing_messages(data: Path) -> None:
    with opened(data) as store:
        store.append([entry("home/new", b"last")], [])
        shutil.copytree(data, data.with_name("short"))
    (data.with_name("short") / "log.sqlite-wal").unlink()
    result = godwit("log", "purge", "home/a", "--yes", "--data", str(data.with_name("short")))
    assert result.returncode == 0
    assert "were confirmed and are missing" in result.stderr.decode()


def test_purge_refuses_the_file_of_a_node(tmp_path: Path) -> None:
    replica = ReplicaStore.open(tmp_path / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    replica.apply([ClaimStep(LogMeta(LOG_ID, 5, b"secret-8"), b"writer-1", 0)], Place(1, 1, 1, 7, b"writer-1"))
    replica.close()
    assert "belongs to a node of a cluster" in error_of("log", "purge", "home/a", "--yes", "--data", str(tmp_path))


def test_purge_needs_the_log_for_itself(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "data", [[("a", "1")]])
    with opened(folder):
        assert "purge needs the log for itself" in error_of("log", "purge", "a", "--yes", "--data", str(folder))
    assert godwit("log", "tail", "--data", str(folder)).stdout == b"a: 1\n"
