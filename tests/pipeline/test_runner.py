"""The steps of the pipeline, and whole runs in a real session against a real broker."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.archive import logs
from tests.cli.real import godwit as run_godwit
from tests.pipeline.lakes import LOG, RecordingListener, lake_of_0_5_0, tables_at
from tests.spark.archives import Served, options, served
from tests.spark.session import running_broker

import godwit.pipeline
import godwit.spark
from godwit.pipeline.checkpoints import (
    TABLES,
    WRITTEN_TOGETHER,
    check_no_partial_batch,
    checkpoint_address,
    read_checkpoint,
)
from godwit.pipeline.checks import run_checks
from godwit.pipeline.datasets import anomalies, bronze, devices, readings, windows
from godwit.pipeline.datasets.readings import BatchDecoder, Decoding
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.ingest import KINDS, RangeWriter, TargetTable
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.report.page import write_report
from godwit.pipeline.runner import RunConfig, TablesWriter, run
from godwit.pipeline.status import status_of
from godwit.pipeline.supervisor import RunStats, StepResult
from godwit.spark.archive import DataLossError
from godwit.spark.options import read_options
from godwit.spark.reader import ALL_COLUMNS, StreamReader


def offsets(lake: Lake, spec: TableSpec) -> list[int]:
    return sorted(lake.table(spec).arrow(["offset"])["offset"].to_pylist())


def writer_of(spark: SparkSession, lake: Lake, place: Served, **more: str) -> TablesWriter:
    return TablesWriter(spark, RunConfig(lake, options(place, **more)))


def add(place: Served, count: int) -> None:
    """Append messages, every second of which is not a reading."""
    begin = place.store.next_offset
    payloads = [b"warm" if number % 2 else b"21" for number in range(begin, begin + count)]
    place.store.append([logs.make_entry("home/one", payloads)])


def content(lake: Lake) -> tuple[list[int], list[int], list[int]]:
    return offsets(lake, bronze.SPEC), offsets(lake, readings.SPEC), offsets(lake, readings.QUARANTINE)


def complete(count: int) -> tuple[list[int], list[int], list[int]]:
    return list(range(count)), list(range(0, count, 2)), list(range(1, count, 2))


def progress(result: StepResult) -> tuple[int, int]:
    return result.messages, result.behind


def test_a_step_that_is_planned_again_resumes_at_the_watermarks(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path / "lake"))
    with served(tmp_path / "data") as place:
        add(place, 6)

        def write(end: int) -> int:
            writer = writer_of(spark, lake, place, minPartitions="2")
            partitions = writer._planner.partitions({place.log: 0}, {place.log: end})
            return writer.write(partitions, {place.log: end}, {})

        assert write(2) == 2
        assert write(2) == 2  # as after kill -9 before the position file was written
        write(5)
        assert content(lake) == complete(5)
        # Interrupted: bronze has the rest, the others do not.
        write(5)
        row = lake.table(bronze.SPEC).arrow().slice(0, 1).to_pylist()[0] | {"offset": 5}
        lake.table(bronze.SPEC).append_arrow(pa.Table.from_pylist([row], bronze.SPEC.schema), {place.log: 6})
        tables_at(lake, {place.log: 5})
        with pytest.raises(PipelineError, match="incomplete"):
            check_no_partial_batch(lake)
        write(6)
        assert content(lake) == complete(6)
        check_no_partial_batch(lake)


def test_steps_are_limited_and_resume_without_their_position(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path / "lake"))
    position = Path(checkpoint_address(lake, TABLES)) / "position.json"
    with served(tmp_path / "data") as place:
        writer = writer_of(spark, lake, place, maxRowsPerTrigger="4")
        assert progress(writer.step()) == (0, 0)
        add(place, 6)
        assert [progress(writer.step()) for _ in range(3)] == [(4, 2), (2, 0), (0, 0)]
        before = position.read_text()
        add(place, 2)
        assert progress(writer_of(spark, lake, place).step()) == (2, 0)
        position.write_text(before)  # as after kill -9 behind the transactions
        assert progress(writer_of(spark, lake, place).step()) == (0, 0)
        position.unlink()
        add(place, 1)
        assert progress(writer_of(spark, lake, place).step()) == (1, 0)
        assert content(lake) == complete(9)
        # A table that was deleted is filled again from the log.
        shutil.rmtree(lake.table(readings.SPEC).address)
        assert progress(writer_of(spark, lake, place).step()) == (9, 0)
        assert content(lake) == complete(9)


def test_a_run_to_the_end_waits_for_an_archive_that_is_away(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "data") as place:
        add(place, 2)
        writer = TablesWriter(spark, RunConfig(Lake(str(tmp_path / "lake")), options(place), is_once=True))

        def away(planner: StreamReader, known: object) -> dict[str, Any]:
            planner._unreachable_since["x"] = time.monotonic()
            return {}

        with monkeypatch.context() as patch:
            patch.setattr(StreamReader, "_poll_archives", away)
            assert progress(writer.step()) == (0, 2)
        writer._planner._unreachable_since.clear()
        assert progress(writer.step()) == (2, 0)
        # A log whose messages were all deleted before the run ends above 0, and has nothing to read.
        assert writer._planner._target is not None
        writer._planner._target["b" * 32] = 500
        assert progress(writer.step()) == (0, 0)


def test_a_lake_of_0_5_0_is_continued(tmp_path: Path, spark: SparkSession) -> None:
    """Its checkpoint is Spark's, and has read 120 messages of the log."""
    lake = lake_of_0_5_0(tmp_path)
    with served(tmp_path / "data", log_id=bytes.fromhex(LOG)) as place:
        add(place, 100)
        with pytest.raises(DataLossError, match="up to offset 120, and it ends at 100 now: an older copy"):
            writer_of(spark, lake, place).step()
        add(place, 24)
        assert progress(writer_of(spark, lake, place).step()) == (4, 0)
        assert progress(writer_of(spark, lake, place).step()) == (0, 0)
    assert offsets(lake, bronze.SPEC) == list(range(124))
    assert [at for at in offsets(lake, readings.SPEC) if at >= 120] == [120, 122]
    found = read_checkpoint(lake, TABLES)
    assert found is not None
    assert found.offsets == {LOG: 124}


WITHOUT_GODWIT = """
import sys

class NoGodwit:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "godwit":
            raise ImportError(name)

sys.meta_path.insert(0, NoGodwit())
from pyspark import cloudpickle

writer = cloudpickle.loads(sys.stdin.buffer.read())
print({kind: file["rows"] for kind, file in writer(0)["files"].items()})
"""


def test_tasks_run_where_godwit_is_not(tmp_path: Path) -> None:
    with served(tmp_path / "data") as place:
        add(place, 5)
        planner = StreamReader(read_options(options(place), is_stream=True), tuple(ALL_COLUMNS.names), 1)
        targets = {
            kind: TargetTable(str(tmp_path / kind), spec.schema, {})
            for kind, spec in zip(KINDS, WRITTEN_TOGETHER, strict=True)
        }
        partitions: Any = planner.partitions({place.log: 0}, {place.log: 5})
        packages = (godwit.pipeline, godwit.spark)
        for package in packages:
            cloudpickle.register_pickle_by_value(package)  # type: ignore[no-untyped-call]
        try:
            shipped = cloudpickle.dumps(RangeWriter(planner, partitions, targets, BatchDecoder(Decoding()).split))  # type: ignore[no-untyped-call]
        finally:
            for package in packages:
                cloudpickle.unregister_pickle_by_value(package)  # type: ignore[no-untyped-call]
        done = subprocess.run([sys.executable, "-c", WITHOUT_GODWIT], input=shipped, capture_output=True, check=False)
    assert (done.stdout.decode(), done.stderr.decode()) == ("{'messages': 5, 'readings': 3, 'quarantine': 2}\n", "")


def test_up_to_what_is_there_and_then_the_rest(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.pipeline.lake.COMPACT_EVERY", 1)
    lake, listener = Lake(str(tmp_path / "lake")), RecordingListener()
    with running_broker(tmp_path / "data") as broker:

        def publish(*lines: str) -> None:
            text = "\n".join(lines).encode()
            assert run_godwit("pub", "--broker", broker.address, "home/x", "--lines", "-q", input=text).returncode == 0

        config = RunConfig(lake, {"archive": broker.archive}, is_once=True)
        began_s = int(time.time()) - 600  # ten minutes of readings
        publish(
            *[f'{{"temperature": {20 + number % 5}, "time": {began_s + 6 * number}}}' for number in range(100)], "warm"
        )
        stats = run(spark, config, listener)
        assert stats == RunStats(
            {"tables": 1, "anomalies": 1, "gold": 1}, dict.fromkeys(("tables", "anomalies", "gold"), 101)
        )
        assert {(batch.query, batch.number, batch.rows, batch.lag) for batch in listener.batches} == {
            ("tables", 0, 101, 0), ("anomalies", 0, 101, 0), ("gold", 0, 101, 0)
        }  # fmt: skip
        publish("21", "22")
        assert run(spark, config, listener).rows == {"tables": 2, "anomalies": 2, "gold": 2}
        assert [one.lag for one in status_of(lake, config.source).logs] == [0, 0, 0]
    assert not [one for one in run_checks(lake) if one.wrong]
    rows = {spec.name: lake.table(spec).rows for spec in (bronze.SPEC, readings.SPEC, readings.QUARANTINE)}
    assert rows == {"bronze/messages": 103, "silver/readings": 102, "silver/quarantine": 1}
    counts = lake.table(windows.SPEC).arrow(["window_s", "count"]).to_pylist()
    assert sum(row["count"] for row in counts if row["window_s"] == 60) == 102
    assert [row["messages"] for row in lake.table(devices.SPEC).arrow().to_pylist()] == [103]
    assert lake.table(anomalies.SPEC).rows == 0
    assert len(counts) >= 10
    # Spark's limit of 10 s for a new Python worker is fixed: on a very busy machine a query restarts.
    assert [one for one in listener.failures if "Python worker failed to connect back" not in one[1]] == []
    write_report(lake, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "103 messages in " in page
    assert page.count('class="median"') >= 1  # a line through ten minutes
