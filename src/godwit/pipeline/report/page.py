"""The report on a lake: one HTML file, made without Spark.

The page has no scripts and loads nothing, and its content security policy forbids both. Its size is bounded, whatever
the size of the tables: it shows the most important series, devices and publishers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake
from godwit.pipeline.report.figures import (
    BINS,
    MAX_MESSAGES_BINNED,
    AlarmSummary,
    DeviceRow,
    DeviceSummary,
    JobKind,
    QuarantineReason,
    TimeRange,
    TrafficSummary,
    read_activity,
    read_alarms,
    read_devices,
    read_jobs,
    read_quarantine,
    read_traffic,
)
from godwit.pipeline.report.markup import (
    NONE,
    activity_plot,
    breakable,
    duration,
    moment,
    presence_strip,
    safe,
    safe_payload,
    series_plot,
    several,
    short_moment,
    size,
    value,
    whole,
)
from godwit.pipeline.report.series import Series, SeriesSummary, read_series

ALARMS_LISTED: Final = 15
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_PARTS: Final = (
    ("readings", "Readings"),
    ("alarms", "Alarms"),
    ("devices", "Devices"),
    ("traffic", "Publishers"),
    ("jobs", "Jobs"),
    ("quarantine", "Quarantine"),
)


def write_report(lake: Lake, path: Path) -> None:
    """Write the report to a file. Raise PipelineError if it cannot be written."""
    page = report(lake, time.time())
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"cannot write the report to {path}: {error.strerror}; choose another path") from error


def report(lake: Lake, now_s: float) -> str:
    """Return the page. `now_s` is the time that it shows as its own."""
    traffic = read_traffic(lake)
    if traffic.span is None:
        body = _nothing("The lake is empty. `godwit pipeline run --once` fills it from the broker's log.")
        return _page(_head("No messages yet", "", ""), body, lake, now_s)
    devices = read_devices(lake)
    counts = read_activity(lake, traffic.span, devices.shown)
    alarms = read_alarms(lake)
    series = read_series(lake, alarms)
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
            _numbers(facts),
            _series_section(series, has_many_brokers=len(traffic.brokers) > 1),
            _alarms_section(alarms),
            _devices_section(devices, traffic.span, is_drawn=bool(counts)),
            _traffic_section(traffic),
            _jobs_section(read_jobs(lake)),
            _quarantine_section(reasons),
        )
    )
    head = _head(
        title,
        f'<p class="soft">{begin} to {end} UTC, from {brokers}</p><nav>{links}</nav>',
        _activity(counts, traffic.span),
    )
    return _page(head, body, lake, now_s)


def _head(title: str, lines: str, picture: str) -> str:
    return f"<header><div><h1>{title}</h1>{lines}{picture}</div></header>"


def _page(head: str, body: str, lake: Lake, now_s: float) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Godwit: report</title><style>{_STYLE}</style></head><body>{head}<main>{body}"
        f"<footer>Made {moment(now_s)} UTC from {safe(lake.address, 200)} by <b>godwit pipeline report</b>.</footer>"
        "</main></body></html>\n"
    )


# -- sections ---------------------------------------------------------------------------------------------------------


def _numbers(facts: Iterable[tuple[str, str, bool]]) -> str:
    """Return the row of large numbers: (number, label, whether to highlight it)."""
    boxes = [
        f"<div{' class=warn' if is_bad else ''}><b>{figure}</b><span>{what}</span></div>"
        for figure, what, is_bad in facts
    ]
    return f'<div class="numbers">{"".join(boxes)}</div>'


def _activity(counts: Sequence[int], span: TimeRange) -> str:
    if not any(counts):
        return ""
    begin_s, end_s = span.begin_us / 1e6, span.end_us / 1e6
    ends = f"<span>{moment(begin_s)}</span><span>{moment(end_s)} UTC</span>"
    return f'<div class="hero">{activity_plot(counts, begin_s, span.bin_us / 1e6)}</div><div class="ends">{ends}</div>'


def _series_section(summary: SeriesSummary, *, has_many_brokers: bool) -> str:
    title = '<h2 id="readings">Readings</h2>'
    if not summary.shown:
        return title + _nothing("No message has been parsed as a number yet.")
    step = duration(summary.step_us / 1e6)
    begin, end = (moment(at_us / 1e6, has_seconds=False) for at_us in (summary.begin_us, summary.end_us))
    lead = f"From {begin} to {end} UTC, by event time; each step is {step}."
    if summary.count > len(summary.shown):
        lead += (
            f" Shown are {len(summary.shown)} of {whole(summary.count)} series: those with the most alarms, "
            "then those with the most readings."
        )
    if summary.before:
        lead += f" {several(summary.before, 'reading')} before that time {_is(summary.before)} left out."
    key = (
        '<p class="key"><span><i class="k-band"></i>least to greatest</span><span><i></i>median</span>'
        '<span><i class="k-mean"></i>mean</span><span><i class="k-alarm"></i>alarm</span></p>'
    )
    plots = "".join(_plot(series, summary, has_many_brokers) for series in summary.shown)
    return f'{title}<p class="soft">{lead}</p>{key}<div class="plots">{plots}</div>'


def _plot(series: Series, summary: SeriesSummary, has_many_brokers: bool) -> str:
    unit = f"{series.quantity}, {series.unit}" if series.unit else series.quantity
    facts = several(series.readings, "reading")
    if has_many_brokers:
        facts += f", broker {safe(series.broker, 8)}"
    if series.alarms:
        facts += f', <span class="bell">{several(len(series.alarms), "alarm")}</span>'
    return (
        f'<figure class="plot"><figcaption><b>{breakable(series.topic)}</b><span>{safe(unit, 40)}</span></figcaption>'
        f"{series_plot(series, summary)}<small>{facts}</small></figure>"
    )


def _alarms_section(alarms: AlarmSummary) -> str:
    title = '<h2 id="alarms">Alarms</h2>'
    if not alarms.newest:
        return title + _nothing("No anomalies were detected.")
    lead = f"{several(alarms.count, 'reading')} {_is(alarms.count)} anomalous, compared with earlier ones in the topic."
    if alarms.count > ALARMS_LISTED:
        lead += f" The newest {ALARMS_LISTED}:"
    rows = [
        f'<tr><td class="time">{moment(one.at_us / 1e6)}</td><td>{breakable(one.topic)}</td>'
        f'<td class="wide">{safe(one.quantity, 40)}</td>'
        f'<td class="number">{value(one.value)}</td><td class="number">{value(one.expected)}</td>'
        f"<td>{safe(one.reason, 120)}</td></tr>"
        for one in alarms.newest[:ALARMS_LISTED]
    ]
    heads = (
        ("time (UTC)", ""),
        ("topic", ""),
        ("quantity", "wide"),
        ("value", "number"),
        ("expected", "number"),
        ("reason", ""),
    )
    return f'{title}<p class="soft">{lead}</p>{_table(heads, rows)}'


def _devices_section(devices: DeviceSummary, span: TimeRange | None, *, is_drawn: bool) -> str:
    title = '<h2 id="devices">Devices</h2>'
    if not devices.shown or span is None:
        return title + _nothing("No device has sent a message yet.")
    lead = (
        f"{several(devices.count, 'topic')}: {whole(devices.silent)} silent at the end, {whole(devices.with_gaps)} "
        "with gaps, which are pauses of more than a second and of more than five times the mean one. "
        "By the time of receipt."
    )
    if devices.count > len(devices.shown):
        lead += f" Shown are {len(devices.shown)}: the silent ones first, then those with gaps."
    if not is_drawn:
        lead += f" With more than {whole(MAX_MESSAGES_BINNED)} messages the gaps are counted, not drawn."
    rows = "".join(_device(device, span) for device in devices.shown)
    begin_s, end_s = span.begin_us / 1e6, span.end_us / 1e6
    ends = f"<span>{short_moment(begin_s, span.length_s)}</span><span>{short_moment(end_s, span.length_s)}</span>"
    axis = f'<div class="row"><div></div><div class="ends">{ends}</div><div></div></div>'
    return f'{title}<p class="soft">{lead}</p><div class="panel">{rows}{axis}</div>'


def _device(device: DeviceRow, span: TimeRange) -> str:
    first, last = ((at_us - span.begin_us) // span.bin_us for at_us in (device.first_us, device.last_us))
    state = "silent" if device.is_silent else "alive"
    fact = f"every {duration(device.interval_s)}" if device.interval_s is not None else "one message"
    if device.gaps:
        fact += f"<br>{several(device.gaps, 'gap')}, longest {duration(device.longest_gap_s)}"
    if device.is_silent:
        fact += f"<br>silent since {short_moment(device.last_us / 1e6, span.length_s)}"
    return (
        f'<div class="row {state}"><div class="name"><span class="dot" title="{state}"></span>'
        f"{safe(device.topic)}</div><div>{presence_strip(device.bins, BINS, first, last)}</div>"
        f'<div class="fact">{fact}</div></div>'
    )


def _traffic_section(traffic: TrafficSummary) -> str:
    title = '<h2 id="traffic">Publishers</h2>'
    if not traffic.shown:
        return title + _nothing("No message has been received yet.")
    lead = f"{several(traffic.publishers, 'publisher')}, {size(traffic.payload_bytes)} of payload."
    rest = traffic.messages - sum(one.messages for one in traffic.shown)
    rows = [
        _bar_row(safe(one.name) or "<em>without a name</em>", one.messages, traffic.messages, one.payload_bytes)
        for one in traffic.shown
    ]
    if rest:
        others = several(traffic.publishers - len(traffic.shown), "other")
        rest_bytes = traffic.payload_bytes - sum(one.payload_bytes for one in traffic.shown)
        rows.append(_bar_row(others, rest, traffic.messages, rest_bytes))
    return f'{title}<p class="soft">{lead}</p><div class="panel">{"".join(rows)}</div>'


def _bar_row(name: str, messages: int, all_messages: int, payload_bytes: int) -> str:
    share = 100 * messages / all_messages
    return (
        f'<div class="row"><div class="name">{name}</div><div class="bar"><i style="width:{share:.2f}%"></i></div>'
        f'<div class="fact">{several(messages, "message")}<br>{size(payload_bytes)}</div></div>'
    )


def _jobs_section(kinds: Sequence[JobKind]) -> str:
    title = '<h2 id="jobs">Jobs</h2>'
    if not kinds:
        return title + _nothing("No jobs were submitted.")
    rows = []
    for kind in kinds:
        count = kind.counts
        submitted = max(count["jobs_submitted"], count["jobs_done"] + count["jobs_failed"] + count["jobs_cancelled"], 1)
        pieces = (("good", "jobs_done"), ("bad", "jobs_failed"), ("off", "jobs_cancelled"))
        bar = "".join(
            f'<i class="{style}" style="width:{100 * count[name] / submitted:.2f}%"></i>'
            for style, name in pieces
            if count[name]
        )
        ended = ", ".join(
            f"{whole(count[name])} {word}"
            for name, word in (("jobs_done", "done"), ("jobs_failed", "failed"), ("jobs_cancelled", "cancelled"))
            if count[name]
        )
        trouble = ", ".join(
            f"{whole(count[name])} {word}"
            for name, word in (("attempts_failed", "failed"), ("tasks_returned", "returned"), ("tasks_lost", "lost"))
            if count[name]
        )
        rows.append(
            f'<tr><td><b>{safe(kind.name)}</b></td><td class="number">{whole(count["jobs_submitted"])}</td>'
            f'<td><div class="bar">{bar}</div><small class="soft">{ended or "none has ended"}</small></td>'
            f'<td class="number">{whole(count["tasks_finished"])}</td><td>{trouble or NONE}</td>'
            f'<td class="number">{_times(kind.wait_s)}</td><td class="number">{_times(kind.run_s)}</td></tr>'
        )
    heads = (
        ("kind", ""), ("jobs", "number"), ("ended", ""), ("tasks finished", "number"), ("attempts", ""),
        ("waited", "number"), ("ran", "number"),
    )  # fmt: skip
    lead = "Times are the mean, the 95th percentile of the slowest hour, and the maximum."
    return f'{title}<p class="soft">{lead}</p>{_table(heads, rows)}'


def _times(times: tuple[float | None, float | None, float | None]) -> str:
    return " · ".join(duration(one) for one in times) if any(one is not None for one in times) else NONE


def _quarantine_section(reasons: Sequence[QuarantineReason]) -> str:
    title = '<h2 id="quarantine">Quarantine</h2>'
    if not reasons:
        return title + _nothing("Every message that should be a reading was parsed.")
    total = sum(reason.count for reason in reasons)
    lead = f"{several(total, 'message')} could not be parsed as numbers; silver/quarantine has their payloads."
    blocks = []
    for index, reason in enumerate(reasons):
        examples = [
            f"<tr><td>{moment(one.at_us / 1e6)}</td><td>{safe(one.topic)}</td><td>{safe(one.detail, 160)}</td>"
            f"<td><code>{safe_payload(one.payload)}</code></td></tr>"
            for one in reason.examples
        ]
        heads = (("received (UTC)", ""), ("topic", ""), ("error", ""), ("payload", ""))
        share = 100 * reason.count / total
        blocks.append(
            f"<details{' open' if index == 0 else ''}><summary>{safe(reason.name)}"
            f'<span class="bar"><i class="bad" style="width:{share:.2f}%"></i></span>{whole(reason.count)}</summary>'
            f"{_table(heads, examples, is_panel=False)}</details>"
        )
    return f'{title}<p class="soft">{lead}</p><div class="panel">{"".join(blocks)}</div>'


def _nothing(sentence: str) -> str:
    return f'<p class="nothing">{sentence}</p>'


def _table(heads: Sequence[tuple[str, str]], rows: Sequence[str], *, is_panel: bool = True) -> str:
    head = "".join(f"<th{f' class={style}' if style else ''}>{title}</th>" for title, style in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="panel">{table}</div>' if is_panel else table


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


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
header { background: linear-gradient(var(--sky), var(--paper)); padding: 40px 0 0; margin-bottom: 8px; }
header > div { max-width: 1120px; margin: 0 auto; padding: 0 16px; }
h1 { font-size: clamp(1.7rem, 5vw, 2.6rem); line-height: 1.15; margin: 0; letter-spacing: -.02em; font-weight: 650; }
h2 { font-size: 1.25rem; margin: 48px 0 4px; letter-spacing: -.01em; }
p { margin: 4px 0 16px; max-width: 70ch; } .soft { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 14px 0 22px; font-size: .9rem; }
nav a { color: var(--blue); text-decoration: none; } nav a:hover { text-decoration: underline; }
.numbers { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); margin: 20px 0; }
.numbers div, .plot, .panel { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; }
.numbers div { padding: 14px 16px; }
.numbers b { display: block; font-size: 1.65rem; line-height: 1.2; font-weight: 650; font-variant-numeric: tabular-nums;
  letter-spacing: -.02em; overflow-wrap: anywhere; }
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
.alarm { fill: var(--red); stroke: var(--card); stroke-width: 1; } .grid { stroke: var(--rule); stroke-width: .8; }
.activity { fill: var(--blue); opacity: .5; } .hover { fill: transparent; } .hover:hover { fill: var(--band); }
.hero svg { height: 120px; } .ends { display: flex; justify-content: space-between; color: var(--soft);
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
  border-bottom: 1px solid var(--rule); vertical-align: top; } tr:last-child td { border: 0; }
.number { text-align: right; white-space: nowrap; } .time { white-space: nowrap; }
code { font: .85em/1.4 ui-monospace, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; } td code { display: inline-block; max-width: 44ch; }
details { border-bottom: 1px solid var(--rule); padding: 8px 0; } details:last-child { border: 0; }
summary { cursor: pointer; } summary .bar { display: inline-flex; width: min(30vw, 260px); vertical-align: middle;
  margin: 0 10px; } .nothing { color: var(--soft); font-style: italic; }
.key { font-size: .82rem; color: var(--soft); display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 12px; }
.key i { display: inline-block; width: 18px; height: 0; border-top: 2px solid var(--blue); vertical-align: middle;
  margin-right: 6px; } .key .k-band { border: 0; height: 10px; background: var(--band); } .key .k-mean {
  border-top: 2px dashed var(--mean); } .key .k-alarm { border: 0; width: 9px; height: 9px; border-radius: 50%;
  background: var(--red); }
footer { margin-top: 56px; color: var(--soft); font-size: .82rem; overflow-wrap: anywhere; }
@media (max-width: 640px) { .wide { display: none; }
  .row { grid-template-columns: minmax(0, 1fr) auto; } .row > :nth-child(2) { grid-column:
  1 / -1;
  grid-row: 2; } header { padding-top: 24px; } h2 { margin-top: 36px; } .hero svg { height: 80px; } }
@media print { body { background: none; } .plot, .panel { break-inside: avoid; } }
"""
