"""`godwit top`: the state of a broker, its clients and its topics with their rates, live in a terminal.

Clients and topics are listed at each interval. The figures of the whole broker come from `$sys`, which the broker
publishes every few seconds; a figure that it does not publish, or that this client may not read, is left out.
"""

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
    EndlessTimeoutOption,
    NameOption,
    SecretOption,
    Target,
    connected,
    run,
)
from godwit.cli.text import count, safe, size
from godwit.console.figures import DROPPED, HARMLESS
from godwit.errors import AccessError, BrokerUnreachableError, ConnectionClosedError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from godwit.net.client import AsyncClient

SORT_KEYS: Final = {"n": "name", "i": "in", "o": "out", "l": "lag"}
SYS: Final = "$sys/"
UPTIME: Final = "uptime_s"
NODE: Final = "cluster/node/"
STATE: Final = "/state"
PROBLEM: Final = "/problem"
AWAY: Final = "away"
MAX_NODES: Final = 100
DISK_FREE_SHARE: Final = 0.1
"""With less free room the disk is reported as nearly full."""
POLL_S: Final = 1.0
"""How often the state of the connection is looked at."""
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


class SysFigures:
    """The figures on `$sys`. Their rates are those between the last two publications, by the broker's own clock."""

    def __init__(self) -> None:
        self._now: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self.node_states: dict[str, str] = {}
        """The states of the nodes of a cluster, by name."""
        self.node_problems: dict[str, str] = {}
        """Why nodes could not do their part, by name; empty for a node that could."""

    def add(self, name: str, payload: bytes) -> None:
        """Add a figure; other texts than states and problems of nodes are ignored.

        `uptime_s` is the first one of each publication of the broker.
        """
        for suffix, texts in ((STATE, self.node_states), (PROBLEM, self.node_problems)):
            if name.startswith(NODE) and name.endswith(suffix):
                node = name[len(NODE) : -len(suffix)]
                if node in texts or len(texts) < MAX_NODES:
                    texts[node] = payload[:256].decode("utf-8", "replace")
                return
        try:
            figure = float(payload)
        except ValueError:
            return
        if name == UPTIME:
            self._before = self._now if figure > self._now.get(UPTIME, 0.0) else {}  # else the broker was restarted
            self._now = dict(self._now)
        self._now[name] = figure

    def get(self, name: str) -> float | None:
        """Return a figure, or None if it is unknown."""
        return self._now.get(name)

    def rate(self, name: str) -> float | None:
        """Return the change of a figure per second, or None as long as it is unknown."""
        if name not in self._now or name not in self._before or UPTIME not in self._before:
            return None
        return max(self._now[name] - self._before[name], 0.0) / (self._now[UPTIME] - self._before[UPTIME])

    def drop_rate(self) -> float:
        """Return the packets and datagrams that are dropped per second, without those of every lossy network."""
        names = [name for name in self._now if name.startswith(DROPPED)]
        rates = [self.rate(name) for name in names if name.rpartition("/")[2].replace("_", " ") not in HARMLESS]
        return sum(rate for rate in rates if rate is not None)

    async def follow(self, client: AsyncClient) -> None:
        """Add the figures that the broker publishes, until it is cancelled."""
        with suppress(AccessError):
            async with client.subscribe(f"{SYS}#") as messages:
                async for message in messages:
                    self.add(message.topic.removeprefix(SYS), message.payload)


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
            if cursor.client in clients and not cursor.idle:  # else its filters match no later message
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


def describe_state(reading: TopReading, figures: SysFigures) -> list[str]:
    """Return lines with the state of the broker."""
    online = sum(row.detail != "away" for row in reading.clients)
    received = sum(row.in_rate for row in reading.topics)
    first = [count(online, "client"), count(len(reading.topics), "topic"), f"{received:,.0f} messages/s in"]
    if (rate := figures.rate("messages/out")) is not None:
        first.append(f"{rate:,.0f} messages/s out")
    if (rate := figures.rate("bytes/in")) is not None:
        first.append(f"{size(round(rate))}/s in")
    if (rate := figures.rate("bytes/out")) is not None:
        first.append(f"{size(round(rate))}/s out")
    if nodes := figures.node_states:
        present = sum(state != AWAY for state in nodes.values())
        first.append(f"{present} of {count(len(nodes), 'node')}")
    second: list[str] = []
    median, tail = figures.get("network/round_trip_us/median"), figures.get("network/round_trip_us/p95")
    if median is not None and tail is not None:
        second.append(f"round trip {median / 1000:.1f} ms, p95 {tail / 1000:.1f} ms")
    sent, lost = figures.rate("network/packets/sent"), figures.rate("network/packets/lost")
    if sent and lost is not None:
        second.append(f"loss {100 * lost / sent:.2f} %")
    if (rate := figures.rate("network/fragments/resent")) is not None:
        second.append(f"resent {rate:,.1f}/s")
    if (slow := figures.get("log/commit_us/p99")) is not None:
        second.append(f"commit p99 {slow / 1000:.1f} ms")
    if (log_bytes := figures.get("log/size_bytes")) is not None:
        second.append(f"log {size(round(log_bytes))}")
    if (rate := figures.rate("log/next_offset")) is not None:
        second.append(f"log +{rate:,.0f} messages/s")
    return ["   ".join(part for part in (*first, reading.jobs) if part), *(["   ".join(second)] if second else [])]


def find_problems(figures: SysFigures) -> list[str]:
    """Return what the operator should look at."""
    found: list[str] = []
    if figures.get("log/writable") == 0:
        found.append("the log is not writable: messages are refused")
    free, total = figures.get("log/disk/free_bytes"), figures.get("log/disk/size_bytes")
    if free is not None and total and free / total < DISK_FREE_SHARE:
        found.append(f"the disk of the log is nearly full: {size(round(free))} of {size(round(total))} are free")
    if away := sorted(safe(name) for name, state in figures.node_states.items() if state == AWAY):
        found.append(f"nodes of the cluster are away: {', '.join(away)}")
    for name, problem in sorted(figures.node_problems.items()):
        if problem and figures.node_states.get(name) != AWAY:
            found.append(f"the node {safe(name)} is not ready: {safe(problem)}")
    behind = figures.get("subscriptions/behind/connected")
    if behind:
        lag = round(figures.get("subscriptions/lag/connected") or 0)
        found.append(f"{count(round(behind), 'connected subscription')} behind, up to {count(lag, 'message')}")
    for rate, text in (
        (figures.rate("messages/dropped"), "messages of QoS 0 are dropped"),
        (figures.drop_rate(), "packets are dropped"),
        (figures.rate("logins/refused"), "logins are refused"),
    ):
        if rate:
            found.append(f"{text}: {rate:,.1f}/s")
    return found


def render(
    reading: TopReading, figures: SysFigures, *, key: str, is_topics: bool, height: int, banner: str = ""
) -> RenderableType:
    """Return the screen. Names come from the network: they are escaped, and are not markup."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = sorted_rows(reading.topics if is_topics else reading.clients, key)
    head = [Text(line, "bold red") for line in ([banner] if banner else []) + find_problems(figures)]
    head += [Text(line, "bold") for line in describe_state(reading, figures)]
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("topic" if is_topics else "client", no_wrap=True, overflow="ellipsis", ratio=3)
    table.add_column("subscribers" if is_topics else "address", no_wrap=True, overflow="ellipsis", ratio=2)
    for title in ("in/s", "out/s", "lag"):
        table.add_column(title, justify="right", no_wrap=True)
    shown = max(height - len(head) - 3, 1)
    for row in rows[:shown]:
        cells = (safe(row.name), safe(row.detail), f"{row.in_rate:,.1f}", f"{row.out_rate:,.1f}", f"{row.lag:,}")
        table.add_row(*(Text(cell) for cell in cells))
    more = f"{len(rows) - shown:,} more   " if len(rows) > shown else ""
    return Group(*head, table, Text(f"{more}{HELP}", "dim"))


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
    timeout: EndlessTimeoutOption = None,
) -> None:
    """Show the state of a broker, and its clients and topics with their rates and lags, until q or Ctrl-C.

    Problems come first: subscribers that are behind, a full disk, drops, refused logins. Keys: n, i, o and l sort by
    name, messages in, messages out and lag; t shows topics, c clients. Clients need the right to kick.
    """
    if sort not in SORT_KEYS.values():
        raise UsageError(f"--sort {sort} is unknown; choose {', '.join(SORT_KEYS.values())}")
    if not 0.1 <= interval <= 3600:
        raise UsageError(f"--interval {interval:g} is out of range; give seconds, from 0.1 to 3600")
    is_live = sys.stdout.isatty() and not once
    if not is_live and timeout is None:
        timeout = REQUEST_TIMEOUT_S
    target = Target.of(broker, name, secret_file, timeout, arq)
    keys = TopKeys(sort, is_topics=topics)
    run(_show(target, keys, interval) if is_live else _print(target, keys, interval))


async def _print(target: Target, keys: TopKeys, interval_s: float) -> None:
    """Print one screen."""
    from rich.console import Console

    figures = SysFigures()
    async with connected(target) as client:
        following = asyncio.create_task(figures.follow(client))
        former = await read_broker(client, time.monotonic())
        await asyncio.sleep(interval_s)
        reading = await read_broker(client, time.monotonic())
        following.cancel()
    add_rates(reading, former)
    Console().print(render(reading, figures, key=keys.sort, is_topics=keys.is_topics, height=10_000))


async def _show(target: Target, keys: TopKeys, interval_s: float) -> None:
    """Show the screen until a key ends it. While the broker is away, the last reading and a banner are shown."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    figures = SysFigures()
    reading = TopReading(time.monotonic(), [], [])
    former: TopReading | None = None
    lost_at = ""
    async with connected(target) as client:
        following = asyncio.create_task(figures.follow(client))
        with keyboard(keys), Live(console=console, screen=True, auto_refresh=False) as live:
            due = time.monotonic()
            asking: asyncio.Task[TopReading] | None = None
            while not keys.is_over:
                now = time.monotonic()
                if asking is None and now >= due:
                    asking = asyncio.create_task(read_broker(client, now))
                    due = now + interval_s
                if asking is not None and asking.done():
                    lost_at = lost_at or time.strftime("%H:%M:%S")
                    with suppress(BrokerUnreachableError, ConnectionClosedError):
                        reading, lost_at = asking.result(), ""
                        add_rates(reading, former)
                        former = reading
                    asking = None
                client.require_open()
                if client.state != "online":
                    lost_at = lost_at or time.strftime("%H:%M:%S")
                banner = f"the broker has not answered since {lost_at}; still trying" if lost_at else ""
                screen = render(
                    reading, figures, key=keys.sort, is_topics=keys.is_topics, height=console.height, banner=banner
                )
                live.update(screen, refresh=True)
                keys.changed.clear()
                await _next_event(keys, asking, min(max(due - time.monotonic(), 0.05), POLL_S))
            if asking is not None:
                asking.cancel()
        following.cancel()


async def _next_event(keys: TopKeys, asking: asyncio.Task[TopReading] | None, timeout_s: float) -> None:
    """Wait for a key, the reply of the broker or the time."""
    pressed = asyncio.create_task(keys.changed.wait())
    await asyncio.wait({pressed, *([asking] if asking else [])}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    pressed.cancel()
