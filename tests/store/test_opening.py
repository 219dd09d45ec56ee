"""A table of damages to every file of a broker's folder: each is repaired, refused in one sentence or reported in full.

The folder is that of a process that was killed in the midst of its work: a part of the log is in its file, the newest
messages are in the write-ahead log alone. Whatever happens to these files, no confirmed message may be missing without
a report that names its offset, and no offset may be given to another message.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from tests.store.entries import LOG_ID, make_entry, make_job

from godwit.cli.log_maintenance import run_recover
from godwit.errors import LogDamagedError, StorageError
from godwit.net.durable_log import DurableLog
from godwit.store.maintenance import backup, compact, verify
from godwit.store.recover import LOST_JOBS
from godwit.store.sqlite import SqliteStore
from godwit.store.sqlite_pages import FRAME_BYTES, PAGE_BYTES, WAL_HEAD_BYTES
from godwit.store.witness import SLOT_BYTES
from godwit.wire.batch import Entry
from godwit.wire.changes import Change, JobPayloadRow, NextJobRow, SubscriptionRow

EVERYTHING = 2**40
LATER_US = 10**9


class Killed(NamedTuple):
    """What a killed process has left."""

    folder: Path
    entries: dict[int, Entry]
    """All that was confirmed, by the offset."""
    next_offset: int
    checkpointed: int
    """Up to which offset the file has it, too."""

    @property
    def log(self) -> Path:
        return self.folder / "log.sqlite"

    def file(self, ending: str) -> Path:
        return self.folder / f"log.sqlite{ending}"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Copied from under a store that is at work: as the files are when its process is killed."""
    rng = Random(13)
    work, folder = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("killed")
    store = SqliteStore.open(work / "log.sqlite", new_log_id=LOG_ID, now_us=1)
    entries: dict[int, Entry] = {}

    def publish(number: int) -> None:
        size_bytes = rng.choice([20, 300, 5_000, 40_000])
        entry = make_entry(*(rng.randbytes(size_bytes) for _ in range(rng.randrange(1, 4))), received_us=number)
        changes: list[Change] = [
            SubscriptionRow("me", ("#",), None, number),
            make_job(number),
            JobPayloadRow(number, b""),
            NextJobRow(number + 1),
        ]
        entries[store.append([entry], changes)] = entry

    for number in range(1, 31):
        publish(number)
    store.checkpoint(truncate=True)
    for number in range(31, 41):
        publish(number)
    store.checkpoint(truncate=False)  # the next commit begins the write-ahead log anew, over the old frames
    checkpointed = store.next_offset
    for number in range(41, 71):
        publish(number)
    shutil.copytree(work, folder, dirs_exist_ok=True)
    next_offset = store.next_offset
    store.close()
    for name in ("lock", "reset-key"):
        (folder / name).write_bytes(bytes(32))
    (folder / "stages").mkdir()
    return Killed(folder, entries, next_offset, checkpointed)


@pytest.fixture
def killed(template: Killed, tmp_path: Path) -> Killed:
    folder = tmp_path / "data"
    shutil.copytree(template.folder, folder)
    return template._replace(folder=folder)


class Outcome(NamedTuple):
    kind: str
    """intact, reported, or refused."""
    text: str
    """The sentence of the refusal, or what was reported."""
    is_sound: bool
    """By `verify`, before anything was opened for writing."""
    lost: list[tuple[int, int]]
    """What readers get as damaged."""


def outcome(killed: Killed) -> Outcome:
    """Verify and open the log; if that is refused, recover it first. Check that nothing is missing in silence."""
    try:
        is_sound = verify(killed.log, lambda *_: None).is_sound
    except StorageError:
        is_sound = False
    refusal = ""
    try:
        store = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=2)
    except StorageError as error:
        refusal = str(error)
        run_recover(killed.folder, as_json=True)
        store = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=2)
    found = store.read(0, EVERYTHING)
    lost = {offset for begin, end in found.damaged for offset in range(begin, end)}
    there = {offset + index for offset, entry in found.entries for index in range(entry.count)}
    for offset, entry in found.entries:
        assert killed.entries[offset] == entry, f"offset {offset} holds another message"
    silent = set(range(killed.next_offset)) - lost - there
    assert not silent, f"offsets {sorted(silent)} are missing, and nothing says so"
    assert store.append([make_entry(b"new", received_us=LATER_US)]) >= killed.next_offset, "an offset is used again"
    text = refusal or " | ".join(store.findings)
    store.close()
    kind = "refused" if refusal else "reported" if text or lost else "intact"
    assert is_sound <= (not lost), "verify has found nothing, and messages are lost"
    # The next start has nothing to say: all of it is settled.
    again = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=3)
    assert again.findings == []
    assert again.read(0, EVERYTHING).damaged == found.damaged
    again.close()
    return Outcome(kind, text, is_sound, found.damaged)


# -- damages ----------------------------------------------------------------------------------------------------------


def cut(ending: str, to: float | int) -> Callable[[Killed], None]:
    """Truncate a file to a share of its length (a float) or to a number of bytes (an int)."""

    def damage(killed: Killed) -> None:
        file = killed.file(ending)
        data = file.read_bytes()
        file.write_bytes(data[: to if isinstance(to, int) else int(to * len(data))])

    return damage


def remove(*endings: str) -> Callable[[Killed], None]:
    def damage(killed: Killed) -> None:
        for ending in endings:
            killed.file(ending).unlink()

    return damage


def flip(ending: str, at: float | int) -> Callable[[Killed], None]:
    """Flip one bit, at a share of the length, or at a byte, from the end if that is negative."""

    def damage(killed: Killed) -> None:
        file = killed.file(ending)
        data = bytearray(file.read_bytes())
        data[at if isinstance(at, int) else int(at * len(data))] ^= 4
        file.write_bytes(data)

    return damage


def overwrite(ending: str, begin: int, content: bytes) -> Callable[[Killed], None]:
    """Put something else in the place of some bytes; the file becomes longer if need be."""

    def damage(killed: Killed) -> None:
        file = killed.file(ending)
        data = bytearray(file.read_bytes())
        data[begin : begin + len(content)] = content
        file.write_bytes(data)

    return damage


def noise(size_bytes: int) -> bytes:
    return Random(7).randbytes(size_bytes)


def both(*damages: Callable[[Killed], None]) -> Callable[[Killed], None]:
    def damage(killed: Killed) -> None:
        for one in damages:
            one(killed)

    return damage


def fill(ending: str, content: Callable[[int], bytes]) -> Callable[[Killed], None]:
    """Write other bytes of the same number."""

    def damage(killed: Killed) -> None:
        file = killed.file(ending)
        file.write_bytes(content(file.stat().st_size))

    return damage


def spoil_message(killed: Killed) -> None:
    """Flip a bit of a message that is in the log's own file alone."""
    needle = next(entry.rest for entry in killed.entries.values() if len(entry.rest) > 4_000)[-100:]
    data = bytearray(killed.log.read_bytes())
    data[data.index(needle)] ^= 1
    killed.log.write_bytes(data)


def append_noise(killed: Killed) -> None:
    with killed.file(WAL).open("ab") as file:
        file.write(noise(999))


def remove_folder_file(name: str) -> Callable[[Killed], None]:
    return lambda killed: (killed.folder / name).unlink()


FRAME_10 = WAL_HEAD_BYTES + 10 * FRAME_BYTES
WAL, WITNESS, SHM = "-wal", "-witness", "-shm"

DAMAGES: dict[str, tuple[str, Callable[[Killed], None]]] = {
    "nothing": ("intact", both()),
    # The write-ahead log: the newest messages are there alone.
    "wal deleted": ("reported", remove(WAL)),
    "wal and shm deleted": ("reported", remove(WAL, SHM)),
    "wal emptied": ("reported", cut(WAL, 0)),
    "wal cut within its header": ("reported", cut(WAL, 20)),
    "wal cut to its header": ("reported", cut(WAL, WAL_HEAD_BYTES)),
    "wal cut within a frame's header": ("reported", cut(WAL, FRAME_10 + 12)),
    "wal cut within a page": ("reported", cut(WAL, FRAME_10 + 8_000)),
    "wal cut between two frames": ("reported", cut(WAL, FRAME_10)),
    "wal cut by a half": ("reported", cut(WAL, 0.5)),
    "wal without its last byte": ("reported", lambda killed: cut(WAL, killed.file(WAL).stat().st_size - 1)(killed)),
    "wal of zeros": ("reported", fill(WAL, bytes)),
    "wal of noise": ("reported", fill(WAL, noise)),
    "a bit of the wal's magic": ("reported", flip(WAL, 0)),
    "a bit of the wal's page size": ("reported", flip(WAL, 9)),
    "a bit of the wal's salt": ("reported", flip(WAL, 17)),
    "a bit of the wal's header checksum": ("reported", flip(WAL, 28)),
    "a bit of a frame's page number": ("reported", flip(WAL, FRAME_10 + 3)),
    "a bit of a frame's commit mark": ("reported", flip(WAL, FRAME_10 + 6)),
    "a bit of a frame's salt": ("reported", flip(WAL, FRAME_10 + 9)),
    "a bit of a frame's checksum": ("reported", flip(WAL, FRAME_10 + 20)),
    "a bit of the wal's first page": ("reported", flip(WAL, WAL_HEAD_BYTES + 24 + 5_000)),
    "a bit in the wal's middle": ("reported", flip(WAL, 0.5)),
    "a page of the wal is noise": ("reported", overwrite(WAL, FRAME_10 + 24, noise(PAGE_BYTES))),
    "a hole of zeros in the wal": ("reported", overwrite(WAL, FRAME_10, bytes(3 * FRAME_BYTES))),
    "noise behind the wal": ("intact", append_noise),
    # The log's own file.
    "log deleted": ("refused", remove("")),
    "log and wal deleted": ("refused", remove("", WAL)),
    "log, wal and shm deleted": ("refused", remove("", WAL, SHM)),
    "log emptied": ("refused", cut("", 0)),
    "log and wal emptied": ("refused", both(cut("", 0), cut(WAL, 0))),
    "log cut to a page": ("refused", both(cut("", PAGE_BYTES), remove(WAL))),
    "log cut by a half": ("refused", both(cut("", 0.5), remove(WAL))),
    "log of noise": ("refused", both(overwrite("", 0, noise(200_000)), remove(WAL))),
    "a bit of the log's magic": ("refused", both(flip("", 3), remove(WAL))),
    "a bit of a page's head": ("refused", both(flip("", 3 * PAGE_BYTES), remove(WAL))),
    "a message of the log": ("reported", spoil_message),
    "log of zeros": ("refused", both(overwrite("", 0, bytes(300_000)), remove(WAL))),
    # What is beside them.
    "shm deleted": ("intact", remove(SHM)),
    "shm of noise": ("intact", overwrite(SHM, 0, noise(32_768))),
    "shm emptied": ("intact", cut(SHM, 0)),
    "witness deleted": ("reported", remove(WITNESS)),
    "witness emptied": ("reported", cut(WITNESS, 0)),
    "witness of noise": ("reported", overwrite(WITNESS, 0, noise(4 * SLOT_BYTES))),
    "a bit of the witness": ("intact", flip(WITNESS, 50)),
    "half of the witness": ("intact", cut(WITNESS, 2 * SLOT_BYTES)),
    "lock deleted": ("intact", remove_folder_file("lock")),
    "reset-key deleted": ("intact", remove_folder_file("reset-key")),
    "stages deleted": ("intact", lambda killed: (killed.folder / "stages").rmdir()),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_no_damage_is_silent(killed: Killed, name: str) -> None:
    expected, damage = DAMAGES[name]
    damage(killed)
    found = outcome(killed)
    assert found.kind == expected, found
    if expected == "refused":
        assert str(killed.log) in found.text
        assert "godwit log recover" in found.text
    if found.lost:
        assert expected == "refused" or f"{found.lost[0][0]:,}" in found.text or damage is spoil_message
    if expected != "intact" and "cannot be checked this time" not in found.text:
        assert not found.is_sound


def test_the_table_is_long() -> None:
    assert len(DAMAGES) > 40


def test_the_range_is_exact(killed: Killed) -> None:
    killed.file(WAL).unlink()
    found = outcome(killed)
    assert found.lost == [(killed.checkpointed, killed.next_offset)]
    assert f"offsets {killed.checkpointed} to {killed.next_offset - 1} of the log" in found.text


def test_blocks_behind_a_flipped_bit_are_put_back(killed: Killed) -> None:
    """SQLite ends the write-ahead log at the bit; all blocks but the one that it is in prove to be intact."""
    flip(WAL, 0.5)(killed)
    found = outcome(killed)
    lost = sum(end - begin for begin, end in found.lost)
    assert lost <= 3
    assert "found intact in the write-ahead log and put back" in found.text
    assert "kept as log.sqlite-wal.damaged" in found.text
    kept = killed.folder / "log.sqlite-wal.damaged"
    assert kept.stat().st_size > FRAME_BYTES


@pytest.mark.parametrize("frame", [None, 0, 3, 20, 60])
def test_zeros_behind_the_frames_change_nothing(killed: Killed, frame: int | None) -> None:
    """A broker makes the write-ahead log longer than its frames, see SqliteStore.extend_wal."""
    extended = killed._replace(folder=killed.folder.with_name("extended"))
    shutil.copytree(killed.folder, extended.folder)
    with extended.file(WAL).open("ab") as file:
        file.write(bytes(1 << 20))
    outcomes = []
    for one in (killed, extended):
        if frame is not None:
            flip(WAL, WAL_HEAD_BYTES + frame * FRAME_BYTES + 1000)(one)
        found = outcome(one)
        outcomes.append(found._replace(text=found.text.replace(str(one.folder), "")))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].kind == ("intact" if frame is None else "reported")


def test_a_lost_checksum_costs_no_message(killed: Killed) -> None:
    flip(WAL, 28)(killed)
    found = outcome(killed)
    assert found.lost == []
    assert "All of them were found intact" in found.text


def test_job_numbers_are_not_used_again(killed: Killed) -> None:
    killed.file(WAL).unlink()
    store = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=2)
    assert store.state().next_job > LOST_JOBS
    store.close()


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_settled_subscriptions_resume_before_what_is_lost_or_put_back(killed: Killed, damage: str) -> None:
    """Their rows are older than that: some of it may be for them."""
    store = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=2)
    end = store.next_offset
    store.append([], [SubscriptionRow("quiet", ("a/#",), None, 0, quiet_from=0, is_settled=True)])
    store.checkpoint(truncate=True)
    store.append(
        [make_entry(b"for it", topic="a/b", received_us=LATER_US)], [SubscriptionRow("quiet", ("a/#",), None, end)]
    )
    folder = killed.folder.parent / "copy"
    shutil.copytree(killed.folder, folder)
    store.close()
    copy = killed._replace(folder=folder)
    if damage == "cut":
        copy.file(WAL).unlink()
    else:
        flip(WAL, 28)(copy)
    store = SqliteStore.open(copy.log, new_log_id=bytes(16), now_us=2)
    assert store.next_offset > end
    assert SubscriptionRow("quiet", ("a/#",), None, end, quiet_from=0) in store.state().subscriptions
    store.close()


def test_changes_that_are_missing_are_reported(killed: Killed) -> None:
    """The last commits were cursors alone: no offset is missing."""
    store = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=2)
    store.checkpoint(truncate=True)
    store.append([], [SubscriptionRow("me", ("#",), None, 1_000)])
    copy = killed.folder.parent / "copy"
    shutil.copytree(killed.folder, copy)
    store.close()
    (copy / "log.sqlite-wal").unlink()
    verdict = verify(copy / "log.sqlite", lambda *_: None)
    assert (verdict.is_sound, verdict.missing, verdict.lacks_changes) == (False, None, True)
    again = SqliteStore.open(copy / "log.sqlite", new_log_id=bytes(16), now_us=3)
    (finding,) = again.findings
    assert "no message is missing, but sessions, cursors, retained messages and jobs may be older" in finding
    again.close()


def test_a_checkpoint_by_another_program_is_no_loss_of_messages(killed: Killed) -> None:
    """As the sqlite3 command does when it ends."""
    import apsw

    connection = apsw.Connection(str(killed.log))
    connection.execute("SELECT count(*) FROM blocks").fetchall()
    connection.close()
    found = outcome(killed)
    assert found.lost == []
    assert "unless another program has moved it" in found.text


def test_an_older_copy_in_the_same_folder(killed: Killed) -> None:
    """A backup is restored over a log that went on: what came after it is reported, and no offset is used again."""
    older = killed.folder.parent / "older.sqlite"
    backup(killed.log, older, lambda *_: None)
    store = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=2)
    for _ in range(5):
        store.append([make_entry(b"newer", received_us=LATER_US)])
    store.close()
    shutil.copy(older, killed.log)
    store = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=3)
    lost = (killed.next_offset, killed.next_offset + 5)
    assert store.read(0, EVERYTHING).damaged == [lost]
    assert store.next_offset == lost[1]
    assert f"offsets {lost[0]} to {lost[1] - 1} of the log" in store.findings[0]
    store.close()


def test_another_log_in_the_same_folder_is_named(killed: Killed, tmp_path: Path) -> None:
    for ending in (WAL, SHM):
        killed.file(ending).unlink()
    other = SqliteStore.open(tmp_path / "other.sqlite", new_log_id=b"another log's id", now_us=1)
    other.close()
    shutil.copy(tmp_path / "other.sqlite", killed.log)
    store = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=2)
    (finding,) = store.findings
    assert "is not the log that was last used in this folder" in finding
    assert b"another log's id".hex() in finding
    store.close()


def test_a_log_that_lacks_messages_is_not_compacted(killed: Killed) -> None:
    killed.file(WAL).unlink()
    with pytest.raises(LogDamagedError, match="were confirmed and are missing"):
        compact(killed.log, lambda *_: None)


def test_a_broker_tells_its_operator(killed: Killed) -> None:
    killed.file(WAL).unlink()
    log = DurableLog(killed.folder, [], now_us=2, wake=lambda: None, on_notice=lambda notice: None)
    assert "were confirmed and are missing" in log.findings[0]
    log.log.end()
    log.folder.close()
