"""Following a job to its end: results on standard output, bars or sentences about the rest on stderr."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import typer

from godwit.cli.connecting import guarded, tell
from godwit.cli.job_text import ended_text, json_line, result_text, update_text
from godwit.cli.progress import MAX_BARS, TaskProgress
from godwit.cli.streams import Output
from godwit.cli.text import safe
from godwit.errors import GodwitError

if TYPE_CHECKING:
    from godwit.net.jobs import AsyncJob, Update


async def follow(job: AsyncJob, *, as_json: bool, quiet: bool) -> None:
    """Until the job has ended. GodwitError with its reason if it ended in any other way than done."""
    shows = not quiet and not as_json
    output = Output()
    with TaskProgress(enabled=shows and sys.stderr.isatty()) as bars:
        view = _JobView(job, bars, output, as_json=as_json, says=shows)
        try:
            await guarded(view.run(), output.until_closed())
        except asyncio.CancelledError:
            if not job.is_ended:
                tell(f"job {job.number} goes on: see godwit job watch {job.number}, godwit job cancel {job.number}")
            raise
    if job.state != "done":
        raise GodwitError(ended_text(job))
    if shows:
        typer.echo(ended_text(job), err=True)


class _JobView:
    """One job on a terminal, or in a pipe."""

    def __init__(self, job: AsyncJob, bars: TaskProgress, output: Output, *, as_json: bool, says: bool) -> None:
        self._job = job
        self._bars = bars
        self._output = output
        self._as_json = as_json
        self._says = says
        self._ended = 0
        """Tasks with a result, or without hope of one."""

    async def run(self) -> None:
        async for update in self._job:
            if self._as_json:
                await self._output.write(json_line(self._job, update))
            else:
                await self._show(update)

    async def _show(self, update: Update) -> None:
        job, what, task = self._job, update.what, update.task
        if what == "result":
            await self._bars.write(f"{safe(update.worker)}: {result_text(update)}\n", self._output)
        elif self._says and what in ("accepted", "settled", "failure", "reassigned"):
            self._bars.say(update_text(job, update))
        self._draw(what, task, update)

    def _draw(self, what: str, task: int | None, update: Update) -> None:
        agreed = self._job.agreed
        if agreed is None:
            return
        is_end = what == "result" or (what == "failure" and update.is_final)
        self._ended += is_end
        if agreed > 1:
            self._bars.total(f"job {self._job.number}", self._ended, agreed)
        if task is None:
            if what in ("accepted", "settled") and agreed <= MAX_BARS:
                for number in range(agreed):
                    self._bars.show(number, f"task {number}", None, "waits")
        elif what == "result":
            if agreed <= MAX_BARS:
                self._bars.show(task, f"task {task} {update.worker}", 1.0, "finished")
            else:  # its place is for one that is still at work
                self._bars.finish(task)
        elif is_end:
            self._bars.finish(task)
        else:
            note = update.error if what == "failure" else update.note
            self._bars.show(task, f"task {task} {update.worker}", update.progress, note or "")
