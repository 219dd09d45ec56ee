"""Bars and counters on stderr for people who wait; nothing at all where nobody sits."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

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

from godwit.cli.text import safe

MAX_BARS: Final = 8
"""More transfers at once than this are not shown."""


class _Bars:
    """A rich progress that is there for the time of a block, on stderr; a disabled one does nothing."""

    def __init__(self, *columns: ProgressColumn, enabled: bool) -> None:
        self.progress = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not enabled,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.progress.stop()


class FileProgress(_Bars):
    """A bar for each file under way."""

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

    def show(self, name: str, done_bytes: int, total_bytes: int) -> None:
        task = self._tasks.get(name)
        if task is None:
            if len(self._tasks) >= MAX_BARS:
                return
            task = self._tasks[name] = self.progress.add_task(safe(name), total=total_bytes)
        self.progress.update(task, completed=done_bytes)

    def finish(self, name: str) -> None:
        if (task := self._tasks.pop(name, None)) is not None:
            self.progress.remove_task(task)


class LineProgress(_Bars):
    """A running count, and how many a second."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__(SpinnerColumn(), _CountColumn(), enabled=enabled)
        self._task = self.progress.add_task("messages", total=None)

    def show(self, count: int) -> None:
        self.progress.update(self._task, completed=count)


class WorkProgress(_Bars):
    """One bar for a piece of work that knows how much of it is done."""

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


class _CountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.completed:,.0f} messages, {task.speed or 0:,.0f} a second")
