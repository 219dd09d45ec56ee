"""`godwit job`: give work to whoever volunteers for it, and see what becomes of it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from godwit.cli.connecting import (
    DEFAULT_BROKER,
    TIMEOUT_S,
    BrokerOption,
    SecretOption,
    Target,
    TimeoutOption,
    ask,
    connected,
    run,
)
from godwit.cli.job_text import parse_job, parse_workers
from godwit.errors import UsageError
from godwit.net.job_options import JobOptions

SHOWN_JOBS: Final = 100
_IS_LITERAL: Final = "godwit.cli.job.is_literal"

ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="Who this controller is: it finds its jobs again by this name. Without one it is another each time.",
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Its number.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
UpdatesOption = Annotated[bool, typer.Option("--json", help="One JSON object an update, on standard output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Only what is asked for, and errors.")]
WaitingTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="Give up when the broker is out of reach for so long; 0: never. 10 without --wait, else never.",
        show_default=False,
    ),
]

app = typer.Typer(no_args_is_help=True, help="Give work to whoever volunteers for it, and see what becomes of it.")


class PayloadCommand(TyperCommand):
    """Remembers whether there was a --: what stands behind it is a payload, also if it looks like an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_IS_LITERAL] = "--" in args
        return super().parse_args(ctx, args)


def register(root: typer.Typer) -> None:
    """Adds `godwit job`."""
    root.add_typer(app, name="job")


@app.callback(epilog="Example: godwit job submit resize @photo.png --workers 2 --wait")
def job() -> None:
    """Give work to whoever volunteers for it, and see what becomes of it. `godwit worker` does such work."""


@app.command(
    "submit",
    cls=PayloadCommand,
    epilog="Example: godwit job submit resize @photo.png --workers all --wait",
    context_settings={"ignore_unknown_options": True},  # so that -5 is a payload
)
def submit(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="What kind of work; workers volunteer for kinds.")],
    payload: Annotated[
        str | None,
        typer.Argument(help="What to work on: a text, - for standard input, @FILE for a file.", show_default=False),
    ] = None,
    workers: Annotated[str, typer.Option(metavar="N|all", help="So many workers do it, each once.")] = "1",
    priority: Annotated[int, typer.Option(metavar="P", help="-100 to 100; higher ones go first.")] = 0,
    delay: Annotated[float, typer.Option(metavar="SECONDS", help="Not before so long from now.")] = 0.0,
    deadline: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Fails if it has not ended so long from now.")
    ] = None,
    retries: Annotated[int, typer.Option(metavar="N", help="A task that failed is tried again so often.")] = 3,
    retry_delay: Annotated[
        float, typer.Option("--retry-delay", metavar="SECONDS", help="Before the first retry; it doubles with each.")
    ] = 1.0,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", metavar="SECONDS", help="One attempt of a task may take so long.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Your own word for the job: the same one from the same --name is the same job."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Show progress, print the results.")] = False,
    as_json: UpdatesOption = False,
    quiet: QuietOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    timeout: WaitingTimeoutOption = None,
) -> None:
    """Submit a job; prints its number once the broker has it on disk, or with --wait its results.

    A result is printed as `worker: result`, one a line; --json keeps it exactly. How many workers agreed is told on
    stderr; a job of a kind that nobody works on yet waits. With --wait the exit code is 1 if the job failed or was
    cancelled. Ctrl-C ends the waiting, not the job.
    """
    from godwit.cli.job_submit import Wish, submit_job

    if key is not None and not name:
        raise UsageError(
            "--key needs --name: a key is the controller's own, and without a name each run is another one"
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
    wish = Wish.of(kind, payload, key, options, is_literal=context.meta[_IS_LITERAL])
    patience = timeout if timeout is not None or wait else TIMEOUT_S
    submit_job(Target.of(broker, name, secret_file, patience), wish, wait=wait, as_json=as_json, quiet=quiet)


@app.command("list", epilog="Example: godwit job list --kind resize --state waiting --state running")
def list_jobs(
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only jobs of this kind.")] = None,
    controller: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this client submitted.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only waiting, running, done, failed or cancelled ones; may be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many, the newest; 0: all.")] = SHOWN_JOBS,
    as_json: JsonOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """The jobs that there are, the newest first; those that have ended are kept for an hour.

    The broker's configuration may say otherwise. A narrow terminal shows fewer columns; --json has them all.
    """
    from godwit.cli.job_list import show_jobs
    from godwit.net.job_options import check_states

    states = check_states(state or None)
    if limit < 0:
        raise UsageError(f"--limit {limit} cannot be; give how many jobs to show, or 0 for all")
    most = limit or None
    asked = None if most is None else most + 1  # one more tells that there are more
    found = ask(
        Target.of(broker, name, secret_file, timeout),
        lambda client: client.jobs(kind=kind, controller=controller, states=states, limit=asked),
    )
    show_jobs(found, as_json=as_json, is_all=kind is None and controller is None and states is None, limit=most)


@app.command("show", epilog="Example: godwit job show 7")
def show(
    job: JobArgument,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """One job with its tasks: who has each, how far it is, what went wrong."""
    from godwit.cli.job_list import show_job

    number = parse_job(job)
    info, tasks = ask(Target.of(broker, name, secret_file, timeout), lambda client: client.job_info(number))
    show_job(info, tasks, as_json=as_json)


@app.command("cancel", epilog="Example: godwit job cancel 7 --reason 'the photo was the wrong one'")
def cancel(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="What its workers and whoever watches it are told.")] = "",
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """End a job. Tasks at work are stopped; what is finished stays finished."""
    number = parse_job(job)
    ask(Target.of(broker, name, secret_file, timeout), lambda client: client.cancel_job(number, reason=reason))
    typer.echo(f"cancelled job {number}")


@app.command("watch", epilog="Example: godwit job watch 7")
def watch(
    job: JobArgument,
    as_json: UpdatesOption = False,
    quiet: QuietOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: ControllerOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Follow a job to its end: what it has brought so far, then what comes, as `job submit --wait` shows it.

    The exit code is 1 if the job failed or was cancelled. Comes back to a broker that is lost.
    """
    run(_watch(Target.of(broker, name, secret_file, timeout), parse_job(job), as_json=as_json, quiet=quiet))


async def _watch(target: Target, number: int, *, as_json: bool, quiet: bool) -> None:
    from godwit.cli.job_follow import follow

    async with connected(target) as client:
        await follow(await client.job(number), as_json=as_json, quiet=quiet)
