"""The readers as Spark calls them, against real archives and without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.archive import logs
from tests.spark.archives import Served, options, served

from godwit.spark.archive import Archive, DataLossError, UnreachableError
from godwit.spark.options import DEFAULT_TIMEOUT_S, OptionError, read_options
from godwit.spark.reader import ALL_COLUMNS, SCHEMA, BatchReader, LogPartition, StreamReader
from godwit.store.maintenance import backup
from godwit.store.retention import Retention, RetentionRule
from godwit.wire.extension import Properties, add_origin, encode_properties

# -- batches -----------------------------------------------------------------------------------------------------------


def batch_offsets(place: Served, **given: str) -> list[int]:
    reader = BatchReader(read_options(options(place, **given), is_stream=False), ("offset",), 2)
    batches = [batch for piece in reader.partitions() for batch in reader.read(piece)]
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_all_of_it_or_a_part(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(10)
        assert batch_offsets(place) == list(range(10))
        part = {"startingOffsets": f'{{"{place.log}": 3}}', "endingOffsets": f'{{"{place.log}": 7}}'}
        assert batch_offsets(place, **part) == [3, 4, 5, 6]
        assert batch_offsets(place, minPartitions="4") == list(range(10))
        assert batch_offsets(place, topics="nothing/#") == []


def test_a_part_by_time(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        for second in range(3):
            entry = logs.make_entry("a", [b"x"] * 2, received_us=logs.NOW_US + second * 10**6)
            place.store.append([entry])
        begin_ms = logs.NOW_US // 1000
        assert batch_offsets(place, startingTime=str(begin_ms + 1000), endingTime=str(begin_ms + 2000)) == [2, 3]


def test_an_end_that_was_never_reached_is_a_loss(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(2)
        end = {"endingOffsets": f'{{"{place.log}": 9}}'}
        with pytest.raises(DataLossError, match="which ends at 2"):
            batch_offsets(place, **end)
        assert batch_offsets(place, failOnDataLoss="false", **end) == [0, 1]


def test_an_empty_log_and_an_unknown_one(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        assert batch_offsets(place) == []
        with pytest.raises(OptionError, match="endingOffsets names the log"):
            batch_offsets(place, endingOffsets=f'{{"{"f" * 32}": 9}}')


# -- streams -----------------------------------------------------------------------------------------------------------


ALL = ReadAllAvailable()
COLUMNS = tuple(SCHEMA.names)


def reader(given: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> StreamReader:
    return StreamReader(read_options(given, is_stream=True), columns, 2)


def plain(position: dict[str, Any]) -> dict[str, Any]:
    """Without the epochs that stand beside the offsets."""
    return {name: value for name, value in position.items() if name != "epochs"}


def rows(stream: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    pieces = stream.partitions(start, end)
    return [row for piece in pieces for batch in stream.read(piece) for row in batch.to_pylist()]


def test_a_batch_has_what_came_since_the_last_one(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(5)
        stream = reader(options(place))
        begin = stream.initialOffset()
        assert begin == {place.log: 0}  # nothing is below: no epochs
        end = stream.latestOffset(begin, ALL)
        assert end == {place.log: 5, "epochs": {place.log: [[logs.LOG_ID[:8].hex(), 0]]}}
        found = rows(stream, begin, end)
        assert [row["offset"] for row in found] == list(range(5))
        assert {row["broker"] for row in found} == {place.log}
        assert list(found[0]) == list(COLUMNS)
        assert stream.latestOffset(end, ALL) is end
        assert stream.partitions(end, end) == []
        place.add(3)
        assert plain(stream.latestOffset(end, ALL)) == {place.log: 8}
        assert stream.reportLatestOffset() == {place.log: 8}


def test_only_the_columns_that_are_wanted(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(2)
        stream = reader(options(place), ("payload", "broker"))
        assert rows(stream, {place.log: 0}, {place.log: 2})[1] == {"payload": b"1 ........", "broker": place.log}
        assert len(rows(reader(options(place), ("broker",)), {place.log: 0}, {place.log: 2})) == 2


PROPERTY_NAMES = ("headers", "content_type", "reply_to", "correlation", "expires", "origin_log", "origin_offset")


def test_the_properties_of_messages(tmp_path: Path) -> None:
    properties = Properties(
        headers=(("unit", "C"), ("tag", "1"), ("tag", "2")),
        content_type="text/plain",
        reply_topic="answers",
        correlation=b"7",
        lifetime_us=5_000_000,
    )
    with served(tmp_path) as place:
        extension = add_origin(encode_properties(properties), bytes(range(16)), 40)
        assert extension is not None
        place.store.append([logs.make_entry("a", [b"x", b"y"], extension=extension)])
        place.add(1)
        found = rows(reader(options(place), tuple(ALL_COLUMNS.names)), {place.log: 0}, {place.log: 3})
    assert list(found[0]) == ALL_COLUMNS.names
    expires = datetime.fromtimestamp(logs.NOW_US // 10**6 + 5, UTC)
    with_all = ([("unit", "C"), ("tag", "2")], "text/plain", "answers", b"7", expires, bytes(range(16)).hex())
    expected = [(*with_all, 40), (*with_all, 41), (None,) * 7]
    assert [tuple(row[name] for name in PROPERTY_NAMES) for row in found] == expected


def test_an_archive_of_an_older_version_has_no_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 0.5.0 does not list its columns, and refuses unknown ones."""
    info = Archive.info
    asked: list[Sequence[str]] = []
    read = Archive.read

    def spy(self: Archive, *given: Any, columns: Sequence[str], **more: Any) -> Any:
        asked.append(columns)
        return read(self, *given, columns=columns, **more)

    monkeypatch.setattr(Archive, "info", lambda self: {k: v for k, v in info(self).items() if k != "columns"})
    monkeypatch.setattr(Archive, "read", spy)
    with served(tmp_path) as place:
        place.add(1)
        found = rows(reader(options(place), ("payload", *PROPERTY_NAMES)), {place.log: 0}, {place.log: 1})
        assert found == [{"payload": b"0 ........", **dict.fromkeys(PROPERTY_NAMES)}]
        assert len(rows(reader(options(place), ("headers",)), {place.log: 0}, {place.log: 1})) == 1
    assert asked == [["payload"], ["offset"]]


def test_limits_count_the_rows_of_the_topics_that_are_wanted(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        for _ in range(10):
            place.add(100, "a")
            place.add(900, "b", size=100)
        stream = reader(options(place, topics="a"))
        end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(300))
        assert len(rows(stream, {place.log: 0}, end)) == 300
        assert plain(end) == {place.log: 3000}  # messages of other topics do not count
        by_bytes = reader(options(place, topics="b", maxBytesPerTrigger="180000"))
        assert isinstance(by_bytes.getDefaultReadLimit(), ReadAllAvailable)
        assert len(rows(by_bytes, {place.log: 0}, by_bytes.latestOffset({place.log: 0}, ALL))) == 1800
        default = reader(options(place, maxRowsPerTrigger="7")).getDefaultReadLimit()
        assert default == ReadMaxRows(7)


def test_what_is_available_now_ends(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(5)
        stream = reader(options(place))
        stream.prepareForTriggerAvailableNow()
        place.add(5)
        at = stream.latestOffset({place.log: 0}, ReadMaxRows(3))
        assert plain(at) == {place.log: 3}
        at = stream.latestOffset(at, ReadMaxRows(3))
        assert plain(at) == {place.log: 5}
        assert stream.latestOffset(at, ReadMaxRows(3)) == at


def test_several_brokers_share_the_limit_by_their_lag(tmp_path: Path) -> None:
    other = bytes(range(1, 17))
    with served(tmp_path / "one") as one, served(tmp_path / "two", log_id=other) as two:
        one.add(900)
        two.add(100)
        stream = reader(options(one, two))
        begin = stream.initialOffset()
        end = stream.latestOffset(begin, ReadMaxRows(100))
        assert sum(plain(end).values()) == 100
        assert 88 <= end[one.log] <= 92
        found = rows(stream, begin, stream.latestOffset(begin, ALL))
        assert len({(row["broker"], row["offset"]) for row in found}) == len(found) == 1000
        with pytest.raises(OptionError, match="are of one broker"):
            reader(options(one, one.address.replace("127.0.0.1", "localhost"))).initialOffset()


def test_the_log_of_an_added_broker_is_read_from_its_beginning(tmp_path: Path) -> None:
    with served(tmp_path / "one") as one, served(tmp_path / "two", log_id=bytes(range(1, 17))) as two:
        one.add(3)
        stream = reader(options(one, two))
        start = {one.log: 3}
        assert stream.latestOffset(start, ALL) is start  # its log is empty
        two.add(4)
        end = stream.latestOffset(start, ALL)
        assert plain(end) == {one.log: 3, two.log: 4, "begins": {two.log: 0}}
        again = reader(options(one, two))  # after a restart Spark asks for the same batch
        assert len(rows(again, start, end)) == 4
        assert again.latestOffset(end, ALL) == end


@pytest.mark.parametrize(
    ("given", "begin"),
    [
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "latest"}, 5),
        ({"startingOffsets": f'{{"{logs.LOG_ID.hex()}": 2}}'}, 2),
        ({"startingTime": "2020-01-01T00:00:00"}, 0),
        ({"startingTime": "2090-01-01T00:00:00+01:00"}, 5),
    ],
)
def test_where_it_begins(tmp_path: Path, given: dict[str, str], begin: int) -> None:
    with served(tmp_path) as place:
        place.add(5)
        assert plain(reader(options(place, **given)).initialOffset()) == {place.log: begin}


def test_a_log_that_no_archive_has(tmp_path: Path) -> None:
    with served(tmp_path) as place, pytest.raises(OptionError, match="which none of the archives has"):
        reader(options(place, startingOffsets=f'{{"{"f" * 32}": 2}}')).initialOffset()


def test_an_unreachable_archive_is_skipped_until_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path / "one") as one, served(tmp_path / "two", log_id=bytes(range(1, 17))) as two:
        one.add(2)
        two.add(2)
        start = {one.log: 0, two.log: 0}
        assert one.process is not None
        one.process.kill()
        stream = reader(options(one, two))
        assert plain(stream.latestOffset(start, ALL)) == {one.log: 0, two.log: 2}  # the other log is read
        assert len(rows(reader(options(one, two)), start, {one.log: 0, two.log: 2})) == 2  # also after a restart
        seconds = 0.0
        monkeypatch.setattr("godwit.spark.reader.time", SimpleNamespace(monotonic=lambda: seconds))
        stream = reader(options(one, two))
        assert plain(stream.latestOffset(start, ALL)) == {one.log: 0, two.log: 2}
        seconds = DEFAULT_TIMEOUT_S
        assert plain(stream.latestOffset(start, ALL)) == {one.log: 0, two.log: 2}
        seconds = DEFAULT_TIMEOUT_S + 1
        with pytest.raises(UnreachableError, match="did not answer within 60 s"):
            stream.latestOffset(start, ALL)


def test_a_replaced_log_is_a_loss(tmp_path: Path) -> None:
    with served(tmp_path, log_id=bytes(range(1, 17))) as place:
        place.add(4)
        start = {logs.LOG_ID.hex(): 7}
        with pytest.raises(DataLossError, match="the broker's data folder was replaced"):
            reader(options(place)).latestOffset(start, ALL)
        stream = reader(options(place, failOnDataLoss="false"))
        end = stream.latestOffset(start, ALL)
        assert plain(end) == {**start, place.log: 4, "begins": {place.log: 0}}  # the old log may reappear
        assert len(rows(stream, start, end)) == 4


@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_older_copy_of_the_log_is_never_read(tmp_path: Path, fails: str) -> None:
    with served(tmp_path) as place:
        place.add(4)
        with pytest.raises(DataLossError, match="it ends at 4 now: an older copy was restored"):
            reader(options(place, failOnDataLoss=fails)).latestOffset({place.log: 9}, ALL)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_older_copy_that_has_grown_past_the_checkpoint_is_not_read(tmp_path: Path, fails: str) -> None:
    """Its length does not distinguish it from the log that the query has read."""
    folder, copy = tmp_path / "data", tmp_path / "copy"
    with served(folder, log_id=b"a" * 16) as place:
        place.add(4)
        backup(folder / "log.sqlite", copy, lambda *_: None)
        place.add(4)
        stream = reader(options(place))
        start = stream.latestOffset(stream.initialOffset(), ReadMaxRows(6))
        planned = stream.latestOffset(start, ALL)
        log = place.log
    for path in folder.glob("log.sqlite*"):
        path.unlink()
    copy.rename(folder / "log.sqlite")
    with served(folder, log_id=b"b" * 16) as place:
        assert place.log == log
        place.add(20)
        again = reader(options(place, failOnDataLoss=fails))
        with pytest.raises(
            DataLossError, match=r"from 4 on it has other messages now: an older copy .* new checkpoint"
        ):
            again.latestOffset(start, ALL)
        with pytest.raises(
            DataLossError, match=r"other messages from offset 4 on than .* new checkpoint and new tables"
        ):
            rows(again, start, planned)  # a batch that was planned before, and is read after a restart
        of_0_5_0 = {log: 6}
        assert plain(again.latestOffset(of_0_5_0, ALL)) == {log: 24}  # its epochs are unknown
        fresh = reader(options(place))
        assert len(rows(fresh, fresh.initialOffset(), fresh.latestOffset(fresh.initialOffset(), ALL))) == 24


def test_a_log_that_only_grew_is_read(tmp_path: Path) -> None:
    with served(tmp_path, log_id=b"a" * 16) as place:
        place.add(4)
        stream = reader(options(place))
        start = stream.latestOffset(stream.initialOffset(), ALL)
    with served(tmp_path, log_id=b"b" * 16) as place:
        place.add(3)
        stream = reader(options(place))
        end = stream.latestOffset(start, ALL)
        assert end == {place.log: 7, "epochs": {place.log: [[b"aaaaaaaa".hex(), 0], [b"bbbbbbbb".hex(), 4]]}}
        assert [row["offset"] for row in rows(stream, start, end)] == [4, 5, 6]


def test_retention_that_overtook_the_query_is_a_loss(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        for _ in range(4):
            place.add(10)
        _forget_all_but_the_last(place)
        end = {place.log: 50}
        with pytest.raises(DataLossError, match="set the option failOnDataLoss to false"):
            rows(reader(options(place)), {place.log: 0}, end)
        found = rows(reader(options(place, failOnDataLoss="false")), {place.log: 0}, end)
        assert [row["offset"] for row in found] == list(range(40, 50))


def _forget_all_but_the_last(place: Served) -> None:
    """Blocks that are older than the last one, which is received a day later."""
    later_us = logs.NOW_US + 24 * 3600 * 10**6
    place.store.append([logs.make_entry("a", [b"x"] * 10, received_us=later_us)])
    retention = Retention(place.store, [RetentionRule(max_age_s=3600)])
    while retention.step(later_us) is not None:
        pass


def test_partitions_are_pickled_without_connections(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(10)
        stream = reader(options(place, minPartitions="3"))
        pieces = stream.partitions(stream.initialOffset(), stream.latestOffset({place.log: 0}, ALL))
        assert len(pieces) == 3
        there, copies = pickle.loads(pickle.dumps((stream, pieces)))
        assert all(isinstance(piece, LogPartition) for piece in copies)
        assert sum(batch.num_rows for piece in copies for batch in there.read(piece)) == 10
