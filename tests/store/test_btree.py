"""Tables without SQLite hold what SQLite put into them; damaged pages give errors of ours or fewer rows, no more."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.store.btree import BrokenPageError, Tree, cells_of, follow, record, varint
from godwit.store.pages import PAGE_BYTES, PageFile

TABLES = ["CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)", "CREATE TABLE t (id PRIMARY KEY, a, b) WITHOUT ROWID"]
VALUES: list[Any] = [None, 0, 1, -1, 127, -32_768, 2**23, 2**31, 2**47, -(2**63), 0.5, "", "größe", b"", b"\0\xff"]


def make_table(path: Path, create: str, rows: list[tuple[Any, ...]]) -> int:
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", PAGE_BYTES)
    connection.execute(create)
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 't'").get
    connection.close()
    return int(root)


def some_rows(count: int) -> list[tuple[Any, ...]]:
    """Of all sizes: in a leaf, with one overflow page, with many."""
    rng = Random(count)
    sizes = [3, 100, 2_000, 4_085, 5_000, 16_349, 16_350, 20_000, 100_000]
    return [(number, rng.choice(VALUES), rng.randbytes(rng.choice(sizes))) for number in range(count)]


@pytest.mark.parametrize("create", TABLES)
@pytest.mark.parametrize("count", [0, 1, 40, 700])
def test_all_rows(tmp_path: Path, create: str, count: int) -> None:
    rows = some_rows(count)
    root = make_table(tmp_path / "t", create, rows)
    with PageFile(tmp_path / "t") as file:
        tree = Tree(file, root)
        found = {}
        for cell in tree.cells():
            key, *values = record(cell.payload)
            found[cell.rowid if key is None else key] = tuple(values)
        assert found == {key: tuple(values) for key, *values in rows}
        assert tree.is_whole
        assert tree.is_end_whole
        assert len(tree.pages) <= file.page_count


def test_rows_of_the_schema_which_begins_behind_the_head_of_the_file(tmp_path: Path) -> None:
    make_table(tmp_path / "t", TABLES[0], [])
    with PageFile(tmp_path / "t") as file:
        (values,) = [record(cell.payload) for cell in Tree(file, 1).cells()]
    assert values == ["table", "t", "t", 2, TABLES[0]]


@pytest.mark.parametrize("create", TABLES)
def test_damaged_pages_give_fewer_rows_and_no_other_trouble(tmp_path: Path, create: str) -> None:
    rows = some_rows(120)
    root = make_table(tmp_path / "t", create, rows)
    data = (tmp_path / "t").read_bytes()
    told = 0
    for seed in range(60):
        rng = Random(seed)
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 5])):
            place = rng.randrange(len(data) // PAGE_BYTES) * PAGE_BYTES
            damaged[place + rng.randrange(rng.choice([16, 200, PAGE_BYTES]))] ^= rng.randrange(1, 256)
        (tmp_path / "d").write_bytes(damaged)
        with PageFile(tmp_path / "d") as file:
            tree = Tree(file, root)
            for cell in tree.cells():
                try:
                    record(cell.payload)
                except BrokenPageError:
                    told += 1
            told += not tree.is_whole
    assert told > 0


def test_a_lost_leaf_is_told_and_whether_it_was_the_last(tmp_path: Path) -> None:
    root = make_table(tmp_path / "t", TABLES[0], some_rows(120))
    with PageFile(tmp_path / "t") as file:
        leaves = [cell.page for cell in Tree(file, root).cells()]
    data = (tmp_path / "t").read_bytes()
    for leaf, is_end_whole in ((leaves[0], True), (leaves[-1], False)):
        damaged = bytearray(data)
        damaged[(leaf - 1) * PAGE_BYTES] = 77
        (tmp_path / "d").write_bytes(damaged)
        with PageFile(tmp_path / "d") as file:
            tree = Tree(file, root)
            assert [cell for cell in tree.cells() if cell.page == leaf] == []
            assert tree.damaged_pages == [leaf]
            assert tree.is_end_whole is is_end_whole


def test_a_page_is_visited_once(tmp_path: Path) -> None:
    """A root that is its own child."""
    root = make_table(tmp_path / "t", TABLES[0], some_rows(120))
    data = bytearray((tmp_path / "t").read_bytes())
    at = (root - 1) * PAGE_BYTES + 8
    data[at : at + 4] = root.to_bytes(4, "big")
    (tmp_path / "t").write_bytes(data)
    with PageFile(tmp_path / "t") as file:
        tree = Tree(file, root)
        assert len(list(tree.cells())) < 120
        assert tree.damaged_pages == [root]
        assert not tree.is_end_whole


def test_a_chain_that_is_a_circle_ends(tmp_path: Path) -> None:
    page = (2).to_bytes(4, "big").ljust(PAGE_BYTES, b"x")
    (tmp_path / "t").write_bytes(page + (1).to_bytes(4, "big").ljust(PAGE_BYTES, b"y"))
    with PageFile(tmp_path / "t") as file:
        data, pages = follow(file, 1, 100 * PAGE_BYTES)
    assert pages == [1, 2]
    assert len(data) == 2 * (PAGE_BYTES - 4)


@given(st.binary(max_size=12))
def test_any_bytes_are_a_number_or_not(data: bytes) -> None:
    try:
        value, end = varint(data, 0)
    except BrokenPageError:
        assert all(byte >= 0x80 for byte in data[:8])
        assert len(data) < 9
    else:
        assert 0 <= value < 2**64
        assert 1 <= end <= 9


@given(st.binary(max_size=40))
def test_any_bytes_are_a_record_or_not(data: bytes) -> None:
    try:
        values = record(data)
    except BrokenPageError:
        return
    assert len(values) < 40


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"", "does not end"),
        (b"\x09\x01", "longer than the record"),
        (b"\x02\x06\x00", "ends within a value"),
        (b"\x02\x0a", "no file has"),
        (b"\x02\x0f\xff", "not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_record(payload: bytes, complaint: str) -> None:
    with pytest.raises(BrokenPageError, match=complaint):
        record(payload)


def test_the_rows_of_one_leaf(tmp_path: Path) -> None:
    path = tmp_path / "file"
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", PAGE_BYTES)
    connection.execute("CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(40000)), (5), (6)")
    connection.close()
    with PageFile(path) as file:
        assert [record(cell.payload) for cell in cells_of(file, 2)] == [[bytes(40000)], [5], [6]]
        assert cells_of(file, 3) == cells_of(file, 999) == []  # overflow, and nothing
    data = bytearray(path.read_bytes())
    data[PAGE_BYTES + 8 : PAGE_BYTES + 10] = (PAGE_BYTES - 4).to_bytes(2, "big")
    data[2 * PAGE_BYTES - 4 : 2 * PAGE_BYTES] = b"\x7f\1\0\0"  # the first cell goes beyond the page
    path.write_bytes(data)
    with PageFile(path) as file:
        assert [record(cell.payload) for cell in cells_of(file, 2)] == [[5], [6]]
    data[PAGE_BYTES + 3 : PAGE_BYTES + 5] = b"\xff\xff"
    path.write_bytes(data)
    with PageFile(path) as file:
        assert cells_of(file, 2) == []
