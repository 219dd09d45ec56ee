"""`godwit clients`: who is connected, and whose session the broker keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
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
from godwit.cli.text import iso_time, moment, short_moment

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.wire.control import ClientInfo


def register(root: typer.Typer) -> None:
    """Adds `godwit clients`."""
    root.command("clients", epilog="Example: godwit clients --json")(clients)


def clients(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """List the clients of the broker with their subscriptions; one without an address is away, but remembered.

    A narrow terminal shows fewer columns and cuts long ones; --json has all.
    """
    from godwit.cli.tables import Column, show_objects, show_table

    target = Target.of(broker, name, secret_file, timeout)
    if as_json:
        found, dropped = ask(target, _clients_and_drops)
        show_objects([*map(_object, found), {"name": "$broker", "dropped": dropped}])
        return
    found = ask(target, lambda client: client.clients())
    columns = [
        Column("client", is_name=True),
        Column("address"),
        Column("since (UTC)", shorten=short_moment, drop=1),
        Column("messages in", "in", right=True, drop=2),
        Column("messages out", "out", right=True, drop=3),
        Column("subscriptions", least_width=20),
    ]
    show_table(columns, [_row(each) for each in found])


def subscriptions_text(client: ClientInfo) -> str:
    """`home/#; a + b`: what subscriptions a client has; the filters of one are joined by +."""
    return "; ".join(" + ".join(filters) for filters in client.subscriptions)


async def _clients_and_drops(client: AsyncClient) -> tuple[list[ClientInfo], dict[str, int]]:
    """Return the clients, and how many packets and datagrams the broker has dropped, by reason."""
    from godwit.net.diagnostics import read_drop_counters

    return await client.clients(), await read_drop_counters(client)


def _row(client: ClientInfo) -> tuple[str, ...]:
    return (
        client.name,
        client.address or "away",
        moment(client.since_us),
        f"{client.messages_in:,}",
        f"{client.messages_out:,}",
        subscriptions_text(client),
    )


def _object(client: ClientInfo) -> dict[str, object]:
    fields = msgspec.structs.asdict(client)
    since_us = fields.pop("since_us")
    return {**fields, "since": iso_time(since_us) if since_us else None}
