"""How jobs, tasks and updates are shown: as sentences, as JSON, as tables, and live while a job is followed.

The commands and the shell use the same texts.
"""

from __future__ import annotations

import asyncio
import base64
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from godwit.cli.connection import Target, connected, guarded, print_notice
from godwit.cli.progress import MAX_BARS, TaskProgress
from godwit.cli.streams import Output
from godwit.cli.tables import Column, show_objects, show_table
from godwit.cli.text import count, iso_time, moment, safe, safe_json, safe_payload, short_moment, size
from godwit.errors import GodwitError

if TYPE_CHECKING:
    from godwit.net.jobs import AsyncJob, Update
    from godwit.wire.jobs import JobInfo, TaskInfo


_ENDS: Final = frozenset(("done", "failed", "cancelled"))


# -- sentences --------------------------------------------------------------------------------------------------------


def accepted_text(job: AsyncJob) -> str:
    """Return how a job starts: its number of workers, or the reason why it waits."""
    if job.agreed is not None:
        return f"job {job.number}: {count(job.agreed, 'worker')} agreed"
    if job.begins_us > time.time_ns() // 1000:
        return f"job {job.number} waits: it starts no earlier than {moment(job.begins_us)} UTC"
    return f"job {job.number} waits: no worker volunteers for {safe(job.kind)} yet"


def update_text(job: AsyncJob, update: Update) -> str:
    """Return an update as one line, without a line end."""
    if update.what == "accepted":
        return accepted_text(job)
    if update.what == "settled":
        return f"job {job.number}: {count(job.agreed or 0, 'worker')} agreed"
    if update.what in _ENDS:
        return ended_text(job)
    return f"job {job.number}, task {update.task}: {_task_text(update)}"


def _task_text(update: Update) -> str:
    worker = safe(update.worker) or "its worker"
    if update.what == "result":
        return f"{worker} finished: {result_text(update)}"
    if update.what == "failure" and update.is_final:  # after a missed deadline the worker is not to blame
        last_worker = f" (last worker: {worker})" if update.worker else ""
        return f"failed for good: {safe(update.error)}{last_worker}"
    if update.what == "failure":
        return f"{worker} failed: {safe(update.error)}"
    if update.what == "reassigned":
        return f"reassigned to {worker}"
    return f"{worker} is at {progress_text(update.progress, update.note)}"


def result_text(update: Update) -> str:
    """Return a result on one line, without the line end that most commands print."""
    return safe_payload((update.result or b"").removesuffix(b"\n"))


def progress_text(progress: float | None, note: str) -> str:
    """Return progress and note as `50 %, reading`."""
    parts = [] if progress is None else [f"{math.floor(progress * 100)} %"]
    return ", ".join([*parts, safe(note)] if note else parts) or "work"


def ended_text(job: AsyncJob) -> str:
    """Return the state in which a job ended, and the reason."""
    why = f": {safe(job.reason)}" if job.reason else ""
    return f"job {job.number}: {job.state}{why}"


# -- JSON -------------------------------------------------------------------------------------------------------------


class UpdateObject(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """JSON form of an update. A result is in `result` if it is UTF-8, else in `result_base64`."""

    job: int
    what: str
    agreed: int | None = None
    task: int | None = None
    worker: str = ""
    progress: float | None = None
    note: str = ""
    result: str | None = None
    result_base64: str | None = None
    error: str = ""
    is_final: bool = False
    reason: str = ""


def json_line(job: AsyncJob, update: Update) -> bytes:
    """Return an update as a JSON object with its line end."""
    text, coded = None, None
    if update.result is not None:
        try:
            text = update.result.decode()
        except UnicodeDecodeError:
            coded = base64.b64encode(update.result).decode()
    is_end = update.what in _ENDS
    has_agreed = is_end or update.what in ("accepted", "settled")
    found = UpdateObject(
        job=job.number,
        what=update.what,
        agreed=job.agreed if has_agreed else None,
        task=update.task,
        worker=update.worker,
        progress=update.progress,
        note=update.note,
        result=text,
        result_base64=coded,
        error="" if is_end else update.error,
        is_final=update.is_final,
        reason=job.reason if is_end else "",
    )
    return safe_json(msgspec.json.encode(found)) + b"\n"


_JOB_COLUMNS: Final = (
    Column("job", right=True),
    Column("kind", is_name=True),
    Column("state"),
    Column("finished", "done", right=True),
    Column("running", right=True, drop=6),
    Column("failed", right=True, drop=4),
    Column("controller", least_width=12, drop=5),
    Column("priority", "prio", right=True, drop=2),
    Column("submitted (UTC)", "submitted", shorten=short_moment, drop=3),
    Column("key", least_width=8, drop=1),
)
_TASK_COLUMNS: Final = (
    Column("task", right=True),
    Column("state"),
    Column("worker", is_name=True),
    Column("progress", least_width=8),
    Column("failures", "fails", right=True, drop=4),
    Column("losses", right=True, drop=2),
    Column("result", right=True, drop=3),
    Column("since (UTC)", "since", shorten=short_moment, drop=1),
    Column("last error", "error", least_width=12, drop=5),
)


def show_jobs(jobs: Sequence[JobInfo], *, as_json: bool, is_all: bool, limit: int | None = None) -> None:
    """Print at most `limit` jobs, and a note if there are more."""
    shown = jobs[:limit]
    if as_json:
        show_objects([job_object(job) for job in shown])
    elif not jobs:
        typer.echo("no jobs" if is_all else "no job matches", err=True)
    else:
        show_table(_JOB_COLUMNS, [_job_row(job) for job in shown])
    if len(shown) < len(jobs):
        typer.echo(f"only the newest {len(shown):,} are listed; --limit 0 lists all", err=True)


def show_job(job: JobInfo, tasks: Sequence[TaskInfo], *, as_json: bool) -> None:
    """Print one job with its tasks."""
    if as_json:
        show_objects([{**job_object(job), "tasks": [task_object(task) for task in tasks]}])
        return
    for title, fact in job_facts(job).items():
        typer.echo(f"{title:12}{fact}")
    if tasks:
        typer.echo()
        show_table(_TASK_COLUMNS, [_task_row(task) for task in tasks])


def job_facts(job: JobInfo) -> dict[str, str]:
    """Return the properties of a job, each with its title."""
    facts = {
        "job": f"{job.job}",
        "kind": safe(job.of_kind),
        "state": job.state + (f": {safe(job.reason)}" if job.reason else ""),
        "workers": workers_text(job),
        "tasks": tasks_text(job),
        "controller": safe(job.controller),
        "key": safe(job.key),
        "priority": f"{job.priority}",
        "payload": size(job.payload_bytes),
        "submitted": _utc(job.submitted_us),
    }
    if job.begins_us > job.submitted_us:
        facts["begins"] = _utc(job.begins_us)
    if job.deadline_us is not None:
        facts["deadline"] = _utc(job.deadline_us)
    if job.ended_us is not None:
        facts["ended"] = _utc(job.ended_us)
    return facts


def workers_text(job: JobInfo) -> str:
    """Return how many workers were requested, and how many agreed."""
    asked = "all" if job.workers == 0 else f"{job.workers:,}"
    return f"{asked} requested, {'none yet' if job.agreed is None else f'{job.agreed:,} agreed'}"


def tasks_text(job: JobInfo) -> str:
    """Return the counts of tasks as `2 finished, 1 running, 1 waiting`."""
    if job.agreed is None:
        return "none yet"
    others = job.agreed - job.finished - job.failed - job.leased
    parts = [
        (job.finished, "finished"),
        (job.leased, "running"),
        (job.failed, "failed"),
        (others, "cancelled" if job.state == "cancelled" else "waiting"),
    ]
    return ", ".join(f"{number:,} {word}" for number, word in parts if number > 0) or "none"


def job_line(job: JobInfo) -> str:
    """Return a job on one line, for the shell."""
    return (
        f"{job.job}  {safe(job.of_kind)}  {job.state}  {_finished(job)} finished  "
        f"({safe(job.controller)}{f': {safe(job.reason)}' if job.reason else ''})"
    )


def task_line(task: TaskInfo) -> str:
    """Return a task on one line, for the shell."""
    parts = [f"task {task.task}", task.state]
    if worker := _worker(task):
        parts.append(safe(worker))
    if task.state == "leased" and (task.progress is not None or task.note):
        parts.append(progress_text(task.progress, task.note))
    if task.failures:
        parts.append(f"{count(task.failures, 'failure')}: {safe(task.error)}")
    return "  ".join(parts)


def job_object(job: JobInfo) -> dict[str, Any]:
    """Return the JSON form of a job: all fields, with times as text."""
    fields = {"kind" if name == "of_kind" else name: value for name, value in msgspec.structs.asdict(job).items()}
    fields["workers"] = "all" if job.workers == 0 else job.workers
    return _with_times(fields)


def task_object(task: TaskInfo) -> dict[str, Any]:
    """Return the JSON form of a task."""
    return _with_times(msgspec.structs.asdict(task))


def _with_times(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name.removesuffix("_us"): (iso_time(value) if value else None) if name.endswith("_us") else value
        for name, value in fields.items()
    }


def _job_row(job: JobInfo) -> tuple[str, ...]:
    return (
        f"{job.job}",
        job.of_kind,
        job.state,
        _finished(job),
        f"{job.leased:,}" if job.leased else "",
        f"{job.failed:,}" if job.failed else "",
        job.controller,
        f"{job.priority}" if job.priority else "",
        moment(job.submitted_us),
        job.key,
    )


def _task_row(task: TaskInfo) -> tuple[str, ...]:
    has_progress = task.state == "leased" and (task.progress is not None or bool(task.note))
    return (
        f"{task.task}",
        task.state,
        _worker(task),
        progress_text(task.progress, task.note) if has_progress else "",
        f"{task.failures:,}" if task.failures else "",
        f"{task.losses:,}" if task.losses else "",
        size(task.result_bytes) if task.state == "finished" else "",
        moment(task.since_us),
        task.error,
    )


def _worker(task: TaskInfo) -> str:
    """Return the current or last worker of a task; empty for a waiting task, which has no worker."""
    return "" if task.state == "waiting" else task.worker


def _finished(job: JobInfo) -> str:
    return f"{job.finished:,}/{'-' if job.agreed is None else f'{job.agreed:,}'}"


def _utc(time_us: int) -> str:
    return f"{moment(time_us)} UTC"


def prepare_folder(folder: Path | None) -> None:
    """Create a folder for results, if one was given.

    Raises:
        GodwitError: Creating it failed.
    """
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GodwitError(f"cannot create the folder {folder}: {error.strerror}; choose another") from error


def write_result(folder: Path, job: int, task: int | None, result: bytes) -> Path:
    """Write a result to a file of its own, `job-7-task-0`, and return the path. A file of that name is replaced.

    Raises:
        GodwitError: Writing failed.
    """
    path = folder / f"job-{job}-task-{task or 0}"
    try:
        path.write_bytes(result)
    except OSError as error:
        raise GodwitError(f"cannot write {path}: {error.strerror}; the result is still at the broker") from error
    return path


async def show_results(target: Target, number: int, *, as_json: bool, folder: Path | None) -> None:
    """Print or write the results that a job has at present."""
    output = Output()
    prepare_folder(folder)
    async with connected(target) as client:
        info, _ = await client.job_info(number)
        left = info.finished
        if not left:
            print_notice(f"job {number} has no results{'' if info.ended_us else ' yet'}; it is {info.state}")
            return
        job = await client.job(number)
        async for update in job:
            if update.what != "result":
                continue
            await output.write(_result_line(job, update, as_json=as_json, folder=folder).encode())
            left -= 1
            if not left:
                return


def _result_line(job: AsyncJob, update: Update, *, as_json: bool, folder: Path | None) -> str:
    """Return the line for a result, which is written to a file if there is a folder."""
    if folder is not None:
        path = write_result(folder, job.number, update.task, update.result or b"")
        return f"{safe(str(path))}\n"
    if as_json:
        return json_line(job, update).decode()
    return f"{safe(update.worker)}: {result_text(update)}\n"


async def follow(job: AsyncJob, *, as_json: bool, quiet: bool, folder: Path | None = None) -> None:
    """Follow a job to its end: results on standard output or in files of a folder, progress on stderr.

    Raises:
        GodwitError: The job failed or was cancelled; the text has the reason.
    """
    prepare_folder(folder)
    is_verbose = not quiet and not as_json
    output = Output()
    with TaskProgress(enabled=is_verbose and sys.stderr.isatty()) as bars:
        display = _JobDisplay(job, bars, output, as_json=as_json, is_verbose=is_verbose, folder=folder)
        try:
            await guarded(display.run(), output.until_closed())
        except asyncio.CancelledError:
            if not job.is_ended:
                print_notice(
                    f"job {job.number} continues: see godwit job watch {job.number}, godwit job cancel {job.number}"
                )
            raise
    if job.state != "done":
        raise GodwitError(ended_text(job))
    if is_verbose:
        typer.echo(ended_text(job), err=True)


class _JobDisplay:
    """Shows one job on a terminal, or in a pipe."""

    def __init__(
        self,
        job: AsyncJob,
        bars: TaskProgress,
        output: Output,
        *,
        as_json: bool,
        is_verbose: bool,
        folder: Path | None = None,
    ) -> None:
        self._job = job
        self._bars = bars
        self._output = output
        self._as_json = as_json
        self._is_verbose = is_verbose
        self._folder = folder
        self._ended = 0

    async def run(self) -> None:
        async for update in self._job:
            if self._as_json and (self._folder is None or update.what != "result"):
                await self._output.write(json_line(self._job, update))
            else:
                await self._show(update)

    async def _show(self, update: Update) -> None:
        job, what, task = self._job, update.what, update.task
        if what == "result":
            line = _result_line(job, update, as_json=False, folder=self._folder)
            await self._bars.write(line, self._output)
        elif self._is_verbose and what in ("accepted", "settled", "failure", "reassigned"):
            self._bars.print_line(update_text(job, update))
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
                    self._bars.show(number, f"task {number}", None, "waiting")
        elif what == "result":
            if agreed <= MAX_BARS:
                self._bars.show(task, f"task {task} {update.worker}", 1.0, "finished")
            else:  # leave the bar to a running task
                self._bars.finish(task)
        elif is_end:
            self._bars.finish(task)
        else:
            note = update.error if what == "failure" else update.note
            self._bars.show(task, f"task {task} {update.worker}", update.progress, note or "")
