"""Blocks are found wherever they stand, as long as they are intact; what was deleted stays deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.store.entries import LOG_ID, make_entry

from godwit.store.block import BLOCK_BYTES, HEAD_BYTES, encode_block, encode_blocks, make_row
from godwit.store.btree import Tree, follow
from godwit.store.pages import PAGE_BYTES, PageFile
from godwit.store.ranges import Ranges
from godwit.store.retention import Retention, Rule
from godwit.store.salvage import Salvage, find_stamp
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import RetainedKept
from godwit.wire.marks import BROKER_WIDE

ROOT = 3
STAMP = bytes(range(200, 208))


@pytest.fixture(autouse=True)
def stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all logs that are made here."""
    monkeypatch.setattr("godwit.store.opening.new_stamp", lambda connection: STAMP)


def make_log(path: Path, sizes: list[int], topic: str = "a/b", *, max_bytes: int | None = None) -> None:
    """A block of each size, under its own offset."""
    rng = Random(len(sizes))
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    trimming = Retention(store, [Rule(max_bytes=max_bytes)])
    for size in sizes:
        store.append([make_entry(rng.randbytes(size), topic=topic)])
        while trimming.step(0) is not None:
            pass
    assert store.connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'blocks'").get == ROOT
    store.close()


def salvage(path: Path, root: int = ROOT, marks: dict[str, int] | None = None) -> tuple[list[int], Salvage]:
    """The offsets of what is found, in order."""
    with PageFile(path) as file:
        found = Salvage(file, root, STAMP, marks or {}, Ranges())
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
    make_log(tmp_path / "log", [10, 5_000, 16_200, 20_000, BLOCK_BYTES, 3 * BLOCK_BYTES, 0])
    seen: list[tuple[int, int]] = []
    with PageFile(tmp_path / "log") as file:
        found = Salvage(file, ROOT, STAMP, {}, Ranges())
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
    make_log(tmp_path / "log", sizes)
    cells = Counter(leaves(tmp_path / "log").values())

    def ruin(data: bytearray) -> None:
        for page, count in cells.items():  # what kind of page it is, and where its cells are
            at = (page - 1) * PAGE_BYTES
            data[at] ^= rng.randrange(1, 256)
            data[at + 1 : at + 8 + 2 * count] = rng.randbytes(7 + 2 * count)

    change(tmp_path / "log", ruin)
    offsets, found = salvage(tmp_path / "log")
    assert offsets == list(range(60))
    assert not found.is_all_known
    assert not found.is_end_known


def test_a_block_that_begins_in_an_overflow_page(tmp_path: Path) -> None:
    """So many topics that they fill the leaf."""
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    for number in range(3):
        store.append([make_entry(b"x", topic=f"{number}/{index}/{'x' * 30}") for index in range(1000)])
    store.close()
    assert salvage(tmp_path / "log")[0] == [0, 1000, 2000]
    assert salvage(tmp_path / "log", root=999)[0] == [0, 1000, 2000]


def test_a_damaged_block_says_what_it_was(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [1000, 1000, 1000])

    def ruin(data: bytearray) -> None:
        row = encode_blocks([make_entry(b"")], 1, STAMP)[0]
        at = data.find(row.body[:20])  # magic, stamp and first offset
        data[at + 500] ^= 1

    change(tmp_path / "log", ruin)
    offsets, found = salvage(tmp_path / "log")
    assert offsets == [0, 2]
    assert found.damaged == [(1, 2)]
    assert found.is_all_known


def test_a_row_that_says_nothing(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [1000, 1000, 1000])

    def ruin(data: bytearray) -> None:
        at = data.find(encode_blocks([make_entry(b"")], 1, STAMP)[0].body[:20])
        data[at - 44 : at + 100] = bytes(144)

    change(tmp_path / "log", ruin)
    offsets, found = salvage(tmp_path / "log")
    assert offsets == [0, 2]
    assert found.damaged == []
    assert not found.is_all_known
    assert found.is_end_known


# -- what is no block of the log --------------------------------------------------------------------------------------


def test_a_block_in_a_message_is_no_block(tmp_path: Path) -> None:
    """Somebody publishes what looks like a piece of the log."""
    forged = encode_blocks([make_entry(b"forged", topic="bank/transfer")], 1_000_000)[0].body
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    store.append([make_entry(forged * 3)])
    store.append([make_entry(bytes(40_000) + forged + bytes(10))])
    store.append([make_entry(topic="GWB1/GWB1")])
    store.close()
    assert salvage(tmp_path / "log")[0] == [0, 1, 2]

    def ruin(data: bytearray) -> None:
        at = data.find(encode_blocks([make_entry(b"")], 0, STAMP)[0].body[:20])
        data[at + 100] ^= 1  # the block around it, and not the forged one

    change(tmp_path / "log", ruin)
    assert salvage(tmp_path / "log")[0] == [1, 2]


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
    assert salvage(tmp_path / "log")[0] == []


def test_heads_that_lie_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message full of what looks like long blocks, and of numbers of pages to follow."""
    followed: list[int] = []

    def counting(file: PageFile, number: int, size_bytes: int) -> tuple[bytes, list[int]]:
        followed.append(number)
        return follow(file, number, size_bytes)

    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    head = encode_blocks([make_entry(bytes(900_000))], 0)[0].body[:HEAD_BYTES]
    store.append([make_entry((head + (20).to_bytes(4, "big") * 9) * 10_000)])
    store.close()
    ruin_tree(tmp_path / "log")
    monkeypatch.setattr("godwit.store.salvage.follow", counting)
    assert salvage(tmp_path / "log")[0] == []
    assert followed == []


@pytest.mark.parametrize(
    ("first_offset", "received_us"), [(2**62, 1), (2**63 - 1, 1), (2**64 - 2, 1), (3, 2**62 + 1), (3, 2**64 - 1)]
)
def test_numbers_that_cannot_be_are_no_block(tmp_path: Path, first_offset: int, received_us: int) -> None:
    """Even under the log's own stamp."""
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    store.append([make_entry(b"good")])
    bad = encode_block([(first_offset, make_entry(received_us=received_us))], STAMP).body
    store.connection.execute("INSERT INTO blocks VALUES (9, 10, 1, 1, 1, x'', ?)", (bad,))
    store.close()
    assert salvage(tmp_path / "log")[0] == salvage(tmp_path / "log", root=999)[0] == [0]


def test_a_row_with_numbers_that_cannot_be_says_nothing(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    for row in (make_row(5, 2**62 + 1, 1, 1, b"", b""), make_row(7, 7, 1, 1, b"", b"")):
        store.connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(row))
    store.close()
    assert salvage(tmp_path / "log")[1].damaged == []


def test_the_stamp_of_a_log_that_does_not_tell_it(tmp_path: Path) -> None:
    """From the tree, or from a leaf that nothing leads to; never from what somebody published."""
    path = tmp_path / "log"
    forged = encode_blocks([make_entry(b"x")], 0, b"forged!!")[0].body
    make_log(path, [10] * 50 + [20_000] * 100)
    store = SqliteStore.open(path, new_log_id=LOG_ID, now_us=1)
    kept = [RetainedKept(f"t/{number}", forged * 20) for number in range(20)]
    store.append([make_entry(forged * 500) for _ in range(30)], kept)
    store.close()
    with PageFile(path) as file:
        assert find_stamp(file, ROOT) == STAMP
        assert find_stamp(file, 999) == STAMP
    ruin_tree(path)
    with PageFile(path) as file:
        assert find_stamp(file, ROOT) is None


def test_deleted_blocks_stay_deleted(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [30_000] * 60, max_bytes=800_000)
    marks = {BROKER_WIDE: min(leaves(tmp_path / "log"))}
    live = list(range(marks[BROKER_WIDE], 60))
    assert 10 < len(live) < 40
    assert salvage(tmp_path / "log", marks=marks)[0] == live
    change(tmp_path / "log", lambda data: data.__setitem__(slice(32, 40), bytes(8)))  # no list of free pages any more
    assert salvage(tmp_path / "log", marks=marks)[0] == live
    assert salvage(tmp_path / "log", root=999, marks=marks)[0] == live
    assert salvage(tmp_path / "log", root=999, marks={"other": 60})[0][-len(live) :] == live


def test_marks_of_topics_keep_out_what_they_deleted(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "log", new_log_id=LOG_ID, now_us=1)
    store.append([make_entry(topic=topic) for topic in ("kept", "gone", "kept")])
    store.close()
    with PageFile(tmp_path / "log") as file:
        (row,) = Salvage(file, 999, STAMP, {"gone": 3, BROKER_WIDE: 0}, Ranges()).rows(lambda *_: None)
    assert (row.first_offset, row.end_offset) == (0, 3)
    with PageFile(tmp_path / "log") as file:
        (row,) = Salvage(file, 999, STAMP, {"kept": 1}, Ranges()).rows(lambda *_: None)
    assert (row.first_offset, row.end_offset) == (1, 3)
    assert salvage(tmp_path / "log", root=999, marks={BROKER_WIDE: 3})[0] == []
