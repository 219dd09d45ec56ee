"""The store that is read along: it keeps its word through any number of deaths, and stores that do not are caught."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from tests.sim.worlds.durable_scene import HastyStore, Lives, SplitStore, opener_of
from tests.store.entries import LOG_ID, make_entry

from godwit.broker.effects import Losing
from godwit.errors import DiskError, LogDamagedError
from godwit.store.sqlite import SqliteStore
from godwit.store.witness import Witness
from godwit_sim.checkers import ViolationError
from godwit_sim.disk import DAMAGES, Damage, DiedError, Disk, Trouble
from godwit_sim.worlds.durable_plan import draw_durable_plan
from godwit_sim.worlds.durable_stage import (
    DIED,
    PATH,
    DurableStore,
    MortalShell,
    Opener,
    TrimmedLog,
    open_store,
)

PLAN = replace(draw_durable_plan(0), checkpoints=0.2, max_age_s=None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kills", [0.0, 0.5, 1.0])
def test_the_store_keeps_its_word(seed: int, kills: float) -> None:
    lives = Lives(seed, PLAN, kills=kills)
    lives.run(12)
    assert lives.checker.reopenings > 6
    assert lives.books.log.next_offset > 50


@pytest.mark.parametrize("trouble", ["full", "write", "sync"])
def test_the_store_keeps_its_word_on_a_disk_that_fails(trouble: Trouble) -> None:
    for seed in range(4):
        lives = Lives(seed, PLAN, kills=0.5)
        lives.run(12, (None, None, trouble))
        assert lives.books.log.next_offset > 20


def test_a_failed_append_says_so_and_the_next_one_works() -> None:
    lives = Lives(1, PLAN)
    watched = lives.open()
    for trouble in ("full", "write", "sync"):
        before = watched.next_offset
        lives.disk.trouble = trouble
        with pytest.raises(DiskError):
            lives.append(watched)
        assert watched.next_offset == before
        lives.disk.trouble = None
        lives.append(watched)
    lives.end()
    lives.open()
    lives.end()


def interrupted_start(disk: Disk, calls: int) -> bool:
    """Open the log on a machine that dies with this call; return False if the start needs fewer calls."""
    disk.die_in(calls)
    store = None
    with suppress(DiedError, Exception):
        store = open_store(disk, LOG_ID, 0)
    has_died = disk.is_dead
    disk.die()  # nothing is written any more
    if store is not None:
        store.close()
    return has_died


def begun(seed: int) -> tuple[Disk, DurableStore]:
    """A log with four messages, whose write-ahead log is another one than that of the witness's last synced record."""
    disk = Disk(Random(seed))
    store = open_store(disk, LOG_ID, 0)
    store.append([make_entry(b"1")])
    store.checkpoint(truncate=False)
    for payload in (b"2", b"3", b"4"):
        store.append([make_entry(payload)])
    return disk, store


@pytest.mark.parametrize("end", [Disk.kill, Disk.cut_power])
@pytest.mark.parametrize("seed", range(6))
def test_a_start_that_is_interrupted_after_a_power_cut_can_be_repeated(seed: int, end: Callable[[Disk], None]) -> None:
    disk, store = begun(seed)
    disk.die()
    store.close()
    disk.cut_power()  # takes the newest records of the witness
    calls = 0
    while interrupted_start(copy := disk.copy(Random(calls)), calls):
        end(copy)
        store = open_store(copy, LOG_ID, 0)
        assert (store.next_offset, store.findings) == (4, []), f"after {calls} calls"
        store.close()
        calls += 1
    assert calls > 5, "a start writes and syncs"


@pytest.mark.parametrize("calls_before", range(6))
def test_a_start_after_a_kill_can_be_interrupted_by_a_power_cut(calls_before: int) -> None:
    """The killed process wrote frames that it did not sync: they may be gone, and nothing else."""
    calls = 0
    while True:
        disk, store = begun(calls)
        disk.die_in(calls_before)
        with suppress(DiedError, Exception):
            store.append([make_entry(b"5")])
        disk.die()
        store.close()
        disk.kill()
        if not interrupted_start(disk, calls):
            break
        disk.cut_power()
        store = open_store(disk, LOG_ID, 0)
        assert store.next_offset in (4, 5), f"after {calls} calls"
        assert not store.findings
        store.close()
        calls += 1
    assert calls > 5, "a start writes and syncs"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_start_that_repairs_damage_can_be_interrupted(damage: Damage) -> None:
    calls = 0
    while True:
        disk, store = begun(calls)
        disk.die()
        store.close()
        disk.kill()
        disk.damage(f"{PATH}-wal", damage)
        if not interrupted_start(disk, calls):
            break
        disk.kill()
        store = open_store(disk, LOG_ID, 0)
        assert store.next_offset == 4, f"after {calls} calls"
        store.close()
        calls += 1
    assert calls > 5, "a start writes and syncs"


@pytest.mark.parametrize("seed", range(40))
def test_a_witness_that_could_not_record_the_end_of_a_checkpoint_does_so_before_the_next_commit(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That commit begins the write-ahead log anew: a record that needs the old one must not come back."""
    disk = Disk(Random(seed))

    def fail(witness: Witness, sync: Callable[[Witness], None] = Witness.sync) -> None:
        disk.trouble = "sync"
        try:
            sync(witness)
        finally:
            disk.trouble = None

    store = open_store(disk, LOG_ID, 0)
    store.append([make_entry(b"1")])
    with monkeypatch.context() as patched:
        patched.setattr(Witness, "sync", fail)
        with pytest.raises(DiskError):
            store.checkpoint(truncate=False)
    store.append([make_entry(b"2")])
    disk.die()
    store.close()
    disk.cut_power()
    store = open_store(disk, LOG_ID, 0)
    assert (store.next_offset, store.findings) == (2, [])
    store.close()


def caught(
    opener: Opener, *, kills: float = 0.0, troubles: tuple[Trouble | None, ...] = (None,), seeds: range = range(6)
) -> list[str]:
    """What is noticed of a store that breaks its word, in some seeds."""
    found = []
    for seed in seeds:
        try:
            Lives(seed, PLAN, opener, kills=kills).run(10, troubles)
        except ViolationError as error:
            found.append(error.text)
        except LogDamagedError:
            pass  # by its own word
    return found


@pytest.mark.parametrize(
    ("opener", "text"),
    [
        (opener_of(SqliteStore, "OFF"), "is not there"),
        (opener_of(SqliteStore, "NORMAL"), "is not there"),
        (opener_of(SplitStore), "expected was"),
        (opener_of(HastyStore), "is not there"),
    ],
)
def test_a_store_that_breaks_its_word_is_caught(opener: Opener, text: str) -> None:
    assert any(text in violation for violation in caught(opener))


def test_half_of_a_transaction_is_caught_without_a_power_cut() -> None:
    assert caught(opener_of(SplitStore), kills=1.0)


def test_what_a_killed_process_left_is_secured_before_anybody_relies_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, what the next process finds is gone after a power cut, with all that it writes behind it."""
    monkeypatch.setattr(SqliteStore, "_secure", lambda store: store._witness.begin(store.log_id, 0))
    # One seed in twenty notices: the kill must come between a sync that failed and the next commit.
    assert caught(opener_of(SqliteStore), kills=0.5, troubles=(None, None, "sync"), seeds=range(29, 43))


def test_what_rots_is_damaged_and_told() -> None:
    lives = Lives(3, replace(PLAN, checkpoints=1.0))
    watched = lives.open()
    while lives.books.log.next_offset < 20:
        lives.append(watched)
    lives.end()
    watched = lives.open()
    lives.append(watched)
    lives.end()
    offset = next(one for one in range(20) if lives.disk.rot(PATH, payload_at(lives, one)))
    with pytest.raises(ViolationError, match="nobody has spoiled them"):
        lives.open()
    lives.end()
    lives.checker.rotted(offset)
    lives.open()
    assert offset in lives.books.log.damaged
    lives.end()


def payload_at(lives: Lives, offset: int) -> bytes:
    found = lives.books.log.at(offset)
    assert found is not None
    return b"-" if found.retain else found.payload[:200]


def test_what_is_too_old_is_deleted_and_the_broker_told() -> None:
    lives = Lives(1, replace(PLAN, max_age_s=1.0))
    watched = lives.open()
    lives.append(watched)
    told: list[Any] = []
    log = TrimmedLog(watched)
    log.broker = SimpleNamespace(handle=lambda event, now_us: told.append(event))  # type: ignore[assignment]
    while not watched.next_offset:
        lives.append(watched)
    log.work(lives.books.now_us)
    assert not told
    log.work(lives.books.now_us + 10_000_000)
    assert [type(event) for event in told] == [Losing] * len(told)
    assert (told[-1].pattern, told[-1].floor) == (None, watched.next_offset)
    assert lives.books.log.gone_below == watched.first_offset == watched.next_offset
    lives.end()
    lives.open()
    lives.end()


def test_a_deletion_that_fails_is_tried_again() -> None:
    lives = Lives(1, replace(PLAN, max_age_s=1.0))
    watched = lives.open()
    while not watched.next_offset:
        lives.append(watched)
    lives.disk.trouble = "write"
    late_us = lives.books.now_us + 10_000_000
    assert watched.trim(late_us) == []
    assert watched.first_offset == 0
    lives.disk.trouble = None
    assert watched.trim(late_us)
    assert watched.first_offset == watched.next_offset
    lives.end()


def test_a_listener_says_that_its_machine_died() -> None:
    disk = Lives(1, PLAN).disk

    def shell(events: Any) -> MortalShell:
        listener: Any = SimpleNamespace(receive=None, handle_timers=None, next_timer=None, events=events)
        return MortalShell(listener, disk)

    def die(error: BaseException) -> Any:
        disk.die()
        raise error

    assert shell(lambda: ["a notice"]).events() == ["a notice"]
    with pytest.raises(ZeroDivisionError):
        shell(lambda: 1 // 0).events()
    for error in (DiedError(), apsw.SQLError(), DiskError("what SQLite made of it")):
        assert shell(lambda error=error: die(error)).events() == [DIED]
        disk.kill()
    disk.die()
    assert shell(list).events() == [DIED], "somebody has kept it for himself"


def test_a_store_that_takes_a_death_for_success_is_stopped() -> None:
    lives = Lives(1, PLAN)
    watched = lives.open()
    lives.disk.die()
    with pytest.raises(DiedError):
        lives.append(watched)
    with suppress(DiedError):
        lives.append(watched)
    lives.end()
    lives.open()
    assert lives.books.log.next_offset == 0
    lives.end()
