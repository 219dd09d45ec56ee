"""The display of `godwit demo`: live on a terminal, plain lines elsewhere, and the summary at the end.

The live display runs in the process of the network. It consists of plain lines of text, because a frame made of tables
takes ten times as long (9 ms), during which no datagram passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from godwit.cli.demo_processes import LATE_S
from godwit.cli.demo_run import DELAY_S, LINE_BITS_PER_S, DemoSettings, DemoSnapshot
from godwit.cli.house import ROOMS
from godwit.cli.text import hanging
from godwit.net.relay import Direction

LINE_EVERY_S: Final = 2.0
FRAME_EVERY_S: Final = 0.2
FACTS_WIDTH: Final = 17
"""Width of the titles in the summary, so that most facts fit a line of 80."""
BAR_WIDTH: Final = 40
SPARK_WIDTH: Final = 36
SPARK_EVERY_S: Final = 0.5
SPARKS: Final = "▁▂▃▄▅▆▇█"

FAULTS: Final[Mapping[str, str]] = {
    "offered": "datagrams",
    "lost": "lost",
    "queue_full": "lost in a full queue",
    "corrupted": "damaged",
    "duplicated": "repeated",
    "reordered": "overtaken by others",
}
"""The counters of a link, and their titles."""
DIRECTIONS: Final[tuple[Direction, ...]] = ("to_target", "to_client")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def heading(settings: DemoSettings) -> str:
    return (
        f"{len(ROOMS)} rooms -> broker -> subscriber, over a bad network: {LINE_BITS_PER_S / 1e6:g} Mbit/s a client, "
        f"{milliseconds(DELAY_S)} each way, {settings.loss * 100:g} % lost"
    )


def fault(snapshot: DemoSnapshot, name: str) -> int:
    """Return a counter, summed over both directions."""
    return sum(counters[name] for counters in snapshot.network.values())


def lost(snapshot: DemoSnapshot) -> int:
    return fault(snapshot, "lost") + fault(snapshot, "queue_full")


class DemoView(Protocol):
    """Shows ten snapshots per second. Closed before anything else is printed."""

    def show(self, snapshot: DemoSnapshot) -> None: ...
    def close(self) -> None: ...


# -- without a terminal -----------------------------------------------------------------------------------------------


class PlainView:
    """Prints a line every two seconds, and one for every change of address."""

    def __init__(self, console: Console, settings: DemoSettings) -> None:
        self._console = console
        self._next_s = LINE_EVERY_S
        self._moved = 0
        self._is_kill_printed = self._are_tables_printed = False
        self._print(heading(settings))

    def show(self, snapshot: DemoSnapshot) -> None:
        if len(snapshot.moved_at_s) > self._moved:
            self._moved = len(snapshot.moved_at_s)
            self._print(f"{snapshot.moved_at_s[-1]:6.1f} s  the network assigns another address to every client")
        if snapshot.killed and not self._is_kill_printed:
            self._is_kill_printed = True
            self._print(f"{snapshot.elapsed_s:6.1f} s  the worker {snapshot.killed} is killed during its work")
        if snapshot.phase == "tables" and not self._are_tables_printed:
            self._are_tables_printed = True
            self._print(f"{snapshot.elapsed_s:6.1f} s  Spark makes tables and a report of the logged messages")
        if snapshot.elapsed_s >= self._next_s and snapshot.phase == "sending":
            self._next_s += LINE_EVERY_S
            self._print(progress_line(snapshot))

    def close(self) -> None:
        """Do nothing: plain lines remain."""

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def progress_line(snapshot: DemoSnapshot) -> str:
    return (
        f"{snapshot.elapsed_s:6.1f} s  {snapshot.seen.received:9,} messages arrived, "
        f"{snapshot.recent_per_s:,.0f} per second"
        f"; datagrams: {lost(snapshot):,} lost, {fault(snapshot, 'corrupted'):,} damaged"
    )


# -- with a terminal --------------------------------------------------------------------------------------------------


class LiveView:
    """A display that is updated in place. At the end only its heading remains, for the summary."""

    def __init__(self, console: Console, settings: DemoSettings) -> None:
        self._heading = Text(heading(settings), style="bold")
        self._history: dict[str, list[float]] = {}
        self._next_frame_s = 0.0
        self._next_spark_s = 0.0
        self._live = Live(self._heading, console=console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def show(self, snapshot: DemoSnapshot) -> None:
        if snapshot.elapsed_s < self._next_frame_s:
            return
        self._next_frame_s = snapshot.elapsed_s + FRAME_EVERY_S
        if snapshot.elapsed_s >= self._next_spark_s:
            self._next_spark_s = snapshot.elapsed_s + SPARK_EVERY_S
            for room in snapshot.seen.rooms:
                self._history.setdefault(room.room, []).append(room.celsius)
        self._live.update(joined([self._heading, *frame(snapshot, self._history)]), refresh=True)

    def close(self) -> None:
        self._live.update(self._heading)
        self._live.transient = False
        self._live.stop()


def joined(lines: Sequence[Text]) -> Text:
    """Return lines that are cropped at the terminal's edge, not wrapped."""
    text = Text("\n").join(lines)
    text.no_wrap = True
    text.overflow = "crop"
    return text


def frame(snapshot: DemoSnapshot, history: Mapping[str, Sequence[float]]) -> list[Text]:
    """Return a frame that fits a terminal of 24 lines, with the heading."""
    blank = Text()
    return [
        _clock(snapshot),
        blank,
        *_rooms(snapshot, history),
        blank,
        *faults(snapshot),
        blank,
        *_messages(snapshot),
    ]


def bar(share: float, style: str) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * BAR_WIDTH)
    return Text.assemble(("━" * filled, style), ("╌" * (BAR_WIDTH - filled), "dim"))


def _clock(snapshot: DemoSnapshot) -> Text:
    seconds = snapshot.settings.seconds
    if snapshot.phase == "arriving":
        return Text("the remaining messages are in transit")
    if snapshot.phase == "late subscriber":
        return Text("all messages arrived; a late subscriber receives the last temperature of each room")
    if snapshot.phase == "tables":
        return Text(f"Spark makes tables and a report of the logged messages ({snapshot.elapsed_s:.0f} s)")
    if seconds is None:
        return Text(f"{snapshot.elapsed_s:.0f} s, until Ctrl-C")
    elapsed_s = min(snapshot.elapsed_s, seconds)
    return Text(f"{elapsed_s:5.1f} s of {seconds:g} s  ") + bar(elapsed_s / seconds, "blue")


def _rooms(snapshot: DemoSnapshot, history: Mapping[str, Sequence[float]]) -> list[Text]:
    titles = f"{'room':14}{'sent':>10}{'arrived':>10}{'in transit':>11}{'now':>10}   temperature so far"
    lines = [Text(titles, style="dim")]
    arrived = {room.room: room for room in snapshot.seen.rooms}
    for room in snapshot.rooms.rooms:
        there = arrived.get(room.room)
        received = 0 if there is None else there.received
        celsius = "" if there is None else f"{there.celsius:.1f} °C"
        in_transit = max(room.sent - received, 0)  # the two reports differ in time
        line = Text(f"{room.room:14}{max(room.sent, received):10,}{received:10,}{in_transit:11,}{celsius:>10}   ")
        lines.append(line.append(spark(history.get(room.room, ())), style="cyan"))
    return lines


def spark(values: Sequence[float]) -> str:
    """Return the values as a row of bars, sampled to the width and scaled to their range."""
    if not values:
        return ""
    if len(values) > SPARK_WIDTH:
        values = [values[place * (len(values) - 1) // (SPARK_WIDTH - 1)] for place in range(SPARK_WIDTH)]
    least, most = min(values), max(values)
    scale = (len(SPARKS) - 1) / ((most - least) or 1.0)
    return "".join(SPARKS[round((value - least) * scale)] for value in values)


def faults(snapshot: DemoSnapshot) -> list[Text]:
    """Return the counters of the network, by direction."""
    lines = [Text(f"{'the network':24}{'to the broker':>14}{'from the broker':>18}", style="dim")]
    for name, text in FAULTS.items():
        one, other = (snapshot.network[way][name] if way in snapshot.network else 0 for way in DIRECTIONS)
        lines.append(Text(f"{text:24}{one:14,}{other:18,}"))
    return lines


def _messages(snapshot: DemoSnapshot) -> list[Text]:
    return [
        Text("the messages", style="dim"),
        Text(f"{'rate':24}{snapshot.recent_per_s:,.0f} per second, {snapshot.seen.missed:,} lost"),
        Text(f"{'late':24}{_late(snapshot)}"),
        Text(f"{'delay':24}{_delays(snapshot)}"),
        Text(f"{'sent again':24}{snapshot.rooms.resent:,} fragments; {len(snapshot.moved_at_s)} changes of address"),
        Text(f"{'jobs':24}{_work(snapshot)}"),
    ]


def _late(snapshot: DemoSnapshot) -> str:
    return f"{snapshot.seen.late:,} took more than {milliseconds(LATE_S)}"


def _work(snapshot: DemoSnapshot) -> str:
    work = snapshot.work
    text = f"{work.done:,} of {work.submitted:,} done"
    if snapshot.killed:
        text += f", {snapshot.killed} was killed, {work.replaced:,} of its tasks taken over"
    return text


def _delays(snapshot: DemoSnapshot) -> str:
    delays = snapshot.seen.delays
    return (
        f"half within {delays.within_ms(0.5):.0f} ms, 99 % within {delays.within_ms(0.99):.0f} ms, "
        f"the longest {milliseconds(delays.longest_s)}"
    )


# -- the end ----------------------------------------------------------------------------------------------------------


def summary(snapshot: DemoSnapshot) -> list[Text]:
    """Return the lines of the summary, without the verdict."""
    rooms, seen = snapshot.rooms, snapshot.seen
    facts = {
        "published": f"{rooms.sent:,} messages by {len(rooms.rooms)} clients, all confirmed by the broker",
        "received": f"{seen.received:,} messages, {seen.received_bytes / 1e6:.1f} MB, their numbers and the SHA-256 "
        "of each room checked",
        "lost": f"{seen.missed:,}",
        "late": _late(snapshot),
        "delay": _delays(snapshot),
        "sent again": f"{rooms.resent:,} fragments, by the rooms",
        "address changes": f"{len(snapshot.moved_at_s)}, of every client",
        "jobs": f"{_work(snapshot)}; every result checked",
        "retained": f"{len(seen.retained)} of {len(rooms.rooms)} last temperatures, for a late subscriber",
    }
    return [
        Text(),
        *faults(snapshot),
        Text(),
        Text("the messages", style="dim"),
        *(Text(line) for name, text in facts.items() for line in hanging(name, text, title_width=FACTS_WIDTH)),
        Text(),
    ]


def verdict(snapshot: DemoSnapshot) -> tuple[bool, str]:
    """Return whether everything is right, and the last line."""
    problems = snapshot.problems()
    if not problems and not snapshot.rooms.last_digests:
        problems = ["the broker did not confirm everything in time"]
    if problems:
        return False, f"FAILED: {'; '.join(problems)}."
    return True, f"Every one of {snapshot.rooms.sent:,} messages arrived once and in order."
