"""`godwit log`: show a broker's log, export messages, and maintain its file.

All commands work on the file itself, on its own machine, whether a broker runs or not. recover, compact and purge need
the file for themselves and refuse to work while a broker uses it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from godwit.cli.broker import DEFAULT_DATA
from godwit.cli.text import safe
from godwit.errors import UsageError

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        readable=False,  # the command itself reports an unreadable folder
        help="Folder of the broker.",
        show_default="./godwit-data",
    ),
]
FiltersArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILTER]...", help="Only topics that match one of these filters.", show_default="all"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]

app = typer.Typer(no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `godwit log`."""
    root.add_typer(app, name="log")


@app.callback(epilog="Example: godwit log info --data godwit-data")
def log(context: typer.Context, data: DataOption = None) -> None:
    """Show a broker's log, export messages, and maintain its file."""
    context.obj = data


@app.command("info", epilog="Example: godwit log info")
def info(context: typer.Context, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show the log: offsets, times, topics, sizes, and deleted ranges."""
    from godwit.cli.log_content import show_info

    show_info(_folder(context, data), as_json=as_json)


@app.command("tail", epilog="Example: godwit log tail 'home/#' --follow")
def tail(
    context: typer.Context,
    filters: FiltersArgument = None,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", help="Number of messages.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new messages until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line instead of `topic: payload`.")
    ] = False,
    data: DataOption = None,
) -> None:
    """Print the newest messages, the last one last, in the format of `godwit sub`."""
    from godwit.cli.log_content import show_tail

    if count < 0:
        raise UsageError(f"--count {count} is out of range; give a number from 0 upward")
    show_tail(_folder(context, data), filters or [], count, follow=follow, as_json=as_json)


@app.command("export", epilog="Example: godwit log export 'home/#' --from 2025-03-01 --output home.parquet")
def export(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", readable=False, help="File to create.", show_default=False)
    ],
    filters: FiltersArgument = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="parquet|jsonl", help="Format of the file.", show_default="by the name of the file"
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="First position: earliest, an offset, or a time such as 2025-03-01T12:00 (UTC).",
        ),
    ] = "earliest",
    stop: Annotated[
        str, typer.Option("--to", metavar="POSITION", help="Position to end before: latest, an offset, or a time.")
    ] = "latest",
    force: ForceOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    data: DataOption = None,
) -> None:
    """Write messages to a file: Parquet with the columns of the archive, or JSON lines as `godwit sub --json`.

    A time means the time at which the broker received a message. The file gets its name when it is complete; Ctrl-C
    leaves no file behind. The exit code is 1 if damaged messages had to be left out.
    """
    from godwit.cli.log_content import ExportRequest, run_export

    request = ExportRequest(tuple(filters or ()), start, stop, output, form, force)
    run_export(_folder(context, data), request, as_json=as_json)


@app.command("verify", epilog="Example: godwit log verify && echo intact")
def verify(context: typer.Context, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Read the whole file and check every block and every page. The exit code is 1 if anything is damaged."""
    from godwit.cli.log_maintenance import run_verify

    run_verify(_folder(context, data), as_json=as_json)


@app.command("recover", epilog="Example: godwit log recover --data godwit-data")
def recover(context: typer.Context, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Save all intact messages of a damaged log into a new log, and keep the damaged file beside it.

    Stop the broker first. Lost offsets are printed, and subscribers that reach them are notified of the gap. An intact
    log is left unchanged.
    """
    from godwit.cli.log_maintenance import run_recover

    run_recover(_folder(context, data), as_json=as_json)


@app.command("compact", epilog="Example: godwit log compact --data godwit-data")
def compact(context: typer.Context, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Return the space of deleted messages to the file system. Stop the broker first.

    Needs room for a second copy of the remaining messages while it works.
    """
    from godwit.cli.log_maintenance import run_compact

    run_compact(_folder(context, data), as_json=as_json)


@app.command("purge", epilog="Example: godwit log purge 'home/+/debug' --yes")
def purge(
    context: typer.Context,
    filters: Annotated[list[str], typer.Argument(metavar="FILTER...", help="Topics whose messages are deleted.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete all messages of the topics that match, for good. Stop the broker first.

    The retained messages of these topics are deleted, too. Offsets are not used again, and subscribers that have not
    read the messages are notified of the gap. `godwit log compact` returns the space to the file system.
    """
    from godwit.broker.topics import check_filter
    from godwit.cli.log_maintenance import run_purge

    for filter in filters:
        check_filter(filter)
    folder = _folder(context, data)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("purge deletes messages for good: confirm it with --yes")
        typer.confirm(f"Delete all messages on {safe(', '.join(filters))} in {safe(str(folder))}?", abort=True)
    run_purge(folder, filters, as_json=as_json)


@app.command("backup", epilog="Example: godwit log backup --output godwit-backup")
def backup(
    context: typer.Context,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", readable=False, help="Folder to create.", show_default=False),
    ],
    force: ForceOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the log, even while a broker writes to it, into a folder on which a broker can be started.

    Blocks are copied unchanged, damaged ones too: `godwit log verify --data DIR` checks the copy.
    """
    from godwit.cli.log_maintenance import run_backup

    run_backup(_folder(context, data), output, force=force, as_json=as_json)


def _folder(context: typer.Context, data: Path | None) -> Path:
    """Return the folder from the option after the subcommand, else from the one before it."""
    before: Path | None = context.obj
    return data or before or Path(DEFAULT_DATA)
