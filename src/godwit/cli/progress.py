"""Progress bars and counters on stderr, shown only on a terminal."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from godwit.cli.streams import line_printer
from godwit.cli.text import count, safe

if TYPE_CHECKING:
    from godwit.cli.streams import Output

MAX_BARS: Final = 8
"""Bars shown at once; further transfers or tasks have none."""


class _Bars:
    """A rich progress display on stderr for the duration of a block. A disabled one does nothing."""

    def __init__(self, *columns: ProgressColumn, enabled: bool) -> None:
        self.progress = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not enabled,
        )
        self._lines = ExitStack()

    def __enter__(self) -> Self:
        self.progress.start()
        if not self.progress.disable:
            self._lines.enter_context(line_printer(self.print_line))
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self.progress.stop()

    async def write(self, text: str, output: Output) -> None:
        """Write lines to standard output, above the bars if both are on one terminal."""
        if self.progress.disable or not sys.stdout.isatty():
            await output.write(text.encode("utf-8", "backslashreplace"))
        else:
            self.progress.console.print(Text(text.rstrip("\n")), soft_wrap=True)

    def print_line(self, text: str) -> None:
        """Print a line on stderr, above the bars."""
        self.progress.console.print(Text(text), soft_wrap=True)


class FileProgress(_Bars):
    """A bar for each file in transfer."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            enabled=enabled,
        )
        self._tasks: dict[str, TaskID] = {}
        self._totals: dict[str, int] = {}

    def show(self, name: str, done_bytes: int, total_bytes: int) -> None:
        task = self._tasks.get(name)
        if task is None:
            if len(self._tasks) >= MAX_BARS:
                return
            task = self._tasks[name] = self.progress.add_task(safe(name), total=total_bytes)
            self._totals[name] = total_bytes
        self.progress.update(task, completed=done_bytes)

    def finish(self, name: str) -> None:
        """Show a transfer as complete, and remove its bar."""
        if (task := self._tasks.pop(name, None)) is not None:
            self.progress.update(task, completed=self._totals.pop(name))
            self.progress.refresh()
            self.progress.remove_task(task)

    def report(self, text: str) -> None:
        """Print a problem on stderr, above the bars."""
        self.print_line(f"godwit: {safe(text)}")


class LineProgress(_Bars):
    """A running count with its rate per second."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__(SpinnerColumn(), _CountColumn(), enabled=enabled)
        self._task = self.progress.add_task("messages", total=None)

    def show(self, count: int) -> None:
        self.progress.update(self._task, completed=count)


class WorkProgress(_Bars):
    """One bar for an operation that knows its total."""

    def __init__(self, title: str, *, enabled: bool) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            enabled=enabled,
        )
        self._task = self.progress.add_task(title, total=None)

    def show(self, done: int, total: int) -> None:
        self.progress.update(self._task, completed=done, total=total)


class TaskProgress(_Bars):
    """A bar for each running task, and one for the total of several tasks."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            enabled=enabled,
        )
        self._all: TaskID | None = None
        self._tasks: dict[object, TaskID] = {}

    def total(self, title: str, done: int, total: int) -> None:
        """Show the number of ended tasks out of `total`."""
        if self._all is None:
            self._all = self.progress.add_task(safe(title), total=total, note="")
        self.progress.update(self._all, completed=done, total=total, note=f"{done:,} of {total:,}")

    def show(self, task: object, title: str, fraction: float | None, note: str = "") -> None:
        """Show the progress of a task. None: the task does not report its progress."""
        bar = self._tasks.get(task)
        if bar is None:
            if len(self._tasks) >= MAX_BARS:
                return
            bar = self._tasks[task] = self.progress.add_task(safe(title), total=None, note="")
        total = None if fraction is None else 1.0
        self.progress.update(bar, description=safe(title), completed=fraction or 0.0, total=total, note=safe(note))

    def finish(self, task: object) -> None:
        if (bar := self._tasks.pop(task, None)) is not None:
            self.progress.remove_task(bar)


class _CountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{count(int(task.completed), 'message')}, {task.speed or 0:,.0f} a second")
