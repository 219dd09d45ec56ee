"""`godwit sub`: print messages as they come, or keep the files that do."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.connecting import (
    DEFAULT_BROKER,
    BrokerOption,
    NameOption,
    SecretOption,
    Target,
    TimeoutOption,
    connected,
    guarded,
    run,
    tell,
)
from godwit.cli.places import read_place
from godwit.cli.text import count as counted
from godwit.cli.text import safe, safe_json
from godwit.errors import TopicError, UsageError
from godwit.limits import MAX_SESSION_EXPIRY_S
from godwit.wire.control_base import Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.client.message import Message
    from godwit.client.subscription import Start
    from godwit.net.connect import AsyncClient
    from godwit.net.inbox import ReceivedFile


MAX_SIZE_DIGITS: Final = 18


def register(root: typer.Typer) -> None:
    """Adds `godwit sub`."""
    root.command("sub", epilog="Example: godwit sub 'home/+/temperature' --count 10")(sub)


def sub(
    filters: Annotated[
        list[str],
        typer.Argument(metavar="FILTER...", help="Topics; + is any one level, # the rest, * one or more levels."),
    ],
    count: Annotated[int | None, typer.Option("--count", "-n", metavar="N", help="End after so many.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, not `topic: payload`.")] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Receive files into this folder; prints their paths.")
    ] = None,
    max_size: Annotated[
        str, typer.Option("--max-size", metavar="SIZE", help="With --save: the largest file to receive.")
    ] = "1GiB",
    max_total: Annotated[
        str,
        typer.Option(
            "--max-total", metavar="SIZE", help="With --save: end when the files received and not moved away have more."
        ),
    ] = "10GiB",
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="WHERE", help="latest, earliest, an offset, or a time such as 2025-03-01T12:00 (UTC)."
        ),
    ] = None,
    cursor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Go on behind what was printed the last time, which the broker keeps for a week under this name.",
        ),
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Print messages as they come: `topic: payload`, one a line.

    What a terminal would act upon is shown as an escape; --json keeps every payload exactly, as `payload_base64` where
    it is not UTF-8. Waits for the broker if it is not there yet, and comes back to it if it is lost. Missed messages
    are told on stderr.
    """
    if count is not None and count < 1:
        raise UsageError(f"--count {count} cannot be; give a number from 1 upward, or leave it out")
    start_at, since = parse_start(start)
    target = Target.of(broker, name, secret_file, timeout)
    if cursor is not None:  # the broker keeps it with a client's name: without one it would be gone with the connection
        target = replace(target, name=name or cursor, session_expiry_s=MAX_SESSION_EXPIRY_S, is_cursor=not name)
    if save is not None:
        if start is not None or cursor is not None:
            raise UsageError("--save has no --from and no --cursor: files are received from now on")
        limits = parse_size("--max-size", max_size), parse_size("--max-total", max_total)
        run(_save(target, filters, save, limits, count, as_json))
    else:
        run(_print(target, filters, count, as_json, start_at, since, cursor))


def parse_start(text: str | None) -> tuple[Start, datetime | None]:
    """A place in the log, or a time."""
    if text is None:
        return None, None
    place = read_place(text)
    if place is None:
        raise UsageError(
            f"--from {text!r} is no place to start at; write latest, earliest, an offset, or a time such as "
            "2025-03-01T12:00"
        )
    return (None, place) if isinstance(place, datetime) else (place, None)


def parse_size(option: str, text: str) -> int:
    """Return the bytes that a size with or without a unit means."""
    from godwit.server.log_sections import SIZES_BYTES, WITH_UNIT

    match = WITH_UNIT.fullmatch(text)
    if match is not None and match[2] in SIZES_BYTES:
        return int(float(match[1]) * SIZES_BYTES[match[2]])
    if text.isascii() and text.isdigit() and len(text) <= MAX_SIZE_DIGITS:
        return int(text)
    raise UsageError(f"{option} {text!r} is no size; write it as 500MB, 10GiB or a number of bytes")


async def _print(
    target: Target,
    filters: list[str],
    count: int | None,
    as_json: bool,
    start: Start,
    since: datetime | None,
    cursor: str | None,
) -> None:
    from godwit.cli.rendering import Lines
    from godwit.cli.streams import Output

    output = Output()
    lines = Lines(as_json=as_json)

    async def show(client: AsyncClient) -> None:
        left = count
        # `keep`: it ends with the connection. A client with a name finds its place again when it comes back.
        subscription = client.subscribe(
            *filters,
            start=start,
            since=since,
            cursor=cursor,
            on_gap=lambda missed: _tell_gap(missed, subscription.replaced),
            keep=True,
        )
        async with subscription as messages:
            place = messages.position
            async for batch in messages.batches():
                shown = batch if left is None else batch[:left]
                await output.write(lines.render(shown))
                # The rest of a batch that --count cuts was handed out, but nobody has seen it: it comes another time.
                place = messages.position if len(shown) == len(batch) else place_behind(shown, place)
                if cursor is not None:
                    await messages.commit(place)
                if left is not None:
                    left -= len(shown)
                    if left == 0:
                        await messages.close(place)
                        return

    async with connected(target) as client:
        try:
            await guarded(show(client), output.until_closed())
        except TopicError as error:
            if error.code != Code.NO_SUCH_TOPIC:
                raise
            raise TopicError(error.code, f"{error}: publish to it first, or create it (godwit topics create)") from None


def place_behind(messages: Sequence[Message], before: int) -> int:
    """Where to read on after these messages, if the place `before` them was that."""
    logged = (message.offset for message in messages if message.offset is not None and not message.retained)
    return max((offset + 1 for offset in logged), default=before)


async def _save(
    target: Target, filters: list[str], folder: Path, limits: tuple[int, int], count: int | None, as_json: bool
) -> None:
    from godwit.cli.progress import FileProgress
    from godwit.cli.streams import Output

    output = Output()

    async def keep(client: AsyncClient, progress: FileProgress) -> None:
        left = count
        receiver = client.receive_files(
            *filters,
            folder=folder,
            progress=progress.show,
            on_problem=tell,
            max_file_bytes=limits[0],
            max_total_bytes=limits[1],
        )
        async with receiver as files:
            async for file in files:
                progress.finish(file.name)
                progress.finish(file.path.name)
                await output.write(file_line(file, as_json=as_json))
                left = None if left is None else left - 1
                if left == 0:
                    return

    with FileProgress(enabled=sys.stderr.isatty()) as progress:
        async with connected(target) as client:
            await guarded(keep(client, progress), output.until_closed())


def file_line(file: ReceivedFile, *, as_json: bool) -> bytes:
    """What is printed of a file: its path, or an object."""
    import msgspec

    if not as_json:
        return f"{safe(str(file.path))}\n".encode()
    fields = {
        "path": str(file.path).encode("utf-8", "replace").decode(),
        "name": file.name,
        "topic": file.topic,
        "publisher": file.publisher,
        "size_bytes": file.size_bytes,
        "sha256": file.sha256.hex(),
    }
    return safe_json(msgspec.json.encode(fields)) + b"\n"


def _tell_gap(missed: int | None, replaced: tuple[int, int] | None) -> None:
    if missed is None and replaced is not None:
        begin, end = replaced
        tell(
            f"the broker has an older copy of its log: what was received at the offsets {begin:,} to {end - 1:,} is no "
            "longer in it, and other messages have these offsets; going on with them"
        )
    elif missed is None:
        tell("may have missed messages, nobody knows how many: the broker has a new log")
    else:
        tell(f"missed up to {counted(missed, 'message')}")  # where it is not known which matched, all are counted
