"""The log on disk as a service uses it: opening, obstacles, restarts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.net.log_stands import Asker, ListeningBroker
from tests.net.running import run

from godwit.broker.effects import Append, Committed, Found, Losing, Notice
from godwit.errors import DiskError, LogDamagedError, LogInUseError
from godwit.limits import MIB
from godwit.net import durable_log
from godwit.net.durable_log import DurableLog
from godwit.net.log_writer import COMMIT_BYTES
from godwit.store.folder import DataFolder
from godwit.store.retention import RetentionRule
from godwit.wire.batch import Batch, Entry, encode_batch
from godwit.wire.changes import QueryRow

NOW_US = 1_700_000_000_000_000


def entry(topic: str = "news", received_us: int = NOW_US, size_bytes: int = 100) -> Entry:
    """One message, as the broker hands it over."""
    whole = encode_batch(Batch([bytes(size_bytes)], NOW_US))
    return Entry(
        topic=topic,
        publisher="alice",
        flags=whole[0],
        published_us=NOW_US,
        received_us=received_us,
        count=1,
        rest=whole[9:],
    )


class World:
    """A log and the loop that uses it."""

    def __init__(self, path: Path, rules: Sequence[RetentionRule] = ()) -> None:
        loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(self._woken.set)

        self.notices: list[Notice] = []
        self.durable = DurableLog(path, rules, now_us=NOW_US, wake=wake, on_notice=self.notices.append)
        self.log = self.durable.log
        self.broker = ListeningBroker()
        self.log.begin(self.broker)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._woken.wait()
            self._woken.clear()
            self.log.work(NOW_US)


def test_a_new_folder_and_what_is_found_there_again(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "deep" / "data"
        first = World(path)
        assert (first.log.first_offset, first.log.next_offset) == (0, 0)
        assert len(first.log.log_id) == 16
        assert len(first.durable.reset_key) == 32
        first.log.append(Append([entry(), entry()], [QueryRow("q", 4)]), NOW_US)
        await first.until(lambda: first.broker.told == [Committed(0)])
        first.log.append(Append([entry()]), NOW_US)  # no client waits for its answer
        await first.durable.close()

        second = World(path)
        assert (second.log.log_id, second.durable.reset_key) == (first.log.log_id, first.durable.reset_key)
        assert second.log.next_offset == 3
        assert str(first.durable) == f"log in {path}: no messages, the next one has offset 0"
        assert str(second.durable) == f"log in {path}: offsets 0 to 2"
        assert second.log.state().queries == [QueryRow("q", 4)]
        question = Asker().read(1)
        second.log.read(question)
        await second.until(lambda: second.broker.told == [Found(question, [(1, entry()), (2, entry())], 3)])
        await second.durable.close()
        assert not {thread.name for thread in threading.enumerate()} & {"godwit-log-writer", "godwit-log-reader"}

    run(test)


def test_a_folder_has_one_broker(tmp_path: Path) -> None:
    async def test() -> None:
        first = World(tmp_path)
        with pytest.raises(LogInUseError):
            World(tmp_path)
        await first.durable.close()
        await World(tmp_path).durable.close()

    run(test)


def test_a_check_whether_a_folder_is_in_use_keeps_no_broker_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    really_open = DataFolder.open

    def open_at_the_second_try(folder: DataFolder) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise LogInUseError("a check")
        really_open(folder)

    monkeypatch.setattr(DataFolder, "open", open_at_the_second_try)

    async def test() -> None:
        await World(tmp_path).durable.close()
        assert tries == 2

    run(test)


def test_what_is_in_the_way_leaves_nothing_open(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "file").touch()
        with pytest.raises(DiskError, match="Not a directory"):
            World(tmp_path / "file" / "data")
        path = tmp_path / "data"
        path.mkdir()
        log = path / "log.sqlite"
        log.write_bytes(b"this is no database" * 1000)
        with pytest.raises(LogDamagedError, match="godwit log recover"):
            World(path)
        log.unlink()
        await World(path).durable.close()  # the lock was given back

    run(test)


def test_rules_delete_and_can_be_changed(tmp_path: Path) -> None:
    old_us = NOW_US - 3600 * 1_000_000

    async def test() -> None:
        world = World(tmp_path)
        for topic in ("a", "b"):
            world.log.append(Append([entry(topic, old_us)]), NOW_US)
            await world.until(lambda: not world.log.held_bytes)
        world.broker.told.clear()
        world.durable.change_rules([RetentionRule("b", max_age_s=60.0)])
        await world.until(lambda: any(isinstance(event, Losing) for event in world.broker.told))
        world.log.read(Asker().read(0))
        await world.until(lambda: isinstance(world.broker.told[-1], Found))
        found = world.broker.told[-1]
        assert isinstance(found, Found)
        assert [kept.topic for _, kept in found.entries] == ["a"]
        world.durable.change_rules([])
        await world.durable.close()

    run(test)


def test_retention_keeps_up_with_a_broker_that_is_busy(tmp_path: Path) -> None:
    max_bytes = 24 * MIB

    async def test() -> None:
        world = World(tmp_path, [RetentionRule(max_bytes=max_bytes)])
        longest_bytes = 0
        for _ in range(10):
            # As much as goes into a commit, again and again, without a pause.
            for _ in range(4):
                world.log.append(Append([entry(size_bytes=MIB // 2) for _ in range(8)]), NOW_US)
            while world.log.held_bytes > 4 * MIB:
                await world.until(lambda: Committed in map(type, world.broker.told))
                world.broker.told.clear()
            longest_bytes = max(longest_bytes, (tmp_path / "log.sqlite").stat().st_size)
        await world.durable.close()
        longest_bytes = max(longest_bytes, (tmp_path / "log.sqlite").stat().st_size)
        assert max_bytes / 2 < longest_bytes < max_bytes + 3 * COMMIT_BYTES  # of 160 MiB

    run(test)


def test_retention_lets_commits_through_however_much_it_has_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_log, "MAX_FREED_BYTES", MIB)

    async def test() -> None:
        world = World(tmp_path)
        for _ in range(6):
            world.log.append(Append([entry(size_bytes=MIB // 2) for _ in range(8)]), NOW_US)
        await world.until(lambda: not world.log.held_bytes)
        world.broker.told.clear()
        world.durable.change_rules([RetentionRule(max_bytes=4 * MIB)])
        world.log.append(Append([entry()]), NOW_US)
        await world.until(lambda: sum(isinstance(event, Losing) for event in world.broker.told) >= 4)
        kinds = [type(event) for event in world.broker.told]
        assert kinds.index(Committed) < 4  # not behind all of it
        await world.durable.close()

    run(test)


def test_messages_that_a_clock_ahead_has_dated_grow_old_all_the_same(tmp_path: Path) -> None:
    """The system's clock, which has been put right, would come there in ten years."""
    now_us = time.time_ns() // 1000
    ahead_us = now_us + 10 * 365 * 86_400 * 1_000_000

    async def test() -> None:
        world = World(tmp_path)
        for received_us in (now_us - 3_600_000_000, ahead_us, ahead_us + 60_000_000):
            world.log.append(Append([entry(received_us=received_us)]), NOW_US)
            await world.until(lambda: not world.log.held_bytes)  # so each has its own block
        world.broker.told.clear()
        world.durable.change_rules([RetentionRule(max_age_s=30)])
        floors: set[int] = set()
        while 2 not in floors:
            await world.until(lambda: bool(world.broker.told))
            floors |= {event.floor for event in world.broker.told if isinstance(event, Losing)}
            world.broker.told.clear()
        await world.durable.close()

    run(test)


def test_the_last_message_of_a_clock_ahead_grows_old_though_none_follows(tmp_path: Path) -> None:
    ahead_us = time.time_ns() // 1000 + 10 * 365 * 86_400 * 1_000_000

    async def test() -> None:
        world = World(tmp_path, [RetentionRule(max_age_s=0.2)])
        world.log.append(Append([entry(received_us=ahead_us)]), NOW_US)
        await world.until(lambda: Losing in map(type, world.broker.told))
        await world.durable.close()

    run(test)
