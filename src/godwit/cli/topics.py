"""`godwit topics`: list, show, create and delete topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
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
    ask,
)
from godwit.cli.text import iso_time, moment, safe, short_moment, size
from godwit.errors import BrokerError, Code, GodwitError, UsageError

if TYPE_CHECKING:
    from godwit.cli.tables import Column
    from godwit.wire.control import TopicInfo

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

app = typer.Typer()


def register(root: typer.Typer) -> None:
    """Add `godwit topics`."""
    root.add_typer(app, name="topics")


@app.callback(invoke_without_command=True, epilog="Example: godwit topics list 'home/#'")
def topics(
    context: typer.Context,
    as_json: JsonOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """List, show, create and delete topics; without a command: list."""
    context.obj = {
        option: value
        for option, value in (
            ("broker", broker),
            ("name", name),
            ("secret_file", secret_file),
            ("arq", arq),
            ("timeout", timeout),
        )
        if _was_typed(context, option)
    }
    if context.invoked_subcommand is None:
        list_topics(context, None, as_json, broker, name, secret_file, arq, timeout)


@app.command("list", epilog="Example: godwit topics list 'home/#'")
def list_topics(
    context: typer.Context,
    filter: Annotated[
        str | None, typer.Argument(help="List only topics that match this filter.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """List the topics by name, with their figures since each was created.

    The figures of a broker without a log on disk start when the broker starts. A narrow terminal shows fewer columns;
    --json has all.
    """
    from godwit.broker.topics import check_filter
    from godwit.cli.tables import show_objects, show_table

    if filter is not None:
        check_filter(filter)
    found = ask(_target(context, broker, name, secret_file, arq, timeout), lambda client: client.topics(filter))
    if as_json:
        show_objects([_object(topic) for topic in found])
        return
    if not found:
        typer.echo("no topics yet" if filter is None else f"no topic matches {safe(filter)}", err=True)
        return
    show_table(_columns(), [_row(topic) for topic in found])


@app.command("show", epilog="Example: godwit topics show home/kitchen/temperature")
def show(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    as_json: JsonOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Show one topic with its current numbers of subscribers and publishers."""
    from godwit.broker.topics import check_topic
    from godwit.cli.tables import show_objects

    _refuse_wildcards(topic, f"name one topic, or list all that match: godwit topics list '{topic}'")
    check_topic(topic)
    found = ask(_target(context, broker, name, secret_file, arq, timeout), lambda client: client.topics(topic))
    if not found:
        raise GodwitError(_missing_text(topic))
    if as_json:
        show_objects([_object(found[0])])
        return
    info = found[0]
    facts = {
        "topic": safe(info.name),
        "policy": info.policy,
        "subscribers": f"{info.subscribers:,}",
        "publishers": f"{info.publishers:,}",
        "messages": f"{info.messages:,}",
        "size": size(info.payload_bytes),
        "retained": "a message" if info.retained else "none",
        "last message": f"{moment(info.last_us)} UTC" if info.last_us else "none yet",
    }
    for title, fact in facts.items():
        typer.echo(f"{title:14}{fact}")


@app.command("create", epilog="Example: godwit topics create home/garage/temperature")
def create(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Create a topic. Where the broker's policy is `explicit`, a topic must be created before it is used."""
    from godwit.broker.topics import check_topic

    _refuse_wildcards(topic, "give the new topic a name without + * #")
    check_topic(topic)
    ask(_target(context, broker, name, secret_file, arq, timeout), lambda client: client.create_topic(topic))
    typer.echo(f"created {safe(topic)}")


@app.command("delete", epilog="Example: godwit topics delete home/garage/temperature")
def delete(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Delete a topic that is not in use, with its figures and its retained message.

    The log keeps its messages until retention deletes them. Reading them makes the topic known again.
    """
    from godwit.broker.topics import check_topic

    _refuse_wildcards(topic, "name one topic; godwit topics list shows them")
    check_topic(topic)
    target = _target(context, broker, name, secret_file, arq, timeout)
    try:
        ask(target, lambda client: client.delete_topic(topic))
    except BrokerError as error:
        if error.code != Code.NO_SUCH_TOPIC:
            raise
        raise GodwitError(_missing_text(topic)) from None
    typer.echo(f"deleted {safe(topic)}")


def _missing_text(topic: str) -> str:
    return f"topic {topic!r} does not exist; see godwit topics list"


def _refuse_wildcards(topic: str, advice: str) -> None:
    from godwit.broker.topics import shown
    from godwit.wire.filters import WILDCARDS

    if not WILDCARDS.isdisjoint(topic):
        raise UsageError(f"{shown(topic)} contains a wildcard; {advice}")


def _was_typed(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _target(
    context: typer.Context,
    broker: str,
    name: str | None,
    secret_file: Path | None,
    arq: str | None,
    timeout: float | None,
) -> Target:
    """Return the target from the options after the subcommand, else from those before it."""
    options: dict[str, Any] = {"broker": broker, "name": name, "secret_file": secret_file, "arq": arq}
    options["timeout"] = timeout
    for option, value in (context.obj or {}).items():
        if not _was_typed(context, option):
            options[option] = value
    return Target.of(**options)


def _columns() -> list[Column]:
    from godwit.cli.tables import Column

    return [
        Column("topic", is_name=True),
        Column("policy", drop=1),
        Column("subscribers", "subs", right=True, drop=5),
        Column("publishers", "pubs", right=True, drop=2),
        Column("messages", right=True),
        Column("size", right=True, drop=4),
        Column("retained", drop=3),
        Column("last message (UTC)", "last (UTC)", shorten=short_moment),
    ]


def _row(topic: TopicInfo) -> tuple[str, ...]:
    return (
        topic.name,
        topic.policy,
        f"{topic.subscribers:,}",
        f"{topic.publishers:,}",
        f"{topic.messages:,}",
        size(topic.payload_bytes),
        "yes" if topic.retained else "",
        moment(topic.last_us),
    )


def _object(topic: TopicInfo) -> dict[str, object]:
    fields = msgspec.structs.asdict(topic)
    last_us = fields.pop("last_us")
    return {**fields, "last": iso_time(last_us) if last_us else None}
