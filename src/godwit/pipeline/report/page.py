"""The lake on one page: an HTML file that needs nothing but a browser, made without Spark.

It holds no script and loads nothing, and its own policy forbids both. What it shows is bounded, whatever the size of
the tables: the series, devices and publishers that matter most, each thinned out to what can be seen.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError
from godwit.pipeline.report.figures import (
    read_activity,
    read_alarms,
    read_devices,
    read_jobs,
    read_quarantine,
    read_traffic,
)
from godwit.pipeline.report.sections import (
    activity,
    alarms_section,
    devices_section,
    jobs_section,
    measured_section,
    nothing,
    numbers,
    quarantine_section,
    traffic_section,
)
from godwit.pipeline.report.series import read_series
from godwit.pipeline.report.style import STYLE
from godwit.pipeline.report.text import duration, moment, safe, several, whole

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_PARTS: Final = (
    ("measured", "What was measured"),
    ("alarms", "Alarms"),
    ("devices", "Who is alive"),
    ("traffic", "Who sends how much"),
    ("jobs", "Work"),
    ("quarantine", "Quarantine"),
)


def write_report(lake: Lake, path: Path) -> None:
    """PipelineError if the file cannot be written."""
    page = report(lake, time.time())
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"cannot write the report to {path}: {error.strerror}; choose another place") from error


def report(lake: Lake, now_s: float) -> str:
    """The page."""
    traffic = read_traffic(lake)
    if traffic.span is None:
        body = nothing("The lake is empty. `godwit pipeline run --once` fills it with what the broker has logged.")
        return _page(_head("Nothing has come in yet", "", ""), body, lake, now_s)
    devices = read_devices(lake)
    counts = read_activity(lake, traffic.span, devices.shown)
    alarms = read_alarms(lake)
    measured = read_series(lake, alarms)
    reasons = read_quarantine(lake)
    quarantined = sum(reason.count for reason in reasons)
    messages = lake.table(bronze.SPEC).rows
    facts = [
        (whole(messages), "messages", False),
        (whole(lake.table(readings.SPEC).rows), "readings", False),
        (whole(devices.count), "topics", False),
        (whole(traffic.publishers), "publishers", False),
        (whole(alarms.count), "alarms", alarms.count > 0),
        (whole(quarantined), "in quarantine", quarantined > 0),
    ]
    title = f"{several(messages, 'message')} in {duration(traffic.span.length_s)}"
    brokers = f"{several(len(traffic.brokers), 'broker')}: {', '.join(safe(one, 8) for one in traffic.brokers[:8])}"
    begin, end = moment(traffic.span.begin_us / 1e6), moment(traffic.span.end_us / 1e6)
    links = "".join(f'<a href="#{name}">{text}</a>' for name, text in _PARTS)
    body = "".join(
        (
            numbers(facts),
            measured_section(measured, has_many_brokers=len(traffic.brokers) > 1),
            alarms_section(alarms),
            devices_section(devices, traffic.span, is_drawn=bool(counts)),
            traffic_section(traffic),
            jobs_section(read_jobs(lake)),
            quarantine_section(reasons),
        )
    )
    head = _head(
        title,
        f'<p class="soft">{begin} to {end} UTC, from {brokers}</p><nav>{links}</nav>',
        activity(counts, traffic.span),
    )
    return _page(head, body, lake, now_s)


def _head(title: str, lines: str, picture: str) -> str:
    return f"<header><div><h1>{title}</h1>{lines}{picture}</div></header>"


def _page(head: str, body: str, lake: Lake, now_s: float) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Godwit: report</title><style>{STYLE}</style></head><body>{head}<main>{body}"
        f"<footer>Made {moment(now_s)} UTC from {safe(lake.address, 200)} by <b>godwit pipeline report</b>.</footer>"
        "</main></body></html>\n"
    )
