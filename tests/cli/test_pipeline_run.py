"""`godwit pipeline run` as a process of its own, with a JVM of its own, which is why there is one test of it only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cli.real import eventually, godwit, lines, needs_posix, running
from tests.spark.session import running_broker

from godwit.cli import pipeline_run
from godwit.cli.pipeline_run import (
    SourceOptions,
    SparkOptions,
    default_archive,
    explained_errors,
    open_lake,
    parse_time,
    require_java,
)
from godwit.errors import GodwitError, UsageError
from godwit.pipeline import java
from godwit.pipeline.checks import CheckResult
from godwit.pipeline.errors import PipelineError

# -- pipeline run -----------------------------------------------------------------------------------------------------


START_S = 240.0
END_S = 15.0


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_token_without_encryption_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(options: dict[str, str]) -> list[object]:
        raise PipelineError("no archive answers")

    monkeypatch.setattr("godwit.pipeline.status.find_logs", nobody)
    ask = ("pipeline", "run", "--archive", "192.0.2.7:9", "--lake", str(tmp_path / "lake"))
    told = lines(godwit(*ask, GODWIT_ARCHIVE_TOKEN="secret").stderr)
    assert "the token for the archive at grpc://192.0.2.7:9 is sent without encryption" in told[0]
    assert sum("encryption" in line for line in told) == 1
    assert not any("encryption" in line for line in lines(godwit(*ask).stderr))


def test_the_console_warns_of_a_token_without_encryption_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        raise GodwitError("this is where it would begin to serve")

    monkeypatch.setattr("godwit.net.loop.run", end)
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(0o600)
    ask = ("console", "--lake", str(tmp_path / "lake"), "--archive")
    told = lines(godwit(*ask, "192.0.2.7:9", "--token-file", str(file)).stderr)
    assert "the token for the archive at grpc://192.0.2.7:9 is sent without encryption" in told[0]
    assert "begin to serve" in told[1]
    for archive in ("127.0.0.1:9", "grpc+tls://192.0.2.7:9"):
        assert "begin to serve" in lines(godwit(*ask, archive, "--token-file", str(file)).stderr)[0]
    assert "begin to serve" in lines(godwit(*ask, "192.0.2.7:9").stderr)[0]


@needs_posix
@pytest.mark.java
@pytest.mark.soak
def test_it_fills_the_lake_keeps_others_off_and_ends_at_once(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with running_broker(tmp_path / "data") as broker:
        archive = broker.archive.removeprefix("grpc://")
        arguments = ("--archive", archive, "--lake", str(lake))
        assert godwit("pub", "--broker", broker.address, "home/t", "21.5", "-q").returncode == 0
        with running("pipeline", "run", *arguments) as command:

            def rows() -> int:
                if not (lake / "bronze").exists():
                    return 0
                told = json.loads(godwit("pipeline", "status", *arguments, "--json").stdout)
                return int(told["tables"][0]["rows"])

            eventually(lambda: rows() == 1, START_S)
            holder = json.loads((lake / "_lock").read_bytes())
            assert holder["process"] == command.process.pid
            refused = godwit("pipeline", "run", "--once", *arguments)
            assert refused.returncode == 1
            assert f"process {command.process.pid} on" in lines(refused.stderr)[-1]
            began = time.monotonic()
            assert command.interrupt() == 130
            assert time.monotonic() - began < END_S
            assert not is_alive(holder["jvm"])
            assert command.err.rest() == [f"godwit: looking for the archive at {archive}"]
            assert "reading" in command.out.line()
    assert (lake / "_logs" / "spark.log").exists()


# -- pipeline spark ---------------------------------------------------------------------------------------------------


def test_an_archive_is_beside_its_broker() -> None:
    assert default_archive("localhost") == "localhost:50001"
    assert default_archive("10.0.0.1:6000") == "10.0.0.1:6001"
    assert default_archive("[::1]:6000") == "[::1]:6001"


def test_sources_as_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert SourceOptions([], "one:7", []).options() == {"archive": "one:8"}
    many = SourceOptions(["a:1", "b:2"], "one:7", ["home/#", "x"], Path("t"), Path("c"), fails_on_data_loss=False)
    assert many.options() == {
        "archive": "a:1,b:2",
        "topics": "home/#,x",
        "tokenFile": str(tmp_path / "t"),
        "certificateFile": str(tmp_path / "c"),
        "failOnDataLoss": "false",
    }


def test_settings_of_sparks_own() -> None:
    assert SparkOptions("local", ["spark.a=b=c"], False).settings() == {"spark.a": "b=c"}
    with pytest.raises(UsageError, match="write it as"):
        SparkOptions("local", ["a=b"], False).settings()


def test_java_is_found_or_installed_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    found: list[java.Java | None] = [java.Java(Path("/jre"), 17)]
    monkeypatch.setattr(java, "find_java", lambda environment: found[0])
    require_java(is_installed_unasked=False)
    assert os.environ["JAVA_HOME"] == "/jre"

    found[0] = None
    ran: list[list[str]] = []

    def install(command: list[str], **more: Any) -> None:
        ran.append(command)
        found[0] = java.Java(Path("/new"), 17)

    monkeypatch.setattr(java, "install_command", lambda user: ["apt-get", "install", "it"])
    monkeypatch.setattr(subprocess, "run", install)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(
        GodwitError, match=r"run pip install 'godwit-mq\[java\]' or apt-get install it, or set JAVA_HOME"
    ):
        require_java(is_installed_unasked=True)  # only root can
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with pytest.raises(GodwitError, match="Java 17 or newer"):
        require_java(is_installed_unasked=False)  # no terminal for the question
    assert ran == []
    require_java(is_installed_unasked=True)
    assert (ran, os.environ["JAVA_HOME"]) == ([["apt-get", "install", "it"]], "/new")


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_run, "PACKAGES", ("pyarrow", "no_such_package"))
    with pytest.raises(UsageError, match=r"needs no_such_package: run pip install 'godwit-mq\[spark\]'"):
        open_lake("lake", must_exist=False)


def test_errors_of_the_pipeline_and_sigterm() -> None:
    with pytest.raises(GodwitError, match="so it is"), explained_errors():
        raise PipelineError("so it is")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, explained_errors():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("name", ["a%20b", "a[1]", "a*", "a\\b", "a\nb"])
def test_paths_that_spark_or_delta_would_take_for_others(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="the path of a lake must not contain"):
        open_lake(str(tmp_path / name), must_exist=False)
    assert open_lake(str(tmp_path / "a lake #1"), must_exist=False).address == str(tmp_path / "a lake #1")


# -- pipeline repair --------------------------------------------------------------------------------------------------


def test_times() -> None:
    assert parse_time("--from", None) is None
    assert parse_time("--from", "2026-11-01") == datetime(2026, 11, 1, tzinfo=UTC)
    for text in ("17", "earliest", "noon"):
        with pytest.raises(UsageError, match="is not a time"):
            parse_time("--to", text)


def test_the_results_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    results = [
        CheckResult("gold/windows", "it counts at least one reading", 0),
        CheckResult("gold/traffic", "nothing", 0),
    ]

    @contextmanager
    def session(spark: Any, lake: Any, status: Any, *, purpose: str) -> Iterator[str]:
        asked.append(purpose)
        yield "session"

    def rebuild(*arguments: Any) -> dict[str, int]:
        asked.append(arguments[2:])
        return {"gold/windows": 1, "gold/traffic": 2000}

    monkeypatch.setattr(pipeline_run, "session", session)
    monkeypatch.setattr("godwit.pipeline.repair.rebuild", rebuild)
    monkeypatch.setattr("godwit.pipeline.repair.requeue", lambda spark, lake, rules: (3, 1200))
    monkeypatch.setattr("godwit.pipeline.repair.requeue_all", lambda spark, lake, rules: (1, 2))
    monkeypatch.setattr("godwit.pipeline.checks.run_checks", lambda lake, rules, is_complete: iter(results))
    told = godwit("pipeline", "check", "--lake", str(tmp_path))
    assert told.returncode == 0
    assert lines(told.stdout)[1].split("  ")[0] == "gold/windows"
    results[1] = CheckResult("gold/traffic", "nothing", 1200)
    told = godwit("pipeline", "check", "--lake", str(tmp_path), "--json")
    assert (told.returncode, json.loads(lines(told.stdout)[1])["wrong"]) == (1, 1200)
    assert "1 check of 2 failed: inspect the rows with godwit pipeline query" in lines(told.stderr)[0]
    told = godwit("pipeline", "rebuild", "--lake", str(tmp_path), "--to", "2026-11-01")
    assert lines(told.stdout) == ["gold/windows: 1 row", "gold/traffic: 2,000 rows"]
    told = godwit("pipeline", "requeue", "--lake", str(tmp_path))
    assert lines(told.stdout) == ["3 messages left quarantine, 1,200 remain"]
    told = godwit("pipeline", "requeue", "--lake", str(tmp_path), "--all")
    assert lines(told.stdout) == ["1 reading, 2 messages in quarantine"]
    assert asked == [
        "godwit pipeline rebuild",
        (None, datetime(2026, 11, 1, tzinfo=UTC)),
        "godwit pipeline requeue",
        "godwit pipeline requeue",
    ]
