"""The processes of the demo: what they say is heard, and none is left behind."""

from __future__ import annotations

import asyncio
import os
import time
from multiprocessing.connection import Connection as Pipe
from typing import NoReturn

import pytest

from godwit.cli import demo_processes
from godwit.cli.demo_processes import Child, Line, run_child
from godwit.errors import GodwitError


class Cut(BaseException):
    """What a thread of the tests does where a process would end."""


def cut() -> NoReturn:
    raise Cut


async def _echo(line: Line) -> None:
    line.say("ready")
    while not line.has_heard("hello"):
        if line.has_heard("fail"):
            raise GodwitError("it cannot be done")
        if line.has_heard("die"):
            os._exit(7)
        await asyncio.sleep(0.01)
    line.say("hello")
    await line.is_cut()


def echo(pipe: Pipe) -> None:
    run_child(pipe, _echo)


async def _nothing(line: Line) -> None:
    await asyncio.sleep(60)


def nothing(pipe: Pipe) -> None:
    run_child(pipe, _nothing)


def tell_often(child: Child) -> None:
    for _ in range(100):
        child.tell("hello")


def heard(child: Child) -> list[object]:
    ends = time.monotonic() + 20
    while not (found := child.hear()):
        assert time.monotonic() < ends
        time.sleep(0.01)
    return found


def test_words_go_both_ways_and_it_ends_with_the_pipe() -> None:
    child = Child("echo", echo)
    try:
        assert asyncio.run(child.first_word()) == "ready"
        child.tell("hello")
        assert heard(child) == ["hello"]
    finally:
        child.stop()
        child.stop()
    assert child.process.exitcode == 0


@pytest.mark.parametrize(
    ("order", "error"),
    [("fail", "echo: it cannot be done"), ("die", r"the process of the echo ended by itself \(exit code 7\)")],
)
def test_a_process_that_cannot_go_on(order: str, error: str) -> None:
    child = Child("echo", echo)
    try:
        asyncio.run(child.first_word())
        child.tell(order)
        with pytest.raises(GodwitError, match=error):
            heard(child)
    finally:
        child.stop()


def test_one_that_is_gone_cannot_be_told_anything() -> None:
    child = Child("echo", echo)
    try:
        asyncio.run(child.first_word())
        child.process.kill()
        child.process.join()
        with pytest.raises(GodwitError, match="ended by itself"):
            tell_often(child)
    finally:
        child.stop()


def test_one_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_processes, "START_PATIENCE_S", 0.1)
    monkeypatch.setattr(demo_processes, "STOP_PATIENCE_S", 0.1)
    child = Child("mute", nothing)
    try:
        with pytest.raises(GodwitError, match=r"the mute did not get ready within 0\.1 s"):
            asyncio.run(child.first_word())
    finally:
        child.stop()
    assert not child.process.is_alive()
