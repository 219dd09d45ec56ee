"""Tasks in the hands of `godwit worker` and of the shell: how they are done, and what is said of each."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from godwit.cli.connecting import guarded, tell
from godwit.cli.text import count, safe, safe_payload, size
from godwit.errors import UsageError

if TYPE_CHECKING:
    from godwit.cli.progress import TaskProgress
    from godwit.net.client import AsyncClient
    from godwit.net.tasks import Task
    from godwit.net.worker import Worker

Doing: TypeAlias = "Callable[[Task, OnProgress], Awaitable[bytes]]"
OnProgress: TypeAlias = Callable[[float | None], None]
Write: TypeAlias = Callable[[str], Awaitable[None]]

SHOWN_BYTES: Final = 60
"""Of a payload."""
STEP_S: Final = 0.2
"""Between two words about how far a pretended task is."""


# -- ways to do a task ------------------------------------------------------------------------------------------------


def pretending(seconds: float) -> Doing:
    """Does nothing for a while, with progress."""

    async def doing(task: Task, show: OnProgress) -> bytes:
        now = asyncio.get_running_loop().time
        began = now()
        while (left := began + seconds - now()) > 0:
            fraction = 1 - left / seconds
            task.progress(fraction)
            show(fraction)
            await asyncio.sleep(min(left, STEP_S))
        return f"pretended for {seconds:g} s".encode()

    return doing


def executing(command: Sequence[str]) -> Doing:
    """Runs a command for each task."""

    async def doing(task: Task, show: OnProgress) -> bytes:
        from godwit.net.command import run_command

        show(None)
        return await run_command(task, command)

    return doing


# -- what is said of it -----------------------------------------------------------------------------------------------


class Hands:
    """Does tasks, and says one line when each begins and one when it ends."""

    def __init__(self, doing: Doing, write: Write, bars: TaskProgress | None = None) -> None:
        self._doing = doing
        self._write = write
        self._bars = bars
        self._at_work: set[Task] = set()
        self._given_back = 0

    @property
    def given_back(self) -> int:
        """Tasks that were not done when the work was stopped; a command may still be about to end."""
        return self._given_back + sum(1 for task in self._at_work if _is_given_back(task))

    def worker(self, kinds: Sequence[str], capacity: int) -> Worker:
        """A worker that has these hands."""
        from godwit.net.worker import Worker

        worker = Worker(capacity=capacity)
        for kind in kinds:
            worker.handles(kind)(self.handle)
        return worker

    async def handle(self, task: Task) -> bytes:
        """One task from its beginning to its end."""
        title = f"job {task.job}, task {task.number}"
        attempt = f", attempt {task.attempt}" if task.attempt > 1 else ""
        await self._write(f"{title}: {safe(task.kind)} from {safe(task.controller)}{attempt}{shown(task.payload)}\n")
        began = time.monotonic()
        self._at_work.add(task)
        try:
            result = await self._doing(task, lambda fraction: self._draw(task, title, fraction))
        except asyncio.CancelledError:
            if _is_given_back(task):
                self._given_back += 1
            else:
                why = f": {safe(task.revoked_because)}" if task.revoked_because else ""
                await self._write(f"{title}: taken back{why}\n")
            raise
        except Exception as error:  # the controller is told, too; any failure of a task is news, none is ours
            await self._write(f"{title}: failed after {time.monotonic() - began:.1f} s: {safe(str(error))}\n")
            raise
        finally:
            self._at_work.discard(task)
            if self._bars is not None:
                self._bars.finish(task)
        await self._write(f"{title}: finished in {time.monotonic() - began:.1f} s, result {size(len(result))}\n")
        return result

    def _draw(self, task: Task, title: str, fraction: float | None) -> None:
        if self._bars is not None:
            self._bars.show(task, title, fraction)


def _is_given_back(task: Task) -> bool:
    """By this worker, which is being stopped. Else the broker has taken it back."""
    from godwit.net.worker import STOPPED

    return not task.is_revoked or task.revoked_because == STOPPED


def shown(payload: bytes) -> str:
    """The beginning of a payload, behind a colon."""
    if not payload:
        return ""
    return f": {safe_payload(payload[:SHOWN_BYTES])}{'…' if len(payload) > SHOWN_BYTES else ''}"


async def work(client: AsyncClient, kinds: Sequence[str], capacity: int, doing: Doing, *, quiet: bool) -> None:
    """What `godwit worker` does until it is interrupted."""
    from godwit.cli.progress import TaskProgress
    from godwit.cli.streams import Output

    output = Output()
    with TaskProgress(enabled=not quiet and sys.stderr.isatty()) as bars:

        async def write(text: str) -> None:
            if not quiet:
                await bars.write(text, output)

        hands = Hands(doing, write, bars)
        worker = hands.worker(kinds, capacity)

        async def announce() -> None:
            with suppress(UsageError):  # it ended before; why is told by the end
                await worker.ready()
                if not quiet:
                    bars.say(f"{safe(client.name)} volunteers for {safe(', '.join(kinds))}")

        announcing = asyncio.create_task(announce())
        try:
            await guarded(worker.serve(client), output.until_closed())
        finally:
            announcing.cancel()
            if hands.given_back and not quiet:
                tell(f"handed back {count(hands.given_back, 'task')}")
