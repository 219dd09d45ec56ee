"""The calls of an archive process, while the test writes the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight
from tests.archive import logs
from tests.archive.client import ArchiveClient
from tests.archive.running import Appender, archive_of, log_in

from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import TopicRow


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SqliteStore, ArchiveClient, Path]]:
    """One process for all tests: each looks from the log's end on."""
    folder = tmp_path_factory.mktemp("archive")
    with log_in(folder) as store, archive_of(folder) as (process, client):
        process.appender = Appender(store, folder / "stages")
        yield store, client, folder


def test_reading_while_it_is_written(stand: tuple[SqliteStore, ArchiveClient, Path]) -> None:
    store, client, _ = stand
    start = store.next_offset
    expected = []
    for number in range(20):
        entry = logs.make_entry(f"home/{number % 3}", [b"%d" % number] * 3, received_us=logs.NOW_US + number)
        expected += [(store.append([entry]), entry)]
        assert logs.listed(*client.read(start=start)) == logs.rows_of(expected)
    assert client.info()["next_offset"] == store.next_offset
    assert client.offset_for_time(logs.NOW_US + 7) == start + 21
    chosen = logs.listed(*client.read(["home/1"], start=start, end=start + 20, columns=["offset", "topic"]))
    assert chosen == [
        {"offset": row["offset"], "topic": "home/1"} for row in logs.rows_of(expected)[:20] if row["topic"] == "home/1"
    ]


def test_pieces_say_where_to_read_on(stand: tuple[SqliteStore, ArchiveClient, Path]) -> None:
    store, client, _ = stand
    start = store.append([logs.make_entry("x", [b"1"] * 10)])
    (piece,) = client.pieces(start=start)
    assert (piece.batch.num_rows, piece.next_offset, piece.lost) == (10, start + 10, [])
    (nothing,) = client.pieces(["unused"], start=start)
    assert (nothing.batch.num_rows, nothing.next_offset) == (0, start + 10)
    assert list(client.read(["unused"], start=start)) == []


def test_topics(stand: tuple[SqliteStore, ArchiveClient, Path]) -> None:
    store, client, _ = stand
    store.append([], [TopicRow("counted", 3, 30, 5)])
    assert list(client.topics(["counted"])) == [{"name": "counted", "messages": 3, "payload_bytes": 30, "last_us": 5}]


def test_staged_rows_are_seen_after_the_commit_and_once(stand: tuple[SqliteStore, ArchiveClient, Path]) -> None:
    store, client, folder = stand
    start = store.next_offset
    rows = pa.table({"topic": ["alerts/a"] * 3, "payload": [b"1", b"2", b"3"], "qos": pa.array([1, 2, 2], pa.int8())})
    client.stage(rows.slice(0, 1), query="alerts", batch=0, partition=0, attempt=11, publisher="spark")
    client.stage(rows.slice(1).to_batches(), query="alerts", batch=0, partition=1, attempt=12, publisher="spark")
    client.stage([], query="alerts", batch=0, partition=2, attempt=13, publisher="spark")
    assert list(client.read(start=start)) == []
    parts = [(2, 13), (1, 12), (0, 11)]
    assert client.commit("alerts", 0, parts) == {"first_offset": start, "count": 3, "was_known": False}
    assert client.commit("alerts", 0, parts)["was_known"] is True
    found = logs.listed(*client.read(start=start))
    assert [(row["payload"], row["qos"], row["publisher"]) for row in found] == [
        (b"1", 1, "spark"),
        (b"2", 2, "spark"),
        (b"3", 2, "spark"),
    ]
    client.stage(rows, query="alerts", batch=1, partition=0, attempt=0, publisher="spark")
    assert client.abort("alerts", 1) == 1
    with pytest.raises(flight.FlightServerError, match="not all parts of batch 1"):
        client.commit("alerts", 1, [(0, 0)])
    assert not list((folder / "stages").iterdir())


def test_without_an_archive() -> None:
    with ArchiveClient("grpc://127.0.0.1:1", timeout_s=20.0) as client, pytest.raises(flight.FlightUnavailableError):
        client.info()
