"""`godwit log`: look into a broker's log, take messages out of it, and keep its file in order.

All of it works on the file itself, on the machine where it lies, whether a broker runs or not; what needs the file for
itself (recover, compact) refuses to work beside a broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from godwit.cli.broker import DEFAULT_DATA
from godwit.errors import UsageError

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        readable=False,  # what is wrong with it is told in our own words
        help="The broker's folder; ./godwit-data unless given.",
        show_default=False,
    ),
]
FiltersArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILTER", help="Only topics that match; all unless given.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is there.")]

app = typer.Typer(no_args_is_help=True, help="Look into a broker's log, export it, and keep its file in order.")


def register(root: typer.Typer) -> None:
    """Adds `godwit log`."""
    root.add_typer(app, name="log")


@app.callback(epilog="Example: godwit log info --data godwit-data")
def log(context: typer.Context, data: DataOption = None) -> None:
    """Look into a broker's log, export it, and keep its file in order."""
    context.obj = data


@app.command("info", epilog="Example: godwit log info")
def info(context: typer.Context, data: DataOption = None, as_json: JsonOption = False) -> None:
    """What is in the log: offsets, times, topics, sizes, and what was deleted."""
    from godwit.cli.log_info import show_info

    show_info(_folder(context, data), as_json=as_json)


@app.command("tail", epilog="Example: godwit log tail 'home/#' --follow")
def tail(
    context: typer.Context,
    filters: FiltersArgument = None,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", help="How many.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what a broker adds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, not `topic: payload`.")] = False,
    data: DataOption = None,
) -> None:
    """Print the newest messages, the last one last, as `godwit sub` prints them."""
    from godwit.cli.log_tail import show_tail

    if count < 0:
        raise UsageError(f"--count {count} cannot be; give a number from 0 upward")
    show_tail(_folder(context, data), filters or [], count, follow=follow, as_json=as_json)


@app.command("export", epilog="Example: godwit log export 'home/#' --from 2025-03-01 --output home.parquet")
def export(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", readable=False, help="Where to.", show_default=False)
    ],
    filters: FiltersArgument = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="parquet|jsonl", help="By the name of the file unless given.", show_default=False
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="earliest, an offset, or a time such as 2025-03-01T12:00 (UTC)."),
    ] = "earliest",
    stop: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="latest, or the offset or the time before which to end.")
    ] = "latest",
    force: ForceOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Tell what was written as one JSON object.")] = False,
    data: DataOption = None,
) -> None:
    """Write messages to a file: Parquet with the columns of the archive, or a line of JSON each as `godwit sub --json`.

    A time means when the broker received a message. The file gets its name when all is in it; Ctrl-C leaves nothing
    behind. The exit code is 1 if damaged messages had to be left out.
    """
    from godwit.cli.log_export import Order, run_export

    order = Order(tuple(filters or ()), start, stop, output, form, force)
    run_export(_folder(context, data), order, as_json=as_json)


@app.command("verify", epilog="Example: godwit log verify && echo intact")
def verify(context: typer.Context, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Read the whole file and check every block and every page. The exit code is 1 if something is damaged."""
    from godwit.cli.log_upkeep import run_verify

    run_verify(_folder(context, data), as_json=as_json)


@app.command("recover", epilog="Example: godwit log recover --data godwit-data")
def recover(context: typer.Context, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Save everything that is intact of a damaged log into a new one; the damaged file is kept beside it.

    Stop the broker first. What could not be saved is told, and subscribers that reach it are told that they missed it.
    A log that is sound is left as it is.
    """
    from godwit.cli.log_upkeep import run_recover

    run_recover(_folder(context, data), as_json=as_json)


@app.command("compact", epilog="Example: godwit log compact --data godwit-data")
def compact(context: typer.Context, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Give the space of deleted messages back to the file system. Stop the broker first.

    Needs room for a second copy of what is left while it works.
    """
    from godwit.cli.log_upkeep import run_compact

    run_compact(_folder(context, data), as_json=as_json)


@app.command("backup", epilog="Example: godwit log backup --output godwit-backup")
def backup(
    context: typer.Context,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", readable=False, help="The folder to make.", show_default=False),
    ],
    force: ForceOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the log, also while a broker writes to it, into a folder that a broker can be started on.

    Blocks are copied as they are, damaged ones too: `godwit log verify --data DIR` checks the copy.
    """
    from godwit.cli.log_upkeep import run_backup

    run_backup(_folder(context, data), output, force=force, as_json=as_json)


def _folder(context: typer.Context, data: Path | None) -> Path:
    """From the option behind the command, or else the one before it."""
    before: Path | None = context.obj
    return data or before or Path(DEFAULT_DATA)
