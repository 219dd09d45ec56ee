"""The lake's lock: both halves, and what a refused one is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from godwit.pipeline.lake import Lake
from godwit.pipeline.lock import LakeLock, in_use_text, lock_path
from godwit.pipeline.problems import PipelineError

HOLD_AS_JAVA = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_only_one_has_the_lake(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    told = rf"process {os.getpid()} on .*godwit pipeline run, since .*stop it"
    with LakeLock(lake, "godwit pipeline run"), pytest.raises(PipelineError, match=told):
        LakeLock(lake, "another").__enter__()
    with LakeLock(lake, "another"):
        assert json.loads(lock_path(lake).read_bytes())["purpose"] == "another"


def test_the_java_process_of_a_killed_run_keeps_it(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with LakeLock(lake, "godwit pipeline run"):
        pass
    path = lock_path(lake)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"process": gone.pid, "jvm": 77}))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_AS_JAVA, f"{path}.java"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as java:
        assert java.stdout is not None
        assert java.stdin is not None
        java.stdout.readline()
        with pytest.raises(PipelineError, match="its Java process 77 is not yet"):
            LakeLock(lake, "next").__enter__()
        java.stdin.close()
        java.wait()
    with LakeLock(lake, "next"):
        pass


def test_the_jvm_takes_its_half(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(str(tmp_path))
    with LakeLock(lake, "first") as lock:
        lock.share(spark)
        assert json.loads(lock_path(lake).read_bytes())["jvm"] > 0
    # As after kill -9 of the driver: its flock is gone, and the JVM still has the other half.
    with pytest.raises(PipelineError, match="has the lake"):
        LakeLock(lake, "second").__enter__()
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.System.getProperties().remove("godwit.lake.lock").release()
    with LakeLock(lake, "second"):
        pass


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="cannot write to the lake"):
        LakeLock(Lake(str(tmp_path / "file" / "lake")), "run").__enter__()


def test_an_object_store_is_locked_on_this_machine() -> None:
    one, other = lock_path(Lake("s3://bucket/one")), lock_path(Lake("s3://bucket/other"))
    assert one.is_absolute()
    assert one != other
    assert "let it end" in in_use_text("s3://bucket/one", {}, is_alive=True)
