"""`godwit request` and `godwit reply`: ask other clients, and answer them with a command."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    ArqOption,
    BrokerOption,
    EndlessTimeoutOption,
    NameOption,
    SecretOption,
    Target,
    connected,
    run,
)
from godwit.cli.pub import MESSAGE_LIMIT, message_options
from godwit.cli.streams import read_payload
from godwit.cli.text import safe
from godwit.errors import NoReplyError, UsageError

if TYPE_CHECKING:
    from godwit.client.message import Message
    from godwit.net.replies import RequestOptions

MAX_TIMEOUT_S: Final = 86400.0


def register(root: typer.Typer) -> None:
    """Add `godwit request` and `godwit reply`."""
    root.command(
        "request",
        epilog="Example: godwit request service/echo hello --timeout 2",
        context_settings={"ignore_unknown_options": True},  # so that -5.5 is a payload
    )(request)
    root.command("reply", epilog="Example: godwit reply service/upper --exec 'tr a-z A-Z'")(reply)


def request(
    topic: Annotated[str, typer.Argument(help="Topic on which other clients reply.")],
    payload: Annotated[
        str, typer.Argument(help="Payload of the request: a text, - for standard input, or @FILE.", show_default=False)
    ] = "",
    replies: Annotated[
        int | None,
        typer.Option(metavar="N", help="Wait for this many replies, of several clients.", show_default="1"),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for replies.")] = 5.0,
    qos: Annotated[int, typer.Option(metavar="0|1|2", help="QoS of the request: see pub.")] = 1,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of the request; may be repeated."),
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--content-type", metavar="TYPE", help="Type of the payload, such as text/csv.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each reply as a JSON object.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
) -> None:
    """Send a request, and print the payload of the reply.

    The exit code is 0 if a reply arrived, and with --replies if all of them did. A responder that reports a failure, no
    reply in time, and no responder at all are errors.
    """
    from godwit.broker.topics import check_topic

    if not 0 < timeout <= MAX_TIMEOUT_S:
        raise UsageError(f"--timeout {timeout:g} is out of range; give seconds above 0, up to {MAX_TIMEOUT_S:,.0f}")
    if replies is not None and replies < 1:
        raise UsageError(f"--replies {replies} is out of range; give a number from 1 upward")
    if qos not in (0, 1, 2):
        raise UsageError(f"unknown QoS {qos}; choose 0, 1 or 2")
    check_topic(topic)
    given = message_options(header, content_type)
    options: RequestOptions = {"timeout_s": timeout, "qos": qos}
    if "headers" in given:
        options["headers"] = given["headers"]
    if "content_type" in given:
        options["content_type"] = given["content_type"]
    body = read_payload(payload, MESSAGE_LIMIT, is_literal="--" in sys.argv) if payload else b""
    target = Target.of(broker, name, secret_file, timeout, arq)
    run(_request(target, topic, body, replies, options, as_json), is_brief=True)


async def _request(
    target: Target, topic: str, body: bytes, replies: int | None, options: RequestOptions, as_json: bool
) -> None:
    from godwit.cli.message_lines import MessageFormatter

    found: list[Message]
    async with connected(target) as client:
        if replies is None:
            found = [await client.request(topic, body, **options)]
        else:
            found = await client.request_many(topic, body, replies=replies, **options)
    sys.stdout.buffer.write(MessageFormatter("json" if as_json else "payload").render(found))
    sys.stdout.flush()
    if replies is not None and len(found) < replies:
        raise NoReplyError(f"{len(found)} of {replies} replies arrived within {options['timeout_s']:g} s")


def reply(
    filters: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics, or filters, of the requests.")],
    command: Annotated[
        str,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="Command to run for each request: payload on its stdin, reply from its stdout.",
        ),
    ],
    capacity: Annotated[int, typer.Option(metavar="N", help="Number of requests to handle at once.")] = 4,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print a line for each request.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: EndlessTimeoutOption = None,
) -> None:
    """Reply to requests with the output of a command, until Ctrl-C.

    CMD runs without a shell: nothing of a request becomes part of a command line. The payload is its standard input,
    and the environment variables GODWIT_TOPIC, GODWIT_PUBLISHER and GODWIT_CONTENT_TYPE describe the request. An exit
    code other than 0 is reported to the requester, with the end of the standard error.
    """
    from godwit.broker.topics import check_filter
    from godwit.cli.worker import split_command

    for one in filters:
        check_filter(one)
    words = split_command(command)
    if capacity < 1:
        raise UsageError(f"--capacity {capacity} is out of range; give a number from 1 upward")
    run(_reply(Target.of(broker, name, secret_file, timeout, arq), filters, words, capacity, quiet))


async def _reply(target: Target, filters: list[str], words: list[str], capacity: int, quiet: bool) -> None:
    from godwit.net.command import run_process

    async def answer(request: Message) -> bytes:
        variables = {
            "GODWIT_TOPIC": request.topic,
            "GODWIT_PUBLISHER": request.publisher,
            "GODWIT_CONTENT_TYPE": request.content_type or "",
        }
        if not quiet:
            typer.echo(f"{safe(request.publisher)}: {safe(request.topic)}", err=True)
        return await run_process(words, request.payload, variables)

    async with connected(target) as client:
        responder = client.replies(*filters, capacity=capacity)(answer)
        await responder.ready()
        if not quiet:
            typer.echo(f"replying to {', '.join(map(safe, filters))}; end it with Ctrl-C", err=True)
        try:
            await responder.wait()
        except asyncio.CancelledError:
            await responder.close()
            raise
