"""`godwit job`: submit work, and list, follow and cancel jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    REQUEST_TIMEOUT_S,
    TIMEOUT_HELP,
    TIMEOUT_METAVAR,
    ArqOption,
    BrokerOption,
    EndlessTimeoutOption,
    SecretOption,
    Target,
    TimeoutOption,
    ask,
    connected,
    parse_timeout,
    run,
)
from godwit.cli.main import IS_LITERAL, PayloadCommand
from godwit.cli.streams import PayloadLimit, read_payload
from godwit.cli.text import count, safe, safe_json
from godwit.errors import JobError, UsageError
from godwit.limits import MAX_JOB_PAYLOAD_BYTES, MAX_PRIORITY, MAX_RETRIES, MAX_TASKS_OF_JOB
from godwit.net.job_options import MAX_JOB_NUMBER, MAX_TIME_S, JobOptions, Workers

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.net.jobs import AsyncJob


SHOWN_JOBS: Final = 100

ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="Name of this controller, under which it finds its jobs again; else each run is a new controller.",
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Number of the job.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
UpdatesOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per update on standard output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]
ResultsOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        readable=False,
        help="Write each result to a file in this folder, and print the paths instead of the results.",
    ),
]
WaitingTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        parser=parse_timeout,
        metavar=TIMEOUT_METAVAR,
        help=TIMEOUT_HELP,
        show_default="10, with --wait never",
    ),
]

app = typer.Typer(no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `godwit job`."""
    root.add_typer(app, name="job")


@app.callback(epilog="Example: godwit job submit resize @photo.png --workers 2 --wait")
def job() -> None:
    """Submit work to the workers that volunteer for it, and follow it. `godwit worker` does such work."""


@app.command(
    "submit",
    cls=PayloadCommand,
    epilog="Example: godwit job submit resize @photo.png --workers all --wait",
    context_settings={"ignore_unknown_options": True},  # so that -5 is a payload
)
def submit(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="Kind of work; workers volunteer for kinds.")],
    payload: Annotated[
        str | None,
        typer.Argument(help="Input of the job: a text, - for standard input, or @FILE for a file.", show_default=False),
    ] = None,
    workers: Annotated[str, typer.Option(metavar="N|all", help="Number of workers that each do the job once.")] = "1",
    priority: Annotated[int, typer.Option(metavar="P", help="Priority from -100 to 100; higher starts first.")] = 0,
    delay: Annotated[
        float, typer.Option(metavar="SECONDS", help="Start no earlier than this many seconds from now.")
    ] = 0.0,
    deadline: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Fail if the job has not ended this many seconds from now.", show_default="none"
        ),
    ] = None,
    retries: Annotated[int, typer.Option(metavar="N", help="Number of times that a failed task is retried.")] = 3,
    retry_delay: Annotated[
        float,
        typer.Option("--retry-delay", metavar="SECONDS", help="Pause before the first retry; doubles with each retry."),
    ] = 1.0,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="Longest time that one attempt of a task may take.",
            show_default="none",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Key of the job: submitting the same key under the same --name again returns the same job.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Show progress and print the results.")] = False,
    output: ResultsOption = None,
    as_json: UpdatesOption = False,
    quiet: QuietOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: WaitingTimeoutOption = None,
) -> None:
    """Submit a job; print its number once the broker has stored it, or with --wait its results.

    A result is printed as `worker: result`, one per line; --json and --output keep it exactly. The number of workers
    that agreed is printed on stderr. A job of a kind without workers waits. With --wait the exit code is 1 if the job
    failed or was cancelled. Ctrl-C ends the waiting, not the job.
    """
    if key is not None and not name:
        raise UsageError(
            "--key needs --name: keys belong to a controller, and without a name each run is a new controller"
        )
    options = JobOptions(
        workers=parse_workers(workers),
        priority=priority,
        delay_s=delay,
        deadline_s=deadline,
        retries=retries,
        retry_delay_s=retry_delay,
        time_limit_s=time_limit,
    )
    request = SubmitRequest.of(kind, payload, key, options, is_literal=context.meta[IS_LITERAL])
    wait = wait or output is not None
    timeout_s = timeout if timeout is not None or wait else REQUEST_TIMEOUT_S
    target = Target.of(broker, name, secret_file, timeout_s, arq)
    submit_job(target, request, wait=wait, as_json=as_json, quiet=quiet, output=output)


@app.command("list", epilog="Example: godwit job list --kind resize --state waiting --state running")
def list_jobs(
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="List only jobs of this kind.")] = None,
    controller: Annotated[
        str | None, typer.Option(metavar="NAME", help="List only jobs that this client submitted.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="List only waiting, running, done, failed or cancelled jobs; may be repeated."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", help="Number of jobs to list, the newest first; 0: all.")
    ] = SHOWN_JOBS,
    as_json: JsonOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """List the jobs, the newest first. Ended jobs are listed for an hour, unless the broker's configuration differs.

    A narrow terminal shows fewer columns; --json has all.
    """
    from godwit.cli.job_view import show_jobs
    from godwit.net.job_options import check_states

    states = check_states(state or None)
    if limit < 0:
        raise UsageError(f"--limit {limit} is out of range; give the number of jobs to list, or 0 for all")
    most = limit or None
    asked = None if most is None else most + 1  # one more shows whether there are more
    found = ask(
        Target.of(broker, name, secret_file, timeout, arq),
        lambda client: client.jobs(kind=kind, controller=controller, states=states, limit=asked),
    )
    show_jobs(found, as_json=as_json, is_all=kind is None and controller is None and states is None, limit=most)


@app.command("show", epilog="Example: godwit job show 7")
def show(
    job: JobArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Show one job with its tasks: the worker, progress and last error of each."""
    from godwit.cli.job_view import show_job

    number = parse_job(job)
    info, tasks = ask(Target.of(broker, name, secret_file, timeout, arq), lambda client: client.job_info(number))
    show_job(info, tasks, as_json=as_json)


@app.command("results", epilog="Example: godwit job results 7 --output results")
def results(
    job: JobArgument,
    output: ResultsOption = None,
    as_json: UpdatesOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Print the results that a job has so far, as `worker: result`, or with --output write them to files.

    --json and --output keep them exactly. `job watch` waits for the others.
    """
    from godwit.cli.job_view import show_results

    number = parse_job(job)
    target = Target.of(broker, name, secret_file, timeout, arq)
    run(show_results(target, number, as_json=as_json, folder=output))


@app.command("cancel", epilog="Example: godwit job cancel 7 --reason 'the photo was the wrong one'")
def cancel(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", help="Numbers of the jobs.", show_default=False)
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Cancel all waiting and running jobs of this kind.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Text for the workers and the watchers of the job.")] = "",
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Cancel jobs. Running tasks are stopped; finished tasks keep their results."""
    from godwit.broker.topics import check_kind

    if bool(jobs) == (kind is not None):
        raise UsageError("give the numbers of the jobs, or --kind KIND")
    if kind is not None:
        check_kind(kind)
    numbers = [parse_job(job) for job in jobs or ()]
    target = Target.of(broker, name, secret_file, timeout, arq)
    cancelled = ask(target, lambda client: _cancel(client, numbers, kind, reason))
    if kind is not None:
        typer.echo(f"cancelled {count(len(cancelled), 'job')} of the kind {safe(kind)}")
        return
    for number in cancelled:
        typer.echo(f"cancelled job {number}")


async def _cancel(client: AsyncClient, numbers: Sequence[int], kind: str | None, reason: str) -> list[int]:
    """Cancel these jobs, or all jobs of a kind that have not ended. Return the numbers of the cancelled ones."""
    if kind is None:
        for number in numbers:
            await client.cancel_job(number, reason=reason)
        return list(numbers)
    cancelled: list[int] = []
    for info in await client.jobs(kind=kind, states=("waiting", "running")):
        try:
            await client.cancel_job(info.job, reason=reason)
        except JobError:  # it has ended meanwhile
            continue
        cancelled.append(info.job)
    return cancelled


@app.command("retry", epilog="Example: godwit job retry 7 --wait")
def retry(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", help="Numbers of the jobs.", show_default=False)
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Retry all failed jobs of this kind.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Show progress and print the results; for one job.")
    ] = False,
    output: ResultsOption = None,
    as_json: UpdatesOption = False,
    quiet: QuietOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: WaitingTimeoutOption = None,
) -> None:
    """Submit jobs that failed or were cancelled once more, with their payloads and options, as new jobs.

    The number of each new job is printed once the broker has stored it. The broker knows ended jobs for an hour, unless
    its configuration differs.
    """
    from godwit.broker.topics import check_kind
    from godwit.cli.tables import show_objects

    if bool(jobs) == (kind is not None):
        raise UsageError("give the numbers of the jobs, or --kind KIND")
    if kind is not None:
        check_kind(kind)
    numbers = [parse_job(job) for job in jobs or ()]
    wait = wait or output is not None
    if wait and len(numbers) != 1:
        raise UsageError("--wait and --output follow one job: give one number")
    timeout_s = timeout if timeout is not None or wait else REQUEST_TIMEOUT_S
    target = Target.of(broker, name, secret_file, timeout_s, arq)
    if wait:
        run(_retry_and_follow(target, numbers[0], as_json=as_json, quiet=quiet, output=output))
        return
    retried = ask(target, lambda client: _retry(client, numbers, kind))
    if as_json:
        show_objects([{"job": after, "retry_of": before} for before, after in retried])
        return
    for before, after in retried:
        typer.echo(str(after) if quiet else f"job {after} retries job {before}")
    if not retried and not quiet:
        typer.echo(f"no job of the kind {safe(kind or '')} has failed", err=True)


async def _retry(client: AsyncClient, numbers: Sequence[int], kind: str | None) -> list[tuple[int, int]]:
    """Retry these jobs, or all failed jobs of a kind. Return the number of each job and of the one that retries it."""
    if kind is not None:
        numbers = [info.job for info in reversed(await client.jobs(kind=kind, states=("failed",)))]
    return [(number, (await client.retry_job(number)).number) for number in numbers]


async def _retry_and_follow(target: Target, number: int, *, as_json: bool, quiet: bool, output: Path | None) -> None:
    from godwit.cli.job_view import follow

    async with connected(target) as client:
        await follow(await client.retry_job(number), as_json=as_json, quiet=quiet, folder=output)


@app.command("watch", epilog="Example: godwit job watch 7")
def watch(
    job: JobArgument,
    output: ResultsOption = None,
    as_json: UpdatesOption = False,
    quiet: QuietOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: EndlessTimeoutOption = None,
) -> None:
    """Follow a job to its end: its results so far, then new ones, printed as by `job submit --wait`.

    The exit code is 1 if the job failed or was cancelled. The command reconnects to a broker that is lost.
    """
    target = Target.of(broker, name, secret_file, timeout, arq)
    run(_watch(target, parse_job(job), as_json=as_json, quiet=quiet, output=output))


async def _watch(target: Target, number: int, *, as_json: bool, quiet: bool, output: Path | None) -> None:
    from godwit.cli.job_view import follow

    async with connected(target) as client:
        await follow(await client.job(number), as_json=as_json, quiet=quiet, folder=output)


# -- arguments --------------------------------------------------------------------------------------------------------


JOB_PAYLOAD: Final = PayloadLimit(
    MAX_JOB_PAYLOAD_BYTES,
    f"{MAX_JOB_PAYLOAD_BYTES:,} bytes, the largest payload of a job; send it as a file (godwit pub --file), and name "
    "that in the job",
)


@dataclass(frozen=True)
class SubmitRequest:
    """A job to submit."""

    kind: str
    payload: bytes = b""
    key: str | None = None
    options: JobOptions = field(default_factory=JobOptions)

    @classmethod
    def of(cls, kind: str, payload: str | None, key: str | None, options: JobOptions, *, is_literal: bool) -> Self:
        """Return the request that the arguments of the command line make.

        Raises:
            UsageError: An argument is invalid. Nothing was read or sent.
        """
        from godwit.broker.topics import check_kind

        check_kind(kind)
        _check_number("--priority", options.get("priority", 0), -MAX_PRIORITY, MAX_PRIORITY)
        _check_number("--retries", options.get("retries", 0), 0, MAX_RETRIES)
        delay_s, deadline_s = options.get("delay_s", 0.0), options.get("deadline_s")
        check_seconds("--delay", delay_s, least_s=0.0)
        check_seconds("--deadline", deadline_s)
        check_seconds("--retry-delay", options.get("retry_delay_s"), least_s=0.0)
        check_seconds("--time-limit", options.get("time_limit_s"))
        if deadline_s is not None and deadline_s <= delay_s:
            raise UsageError(f"--deadline {deadline_s:g} ends before --delay {delay_s:g}; give a later deadline")
        return cls(kind, read_payload(payload, JOB_PAYLOAD, is_literal=is_literal), key, options)

    async def submit(self, client: AsyncClient) -> AsyncJob:
        return await client.submit(self.kind, self.payload, key=self.key, **self.options)


def _check_number(option: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise UsageError(f"{option} {number} is out of range; give a number from {least:,} to {most:,}")


def submit_job(
    target: Target, request: SubmitRequest, *, wait: bool, as_json: bool, quiet: bool, output: Path | None = None
) -> None:
    """Submit a job, and print its number or with `wait` its results. `output`: a folder for the results."""
    if wait:
        run(_submit_and_follow(target, request, as_json=as_json, quiet=quiet, output=output))
        return
    job = ask(target, request.submit)
    if as_json:
        import msgspec

        fields = {"job": job.number, "key": job.key, "kind": job.kind, "state": job.state, "agreed": job.agreed}
        typer.echo(safe_json(msgspec.json.encode(fields)).decode())
        return
    typer.echo(job.number)
    if not quiet:
        from godwit.cli.job_view import accepted_text

        typer.echo(accepted_text(job), err=True)


async def _submit_and_follow(
    target: Target, request: SubmitRequest, *, as_json: bool, quiet: bool, output: Path | None
) -> None:
    from godwit.cli.job_view import follow, prepare_folder

    prepare_folder(output)
    async with connected(target) as client:
        await follow(await request.submit(client), as_json=as_json, quiet=quiet, folder=output)


def parse_workers(text: str) -> Workers:
    """Return the number of workers that a text names, or "all".

    Raises:
        UsageError: It is out of range.
    """
    if text == "all":
        return "all"
    if 1 <= _parse_number(text) <= MAX_TASKS_OF_JOB:
        return int(text)
    raise UsageError(f"--workers {text!r} is out of range; give a number from 1 to {MAX_TASKS_OF_JOB:,}, or all")


def parse_job(text: str) -> int:
    """Return the number of a job.

    Raises:
        UsageError: The text is not the number of a job.
    """
    if 1 <= _parse_number(text) <= MAX_JOB_NUMBER:
        return int(text)
    raise UsageError(f"{text[:40]!r} is not the number of a job; job list shows the numbers")


def _parse_number(text: str) -> int:
    """Return a whole number, or 0 for any other text and for a number with too many digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_JOB_NUMBER)) else 0


def check_seconds(option: str, seconds: float | None, *, least_s: float = 0.001) -> None:
    """Check a duration of a job.

    Raises:
        UsageError: It is out of range.
    """
    if seconds is not None and not (least_s <= seconds <= MAX_TIME_S and math.isfinite(seconds)):
        raise UsageError(f"{option} {seconds:g} is out of range; give seconds, from {least_s:g} to {MAX_TIME_S:,.0f}")
