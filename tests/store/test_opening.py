"""A table of damages to every file of a broker's folder: each is repaired, refused in one sentence or reported in full.

The folder is that of a process that was killed in the midst of its work: a part of the log is in its file, the newest
messages are in the write-ahead log alone. Whatever happens to these files, no confirmed message may be missing without
a report that names its offset, no message may be lost that is intact in a file, and no offset may be given to another
message. The same holds after a power failure, and for a folder that was closed in order.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c
from tests.store.entries import make_entry, make_job

from godwit.cli.log_maintenance import run_recover
from godwit.errors import GodwitError, LogDamagedError, StorageError
from godwit.net.durable_log import DurableLog
from godwit.store.folder import LOG_FILES, RESERVE_BYTES, DataFolder
from godwit.store.maintenance import backup, compact, verify
from godwit.store.recover import LOST_END, LOST_JOBS
from godwit.store.retention import Retention, RetentionRule
from godwit.store.sqlite import SqliteStore
from godwit.store.sqlite_pages import FRAME_BYTES, PAGE_BYTES, WAL_HEAD_BYTES
from godwit.store.witness import SLOT_BYTES, decode, read_witness
from godwit.wire.batch import Entry
from godwit.wire.changes import Change, JobPayloadRow, NextJobRow, SubscriptionRow

EVERYTHING = 2**40
LATER_US = 10**9
WAL, WITNESS, SHM = "-wal", "-witness", "-shm"
UNCHECKED = "cannot be checked this time"
"""In the finding of a start without a witness."""


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


class Templates(NamedTuple):
    killed: Killed
    without_power: Killed
    closed: Killed


@contextmanager
def opened(folder: Path, now_us: int) -> Iterator[SqliteStore]:
    """Open a folder and its log as DurableLog does."""
    data = DataFolder(folder)
    data.open()
    try:
        assert len(data.reset_key(b"k" * 32)) == 32
        store = SqliteStore.open(data.log_path, new_log_id=now_us.to_bytes(16, "little"), now_us=now_us)
        try:
            data.mark_log()
            yield store
        finally:
            store.close()
    finally:
        data.close()


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """Copied from under a store that is at work, as the files are when its process is killed; and after its end."""
    work, folder = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("killed")
    with opened(work, 1) as store:
        entries, checkpointed = fill_log(store)
        shutil.copytree(work, folder, dirs_exist_ok=True)
        killed = Killed(folder, entries, store.next_offset, checkpointed)
    without_power = killed._replace(folder=tmp_path_factory.mktemp("without_power"))
    shutil.copytree(folder, without_power.folder, dirs_exist_ok=True)
    change_boot_id(without_power.file("-witness"))
    return Templates(killed, without_power, killed._replace(folder=work, checkpointed=killed.next_offset))


def change_boot_id(witness: Path) -> None:
    """Make it a witness of an earlier run of the machine; see its format in godwit.store.witness."""
    data = bytearray(witness.read_bytes())
    for begin in range(0, len(data), SLOT_BYTES):
        if decode(bytes(data[begin : begin + SLOT_BYTES])) is not None:
            data[begin + 22 : begin + 38] = b"another boot id."
            data[begin + 86 : begin + 90] = crc32c(bytes(data[begin : begin + 86])).to_bytes(4, "little")
    witness.write_bytes(data)
    record = read_witness(witness.with_name("log.sqlite"))
    assert record is not None
    assert not record.is_exact


def fill_log(store: SqliteStore) -> tuple[dict[int, Entry], int]:
    """Return all entries, and the offset up to which the log's own file has them."""
    rng = Random(13)
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
    return entries, checkpointed


@pytest.fixture
def killed(templates: Templates, tmp_path: Path) -> Killed:
    return copy_of(templates.killed, tmp_path)


def copy_of(template: Killed, tmp_path: Path) -> Killed:
    folder = tmp_path / "data"
    shutil.copytree(template.folder, folder)
    return template._replace(folder=folder)


# -- intact messages --------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A page, or a frame of the write-ahead log, with a part of a message."""

    ending: str
    begin: int
    end: int


def parts_of(template: Killed) -> dict[int, list[list[Part]]]:
    """Return where the messages are, by offset: for some bytes of each page that it has, the parts that have them."""
    files = {ending: template.file(ending).read_bytes() for ending in ("", WAL) if template.file(ending).exists()}
    found: dict[int, list[list[Part]]] = {}
    for offset, entry in template.entries.items():
        samples = [entry.rest[at : at + 24] for at in range(0, len(entry.rest) - 20, 4_000)] + [entry.rest[-20:]]
        places = [
            [part_at(ending, at) for ending, data in files.items() if (at := data.rfind(sample)) >= 0]
            for sample in samples
        ]
        found[offset] = [place for place in places if place]  # the others cross the end of a page
        assert found[offset]
    return found


def part_at(ending: str, at: int) -> Part:
    head_bytes, size_bytes = (WAL_HEAD_BYTES, FRAME_BYTES) if ending else (0, PAGE_BYTES)
    begin = at - (at - head_bytes) % size_bytes
    return Part(ending, begin, begin + size_bytes)


def intact_offsets(template: Killed, damaged: Killed, parts: dict[int, list[list[Part]]]) -> set[int]:
    """Return the offsets of messages with all pages unchanged, in one file or the other."""
    files = [
        (one.file(end).read_bytes() if one.file(end).exists() else b"")
        for one in (template, damaged)
        for end in ("", WAL)
    ]
    before, after = {"": files[0], WAL: files[1]}, {"": files[2], WAL: files[3]}

    def is_unchanged(part: Part) -> bool:
        return before[part.ending][part.begin : part.end] == after[part.ending][part.begin : part.end]

    return {
        offset + index
        for offset, places in parts.items()
        if all(any(map(is_unchanged, place)) for place in places)
        for index in range(template.entries[offset].count)
    }


@pytest.fixture(scope="module")
def parts(templates: Templates) -> list[dict[int, list[list[Part]]]]:
    return [parts_of(template) for template in templates]


# -- what follows -----------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    kind: str
    """intact, reported, unchecked (reported, and the end is unknown), refused, or hopeless: recover refuses it too."""
    text: str
    """The sentence of the refusal, or the findings."""
    is_sound: bool
    """By `verify`, before anything was opened for writing."""
    lost: list[tuple[int, int]]
    """Ranges that readers get as damaged."""
    named: list[tuple[int, int]]
    """Lost ranges in the report of `verify`, or in that of `recover` if the start was refused."""


def outcome(killed: Killed) -> Outcome:
    """Verify and open the log; if that is refused, recover it first. Check that nothing is missing in silence."""
    try:
        verdict = verify(killed.log, lambda *_: None)
        is_sound, named = verdict.is_sound, verdict.damaged
    except StorageError:
        is_sound, named = False, []
    refusal = ""
    try:
        findings, lost = start(killed)
    except StorageError as error:
        refusal = str(error)
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                run_recover(killed.folder, as_json=True)
        except GodwitError as hopeless:
            check_sentence(killed, str(hopeless))
            return Outcome("hopeless", refusal, is_sound, [], [])
        named = [(begin, end) for begin, end in json.loads(printed.getvalue())["missing"]]
        findings, lost = start(killed)
    assert is_sound <= (not lost), "verify has found nothing, and messages are lost"
    # The next start has no findings: all of it is settled.
    with opened(killed.folder, 3) as again:
        assert again.findings == []
        assert again.read(0, EVERYTHING).damaged == lost
    text = refusal or " | ".join(findings)
    kind = "refused" if refusal else "reported" if text or lost else "intact"
    return Outcome("unchecked" if UNCHECKED in text else kind, text, is_sound, lost, named)


def start(killed: Killed) -> tuple[list[str], list[tuple[int, int]]]:
    """Open the log as a broker, and return the findings and the lost ranges."""
    with opened(killed.folder, 2) as store:
        found = store.read(0, EVERYTHING)
        lost = {offset for begin, end in found.damaged for offset in range(begin, min(end, killed.next_offset))}
        there = {offset + index for offset, entry in found.entries for index in range(entry.count)}
        for offset, entry in found.entries:
            assert killed.entries[offset] == entry, f"offset {offset} holds another message"
        assert not lost & there, "a message is reported as lost, and can be read"
        silent = set(range(killed.next_offset)) - lost - there
        begin = store.append([make_entry(b"new", received_us=LATER_US)])
        if any(UNCHECKED in finding for finding in store.findings):
            # The last messages may be missing, and readers notice by the epoch.
            assert silent == set(range(begin, killed.next_offset))
            assert store.epochs[-1].first_offset == begin
        else:
            assert not silent, f"offsets {sorted(silent)} are missing without a report"
            assert begin >= killed.next_offset, "an offset is used again"
        return store.findings, found.damaged


def check_sentence(killed: Killed, text: str) -> None:
    """Check that it is one sentence or two for an operator, about a file, with a remedy."""
    assert str(killed.log) in text
    assert "\n" not in text
    assert len(text) < 500
    assert not any(word in text for word in ("Traceback", "Error(", "Errno", "object at 0x", "None"))
    assert "estore a backup" in text


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
            killed.file(ending).unlink(missing_ok=True)

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


def put(content: bytes | None, *names: str) -> Callable[[Killed], None]:
    """Write files of the folder; None: delete them."""

    def damage(killed: Killed) -> None:
        for name in names:
            file = killed.folder / name
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)

    return damage


def prepare_replacement(killed: Killed) -> None:
    """Leave what a `recover` leaves that is killed before its last steps."""
    backup(killed.log, killed.file(".next"), lambda *_: None)


FRAME_10 = WAL_HEAD_BYTES + 10 * FRAME_BYTES
SPOILED_WITNESS = overwrite(WITNESS, 0, noise(4 * SLOT_BYTES))
DRAFTS = [
    f"log.sqlite{end}" for end in (".saved", ".saved.draft", ".compact", ".compact.draft", ".seed", ".next.draft")
]

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
    "witness deleted": ("unchecked", remove(WITNESS)),
    "witness emptied": ("unchecked", cut(WITNESS, 0)),
    "witness of noise": ("unchecked", SPOILED_WITNESS),
    "a bit of the witness": ("intact", flip(WITNESS, 50)),
    "half of the witness": ("intact", cut(WITNESS, 2 * SLOT_BYTES)),
    "lock deleted": ("intact", put(None, "lock")),
    "lock of noise": ("intact", put(noise(99), "lock")),
    "reset-key deleted": ("intact", put(None, "reset-key")),
    "reset-key emptied": ("intact", put(b"", "reset-key")),
    "reset-key cut": ("intact", put(bytes(31), "reset-key")),
    "reset-key of noise": ("intact", put(noise(32), "reset-key")),
    "reset-key of more noise": ("intact", put(noise(99), "reset-key", "reset-key.new")),
    "reserve deleted": ("intact", put(None, "reserve")),
    "reserve cut": ("intact", put(bytes(99), "reserve")),
    "reserve of noise": ("intact", put(noise(RESERVE_BYTES), "reserve")),
    "stages deleted": ("intact", lambda killed: (killed.folder / "stages").rmdir()),
    "stages cut and of noise": ("intact", both(put(b"", "stages/a.stage"), put(noise(99), "stages/b.stage"))),
    "drafts of noise": ("intact", put(noise(99), *DRAFTS, "stages/0.part", ".godwit-1.part")),
    "a log that is to replace this one": ("intact", prepare_replacement),
    "a log that is to replace this one, wal deleted": ("intact", both(prepare_replacement, remove(WAL))),
    # More than one file.
    "witness and wal deleted": ("unchecked", remove(WITNESS, WAL)),
    "witness emptied, wal cut": ("unchecked", both(cut(WITNESS, 0), cut(WAL, FRAME_10))),
    "witness and log deleted": ("refused", remove(WITNESS, "")),
    "witness of noise, log deleted": ("refused", both(SPOILED_WITNESS, remove(""))),
    "witness of noise, log emptied": ("refused", both(SPOILED_WITNESS, cut("", 0))),
    "witness of noise, log and wal deleted": ("hopeless", both(SPOILED_WITNESS, remove("", WAL))),
    "witness of noise, log and wal emptied": ("hopeless", both(SPOILED_WITNESS, cut("", 0), cut(WAL, 0))),
    "witness emptied, log and wal deleted": ("hopeless", both(cut(WITNESS, 0), remove("", WAL))),
    "witness, log and wal deleted": ("hopeless", remove("", WAL, WITNESS)),
    "witness, log, wal and shm deleted": ("hopeless", remove("", WAL, WITNESS, SHM)),
    "witness and wal deleted, log emptied": ("hopeless", both(cut("", 0), remove(WAL, WITNESS))),
}
WAL_WORDS = ("the wal", "frame", "wal emptied", "wal cut", "shm of", "shm emptied")
"""In the names of rows that need a write-ahead log."""
CLOSED = {
    "half of the witness": "refused",  # the records that are left are of the last checkpoint, before its end
    "witness and log deleted": "hopeless",
    "witness of noise, log deleted": "hopeless",
    "witness of noise, log emptied": "hopeless",
}
"""Differences for a folder that was closed in order, which has no write-ahead log."""
CLOSED_NAMES = [name for name in DAMAGES if not name.startswith("wal") and not any(word in name for word in WAL_WORDS)]
ROWS = [(name, kind) for kind in Templates._fields for name in (CLOSED_NAMES if kind == "closed" else DAMAGES)]


@pytest.mark.parametrize(("name", "kind"), ROWS)
def test_no_damage_is_silent(
    templates: Templates, parts: list[dict[int, list[list[Part]]]], tmp_path: Path, name: str, kind: str
) -> None:
    index = Templates._fields.index(kind)
    killed = copy_of(templates[index], tmp_path)
    expected, damage = DAMAGES[name]
    if kind == "closed":
        expected = CLOSED.get(name, expected)
    damage(killed)
    intact = intact_offsets(templates[index], killed, parts[index])
    found = outcome(killed)
    assert found.kind == expected, found
    lacks_wal = "wal deleted" in name and kind != "closed"
    assert found.is_sound == (expected == "intact" and not lacks_wal)
    if expected in ("refused", "hopeless"):
        check_sentence(killed, found.text)
    if expected == "hopeless":
        assert f"to begin a new log, move {LOG_FILES} of this folder away" in found.text
        assert not intact
        begin_anew(killed)
        return
    if expected == "refused":
        assert "godwit log recover" in found.text
    lost = {offset for begin, end in found.lost for offset in range(begin, min(end, killed.next_offset))}
    assert not lost & intact, "intact messages are reported as lost"
    for begin, end in found.lost:
        is_named = (begin, end) in found.named or f"{begin:,} to {end - 1:,}" in found.text
        assert is_named or (end == begin + 1 and f"{begin:,}" in found.text)
        is_end_unknown = expected == "refused" and not (kind == "killed" and "witness" not in name)
        assert end <= killed.next_offset or (is_end_unknown and end <= killed.next_offset + LOST_END)


ACCEPTED = [(name, kind) for name, kind in ROWS if DAMAGES[name][0] not in ("refused", "hopeless")]


@pytest.mark.parametrize(("name", "kind"), [*ACCEPTED, *((name, "checkpointed") for name in DAMAGES)])
def test_recover_keeps_everything_that_a_start_keeps(
    templates: Templates, checkpointed: Killed, tmp_path: Path, name: str, kind: str
) -> None:
    """An operator may run it where the broker would have started, and loses nothing by that."""
    template = checkpointed if kind == "checkpointed" else getattr(templates, kind)
    started, repaired = (copy_of(template, tmp_path / way) for way in ("started", "recovered"))
    for one in (started, repaired):
        DAMAGES[name][1](one)
    try:
        _, lost = start(started)
    except StorageError:
        return  # see test_no_damage_is_silent
    recovered(repaired)
    _, lost_by_recover = start(repaired)
    assert offsets_of(lost_by_recover, repaired) <= offsets_of(lost, started)
    assert first_new_job(repaired) >= first_new_job(started)


def offsets_of(ranges: list[tuple[int, int]], killed: Killed) -> set[int]:
    return {offset for begin, end in ranges for offset in range(begin, min(end, killed.next_offset))}


def first_new_job(killed: Killed) -> int:
    with opened(killed.folder, 4) as store:
        return store.state().next_job


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return checkpointed_copy(tmp_path_factory.mktemp("checkpointed") / "data")


def begin_anew(killed: Killed) -> None:
    """Do as the sentence advises: the keys in the folder stay."""
    away = killed.folder.with_name("away")
    away.mkdir()
    for name in LOG_FILES.replace(" and", ",").split(", "):
        for file in killed.folder.glob(name):
            file.rename(away / file.name)
    assert (killed.folder / "reset-key").exists()
    with opened(killed.folder, 2) as store:
        assert (store.findings, store.next_offset) == ([], 0)


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


@pytest.mark.parametrize("damage", [cut(WAL, 0), cut(WAL, 0.5), remove(WAL), flip(WAL, 0.5)])
def test_recover_uses_no_job_number_again(killed: Killed, damage: Callable[[Killed], None]) -> None:
    """The lost commits may have assigned some. The new witness knows nothing of them, so the next start cannot help."""
    damage(killed)
    saved = recovered(killed)
    assert saved["lacks_changes"]
    store = SqliteStore.open(killed.log, new_log_id=bytes(16), now_us=2)
    assert store.findings == []
    assert store.state().next_job > LOST_JOBS
    store.close()


def recovered(killed: Killed) -> dict[str, Any]:
    """Return the report of `godwit log recover`."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        run_recover(killed.folder, as_json=True)
    report: dict[str, Any] = json.loads(printed.getvalue())
    return report


@pytest.mark.parametrize("damage", [cut(WAL, 0.5), cut(WAL, WAL_HEAD_BYTES + 3 * FRAME_BYTES), flip(WAL, 0.2)])
def test_a_damaged_wal_that_is_not_needed_hides_nothing(tmp_path: Path, damage: Callable[[Killed], None]) -> None:
    """The log's file has everything, and the rest of the write-ahead log has older images of the same pages."""
    checkpointed = checkpointed_copy(tmp_path / "data")
    damage(checkpointed)
    verdict = verify(checkpointed.log, lambda *_: None)
    assert (verdict.is_sound, verdict.has_needless_wal, verdict.missing) == (False, True, None)
    assert verdict.messages == len(checkpointed.entries)
    for refused in (compact, lambda path, show: backup(path, path.with_name("copy"), show)):
        with pytest.raises(LogDamagedError, match="is damaged or shorter than it was"):
            refused(checkpointed.log, lambda *_: None)
    saved = recovered(checkpointed)
    assert (saved["messages"], saved["missing"], saved["lacks_changes"]) == (len(checkpointed.entries), [], False)
    assert outcome(checkpointed).kind == "intact"


def checkpointed_copy(folder: Path, *, is_trimmed: bool = False) -> Killed:
    """Return the folder of a broker that was killed after a checkpoint, and before the next commit."""
    entries = {}
    with opened(folder, 1) as store:
        for number in range(40):
            topic = "a/b" if number else "kept"
            entry = make_entry(Random(number).randbytes(900 if number else 15_000), topic=topic, received_us=number)
            entries[store.append([entry])] = entry
        if is_trimmed:
            retention = Retention(store, [RetentionRule(pattern="a/#", max_age_s=0.0)])
            while retention.step(LATER_US) is not None:
                pass
            entries = dict(store.read(0, EVERYTHING).entries)
        store.checkpoint(truncate=False)
        copy = folder.with_name("checkpointed")
        shutil.copytree(folder, copy)
        return Killed(copy, entries, store.next_offset, store.next_offset)


def test_an_unneeded_wal_brings_nothing_back_that_retention_deleted(tmp_path: Path) -> None:
    """Its rest has an older tree. One block is saved from there: its page in the log's file is damaged."""
    copy = checkpointed_copy(tmp_path / "data", is_trimmed=True)
    ((offset, kept),) = copy.entries.items()
    cut(WAL, 0.5)(copy)
    data = bytearray(copy.log.read_bytes())
    data[data.index(kept.rest[-20:])] ^= 1
    copy.log.write_bytes(data)
    recovered(copy)
    with opened(copy.folder, 3) as again:
        assert again.read(0, EVERYTHING).entries == [(offset, kept)]


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
