"""Blocks are found wherever they stand, as long as they are intact; what was deleted stays deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.store.entries import LOG_ID, make_entry

from godwit.store.block import BLOCK_BYTES, encode_blocks
from godwit.store.btree import Tree
from godwit.store.pages import PAGE_BYTES, PageFile
from godwit.store.retention import Retention, Rule
from godwit.store.salvage import Ranges, Salvage
from godwit.store.sqlite import SqliteStore
from godwit.wire.marks import BROKER_WIDE

ROOT = 3


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
        found = Salvage(file, root, marks or {}, Ranges())
        return sorted(row.first_offset for row in found.rows(lambda *_: None)), found


def change(path: Path, alter: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    alter(data)
    path.write_bytes(data)


def leaves(path: Path) -> dict[int, int]:
    """The leaf of each row."""
    with PageFile(path) as file:
        return {cell.rowid: cell.page for cell in Tree(file, ROOT).cells()}


# -- ranges -----------------------------------------------------------------------------------------------------------


def test_ranges() -> None:
    ranges = Ranges()
    assert ranges.end == 0
    assert ranges.gaps(0, 5) == [(0, 5)]
    assert ranges.add(10, 20)
    assert not ranges.add(10, 20)
    assert not ranges.add(19, 25)
    assert not ranges.add(5, 11)
    assert not ranges.add(0, 100)
    assert not ranges.add(12, 13)
    assert ranges.add(20, 25)
    assert ranges.add(5, 10)
    assert ranges.add(30, 31)
    assert ranges.end == 31
    assert ranges.gaps(0, 40) == [(0, 5), (25, 30), (31, 40)]
    assert ranges.gaps(7, 31) == [(25, 30)]


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_a_sound_log(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [10, 5_000, 16_200, 20_000, BLOCK_BYTES, 3 * BLOCK_BYTES, 0])
    seen: list[tuple[int, int]] = []
    with PageFile(tmp_path / "log") as file:
        found = Salvage(file, ROOT, {}, Ranges())
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
        row = encode_blocks([make_entry(b"")], 1)[0]
        at = data.find(row.body[:12])  # magic and first offset
        data[at + 500] ^= 1

    change(tmp_path / "log", ruin)
    offsets, found = salvage(tmp_path / "log")
    assert offsets == [0, 2]
    assert found.damaged == [(1, 2)]
    assert found.is_all_known


def test_a_row_that_says_nothing(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [1000, 1000, 1000])

    def ruin(data: bytearray) -> None:
        at = data.find(encode_blocks([make_entry(b"")], 1)[0].body[:12])
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
        at = data.find(encode_blocks([make_entry(b"")], 0)[0].body[:12])
        data[at + 100] ^= 1  # the block around it, and not the forged one

    change(tmp_path / "log", ruin)
    assert salvage(tmp_path / "log")[0] == [1, 2]


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
        (row,) = Salvage(file, 999, {"gone": 3, BROKER_WIDE: 0}, Ranges()).rows(lambda *_: None)
    assert (row.first_offset, row.end_offset) == (0, 3)
    with PageFile(tmp_path / "log") as file:
        (row,) = Salvage(file, 999, {"kept": 1}, Ranges()).rows(lambda *_: None)
    assert (row.first_offset, row.end_offset) == (1, 3)
    assert salvage(tmp_path / "log", root=999, marks={BROKER_WIDE: 3})[0] == []
