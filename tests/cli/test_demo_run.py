"""The demo's run, its child processes and its pipeline, also when a part of it fails."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from godwit.cli import demo_run
from godwit.cli.demo_processes import ParentPipe, SubscriberReport, run_child
from godwit.cli.demo_run import (
    Child,
    Demo,
    DemoSettings,
    DemoSnapshot,
    PipelineReport,
    missing_requirement,
    run_pipeline,
    stop_children,
)
from godwit.errors import GodwitError
from godwit.net import loop
from godwit.pipeline import java

# -- demo run ---------------------------------------------------------------------------------------------------------


def settings(seconds: float | None = 1.5, loss: float = 0.02) -> DemoSettings:
    return DemoSettings(seconds, loss, 200.0, 7)


def test_a_short_run() -> None:
    pictures: list[DemoSnapshot] = []
    last = loop.run(Demo(settings(), pictures.append).run())
    assert last.problems() == []
    assert last.phase == "done"
    assert last.rooms.sent == last.seen.received > 0
    assert len(last.seen.retained) == len(last.rooms.rooms) == 5
    assert last.rooms.mqtt_rooms == 1
    assert len(last.moved_at_s) == 1
    assert last.work.is_complete
    assert last.work.done == last.work.submitted > 0
    assert (last.killed, last.pipeline) == ("anna", None)
    assert last.network["to_target"]["lost"] + last.network["to_client"]["lost"] > 0
    assert any(picture.phase == "sending" and picture.recent_per_s > 0 for picture in pictures)
    assert multiprocessing.active_children() == []


def test_the_end_goes_through_the_pipeline_if_there_can_be_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, Path]] = []
    answers = iter([None, "it failed"])
    written: list[tuple[DemoSnapshot, Path, Path | None]] = []

    async def pipeline(archive: str, lake: Path) -> str | None:
        asked.append((archive, lake))
        return next(answers)

    def demo() -> DemoSnapshot:
        return loop.run(Demo(wanted, lambda picture: None, lambda *all: written.append(all)).run())

    monkeypatch.setattr(demo_run, "run_pipeline", pipeline)
    monkeypatch.setattr(demo_run, "missing_requirement", lambda: None)
    page = tmp_path / "page.html"
    wanted = msgspec.structs.replace(settings(1.5), report=page)
    sentence = f"The report is {page}: open it in a browser."
    assert demo().pipeline == PipelineReport(True, sentence)
    snapshot, path, lake = written[0]
    assert asked[0][0].startswith("grpc://127.0.0.1:")
    assert (path, lake) == (page, asked[0][1])
    assert snapshot.killed_at_s is not None
    assert snapshot.killed_at_s >= snapshot.moved_at_s[0] >= 0.75
    assert snapshot.sent_at_s is not None
    assert snapshot.arrived_at_s is not None
    assert snapshot.arrived_at_s >= snapshot.sent_at_s >= 1.5
    received = [sample.received for sample in snapshot.samples]
    assert received == sorted(received)
    assert 0 < received[-1] <= snapshot.seen.received
    assert demo().pipeline == PipelineReport(False, f"{sentence} It has no tables: it failed.")
    monkeypatch.setattr(demo_run, "missing_requirement", lambda: "there is no Java")
    assert demo().pipeline == PipelineReport(True, f"{sentence} It has no tables: there is no Java.")
    assert [lake for _, _, lake in written[1:]] == [None, None]
    assert len(asked) == 2


def test_a_process_that_dies_is_an_error() -> None:
    def kill_it(picture: DemoSnapshot) -> None:
        if picture.seen.received:
            for child in multiprocessing.active_children():  # it may have ended since the last picture
                if child.name == "godwit-rooms":
                    child.kill()

    with pytest.raises(GodwitError, match="the process of the rooms ended unexpectedly"):
        loop.run(Demo(settings(60.0), kill_it).run())
    assert multiprocessing.active_children() == []


def test_missing_messages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "END_TIMEOUT_S", 0.0)
    last = loop.run(Demo(settings(1.0), lambda picture: None).run())
    assert last.problems()
    assert multiprocessing.active_children() == []


def test_a_problem_of_the_subscriber_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Child.receive
    monkeypatch.setattr(Child, "receive", lambda child: _spoiled(receive(child)))
    demo = Demo(settings(60.0), lambda picture: None)
    with pytest.raises(GodwitError, match="a message cannot be read"):
        loop.run(demo.run())


def _spoiled(heard: list[object]) -> list[object]:
    return [
        SubscriberReport(problem="a message cannot be read")
        if isinstance(word, SubscriberReport) and word.received
        else word
        for word in heard
    ]


# -- demo processes ---------------------------------------------------------------------------------------------------


class PipeClosedError(BaseException):
    """What a thread of the tests does where a process would end."""


def close_pipe() -> NoReturn:
    raise PipeClosedError


async def _echo(line: ParentPipe) -> None:
    line.send("ready")
    while not line.has_received("hello"):
        if line.has_received("fail"):
            raise GodwitError("it cannot be done")
        if line.has_received("die"):
            os._exit(7)
        await asyncio.sleep(0.01)
    line.send("hello")
    await line.wait_closed()


def echo(pipe: Pipe) -> None:
    run_child(pipe, _echo)


async def _nothing(line: ParentPipe) -> None:
    await asyncio.sleep(60)


def nothing(pipe: Pipe) -> None:
    run_child(pipe, _nothing)


def send_often(child: Child) -> None:
    for _ in range(100):
        child.send("hello")


def heard(child: Child) -> list[object]:
    ends = time.monotonic() + 120
    while not (found := child.receive()):
        assert time.monotonic() < ends
        time.sleep(0.01)
    return found


def test_words_go_both_ways_and_it_ends_with_the_pipe() -> None:
    child = Child("echo", echo)
    try:
        assert asyncio.run(child.wait_ready()) == "ready"
        child.send("hello")
        assert heard(child) == ["hello"]
        child.release()
        child.process.join(120)  # after STOP_TIMEOUT_S it would be killed
    finally:
        stop_children([child])
        stop_children([child])
    assert child.process.exitcode == 0


async def _never(line: ParentPipe) -> None:
    line.send("ready")
    await asyncio.Event().wait()


def never(pipe: Pipe) -> None:
    run_child(pipe, _never)


def test_work_that_waits_for_ever_ends_with_the_pipe() -> None:
    """As that of a room whose broker was killed together with the demo."""
    child = Child("never", never)
    try:
        assert asyncio.run(child.wait_ready()) == "ready"
        child.release()
        child.process.join(120)
        assert child.process.exitcode == 0
    finally:
        stop_children([child])


@pytest.mark.parametrize(
    ("order", "error"),
    [("fail", "echo: it cannot be done"), ("die", r"the process of the echo ended unexpectedly \(exit code 7\)")],
)
def test_a_process_that_cannot_go_on(order: str, error: str) -> None:
    child = Child("echo", echo)
    try:
        asyncio.run(child.wait_ready())
        child.send(order)
        with pytest.raises(GodwitError, match=error):
            heard(child)
    finally:
        stop_children([child])


def test_a_child_that_has_ended_receives_nothing() -> None:
    child = Child("echo", echo)
    try:
        asyncio.run(child.wait_ready())
        child.process.kill()
        child.process.join()
        with pytest.raises(GodwitError, match="ended unexpectedly"):
            send_often(child)
    finally:
        stop_children([child])


class FakeChild:
    """Records its calls in a list that several share."""

    def __init__(self, name: str, calls: list[tuple[str, str, float]]) -> None:
        self._name, self._calls = name, calls

    def release(self) -> None:
        self._calls.append(("release", self._name, 0.0))

    def end(self, deadline: float) -> None:
        self._calls.append(("end", self._name, deadline))


def test_all_children_are_released_before_the_demo_waits_for_one() -> None:
    calls: list[tuple[str, str, float]] = []
    stop_children([FakeChild("broker", calls), FakeChild("rooms", calls)])  # type: ignore[list-item]
    assert [call[:2] for call in calls] == [
        ("release", "broker"), ("release", "rooms"), ("end", "rooms"), ("end", "broker"),
    ]  # fmt: skip
    assert calls[2][2] == calls[3][2], "one deadline for all of them"


def test_a_silent_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(demo_run, "STOP_TIMEOUT_S", 0.1)
    child = Child("mute", nothing)
    try:
        with pytest.raises(GodwitError, match=r"the mute was not ready within 0\.1 s"):
            asyncio.run(child.wait_ready())
    finally:
        stop_children([child])
    assert not child.process.is_alive()


# -- demo pipeline ----------------------------------------------------------------------------------------------------


def program(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """In the place of godwit."""
    monkeypatch.setattr(demo_run, "_PROGRAM", (sys.executable, "-c", text))


def run(tmp_path: Path) -> str | None:
    return asyncio.run(run_pipeline("grpc://127.0.0.1:1", tmp_path / "lake"))


def test_the_tables_are_made_by_the_pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "told"
    program(monkeypatch, f"import sys; open({str(told)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')")
    assert run(tmp_path) is None
    lake = tmp_path / "lake"
    assert told.read_text().splitlines() == [f"pipeline run --once --archive grpc://127.0.0.1:1 --lake {lake}"]


def test_a_failure_is_reported_by_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # the output comes when the program ends
    program(monkeypatch, "import sys; print('working'); sys.exit('error: there is no lake')")
    assert run(tmp_path) == "the pipeline failed: error: there is no lake"
    program(monkeypatch, "import sys; sys.exit(3)")
    assert run(tmp_path) == "the pipeline failed: exit code 3"


def test_it_does_not_take_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_run, "PIPELINE_TIMEOUT_S", 0.5)
    program(monkeypatch, "import time; time.sleep(60)")
    assert "was not done after 0.5 s" in (run(tmp_path) or "")


def test_missing_requirements_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_java", lambda environment: None)
    assert "Spark needs Java 17 or newer and none was found" in (missing_requirement() or "")
    monkeypatch.setattr(java, "find_java", lambda environment: java.Java(Path("/java"), 17))
    assert missing_requirement() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert (missing_requirement() or "").endswith("run pip install 'godwit-mq[spark]'")
