"""The benchmark of the log: a fake system with known figures, Godwit, JetStream, the bare disk, and a short real run.

The tests check that messages are confirmed and stored, never how fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

from godwit.errors import DiskError, GodwitError
from godwit.store.sqlite import SqliteStore
from godwit.wire.batch import Entry
from godwit.wire.changes import Change
from godwit_bench import log, peers
from godwit_bench.log import (
    BATCH_BYTES,
    LOG_FOLDER,
    SYNC_BYTES,
    LogSystem,
    Outcome,
    append_and_sync,
    durable_broker,
    godwit_logger,
    jetstream,
    jetstream_counted,
    measure,
    write_and_commit,
)
from godwit_bench.processes import ProcessGroup


def broker(processes: ProcessGroup) -> str:
    return str(processes.folder.parent)


def publish(pipe: Pipe, address: str, seconds: float, message_bytes: int) -> None:
    assert (seconds, message_bytes) == (0.5, 100)
    assert Path(address).is_dir()
    pipe.send(Outcome(confirmed=1000, logged=1000, elapsed_s=4.0))


def lose(pipe: Pipe, address: str, seconds: float, message_bytes: int) -> None:
    pipe.send(Outcome(confirmed=1000, logged=999, elapsed_s=4.0))


def test_confirmed_messages_a_second(tmp_path: Path) -> None:
    assert measure(LogSystem(broker, publish), tmp_path, 0.5, 100) == 250.0
    assert list(tmp_path.iterdir()) == []


def test_a_log_without_confirmed_messages_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GodwitError, match="1000 messages were confirmed, and 999 are in the log"):
        measure(LogSystem(broker, lose), tmp_path, 0.5, 100)


def test_messages_are_confirmed_and_kept_godwit(tmp_path: Path) -> None:
    assert measure(godwit_logger(), tmp_path, 0.1, 100) > 0
    assert measure(godwit_logger(3), tmp_path, 0.1, 8192) > 0


def test_its_log_is_on_the_disk_that_is_measured(tmp_path: Path) -> None:
    with ProcessGroup(within=tmp_path) as processes:
        godwit_logger().broker(processes)
        assert (processes.folder / LOG_FOLDER / "log.sqlite").is_file()


def test_a_broker_with_its_archive(tmp_path: Path) -> None:
    with ProcessGroup(within=tmp_path) as processes:
        address, archive = durable_broker(processes, processes.folder / LOG_FOLDER, with_archive=True)
        assert address.startswith("udp://127.0.0.1:")
        assert archive.startswith("grpc://127.0.0.1:")


SERVER = peers.find("nats-server") or ""
pytestmark = pytest.mark.skipif(not SERVER, reason="needs the program nats-server")


@pytest.mark.parametrize("make", [jetstream, jetstream_counted])
def test_messages_are_confirmed_and_kept_jetstream(make: Callable[[str], LogSystem], tmp_path: Path) -> None:
    assert measure(make(SERVER), tmp_path, 0.1, 100) > 0


def test_its_store_is_on_the_disk_that_is_measured(tmp_path: Path) -> None:
    with ProcessGroup(within=tmp_path) as processes:
        jetstream(SERVER).broker(processes)
        assert (processes.folder / LOG_FOLDER / "jetstream").is_dir()


def test_payload_is_committed_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = 0
    append = SqliteStore.append

    def watched(store: SqliteStore, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        nonlocal committed
        offset = append(store, entries, changes)
        committed += sum(entry.count for entry in entries)
        return offset

    monkeypatch.setattr(SqliteStore, "append", watched)
    rate = write_and_commit(tmp_path, 0.1, 8192)
    assert committed % (BATCH_BYTES // 8192) == 0
    assert 0 < rate <= committed * 8192 / 0.1
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: SqliteStore, entries: Sequence[Entry], changes: Sequence[Change] = ()) -> int:
        raise DiskError("the disk is full: make room")

    monkeypatch.setattr(SqliteStore, "append", fail)
    with pytest.raises(GodwitError, match="the log could not be written: the disk is full"):
        write_and_commit(tmp_path, 5.0, 8192)


def test_every_piece_is_synced_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    sync = log._sync

    def watched(file: int) -> None:
        sync(file)
        (written,) = tmp_path.iterdir()
        sizes.append(written.stat().st_size)

    monkeypatch.setattr(log, "_sync", watched)
    clock = iter([0.0, 0.25, 0.5, 1.0])  # at the start, then after each piece
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert append_and_sync(tmp_path, 1.0) == 3 * SYNC_BYTES
    assert sizes == [SYNC_BYTES, 2 * SYNC_BYTES, 3 * SYNC_BYTES]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(peers.find("nats-server") is None, reason="needs the program nats-server")
def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    rounds: list[str] = []
    report = log.run(folder=tmp_path, rounds=1, seconds=0.2, on_round=rounds.append, on_install=pytest.fail)
    assert report.bench == "log"
    ours = ["godwit_8k", "godwit_8k_ethernet", "log_alone_8k"]
    assert rounds == ["godwit", "jetstream", "jetstream_counted", *ours, "raw_disk"]
    results = {result.name: result.value or 0.0 for result in report.results}
    assert list(results) == rounds
    assert all(results.values())
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "vs_jetstream": results["godwit"] / results["jetstream"],
        "vs_jetstream_counted": results["godwit"] / results["jetstream_counted"],
        "vs_raw_disk": results["godwit_8k"] / results["raw_disk"],
        "ethernet_vs_raw_disk": results["godwit_8k_ethernet"] / results["raw_disk"],
        "log_alone_vs_raw_disk": results["log_alone_8k"] / results["raw_disk"],
    }
    assert list(tmp_path.iterdir()) == []
