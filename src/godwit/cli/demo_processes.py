"""The processes of `godwit demo`: started, talked to, and gone when the demo is, however it ends."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final, NoReturn

import msgspec

from godwit.errors import GodwitError

TICK_S: Final = 0.02
START_PATIENCE_S: Final = 60.0
STOP_PATIENCE_S: Final = 2.0


class Problem(msgspec.Struct, frozen=True):
    """The last word of a process that cannot go on."""

    text: str


class Child:
    """Another process and the pipe to it. It ends when the pipe is closed, also if this process is killed."""

    def __init__(self, name: str, main: Callable[..., None], *arguments: object) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self.process = context.Process(target=main, args=(there, *arguments), name=f"godwit-{name}", daemon=True)
        with _interrupts_wait():
            self.process.start()
        there.close()

    def hear(self) -> list[Any]:
        """What it has said since the last time. GodwitError if it is dead or says that it cannot go on."""
        heard = []
        try:
            while self._pipe.poll():
                word = self._pipe.recv()
                if isinstance(word, Problem):
                    raise GodwitError(f"{self.name}: {word.text}")
                heard.append(word)
        except (EOFError, OSError):
            self.process.join(timeout=STOP_PATIENCE_S)
            code = self.process.exitcode
            raise GodwitError(f"the process of the {self.name} ended by itself (exit code {code}): try again") from None
        return heard

    async def first_word(self) -> Any:
        """What it says when it is ready."""
        ends = time.monotonic() + START_PATIENCE_S
        while not (heard := self.hear()):
            if time.monotonic() > ends:
                raise GodwitError(f"the {self.name} did not get ready within {START_PATIENCE_S:g} s: try again")
            await asyncio.sleep(TICK_S)
        return heard[0]

    def tell(self, word: str) -> None:
        try:
            self._pipe.send(word)
        except OSError:
            self.hear()  # says why

    def kill(self) -> None:
        """At once, in the middle of whatever it does, and without a word to anybody."""
        self.process.kill()

    def stop(self) -> None:
        """May be repeated."""
        self._pipe.close()
        self.process.join(timeout=STOP_PATIENCE_S)
        self.process.kill()
        self.process.join()


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C waits until the end of the block here, and for good in a process that is started in it.

    A terminal sends it to both; the other one would answer with a traceback before it can say that it does not care.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # Else the first start of a process does this, and lets the waiting signals through.
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in the other process ---------------------------------------------------------------------------------------------


class Line:
    """The other end of a child's pipe. `on_cut` is called when nobody listens any more, and does not return."""

    def __init__(self, pipe: Pipe, on_cut: Callable[[], NoReturn]) -> None:
        self._pipe = pipe
        self._on_cut = on_cut
        self._heard: set[str] = set()

    def say(self, word: object) -> None:
        try:
            self._pipe.send(word)
        except OSError:
            self._on_cut()

    def has_heard(self, word: str) -> bool:
        """Whether the demo has said this, at any time."""
        try:
            while self._pipe.poll():
                self._heard.add(self._pipe.recv())
        except (EOFError, OSError):
            self._on_cut()
        return word in self._heard

    async def hears(self, word: str) -> None:
        """Waits until the demo says this."""
        while not self.has_heard(word):
            await asyncio.sleep(TICK_S)

    async def is_cut(self) -> None:
        """Waits until nobody listens any more, which ends the process."""
        await self.hears("")


def run_child(pipe: Pipe, work: Callable[[Line], Coroutine[Any, Any, None]]) -> None:
    """Runs the work until it is done or nobody listens any more; an error is the last word."""
    from godwit.net import loop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the demo ends this process itself
    # Whatever it is doing then: there is nobody left to say goodbye to.
    line = Line(pipe, on_cut=lambda: os._exit(0))
    try:
        loop.run(work(line))
    except GodwitError as error:
        line.say(Problem(str(error)))
