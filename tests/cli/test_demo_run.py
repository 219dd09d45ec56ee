"""The demo's run: what becomes of it when a part of it breaks."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import msgspec
import pytest

from godwit.cli import demo_run
from godwit.cli.demo_check import WatchReport
from godwit.cli.demo_pipeline import PipelineReport
from godwit.cli.demo_processes import Child
from godwit.cli.demo_run import Demo, Picture, Settings
from godwit.errors import GodwitError
from godwit.net import loop


def settings(seconds: float | None = 1.5, loss: float = 0.02) -> Settings:
    return Settings(seconds, loss, 200.0, 7)


def test_a_short_run() -> None:
    pictures: list[Picture] = []
    last = loop.run(Demo(settings(), pictures.append).run())
    assert last.problems() == []
    assert last.phase == "done"
    assert last.rooms.sent == last.seen.received > 500
    assert len(last.seen.retained) == len(last.rooms.rooms) == 5
    assert len(last.moved_at_s) == 1
    assert last.work.is_complete
    assert last.work.done == last.work.submitted > 5
    assert (last.killed, last.pipeline) == ("anna", None)
    assert last.network["to_target"]["lost"] + last.network["to_client"]["lost"] > 0
    assert any(picture.phase == "sending" and picture.recent_per_s > 0 for picture in pictures)
    assert multiprocessing.active_children() == []


def test_the_end_goes_through_the_pipeline_if_there_can_be_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, Path]] = []

    async def pipeline(archive: str, lake: Path, report: Path) -> PipelineReport:
        asked.append((archive, report))
        return PipelineReport(True, "made")

    monkeypatch.setattr(demo_run, "run_pipeline", pipeline)
    monkeypatch.setattr(demo_run, "missing", lambda: None)
    wanted = msgspec.structs.replace(settings(1.0), report=tmp_path / "page.html")
    last = loop.run(Demo(wanted, lambda picture: None).run())
    assert last.pipeline == PipelineReport(True, "made")
    assert asked[0][0].startswith("grpc://127.0.0.1:")
    assert asked[0][1] == tmp_path / "page.html"
    monkeypatch.setattr(demo_run, "missing", lambda: "there is no Java")
    last = loop.run(Demo(wanted, lambda picture: None).run())
    assert last.pipeline == PipelineReport(True, "No report: there is no Java.")
    assert len(asked) == 1


def test_a_process_that_dies_is_an_error() -> None:
    def kill_it(picture: Picture) -> None:
        if picture.seen.received:
            next(child for child in multiprocessing.active_children() if child.name == "godwit-rooms").kill()

    with pytest.raises(GodwitError, match="the process of the rooms ended by itself"):
        loop.run(Demo(settings(60.0), kill_it).run())
    assert multiprocessing.active_children() == []


def test_what_does_not_come_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "END_PATIENCE_S", 0.0)
    last = loop.run(Demo(settings(1.0), lambda picture: None).run())
    assert last.problems()
    assert multiprocessing.active_children() == []


def test_a_problem_of_the_subscriber_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    hear = Child.hear
    monkeypatch.setattr(Child, "hear", lambda child: _spoiled(hear(child)))
    demo = Demo(settings(60.0), lambda picture: None)
    with pytest.raises(GodwitError, match="a message cannot be read"):
        loop.run(demo.run())


def _spoiled(heard: list[object]) -> list[object]:
    return [
        WatchReport(problem="a message cannot be read") if isinstance(word, WatchReport) and word.received else word
        for word in heard
    ]
