"""A lake on S3, with moto's server: tables, concurrent commits, queries and checks."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError
from pyarrow import fs
from tests.pipeline.lakes import LOG, NOON
from tests.spark.archives import free_port

from godwit.pipeline.checks import STATE, run_checks
from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.files import file_system
from godwit.pipeline.lake import Lake
from godwit.pipeline.sql import run_sql

START_S = 60.0
WRITERS = 4
COMMITS = 5


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with an empty bucket."""
    port = free_port()
    log = tmp_path_factory.mktemp("moto") / "server.log"
    with log.open("wb") as output:
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        ends_at = time.monotonic() + START_S
        while not _has_bucket(address):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends_at, "the server did not start"
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(START_S)


def _has_bucket(address: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT")) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


@pytest.fixture
def lake(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lake:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    return Lake(f"s3://bucket/{tmp_path.name}")


def rows(first: int, count: int) -> pa.Table:
    common = {"broker": LOG, "topic": "$sys/one", "received": NOON, "qos": 1, "payload": b"1"}
    return pa.Table.from_pylist([common | {"offset": at} for at in range(first, first + count)], bronze.SPEC.schema)


def test_a_table(lake: Lake) -> None:
    table = lake.table(bronze.SPEC)
    assert table.version is None
    assert table.append_arrow(rows(0, 10), {LOG: 10})
    assert not table.append_arrow(rows(0, 10), {LOG: 10})
    assert table.upsert(rows(8, 4), {"upsert": 1})
    assert table.remove(rows(0, 2).select(["broker", "offset"]), {"remove": 1})
    assert table.watermark(LOG) == 10
    table.compact()
    assert table.vacuum(0)
    assert sorted(table.arrow(["offset"])["offset"].to_pylist()) == list(range(2, 12))


def test_concurrent_writers_overwrite_no_commit(lake: Lake) -> None:
    """Each commit is a conditional write of one object."""
    table = lake.table(bronze.SPEC)
    table.append_arrow(rows(0, 1), {LOG: 1})

    def write(writer: int) -> int:
        done = 0
        for number in range(COMMITS):
            try:
                write_deltalake(table.address, rows(1 + writer * COMMITS + number, 1), mode="append")
                done += 1
            except CommitFailedError:  # after many attempts: reported, not lost
                pass
        return done

    with ThreadPoolExecutor(WRITERS) as pool:
        done = sum(pool.map(write, range(WRITERS)))
    assert done
    offsets = table.arrow(["offset"])["offset"].to_pylist()
    assert len(offsets) == len(set(offsets)) == 1 + done


def test_queries_and_checks(lake: Lake) -> None:
    lake.table(bronze.SPEC).append_arrow(rows(0, 5), {LOG: 5})
    lake.table(readings.SPEC).append_arrow(readings.SPEC.schema.empty_table(), {LOG: 5})
    with run_sql(
        lake, "SELECT count(*) AS n, max(offset) AS last, max(received) AS at_last FROM bronze_messages"
    ) as found:
        assert list(found.rows) == [{"n": 5, "last": 4, "at_last": NOON}]
    with run_sql(lake, "SELECT * FROM silver_readings") as found:
        assert list(found.rows) == []
    wrong = {one.table for one in run_checks(lake) if one.wrong}
    assert wrong == {"gold/traffic"}  # which was not computed
    lake.table(bronze.SPEC).remove(rows(0, 5).select(["broker", "offset"]), {"remove": 1})
    assert not [one for one in run_checks(lake) if one.wrong]
    system, path = file_system(f"{lake.address}/{STATE}")
    assert system.get_file_info(path).type == fs.FileType.File
    assert not [one for one in run_checks(lake) if one.wrong]
