"""A file as a replica: steps in one transaction with their place, adoption of a log, and an older copy of itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import msgspec
import pytest
from tests.store.entries import LOG_ID, make_entry

from godwit.errors import LogDamagedError, LogVersionError
from godwit.store.block import encode_blocks
from godwit.store.reader import LogReader
from godwit.store.recover import recover
from godwit.store.replica import (
    FIRST_STORED_FORMAT,
    FORMAT,
    AppendStep,
    ClaimStep,
    ForeignLogError,
    Place,
    ReplicaStore,
    Step,
    read_place,
)
from godwit.store.schema import QUERIES
from godwit.store.state import LogMeta, with_checksum
from godwit.wire.changes import NextJobRow, TopicRow

META = LogMeta(LOG_ID, 5, b"secret-8")
CLAIM = ClaimStep(META, b"writer-1", 0)


def open_replica(path: Path, number: int = 1) -> ReplicaStore:
    return ReplicaStore.open(path, new_log_id=bytes([number]) * 16, now_us=77)


def append(first_offset: int, *payloads: bytes) -> AppendStep:
    return AppendStep(encode_blocks([make_entry(*payloads)], first_offset, META.stamp), [TopicRow("a/b", first_offset)])


def place(position: int, writer: bytes = b"writer-1") -> Place:
    return Place(position, 1, position, position * 7, writer)


def dump(store: ReplicaStore) -> list[object]:
    names = ("blocks", "state", "epochs", "meta")
    return [store.connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in names]


STEPS: list[Step] = [CLAIM, append(0, b"1", b"2"), append(2, b"3"), ClaimStep(META, b"writer-2", 3), append(3, b"4")]


def test_files_are_equal_however_steps_are_grouped(tmp_path: Path) -> None:
    one, two = open_replica(tmp_path / "one"), open_replica(tmp_path / "two", 2)
    writers = [b"writer-1"] * 3 + [b"writer-2"] * 2
    for number, (step, writer) in enumerate(zip(STEPS, writers, strict=True), 1):
        one.apply([step], place(number, writer))
    two.apply(STEPS, place(5, b"writer-2"))
    assert dump(one) == dump(two)
    for store in (one, two):
        assert (store.meta, store.next_offset, store.place) == (META, 4, place(5, b"writer-2"))
        assert [tuple(epoch) for epoch in store.epochs] == [(b"writer-1", 0), (b"writer-2", 3)]
        assert store.state().topics == [TopicRow("a/b", 3)]
        store.close()
    again = open_replica(tmp_path / "one")
    again.apply([append(4, b"5")], place(6, b"writer-2"))  # no new epoch: the claim is the same
    assert [tuple(epoch) for epoch in again.epochs] == [(b"writer-1", 0), (b"writer-2", 3)]
    assert again.findings == []
    again.close()
    reader = LogReader.open(tmp_path / "one")
    assert sum(entry.count for _, entry in reader.read(0, 10**6).entries) == 5
    reader.close()


def test_a_new_file_has_no_place_and_no_content(tmp_path: Path) -> None:
    store = open_replica(tmp_path / "log")
    assert (store.place, store.has_content) == (Place(), False)
    store.apply([CLAIM, AppendStep([], [NextJobRow(3)])], place(2))
    assert store.has_content
    with pytest.raises(TypeError, match="apply only"):
        store.append([make_entry()])
    store.close()


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (append(7, b"x"), "ends at offset 3, and the cluster continues at 7"),
        (ClaimStep(META, b"writer-2", 9), "at the same place"),
        (ClaimStep(LogMeta(bytes(16), 5, b"secret-8"), b"writer-2", 2), "has the id"),
    ],
)
def test_a_step_that_does_not_fit_changes_nothing(tmp_path: Path, step: Step, text: str) -> None:
    store = open_replica(tmp_path / "log")
    store.apply(STEPS[:2], place(2))
    before = dump(store)
    with pytest.raises(ForeignLogError, match=text):
        store.apply([append(2, b"3"), step], place(4))
    assert dump(store) == before
    assert store.place == place(2)
    store.apply([append(2, b"3")], place(3))
    store.close()


def test_a_cluster_that_began_with_a_log_needs_that_log(tmp_path: Path) -> None:
    store = open_replica(tmp_path / "log")
    with pytest.raises(ForeignLogError, match="begun with a log of 9 messages"):
        store.apply([ClaimStep(META, b"writer-1", 9)], place(1))
    store.close()


def test_an_older_copy_is_not_repaired(tmp_path: Path) -> None:
    """The witness knows of later messages, which a replica reads again instead of declaring them lost."""
    path = tmp_path / "log"
    store = open_replica(path)
    store.apply(STEPS[:2], place(2))
    store.close()
    shutil.copy(path, tmp_path / "copy")
    store = open_replica(path)
    store.apply([append(2, b"3")], place(3))
    store.close()
    shutil.copy(tmp_path / "copy", path)
    store = open_replica(path)
    assert (store.next_offset, store.place, store.findings) == (2, place(2), [])
    store.close()


def test_a_damaged_place_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log"
    store = open_replica(path)
    store.apply([CLAIM], place(1))
    store.close()
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE meta SET value = x'00' WHERE key = 'place'")
    connection.close()
    with pytest.raises(LogDamagedError, match="damaged"):
        open_replica(path)


def replace_place(path: Path, value: object) -> None:
    """Write a place as another version does."""
    connection = apsw.Connection(str(path))
    connection.execute(QUERIES["replace_meta"], with_checksum(("place", msgspec.msgpack.encode(value))))
    connection.close()


def make_file(path: Path) -> Place:
    store = open_replica(path)
    store.apply([CLAIM, append(0, b"1")], place(2))
    found = store.place
    store.close()
    return found


@pytest.mark.parametrize("more", [(), ("a later field", b"x" * 300)])
def test_a_place_of_a_newer_format_is_refused_and_the_file_is_not_changed(tmp_path: Path, more: tuple[object]) -> None:
    path = tmp_path / "log"
    *fields, known = msgspec.structs.astuple(make_file(path))
    assert known == FIRST_STORED_FORMAT
    replace_place(path, [*fields, FORMAT + 1, *more])
    before = path.read_bytes()
    for attempt in (open_replica, read_place):
        with pytest.raises(
            LogVersionError, match=f"in the format {FORMAT + 1} of records, and .* knows {FORMAT}: update"
        ):
            attempt(path)
    assert path.read_bytes() == before


def test_a_place_without_a_format_is_brought_forward(tmp_path: Path) -> None:
    path = tmp_path / "log"
    found = make_file(path)
    replace_place(path, msgspec.structs.astuple(found)[:-1])
    store = open_replica(path)
    assert store.place == found
    store.apply([append(1, b"2")], place(3))
    store.close()
    assert read_place(path).place.format == FIRST_STORED_FORMAT


def test_a_missing_file_is_fetched_again_and_not_recovered(tmp_path: Path) -> None:
    """The cluster has everything; a recovered file would have no place in it."""
    path = tmp_path / "log.sqlite"
    replica = open_replica(path)
    replica.apply([CLAIM, append(0, b"one", b"two")], Place(2, 1, 2, 7, b"writer-1"))
    replica.close()
    path.unlink()
    with pytest.raises(LogDamagedError) as refusal:
        open_replica(path)
    assert "messages up to offset 1 were confirmed in it" in str(refusal.value)
    assert "the node fetches everything from the cluster, or from a backup of another node with `godwit" in str(
        refusal.value
    )
    assert "recover" not in str(refusal.value)


def test_recover_reports_that_a_file_leaves_its_cluster(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    replica = open_replica(path)
    replica.apply([CLAIM, append(0, b"one", b"two")], Place(2, 1, 2, 7, b"writer-1"))
    replica.close()
    saved = recover(path, tmp_path / "saved.sqlite", new_log_id=bytes(16), now_us=1, progress=lambda *_: None)
    assert (saved.was_replica, saved.messages, saved.lacks_changes) == (True, 2, False)
    assert read_place(tmp_path / "saved.sqlite").place == Place()
