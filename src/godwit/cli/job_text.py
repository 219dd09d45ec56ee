"""Jobs and what becomes of them in words: what a user typed of one, and a sentence or an object for each update.

Commands and the shell say the same things in the same words.
"""

from __future__ import annotations

import base64
import math
import time
from typing import TYPE_CHECKING, Final

import msgspec

from godwit.cli.text import count, moment, safe, safe_json, safe_payload
from godwit.errors import UsageError
from godwit.limits import MAX_TASKS_OF_JOB
from godwit.net.job_options import MAX_JOB_NUMBER, MAX_TIME_S, Workers

if TYPE_CHECKING:
    from godwit.net.jobs import AsyncJob, Update

_ENDS: Final = frozenset(("done", "failed", "cancelled"))


# -- what a user typed ------------------------------------------------------------------------------------------------


def parse_workers(text: str) -> Workers:
    """A number of workers, or all."""
    if text == "all":
        return "all"
    if 1 <= _whole(text) <= MAX_TASKS_OF_JOB:
        return int(text)
    raise UsageError(f"{text!r} workers cannot be; give a number from 1 to {MAX_TASKS_OF_JOB:,}, or all")


def parse_job(text: str) -> int:
    """The number of a job."""
    if 1 <= _whole(text) <= MAX_JOB_NUMBER:
        return int(text)
    raise UsageError(f"{text[:40]!r} is no job's number; the list of jobs has the numbers")


def _whole(text: str) -> int:
    """0 for what is no number; and none has more digits than the largest job."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_JOB_NUMBER)) else 0


def check_seconds(option: str, seconds: float | None, *, least_s: float = 0.001) -> None:
    """UsageError if a job cannot have such a time."""
    if seconds is not None and not (least_s <= seconds <= MAX_TIME_S and math.isfinite(seconds)):
        raise UsageError(f"{option} {seconds:g} cannot be; give seconds, from {least_s:g} to {MAX_TIME_S:,.0f}")


# -- for people -------------------------------------------------------------------------------------------------------


def accepted_text(job: AsyncJob) -> str:
    """How a job begins: with how many workers, or what it waits for."""
    if job.agreed is not None:
        return f"job {job.number}: {count(job.agreed, 'worker')} agreed"
    if job.begins_us > time.time_ns() // 1000:
        return f"job {job.number} waits: it is not to begin before {moment(job.begins_us)} UTC"
    return f"job {job.number} waits: nobody works on {safe(job.kind)} yet"


def update_text(job: AsyncJob, update: Update) -> str:
    """One line, without its end."""
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
    if update.what == "failure" and update.is_final:  # the deadline may have passed: then it is nobody's fault
        had_it = f" (it was with {worker} last)" if update.worker else ""
        return f"failed for good: {safe(update.error)}{had_it}"
    if update.what == "failure":
        return f"{worker} failed: {safe(update.error)}"
    if update.what == "reassigned":
        return f"goes to {worker}"
    return f"{worker} is at {progress_text(update.progress, update.note)}"


def result_text(update: Update) -> str:
    """A result on one line, without the line end that most commands put behind theirs."""
    return safe_payload((update.result or b"").removesuffix(b"\n"))


def progress_text(progress: float | None, note: str) -> str:
    """`50 %, reading`."""
    parts = [] if progress is None else [f"{math.floor(progress * 100)} %"]
    return ", ".join([*parts, safe(note)] if note else parts) or "work"


def ended_text(job: AsyncJob) -> str:
    """How it ended, and why."""
    why = f": {safe(job.reason)}" if job.reason else ""
    return f"job {job.number}: {job.state}{why}"


# -- for programs -----------------------------------------------------------------------------------------------------


class UpdateObject(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What `--json` prints of an update. A result is under the one or the other name."""

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
    """One object with its line end."""
    text, coded = None, None
    if update.result is not None:
        try:
            text = update.result.decode()
        except UnicodeDecodeError:
            coded = base64.b64encode(update.result).decode()
    is_end = update.what in _ENDS
    tells_number = is_end or update.what in ("accepted", "settled")
    found = UpdateObject(
        job=job.number,
        what=update.what,
        agreed=job.agreed if tells_number else None,
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
