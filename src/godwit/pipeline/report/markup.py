"""The text, numbers and drawings of the report, as HTML and SVG.

Names of topics and publishers, payloads and error details are untrusted. All of them pass through `safe`, which escapes
HTML and makes invisible characters visible. Colours come from the page's style sheet, for light and dark mode.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Final

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


def series_plot(series: Series, summary: SeriesSummary) -> str:
    """Draw a band from minimum to maximum, median and mean, and a dot for each alarm."""
    values = [end for point in series.points for end in (point.least, point.greatest)]
    values += [alarm.value for alarm in series.alarms]
    marks = ticks(min(values), max(values))
    across = Scale(summary.begin_us, summary.end_us, LEFT, WIDTH - RIGHT)
    up = Scale(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)
    parts = [_grid(marks, up), _time_axis(summary)]
    for run in _runs(series.points, summary.step_us):
        # Each window is a flat step: a line from one to the next would suggest values in between.
        corners = [(across(at_us), point) for point in run for at_us in (point.at_us, point.at_us + summary.step_us)]
        top = [(x, up(point.greatest)) for x, point in corners]
        bottom = [(x, up(point.least)) for x, point in reversed(corners)]
        parts.append(f'<path class="band" d="{_path([*top, *bottom])}Z"/>')
        parts.append(_line("mean", [(x, up(point.mean)) for x, point in corners]))
        parts.append(_line("median", [(x, up(point.p50)) for x, point in corners]))
    for alarm in series.alarms:
        title = f"{moment(alarm.at_us / 1e6)}: {value(alarm.value)} {series.unit}"
        if alarm.expected is not None:
            title += f", expected {value(alarm.expected)}"
        parts.append(
            f'<circle class="alarm" cx="{across(alarm.at_us):.1f}" cy="{up(alarm.value):.1f}" r="3.5">'
            f"<title>{safe(title, 200)}</title></circle>"
        )
    label = f"{series.quantity} of {series.topic}, from {value(min(values))} to {value(max(values))} {series.unit}"
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
