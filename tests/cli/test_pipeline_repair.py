"""`godwit pipeline check`, `rebuild` and `requeue` from the command line; what they do is tested in tests/pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cli.real import godwit, lines

from godwit.cli import pipeline_repair
from godwit.cli.pipeline_repair import time_of
from godwit.errors import UsageError
from godwit.pipeline.checks import CheckResult


def test_times() -> None:
    assert time_of("--from", None) is None
    assert time_of("--from", "2026-11-01") == datetime(2026, 11, 1, tzinfo=UTC)
    for text in ("17", "earliest", "noon"):
        with pytest.raises(UsageError, match="is no time"):
            time_of("--to", text)


def test_what_was_done_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(pipeline_repair, "session", session)
    monkeypatch.setattr("godwit.pipeline.repair.rebuild", rebuild)
    monkeypatch.setattr("godwit.pipeline.repair.requeue", lambda spark, lake: (3, 1200))
    monkeypatch.setattr("godwit.pipeline.checks.run_checks", lambda spark, lake: iter(results))
    told = godwit("pipeline", "check", "--lake", str(tmp_path))
    assert told.returncode == 0
    assert lines(told.stdout)[1].split("  ")[0] == "gold/windows"
    results[1] = CheckResult("gold/traffic", "nothing", 1200)
    told = godwit("pipeline", "check", "--lake", str(tmp_path), "--json")
    assert (told.returncode, json.loads(lines(told.stdout)[1])["wrong"]) == (1, 1200)
    assert "1 check of 2 failed: look at the rows with godwit pipeline query" in lines(told.stderr)[0]
    told = godwit("pipeline", "rebuild", "--lake", str(tmp_path), "--to", "2026-11-01")
    assert lines(told.stdout) == ["gold/windows: 1 row", "gold/traffic: 2,000 rows"]
    told = godwit("pipeline", "requeue", "--lake", str(tmp_path))
    assert lines(told.stdout) == ["3 messages left quarantine, 1,200 stay"]
    assert asked == [
        "godwit pipeline check",
        "godwit pipeline check",
        "godwit pipeline rebuild",
        (None, datetime(2026, 11, 1, tzinfo=UTC)),
        "godwit pipeline requeue",
    ]
