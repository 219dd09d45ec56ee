"""`format("godwit")` in Spark Connect, where the server's Python has no godwit, and as a declarative pipeline."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark import cloudpickle
from tests.archive.client import ArchiveClient
from tests.archive.logs import listed
from tests.spark.archives import Served, served
from tests.system.spark_cluster import bare_environment
from tests.system.stage import ROOT

import godwit
import pyspark_godwit
from godwit.spark.reader import SCHEMA

OTHER_LOG = bytes(range(1, 17))
LONGEST_S = 1200.0

pytestmark = pytest.mark.java


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def topics(place: Served) -> Counter[str]:
    with ArchiveClient(place.address) as client:
        return Counter(row["topic"] for row in listed(*client.read()))


def test_the_package_is_found_by_its_name() -> None:
    """PySpark imports modules named pyspark_* in the driver's Python and pickles their DefaultSource."""
    importlib.reload(pyspark_godwit)  # as at the first import: other tests take back how classes are pickled
    assert pyspark_godwit.DefaultSource.name() == "godwit"
    pickled = cloudpickle.dumps(pyspark_godwit.DefaultSource)  # type: ignore[no-untyped-call]
    assert b"FlightClient" in pickled  # the code itself, not only names
    assert godwit.spark.register.__module__ == "godwit.spark"


def test_stream_batch_and_sink_in_a_connect_session(tmp_path: Path) -> None:
    with served(tmp_path / "in") as source, served(tmp_path / "out", log_id=OTHER_LOG) as target:
        source.add(60, "one")
        source.add(30, "two")
        program = [sys.executable, str(ROOT / "tests" / "spark" / "connect_program.py")]
        out = run(
            [*program, source.address, target.address, str(tmp_path)], tmp_path, bare_environment(tmp_path / "packages")
        )
        found = json.loads(out.splitlines()[-1])
        assert found["session"].startswith("pyspark.sql.connect")
        assert found["executors_have_godwit"] == [False]
        assert found["columns"] == SCHEMA.names
        assert found["batch"] == [["one", 60], ["two", 30]]
        commits = tmp_path / "checkpoint-1" / "commits"
        assert sorted(path.name for path in commits.glob("[0-9]*")) == ["0", "1", "2"]
        assert found["stream_offsets"] == list(range(90))
        assert "the option archive is missing" in found["error"]
        assert topics(target) == {"batch": 60, "stream/one": 60, "stream/two": 30}


@pytest.mark.soak
def test_the_declarative_pipeline_in_examples(tmp_path: Path) -> None:
    """Nothing registers the source here: PySpark finds it."""
    folder = tmp_path / "declarative"
    shutil.copytree(ROOT / "examples" / "declarative", folder)
    with served(tmp_path / "log") as place:
        spec = folder / "spark-pipeline.yml"
        text = spec.read_text(encoding="utf-8").replace("localhost:50001", place.address)
        spec.write_text(text.replace("/tmp/godwit-declarative", str(folder / "storage")), encoding="utf-8")
        command = [str(Path(sys.executable).with_name("spark-pipelines"))]
        command += ["--conf", "spark.sql.catalogImplementation=hive", "run"]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment = os.environ | python | {"SPARK_TESTING": "1"}  # then the server has a port of its own
        for rows, expected in ((["21.5", "warm"], (1, 1)), (["22", "23"], (3, 1))):
            place.add_payloads([row.encode() for row in rows], "home/temperature")
            run(command, folder, environment)
            counts = [
                ds.dataset([str(path) for path in (folder / "spark-warehouse" / table).glob("*.parquet")]).count_rows()
                for table in ("silver_readings", "silver_quarantine")
            ]
            assert tuple(counts) == expected
