"""`godwit top`: clients and topics of a broker with their rates, live in a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

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
    connected,
    run,
)
from godwit.cli.text import count, safe
from godwit.errors import AccessError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from godwit.net.client import AsyncClient

SORT_KEYS: Final = {"n": "name", "i": "in", "o": "out", "l": "lag"}
HELP: Final = "sort: n name, i in, o out, l lag   t topics, c clients   q quit"


class TopRow(msgspec.Struct):
    """A client or a topic. Counts are totals, from which two readings make rates."""

    name: str
    detail: str = ""
    received: int = 0
    sent: int = 0
    lag: int = 0
    in_rate: float = 0.0
    out_rate: float = 0.0


class TopReading(msgspec.Struct):
    """One reading of a broker."""

    at: float
    clients: list[TopRow]
    topics: list[TopRow]
    jobs: str = ""


async def read_broker(client: AsyncClient, at: float) -> TopReading:
    """Return the present figures. Clients and positions need the right to kick; without it they are left out."""
    clients: dict[str, TopRow] = {}
    with suppress(AccessError):
        for one in await client.clients():
            clients[one.name] = TopRow(one.name, one.address or "away", one.messages_in, one.messages_out)
        for cursor in await client.cursors():
            if cursor.client in clients:
                clients[cursor.client].lag = max(clients[cursor.client].lag, cursor.lag)
    topics = [
        TopRow(one.name, count(one.subscribers, "subscriber"), one.messages, one.messages * one.subscribers)
        for one in await client.topics()
    ]
    jobs = ""
    with suppress(AccessError):
        workers = await client.workers()
        jobs = count(len(workers), "worker")
    return TopReading(at, list(clients.values()), topics, jobs)


def add_rates(reading: TopReading, former: TopReading | None) -> None:
    """Compute the rates since the former reading. A count that has fallen began anew."""
    if former is None or reading.at <= former.at:
        return
    seconds = reading.at - former.at
    for rows, before in ((reading.clients, former.clients), (reading.topics, former.topics)):
        known = {row.name: row for row in before}
        for row in rows:
            old = known.get(row.name)
            if old is not None:
                row.in_rate = max(row.received - old.received, 0) / seconds
                row.out_rate = max(row.sent - old.sent, 0) / seconds


def sorted_rows(rows: list[TopRow], key: str) -> list[TopRow]:
    """Return the rows in the order of a sort key; equal ones by name."""
    if key == "name":
        return sorted(rows, key=lambda row: row.name)
    value: dict[str, Callable[[TopRow], float]] = {
        "in": lambda row: row.in_rate,
        "out": lambda row: row.out_rate,
        "lag": lambda row: row.lag,
    }
    return sorted(rows, key=lambda row: (-value[key](row), row.name))


def render(reading: TopReading, *, key: str, is_topics: bool, height: int) -> RenderableType:
    """Return the screen. Names come from the network: they are escaped, and are not markup."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = sorted_rows(reading.topics if is_topics else reading.clients, key)
    online = sum(row.detail != "away" for row in reading.clients)
    received = sum(row.in_rate for row in reading.topics)
    counts = f"{count(online, 'client')}   {count(len(reading.topics), 'topic')}"
    head = Text(f"{counts}   {received:,.0f} messages/s   {reading.jobs}", "bold")
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("topic" if is_topics else "client", no_wrap=True, overflow="ellipsis", ratio=3)
    table.add_column("subscribers" if is_topics else "address", no_wrap=True, overflow="ellipsis", ratio=2)
    for title in ("in/s", "out/s", "lag"):
        table.add_column(title, justify="right", no_wrap=True)
    shown = max(height - 4, 1)
    for row in rows[:shown]:
        cells = (safe(row.name), safe(row.detail), f"{row.in_rate:,.1f}", f"{row.out_rate:,.1f}", f"{row.lag:,}")
        table.add_row(*(Text(cell) for cell in cells))
    more = f"{len(rows) - shown:,} more   " if len(rows) > shown else ""
    return Group(head, table, Text(f"{more}{HELP}", "dim"))


class TopKeys:
    """The state that keys change."""

    def __init__(self, sort: str, *, is_topics: bool) -> None:
        self.sort = sort
        self.is_topics = is_topics
        self.is_over = False
        self.changed = asyncio.Event()

    def press(self, letter: str) -> None:
        """Handle a key; others than the known ones do nothing."""
        if letter in SORT_KEYS:
            self.sort = SORT_KEYS[letter]
        elif letter in "tc":
            self.is_topics = letter == "t"
        elif letter in "q\x03\x04":
            self.is_over = True
        else:
            return
        self.changed.set()


@contextmanager
def keyboard(keys: TopKeys) -> Iterator[None]:
    """Read single keys of the terminal during the block, if standard input is one."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before: list[Any] = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()
    tty.setcbreak(fd)

    def read() -> None:
        for letter in os.read(fd, 64).decode("ascii", "ignore"):
            keys.press(letter)

    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def register(root: typer.Typer) -> None:
    """Add `godwit top`."""
    root.command("top", epilog="Example: godwit top --sort lag")(top)


def top(
    sort: Annotated[str, typer.Option(metavar="KEY", help="Sort by name, in, out or lag.")] = "in",
    topics: Annotated[bool, typer.Option("--topics", help="Show topics instead of clients.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one screen after one interval, and end.")] = False,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
) -> None:
    """Show the clients and topics of a broker with their rates and lags, until q or Ctrl-C.

    Keys: n, i, o and l sort by name, messages in, messages out and lag; t shows topics, c clients. Clients need the
    right to kick.
    """
    if sort not in SORT_KEYS.values():
        raise UsageError(f"--sort {sort} is unknown; choose {', '.join(SORT_KEYS.values())}")
    if not 0.1 <= interval <= 3600:
        raise UsageError(f"--interval {interval:g} is out of range; give seconds, from 0.1 to 3600")
    is_live = sys.stdout.isatty() and not once
    run(_show(Target.of(broker, name, secret_file, timeout, arq), sort, topics, interval, is_live))


async def _show(target: Target, sort: str, is_topics: bool, interval_s: float, is_live: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    keys = TopKeys(sort, is_topics=is_topics)
    former: TopReading | None = None
    async with connected(target) as client:
        if not is_live:
            former = await read_broker(client, time.monotonic())
            await asyncio.sleep(interval_s)
            reading = await read_broker(client, time.monotonic())
            add_rates(reading, former)
            console.print(render(reading, key=sort, is_topics=is_topics, height=10_000))
            return
        with keyboard(keys), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                reading = await read_broker(client, time.monotonic())
                add_rates(reading, former)
                former = reading
                due = time.monotonic() + interval_s
                while (left_s := due - time.monotonic()) > 0:
                    screen = render(reading, key=keys.sort, is_topics=keys.is_topics, height=console.height)
                    live.update(screen, refresh=True)
                    keys.changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(left_s):
                            await keys.changed.wait()
                    if keys.is_over:
                        return
