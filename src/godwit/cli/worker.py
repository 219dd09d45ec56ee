"""`godwit worker`: volunteer for kinds of work, and run a command or Python handlers for each task, or simulate it.

The shell runs its tasks in the same way.
"""

from __future__ import annotations

import asyncio
import importlib
import shlex
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    ArqOption,
    BrokerOption,
    EndlessTimeoutOption,
    SecretOption,
    Target,
    connected,
    guarded,
    print_notice,
    run,
)
from godwit.cli.text import count, safe, safe_payload, size
from godwit.errors import GodwitError, UsageError
from godwit.limits import MAX_CAPACITY, MAX_KINDS

if TYPE_CHECKING:
    from godwit.cli.progress import TaskProgress
    from godwit.net.client import AsyncClient
    from godwit.net.tasks import Task
    from godwit.net.worker import Worker


MAX_SECONDS: Final = 3600.0


def register(root: typer.Typer) -> None:
    """Add `godwit worker`."""
    root.command("worker", epilog="Example: godwit worker anna --kind resize --exec 'convert - -resize 50% -'")(worker)


def worker(
    name: Annotated[str, typer.Argument(help="Unique name of this worker.")],
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", "-k", metavar="KIND", help="Kind of work to volunteer for; may be repeated."),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:NAME",
            help="Run the godwit.Worker of this name in a Python module, with its handlers and its capacity.",
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="Command to run for each task: payload on its stdin, result from its stdout.",
        ),
    ] = None,
    capacity: Annotated[
        int | None, typer.Option(metavar="N", help="Number of tasks to run at once.", show_default="1")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Without --exec: duration of a simulated task.", show_default="1"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the tasks.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: EndlessTimeoutOption = None,
) -> None:
    """Volunteer for work and do it until Ctrl-C, which hands unfinished tasks back at once.

    With --exec each task is a run of the command, without a shell. An exit code other than 0 is a failure, reported
    with the end of the command's stderr. With --app the handlers of a Python program do the work. Without either, the
    worker simulates work, with progress, for experiments. The worker waits for a broker that is not running yet and
    reconnects when the connection is lost.
    """
    from godwit.broker.topics import check_kind

    if not name:
        raise UsageError("the name of the worker is empty; give a name")
    if app is not None:
        if kinds or command is not None or seconds is not None or capacity is not None:
            raise UsageError("--app names a worker with its own kinds and capacity: leave out the other options")
        run(_run_app(Target.of(broker, name, secret_file, timeout, arq), load_app(app), app, quiet=quiet))
        return
    if not kinds:
        raise UsageError("name the kinds of work with --kind, or a worker of a Python module with --app")
    capacity = 1 if capacity is None else capacity
    if len(kinds) > MAX_KINDS:
        raise UsageError(f"{len(kinds)} kinds are too many; a worker volunteers for {MAX_KINDS} at most")
    for kind in kinds:
        check_kind(kind)
    if not 1 <= capacity <= MAX_CAPACITY:
        raise UsageError(f"--capacity {capacity} is out of range; give a number from 1 to {MAX_CAPACITY:,}")
    if command is not None and seconds is not None:
        raise UsageError("--seconds is for simulated work; leave it out, or leave out --exec")
    task_work = (
        simulated_work(check_simulated_seconds(1.0 if seconds is None else seconds))
        if command is None
        else command_work(split_command(command))
    )
    target = Target.of(broker, name, secret_file, timeout, arq)

    async def main() -> None:
        async with connected(target) as client:
            await run_worker(client, list(dict.fromkeys(kinds)), capacity, task_work, quiet=quiet)

    run(main())


def load_app(text: str) -> Worker:
    """Return the worker that a text such as `shop.work:worker` names. Modules in the current folder are found.

    Raises:
        UsageError: The text has another form, or does not name a worker.
        GodwitError: The import of the module failed.
    """
    from godwit.net.worker import Worker

    module_name, colon, attribute = text.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"--app {text!r} is not MODULE:NAME; write it as shop.work:worker")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # code of the user can raise anything
        raise GodwitError(
            f"cannot import {module_name}: {type(error).__name__}: {error}; start the command in the folder of the "
            "module, or correct the module"
        ) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        raise UsageError(f"{attribute!r} of {module_name} is not a godwit.Worker; name the variable that holds it")
    return found


async def _run_app(target: Target, worker: Worker, text: str, *, quiet: bool) -> None:
    async with connected(target) as client:
        if not quiet:
            print_notice(f"{client.name} does the work of {text}")
        await worker.serve(client)


def check_simulated_seconds(seconds: float) -> float:
    """Return the duration of a simulated task.

    Raises:
        UsageError: It is out of range.
    """
    if not 0 <= seconds <= MAX_SECONDS:
        raise UsageError(f"a simulated task of {seconds:g} s is out of range; give seconds from 0 to {MAX_SECONDS:g}")
    return seconds


def split_command(text: str) -> list[str]:
    """Return a command and its arguments. Quotes group words as in a shell and have no other effect.

    Raises:
        UsageError: A quote is not closed, or the command does not exist.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        raise UsageError(f"--exec {text!r} has a quote that is not closed; close it") from None
    if not words:
        raise UsageError("--exec is empty; name a command")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"the command {words[0]!r} does not exist here; check --exec, which takes a program and its arguments"
        )
    return words


TaskWork: TypeAlias = "Callable[[Task, OnProgress], Awaitable[bytes]]"
OnProgress: TypeAlias = Callable[[float | None], None]
Write: TypeAlias = Callable[[str], Awaitable[None]]

SHOWN_BYTES: Final = 60
"""Bytes of a payload that are shown."""
STEP_S: Final = 0.2
"""Time between two progress reports of a simulated task."""


# -- ways to do a task ------------------------------------------------------------------------------------------------


def simulated_work(seconds: float) -> TaskWork:
    """Return work that only waits, with progress."""

    async def task_work(task: Task, show: OnProgress) -> bytes:
        now = asyncio.get_running_loop().time
        began = now()
        while (left := began + seconds - now()) > 0:
            fraction = 1 - left / seconds
            task.progress(fraction)
            show(fraction)
            await asyncio.sleep(min(left, STEP_S))
        return f"simulated for {seconds:g} s".encode()

    return task_work


def command_work(command: Sequence[str]) -> TaskWork:
    """Return work that runs a command for each task."""

    async def task_work(task: Task, show: OnProgress) -> bytes:
        from godwit.net.command import run_command

        show(None)
        return await run_command(task, command)

    return task_work


# -- reports on tasks -------------------------------------------------------------------------------------------------


class TaskRunner:
    """Runs tasks, and reports the start and the end of each on one line."""

    def __init__(self, task_work: TaskWork, write: Write, bars: TaskProgress | None = None) -> None:
        self._doing = task_work
        self._write = write
        self._bars = bars
        self._running: set[Task] = set()
        self._returned_count = 0

    @property
    def returned_count(self) -> int:
        """Number of tasks handed back because the worker stopped. A command may still be ending."""
        return self._returned_count + sum(1 for task in self._running if _is_returned(task))

    def worker(self, kinds: Sequence[str], capacity: int) -> Worker:
        """Return a worker that runs its tasks with this runner."""
        from godwit.net.worker import Worker

        worker = Worker(capacity=capacity)
        for kind in kinds:
            worker.handles(kind)(self.handle)
        return worker

    async def handle(self, task: Task) -> bytes:
        """Run one task from its start to its end."""
        title = f"job {task.job}, task {task.number}"
        attempt = f", attempt {task.attempt}" if task.attempt > 1 else ""
        await self._write(
            f"{title}: {safe(task.kind)} from {safe(task.controller)}{attempt}{payload_preview(task.payload)}\n"
        )
        began = time.monotonic()
        self._running.add(task)
        try:
            result = await self._doing(task, lambda fraction: self._draw(task, title, fraction))
        except asyncio.CancelledError:
            if _is_returned(task):
                self._returned_count += 1
            else:
                why = f": {safe(task.revoked_because)}" if task.revoked_because else ""
                await self._write(f"{title}: taken back{why}\n")
            raise
        except Exception as error:  # printed here; the worker reports it to the controller too
            await self._write(f"{title}: failed after {time.monotonic() - began:.1f} s: {safe(str(error))}\n")
            raise
        finally:
            self._running.discard(task)
            if self._bars is not None:
                self._bars.finish(task)
        await self._write(f"{title}: finished in {time.monotonic() - began:.1f} s, result {size(len(result))}\n")
        return result

    def _draw(self, task: Task, title: str, fraction: float | None) -> None:
        if self._bars is not None:
            self._bars.show(task, title, fraction)


def _is_returned(task: Task) -> bool:
    """Return whether this worker hands the task back because it stops. Otherwise the broker revoked it."""
    from godwit.net.worker import STOPPED

    return not task.is_revoked or task.revoked_because == STOPPED


def payload_preview(payload: bytes) -> str:
    """Return the beginning of a payload after a colon."""
    if not payload:
        return ""
    return f": {safe_payload(payload[:SHOWN_BYTES])}{'…' if len(payload) > SHOWN_BYTES else ''}"


async def run_worker(
    client: AsyncClient, kinds: Sequence[str], capacity: int, task_work: TaskWork, *, quiet: bool
) -> None:
    """Do the work of `godwit worker` until it is interrupted."""
    from godwit.cli.progress import TaskProgress
    from godwit.cli.streams import Output

    output = Output()
    with TaskProgress(enabled=not quiet and sys.stderr.isatty()) as bars:

        async def write(text: str) -> None:
            if not quiet:
                await bars.write(text, output)

        runner = TaskRunner(task_work, write, bars)
        worker = runner.worker(kinds, capacity)

        async def announce() -> None:
            with suppress(UsageError):  # the worker ended first; `serve` raises the reason
                await worker.ready()
                if not quiet:
                    bars.print_line(f"{safe(client.name)} volunteers for {safe(', '.join(kinds))}")

        announcing = asyncio.create_task(announce())
        try:
            await guarded(worker.serve(client), output.until_closed())
        finally:
            announcing.cancel()
            if runner.returned_count and not quiet:
                print_notice(f"handed back {count(runner.returned_count, 'task')}")
