"""`godwit sub`: print messages as they arrive, or save files."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    BrokerOption,
    EndlessTimeoutOption,
    NameOption,
    SecretOption,
    Target,
    connected,
    guarded,
    print_notice,
    run,
)
from godwit.cli.text import count as counted
from godwit.cli.text import parse_position, safe, safe_json
from godwit.errors import TopicError, UsageError
from godwit.limits import MAX_SESSION_EXPIRY_S
from godwit.wire.control_base import Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.client.message import Message
    from godwit.client.subscription import Start
    from godwit.net.client import AsyncClient
    from godwit.net.file_inbox import ReceivedFile


MAX_SIZE_DIGITS: Final = 18


def register(root: typer.Typer) -> None:
    """Add `godwit sub`."""
    root.command("sub", epilog="Example: godwit sub 'home/+/temperature' --count 10")(sub)


def sub(
    filters: Annotated[
        list[str],
        typer.Argument(metavar="FILTER...", help="Topics; + matches one level, # the rest, * one or more levels."),
    ],
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", metavar="N", help="End after this many messages or files.", show_default="no limit"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line instead of `topic: payload`.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Receive files into this folder and print their paths.")
    ] = None,
    max_size: Annotated[
        str, typer.Option("--max-size", metavar="SIZE", help="With --save: size of the largest file to accept.")
    ] = "1GiB",
    max_total: Annotated[
        str,
        typer.Option(
            "--max-total",
            metavar="SIZE",
            help="With --save: end when the received files in the folder exceed this size.",
        ),
    ] = "10GiB",
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Start at earliest, latest, an offset, or a time such as 2025-03-01T12:00 (UTC).",
            show_default="latest",
        ),
    ] = None,
    cursor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Continue after the last printed message; the broker stores that position for a week under this name.",
        ),
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    timeout: EndlessTimeoutOption = None,
) -> None:
    """Print messages as they arrive, as `topic: payload`, one per line.

    Characters that a terminal would act upon are printed as escapes. --json keeps every payload exactly, as
    `payload_base64` where it is not UTF-8. The command waits for a broker that is not running yet and reconnects when
    the connection is lost. Missed messages are reported on stderr.
    """
    if count is not None and count < 1:
        raise UsageError(f"--count {count} is out of range; give a number from 1 upward, or leave it out")
    start_at, since = parse_start(start)
    target = Target.of(broker, name, secret_file, timeout)
    if cursor is not None:  # a cursor belongs to a named client; without a name it would end with the connection
        target = replace(target, name=name or cursor, session_expiry_s=MAX_SESSION_EXPIRY_S, is_cursor=not name)
    if save is not None:
        if start is not None or cursor is not None:
            raise UsageError("--save does not accept --from or --cursor: files are received from now on")
        limits = parse_size("--max-size", max_size), parse_size("--max-total", max_total)
        run(_save(target, filters, save, limits, count, as_json))
    else:
        run(_print(target, filters, count, as_json, start_at, since, cursor))


def parse_start(text: str | None) -> tuple[Start, datetime | None]:
    """Return the position or the time to start at.

    Raises:
        UsageError: The text is neither.
    """
    if text is None:
        return None, None
    position = parse_position(text)
    if position is None:
        raise UsageError(
            f"--from {text!r} is not a position; write latest, earliest, an offset, or a time such as 2025-03-01T12:00"
        )
    return (None, position) if isinstance(position, datetime) else (position, None)


def parse_size(option: str, text: str) -> int:
    """Return the number of bytes that a size names, with or without a unit.

    Raises:
        UsageError: The text is not a size.
    """
    from godwit.server.configuration import SIZES_BYTES, WITH_UNIT

    match = WITH_UNIT.fullmatch(text)
    if match is not None and match[2] in SIZES_BYTES:
        return int(float(match[1]) * SIZES_BYTES[match[2]])
    if text.isascii() and text.isdigit() and len(text) <= MAX_SIZE_DIGITS:
        return int(text)
    raise UsageError(f"{option} {text!r} is not a size; write it as 500MB, 10GiB or a number of bytes")


async def _print(
    target: Target,
    filters: list[str],
    count: int | None,
    as_json: bool,
    start: Start,
    since: datetime | None,
    cursor: str | None,
) -> None:
    from godwit.cli.message_lines import MessageFormatter
    from godwit.cli.streams import Output

    output = Output()
    lines = MessageFormatter(as_json=as_json)

    async def show(client: AsyncClient) -> None:
        left = count
        # `keep`: the subscription ends with the session, so a named client continues when it connects again.
        subscription = client.subscribe(
            *filters,
            start=start,
            since=since,
            cursor=cursor,
            on_gap=lambda missed: _report_gap(missed, subscription.replaced),
            keep=True,
        )
        async with subscription as messages:
            position = messages.position
            async for batch in messages.batches():
                shown = batch if left is None else batch[:left]
                await output.write(lines.render(shown))
                # Messages of the batch beyond --count were not printed: they are delivered again the next time.
                position = messages.position if len(shown) == len(batch) else position_after(shown, position)
                if cursor is not None:
                    await messages.commit(position)
                if left is not None:
                    left -= len(shown)
                    if left == 0:
                        await messages.close(position)
                        return

    async with connected(target) as client:
        try:
            await guarded(show(client), output.until_closed())
        except TopicError as error:
            if error.code != Code.NO_SUCH_TOPIC:
                raise
            raise TopicError(error.code, f"{error}: publish to it first, or create it (godwit topics create)") from None


def position_after(messages: Sequence[Message], before: int) -> int:
    """Return the position after these messages, or `before` if none of them is in the log."""
    logged = (message.offset for message in messages if message.offset is not None and not message.retained)
    return max((offset + 1 for offset in logged), default=before)


async def _save(
    target: Target, filters: list[str], folder: Path, limits: tuple[int, int], count: int | None, as_json: bool
) -> None:
    from godwit.cli.progress import FileProgress
    from godwit.cli.streams import Output

    output = Output()

    async def receive(client: AsyncClient, progress: FileProgress) -> None:
        left = count
        receiver = client.receive_files(
            *filters,
            folder=folder,
            progress=progress.show,
            on_problem=print_notice,
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
            await guarded(receive(client, progress), output.until_closed())


def file_line(file: ReceivedFile, *, as_json: bool) -> bytes:
    """Return the line printed for a received file: its path, or a JSON object."""
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


def _report_gap(missed: int | None, replaced: tuple[int, int] | None) -> None:
    if missed is None and replaced is not None:
        begin, end = replaced
        print_notice(
            f"the broker has an older copy of its log: the messages received at the offsets {begin:,} to {end - 1:,} "
            "are not in it, and other messages have these offsets; continuing with them"
        )
    elif missed is None:
        print_notice("may have missed messages, an unknown number: the broker has a new log")
    else:
        print_notice(
            f"missed up to {counted(missed, 'message')}"
        )  # if the broker does not know which ones matched, it counts all
