"""The display of `godwit demo`: live on a terminal, plain lines elsewhere, the summary at the end, and the report.

The live display runs in the process of the network. It consists of plain lines of text, because a frame made of tables
takes ten times as long (9 ms), during which no datagram passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from godwit.cli.demo_processes import DELAYS_MS, LATE_S, LEASE_S, WORKERS
from godwit.cli.demo_run import DELAY_S, LINE_BITS_PER_S, SAMPLE_S, DemoSettings, DemoSnapshot
from godwit.cli.house import ROOMS
from godwit.cli.new_file import new_file
from godwit.cli.text import hanging
from godwit.net.relay import Direction

if TYPE_CHECKING:
    from godwit.pipeline.report.markup import ReportStory

LINE_EVERY_S: Final = 2.0
FRAME_EVERY_S: Final = 0.2
FACTS_WIDTH: Final = 17
"""Width of the titles in the summary, so that most facts fit a line of 80."""
BAR_WIDTH: Final = 40
SPARK_WIDTH: Final = 36
SPARK_EVERY_S: Final = 0.5
SPARKS: Final = "▁▂▃▄▅▆▇█"
BADGE_SHARE: Final = 0.05
"""Width of a badge, as a share of the width of the course on a narrow screen."""
MADE_BY: Final = "Made by <b>godwit demo</b>."

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
    for text, (one, other) in fault_counts(snapshot).items():
        lines.append(Text(f"{text:24}{one:14,}{other:18,}"))
    return lines


def fault_counts(snapshot: DemoSnapshot) -> dict[str, tuple[int, int]]:
    """Return the counters of the network to the broker and from it, by title."""
    there, back = (snapshot.network.get(way, Counter()) for way in DIRECTIONS)
    return {text: (there[name], back[name]) for name, text in FAULTS.items()}


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
    lines = [
        Text(line) for name, text in facts(snapshot).items() for line in hanging(name, text, title_width=FACTS_WIDTH)
    ]
    return [Text(), *faults(snapshot), Text(), Text("the messages", style="dim"), *lines, Text()]


def facts(snapshot: DemoSnapshot) -> dict[str, str]:
    """Return the results by title. The terminal and the report show the same."""
    rooms, seen = snapshot.rooms, snapshot.seen
    over_mqtt = f" ({rooms.mqtt_rooms} with MQTT)" if rooms.mqtt_rooms else ""
    return {
        "published": f"{rooms.sent:,} messages by {len(rooms.rooms)} clients{over_mqtt}, all confirmed by the broker",
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


def verdict(snapshot: DemoSnapshot) -> tuple[bool, str]:
    """Return whether everything is right, and the last line."""
    problems = snapshot.problems()
    if not problems and not snapshot.rooms.last_digests:
        problems = ["the broker did not confirm everything in time"]
    if problems:
        return False, f"FAILED: {'; '.join(problems)}."
    return True, f"Every one of {snapshot.rooms.sent:,} messages arrived once and in order."


# -- the report -------------------------------------------------------------------------------------------------------


class CourseEvent(NamedTuple):
    """An event in the course of the demo. The text is HTML."""

    at_s: float
    text: str


def write_demo_report(snapshot: DemoSnapshot, path: Path, lake: Path | None) -> None:
    """Write the report: the story of the demo, then the tables of the lake, if there is one.

    Raises:
        GodwitError: Writing the file failed.
    """
    from godwit.pipeline.report.markup import navigation, nothing, page, safe

    story = demo_story(snapshot)
    with new_file(path, force=True) as part:
        if lake is not None:
            from godwit.pipeline.lake import Lake
            from godwit.pipeline.report.page import write_report

            write_report(Lake(str(lake)), part, story)
            return
        why = snapshot.pipeline.sentence if snapshot.pipeline is not None else ""
        lines = story.lead + navigation(story.links)
        part.write_text(page(story.title, lines, story.body + nothing(safe(why, 400)), MADE_BY), encoding="utf-8")


def demo_story(snapshot: DemoSnapshot) -> ReportStory:
    """Return the story of the demo: the faults of the network beside the result, the course, and the delays."""
    from godwit.pipeline.report.markup import ReportStory, duration, safe

    good, text = verdict(snapshot)
    settings = snapshot.settings
    offered, damaged = fault(snapshot, "offered"), fault(snapshot, "corrupted")
    share = f"{100 * lost(snapshot) / offered:.1f} %" if offered else "none"
    lead = (
        f'<p class="soft">{len(snapshot.rooms.rooms)} rooms published their temperatures to a broker and a subscriber '
        f"received them, over a network that lost {lost(snapshot):,} of {offered:,} datagrams ({share}), damaged "
        f"{damaged:,}, repeated {fault(snapshot, 'duplicated'):,} and let others overtake "
        f"{fault(snapshot, 'reordered'):,}. All clients got other addresses, and a worker was killed.</p>"
    )
    ahead_s = settings.rate * (settings.seconds or 0.0)
    clocks = (
        "The clocks of the rooms run fast, so that the readings are many enough to be tables: they began a week ago, "
        f"each reading is one second after the one before, and a room sends {settings.rate:,.0f} of them per second. "
        f"So {settings.seconds or 0:g} s of the demo are about {duration(ahead_s)} of readings. Readings and alarms "
        "are at these times; the other sections have the time of receipt, by the clock of the broker."
    )
    return ReportStory(
        title=safe(text, 300) if good else f'<span class="bad">{safe(text, 300)}</span>',
        lead=lead,
        body=_result(snapshot) + _course(snapshot) + _delay_section(snapshot),
        links=(("result", "Result"), ("course", "Course"), ("delays", "Delays")),
        clocks=clocks,
    )


def _result(snapshot: DemoSnapshot) -> str:
    """Return the faults of the network, and beside them the result."""
    from godwit.pipeline.report.markup import safe, table, whole

    network = [
        f'<tr><th scope="row">{safe(name)}</th><td class="number">{whole(one)}</td>'
        f'<td class="number">{whole(other)}</td></tr>'
        for name, (one, other) in fault_counts(snapshot).items()
    ]
    heads = (("", ""), ("to the broker", "number"), ("from the broker", "number"))
    look = (
        "Look at the lost and damaged datagrams, and on the other side at the lost messages. A relay between the "
        f"clients and the broker did this to real UDP datagrams, by chance, from the seed {snapshot.settings.seed}."
    )
    results = [
        f'<tr><th scope="row">{safe(name)}</th><td>{safe(text, 200)}</td></tr>'
        for name, text in facts(snapshot).items()
    ]
    return (
        f'<div class="pair"><div class="panel"><h2>The network</h2>{table(heads, network, is_panel=False)}'
        f'<p class="soft">{look}</p></div><div class="panel"><h2 id="result">The result</h2>'
        f"{table((), results, is_panel=False)}</div></div>"
    )


def course_events(snapshot: DemoSnapshot) -> list[CourseEvent]:
    """Return the events of the demo in their order."""
    from godwit.pipeline.report.markup import several

    work = snapshot.work
    events = [
        CourseEvent(at_s, "The network assigns another address to every client. The connections continue.")
        for at_s in snapshot.moved_at_s
    ]
    if snapshot.killed_at_s is not None:
        events.append(CourseEvent(snapshot.killed_at_s, f"The worker {snapshot.killed} is killed during its work."))
    if snapshot.replaced_at_s is not None:
        others = " and ".join(name for name in WORKERS if name != snapshot.killed)
        events.append(
            CourseEvent(
                snapshot.replaced_at_s,
                f"The broker has had no report of {snapshot.killed} for {LEASE_S:g} s: {others} takes over "
                f"{several(work.replaced, 'task')}.",
            )
        )
    if snapshot.sent_at_s is not None:
        events.append(CourseEvent(snapshot.sent_at_s, "The rooms send their last messages."))
    if snapshot.arrived_at_s is not None:
        events.append(
            CourseEvent(snapshot.arrived_at_s, "The last message has arrived, and the last job has been done.")
        )
    return sorted(events, key=lambda event: event.at_s)


def _course(snapshot: DemoSnapshot) -> str:
    """Return messages, faults and finished tasks over time, with the events."""
    from godwit.pipeline.report.markup import count_strip, nothing, section, several

    events = course_events(snapshot)
    samples = snapshot.samples
    lead = "Look at the rows behind the red marks: do messages and jobs continue?"
    if len(samples) < 2:
        return section("course", "The course of the demo", lead, nothing("No samples were taken."))
    end_s = max(samples[-1].at_s, *(event.at_s for event in events), 0.001)
    shares = [event.at_s / end_s for event in events]

    def row(name: str, style: str, counts: Sequence[int], fact: str) -> str:
        steps = [0] * round(end_s / SAMPLE_S + 1)
        for (before, after), sample in zip(pairwise(counts), samples, strict=False):
            steps[min(int(sample.at_s / SAMPLE_S), len(steps) - 1)] += max(after - before, 0)
        return _row(name, f"<div>{count_strip(steps, name, style, shares)}</div>", fact)

    damaged = lost(snapshot) + fault(snapshot, "corrupted")
    received = several(snapshot.seen.received, "message")
    rows = [
        row("messages that arrived", "activity", [one.received for one in samples], received),
        row("datagrams lost or damaged", "faulty", [one.faults for one in samples], several(damaged, "datagram")),
    ]
    for worker, finished in sorted(snapshot.work.by_worker.items()):
        name = f"tasks of {worker}{', killed' if worker == snapshot.killed else ''}"
        counts = [one.tasks.get(worker, 0) for one in samples]
        rows.append(row(name, "working", counts, several(finished, "task")))
    badges = "".join(
        f'<b style="left:clamp(10px,{100 * share:.2f}%,100% - 10px)">{names}</b>' for names, share in _badges(shares)
    )
    items = "".join(
        f"<li><b>{number}. {event.at_s:.1f} s</b><span>{event.text}</span></li>"
        for number, event in enumerate(events, 1)
    )
    ends = f'<div class="ends"><span>0 s</span><span>{end_s:.1f} s</span></div>'
    marks = _row("", f'<div class="marks">{badges}</div>', "")
    axis = _row("", f"<div>{ends}</div>", "")
    content = f'<div class="panel course">{marks}{"".join(rows)}{axis}</div><ol class="events">{items}</ol>'
    return section("course", "The course of the demo", lead, content)


def _badges(shares: Sequence[float]) -> list[tuple[str, float]]:
    """Return the numbers of the events with their places. Events at almost the same time share a badge."""
    groups: list[list[int]] = []
    for number, share in enumerate(shares):
        if groups and share - shares[groups[-1][0]] < BADGE_SHARE:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [(", ".join(str(number + 1) for number in group), shares[group[0]]) for group in groups]


def _row(name: str, content: str, fact: str) -> str:
    return f'<div class="row"><div class="name">{name}</div>{content}<div class="fact">{fact}</div></div>'


def _delay_section(snapshot: DemoSnapshot) -> str:
    """Return the histogram of the delays."""
    from godwit.pipeline.report.markup import section, several

    delays = snapshot.seen.delays
    total = sum(delays.counts) or 1
    lead = (
        f"Look at the length of the tail: {_delays(snapshot)}. A message needs {milliseconds(2 * DELAY_S)} through the "
        "network and the broker; one that is behind a lost datagram waits for the retransmission. Delays are from the "
        "publisher's call to the subscriber's, by the clock of this machine."
    )
    rows = []
    used = [place for place, number in enumerate(delays.counts) if number] or [0]
    names = [*(f"up to {bound_ms:,} ms" for bound_ms in DELAYS_MS), f"more than {DELAYS_MS[-1]:,} ms"]
    for name, number in list(zip(names, delays.counts, strict=True))[used[0] : used[-1] + 1]:
        bar = f'<div class="bar"><i style="width:{100 * number / total:.2f}%"></i></div>' if number else "<div></div>"
        rows.append(_row(name, bar, several(number, "message")))
    return section("delays", "Delays", lead, f'<div class="panel histogram">{"".join(rows)}</div>')
