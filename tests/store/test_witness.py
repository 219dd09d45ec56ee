"""The witness: what it records, and that no torn, lost or foreign byte is believed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.entries import LOG_ID

from godwit.store.witness import (
    SLOT_BYTES,
    SUFFIX,
    Witness,
    WitnessRecord,
    current_boot_id,
    decode,
    newest,
    read_witness,
    write_witness,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The log's own file, whose rights it takes."""
    path = tmp_path / "log.sqlite"
    path.touch(mode=0o600)
    return path


def opened(path: Path) -> Witness:
    witness = Witness(path, None)
    witness.begin(LOG_ID, 0)
    witness.confirm(5, 50, 1)
    return witness


def read(path: Path) -> WitnessRecord:
    record = read_witness(path)
    assert record is not None
    return record


def test_a_commit_is_reserved_and_confirmed(path: Path) -> None:
    witness = opened(path)
    witness.reserve(9)
    assert (read(path).confirmed, read(path).reserved) == (5, 9)
    witness.confirm(9, 90, 4)
    found = read(path)
    assert (found.confirmed, found.reserved, found.received_us, found.frames, found.backfilled) == (9, 9, 90, 4, 0)
    witness.close(is_final=False)
    assert not read(path).is_final
    assert read(path).is_exact, "the machine has not been off since"


def test_a_log_that_was_closed_in_order(path: Path) -> None:
    witness = opened(path)
    witness.confirm(9, 90, 4)
    witness.close(is_final=True)
    found = read(path)
    assert (found.confirmed, found.is_final, found.is_exact) == (9, True, True)


def begin_wal(path: Path, salts: bytes) -> None:
    Path(f"{path}-wal").write_bytes(bytes(16) + salts + bytes(8))


def test_frames_and_salts_follow_the_write_ahead_log(path: Path) -> None:
    begin_wal(path, b"salts #1")
    witness = opened(path)

    def recorded() -> tuple[int, int, bytes]:
        return read(path).frames, read(path).backfilled, read(path).salts

    witness.confirm(9, 90, 4)
    assert recorded() == (4, 0, b"salts #1")
    witness.begin_checkpoint()
    assert read(path).is_checkpointing
    witness.end_checkpoint(4, 3)  # a reader was in the way
    assert not read(path).is_checkpointing
    witness.confirm(10, 90, 6)
    assert recorded() == (6, 3, b"salts #1")
    witness.begin_checkpoint()
    witness.end_checkpoint(6, 6)
    begin_wal(path, b"salts #2")  # SQLite begins it anew, with more frames than it had
    witness.confirm(11, 90, 8)
    assert recorded() == (8, 0, b"salts #2")
    witness.close(is_final=False)


NEEDED = WitnessRecord(log_id=LOG_ID, frames=9, backfilled=4, salts=b"salts #1")
COPIED = WitnessRecord(log_id=LOG_ID, frames=9, backfilled=9, salts=b"salts #1")
COPYING = WitnessRecord(log_id=LOG_ID, frames=9, backfilled=4, salts=b"salts #1", is_checkpointing=True)
EMPTY = WitnessRecord(log_id=LOG_ID, frames=0, backfilled=0, salts=b"salts #1")


@pytest.mark.parametrize(
    ("record", "salts", "frames", "condition"),
    [
        (NEEDED, b"salts #1", 9, "complete"),
        (NEEDED, b"salts #1", 10, "complete"),  # killed before the last commit was recorded
        (NEEDED, b"salts #1", 8, "short"),
        (NEEDED, b"salts #1", 4, "short"),
        (NEEDED, b"salts #1", 3, "torn"),  # the file has newer pages than what is left
        (NEEDED, bytes(8), 0, "short"),  # deleted: the file is what it was after the checkpoint
        (NEEDED, b"salts #2", 3, "short"),
        (COPIED, b"salts #1", 9, "complete"),
        (COPIED, b"salts #1", 3, "needless"),
        (COPIED, b"salts #2", 3, "complete"),  # begun anew
        (COPIED, bytes(8), 0, "complete"),
        (COPYING, b"salts #1", 9, "complete"),
        (COPYING, b"salts #1", 8, "torn"),
        (COPYING, bytes(8), 0, "torn"),
        (EMPTY, b"salts #2", 0, "complete"),
        (EMPTY, b"salts #2", 3, "complete"),
    ],
)
def test_conditions(record: WitnessRecord, salts: bytes, frames: int, condition: str) -> None:
    assert record.judge(salts, frames) == condition


def test_a_record_of_another_log_or_boot(path: Path) -> None:
    record = WitnessRecord(log_id=LOG_ID, boot_id=bytes(15) + b"x", confirmed=9, reserved=12)
    assert not record.is_exact
    assert record.missing_after(LOG_ID, 4) == (4, 12)
    assert record.missing_after(LOG_ID, 9) is None
    assert record.missing_after(b"other", 4) is None


def test_all_slots_survive_a_new_start(path: Path) -> None:
    write_witness(path, LOG_ID, 7, 70)
    for confirmed in range(8, 20):
        witness = Witness(path, None)
        assert witness.found is not None
        assert witness.found.confirmed == confirmed - 1
        witness.begin(LOG_ID, 0)
        witness.confirm(confirmed, 1, 1)
        witness.sync()
        witness.close(is_final=False)
        assert read(path).confirmed == confirmed


def test_it_does_not_grow(path: Path) -> None:
    witness = opened(path)
    before_bytes = Path(f"{path}{SUFFIX}").stat().st_size
    for end in range(100):
        witness.reserve(end)
        witness.confirm(end, 1, 1)
        witness.sync()
    witness.close(is_final=True)
    assert Path(f"{path}{SUFFIX}").stat().st_size == before_bytes == 4 * SLOT_BYTES


def test_a_torn_write_spares_a_synced_record(path: Path) -> None:
    """Whichever two slots a power failure spoils while they are written: the synced ones are not written at once."""
    witness = opened(path)
    witness.confirm(20, 1, 1)
    witness.sync()
    witness.confirm(30, 1, 1)
    witness.sync()
    witness.reserve(40)
    witness.close(is_final=False)
    file = Path(f"{path}{SUFFIX}")
    data = bytearray(file.read_bytes())
    data[: 2 * SLOT_BYTES] = bytes(range(256)) * 4  # both that were not synced
    file.write_bytes(data)
    assert read(path).confirmed == 30
    synced = [decode(bytes(data[at : at + SLOT_BYTES])) for at in (2 * SLOT_BYTES, 3 * SLOT_BYTES)]
    assert sorted(record.confirmed for record in synced if record is not None) == [20, 30]
    again = Witness(path, None)
    again.begin(LOG_ID, 0)  # goes into the older one
    again.confirm(50, 1, 1)
    again.sync()
    again.close(is_final=False)
    data = bytearray(file.read_bytes())
    kept = [decode(bytes(data[at : at + SLOT_BYTES])) for at in (2 * SLOT_BYTES, 3 * SLOT_BYTES)]
    assert sorted(record.confirmed for record in kept if record is not None) == [30, 50]
    assert again.found is not None
    assert again.found.confirmed == 30


def test_a_damaged_one_is_not_believed(path: Path) -> None:
    Path(f"{path}{SUFFIX}").write_bytes(b"x" * 4 * SLOT_BYTES)
    assert read_witness(path) is None
    witness = Witness(path, None)
    assert (witness.found, witness.is_damaged) == (None, True)
    witness.begin(LOG_ID, 0)
    witness.confirm(3, 1, 1)
    witness.close(is_final=False)
    assert read(path).confirmed == 3


def test_a_missing_one(path: Path) -> None:
    assert read_witness(path) is None
    witness = Witness(path, None)
    assert (witness.found, witness.is_damaged) == (None, False)
    witness.close(is_final=False)


@given(st.binary(max_size=4 * SLOT_BYTES + 7))
def test_any_bytes_give_a_record_or_none(data: bytes) -> None:
    found = newest(data)
    assert found is None or isinstance(found, WitnessRecord)


@given(st.data())
def test_every_changed_byte_is_noticed(data: st.DataObject) -> None:
    record = bytearray(SLOT)
    at = data.draw(st.integers(0, USED_BYTES - 1))
    record[at] ^= data.draw(st.integers(1, 255))
    assert decode(bytes(record)) is None


def test_the_boot_id_is_that_of_the_machine() -> None:
    assert current_boot_id() == current_boot_id()
    assert len(current_boot_id()) == 16


def _slot() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.sqlite"
        path.touch()
        write_witness(path, LOG_ID, 7, 70)
        return Path(f"{path}{SUFFIX}").read_bytes()[2 * SLOT_BYTES : 3 * SLOT_BYTES]


SLOT = _slot()
USED_BYTES = len(SLOT.rstrip(b"\0"))
