"""`godwit pub`: publish a message, the lines of standard input, or a file."""

from __future__ import annotations

import asyncio
import stat
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    REQUEST_TIMEOUT_S,
    ArqOption,
    BrokerOption,
    NameOption,
    SecretOption,
    Target,
    TimeoutOption,
    WillOptions,
    WillPayloadOption,
    WillQosOption,
    WillRetainOption,
    WillTopicOption,
    check_qos,
    connected,
    run,
)
from godwit.cli.main import IS_LITERAL, PayloadCommand
from godwit.cli.streams import PayloadLimit, print_error_line, read_payload
from godwit.cli.text import count, safe, size
from godwit.errors import GodwitError, UsageError
from godwit.limits import MAX_LIFETIME_US, MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from godwit.client.properties import MessageOptions
    from godwit.net.publisher import AsyncPublisher

MESSAGE_LIMIT: Final = PayloadLimit(
    MAX_MESSAGE_BYTES, f"{MAX_MESSAGE_BYTES:,} bytes, the largest size of a message; send it with --file"
)
MAX_INTERVAL_S: Final = 86400.0


@dataclass(frozen=True)
class PublishPlan:
    """What to publish, and how often."""

    topic: str
    qos: int = 1
    retain: bool = False
    quiet: bool = False
    repeat: int = 1
    interval_s: float = 0.0
    options: MessageOptions = field(default_factory=dict)  # type: ignore[assignment]  # a dict, imported late


def register(root: typer.Typer) -> None:
    """Add `godwit pub`."""
    root.command(
        "pub",
        cls=PayloadCommand,
        epilog="Example: godwit pub home/kitchen/temperature 21.5 --retain",
        context_settings={"ignore_unknown_options": True},  # so that -5.5 is a message
    )(pub)


def pub(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Topic to publish to; its levels are separated by /.")],
    message: Annotated[
        str | None,
        typer.Argument(
            help="Payload to publish: a text, - for standard input, or @FILE for the content of a file.",
            show_default=False,
        ),
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", "-s", help="Publish all of standard input as one message, as - does.")
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", "-l", help="Publish each line of standard input as a message.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="File of any size to send; sub --save receives it.")
    ] = None,
    qos: Annotated[
        str,
        typer.Option(
            metavar="0|1|2", help="Delivery: 0 at most once, 1 at least once, 2 exactly once in the log. Files use 2."
        ),
    ] = "1",
    retain: Annotated[
        bool, typer.Option("--retain", help="Keep the last message for later subscribers. An empty message deletes it.")
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="Header of the message; give it again for each.",
            show_default=False,
        ),
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--content-type", metavar="TYPE", help="Type of the payload, such as text/csv.")
    ] = None,
    reply_to: Annotated[
        str | None, typer.Option("--reply-to", metavar="TOPIC", help="Topic for replies to the message.")
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Deliver the message to no subscriber after this time.", show_default=False
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", help="Publish the message this many times; 0: until Ctrl-C.")] = 1,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="With --repeat: time between two messages.")] = 0.0,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not print how many subscribers were reached.")
    ] = False,
    will_topic: WillTopicOption = None,
    will_payload: WillPayloadOption = None,
    will_qos: WillQosOption = "1",
    will_retain: WillRetainOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Publish a message, each line of standard input (--lines), or a file (--file).

    MESSAGE is a text, - for standard input, or @FILE for the content of a file. After -- it is a text whatever it is:
    use that for texts of others.

    The exit code is 0 when the broker has confirmed everything, or with QoS 0 when everything is sent. The number of
    subscribers that the last message reached is printed on stderr. Ctrl-C prints how many messages were confirmed.
    """
    from godwit.broker.topics import check_topic

    if (message is not None) + stdin + lines + (file is not None) != 1:
        raise UsageError("give exactly one of MESSAGE, --stdin, --lines and --file FILE")
    if repeat < 0:
        raise UsageError(f"--repeat {repeat} is out of range; give a number from 1 upward, or 0 to repeat until Ctrl-C")
    if not 0 <= interval <= MAX_INTERVAL_S:
        raise UsageError(f"--interval {interval:g} is out of range; give seconds from 0 to {MAX_INTERVAL_S:,.0f}")
    if interval and repeat == 1:
        raise UsageError("--interval is the time between repetitions: add --repeat")
    if repeat != 1 and (lines or file is not None):
        raise UsageError("--repeat is for one message: leave it out with --lines and --file")
    quality = check_qos(qos)
    if file is not None and retain:
        raise UsageError("a file cannot be retained; leave out --retain")
    options = message_options(header, content_type, reply_to, expires)
    if file is not None and options:
        raise UsageError(
            "a file has no headers or expiry; leave out --header, --content-type, --reply-to and --expires"
        )
    check_topic(topic)
    target = Target.of(broker, name, secret_file, timeout, arq)
    target = replace(target, will=WillOptions(will_topic, will_payload, will_qos, will_retain).will())
    plan = PublishPlan(topic, quality, retain, quiet, repeat, interval, options)
    if file is not None:
        check_file(file)
        run(_send_file(target, topic, file, quiet))
    elif lines:
        run(_publish_lines(target, plan))
    else:
        is_literal = not stdin and context.meta[IS_LITERAL]
        payload = read_payload("-" if stdin else message, MESSAGE_LIMIT, is_literal=is_literal)
        if repeat == 1:
            run(_publish(target, plan, payload), is_brief=True)
        else:
            run(_publish_repeatedly(target, plan, payload))


def message_options(
    headers: list[str] | None, content_type: str | None, reply_to: str | None = None, expires_s: float | None = None
) -> MessageOptions:
    """Return the properties of a message from the options of a command, without the missing ones.

    Raises:
        UsageError: One of them is invalid.
    """
    from godwit.client.properties import MessageOptions, make_properties

    options = MessageOptions()
    if headers:
        pairs = []
        for text in headers:
            name, separator, value = text.partition("=")
            if not separator or not name:
                raise UsageError(f"--header {text[:80]!r} is not NAME=VALUE, as in --header unit=C")
            pairs.append((name, value))
        options["headers"] = pairs
    if content_type is not None:
        options["content_type"] = content_type
    if reply_to is not None:
        options["reply_to"] = reply_to
    if expires_s is not None:
        if not 0 < expires_s <= MAX_LIFETIME_US // 1_000_000:
            raise UsageError(
                f"--expires {expires_s:g} is out of range; give seconds above 0, up to {MAX_LIFETIME_US // 1_000_000:,}"
            )
        options["expires_s"] = expires_s
    make_properties(**options)
    return options


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


async def _publish(target: Target, plan: PublishPlan, payload: bytes) -> None:
    async with connected(target) as client:
        reached = await client.publish(plan.topic, payload, qos=plan.qos, retain=plan.retain, **plan.options)
        if not plan.quiet:
            typer.echo(reached_text(reached), err=True)


async def _publish_repeatedly(target: Target, plan: PublishPlan, payload: bytes) -> None:
    from godwit.cli.progress import LineProgress

    async def send(publisher: AsyncPublisher, progress: LineProgress) -> None:
        now = asyncio.get_running_loop().time
        due = now()
        sent = 0
        while not plan.repeat or sent < plan.repeat:
            await _send_one(publisher, payload)
            sent += 1
            progress.show(sent)
            due += plan.interval_s
            if plan.interval_s:
                await asyncio.sleep(max(due - now(), 0))
        await publisher.flush()

    with LineProgress(enabled=not plan.quiet and sys.stderr.isatty()) as progress:
        await _with_publisher(target, plan, "message", lambda publisher: send(publisher, progress))


async def _publish_lines(target: Target, plan: PublishPlan) -> None:
    sent = await _with_publisher(target, plan, "line", lambda publisher: _send_lines(publisher, shows=not plan.quiet))
    if not sent and not plan.quiet:
        typer.echo("nothing to publish: standard input was empty", err=True)


async def _with_publisher(
    target: Target, plan: PublishPlan, noun: str, send: Callable[[AsyncPublisher], Awaitable[None]]
) -> int:
    """Publish with `send`, and print how many messages were confirmed, also after a failure or Ctrl-C."""
    done = "sent" if plan.qos == 0 else "confirmed"
    publisher: AsyncPublisher | None = None
    try:
        async with connected(target) as client:
            publisher = client.publisher(plan.topic, qos=plan.qos, retain=plan.retain, **plan.options)
            await send(publisher)
    except GodwitError as error:  # the client is closed: nothing more will be confirmed
        if publisher is None or not publisher.next_sequence:
            raise
        raise GodwitError(f"{error} ({messages_done(publisher.confirmed_sequence, noun)} {done})") from error
    except asyncio.CancelledError:
        if publisher is not None and not plan.quiet:
            print_error_line(f"interrupted: {messages_done(publisher.confirmed_sequence, noun)} {done}")
        raise
    sent = publisher.next_sequence
    if not plan.quiet and sent:
        last = "" if plan.qos == 0 else f"; the last one {reached_text(publisher.reached)}"
        print_error_line(f"{count(sent, 'message')} {done}{last}")
    return sent


def messages_done(number: int, noun: str = "line") -> str:
    """Return how many lines or messages were published before a failure, in words."""
    if number == 0:
        return f"no {noun} was"
    return f"the first {noun} was" if number == 1 else f"the first {number:,} {noun}s were"


async def _send_one(publisher: AsyncPublisher, payload: bytes) -> None:
    """Send a message, and wait while the buffer is full."""
    from godwit.errors import BufferFullError

    while True:
        try:
            publisher.send(payload)
            return
        except BufferFullError:
            await publisher.ready()


async def _send_lines(publisher: AsyncPublisher, *, shows: bool) -> None:
    from godwit.cli.progress import LineProgress
    from godwit.cli.streams import Input
    from godwit.errors import BufferFullError

    send = publisher.send
    sent = 0
    with LineProgress(enabled=shows and sys.stderr.isatty() and not sys.stdin.isatty()) as progress:
        async for lines in Input().lines(MAX_MESSAGE_BYTES):
            for line in lines:
                try:
                    send(line)
                except BufferFullError:
                    await _send_one(publisher, line)
            sent += len(lines)
            progress.show(sent)
        await publisher.flush()


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
