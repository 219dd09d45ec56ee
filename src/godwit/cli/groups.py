"""`godwit groups`: list consumer groups with their positions, and delete them."""

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
from godwit.cli.text import iso_time, moment, safe, short_moment
from godwit.errors import BrokerError
from godwit.wire.control_base import Code

if TYPE_CHECKING:
    from godwit.wire.control import GroupInfo

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

app = typer.Typer()


def register(root: typer.Typer) -> None:
    """Add `godwit groups`."""
    root.add_typer(app, name="groups")


@app.callback(invoke_without_command=True, epilog="Example: godwit groups --json")
def groups(
    context: typer.Context,
    as_json: JsonOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """List and delete consumer groups; without a command: list.

    The position is the first offset that no member has acknowledged. The lag is the number of messages from there to
    the end of the log, on all topics. In flight are messages that members have and have not acknowledged. A narrow
    terminal shows fewer columns; --json has all.
    """
    if context.invoked_subcommand is None:
        _list(Target.of(broker, name, secret_file, timeout, arq), as_json)


@app.command("list", epilog="Example: godwit groups list")
def list_groups(
    as_json: JsonOption = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """List the consumer groups with their members and positions."""
    _list(Target.of(broker, name, secret_file, timeout, arq), as_json)


@app.command("delete", epilog="Example: godwit groups delete billing 'orders/#'")
def delete(
    group: Annotated[str, typer.Argument(help="Name of the group.")],
    filters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILTER]...", help="Delete only the group of this name with exactly these filters."),
    ] = None,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Delete a consumer group with its position. The subscriptions of its members end."""
    from godwit.broker.topics import check_filter

    wanted = filters or []
    for filter in wanted:
        check_filter(filter)
    try:
        ask(
            Target.of(broker, name, secret_file, timeout, arq),
            lambda client: client.delete_group(group, *wanted),
        )
    except BrokerError as error:
        if error.code != Code.NO_SUCH_CLIENT:
            raise
        of = f" of {' + '.join(wanted)}" if wanted else ""
        raise BrokerError(error.code, f"the group {group!r}{of} does not exist; see godwit groups") from None
    typer.echo(f"deleted {safe(group)}")


def _list(target: Target, as_json: bool) -> None:
    from godwit.cli.tables import Column, show_objects, show_table

    found = ask(target, lambda client: client.groups())
    if as_json:
        show_objects([_object(group) for group in found])
        return
    if not found:
        typer.echo("no groups", err=True)
        return
    columns = [
        Column("group", is_name=True),
        Column("filters", least_width=16),
        Column("members", right=True),
        Column("position", right=True),
        Column("lag", right=True),
        Column("in flight", right=True, drop=1),
        Column("missed", right=True, drop=2),
        Column("expires (UTC)", "expires", shorten=short_moment, drop=3),
    ]
    show_table(columns, [_row(group) for group in found])


def _row(group: GroupInfo) -> tuple[str, ...]:
    return (
        group.name,
        " + ".join(group.filters),
        f"{group.member_count:,}",
        f"{group.position:,}",
        f"{group.lag:,}",
        f"{group.in_flight:,}",
        f"{group.missed:,}",
        moment(group.expires_us) if group.expires_us else "",
    )


def _object(group: GroupInfo) -> dict[str, object]:
    fields = msgspec.structs.asdict(group)
    expires_us = fields.pop("expires_us")
    return {**fields, "expires": iso_time(expires_us) if expires_us else None}
