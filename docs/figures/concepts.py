"""Draw the pictures of the page on concepts and of the README, as SVG: boxes, arrows and lines of text.

python docs/figures/concepts.py
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
INK, LINE, PALE, ACCENT, WARM = "#1f2933", "#52606d", "#e6f4f1", "#00796b", "#fbe9e0"
FONT: Final = "font-family='Helvetica, Arial, sans-serif'"


class Drawing:
    """An SVG picture on a white ground."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._title = title
        self._parts: list[str] = []

    def box(self, x: int, y: int, width: int, height: int, *lines: str, fill: str = PALE, stroke: str = ACCENT) -> None:
        """Draw a box with a title and smaller lines below it, centred."""
        self._parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{fill}' stroke='{stroke}' "
            "stroke-width='1.5'/>"
        )
        top = y + height / 2 - (len(lines) - 1) * 8 + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + number * 16, line, bold=number == 0, size=14 if number == 0 else 12)

    def text(
        self, x: float, y: float, text: str, *, size: int = 12, bold: bool = False, anchor: str = "middle",
        color: str = INK,
    ) -> None:  # fmt: skip
        """Write a line of text."""
        weight = " font-weight='bold'" if bold else ""
        self._parts.append(
            f"<text x='{x:g}' y='{y:g}' {FONT} font-size='{size}' text-anchor='{anchor}' fill='{color}'{weight}>"
            f"{escape(text)}</text>"
        )

    def arrow(
        self, *points: tuple[int, int], text: str = "", color: str = LINE, is_dashed: bool = False, above: int = 6
    ) -> None:
        """Draw a line with a head at its last point, and a text above the middle of its first part."""
        path = " ".join(f"{x},{y}" for x, y in points)
        dashes = " stroke-dasharray='5 4'" if is_dashed else ""
        self._parts.append(
            f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='1.5'{dashes} "
            "marker-end='url(#head)'/>"
        )
        if text:
            (x1, y1), (x2, y2) = points[0], points[1]
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - above, text)

    def line(self, x1: int, y1: int, x2: int, y2: int, color: str = LINE) -> None:
        """Draw a thin line."""
        self._parts.append(f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{color}' stroke-width='1'/>")

    def svg(self) -> str:
        """Return the picture."""
        width, height = self._size
        return "\n".join(
            [
                f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' role='img'>",
                f"<title>{escape(self._title)}</title>",
                "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='8' markerHeight='8' "
                f"orient='auto-start-reverse'><path d='M0 0 10 5 0 10z' fill='{LINE}'/></marker></defs>",
                f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
                *self._parts,
                "</svg>\n",
            ]
        )


def overview() -> Drawing:
    """Draw the clients of a broker, and the path of messages into tables."""
    d = Drawing(
        820, 300, "Clients publish, subscribe and work through a broker with a durable log, which becomes tables"
    )
    d.box(10, 20, 150, 52, "publishers", "sensors, machines")
    d.box(10, 100, 150, 52, "controllers", "submit jobs")
    d.box(10, 180, 150, 52, "workers", "do jobs")
    d.box(290, 20, 190, 150, "broker", "topics and rights", "sessions and cursors", "jobs and leases", fill="#ffffff")
    d.box(290, 200, 190, 70, "log", "SQLite on disk", "confirmed = synced", fill=WARM, stroke="#c1440e")
    d.box(610, 20, 190, 52, "subscribers", "live or from any offset")
    d.box(610, 120, 190, 52, "Spark", "source, sink, pipeline")
    d.box(610, 218, 190, 52, "tables", "bronze, silver, gold")
    d.arrow((160, 46), (290, 46), text="UDP")
    d.arrow((160, 126), (290, 90), text="jobs", above=8)
    d.arrow((290, 140), (160, 196), text="leases", above=18)
    d.arrow((385, 170), (385, 200))
    d.arrow((480, 46), (610, 46), text="UDP")
    d.arrow((480, 225), (545, 225), (545, 146), (610, 146), text="archive")
    d.arrow((705, 172), (705, 218))
    return d


def log() -> Drawing:
    """Draw the log as a row of offsets, with the positions of readers."""
    d = Drawing(820, 250, "One log per broker: each message has an offset, and each reader a position")
    d.text(20, 26, "the log of a broker", bold=True, anchor="start", size=14)
    for number in range(12):
        x, is_deleted = 20 + number * 60, number < 2
        d.box(
            x,
            90,
            56,
            40,
            str(118 + number),
            fill="#eeeeee" if is_deleted else PALE,
            stroke="#b0b7bd" if is_deleted else ACCENT,
        )
    d.text(78, 150, "deleted by retention", color=LINE)
    d.arrow((740, 110), (800, 110))
    d.text(770, 98, "appends")
    d.arrow((228, 180), (228, 132), is_dashed=True)
    d.text(228, 196, "cursor “invoices”: moves with commit")
    d.arrow((468, 214), (468, 132), is_dashed=True)
    d.text(468, 230, "session of “dashboard”: moves when the next message is requested")
    d.arrow((708, 60), (708, 88), is_dashed=True)
    d.text(708, 50, "live subscribers")
    d.arrow((168, 60), (168, 88), is_dashed=True)
    d.text(168, 50, 'start="earliest"')
    return d


def qos() -> Drawing:
    """Draw the exchange of a message with QoS 0, 1 and 2."""
    d = Drawing(
        820, 310, "QoS 0 is sent once; QoS 1 and 2 are confirmed when they are on disk, and repeated until then"
    )
    columns = ((20, "QoS 0"), (290, "QoS 1"), (560, "QoS 2"))
    for left, title in columns:
        publisher, broker = left + 20, left + 215
        d.text(left + 117, 24, title, bold=True, size=15)
        d.text(publisher, 48, "publisher")
        d.text(broker, 48, "broker")
        d.line(publisher, 58, publisher, 270)
        d.line(broker, 58, broker, 270)
    d.arrow((40, 90), (235, 100), text="message")
    d.text(137, 200, "no reply: it may be lost", color=LINE)
    for left in (290, 560):
        publisher, broker = left + 20, left + 215
        lost = left + 120
        number = " 7" if left == 560 else ""
        d.arrow((publisher, 84), (lost, 90), text=f"message{number}", is_dashed=True)
        d.text(lost + 12, 95, "✕ lost", anchor="start", color="#c1440e")
        d.arrow((publisher, 128), (broker, 138), text="again")
        d.box(broker - 34, 146, 68, 26, "to disk", fill=WARM, stroke="#c1440e")
        d.arrow((broker, 184), (lost, 190), text="confirm", is_dashed=True)
        d.text(lost - 12, 196, "lost ✕", anchor="end", color="#c1440e")
        d.arrow((publisher, 218), (broker, 228), text="again")
        d.arrow((broker, 246), (publisher, 258), text="confirm")
    d.text(407, 296, "a lost confirm can make a second copy after a reconnect", size=11, color=LINE)
    d.text(677, 296, "the broker recognises message 7", size=11, color=LINE)
    return d


def job() -> Drawing:
    """Draw the states of a task, with the ways in which a lease ends."""
    d = Drawing(820, 230, "A task waits, is leased to a worker, and ends with a result; a lost worker is replaced")
    d.box(20, 90, 130, 50, "waiting", "on disk")
    d.box(310, 90, 150, 50, "leased", "worker, fence 1")
    d.box(640, 20, 160, 50, "finished", "result on disk")
    d.box(640, 90, 160, 50, "failed", "retries used up")
    d.box(640, 160, 160, 50, "cancelled", "by a client")
    d.arrow((150, 104), (310, 104), text="lease")
    d.arrow((385, 90), (385, 50), (85, 50), (85, 88))
    d.text(235, 42, "worker quits, dies or stalls; attempt fails")
    d.text(230, 126, "the next one: fence 2", color=LINE)
    d.arrow((460, 100), (560, 45), (638, 45))
    d.text(548, 36, "result")
    d.arrow((460, 115), (638, 115), text="last failure, deadline")
    d.arrow((460, 130), (560, 185), (638, 185))
    d.text(548, 204, "cancel")
    return d


def tables() -> Drawing:
    """Draw the tables of the pipeline and the path between them."""
    d = Drawing(820, 220, "The pipeline reads the log once and writes bronze, silver and gold tables")
    d.box(10, 70, 120, 60, "log", "archive, Arrow", fill=WARM, stroke="#c1440e")
    d.box(190, 70, 150, 60, "bronze", "messages as received")
    d.box(400, 20, 170, 60, "silver: readings", "quantity, value, unit")
    d.box(400, 120, 170, 60, "silver: quarantine", "with the reason")
    d.box(640, 10, 170, 50, "gold: windows", "mean, min, max, p99")
    d.box(640, 75, 170, 50, "gold: anomalies", "events with a score")
    d.box(640, 140, 170, 60, "gold: devices,", "traffic, jobs")
    d.arrow((130, 100), (188, 100))
    d.arrow((340, 90), (398, 55))
    d.arrow((340, 110), (398, 145))
    d.arrow((570, 45), (638, 35))
    d.arrow((570, 60), (638, 95))
    d.arrow((265, 130), (265, 200), (600, 200), (600, 175), (638, 175))
    return d


PICTURES: Final[dict[str, Callable[[], Drawing]]] = {
    "overview.svg": overview,
    "log.svg": log,
    "qos.svg": qos,
    "job.svg": job,
    "tables.svg": tables,
}


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
