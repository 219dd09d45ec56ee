"""What `godwit demo` shows: a live display, plain lines where there is no terminal, and the summary at the end.

The live display runs in the process of the sender and of the network. It is made of plain lines of text, because a
frame made of tables took ten times as long (9 ms), which was seen in the goodput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from godwit.cli.demo_run import DELAY_S, LINE_BITS_PER_S, Picture
from godwit.net.relay import Direction
from godwit.sim.rooms import ROOMS

LINE_EVERY_S: Final = 2.0
FRAME_EVERY_S: Final = 0.2
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
WASTE: Final[Mapping[str, str]] = {
    "checksum": "damaged",
    "repeated": "repeats",
    "repeated_fragment": "sent again in vain",
    "unproven_path": "from an unproven address",
}
"""Why the receiver threw packets away, and what that is called here."""


def megabits(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e6:.1f} Mbit/s"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def heading(loss: float) -> str:
    return (
        f"{len(ROOMS)} rooms send their temperatures over a bad network: {LINE_BITS_PER_S / 1e6:g} Mbit/s, "
        f"{milliseconds(DELAY_S)} each way, {loss * 100:g} % lost"
    )


def fault(picture: Picture, name: str) -> int:
    """How many, in both directions."""
    return sum(counters[name] for counters in picture.network.values())


class View(Protocol):
    """Is shown ten pictures a second; closed before anything else is printed."""

    def show(self, picture: Picture) -> None: ...
    def close(self) -> None: ...


# -- without a terminal -----------------------------------------------------------------------------------------------


class Lines:
    """A line every two seconds, and one for every change of address."""

    def __init__(self, console: Console, loss: float) -> None:
        self._console = console
        self._next_s = LINE_EVERY_S
        self._moved = 0
        self._found = 0
        self._print(heading(loss))

    def show(self, picture: Picture) -> None:
        if len(picture.moved_at_s) > self._moved:
            self._moved = len(picture.moved_at_s)
            self._print(f"{picture.moved_at_s[-1]:6.1f} s  the network gives the sender another address")
        if picture.report.moves > self._found:
            self._found = picture.report.moves
            self._print(f"{picture.elapsed_s:6.1f} s  the receiver has checked the new address and goes on there")
        if picture.elapsed_s >= self._next_s and not picture.finishing:
            self._next_s += LINE_EVERY_S
            self._print(progress_line(picture))

    def close(self) -> None:
        """Nothing is to be cleared away."""

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def progress_line(picture: Picture) -> str:
    lost = fault(picture, "lost") + fault(picture, "queue_full")
    return (
        f"{picture.elapsed_s:6.1f} s  {picture.report.received:9,} messages arrived, "
        f"{megabits(picture.recent_bits_per_s)}, round trip {milliseconds(picture.statistics.round_trip_s)}; "
        f"{lost:,} lost, {fault(picture, 'corrupted'):,} damaged, {picture.statistics.fragments_resent:,} sent again"
    )


# -- with a terminal --------------------------------------------------------------------------------------------------


class Display:
    """A picture that stays in place and changes; at the end only its heading is left, for the summary."""

    def __init__(self, console: Console, loss: float) -> None:
        self._heading = Text(heading(loss), style="bold")
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
            for room in picture.report.rooms:
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
    blank = Text()
    return [
        blank,
        _clock(picture),
        blank,
        *_rooms(picture, history),
        blank,
        *faults(picture),
        blank,
        *_transport(picture),
    ]


def bar(share: float, style: str) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * BAR_WIDTH)
    return Text.assemble(("━" * filled, style), ("╌" * (BAR_WIDTH - filled), "dim"))


def _clock(picture: Picture) -> Text:
    seconds = picture.settings.seconds
    if seconds is None:
        return Text(f"{picture.elapsed_s:.0f} s, until Ctrl-C")
    elapsed_s = min(picture.elapsed_s, seconds)
    return Text(f"{elapsed_s:5.1f} s of {seconds:g} s  ") + bar(elapsed_s / seconds, "blue")


def _rooms(picture: Picture, history: Mapping[str, Sequence[float]]) -> list[Text]:
    titles = f"{'channel':14}{'sent':>10}{'arrived':>10}{'under way':>11}{'now':>10}   temperature so far"
    lines = [Text(titles, style="dim")]
    arrived = {room.room: room for room in picture.report.rooms}
    for room in picture.rooms:
        there = arrived.get(room.room)
        received = 0 if there is None else there.received
        celsius = "" if there is None else f"{there.celsius:.1f} °C"
        line = Text(f"{room.room:14}{room.sent:10,}{received:10,}{room.sent - received:11,}{celsius:>10}   ")
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
    lines = [Text(f"{'the network':24}{'to the data':>14}{'to the answers':>18}", style="dim")]
    for name, text in FAULTS.items():
        one, other = (picture.network[way][name] if way in picture.network else 0 for way in DIRECTIONS)
        lines.append(Text(f"{text:24}{one:14,}{other:18,}"))
    return lines


def _transport(picture: Picture) -> list[Text]:
    statistics = picture.statistics
    share = picture.recent_bits_per_s / LINE_BITS_PER_S
    goodput = f"  {megabits(picture.recent_bits_per_s)}, {share:.0%} of the line"
    return [
        Text("Godwit", style="dim"),
        Text(f"{'goodput':24}") + bar(share, "green") + goodput,
        Text(f"{'round trip':24}{_trips(picture)}"),
        Text(f"{'sent again':24}{statistics.fragments_resent:,} fragments"),
        Text(f"{'address changes':24}{_moves(picture)}"),
    ]


def _trips(picture: Picture) -> str:
    statistics = picture.statistics
    return f"{milliseconds(statistics.round_trip_s)}, the shortest {milliseconds(statistics.shortest_trip_s)}"


def _moves(picture: Picture) -> str:
    made = len(picture.moved_at_s)
    if not made:
        return "none yet"
    state = "survived" if picture.report.moves >= made else "the receiver checks the new address"
    return f"{made}, the last at {picture.moved_at_s[-1]:.1f} s: {state}"


# -- the end ----------------------------------------------------------------------------------------------------------


def summary(picture: Picture) -> list[Text]:
    """What happened. The verdict is not among these lines."""
    report, statistics = picture.report, picture.statistics
    thrown_away = [f"{report.dropped[name]:,} {text}" for name, text in WASTE.items() if name in report.dropped]
    share = picture.goodput_bits_per_s / LINE_BITS_PER_S
    facts = {
        "sent": f"{picture.sent:,} messages in batches of {picture.sent // max(report.records, 1)}, "
        f"{report.received_bytes / 1e6:.1f} MB, on {len(picture.rooms)} channels",
        "received": f"{report.received:,} messages, their numbers and the SHA-256 of each channel checked",
        "sent again": f"{statistics.fragments_resent:,} fragments, in {statistics.packets_sent:,} packets sent in all",
        "thrown away": ", ".join(thrown_away) or "nothing",
        "address changes": f"{report.moves} of {len(picture.moved_at_s)} survived" if picture.moved_at_s else "none",
        "longest pause": f"{milliseconds(report.longest_pause_s)} between two arrivals",
        "round trip": _trips(picture),
        "goodput": f"{megabits(picture.goodput_bits_per_s)}, {share:.0%} of the line's {megabits(LINE_BITS_PER_S)}",
    }
    return [
        Text(),
        *faults(picture),
        Text(),
        Text("Godwit", style="dim"),
        *(Text(f"{name:24}{text}") for name, text in facts.items()),
        Text(),
    ]


def verdict(picture: Picture) -> tuple[bool, str]:
    """Whether all is well, and the last line."""
    problems = picture.problems()
    if problems:
        return False, f"FAILED: {'; '.join(problems)}."
    if not picture.sent:
        return True, "Stopped before anything was sent."
    return True, f"Every one of {picture.sent:,} messages arrived once and in order."
