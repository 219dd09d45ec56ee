"""The simulated disk: SQLite's WAL runs on it, synced writes survive every power cut, and others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from random import Random

import apsw
import pytest

from godwit_sim.disk import SECTOR_BYTES, DiedError, Disk, Trouble

PATH = "/data/log.sqlite"
ROWS = 12


@contextmanager
def connection(disk: Disk, synchronous: str = "FULL") -> Iterator[apsw.Connection]:
    """Open a database in WAL mode and close it, whatever happened to the disk."""
    made = apsw.Connection(PATH, vfs=disk.vfs_name)
    try:
        made.execute("PRAGMA locking_mode=EXCLUSIVE")
        assert made.execute("PRAGMA journal_mode=WAL").get == "wal"
        made.execute(f"PRAGMA synchronous={synchronous}; PRAGMA wal_autocheckpoint=0")
        made.execute("CREATE TABLE IF NOT EXISTS rows(number INTEGER PRIMARY KEY, body BLOB)")
        yield made
    finally:
        with suppress(apsw.Error, DiedError):
            made.close(True)


def fill(made: apsw.Connection, rng: Random) -> Iterator[int]:
    """Write one transaction after another, now and then a checkpoint; yield each number when it is committed."""
    first = made.execute("SELECT ifnull(max(number), -1) + 1 FROM rows").get
    for number in range(first, first + ROWS):
        with made:
            made.execute("INSERT INTO rows VALUES(?, ?)", (number, rng.randbytes(rng.choice((10, 900, 9000)))))
        yield number
        if rng.random() < 0.2:
            made.wal_checkpoint(mode=rng.choice((apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_TRUNCATE)))


def dies_at_every_call(seed: int, synchronous: str, end: Callable[[Disk], None]) -> Iterator[tuple[int, list[int]]]:
    """Run until a death one call later each time; yield the last committed number, and the numbers found afterwards."""
    for calls in range(10_000):
        disk = Disk(Random(f"disk {seed} {calls}"))
        disk.die_in(calls)
        last = -1
        try:
            with connection(disk, synchronous) as made:
                for number in fill(made, Random(seed)):
                    last = number
        except (DiedError, apsw.Error):  # SQLite may replace it by an error of its own
            if not disk.is_dead:
                raise
            end(disk)
        else:
            assert calls > 3 * ROWS, "it ran to its end and wrote nothing"
            return
        with connection(disk, synchronous) as made:
            assert made.execute("PRAGMA integrity_check").get == "ok"
            yield last, [number for (number,) in made.execute("SELECT number FROM rows ORDER BY number")]


@pytest.mark.parametrize("seed", range(3))
def test_a_committed_transaction_survives_every_power_cut(seed: int) -> None:
    for last, found in dies_at_every_call(seed, "FULL", Disk.cut_power):
        assert found in (list(range(last + 1)), list(range(last + 2))), "the last one may have been committed unheard"


def test_without_syncs_a_power_cut_loses_commits() -> None:
    lost = 0
    with suppress(apsw.CorruptError, apsw.NotADBError):  # which is also a loss, but a reported one
        for last, found in dies_at_every_call(1, "OFF", Disk.cut_power):
            lost += len(found) <= last
    assert lost > 0


def test_a_killed_process_loses_nothing_that_it_wrote() -> None:
    for last, found in dies_at_every_call(1, "OFF", Disk.kill):
        assert found in (list(range(last + 1)), list(range(last + 2)))


def test_one_power_cut_after_the_other() -> None:
    disk = Disk(Random("many cuts"))
    rng = Random("many cuts, rows")
    committed: set[int] = set()
    cuts = 0
    while len(committed) < 10 * ROWS:
        disk.die_in(rng.randrange(60))
        try:
            with connection(disk) as made:
                found = {number for (number,) in made.execute("SELECT number FROM rows")}
                assert committed <= found
                committed.update(fill(made, rng))
        except (DiedError, apsw.Error):
            if not disk.is_dead:
                raise
            disk.cut_power()
            cuts += 1
    assert cuts > 5


@pytest.mark.parametrize(
    ("trouble", "error"), [("full", apsw.FullError), ("write", apsw.IOError), ("sync", apsw.IOError)]
)
def test_a_fault_fails_the_commit_and_harms_nothing_before_or_behind_it(
    trouble: Trouble, error: type[apsw.Error]
) -> None:
    for seed in range(20):
        disk = Disk(Random(f"{trouble} {seed}"))
        with connection(disk) as made:
            made.execute("INSERT INTO rows VALUES(0, zeroblob(5000))")
            disk.trouble = trouble
            for _ in range(3):
                with pytest.raises(error):
                    made.execute("INSERT INTO rows VALUES(1, zeroblob(5000))")
            disk.trouble = None
            made.execute("INSERT INTO rows VALUES(2, zeroblob(5000))")
            disk.die()
        disk.cut_power()
        with connection(disk) as made:
            assert [number for (number,) in made.execute("SELECT number FROM rows")] == [0, 2]


def test_a_later_sync_does_not_save_writes_of_a_failed_one() -> None:
    """Otherwise a store that repeats the same sync until it works would pass."""
    gone = 0
    for seed in range(20):
        disk = Disk(Random(seed))
        file = disk.xOpen(PATH, [apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL, 0])
        file.xWrite(b"x", 0)
        disk.trouble = "sync"
        with pytest.raises(apsw.IOError):
            file.xSync(0)
        disk.trouble = None
        file.xSync(0)
        assert file.xRead(1, 0) == b"x"
        disk.cut_power()
        gone += disk.sizes[PATH] == 0
    assert 0 < gone < 20


def test_a_power_cut_tears_writes_at_sectors() -> None:
    outcomes = set()
    for seed in range(60):
        disk = Disk(Random(seed))
        flags = [apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL, 0]
        file = disk.xOpen(PATH, flags)
        file.xWrite(b"o" * 4 * SECTOR_BYTES, 0)
        file.xSync(0)
        file.xWrite(b"n" * 2 * SECTOR_BYTES, SECTOR_BYTES + 100)
        disk.cut_power()
        content = disk.xOpen(PATH, flags).xRead(10_000, 0)
        assert len(content) == 4 * SECTOR_BYTES
        assert set(content[: SECTOR_BYTES + 100]) == set(content[3 * SECTOR_BYTES + 100 :]) == set(b"o")
        cuts = (SECTOR_BYTES + 100, 2 * SECTOR_BYTES, 3 * SECTOR_BYTES, 3 * SECTOR_BYTES + 100)
        pieces = [content[start:end] for start, end in pairwise(cuts)]
        kinds = ["".join(map(chr, sorted(set(piece)))) for piece in pieces]
        outcomes.add("".join(kind if len(kind) == 1 else "?" for kind in kinds))
    assert {"ooo", "nnn", "onn", "non"} <= outcomes, "none, all, the later without the earlier, with a hole"
    assert any("?" in outcome for outcome in outcomes), "now and then there is garbage"


def test_a_file_is_safe_when_its_folder_was_synced() -> None:
    journal, plain = apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL, apsw.SQLITE_OPEN_CREATE
    there = set()
    for seed in range(20):
        disk = Disk(Random(seed))
        disk.xOpen("/data/a", [plain, 0]).xSync(0)
        disk.xOpen("/data/b", [journal, 0]).xSync(0)
        disk.xOpen("/data/c", [plain, 0]).xSync(0)
        disk.xDelete("/data/b", syncdir=False)
        disk.cut_power()
        assert "/data/a" in disk.sizes
        there.add(tuple(disk.sizes)[1:])
    assert there == {(), ("/data/b",), ("/data/c",), ("/data/b", "/data/c")}


def test_the_dead_change_nothing() -> None:
    disk = Disk(Random(1))
    with connection(disk) as made:
        made.execute("INSERT INTO rows VALUES(0, x'00')")
        disk.die()
        made.execute("INSERT INTO rows VALUES(1, x'00')")
    disk.kill()
    with connection(disk) as made:
        assert made.execute("SELECT count(*) FROM rows").get == 1


def test_a_file_must_be_created() -> None:
    disk = Disk(Random(1))
    with pytest.raises(apsw.CantOpenError):
        apsw.Connection(PATH, flags=apsw.SQLITE_OPEN_READWRITE, vfs=disk.vfs_name)
    disk.trouble = "full"
    with pytest.raises(apsw.CantOpenError):
        apsw.Connection(PATH, vfs=disk.vfs_name)
    assert disk.sizes == {}


def test_rot_changes_one_file_only() -> None:
    disk = Disk(Random(1))
    with connection(disk) as made:
        made.execute("INSERT INTO rows VALUES(0, ?), (1, ?)", (b"a needle here", b"another one"))
        assert not disk.rot(PATH, b"a needle here"), "it is in the WAL alone"
        made.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        assert not disk.rot(PATH, b"a needle here"), "a power cut may bring the old WAL back"
        made.execute("CREATE TABLE others(number)")
        assert disk.rot(PATH, b"a needle here")
        disk.die()
    disk.kill()
    with connection(disk) as made:
        first, second = [bytes(body) for (body,) in made.execute("SELECT body FROM rows LIMIT 2")]
    assert sum(one != other for one, other in zip(first, b"a needle here", strict=True)) == 1
    assert second == b"another one"


def test_a_copy_that_is_put_back_is_there_after_every_power_cut() -> None:
    rng = Random(5)
    disk = Disk(rng)
    with connection(disk) as made:
        assert len(list(fill(made, rng))) == ROWS
        copy = disk.copy(rng)
        list(fill(made, rng))
        disk.die()
    disk.kill()
    disk.restore(copy)
    disk.cut_power()
    with connection(disk) as made:
        assert made.execute("SELECT count(*) FROM rows").get == ROWS
