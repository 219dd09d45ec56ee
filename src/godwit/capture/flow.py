"""Sequence diagrams of captures: one lane for each address, an arrow for each packet, as text, SVG or HTML.

Marked are packets that were lost, sent again, duplicated or damaged, and which packets an acknowledgement covers.
Everything that comes from the network is escaped: control characters, direction marks, and the syntax of XML.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec

from godwit.capture.conversation import PacketReport
from godwit.errors import printable

MAX_TEXT: Final = 110
"""Characters of the description of a packet."""
LANE_WIDTH: Final = 230
ROW_HEIGHT: Final = 26
TOP: Final = 64
LEFT: Final = 130
LETTER_WIDTH: Final = 7.3
"""Of the notes, whose font has letters of one width."""
TEXT_LANE: Final = 30


class FlowRow(msgspec.Struct):
    """One packet of a diagram."""

    number: int
    packet_number: str
    time: str
    source: int
    """The lane."""
    destination: int
    text: str
    marks: list[str]
    style: str
    """`plain`, `repeat`, `lost`, `damaged` or `ack`."""


class FlowDiagram(msgspec.Struct):
    """The content of a diagram, whatever its form."""

    lanes: list[str]
    rows: list[FlowRow]
    omitted: int
    """Packets that are not shown, because there are too many."""


def make_diagram(reports: Sequence[PacketReport], limit: int) -> FlowDiagram:
    """Return the diagram of up to `limit` packets."""
    lanes: dict[tuple[str, int], int] = {}
    rows: list[FlowRow] = []
    shown = reports[:limit]
    began_ns = shown[0].datagram.time_ns if shown else 0
    for report in shown:
        datagram = report.datagram
        source = lanes.setdefault(datagram.source, len(lanes))
        destination = lanes.setdefault(datagram.destination, len(lanes))
        marks = marks_of(report)
        rows.append(
            FlowRow(
                report.number,
                "" if report.packet_number is None else str(report.packet_number),
                f"{(datagram.time_ns - began_ns) / 1e6:.3f}",
                source,
                destination,
                shortened(report.problem or "; ".join(report.parts)),
                marks,
                _style(report),
            )
        )
    return FlowDiagram([lane_text(address) for address in lanes], rows, len(reports) - len(shown))


def marks_of(report: PacketReport) -> list[str]:
    """Return the fate of a packet, as short texts."""
    marks: list[str] = []
    if report.problem:
        marks.append("DAMAGED")
    if report.is_lost:
        marks.append("LOST")
    if report.repeats:
        marks.append(f"again, first in #{report.repeats}")
    if report.is_duplicate:
        marks.append("DUPLICATE")
    if report.missing_before:
        noun = "packet" if report.missing_before == 1 else "packets"
        marks.append(f"{report.missing_before} {noun} missing before")
    if report.acknowledges:
        marks.append(f"acknowledges {_numbers(report.acknowledges)}")
    return marks


def _numbers(numbers: Sequence[int]) -> str:
    ordered = sorted(numbers)
    shown = ", ".join(f"#{number}" for number in ordered[:6])
    return shown if len(ordered) <= 6 else f"{shown} and {len(ordered) - 6} more"


def _style(report: PacketReport) -> str:
    if report.problem:
        return "damaged"
    if report.is_lost:
        return "lost"
    if report.repeats or report.is_duplicate:
        return "repeat"
    return "plain" if report.is_data or report.packet_number is None else "ack"


def lane_text(address: tuple[str, int]) -> str:
    """Return an address as the title of a lane."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shortened(text: str) -> str:
    """Return a text of limited length, without control characters."""
    text = printable(text)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


# -- text -------------------------------------------------------------------------------------------------------------


def as_text(diagram: FlowDiagram) -> str:
    """Return the diagram as lines of text."""
    head = f"{'#':>5} {'ms':>11} {'pn':>6}  "
    lines = [head + "".join(lane.ljust(TEXT_LANE) for lane in diagram.lanes).rstrip()]
    blank = " " * len(head)
    stems = "".join("|".ljust(TEXT_LANE) for _ in diagram.lanes).rstrip()
    lines.append(f"{blank}{stems}")
    for row in diagram.rows:
        width = TEXT_LANE * (len(diagram.lanes) - 1) + 1
        cells = [" "] * max(width, 1)
        for lane in range(len(diagram.lanes)):
            cells[lane * TEXT_LANE] = "|"
        first, last = sorted((row.source * TEXT_LANE, row.destination * TEXT_LANE))
        stroke = {"lost": "x", "repeat": "=", "damaged": "!"}.get(row.style, "-")
        for at in range(first + 1, last):
            cells[at] = stroke
        if row.destination > row.source:
            cells[last - 1] = ">"
        elif row.destination < row.source:
            cells[first + 1] = "<"
        lines.append(f"{row.number:>5} {row.time:>11} {row.packet_number:>6}  {''.join(cells)}  {_notes(row)}")
    if diagram.omitted:
        lines.append(f"{blank}{diagram.omitted:,} further packets are not shown")
    return "\n".join(lines) + "\n"


def _notes(row: FlowRow) -> str:
    return "  ".join([row.text, *(f"({mark})" for mark in row.marks)])


# -- SVG and HTML -----------------------------------------------------------------------------------------------------

_STYLE: Final = """
text{font:12px ui-monospace,monospace;fill:#1b1f24}.title{font-weight:600}.small{fill:#57606a}
.lane{stroke:#d0d7de}.plain{stroke:#0969da}.ack{stroke:#8c959f}.repeat{stroke:#bc4c00}.lost{stroke:#cf222e;
stroke-dasharray:5 4}.damaged{stroke:#cf222e}.mark{fill:#bc4c00}.bad{fill:#cf222e}
"""


def as_svg(diagram: FlowDiagram) -> str:
    """Return the diagram as an SVG document, without scripts and without anything from other addresses."""
    longest = max((len(_notes(row)) for row in diagram.rows), default=0)
    width = LEFT + LANE_WIDTH * max(len(diagram.lanes) - 1, 0) + 40 + round(LETTER_WIDTH * longest)
    bottom = TOP + ROW_HEIGHT * (len(diagram.rows) + 1)
    height = bottom + (ROW_HEIGHT if diagram.omitted else 10)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img">',
        f"<title>Packets between {escape(', '.join(diagram.lanes))}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        _svg_text(8, 40, "#", "small"),
        _svg_text(48, 40, "ms", "small"),
    ]
    for lane, name in enumerate(diagram.lanes):
        x = LEFT + lane * LANE_WIDTH
        out.append(_svg_text(x, 24, name, "title", anchor="middle" if lane else "start"))
        out.append(f'<line class="lane" x1="{x}" y1="{TOP - 24}" x2="{x}" y2="{bottom - 10}"/>')
    notes_at = LEFT + LANE_WIDTH * max(len(diagram.lanes) - 1, 0) + 24
    for index, row in enumerate(diagram.rows):
        y = TOP + index * ROW_HEIGHT
        out.append(_svg_text(8, y + 4, str(row.number), "small"))
        out.append(_svg_text(48, y + 4, row.time, "small"))
        out += _svg_arrow(row, y)
        notes = escape(row.text)
        for mark in row.marks:
            style = "bad" if mark.isupper() else "mark"
            notes += f' <tspan class="{style}">({escape(mark)})</tspan>'
        out.append(f'<text x="{notes_at}" y="{y + 4}">{notes}</text>')
    if diagram.omitted:
        out.append(_svg_text(LEFT, bottom + 4, f"{diagram.omitted:,} further packets are not shown", "small"))
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _svg_text(x: int, y: int, text: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg_arrow(row: FlowRow, y: int) -> list[str]:
    begin, end = LEFT + row.source * LANE_WIDTH, LEFT + row.destination * LANE_WIDTH
    if begin == end:
        return [f'<circle class="{row.style}" cx="{begin}" cy="{y}" r="4" fill="none"/>']
    step = 8 if end > begin else -8
    tip = (begin + end) // 2 if row.style == "lost" else end
    out = [f'<line class="{row.style}" x1="{begin}" y1="{y}" x2="{tip}" y2="{y}" stroke-width="1.5"/>']
    if row.style == "lost":
        out.append(f'<path class="lost" d="M{tip - 5} {y - 5}l10 10m0 -10l-10 10" fill="none" stroke-width="2"/>')
    else:
        out.append(
            f'<path class="{row.style}" d="M{tip - step} {y - 4}L{tip} {y}L{tip - step} {y + 4}" fill="none" '
            'stroke-width="1.5"/>'
        )
    if row.packet_number:
        out.append(_svg_text((begin + tip) // 2, y - 4, row.packet_number, "small", anchor="middle"))
    return out


def as_html(diagram: FlowDiagram, title: str) -> str:
    """Return the diagram as a page that needs nothing else, with a table of all packets."""
    rows = "\n".join(
        f"<tr class='{row.style}'><td>{row.number}<td>{row.time}<td>{escape(diagram.lanes[row.source])}"
        f"<td>{escape(diagram.lanes[row.destination])}<td>{row.packet_number}<td>{escape(row.text)}"
        f"<td>{escape(', '.join(row.marks))}</tr>"
        for row in diagram.rows
    )
    return (
        "<!doctype html>\n<html lang='en'><meta charset='utf-8'>\n"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(shortened(title))}</title>\n"
        "<style>body{font:14px system-ui,sans-serif;margin:1.5rem}table{border-collapse:collapse;margin-top:1.5rem}"
        "td,th{padding:.15rem .6rem;text-align:left;border-bottom:1px solid #d0d7de;font:12px ui-monospace,monospace}"
        ".figure{overflow-x:auto}tr.lost,tr.damaged{color:#cf222e}tr.repeat{color:#bc4c00}</style>\n"
        f"<h1>{escape(shortened(title))}</h1>\n<div class='figure'>{as_svg(diagram)}</div>\n"
        "<table><thead><tr><th>#<th>ms<th>from<th>to<th>packet number<th>content<th>marks</tr></thead><tbody>\n"
        f"{rows}\n</tbody></table></html>\n"
    )
