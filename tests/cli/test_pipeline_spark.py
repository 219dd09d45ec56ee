"""What the commands of the pipeline share: addresses, settings, Java, packages."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from godwit.cli import pipeline_spark
from godwit.cli.pipeline_spark import Sources, Spark, archive_beside, explained, open_lake, require_java
from godwit.errors import GodwitError, UsageError
from godwit.pipeline import java
from godwit.pipeline.errors import PipelineError


def test_an_archive_is_beside_its_broker() -> None:
    assert archive_beside("localhost") == "localhost:50001"
    assert archive_beside("10.0.0.1:6000") == "10.0.0.1:6001"
    assert archive_beside("[::1]:6000") == "[::1]:6001"


def test_sources_as_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Sources([], "one:7", []).options() == {"archive": "one:8"}
    many = Sources(["a:1", "b:2"], "one:7", ["home/#", "x"], Path("t"), Path("c"), fails_on_data_loss=False)
    assert many.options() == {
        "archive": "a:1,b:2",
        "topics": "home/#,x",
        "tokenFile": str(tmp_path / "t"),
        "certificateFile": str(tmp_path / "c"),
        "failOnDataLoss": "false",
    }


def test_settings_of_sparks_own() -> None:
    assert Spark("local", ["spark.a=b=c"], False).settings() == {"spark.a": "b=c"}
    with pytest.raises(UsageError, match="write it as"):
        Spark("local", ["a=b"], False).settings()


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
    with pytest.raises(GodwitError, match="run: apt-get install it, or set JAVA_HOME"):
        require_java(is_installed_unasked=True)  # only root can
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with pytest.raises(GodwitError, match="Java 17 or newer"):
        require_java(is_installed_unasked=False)  # nobody is there to be asked
    assert ran == []
    require_java(is_installed_unasked=True)
    assert (ran, os.environ["JAVA_HOME"]) == ([["apt-get", "install", "it"]], "/new")


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_spark, "PACKAGES", ("pyarrow", "no_such_package"))
    with pytest.raises(UsageError, match=r"needs no_such_package: run pip install 'godwit\[spark\]'"):
        open_lake("lake", must_exist=False)


def test_errors_of_the_pipeline_and_sigterm() -> None:
    with pytest.raises(GodwitError, match="so it is"), explained():
        raise PipelineError("so it is")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, explained():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("name", ["a%20b", "a[1]", "a*", "a\\b", "a\nb"])
def test_paths_that_spark_or_delta_would_take_for_others(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="the path of a lake cannot have"):
        open_lake(str(tmp_path / name), must_exist=False)
    assert open_lake(str(tmp_path / "a lake #1"), must_exist=False).address == str(tmp_path / "a lake #1")
