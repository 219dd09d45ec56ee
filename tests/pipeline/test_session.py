"""How a session is set up, and what is said where it does not start. tests/cli/test_pipeline_run.py starts one."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark import java_gateway
from pyspark.errors import PySparkRuntimeError

from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.session import log_path, spark_session


def test_logs_are_in_the_lake_or_beside() -> None:
    assert log_path(Lake("/data/lake")) == Path("/data/lake/_logs/spark.log")
    assert log_path(Lake("s3://bucket/lake")).is_absolute()


def test_settings_and_what_is_said_when_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def launch(conf: Any, popen_kwargs: dict[str, Any]) -> None:
        asked.append(dict(conf.getAll()))
        logging.getLogger("py4j").error("a complaint")
        raise PySparkRuntimeError("\n[JAVA_GATEWAY_EXITED] Java gateway process exited\nmore")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    log = tmp_path / "_logs" / "spark.log"
    told = r"did not start with --master spark://x:1: \[JAVA_GATEWAY_EXITED\] Java gateway process exited; what it said"
    with pytest.raises(PipelineError, match=told), spark_session("spark://x:1", log, {"spark.driver.memory": "9g"}):
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


def test_what_java_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(conf: Any, popen_kwargs: dict[str, Any]) -> None:
        popen_kwargs["stdout"].write(b'WARNING\nException in thread "main" SparkException: no cluster.\n\tat x\n')
        popen_kwargs["stdout"].flush()
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    with (
        pytest.raises(PipelineError, match="--master yarn: SparkException: no cluster; what it said"),
        spark_session("yarn", tmp_path / "spark.log"),
    ):
        raise AssertionError("it did not start")
