"""`godwit ping`: how long the way to the broker and back takes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
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
    connected,
    run,
)
from godwit.cli.streams import Output
from godwit.cli.text import count as counted
from godwit.errors import BrokerUnreachableError, UsageError


def register(root: typer.Typer) -> None:
    """Adds `godwit ping`."""
    root.command("ping", epilog="Example: godwit ping --count 1000 --interval 0 --quiet")(ping)


def ping(
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", help="How many; 0: until Ctrl-C.")] = 10,
    interval: Annotated[float, typer.Option("--interval", "-i", metavar="SECONDS", help="From one to the next.")] = 0.2,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the statistics.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Measure round trips to the broker through the whole protocol, and print their statistics."""
    if count < 0:
        raise UsageError(f"--count {count} cannot be; give a number from 1 upward, or 0 to go on until Ctrl-C")
    if not 0 <= interval < math.inf:
        raise UsageError(f"--interval {interval:g} cannot be; give seconds from 0 upward")
    trips_s: list[float] = []
    try:
        run(_ping(Target.of(broker, name, secret_file, timeout), count, interval, trips_s, quiet))
    finally:  # also after Ctrl-C
        if trips_s:
            typer.echo(statistics(trips_s))


def statistics(trips_s: Sequence[float]) -> str:
    """One line. The 99th percentile is the smallest that 99 % of the round trips do not exceed."""
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
                async with asyncio.timeout(target.timeout_s):
                    trip_s = await client.ping()
            except TimeoutError:
                raise BrokerUnreachableError(
                    f"the broker at {target.broker} did not answer within {target.timeout_s:g} s; see whether it runs"
                ) from None
            trips_s.append(trip_s)
            if not quiet:
                await output.write(f"{len(trips_s)}: {milliseconds(trip_s)} from {target.broker}\n".encode())
