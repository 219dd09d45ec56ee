"""The last part of the demo: the commands that it runs, how they end, and what is said where they cannot run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from godwit.cli import demo_pipeline
from godwit.cli.demo_pipeline import PipelineReport, missing, run_pipeline
from godwit.pipeline import java


def program(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """In the place of godwit."""
    monkeypatch.setattr(demo_pipeline, "_PROGRAM", (sys.executable, "-c", text))


def run(tmp_path: Path) -> PipelineReport:
    return asyncio.run(run_pipeline("grpc://127.0.0.1:1", tmp_path / "lake", tmp_path / "page.html"))


def test_first_the_tables_then_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "told"
    program(monkeypatch, f"import sys; open({str(told)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')")
    found = run(tmp_path)
    assert found.is_good
    assert found.sentence.startswith(f"The report is {tmp_path / 'page.html'}: open it in a browser.")
    lake = tmp_path / "lake"
    assert told.read_text().splitlines() == [
        f"pipeline run --once --archive grpc://127.0.0.1:1 --lake {lake}",
        f"pipeline report --lake {lake} --output {tmp_path / 'page.html'} --force",
    ]


def test_a_failure_is_told_by_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is printed comes when the program ends
    program(monkeypatch, "import sys; print('working'); sys.exit('error: there is no lake')")
    assert run(tmp_path) == PipelineReport(False, "the pipeline failed: error: there is no lake")
    program(monkeypatch, "import sys; sys.exit(3)")
    assert run(tmp_path) == PipelineReport(False, "the pipeline failed: exit code 3")


def test_it_does_not_take_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_pipeline, "PATIENCE_S", 0.5)
    program(monkeypatch, "import time; time.sleep(60)")
    found = run(tmp_path)
    assert not found.is_good
    assert "was not done after 0.5 s" in found.sentence


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_java", lambda environment: None)
    assert "Spark needs Java 17 or newer and none was found" in (missing() or "")
    monkeypatch.setattr(java, "find_java", lambda environment: java.Java(Path("/java"), 17))
    assert missing() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert (missing() or "").endswith("run pip install 'godwit[spark]'")
