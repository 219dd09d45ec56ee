"""Which handler does which kind of work, and how: in the event loop, in a thread, or as a command."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from godwit.broker.topics import check_kind
from godwit.errors import UsageError
from godwit.limits import MAX_KINDS
from godwit.net.commands import run_command
from godwit.net.task import Task

F = TypeVar("F", bound=Callable[[Task], object])


@dataclass(frozen=True, slots=True)
class Handler:
    call: Callable[[Task], Any]
    is_async: bool
    """It runs in the event loop, and gives its result when it is awaited. Else it runs in a thread."""


class Handlers:
    """The handlers of one worker, by kind."""

    def __init__(self) -> None:
        self.by_kind: dict[str, Handler] = {}

    def check(self, kind: str) -> None:
        """UsageError if there can be no (other) handler for it."""
        if not isinstance(kind, str):
            raise UsageError(f"a handler for {kind!r}: name the kind of work, as in @worker.handles('kind')")
        check_kind(kind)
        if kind in self.by_kind:
            raise UsageError(f"there is a handler for {kind!r} already: a kind has one")
        if len(self.by_kind) == MAX_KINDS:
            raise UsageError(f"handlers for more than {MAX_KINDS} kinds: let another worker do {kind!r}")

    def add(self, kind: str, function: F) -> F:
        """An async function runs in the event loop, a plain one in a thread."""
        if not callable(function):
            raise UsageError(f"the handler for {kind!r} is {function!r}: give a function, or command=[...]")
        self._put(kind, Handler(function, _is_async(function)))
        return function

    def add_command(self, kind: str, command: Sequence[str]) -> None:
        if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
            raise UsageError(f"the command for {kind!r} is {command!r}: give a list of words, such as ['wc', '-c']")
        if not hasattr(os, "killpg"):
            raise UsageError("a command needs a system with process groups: give a function that runs it instead")
        words = tuple(command)

        async def handle(task: Task) -> bytes:
            return await run_command(task, words)

        self._put(kind, Handler(handle, is_async=True))

    def _put(self, kind: str, handler: Handler) -> None:
        self.check(kind)
        self.by_kind[kind] = handler


def _is_async(function: Callable[[Task], object]) -> bool:
    """Also of an object that is called, and of what functools.partial makes."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
