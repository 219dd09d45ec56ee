"""A lake on S3, with moto's server: tables, concurrent commits, queries, checks, errors, and a run that is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
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
from tests.cli.real import GODWIT, environment, error_of, eventually, godwit, lines, needs_posix, running
from tests.pipeline.lakes import LOG, NOON
from tests.ports import free_port
from tests.spark.session import running_broker

from godwit.pipeline.checks import STATE, run_checks
from godwit.pipeline.datasets import anomalies, bronze, readings
from godwit.pipeline.files import file_system, read_rows
from godwit.pipeline.lake import Lake
from godwit.pipeline.sql import run_sql

START_S = 120.0
RUN_S = 300.0
"""For a run of Spark on a busy machine."""
WRITERS = 4
COMMITS = 5
READINGS = 400


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


def test_a_second_run_cannot_move_a_watermark_that_the_first_has_moved(lake: Lake) -> None:
    first, second = lake.table(bronze.SPEC), lake.table(bronze.SPEC)
    first.append_arrow(rows(0, 5), {LOG: 5})
    delta = second._open_for_writing()  # as a run on another machine that is about to commit
    assert first.append_arrow(rows(5, 5), {LOG: 10})
    with pytest.raises(CommitFailedError):
        second._commit(delta, [], {LOG: 10})
    assert not second.append_arrow(rows(5, 5), {LOG: 10})  # as after its restart
    assert (second.rows, second.watermark(LOG)) == (10, 10)


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


def test_executors_read_files_without_spark(lake: Lake) -> None:
    table = lake.table(bronze.SPEC)
    table.append_arrow(rows(0, 3), {LOG: 3})
    wider = pa.schema([*bronze.SPEC.schema, ("new", pa.float64())])
    addresses = pa.record_batch({"address": table.file_addresses()})
    (found,) = read_rows(wider, iter([addresses]))
    assert found.schema == wider
    assert sorted(found["offset"].to_pylist()) == [0, 1, 2]
    assert found["new"].null_count == 3


# -- errors -----------------------------------------------------------------------------------------------------------


def query_error(address: str) -> str:
    text = error_of("pipeline", "query", "--lake", address, "SELECT 1")
    assert "\x1b" not in text
    assert "[31m" not in text
    return text


def test_a_lake_that_is_not_there(lake: Lake) -> None:
    assert f"the lake {lake.address} does not exist: create it with" in query_error(lake.address)


def test_a_bucket_that_is_not_there(lake: Lake) -> None:
    text = query_error("s3://nowhere/lake")
    assert "NoSuchBucket) does not have the bucket: create it" in text


def test_an_address_without_encryption(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert "set AWS_ALLOW_HTTP=true if the network is trusted" in query_error(lake.address)


def test_a_store_that_is_not_there(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    assert f"the object store ({address}) does not answer: check the network" in query_error(lake.address)


def test_a_key_that_the_store_does_not_know(lake: Lake, endpoint: str) -> None:
    accept_only_known_keys(endpoint, True)
    try:
        text = query_error(lake.address)
    finally:
        accept_only_known_keys(endpoint, False)
    assert "InvalidAccessKeyId) refuses the credentials: check the key and its rights" in text


def accept_only_known_keys(endpoint: str, does: bool) -> None:
    """Tell moto how many requests it accepts with any key."""
    data, head = b"0" if does else b"inf", {"Content-Type": "text/plain"}
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset-auth", data, head)) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("address", ["s3a://bucket/lake", "http://bucket/lake", "s3://", "s3:///", "file:///lake"])
def test_addresses_that_are_not_of_a_store(address: str) -> None:
    assert "is not an address of an object store; write it as s3://bucket/path" in query_error(address)


@pytest.mark.parametrize("address", ["s3://bucket/a b", "s3://bucket/a?b=c", "s3://bucket/a#b", "s3://bucket/a%20b"])
def test_characters_that_libraries_escape_in_different_ways(address: str) -> None:
    assert "the path of a lake must not contain" in query_error(address)


def test_a_configuration_in_the_store_is_not_ignored(lake: Lake) -> None:
    system, path = file_system(f"{lake.address}/pipeline.toml")
    with system.open_output_stream(path) as file:
        file.write(b"")
    text = error_of("pipeline", "check", "--lake", lake.address)
    assert text.endswith(
        f"{lake.address}/pipeline.toml is in an object store: copy it to this machine, and name the copy with --config"
    )


@needs_posix
def test_ctrl_c_while_the_store_does_not_answer(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with running("pipeline", "query", "--lake", lake.address, "SELECT 1") as command:
            silent.settimeout(START_S)
            connection, _ = silent.accept()  # the command waits for an answer in a library
            with connection:
                assert command.interrupt() == 130
            assert command.err.rest() == []


# -- a run ------------------------------------------------------------------------------------------------------------


@needs_posix
@pytest.mark.java
@pytest.mark.soak
def test_a_killed_run_loses_and_doubles_nothing(lake: Lake, tmp_path: Path) -> None:
    """With a real broker and Spark: kill -9 when bronze has its first rows, then all other commands."""
    messages = lake.table(bronze.SPEC)
    config = tmp_path / "pipeline.toml"
    config.write_text('[[pipeline.decoder]]\nfilter = "words/#"\ndecoder = "sentence"\n')
    with running_broker(tmp_path / "data") as broker:
        arguments = ("--archive", broker.archive.removeprefix("grpc://"), "--lake", lake.address)

        def publish(topic: str, payloads: list[str]) -> None:
            text = "".join(f"{one}\n" for one in payloads).encode()
            assert godwit("pub", "--broker", broker.address, "--lines", topic, "-q", input=text).returncode == 0

        publish("home/temperature", [f"{20 + number / 1000:.3f}" for number in range(READINGS // 2)])
        publish("words/one", ["The Temp is 54 degree", "The Temp is 55 degree"])
        with running("pipeline", "run", *arguments) as command:
            eventually(lambda: messages.rows > 0, RUN_S)
            os.kill(command.process.pid, signal.SIGKILL)
            assert command.process.wait() == -signal.SIGKILL
        publish("home/temperature", [f"{20 + number / 1000:.3f}" for number in range(READINGS // 2, READINGS)])
        run_again(*arguments)
        status = json.loads(godwit("pipeline", "status", *arguments, "--json").stdout)
        lags = {one["query"]: one["lag"] for one in status["logs"]}  # the broker's own messages continue
        assert lags.keys() == {"tables", "anomalies", "gold"}
        assert None not in lags.values()
    assert payloads_of(lake) == sorted(f"{20 + number / 1000:.3f}" for number in range(READINGS))
    assert lake.table(anomalies.SPEC).version is not None
    everything_is_right(lake, "--all")
    expected = {"n": READINGS, "least": 20.0, "most": 20 + (READINGS - 1) / 1000, "windows": READINGS}
    sql = (
        "SELECT count(*) AS n, min(value) AS least, max(value) AS most, (SELECT sum(count) FROM gold_windows "
        "WHERE window_s = 3600 AND topic = 'home/temperature') AS windows FROM silver_readings "
        "WHERE topic = 'home/temperature'"
    )
    found = godwit("pipeline", "query", "--lake", lake.address, "--json", sql)
    assert json.loads(found.stdout) == expected, found.stderr
    listed = lines(godwit("pipeline", "quarantine", "--lake", lake.address, "--json").stdout)
    assert [one["topics"] for one in map(json.loads, listed) if "words/one" in one["topics"]] == [{"words/one": 2}]
    requeued = as_process("pipeline", "requeue", "--lake", lake.address, "--config", str(config))
    assert lines(requeued.stdout)[0].startswith("2 messages left quarantine"), requeued.stderr
    everything_is_right(lake, "--config", str(config))
    page = tmp_path / "report.html"
    assert godwit("pipeline", "report", "--lake", lake.address, "--output", str(page)).returncode == 0
    assert "home/temperature" in page.read_text()
    system, path = file_system(lake.address)
    stored = {one.base_name for one in system.get_file_info(fs.FileSelector(path))}
    assert {"bronze", "silver", "gold", "_checkpoints", "_checks"} <= stored


def run_again(*arguments: str) -> None:
    """Run to the end of the log, as soon as the Java process of the killed run has exited."""
    ended: list[subprocess.CompletedProcess[bytes]] = []

    def is_done() -> bool:
        ended.append(as_process("pipeline", "run", "--once", *arguments))
        return b"has the lake" not in ended[-1].stderr and b"was in use by" not in ended[-1].stderr

    eventually(is_done, RUN_S)
    assert ended[-1].returncode == 0, ended[-1].stderr


def as_process(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with a JVM of its own, which gets the credentials from the environment."""
    command = [*GODWIT, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, timeout=RUN_S, check=False)


def payloads_of(lake: Lake) -> list[str]:
    table = lake.table(bronze.SPEC).arrow(["offset", "topic", "payload"])
    assert len(set(table["offset"].to_pylist())) == table.num_rows
    return sorted(row["payload"].decode() for row in table.to_pylist() if row["topic"] == "home/temperature")


def everything_is_right(lake: Lake, *options: str) -> None:
    result = godwit("pipeline", "check", "--lake", lake.address, *options)
    assert result.returncode == 0, result.stdout + result.stderr
