"""The text, numbers, drawings and frame of the report, as HTML and SVG. Needs no package, not even pyarrow.

Names of topics and publishers, payloads and error details are untrusted. All of them pass through `safe`, which escapes
HTML and makes invisible characters visible. Colours come from the page's style sheet, for light and dark mode.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from godwit.pipeline.report.series import Point, Series, SeriesSummary

# -- text and numbers -------------------------------------------------------------------------------------------------

NONE: Final = "\N{EN DASH}"
"""Shown for a missing number."""
LONGEST: Final = 96
"""Characters shown of an untrusted text."""
_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Categories of Unicode that are invisible or change the direction of text."""
_STEPS: Final = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def safe(text: object, longest: int = LONGEST) -> str:
    """Escape text for element content and quoted attributes."""
    whole = str(text)
    shown = "".join(_visible(character) for character in whole[:longest])
    return html.escape(shown + ("…" if len(whole) > longest else ""), quote=True)


def breakable(topic: str) -> str:
    """Escape a topic, and allow line breaks between its levels."""
    return safe(topic).replace("/", "/<wbr>")


def safe_payload(payload: bytes, longest: int = LONGEST) -> str:
    """Escape a payload: as text if it is valid UTF-8, else its first bytes in hexadecimal."""
    head = payload[: longest * 4]  # a character has at most four bytes
    try:
        text = head.decode() if len(head) == len(payload) else head.decode(errors="ignore")
    except UnicodeDecodeError:
        return safe(f"0x{payload[: longest // 2].hex()}" + ("…" if len(payload) > longest // 2 else ""), 2 * longest)
    return safe(text, longest) if text.strip() else "<em>empty</em>"


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return " " if character in "\t\n\r" else f"\\u{ord(character):04x}"


def whole(number: float) -> str:
    """Format an integer."""
    return f"{number:,.0f}"


def value(number: float | None) -> str:
    """Format a measurement with four digits."""
    if number is None or not math.isfinite(number):
        return NONE
    return f"{number:,.0f}" if 1_000 <= abs(number) < 1e7 else f"{number:.4g}"


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def duration(seconds: float | None) -> str:
    """Format a duration in its two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    for (unit, length_s), (next_unit, next_length_s) in pairwise(_STEPS):
        if seconds >= length_s:
            rest = int(seconds % length_s // next_length_s)
            return f"{int(seconds // length_s)} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{seconds:.3g} s"


def moment(at_s: float, *, has_seconds: bool = True) -> str:
    """Format a time in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S" if has_seconds else "%Y-%m-%d %H:%M")


def short_moment(at_s: float, span_s: float) -> str:
    """Format a time with the precision that a range of `span_s` needs."""
    pattern = "%H:%M:%S" if span_s < 600 else "%H:%M" if span_s < 86_400 else "%d %b %H:%M"
    if span_s > 30 * 86_400:
        pattern = "%d %b %Y"
    return datetime.fromtimestamp(at_s, UTC).strftime(pattern)


def several(count: float, one: str, many: str | None = None) -> str:
    """Format a number with a noun: `3 gaps`, `1 gap`."""
    return f"{whole(count)} {one if count == 1 else many or one + 's'}"


# -- drawings ---------------------------------------------------------------------------------------------------------

WIDTH: Final = 340
HEIGHT: Final = 150
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 10, 22
_TICKS: Final = 4
MIN_CLIPPED: Final = 10
"""With fewer windows a plot shows all values: it is not known which are usual."""


class Scale:
    """Maps values to coordinates."""

    def __init__(self, least: float, greatest: float, begin: float, end: float) -> None:
        self._least = least
        self._begin = begin
        self._factor = (end - begin) / ((greatest - least) or 1.0)

    def __call__(self, at: float) -> float:
        return self._begin + (at - self._least) * self._factor


def ticks(least: float, greatest: float) -> list[float]:
    """Return round numbers that cover all values, with steps of 1, 2 or 5 times a power of ten."""
    span = greatest - least
    if not math.isfinite(span) or span <= abs(greatest) * 1e-12:
        pad = abs(greatest) * 0.01 or 1.0
        least, greatest, span = least - pad, greatest + pad, 2 * pad
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if span / (factor * power) <= _TICKS)
    first, last = math.floor(least / step), math.ceil(greatest / step)
    return [step * number for number in range(first, last + 1)]


@dataclass(frozen=True)
class PlotRange:
    """The values that a plot shows. Few values far from all others do not change it: they are marked at its edge."""

    least: float
    greatest: float
    beyond: tuple[float, ...] = ()
    """The values that are not in the range."""

    def clamp(self, number: float) -> float:
        """Return the number, or the end of the range that it is beyond."""
        return min(max(number, self.least), self.greatest)


def plot_range(series: Series) -> PlotRange:
    """Return the range for a plot: most windows take up at least a third of the height.

    A value is left out if it is further from the middle 80 % of the windows than these are from each other. If these
    are all equal, nothing is left out, because their course is a flat line anyway.
    """
    leasts = sorted(point.least for point in series.points)
    greatests = sorted(point.greatest for point in series.points)
    values = [*leasts, *greatests, *(alarm.value for alarm in series.alarms)]
    tenth = len(leasts) // 10
    low, high = leasts[tenth], greatests[-1 - tenth]
    spread = high - low
    if len(leasts) < MIN_CLIPPED or not 0 < spread < math.inf:
        return PlotRange(min(values), max(values))
    shown = [one for one in values if low - spread <= one <= high + spread]
    beyond = sorted({one for one in values if not low - spread <= one <= high + spread})
    return PlotRange(min(shown), max(shown), tuple(beyond))


def series_plot(series: Series, summary: SeriesSummary) -> str:
    """Draw a band from minimum to maximum, median and mean, a dot for each alarm, and a mark for values beyond it."""
    shown = plot_range(series)
    marks = ticks(shown.least, shown.greatest)
    across = Scale(summary.begin_us, summary.end_us, LEFT, WIDTH - RIGHT)
    scale = Scale(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)

    def up(number: float) -> float:
        return scale(shown.clamp(number))

    parts = [_grid(marks, scale), _time_axis(summary)]
    for run in _runs(series.points, summary.step_us):
        # Each window is a flat step: a line from one to the next would suggest values in between.
        corners = [(across(at_us), point) for point in run for at_us in (point.at_us, point.at_us + summary.step_us)]
        top = [(x, up(point.greatest)) for x, point in corners]
        bottom = [(x, up(point.least)) for x, point in reversed(corners)]
        parts.append(f'<path class="band" d="{_path([*top, *bottom])}Z"/>')
        parts.append(_line("mean", [(x, up(point.mean)) for x, point in corners]))
        parts.append(_line("median", [(x, up(point.p50)) for x, point in corners]))
    for point in series.points:
        x = across(point.at_us + summary.step_us / 2)
        edges = [(point.greatest, up(math.inf), -5)] if point.greatest > shown.greatest else []
        edges += [(point.least, up(-math.inf), 5)] if point.least < shown.least else []
        for number, height, tip in edges:
            title = safe(f"{moment(point.at_us / 1e6)}: {value(number)} {series.unit}", 200)
            parts.append(
                f'<path class="beyond" d="M{x - 4:.1f} {height:.1f}h8l-4 {tip}Z"><title>{title}</title></path>'
            )
    for at_us, number in series.dots:
        title = safe(f"{moment(at_us / 1e6)}: {value(number)} {series.unit}", 200)
        parts.append(
            f'<circle class="reading" cx="{across(at_us):.1f}" cy="{up(number):.1f}" r="1.8">'
            f"<title>{title}</title></circle>"
        )
    for alarm in series.alarms:
        title = f"{moment(alarm.at_us / 1e6)}: {value(alarm.value)} {series.unit}"
        if alarm.expected is not None:
            title += f", expected {value(alarm.expected)}"
        parts.append(
            f'<circle class="alarm" cx="{across(alarm.at_us):.1f}" cy="{up(alarm.value):.1f}" r="3.5">'
            f"<title>{safe(title, 200)}</title></circle>"
        )
    numbers = (shown.least, shown.greatest, *shown.beyond)
    label = f"{series.quantity} of {series.topic}, from {value(min(numbers))} to {value(max(numbers))} {series.unit}"
    return _svg(WIDTH, HEIGHT, label, parts)


def activity_plot(counts: Sequence[int], begin_s: float, bin_s: float) -> str:
    """Draw the number of messages over time as a filled area."""
    width, height = 960, 120
    most = max(counts) or 1
    up = Scale(0, most, height - 1, 6)
    step = width / len(counts)
    # Steps instead of lines: the number is known for each bin, not between bins.
    corners = [(index * step + side, up(count)) for index, count in enumerate(counts) for side in (0, step)]
    outline = [(0.0, float(height)), *corners, (float(width), float(height))]
    parts = [f'<path class="activity" d="{_path(outline)}Z"/>']
    for index, count in enumerate(counts):
        if count:
            title = f"{moment(begin_s + index * bin_s)}: {several(count, 'message')}"
            parts.append(
                f'<rect class="hover" x="{index * step:.1f}" y="0" width="{step:.1f}" height="{height}">'
                f"<title>{safe(title)}</title></rect>"
            )
    return _svg(width, height, "messages over time", parts, stretch=True)


def presence_strip(bins: Mapping[int, int], count: int, first: int, last: int) -> str:
    """Draw one device over time: filled bins with messages, and a line from the first to the last message."""
    parts = [f'<path class="lifeline" d="M{first} 5H{last + 1}"/>']
    numbers = sorted(bins)
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(f'<rect class="active" x="{run[0]}" y="1" width="{len(run)}" height="8"/>')
    return _svg(count, 10, "when it sent messages", parts, stretch=True)


# -- small parts ------------------------------------------------------------------------------------------------------


def count_strip(counts: Sequence[float], label: str, style: str, marks: Sequence[float] = ()) -> str:
    """Draw numbers over time as a filled area, and a line at each of `marks`, which are shares of the time."""
    width, height = 1000, 100
    up = Scale(0, max(counts, default=0) or 1, height, 4)
    step = width / max(len(counts), 1)
    corners = [(index * step + side, up(count)) for index, count in enumerate(counts) for side in (0, step)]
    outline = [(0.0, float(height)), *corners, (float(width), float(height))]
    lines = [f'<path class="mark" d="M{share * width:.1f} 0V{height}"/>' for share in marks]
    return _svg(width, height, label, [f'<path class="{style}" d="{_path(outline)}Z"/>', *lines], stretch=True)


def _svg(width: int, height: int, label: str, parts: Sequence[str], *, stretch: bool = False) -> str:
    ratio = ' preserveAspectRatio="none"' if stretch else ""
    return (
        f'<svg viewBox="0 0 {width} {height}"{ratio} role="img" aria-label="{safe(label, 200)}">{"".join(parts)}</svg>'
    )


def _runs(points: Sequence[Point], step_us: int) -> list[list[Point]]:
    """Split points into runs without a missing step."""
    runs = [[points[0]]]
    for before, point in pairwise(points):
        if point.at_us - before.at_us > step_us:
            runs.append([])
        runs[-1].append(point)
    return runs


def _grid(marks: Sequence[float], up: Scale) -> str:
    lines = []
    for mark in marks:
        y = up(mark)
        lines.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        lines.append(
            f'<text class="tick" x="{LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">{_tick_label(mark, marks)}</text>'
        )
    return "".join(lines)


def _tick_label(mark: float, marks: Sequence[float]) -> str:
    step = marks[1] - marks[0]
    if abs(mark) >= 1e6 or step < 1e-4:
        return f"{mark:.3g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{mark + 0.0:.{digits}f}"


def _time_axis(summary: SeriesSummary) -> str:
    span_s = (summary.end_us - summary.begin_us) / 1e6
    y = HEIGHT - 6
    return "".join(
        f'<text class="tick" x="{x}" y="{y}" text-anchor="{anchor}">{short_moment(at_us / 1e6, span_s)}</text>'
        for x, anchor, at_us in ((LEFT, "start", summary.begin_us), (WIDTH - RIGHT, "end", summary.end_us))
    )


def _line(kind: str, corners: Sequence[tuple[float, float]]) -> str:
    return f'<path class="{kind}" d="{_path(corners)}"/>'


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)


# -- parts of a page -------------------------------------------------------------------------------------------------

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class ReportStory:
    """The story of a run, which the report shows on its first screen. All texts are HTML."""

    title: str
    lead: str
    body: str
    links: tuple[tuple[str, str], ...]
    """The ids of its sections, and their titles."""
    clocks: str
    """Explanation of the times of the readings."""


def page(title: str, lines: str, body: str, footer: str) -> str:
    """Return the whole page: the head with a title, the body and the footer, all of them HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Godwit: report</title><style>{_STYLE}</style></head><body>"
        f"<header><div><h1>{title}</h1>{lines}</div></header><main>{body}<footer>{footer}</footer></main></body></html>\n"
    )


def navigation(links: Iterable[tuple[str, str]]) -> str:
    """Return links to sections: (id, title)."""
    anchors = [f'<a href="#{name}">{text}</a>' for name, text in links]
    return f"<nav>{''.join(anchors)}</nav>"


def section(name: str, title: str, lead: str, content: str) -> str:
    """Return a section: its title, what to look at, and its content."""
    return f'<h2 id="{name}">{title}</h2><p class="soft">{lead}</p>{content}'


def number_tiles(facts: Iterable[tuple[str, str, bool]]) -> str:
    """Return the row of large numbers: (number, label, whether to highlight it)."""
    boxes = [
        f"<div{' class=warn' if is_bad else ''}><b>{figure}</b><span>{what}</span></div>"
        for figure, what, is_bad in facts
    ]
    return f'<div class="numbers">{"".join(boxes)}</div>'


def nothing(sentence: str) -> str:
    """Return the content of a section without data."""
    return f'<p class="nothing">{sentence}</p>'


def table(heads: Sequence[tuple[str, str]], rows: Sequence[str], *, is_panel: bool = True) -> str:
    """Return a table: titles with their styles, and rows."""
    head = "".join(f"<th{f' class={style}' if style else ''}>{title}</th>" for title, style in heads)
    text = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="panel">{text}</div>' if is_panel else text


_STYLE: Final = """
:root { color-scheme: light dark;
  --paper: #f6f4ef; --card: #fffdf9; --ink: #22252b; --soft: #6b6f78; --rule: #e2ded4;
  --blue: #1f6f8b; --band: #1f6f8b2e; --mean: #c98a2b; --red: #c8362b; --green: #3c8a5a; --sky: #d9e8ec; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171c; --card: #1c2027; --ink: #e7e5df; --soft: #9aa0aa; --rule: #2d323b;
  --blue: #6cc0d8; --band: #6cc0d833; --mean: #e5b362; --red: #ff7a6b; --green: #79c796; --sky: #1d2c33; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 0 16px 64px; }
header { background: linear-gradient(var(--sky), var(--paper)); padding: 24px 0 0; } header p { max-width: 110ch; }
header > div { max-width: 1120px; margin: 0 auto; padding: 0 16px; }
h1 { font-size: clamp(1.5rem, 3.2vw, 2.1rem); line-height: 1.15; margin: 0; letter-spacing: -.02em; font-weight: 650; }
h2 { font-size: 1.25rem; margin: 48px 0 4px; letter-spacing: -.01em; }
p { margin: 4px 0 16px; max-width: 70ch; } .soft { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 8px 0; font-size: .9rem; }
nav a { color: var(--blue); text-decoration: none; } nav a:hover { text-decoration: underline; }
.numbers { display: grid; gap: 12px; grid-template-columns: repeat(6, minmax(0, 1fr)); margin: 20px 0; }
.numbers div, .plot, .panel { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; }
.numbers div { padding: 14px 16px; container-type: inline-size; }
.numbers b { display: block; font-size: 1.3rem; font-size: clamp(.9rem, 15cqi, 1.65rem); line-height: 1.3;
  font-weight: 650; font-variant-numeric: tabular-nums; letter-spacing: -.02em; white-space: nowrap; }
.numbers span { color: var(--soft); font-size: .85rem; } .numbers .warn b { color: var(--red); }
.plots { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); }
.plot { margin: 0; padding: 12px 12px 6px; min-width: 0; }
.plot figcaption { display: flex; justify-content: space-between; gap: 8px; font-size: .88rem; margin-bottom: 4px; }
.plot figcaption b { overflow-wrap: break-word; min-width: 0; font-weight: 600; }
.plot figcaption span { color: var(--soft); white-space: nowrap; }
.plot small { color: var(--soft); font-size: .78rem; } .plot .bell { color: var(--red); font-weight: 600; }
svg { display: block; width: 100%; height: auto; } svg text { font: 10px system-ui, sans-serif; fill: var(--soft); }
.band { fill: var(--band); } .median, .mean { fill: none; stroke-linejoin: round; }
.median { stroke: var(--blue); stroke-width: 1.6; } .mean { stroke: var(--mean); stroke-width: 1.1;
  stroke-dasharray: 3 2.5; }
.reading { fill: var(--blue); } .beyond { fill: var(--mean); }
.alarm { fill: var(--red); stroke: var(--card); stroke-width: 1; } .grid { stroke: var(--rule); stroke-width: .8; }
.activity { fill: var(--blue); opacity: .5; } .hover { fill: transparent; } .hover:hover { fill: var(--band); }
.hero svg { height: 120px; } .mark { stroke: var(--red); stroke-width: 1.5; stroke-dasharray: 4 3; fill: none;
  vector-effect: non-scaling-stroke; } .faulty { fill: var(--red); opacity: .55; } .working { fill: var(--green);
  opacity: .65; }
.pair { display: grid; gap: 12px; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); margin: 8px 0; }
.pair h2 { margin: 4px 0; } .pair th[scope=row] { white-space: nowrap; } .pair + h2 { margin-top: 20px; }
.pair th, .pair td { padding-block: 4px; } .pair p { margin: 10px 0; font-size: .88rem; }
.course .row { padding: 3px 0; border: 0; } .course .row svg { height: 28px; }
.course .marks { position: relative; height: 22px; } .marks b { position: absolute; transform: translateX(-50%);
  min-width: 20px; padding: 0 6px; line-height: 20px; border-radius: 10px; background: var(--red); color: var(--card);
  font-size: .75rem; text-align: center; white-space: nowrap; }
.histogram .row { padding: 2px 0; border: 0; } h1 .bad { color: var(--red); }
.events { margin: 10px 0; padding: 0; list-style: none; font-size: .9rem; counter-reset: event; }
.events li { display: grid; grid-template-columns: 4.2rem minmax(0, 1fr); gap: 10px; padding: 3px 0; }
.events b { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
.ends { display: flex; justify-content: space-between; color: var(--soft);
  font-size: .8rem; margin-top: 4px; }
.panel { padding: 6px 16px; overflow-x: auto; }
.row { display: grid; grid-template-columns: minmax(0, 17rem) minmax(0, 1fr) 11rem; gap: 4px 16px; align-items: center;
  padding: 8px 0; border-bottom: 1px solid var(--rule); font-size: .9rem; }
.row:last-child { border: 0; } .row .name { overflow-wrap: anywhere; } .row .fact { color: var(--soft); font-size:
  .82rem;
  text-align: right; }
.row svg { height: 14px; } .active { fill: var(--green); } .silent .active { fill: var(--red); opacity: .75; }
.lifeline { stroke: var(--soft); stroke-width: 1; opacity: .5; vector-effect: non-scaling-stroke; }
.bar { background: var(--rule); border-radius: 4px; height: 12px; overflow: hidden; display: flex; }
.bar i { display: block; height: 100%; background: var(--blue); min-width: 2px; } .bar .bad { background: var(--red); }
.bar .good { background: var(--green); } .bar .off { background: var(--soft); }
.dot { display: inline-block; width: .6em; height: .6em; border-radius: 50%; background: var(--green); margin-right:
  .5em; }
.silent .dot { background: var(--red); }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; } th, td { padding: 7px 12px 7px 0;
  border-bottom: 1px solid var(--rule); vertical-align: top; } tr:last-child > * { border: 0; }
.number { text-align: right; white-space: nowrap; } .time { white-space: nowrap; }
code { font: .85em/1.4 ui-monospace, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; } td code { display: inline-block; max-width: 44ch; }
details { border-bottom: 1px solid var(--rule); padding: 8px 0; } details:last-child { border: 0; }
summary { cursor: pointer; } summary .bar { display: inline-flex; width: min(30vw, 260px); vertical-align: middle;
  margin: 0 10px; } .nothing { color: var(--soft); font-style: italic; }
.key { font-size: .82rem; color: var(--soft); display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 12px; }
.key i { display: inline-block; width: 18px; height: 0; border-top: 2px solid var(--blue); vertical-align: middle;
  margin-right: 6px; } .key .k-band { border: 0; height: 10px; background: var(--band); } .key .k-mean {
  border-top: 2px dashed var(--mean); } .key .k-reading { border: 0; width: 5px; height: 5px; border-radius: 50%;
  background: var(--blue); } .key .k-beyond { border: 5px solid transparent; border-bottom-color: var(--mean);
  width: 0; margin-top: -5px; } .key .k-alarm { border: 0; width: 9px; height: 9px; border-radius: 50%;
  background: var(--red); }
footer { margin-top: 56px; color: var(--soft); font-size: .82rem; overflow-wrap: anywhere; }
@media (max-width: 999px) { .numbers { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
@media (max-width: 900px) { .pair { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 379px) { .numbers { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 640px) { .wide { display: none; }
  .row { grid-template-columns: minmax(0, 1fr) auto; } .row > :nth-child(2) { grid-column:
  1 / -1;
  grid-row: 2; } h2 { margin-top: 36px; } .hero svg { height: 80px; } }
@media print { body { background: none; } .plot, .panel { break-inside: avoid; } }
"""
