"""`godwit bridge`: the bridges from and to a broker, with their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from godwit.cli.text import safe

if TYPE_CHECKING:
    from godwit.wire.relay import BridgeInfo

app = typer.Typer(no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `godwit bridge`."""
    root.add_typer(app, name="bridge")


@app.callback(epilog="Example: godwit bridge status")
def bridge() -> None:
    """Show the bridges from and to the broker. They are configured with [[bridge]] at the edge."""


@app.command("status", epilog="Example: godwit bridge status --broker edge.local --json")
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Show the bridges of a broker: "out" to a hub, "in" from an edge.

    The position is the offset of the edge's log below which the hub has everything. The lag is the number of messages
    from there to the end of that log, on all topics. Missed are messages that could not be sent, at most.
    """
    from godwit.cli.tables import Column, show_objects, show_table

    found = ask(Target.of(broker, name, secret_file, timeout, arq), lambda client: client.bridges())
    if as_json:
        show_objects([msgspec.structs.asdict(one) for one in found])
        return
    if not found:
        typer.echo("no bridges", err=True)
        return
    columns = [
        Column("bridge", is_name=True),
        Column(""),
        Column("peer", least_width=12, drop=3),
        Column("state"),
        Column("position", right=True),
        Column("lag", right=True),
        Column("messages", right=True, drop=1),
        Column("missed", right=True, drop=2),
    ]
    show_table(columns, [_row(one) for one in found])
    for one in found:
        if one.problem:
            typer.echo(f"{safe(one.name)}: {safe(one.problem)}")


def _row(one: BridgeInfo) -> tuple[str, ...]:
    return (
        one.name,
        one.direction,
        one.peer,
        one.state,
        "" if one.position is None else f"{one.position:,}",
        f"{one.lag:,}" if one.direction == "out" else "",
        f"{one.messages:,}",
        f"{one.missed:,}",
    )
