"""`godwit kick`: remove a client, or one of its subscriptions."""

from __future__ import annotations

from typing import Annotated

import typer

from godwit.cli.connecting import (
    DEFAULT_BROKER,
    TIMEOUT_S,
    BrokerOption,
    NameOption,
    SecretOption,
    Target,
    TimeoutOption,
    ask,
)
from godwit.cli.text import safe
from godwit.errors import BrokerError, UsageError
from godwit.wire.control_base import Code


def register(root: typer.Typer) -> None:
    """Adds `godwit kick`."""
    root.command("kick", epilog="Example: godwit kick display-3 'home/#' --reason 'moved to another floor'")(kick)


def kick(
    client: Annotated[str, typer.Argument(help="The client's name; godwit clients shows them.")],
    filters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILTER]...", help="The subscription to remove; without it the client is removed."),
    ] = None,
    reason: Annotated[str, typer.Option(help="What the removed one is told.")] = "",
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Remove a client, or with FILTER its subscription to exactly that. The removed one is told why."""
    from godwit.broker.topics import check_filter

    if not client:
        raise UsageError("the name of the client is empty; godwit clients shows the names")
    wanted = filters or []
    for filter in wanted:
        check_filter(filter)
    target = Target.of(broker, name, secret_file, timeout)
    try:
        ask(target, lambda connection: connection.kick(client, *wanted, reason=reason))
    except BrokerError as error:
        if error.code not in (Code.NO_SUCH_CLIENT, Code.NOT_SUBSCRIBED):
            raise
        raise BrokerError(error.code, not_there_text(error.code, client, wanted)) from None
    typer.echo(kicked_text(client, wanted))


def not_there_text(code: int, client: str, filters: list[str]) -> str:
    """Why nothing was done."""
    if code == Code.NOT_SUBSCRIBED:
        return (
            f"{client!r} has no subscription to exactly {' + '.join(filters)}; godwit clients shows "
            "who has which, and all filters of a subscription have to be named"
        )
    return f"there is no client {client!r}; godwit clients shows the names"


def kicked_text(client: str, filters: list[str]) -> str:
    """What was done."""
    if filters:
        return f"removed the subscription of {safe(client)} to {safe(' + '.join(filters))}"
    return f"removed {safe(client)}"
