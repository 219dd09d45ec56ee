"""What `godwit demo` shows: a live display, plain lines where there is no terminal, and the summary at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from godwit.cli.demo_run import DELAY_S, LINE_BITS_PER_S, Picture

LINE_EVERY_S: Final = 2.0
SPARK_WIDTH: Final = 30
SPARK_EVERY_S: Final = 0.5
SPARKS: Final = "▁▂▃▄▅▆▇█"
INDENT: Final = "  "

FAULTS: Final[Mapping[str, str]] = {
    "lost": "lost",
    "queue_full": "lost in a full queue",
    "corrupted": "damaged",
    "duplicated": "repeated",
    "reordered": "held back, overtaken",
}
"""What the link counts, and what it is called here."""
WASTE: Final[Mapping[str, str]] = {
    "checksum": "damaged",
    "repeated": "repeats",
    "repeated_fragment": "needless repeats",
    "unproven_path": "from an unproven address",
}
"""Why the receiver threw packets away."""


def megabits(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e6:.1f} Mbit/s"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def heading(loss: float) -> str:
    return (
        f"Five rooms send their temperatures over a bad network: {LINE_BITS_PER_S / 1e6:.0f} Mbit/s, "
        f"{milliseconds(DELAY_S)} each way, {loss:.1%} lost"
    )


def fault(picture: Picture, name: str) -> int:
    """In both directions."""
    return sum(counters[name] for counters in picture.network.values())


# -- without a terminal -----------------------------------------------------------------------------------------------


class Lines:
    """A line every two seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = LINE_EVERY_S

    def show(self, picture: Picture) -> None:
        if picture.elapsed_s >= self._next_s:
            self._next_s += LINE_EVERY_S
            self._console.print(progress_line(picture), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """There is nothing to clear away."""


def progress_line(picture: Picture) -> str:
    lost = fault(picture, "lost") + fault(picture, "queue_full")
    line = (
        f"{picture.elapsed_s:5.1f} s  {picture.report.received:9,} of {picture.sent:9,} messages have arrived, "
        f"{megabits(picture.recent_bits_per_s)}, round trip {milliseconds(picture.statistics.round_trip_s)}; "
        f"network: {lost:,} lost, {fault(picture, 'corrupted'):,} damaged, {fault(picture, 'duplicated'):,} repeated, "
        f"{fault(picture, 'reordered'):,} overtaken; sent again: {picture.statistics.fragments_resent:,}"
    )
    return f"{line}; address changes: {picture.report.moves}" if picture.moved_at_s else line


# -- with a terminal --------------------------------------------------------------------------------------------------


class Display:
    """A picture that stays in place and moves; it vanishes at the end, for the summary."""

    def __init__(self, console: Console) -> None:
        self._history: dict[str, list[float]] = {}
        self._next_spark_s = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, picture: Picture) -> None:
        if picture.elapsed_s >= self._next_spark_s:
            self._next_spark_s = picture.elapsed_s + SPARK_EVERY_S
            for room in picture.report.rooms:
                self._history.setdefault(room.room, []).append(room.celsius)
        self._live.update(render(picture, self._history), refresh=True)

    def close(self) -> None:
        self._live.stop()


def render(picture: Picture, history: Mapping[str, Sequence[float]]) -> RenderableType:
    return Group(
        Text(heading(picture.settings.loss), style="bold"),
        "",
        _clock(picture),
        "",
        _rooms(picture, history),
        "",
        _network(picture),
        "",
        _transport(picture),
    )


def _grid(*widths: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for place, width in enumerate(widths):
        table.add_column(justify="right" if place else "left", min_width=width)
    return table


def _clock(picture: Picture) -> Table:
    seconds = picture.settings.seconds
    table = Table.grid(padding=(0, 2))
    if seconds is None:
        state = "finishing" if picture.finishing else "until Ctrl-C"
        table.add_row(f"{picture.elapsed_s:5.1f} s", Text(state, style="dim"))
    else:
        bar = ProgressBar(total=seconds, completed=min(picture.elapsed_s, seconds), width=50)
        table.add_row(f"{min(picture.elapsed_s, seconds):5.1f} s of {seconds:g} s", bar)
    return table


def _rooms(picture: Picture, history: Mapping[str, Sequence[float]]) -> Table:
    table = _grid(12, 10, 10, 10, 10, SPARK_WIDTH)
    table.columns[-1].justify = "left"
    dim = "dim"
    table.add_row(
        *(Text(title, style=dim) for title in ("channel", "sent", "arrived", "under way", "now", "temperature so far"))
    )
    arrived = {room.room: room for room in picture.report.rooms}
    for room in picture.rooms:
        there = arrived.get(room.room)
        received = 0 if there is None else there.received
        table.add_row(
            room.room,
            f"{room.sent:,}",
            f"{received:,}",
            f"{room.sent - received:,}",
            "" if there is None else f"{there.celsius:.1f} °C",
            Text(spark(history.get(room.room, ())), style="cyan"),
        )
    return table


def spark(values: Sequence[float]) -> str:
    """The values as bars, thinned out to the width, the least and the most of them at the ends of the scale."""
    if not values:
        return ""
    if len(values) > SPARK_WIDTH:
        values = [values[place * len(values) // SPARK_WIDTH] for place in range(SPARK_WIDTH)]
    least, most = min(values), max(values)
    scale = (len(SPARKS) - 1) / ((most - least) or 1.0)
    return "".join(SPARKS[round((value - least) * scale)] for value in values)


def _network(picture: Picture) -> Table:
    table = _grid(24, 10, 10)
    table.add_row(*(Text(title, style="dim") for title in ("what the network did", "to the data", "to the answers")))
    table.add_row("datagrams", *_both(picture, "offered"))
    for name, text in FAULTS.items():
        table.add_row(Text(text, style="red"), *_both(picture, name))
    return table


def _both(picture: Picture, name: str) -> list[str]:
    return [f"{picture.network[way][name]:,}" if way in picture.network else "" for way in ("to_target", "to_client")]


def _transport(picture: Picture) -> Table:
    statistics = picture.statistics
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=24)
    table.add_row(Text("what Godwit makes of it", style="dim"), "")
    share = picture.recent_bits_per_s / LINE_BITS_PER_S
    bar = ProgressBar(total=1.0, completed=min(share, 1.0), width=30, complete_style="green")
    table.add_row("goodput", f"{megabits(picture.recent_bits_per_s)}, {share:.0%} of the line")
    table.add_row("", bar)
    trip = f"{milliseconds(statistics.round_trip_s)}, the shortest {milliseconds(statistics.shortest_trip_s)}"
    table.add_row("round trip", trip)
    table.add_row("sent again", f"{statistics.fragments_resent:,} fragments")
    table.add_row("address changes", _moves(picture))
    return table


def _moves(picture: Picture) -> str:
    made = len(picture.moved_at_s)
    if not made:
        return "none yet"
    state = "survived" if picture.report.moves >= made else "looking for the new address"
    return f"{made}, the last at {picture.moved_at_s[-1]:.1f} s: {state}"


# -- the end ----------------------------------------------------------------------------------------------------------


def summary(picture: Picture) -> list[str]:
    """Worth reading. The verdict is not among these lines."""
    report, statistics = picture.report, picture.statistics
    lines = [
        f"Sent      {picture.sent:,} messages in {report.records:,} batches on {len(picture.rooms)} channels",
        f"Arrived   {report.received:,} messages, {report.received_bytes / 1e6:.1f} MB in {report.active_s:.1f} s",
        "",
        f"{'What the network did':26}{'to the data':>14}{'to the answers':>16}",
    ]
    for name, text in {"offered": "datagrams", **FAULTS}.items():
        lines.append(f"{INDENT}{text:24}" + "".join(f"{value:>{w}}" for value, w in zip(_both(picture, name), (14, 16))))
    lines += ["", "What Godwit did"]
    share = picture.goodput_bits_per_s / LINE_BITS_PER_S
    facts = {
        "sent again": f"{statistics.fragments_resent:,} fragments of {statistics.packets_sent:,} packets; "
        f"{statistics.packets_spuriously_lost:,} of the packets given up as lost were only late",
        "thrown away": ", ".join(f"{report.dropped[name]:,} {text}" for name, text in WASTE.items() if name in report.dropped)
        or "nothing",
        "address changes": f"{report.moves} of {len(picture.moved_at_s)} survived; "
        f"no pause between two arrivals was longer than {milliseconds(report.longest_pause_s)}",
        "round trip": f"{milliseconds(statistics.round_trip_s)}, the shortest {milliseconds(statistics.shortest_trip_s)}",
        "goodput": f"{megabits(picture.goodput_bits_per_s)} of a line of {megabits(LINE_BITS_PER_S)}: {share:.0%}",
    }
    lines += [f"{INDENT}{name:18}{text}" for name, text in facts.items()]
    return lines


def verdict(picture: Picture) -> tuple[bool, str]:
    """Whether all is well, and the last line."""
    problems = picture.problems()
    if problems:
        return False, f"FAILED: {'; '.join(problems)}."
    if not picture.sent:
        return True, "Stopped before anything was sent."
    return True, f"Every one of {picture.sent:,} messages arrived once and in order."
