"""Jobs and their tasks as lists, for people (aligned columns) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from godwit.cli.job_text import progress_text
from godwit.cli.tables import Column, show_objects, show_table
from godwit.cli.text import count, iso_time, moment, safe, short_moment, size

if TYPE_CHECKING:
    from godwit.wire.jobs import JobInfo, TaskInfo

_JOB_COLUMNS: Final = (
    Column("job", right=True),
    Column("kind", is_name=True),
    Column("state"),
    Column("finished", "done", right=True),
    Column("at work", right=True, drop=6),
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
    """At most `limit` of them; that there are more is said."""
    shown = jobs[:limit]
    if as_json:
        show_objects([job_object(job) for job in shown])
    elif not jobs:
        typer.echo("no jobs" if is_all else "no job matches", err=True)
    else:
        show_table(_JOB_COLUMNS, [_job_row(job) for job in shown])
    if len(shown) < len(jobs):
        typer.echo(f"these are the newest {len(shown):,}; --limit 0 shows all", err=True)


def show_job(job: JobInfo, tasks: Sequence[TaskInfo], *, as_json: bool) -> None:
    if as_json:
        show_objects([{**job_object(job), "tasks": [task_object(task) for task in tasks]}])
        return
    for title, fact in job_facts(job).items():
        typer.echo(f"{title:12}{fact}")
    if tasks:
        typer.echo()
        show_table(_TASK_COLUMNS, [_task_row(task) for task in tasks])


def job_facts(job: JobInfo) -> dict[str, str]:
    """What there is to say of a job, each with its title."""
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
    """How many were asked for, and how many agreed."""
    asked = "all" if job.workers == 0 else f"{job.workers:,}"
    return f"{asked} asked for, {'none yet' if job.agreed is None else f'{job.agreed:,} agreed'}"


def tasks_text(job: JobInfo) -> str:
    """`2 finished, 1 at work, 1 waiting`."""
    if job.agreed is None:
        return "none yet"
    others = job.agreed - job.finished - job.failed - job.leased
    parts = [
        (job.finished, "finished"),
        (job.leased, "at work"),
        (job.failed, "failed"),
        (others, "cancelled" if job.state == "cancelled" else "waiting"),
    ]
    return ", ".join(f"{number:,} {word}" for number, word in parts if number > 0) or "none"


def job_line(job: JobInfo) -> str:
    """A job on one line, for the shell."""
    return (
        f"{job.job}  {safe(job.of_kind)}  {job.state}  {_finished(job)} finished  "
        f"({safe(job.controller)}{f': {safe(job.reason)}' if job.reason else ''})"
    )


def task_line(task: TaskInfo) -> str:
    """A task on one line, for the shell."""
    parts = [f"task {task.task}", task.state]
    if worker := _worker(task):
        parts.append(safe(worker))
    if task.state == "leased" and (task.progress is not None or task.note):
        parts.append(progress_text(task.progress, task.note))
    if task.failures:
        parts.append(f"{count(task.failures, 'failure')}: {safe(task.error)}")
    return "  ".join(parts)


def job_object(job: JobInfo) -> dict[str, Any]:
    """What `--json` prints: times as text, and all that is known, also what is empty."""
    fields = {"kind" if name == "of_kind" else name: value for name, value in msgspec.structs.asdict(job).items()}
    fields["workers"] = "all" if job.workers == 0 else job.workers
    return _with_times(fields)


def task_object(task: TaskInfo) -> dict[str, Any]:
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
    is_at_work = task.state == "leased" and (task.progress is not None or bool(task.note))
    return (
        f"{task.task}",
        task.state,
        _worker(task),
        progress_text(task.progress, task.note) if is_at_work else "",
        f"{task.failures:,}" if task.failures else "",
        f"{task.losses:,}" if task.losses else "",
        size(task.result_bytes) if task.state == "finished" else "",
        moment(task.since_us),
        task.error,
    )


def _worker(task: TaskInfo) -> str:
    """Who has it, or had it at its end. Whoever had a task that waits again has nothing to do with it any more."""
    return "" if task.state == "waiting" else task.worker


def _finished(job: JobInfo) -> str:
    return f"{job.finished:,}/{'-' if job.agreed is None else f'{job.agreed:,}'}"


def _utc(time_us: int) -> str:
    return f"{moment(time_us)} UTC"
