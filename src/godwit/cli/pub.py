"""`godwit pub`: publish a message, the lines of standard input, or a file."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    REQUEST_TIMEOUT_S,
    BrokerOption,
    NameOption,
    SecretOption,
    Target,
    TimeoutOption,
    check_qos,
    connected,
    run,
)
from godwit.cli.text import count, safe, size
from godwit.errors import GodwitError, UsageError
from godwit.limits import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from godwit.net.publisher import AsyncPublisher

_LOOKS_LIKE_AN_OPTION: Final = re.compile(r"-[^\d.\s]")


def register(root: typer.Typer) -> None:
    """Add `godwit pub`."""
    root.command(
        "pub",
        epilog="Example: godwit pub home/kitchen/temperature 21.5 --retain",
        context_settings={"ignore_unknown_options": True},  # so that -5.5 is a message
    )(pub)


def pub(
    topic: Annotated[str, typer.Argument(help="Topic to publish to; its levels are separated by /.")],
    message: Annotated[str | None, typer.Argument(help="Payload to publish.", show_default=False)] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Publish each line of standard input as a message.")] = False,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="File to send.")] = None,
    qos: Annotated[
        str,
        typer.Option(
            metavar="0|1|2", help="Delivery: 0 at most once, 1 at least once, 2 exactly once in the log. Files use 2."
        ),
    ] = "1",
    retain: Annotated[
        bool, typer.Option("--retain", help="Keep the last message for later subscribers. An empty message deletes it.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not print how many subscribers were reached.")
    ] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Publish a message, each line of standard input (--lines), or a file (--file).

    The exit code is 0 when the broker has confirmed everything, or with QoS 0 when everything is sent. The number of
    subscribers that the last message reached is printed on stderr.
    """
    from godwit.broker.topics import check_topic

    if (message is not None) + lines + (file is not None) != 1:
        raise UsageError("give exactly one of MESSAGE, --lines and --file FILE")
    if message is not None and _LOOKS_LIKE_AN_OPTION.match(message) and "--" not in sys.argv:
        raise UsageError(f"unknown option {message}; if it is a message, put -- before it")
    quality = check_qos(qos)
    if file is not None and retain:
        raise UsageError("a file cannot be retained; leave out --retain")
    check_topic(topic)
    target = Target.of(broker, name, secret_file, timeout)
    if file is not None:
        check_file(file)
        run(_send_file(target, topic, file, quiet))
    elif lines:
        run(_publish_lines(target, topic, quality, retain, quiet))
    else:
        # Bytes of the command line that are not UTF-8 are published unchanged.
        payload = (message or "").encode("utf-8", "surrogateescape")
        run(_publish(target, topic, payload, quality, retain, quiet), is_brief=True)


def check_file(path: Path) -> None:
    """Check that a path names a regular file, which can be read twice: for its hash, and to send it.

    Raises:
        UsageError: It is not a regular file.
        GodwitError: Reading it failed.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if str(path) == "-":
            raise UsageError("--file does not read standard input; write it to a file first, or use --lines") from None
        raise GodwitError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a folder; send its files one by one")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path} is not a regular file, and has no size; write its content to a file first")


def reached_text(reached: int | None) -> str:
    """Return the result of a publication in words."""
    if reached is None:
        return "sent (QoS 0 is not confirmed)"
    return "reached no subscriber" if reached == 0 else f"reached {count(reached, 'subscriber')}"


async def _publish(target: Target, topic: str, payload: bytes, qos: int, retain: bool, quiet: bool) -> None:
    async with connected(target) as client:
        reached = await client.publish(topic, payload, qos=qos, retain=retain)
        if not quiet:
            typer.echo(reached_text(reached), err=True)


async def _publish_lines(target: Target, topic: str, qos: int, retain: bool, quiet: bool) -> None:
    done = "sent" if qos == 0 else "confirmed"
    publisher: AsyncPublisher | None = None
    try:
        async with connected(target) as client:
            publisher = client.publisher(topic, qos=qos, retain=retain)
            sent = await _send_lines(publisher, shows=not quiet)
    except GodwitError as error:  # the client is closed: no further line will be confirmed
        if publisher is None or not publisher.next_sequence:
            raise
        raise GodwitError(f"{error} ({lines_done(publisher.confirmed_sequence)} {done})") from error
    if not quiet and sent:
        last = "" if qos == 0 else f"; the last one {reached_text(publisher.reached)}"
        typer.echo(f"{count(sent, 'message')} {done}{last}", err=True)
    elif not quiet:
        typer.echo("nothing to publish: standard input was empty", err=True)


def lines_done(number: int) -> str:
    """Return how many lines were published before a failure, in words."""
    if number == 0:
        return "no line was"
    return "the first line was" if number == 1 else f"the first {number:,} lines were"


async def _send_lines(publisher: AsyncPublisher, *, shows: bool) -> int:
    from godwit.cli.progress import LineProgress
    from godwit.cli.streams import Input
    from godwit.errors import BufferFullError

    send = publisher.send
    sent = 0
    with LineProgress(enabled=shows and sys.stderr.isatty() and not sys.stdin.isatty()) as progress:
        async for lines in Input().lines(MAX_MESSAGE_BYTES):
            for line in lines:
                while True:
                    try:
                        send(line)
                        break
                    except BufferFullError:
                        await publisher.ready()
            sent += len(lines)
            progress.show(sent)
        await publisher.flush()
    return sent


async def _send_file(target: Target, topic: str, path: Path, quiet: bool) -> None:
    from godwit.cli.progress import FileProgress

    with FileProgress(enabled=not quiet and sys.stderr.isatty()) as progress:
        checking = f"reading {path.name}"

        def on_progress(done_bytes: int, total_bytes: int) -> None:
            progress.finish(checking)
            progress.show(path.name, done_bytes, total_bytes)

        async with connected(target) as client:
            sent = await client.send_file(
                topic, path, progress=on_progress, hashing=lambda done, total: progress.show(checking, done, total)
            )
    if not quiet:
        earlier = f" ({size(sent.resumed_at_bytes)} of it earlier)" if sent.resumed_at_bytes else ""
        typer.echo(
            f"{safe(sent.name)}: {size(sent.size_bytes)} confirmed{earlier}, {reached_text(sent.reached)}", err=True
        )
