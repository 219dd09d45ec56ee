"""Several archives of one log: the furthest is read, one that is behind is waited for, rows go to the active one."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from tests.archive.client import ArchiveClient
from tests.archive.logs import listed
from tests.archive.running import PATIENCE_S, Appender, Process, process_in
from tests.spark.archives import Served, options, served

from godwit.cli.pipeline_run import default_archive
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.status import find_logs
from godwit.spark.archive import ArchiveError, DataLossError, UnreachableError
from godwit.spark.options import ArchiveAccess, OptionError, read_options, write_options
from godwit.spark.reader import BatchReader, StreamReader
from godwit.spark.replicas import Replicas
from godwit.spark.sink import StagedPartition, StreamWriter
from godwit.store.maintenance import backup

ALL = ReadAllAvailable()
COLUMNS = ("offset", "payload")


class Copy:
    """A replica that copies the log of another place when the test wants it."""

    def __init__(self, folder: Path, source: Served, process: Process) -> None:
        self._file = folder / "log.sqlite"
        self._source = source
        self.process = process
        self.address = process.url()

    def catch_up(self) -> None:
        connection = apsw.Connection(str(self._file))
        connection.set_busy_timeout(60_000)
        connection.execute(f"ATTACH '{self._source.folder / 'log.sqlite'}' AS source")
        names = [name for (name,) in connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
        with connection:
            for name in names:
                if not name.startswith("sqlite_"):
                    connection.execute(f"INSERT OR REPLACE INTO main.{name} SELECT * FROM source.{name}")
        connection.close()


@contextmanager
def pair(folder: Path, count: int = 100) -> Iterator[tuple[Served, Copy]]:
    """A log with messages, and a copy of it."""
    folder.mkdir(exist_ok=True)
    with served(folder / "one") as one:
        one.add(count)
        (folder / "two").mkdir()
        backup(one.folder / "log.sqlite", folder / "two" / "log.sqlite", lambda *_: None)
        with process_in(folder / "two", "--listen", "127.0.0.1:0") as process:
            yield one, Copy(folder / "two", one, process)


def both(one: Served | Copy, two: Served | Copy, **more: str) -> dict[str, str]:
    return options(f"{one.address}|{two.address}", **more)


def stream_reader(given: dict[str, str]) -> StreamReader:
    return StreamReader(read_options(given, is_stream=True), COLUMNS, 2)


def offsets_of(reader: StreamReader | BatchReader, partitions: object) -> list[int]:
    assert isinstance(partitions, list)
    return [
        offset
        for partition in pickle.loads(pickle.dumps(partitions))  # as it travels to an executor
        for batch in reader.read(partition)
        for offset in batch.column("offset").to_pylist()
    ]


def test_the_furthest_replica_is_read(tmp_path: Path) -> None:
    with pair(tmp_path) as (one, two):
        one.add(50)
        for given in (both(one, two), both(two, one)):
            reader = stream_reader(given)
            start = reader.initialOffset()
            assert start[one.log] == 0
            end = reader.latestOffset(start, ALL)
            assert end[one.log] == 150
            assert offsets_of(reader, reader.partitions(start, end)) == list(range(150))
            batch = BatchReader(read_options(given, is_stream=False), COLUMNS, 2)
            assert offsets_of(batch, batch.partitions()) == list(range(150))
        (log,) = find_logs(both(two, one))
        assert (log.id, log.next_offset) == (one.log, 150)


def test_a_replica_that_is_behind_is_waited_for(tmp_path: Path) -> None:
    with pair(tmp_path) as (one, two):
        one.add(50)
        reader = stream_reader(both(one, two))
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        assert one.process is not None
        one.process.kill()
        # The batch was planned with the first replica. The second has a part of it.
        impatient = stream_reader(both(one, two, archiveTimeout="0.5"))
        with pytest.raises(UnreachableError, match=r"has log \w+ up to offset 150 \(.* ends at 100\)"):
            offsets_of(impatient, impatient.partitions(start, end))
        # A query that has read it already waits, too.
        assert reader.latestOffset(end, ALL) == end
        assert reader.is_waiting
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(offsets_of(reader, reader.partitions(start, end))))
        thread.start()
        time.sleep(0.5)
        assert not found
        two.catch_up()
        thread.join(PATIENCE_S)
        assert found == list(range(150))
        assert reader.latestOffset(end, ALL) == end
        assert not reader.is_waiting


def test_replicas_that_all_end_before_the_query_are_a_loss_after_the_timeout(tmp_path: Path) -> None:
    with pair(tmp_path) as (one, two):
        reader = stream_reader(both(one, two, archiveTimeout="0.2"))
        ahead = {one.log: 1000}
        assert reader.latestOffset(ahead, ALL) == ahead
        time.sleep(0.3)
        with pytest.raises(DataLossError, match="it ends at 100 now"):
            reader.latestOffset(ahead, ALL)


def test_a_replica_that_fails_during_a_read_is_replaced(tmp_path: Path) -> None:
    with pair(tmp_path) as (one, two):
        for _ in range(40):
            one.add(500, size=2000)
        two.catch_up()
        replicas = Replicas(f"{one.address}|{two.address}", ArchiveAccess(()))
        end = 100 + 40 * 500
        batches = replicas.read(
            one.log, 0, end, topics=(), columns=["offset"], fails_on_data_loss=True, gaps_known_below=0
        )
        found = next(batches).column("offset").to_pylist()
        assert one.process is not None
        one.process.kill()
        for batch in batches:
            found += batch.column("offset").to_pylist()
        assert found == list(range(end))


def test_other_logs_and_other_messages_are_refused(tmp_path: Path) -> None:
    with pair(tmp_path / "a") as (one, two), served(tmp_path / "b", log_id=bytes(range(1, 17))) as other:
        other.add(3)
        with pytest.raises(OptionError, match=r"have the logs .* only replicas of one log are separated by \|"):
            stream_reader(both(one, other)).initialOffset()
        with pytest.raises(PipelineError, match="have the logs"):
            find_logs(both(one, other))
        with pytest.raises(OptionError, match=r"are of one broker: name one, or separate replicas of one log by \|"):
            stream_reader(options(one.address, two.address)).initialOffset()
    # A copy that went its own way: the same id and length, and other messages.
    folder = tmp_path / "c"
    with pair(folder) as (one, two):
        two.process.kill()
        one.add(10)
        with served(folder / "two", log_id=b"b" * 16) as copy:
            copy.add(5)
            with pytest.raises(DataLossError, match="not replicas of one log: from offset 100 on"):
                stream_reader(both(one, copy)).initialOffset()


def test_no_replica_answers(tmp_path: Path) -> None:
    with pair(tmp_path) as (one, two):
        given = both(one, two, archiveTimeout="0.3")
        assert one.process is not None
        one.process.kill()
        assert stream_reader(given).initialOffset()[one.log] == 0  # one is enough
        two.process.kill()
        with pytest.raises(UnreachableError, match=r"none of the archives at .*, .* answered within"):
            stream_reader(given).initialOffset()


def test_addresses_of_replicas() -> None:
    access = read_options({"archive": "a|b:6000 , grpc+tls://c", "token": "t"}, is_stream=True).access
    assert access.addresses == ("grpc://a:50001|grpc://b:6000", "grpc+tls://c:50001")
    assert "grpc://a:50001, grpc://b:6000 is sent" in access.plain_token_warning()
    with pytest.raises(OptionError, match="the same address twice"):
        read_options({"archive": "a|a"}, is_stream=True)
    with pytest.raises(OptionError, match=r"rows are written to one\. Replicas of one log are separated by \|"):
        write_options({"archive": "a,b"})
    assert write_options({"archive": "a|b"}).access.addresses == ("grpc://a:50001|grpc://b:50001",)
    assert default_archive("one,two:6000") == "one:50001|two:6001"


def test_rows_are_written_to_the_active_broker(spark: SparkSession, tmp_path: Path) -> None:
    with pair(tmp_path) as (one, two):
        two.process.appender = Appender(one.store, tmp_path / "two" / "stages")
        two.process.appender.problem = "a standby was asked to append"
        two.process.set_role(is_accepting=False)
        with ArchiveClient(two.address) as client:
            while client.info()["accepts_commits"]:
                time.sleep(0.01)
        frame = spark.range(0, 20, 1, 2).selectExpr("'t' topic", "cast(id as string) payload")
        frame.write.format("godwit").options(**both(two, one)).mode("append").save()
        with ArchiveClient(one.address) as client:
            assert len([row for row in listed(*client.read()) if row["topic"] == "t"]) == 20
        assert two.process.appender.asked == 0
        with ArchiveClient(two.address) as client, pytest.raises(pa.ArrowException, match="is a standby"):
            client.commit("q", 0, [])


def test_rows_that_are_staged_with_two_brokers_are_not_committed(tmp_path: Path) -> None:
    with pair(tmp_path) as (one, two):
        columns = StructType([StructField("topic", StringType()), StructField("payload", BinaryType())])
        writer = StreamWriter(write_options(both(one, two)), columns)
        staged = [StagedPartition("q", n, 1, 1, address) for n, address in enumerate((one.address, two.address))]
        with pytest.raises(ArchiveError, match="another broker became active: write the batch again"):
            writer.commit(staged, 0)


def test_a_commit_at_a_broker_that_is_lost_fails_as_soon_as_another_accepts_commits(tmp_path: Path) -> None:
    columns = StructType([StructField("topic", StringType()), StructField("payload", BinaryType())])
    with pair(tmp_path) as (one, two):
        two.process.set_role(is_accepting=False)
        with ArchiveClient(two.address) as client:
            while client.info()["accepts_commits"]:
                time.sleep(0.01)
        staged = [StagedPartition("q", 0, 1, 1, one.address)]
        assert one.process is not None
        one.process.kill()
        # No other broker is active yet: it may come back.
        impatient = StreamWriter(write_options(both(one, two, archiveTimeout="0.5")), columns)
        with pytest.raises(UnreachableError, match="did not answer within"):
            impatient.commit(staged, 0)
        two.process.set_role(is_accepting=True)
        patient = StreamWriter(write_options(both(one, two, archiveTimeout="3600")), columns)
        with pytest.raises(ArchiveError, match="which does not answer, and another broker became active: write the"):
            patient.commit(staged, 0)
