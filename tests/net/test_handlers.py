"""Which handler does what, and which cannot be."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

from godwit.errors import BadKindError, UsageError
from godwit.limits import MAX_KIND_BYTES, MAX_KINDS
from godwit.net.handlers import Handlers
from godwit.net.task import Task


async def asynchronous(task: Task, extra: int = 0) -> bytes:
    return task.payload


def plain(task: Task) -> bytes:
    return task.payload


class AsyncObject:
    async def __call__(self, task: Task) -> bytes:
        return task.payload


class PlainObject:
    def __call__(self, task: Task) -> bytes:
        return task.payload


@pytest.mark.parametrize("function", [asynchronous, functools.partial(asynchronous, extra=1), AsyncObject()])
def test_what_runs_in_the_event_loop(function: Any) -> None:
    handlers = Handlers()
    assert handlers.add("work", function) is function
    assert handlers.by_kind["work"].is_async


@pytest.mark.parametrize("function", [plain, lambda task: None, PlainObject(), len])
def test_what_runs_in_a_thread(function: Any) -> None:
    handlers = Handlers()
    handlers.add("work", function)
    assert not handlers.by_kind["work"].is_async


def test_a_command_is_a_list_of_words() -> None:
    handlers = Handlers()
    handlers.add_command("work", ["wc", "-c"])
    assert handlers.by_kind["work"].is_async
    wrong: list[Any] = ["wc -c", [], ["wc", 3]]
    for command in wrong:
        with pytest.raises(UsageError, match="give a list of words"):
            handlers.add_command("other", command)


def test_where_there_are_no_process_groups_there_are_no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")
    with pytest.raises(UsageError, match="give a function that runs it instead"):
        Handlers().add_command("work", ["wc", "-c"])


def test_a_kind_has_one_handler() -> None:
    handlers = Handlers()
    handlers.add("work", plain)
    with pytest.raises(UsageError, match="there is a handler for 'work' already"):
        handlers.add("work", asynchronous)
    with pytest.raises(UsageError, match="already"):
        handlers.add_command("work", ["true"])


def test_what_cannot_be() -> None:
    handlers = Handlers()
    with pytest.raises(UsageError, match=r"name the kind of work, as in @worker.handles\('kind'\)"):
        handlers.check(plain)  # type: ignore[arg-type]
    no_function: Any = b"no function"
    with pytest.raises(UsageError, match="give a function"):
        handlers.add("work", no_function)
    for kind in ("", "a/+", "$sys", "x" * (MAX_KIND_BYTES + 1)):
        with pytest.raises(BadKindError):
            handlers.add(kind, plain)
    for number in range(MAX_KINDS):
        handlers.add(f"work/{number}", plain)
    with pytest.raises(UsageError, match=f"more than {MAX_KINDS} kinds"):
        handlers.add("one/more", plain)
