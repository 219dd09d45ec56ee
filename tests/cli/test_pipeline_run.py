"""`godwit pipeline run` as a process of its own, with a JVM of its own, which is why there is one test of it only."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.cli.real import eventually, godwit, lines, needs_posix, running
from tests.spark.session import running_broker

from godwit.pipeline.errors import PipelineError

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
