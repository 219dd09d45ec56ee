"""`godwit clients`, `cursors`, `workers`, `kick` and `ping`: list and remove clients, and measure round trips."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
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
    connected,
    run,
)
from godwit.cli.streams import Output
from godwit.cli.text import count as counted
from godwit.cli.text import iso_time, moment, safe, short_moment
from godwit.errors import BrokerError, BrokerUnreachableError, UsageError
from godwit.wire.control_base import Code

if TYPE_CHECKING:
    from godwit.net.client import AsyncClient
    from godwit.wire.control import ClientInfo
    from godwit.wire.jobs import WorkerInfo


def register(root: typer.Typer) -> None:
    """Add `godwit clients`, `cursors`, `workers`, `kick` and `ping`."""
    root.command("clients", epilog="Example: godwit clients --json")(clients)
    root.command("cursors", epilog="Example: godwit cursors --client display-3")(cursors)
    root.command("workers", epilog="Example: godwit workers --kind resize")(workers)
    root.command("kick", epilog="Example: godwit kick display-3 'home/#' --reason 'moved to another floor'")(kick)
    root.command("ping", epilog="Example: godwit ping --count 1000 --interval 0 --quiet")(ping)


def clients(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """List the clients of the broker with their subscriptions.

    A client without an address is disconnected, and the broker keeps its session. A narrow terminal shows fewer columns
    and cuts long ones; --json has all.
    """
    from godwit.cli.tables import Column, show_objects, show_table

    target = Target.of(broker, name, secret_file, timeout, arq)
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
    """Return the subscriptions of a client as `home/#; a + b`. The filters of one subscription are joined by +."""
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


def cursors(
    client: Annotated[
        str | None, typer.Option("--client", metavar="CLIENT", help="List only the subscriptions of this client.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """List the subscriptions with their positions in the log.

    The position is the first offset that the client has not confirmed, or with a cursor not committed. The lag is the
    number of messages from there to the end of the log, on all topics. A narrow terminal shows fewer columns; --json
    has all.
    """
    from godwit.cli.tables import Column, show_objects, show_table

    target = Target.of(broker, name, secret_file, timeout, arq)
    found = ask(target, lambda connection: connection.cursors(client))
    if as_json:
        show_objects(found)
        return
    if not found:
        typer.echo("no subscriptions", err=True)
        return
    columns = [
        Column("client", is_name=True),
        Column("cursor", drop=2),
        Column("subscription", least_width=16),
        Column("state", drop=1),
        Column("position", right=True),
        Column("lag", right=True),
    ]
    rows = [
        (
            one.client,
            one.cursor,
            " + ".join(one.filters),
            "away" if not one.connected else "idle" if one.idle else "receiving",
            f"{one.position:,}",
            f"{one.lag:,}",
        )
        for one in found
    ]
    show_table(columns, rows)


def workers(
    kind: Annotated[
        str | None, typer.Option("--kind", "-k", metavar="KIND", help="List only workers for this kind of work.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """List the workers: kinds of work, capacity, tasks and load.

    A stalled worker has not reported in time and gets no tasks. One that is gone has lost its connection, and the
    broker waits for it until its leases end.
    """
    from godwit.cli.tables import Column, show_objects, show_table

    target = Target.of(broker, name, secret_file, timeout, arq)
    found = [one for one in ask(target, lambda connection: connection.workers()) if kind is None or kind in one.kinds]
    if as_json:
        show_objects([_worker_object(one) for one in found])
        return
    if not found:
        typer.echo("no workers" if kind is None else f"no worker volunteers for {safe(kind)}", err=True)
        return
    columns = [
        Column("worker", is_name=True),
        Column("state"),
        Column("tasks", right=True),
        Column("capacity", right=True),
        Column("load", right=True, drop=1),
        Column("last report (UTC)", "reported", shorten=short_moment, drop=2),
        Column("kinds", least_width=12),
    ]
    rows = [
        (
            one.name,
            one.state,
            f"{one.tasks:,}",
            f"{one.capacity:,}",
            f"{_load(one):.0%}",
            moment(one.heard_us),
            ", ".join(one.kinds),
        )
        for one in found
    ]
    show_table(columns, rows)


def _load(worker: WorkerInfo) -> float:
    """Return the used part of a worker's capacity."""
    return worker.tasks / worker.capacity if worker.capacity else 0.0


def _worker_object(worker: WorkerInfo) -> dict[str, object]:
    fields = msgspec.structs.asdict(worker)
    heard_us = fields.pop("heard_us")
    return {**fields, "load": round(_load(worker), 3), "reported": iso_time(heard_us) if heard_us else None}


def kick(
    client: Annotated[str, typer.Argument(help="Name of the client; godwit clients lists the names.")],
    filters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILTER]...", help="Filters of the subscription to remove; without them, remove the client."
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Text that the removed client receives.")] = "",
    keep_session: Annotated[
        bool,
        typer.Option(
            "--keep-session/--drop-session",
            help="Only close the connection: the client keeps its session, and reconnects by itself if it is a program "
            "that does. Or delete the session, with its subscriptions and positions.",
        ),
    ] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Remove a client with its session, or with FILTER its subscription to exactly these filters.

    The client receives the reason.
    """
    from godwit.broker.topics import check_filter

    if not client:
        raise UsageError("the name of the client is empty; godwit clients lists the names")
    wanted = filters or []
    if wanted and keep_session:
        raise UsageError("--keep-session is for a whole client; leave out the filters, or the option")
    for filter in wanted:
        check_filter(filter)
    target = Target.of(broker, name, secret_file, timeout, arq)
    try:
        ask(target, lambda connection: connection.kick(client, *wanted, reason=reason, keep_session=keep_session))
    except BrokerError as error:
        if error.code not in (Code.NO_SUCH_CLIENT, Code.NOT_SUBSCRIBED):
            raise
        raise BrokerError(error.code, not_there_text(error.code, client, wanted)) from None
    typer.echo(f"disconnected {safe(client)}, its session is kept" if keep_session else kicked_text(client, wanted))


def not_there_text(code: int, client: str, filters: list[str]) -> str:
    """Return why nothing was removed."""
    if code == Code.NOT_SUBSCRIBED:
        return (
            f"{client!r} has no subscription to exactly {' + '.join(filters)}; godwit clients lists "
            "the subscriptions, and all filters of one have to be named"
        )
    return f"the client {client!r} does not exist; godwit clients lists the names"


def kicked_text(client: str, filters: list[str]) -> str:
    """Return a confirmation of the removal."""
    if filters:
        return f"removed the subscription of {safe(client)} to {safe(' + '.join(filters))}"
    return f"removed {safe(client)}"


def ping(
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", help="Number of round trips; 0: until Ctrl-C.")
    ] = 10,
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", help="Time between two round trips.")
    ] = 0.2,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the statistics.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Measure round trips to the broker through the whole protocol, and print their statistics."""
    if count < 0:
        raise UsageError(f"--count {count} is out of range; give a number from 1 upward, or 0 to run until Ctrl-C")
    if not 0 <= interval < math.inf:
        raise UsageError(f"--interval {interval:g} is out of range; give seconds from 0 upward")
    trips_s: list[float] = []
    try:
        run(_ping(Target.of(broker, name, secret_file, timeout, arq), count, interval, trips_s, quiet))
    finally:  # also after Ctrl-C
        if trips_s:
            typer.echo(statistics(trips_s))


def statistics(trips_s: Sequence[float]) -> str:
    """Return the statistics on one line.

    The 99th percentile is the smallest value that 99 % of the round trips do not exceed.
    """
    ordered = sorted(trips_s)
    p99_s = ordered[math.ceil(len(ordered) * 0.99) - 1]
    average_s = math.fsum(ordered) / len(ordered)
    figures = (("min", ordered[0]), ("avg", average_s), ("p99", p99_s), ("max", ordered[-1]))
    return f"{counted(len(ordered), 'round trip')}: " + ", ".join(f"{name} {milliseconds(s)}" for name, s in figures)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3f} ms"


async def _ping(target: Target, count: int, interval_s: float, trips_s: list[float], quiet: bool) -> None:
    output = Output()
    now = asyncio.get_running_loop().time
    async with connected(target) as client:
        due = now()
        while not count or len(trips_s) < count:
            await asyncio.sleep(max(due - now(), 0))
            due = max(due + interval_s, now())
            try:
                trip_s = await client.ping(timeout_s=target.timeout_s)
            except TimeoutError:
                raise BrokerUnreachableError(
                    f"the broker at {target.broker} did not answer within {target.timeout_s:g} s; check that it runs"
                ) from None
            trips_s.append(trip_s)
            if not quiet:
                await output.write(f"{len(trips_s)}: {milliseconds(trip_s)} from {target.broker}\n".encode())
