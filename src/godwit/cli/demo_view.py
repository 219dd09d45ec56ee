"""What `godwit demo` shows: a live display, plain lines where there is no terminal, and the summary at the end.

The live display runs in the process of the network. It is made of plain lines of text, because a frame made of tables
takes ten times as long (9 ms), during which no datagram passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from godwit.cli.demo_check import LATE_S
from godwit.cli.demo_run import DELAY_S, LINE_BITS_PER_S, Picture, Settings
from godwit.cli.house import ROOMS
from godwit.cli.text import hanging
from godwit.net.relay import Direction

LINE_EVERY_S: Final = 2.0
FRAME_EVERY_S: Final = 0.2
FACTS_WIDTH: Final = 17
"""Of the titles in the summary, so that most facts fit a line of 80."""
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
"""What a link counts, and what it is called here."""
DIRECTIONS: Final[tuple[Direction, ...]] = ("to_target", "to_client")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def heading(settings: Settings) -> str:
    return (
        f"{len(ROOMS)} rooms -> broker -> subscriber, over a bad network: {LINE_BITS_PER_S / 1e6:g} Mbit/s a client, "
        f"{milliseconds(DELAY_S)} each way, {settings.loss * 100:g} % lost"
    )


def fault(picture: Picture, name: str) -> int:
    """How many, in both directions."""
    return sum(counters[name] for counters in picture.network.values())


def lost(picture: Picture) -> int:
    return fault(picture, "lost") + fault(picture, "queue_full")


class View(Protocol):
    """Is shown ten pictures a second; closed before anything else is printed."""

    def show(self, picture: Picture) -> None: ...
    def close(self) -> None: ...


# -- without a terminal -----------------------------------------------------------------------------------------------


class Lines:
    """A line every two seconds, and one for every change of address."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._console = console
        self._next_s = LINE_EVERY_S
        self._moved = 0
        self._has_told_kill = self._has_told_tables = False
        self._print(heading(settings))

    def show(self, picture: Picture) -> None:
        if len(picture.moved_at_s) > self._moved:
            self._moved = len(picture.moved_at_s)
            self._print(f"{picture.moved_at_s[-1]:6.1f} s  the network gives every client another address")
        if picture.killed and not self._has_told_kill:
            self._has_told_kill = True
            self._print(f"{picture.elapsed_s:6.1f} s  the worker {picture.killed} is killed in the middle of its work")
        if picture.phase == "tables" and not self._has_told_tables:
            self._has_told_tables = True
            self._print(f"{picture.elapsed_s:6.1f} s  Spark makes tables and a report of what the broker has logged")
        if picture.elapsed_s >= self._next_s and picture.phase == "sending":
            self._next_s += LINE_EVERY_S
            self._print(progress_line(picture))

    def close(self) -> None:
        """Nothing is to be cleared away."""

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def progress_line(picture: Picture) -> str:
    return (
        f"{picture.elapsed_s:6.1f} s  {picture.seen.received:9,} messages arrived, {picture.recent_per_s:,.0f} a second"
        f"; datagrams: {lost(picture):,} lost, {fault(picture, 'corrupted'):,} damaged"
    )


# -- with a terminal --------------------------------------------------------------------------------------------------


class Display:
    """A picture that stays in place and changes; at the end only its heading is left, for the summary."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._heading = Text(heading(settings), style="bold")
        self._history: dict[str, list[float]] = {}
        self._next_frame_s = 0.0
        self._next_spark_s = 0.0
        self._live = Live(self._heading, console=console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def show(self, picture: Picture) -> None:
        if picture.elapsed_s < self._next_frame_s:
            return
        self._next_frame_s = picture.elapsed_s + FRAME_EVERY_S
        if picture.elapsed_s >= self._next_spark_s:
            self._next_spark_s = picture.elapsed_s + SPARK_EVERY_S
            for room in picture.seen.rooms:
                self._history.setdefault(room.room, []).append(room.celsius)
        self._live.update(joined([self._heading, *frame(picture, self._history)]), refresh=True)

    def close(self) -> None:
        self._live.update(self._heading)
        self._live.transient = False
        self._live.stop()


def joined(lines: Sequence[Text]) -> Text:
    """Lines that are cut at the terminal's edge, not wrapped."""
    text = Text("\n").join(lines)
    text.no_wrap = True
    text.overflow = "crop"
    return text


def frame(picture: Picture, history: Mapping[str, Sequence[float]]) -> list[Text]:
    """Fits a terminal of 24 lines, with the heading."""
    blank = Text()
    return [
        _clock(picture),
        blank,
        *_rooms(picture, history),
        blank,
        *faults(picture),
        blank,
        *_messages(picture),
    ]


def bar(share: float, style: str) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * BAR_WIDTH)
    return Text.assemble(("━" * filled, style), ("╌" * (BAR_WIDTH - filled), "dim"))


def _clock(picture: Picture) -> Text:
    seconds = picture.settings.seconds
    if picture.phase == "arriving":
        return Text("the rest is under way")
    if picture.phase == "late subscriber":
        return Text("all is there; one more subscriber comes, and gets the last temperature of each room")
    if picture.phase == "tables":
        return Text(f"Spark makes tables and a report of what the broker has logged ({picture.elapsed_s:.0f} s)")
    if seconds is None:
        return Text(f"{picture.elapsed_s:.0f} s, until Ctrl-C")
    elapsed_s = min(picture.elapsed_s, seconds)
    return Text(f"{elapsed_s:5.1f} s of {seconds:g} s  ") + bar(elapsed_s / seconds, "blue")


def _rooms(picture: Picture, history: Mapping[str, Sequence[float]]) -> list[Text]:
    titles = f"{'room':14}{'sent':>10}{'arrived':>10}{'under way':>11}{'now':>10}   temperature so far"
    lines = [Text(titles, style="dim")]
    arrived = {room.room: room for room in picture.seen.rooms}
    for room in picture.rooms.rooms:
        there = arrived.get(room.room)
        received = 0 if there is None else there.received
        celsius = "" if there is None else f"{there.celsius:.1f} °C"
        under_way = max(room.sent - received, 0)  # the two reports are not of the same moment
        line = Text(f"{room.room:14}{max(room.sent, received):10,}{received:10,}{under_way:11,}{celsius:>10}   ")
        lines.append(line.append(spark(history.get(room.room, ())), style="cyan"))
    return lines


def spark(values: Sequence[float]) -> str:
    """The values as bars, thinned out to the width, the least and the most of them at the ends of the scale."""
    if not values:
        return ""
    if len(values) > SPARK_WIDTH:
        values = [values[place * (len(values) - 1) // (SPARK_WIDTH - 1)] for place in range(SPARK_WIDTH)]
    least, most = min(values), max(values)
    scale = (len(SPARKS) - 1) / ((most - least) or 1.0)
    return "".join(SPARKS[round((value - least) * scale)] for value in values)


def faults(picture: Picture) -> list[Text]:
    """What became of the datagrams, by direction."""
    lines = [Text(f"{'the network':24}{'to the broker':>14}{'from the broker':>18}", style="dim")]
    for name, text in FAULTS.items():
        one, other = (picture.network[way][name] if way in picture.network else 0 for way in DIRECTIONS)
        lines.append(Text(f"{text:24}{one:14,}{other:18,}"))
    return lines


def _messages(picture: Picture) -> list[Text]:
    return [
        Text("the messages", style="dim"),
        Text(f"{'rate':24}{picture.recent_per_s:,.0f} a second, {picture.seen.missed:,} lost"),
        Text(f"{'late':24}{_late(picture)}"),
        Text(f"{'delay':24}{_delays(picture)}"),
        Text(f"{'sent again':24}{picture.rooms.resent:,} fragments; {len(picture.moved_at_s)} changes of address"),
        Text(f"{'jobs':24}{_work(picture)}"),
    ]


def _late(picture: Picture) -> str:
    return f"{picture.seen.late:,} took more than {milliseconds(LATE_S)}"


def _work(picture: Picture) -> str:
    work = picture.work
    told = f"{work.done:,} of {work.submitted:,} done"
    if picture.killed:
        told += f", {picture.killed} was killed, {work.replaced:,} of its tasks taken over"
    return told


def _delays(picture: Picture) -> str:
    delays = picture.seen.delays
    return (
        f"half within {delays.within_ms(0.5):.0f} ms, 99 % within {delays.within_ms(0.99):.0f} ms, "
        f"the longest {milliseconds(delays.longest_s)}"
    )


# -- the end ----------------------------------------------------------------------------------------------------------


def summary(picture: Picture) -> list[Text]:
    """What happened. The verdict is not among these lines."""
    rooms, seen = picture.rooms, picture.seen
    facts = {
        "published": f"{rooms.sent:,} messages by {len(rooms.rooms)} clients, all confirmed by the broker",
        "received": f"{seen.received:,} messages, {seen.received_bytes / 1e6:.1f} MB, their numbers and the SHA-256 "
        "of each room checked",
        "lost": f"{seen.missed:,}",
        "late": _late(picture),
        "delay": _delays(picture),
        "sent again": f"{rooms.resent:,} fragments, by the rooms",
        "address changes": f"{len(picture.moved_at_s)}, of every client",
        "jobs": f"{_work(picture)}; every result checked",
        "retained": f"{len(seen.retained)} of {len(rooms.rooms)} last temperatures, for a subscriber who came late",
    }
    return [
        Text(),
        *faults(picture),
        Text(),
        Text("the messages", style="dim"),
        *(Text(line) for name, text in facts.items() for line in hanging(name, text, title_width=FACTS_WIDTH)),
        Text(),
    ]


def verdict(picture: Picture) -> tuple[bool, str]:
    """Whether all is well, and the last line."""
    problems = picture.problems()
    if not problems and not picture.rooms.last_digests:
        problems = ["the broker did not confirm everything in time"]
    if problems:
        return False, f"FAILED: {'; '.join(problems)}."
    return True, f"Every one of {picture.rooms.sent:,} messages arrived once and in order."
