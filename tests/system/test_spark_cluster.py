"""Source, sink and pipeline on a real cluster whose executors have no godwit: the same as on this machine alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.archive import logs
from tests.archive.client import ArchiveClient
from tests.spark.session import running_broker
from tests.system import thermometers
from tests.system.spark_cluster import HOSTS, Cluster, cluster
from tests.system.spark_driver import ANSWER
from tests.system.stage import ROOT, needs_linux

from godwit.pipeline.datasets.catalog import ALL
from godwit.pipeline.gold_table import GoldColumn
from godwit.pipeline.lake import Lake, TableColumn
from godwit.store.sqlite import SqliteStore

LOCAL = "local[*,4]"
LONGEST_S = 900.0
SENSORS = 10
READINGS = 600
POISON = [b"\xff\xfe", b'{"temperature": "NaN"}', b"1e400", b'{"temperature": {}}']


def is_estimate(column: TableColumn) -> bool:
    """Whether its values come from a sketch, which Spark makes with random numbers."""
    return isinstance(column, GoldColumn) and "sketch" in f"{column.name} {column.derived}"


pytestmark = [needs_linux, pytest.mark.java, pytest.mark.soak]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def test_batch_and_stream_give_the_same_as_here(standalone: Cluster, tmp_path: Path) -> None:
    write_log(tmp_path / "data")
    with running_broker(tmp_path / "data") as broker:
        here = drive("digest", LOCAL, tmp_path / "here", archive=broker.archive)
        there = drive("digest", standalone.master, tmp_path / "there", standalone.environment, archive=broker.archive)
    assert here["executors"] == [["", True]]
    assert there["executors"] == [[host, False] for host in HOSTS]
    assert there["batch"] == here["batch"]
    assert sum(row[1] for row in there["batch"]) == SENSORS * READINGS + len(POISON)
    assert there["stream"] == here["stream"]
    assert len(here["stream"]) == 1 + (SENSORS * READINGS) // 7_000


def test_the_pipeline_gives_the_same_tables_as_here(standalone: Cluster, tmp_path: Path) -> None:
    write_log(tmp_path / "data")
    lakes = {}
    for name, master, environment in (
        ("here", LOCAL, dict(os.environ)),
        ("there", standalone.master, standalone.environment),
    ):
        shutil.copytree(tmp_path / "data", tmp_path / name)  # alerts are added to each
        with running_broker(tmp_path / name) as broker:
            lake = str(tmp_path / f"lake-{name}")
            options = ["--lake", lake, "--master", master, "--conf", "spark.executor.memory=512m"]
            options += ["--conf", "spark.driver.host=127.0.0.1"]
            said = godwit(environment, "pipeline", "run", "--once", "--archive", broker.archive, *options)
            lakes[name] = tables(Lake(lake))
            print(name, said, {table: len(rows) for table, rows in lakes[name].items()})
    for table, rows in lakes["here"].items():
        assert lakes["there"][table] == rows, table
    assert len(lakes["here"]["bronze/messages"]) == SENSORS * READINGS + len(POISON)
    assert len(lakes["here"]["silver/readings"]) == SENSORS * READINGS
    assert len(lakes["here"]["silver/quarantine"]) == len(POISON)
    assert all(lakes["here"][table] for table in ("gold/windows", "gold/devices", "gold/traffic"))


def test_the_sink_writes_once_whatever_its_tasks_do(standalone: Cluster, tmp_path: Path) -> None:
    write_log(tmp_path / "data", topic="in/{}")
    with running_broker(tmp_path / "data") as broker:
        archive = broker.archive
        told = drive("sink", standalone.master, tmp_path, standalone.environment, archive=archive)
        with ArchiveClient(archive) as client:
            found: dict[str, list[bytes]] = {"in": []}
            for row in logs.listed(*client.read()):
                kind = row["topic"] if row["topic"].startswith("out/") else "in"
                found.setdefault(kind, []).append(row["payload"])
    numbers = [b"%d" % number for number in range(told["rows"])]
    for topic in ("out/slow", "out/failing"):
        assert found[topic] == numbers
    assert "on purpose" in told["failed"]
    assert found["out/stream"] == found["in"]
    slow = sorted(path.name for path in (tmp_path / "slow").glob("0-*"))
    assert {name.rpartition("-")[2] for name in slow} == set(HOSTS), slow
    failing = [path.name for path in (tmp_path / "failing").glob("1-1-*")]
    assert failing, "the task that failed was not tried again"


# -- small parts ------------------------------------------------------------------------------------------------------


def write_log(data: Path, topic: str = "halls/{}/temperature") -> None:
    """Write a log with readings of all sensors in turns, and some unreadable ones."""
    data.mkdir()
    store = SqliteStore.open(data / "log.sqlite", new_log_id=logs.LOG_ID, now_us=logs.NOW_US)
    try:
        for begin in range(0, READINGS, 50):
            for sensor in range(SENSORS):
                payloads = [thermometers.body(sensor, number) for number in range(begin, begin + 50)]
                store.append([logs.make_entry(topic.format(sensor), payloads)])
        store.append([logs.make_entry(topic.format("poison"), POISON)])
    finally:
        store.close()


def drive(
    role: str, master: str, folder: Path, environment: dict[str, str] | None = None, **arguments: Any
) -> dict[str, Any]:
    """Plays a role of tests.system.spark_driver; gives its answer."""
    folder.mkdir(exist_ok=True)
    place = {"digest": "checkpoint", "sink": "folder"}[role]
    given = json.dumps({place: str(folder / place) if role == "digest" else str(folder), **arguments})
    code = "from tests.system.spark_driver import main; main()"
    said = python(environment or dict(os.environ), code, role, master, str(folder / "spark.log"), given)
    found: dict[str, Any] = json.loads(said.partition(ANSWER)[2])
    return found


def godwit(environment: dict[str, str], *arguments: str) -> str:
    return python(environment, "from godwit.cli import main; main()", *arguments)


def python(environment: dict[str, str], code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout


def tables(lake: Lake) -> dict[str, list[str]]:
    """The rows of all tables, as text and in order."""
    found = {}
    for spec in ALL:
        columns = [column.name for column in spec.columns if not is_estimate(column)]
        rows = lake.table(spec).arrow(columns).to_pylist()
        found[spec.name] = sorted(repr({name: rounded(value) for name, value in row.items()}) for row in rows)
    return found


def rounded(value: Any) -> Any:
    """Sums of floating numbers depend on the order of the rows, in their last digits."""
    return float(f"{value:.9g}") if isinstance(value, float) else value
