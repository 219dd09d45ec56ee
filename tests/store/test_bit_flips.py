"""Flipped bytes anywhere in the file: nothing wrong is delivered, what is lost is told, what is intact is saved."""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from tests.store.damage import Original, flip, make_log, vital_bytes
from tests.store.entries import LOG_ID

from godwit.errors import StorageError
from godwit.store.maintenance import verify
from godwit.store.port import Slice
from godwit.store.reader import LogReader
from godwit.store.recover import recover
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import StoredState


@pytest.fixture(scope="module", params=[False, True], ids=["full", "trimmed"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    return make_log(tmp_path_factory.mktemp("log") / "log.sqlite", Random(1), 80, is_trimmed=request.param)


def check_right(original: Original, found: Slice) -> set[int]:
    """Nothing wrong; the offsets of what is there."""
    for offset, entry in found.entries:
        assert original.published[offset] == entry
    return {offset for offset, _ in found.entries}


def check_read(original: Original, found: Slice) -> set[int]:
    """Nothing wrong, and nothing missing without a word."""
    offsets = check_right(original, found)
    for offset, entry in original.entries.items():
        if offset not in offsets:
            reported = sum(max(min(end, offset + entry.count) - max(begin, offset), 0) for begin, end in found.damaged)
            assert reported == entry.count, f"the batch at {offset} is missing, and nothing reports it"
    return offsets


def check_state(original: Original, state: StoredState) -> None:
    """Rows that are left are as they were."""
    for name in ("topics", "retained", "sessions", "subscriptions", "identities", "jobs", "payloads", "tasks"):
        assert [row for row in getattr(state, name) if row not in getattr(original.state, name)] == []
    assert set(state.queries) <= set(original.state.queries)
    assert state.retention_floors.items() <= original.state.retention_floors.items()
    numbers = {job.job for job in state.jobs}
    assert {payload.job for payload in state.payloads} == numbers
    assert {task.job for task in state.tasks} <= numbers
    assert state.next_job >= original.state.next_job, "a number could be given to another job"


class Damaged(NamedTuple):
    path: Path
    bytes_before: bytes
    lost_blocks: set[int]
    """Those of which a byte was changed."""


def damage(original: Original, vital: Mapping[int, list[tuple[int, int]]], folder: Path, rng: Random) -> Damaged:
    path = folder / "log.sqlite"
    shutil.copy(original.path, path)
    places = flip(path, rng, rng.choice([1, 1, 2, 8]))
    lost_blocks = {
        first_offset
        for first_offset, ranges in vital.items()
        if any(begin <= place < end for place in places for begin, end in ranges)
    }
    return Damaged(path, path.read_bytes(), lost_blocks)


def use(original: Original, damaged: Damaged) -> list[str]:
    """What each way to open the file came to. Nothing wrong comes out, and the file is not written."""
    outcomes = []
    try:
        verdict = verify(damaged.path, lambda *_: None)
        assert not damaged.lost_blocks or not verdict.is_sound
    except StorageError as error:
        outcomes.append(type(error).__name__)
    try:
        reader = LogReader.open(damaged.path)
        check_right(original, reader.read(0, 2**40))
        reader.close()
    except StorageError as error:
        outcomes.append(type(error).__name__)
    try:
        store = SqliteStore.open(damaged.path, new_log_id=bytes(16), now_us=2)
    except StorageError as error:
        outcomes.append(type(error).__name__)
        assert damaged.path.read_bytes() == damaged.bytes_before
    else:
        outcomes.append("opened")
        check_read(original, store.read(0, 2**40))
        assert store.state() == original.state
        store.close()
        damaged.path.write_bytes(damaged.bytes_before)
    return outcomes


def save(original: Original, damaged: Damaged, firsts: list[int]) -> None:
    """Every block that is intact is saved, and the new log is a sound one but for what is lost."""
    out = damaged.path.with_name("saved.sqlite")
    saved = recover(damaged.path, out, new_log_id=bytes(16), now_us=3, progress=lambda *_: None)
    assert damaged.path.read_bytes() == damaged.bytes_before
    verdict = verify(out, lambda *_: None)
    assert verdict.problems == []
    assert verdict.blocks == saved.blocks
    assert verdict.messages == saved.messages
    store = SqliteStore.open(out, new_log_id=b"unused", now_us=4)
    assert store.log_id == saved.log_id == (LOG_ID if saved.has_old_id else bytes(16))
    assert store.next_offset == saved.next_offset >= original.next_offset
    offsets = check_read(original, store.read(0, 2**40))
    for offset in original.entries:
        block = firsts[bisect_right(firsts, offset) - 1]
        assert block in damaged.lost_blocks or offset in offsets, f"the block {block} is intact, and was not saved"
    if "marks" not in saved.lost_tables:
        assert offsets <= original.entries.keys(), "what retention had deleted came back"
    check_state(original, store.state())
    store.close()


def run(original: Original, folder: Path, seeds: range) -> Counter[str]:
    vital = vital_bytes(original.path)
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        try:
            damaged = damage(original, vital, place, Random(seed))
            outcomes.update(use(original, damaged))
            save(original, damaged, sorted(vital))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        shutil.rmtree(place)
    return outcomes


def test_flipped_bytes(original: Original, tmp_path: Path) -> None:
    outcomes = run(original, tmp_path, range(20))
    assert outcomes["opened"] > 0
    assert outcomes["LogDamagedError"] > 0


@pytest.mark.soak
def test_flipped_bytes_for_long(original: Original, tmp_path: Path) -> None:
    outcomes = run(original, tmp_path, range(1000, 2000))
    assert outcomes["opened"] > 0
    assert outcomes["LogDamagedError"] > 0
