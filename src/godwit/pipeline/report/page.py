"""The report on a lake: one HTML file, made without Spark.

The page has no scripts and loads nothing, and its content security policy forbids both. Its size is bounded, whatever
the size of the tables: it shows the most important series, devices and publishers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake
from godwit.pipeline.report.figures import (
    BINS,
    MAX_MESSAGES_BINNED,
    AlarmRow,
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
    ReportStory,
    activity_plot,
    breakable,
    duration,
    moment,
    navigation,
    nothing,
    number_tiles,
    page,
    plot_range,
    presence_strip,
    safe,
    safe_payload,
    section,
    series_plot,
    several,
    short_moment,
    size,
    table,
    value,
    whole,
)
from godwit.pipeline.report.series import Series, SeriesSummary, read_series

ALARMS_LISTED: Final = 15
CLOCKS: Final = (
    "Readings are drawn at their event time, by the clocks of the devices. The other sections have the time of "
    "receipt, by the clock of the broker."
)
_PARTS: Final = (
    ("readings", "Readings"),
    ("alarms", "Alarms"),
    ("devices", "Devices"),
    ("traffic", "Publishers"),
    ("jobs", "Jobs"),
    ("quarantine", "Quarantine"),
)


def write_report(lake: Lake, path: Path, story: ReportStory | None = None) -> None:
    """Write the report to a file, with a story on its first screen. Raise PipelineError if it cannot be written."""
    text = report(lake, time.time(), story)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"cannot write the report to {path}: {error.strerror}; choose another path") from error


def report(lake: Lake, now_s: float, story: ReportStory | None = None) -> str:
    """Return the page. `now_s` is the time that it shows as its own."""
    footer = f"Made {moment(now_s)} UTC from {safe(lake.address, 200)} by <b>godwit pipeline report</b>."
    traffic = read_traffic(lake)
    if traffic.span is None:
        empty = nothing("The lake is empty. `godwit pipeline run --once` fills it from the broker's log.")
        if story is None:
            return page("No messages yet", "", empty, footer)
        return page(story.title, story.lead + navigation(story.links), story.body + empty, footer)
    devices = read_devices(lake)
    counts = read_activity(lake, traffic.span, devices.shown)
    alarms = read_alarms(lake)
    series = read_series(lake, alarms)
    reasons = read_quarantine(lake)
    quarantined = sum(reason.count for reason in reasons)
    messages = max(lake.table(bronze.SPEC).rows - traffic.own_messages, 0)
    facts = [
        (whole(messages), "messages", False),
        (whole(lake.table(readings.SPEC).rows), "readings", False),
        (whole(devices.count), "topics", False),
        (whole(traffic.publishers), "publishers", False),
        (whole(alarms.count), "alarms", alarms.count > 0),
        (whole(quarantined), "in quarantine", quarantined > 0),
    ]
    brokers = f"{several(len(traffic.brokers), 'broker')} ({', '.join(safe(one, 8) for one in traffic.brokers[:8])})"
    begin, end = moment(traffic.span.begin_us / 1e6), moment(traffic.span.end_us / 1e6)
    received = f"Received from {begin} to {end} UTC by the clock of {brokers}."
    if traffic.own_messages:
        received += f" The broker itself logged {several(traffic.own_messages, 'event')} of jobs besides."
    sections = "".join(
        (
            _series_section(
                series, has_many_brokers=len(traffic.brokers) > 1, clocks=story.clocks if story is not None else CLOCKS
            ),
            _alarms_section(alarms),
            _devices_section(devices, traffic.span, is_drawn=bool(counts)),
            _traffic_section(traffic),
            _jobs_section(read_jobs(lake)),
            _quarantine_section(reasons),
        )
    )
    if story is None:
        title = f"{several(messages, 'message')} in {duration(traffic.span.length_s)}"
        lines = f'<p class="soft">{received}</p>{navigation(_PARTS)}{_activity(counts, traffic.span)}'
        return page(title, lines, number_tiles(facts) + sections, footer)
    lead = f"{received} Spark wrote them to tables; the rest of this page shows the tables."
    tables = section("tables", "The logged messages as tables", lead, number_tiles(facts))
    links = (*story.links, ("tables", "Tables"), *_PARTS)
    return page(story.title, story.lead + navigation(links), story.body + tables + sections, footer)


# -- sections ---------------------------------------------------------------------------------------------------------


def _activity(counts: Sequence[int], span: TimeRange) -> str:
    if not any(counts):
        return ""
    begin_s, end_s = span.begin_us / 1e6, span.end_us / 1e6
    ends = f"<span>{moment(begin_s)}</span><span>{moment(end_s)} UTC</span>"
    return f'<div class="hero">{activity_plot(counts, begin_s, span.bin_us / 1e6)}</div><div class="ends">{ends}</div>'


def _series_section(summary: SeriesSummary, *, has_many_brokers: bool, clocks: str) -> str:
    if not summary.shown:
        return section("readings", "Readings", clocks, nothing("No message has been parsed as a number yet."))
    step = duration(summary.step_us / 1e6)
    is_short = summary.end_us - summary.begin_us < 60_000_000
    begin, end = (moment(at_us / 1e6, has_seconds=is_short) for at_us in (summary.begin_us, summary.end_us))
    lead = (
        "Look for red dots, which are alarms, for a band that widens, and for gaps. "
        f"From {begin} to {end} UTC, by event time; each step is {step}. {clocks}"
    )
    if summary.count > len(summary.shown):
        lead += (
            f" Shown are {len(summary.shown)} of {whole(summary.count)} series: those with the most alarms, "
            "then those with the most readings."
        )
    if summary.before:
        lead += f" {several(summary.before, 'reading')} before that time {_is(summary.before)} left out."
    key = '<span><i class="k-band"></i>least to greatest</span><span><i></i>median</span>'
    key += '<span><i class="k-mean"></i>mean</span><span><i class="k-alarm"></i>alarm</span>'
    if any(series.dots for series in summary.shown):
        key += '<span><i class="k-reading"></i>reading</span>'
    if any(plot_range(series).beyond for series in summary.shown):
        key += '<span><i class="k-beyond"></i>values beyond the plot</span>'
    plots = "".join(_plot(series, summary, has_many_brokers) for series in summary.shown)
    return section("readings", "Readings", lead, f'<p class="key">{key}</p><div class="plots">{plots}</div>')


def _plot(series: Series, summary: SeriesSummary, has_many_brokers: bool) -> str:
    unit = f"{series.quantity}, {series.unit}" if series.unit else series.quantity
    facts = several(series.readings, "reading")
    if has_many_brokers:
        facts += f", broker {safe(series.broker, 8)}"
    if series.alarms:
        facts += f', <span class="bell">{several(len(series.alarms), "alarm")}</span>'
    if beyond := plot_range(series).beyond:
        ends = value(beyond[0]) if len(beyond) == 1 else f"{value(beyond[0])} … {value(beyond[-1])}"
        facts += f"; beyond the plot: {ends} {safe(series.unit, 40)}"
    return (
        f'<figure class="plot"><figcaption><b>{breakable(series.topic)}</b><span>{safe(unit, 40)}</span></figcaption>'
        f"{series_plot(series, summary)}<small>{facts}</small></figure>"
    )


def _alarms_section(alarms: AlarmSummary) -> str:
    if not alarms.newest:
        return section(
            "alarms", "Alarms", "Each series is compared with its own past.", nothing("No anomalies were detected.")
        )
    lead = (
        "Look at the value beside the expected one, and at the duration. Each row is one event: "
        f"{several(alarms.count, 'event')} in which readings of a topic differed from the earlier ones. "
        "Times are event times."
    )
    if len(alarms.newest) > ALARMS_LISTED:
        lead += f" The newest {ALARMS_LISTED}:"
    rows = [
        f'<tr><td class="time">{moment(one.at_us / 1e6)}</td><td>{breakable(one.topic)}</td>'
        f'<td class="wide">{safe(one.quantity, 40)}</td>'
        f'<td class="number">{value(one.value if one.peak_value is None else one.peak_value)}</td>'
        f'<td class="number">{value(one.expected)}</td>'
        f'<td class="number">{_lasted(one)}</td><td>{safe(one.reason, 120)}</td></tr>'
        for one in alarms.newest[:ALARMS_LISTED]
    ]
    heads = (
        ("begin (UTC)", ""),
        ("topic", ""),
        ("quantity", "wide"),
        ("value", "number"),
        ("expected", "number"),
        ("lasted", "number"),
        ("reason", ""),
    )
    return section("alarms", "Alarms", lead, table(heads, rows))


def _lasted(event: AlarmRow) -> str:
    if event.is_lasting:
        text = "not ended"
    elif event.end_us is None:
        text = NONE
    else:
        text = duration((event.end_us - event.at_us) / 1e6) if event.end_us > event.at_us else "one reading"
    return text if event.alarms == 1 else f"{text}<br>{several(event.alarms, 'alarm')}"


def _devices_section(devices: DeviceSummary, span: TimeRange | None, *, is_drawn: bool) -> str:
    if not devices.shown or span is None:
        lead = "When each topic received messages."
        return section("devices", "Devices", lead, nothing("No device has sent a message yet."))
    lead = (
        "Look for red rows, which are topics without a message at the end, and for white gaps. "
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
    return section("devices", "Devices", lead, f'<div class="panel">{rows}{axis}</div>')


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
    if not traffic.shown:
        lead = "How many messages each client published."
        return section("traffic", "Publishers", lead, nothing("No message has been received yet."))
    lead = (
        "Look for publishers that send far more than the others. "
        f"{several(traffic.publishers, 'publisher')}, {size(traffic.payload_bytes)} of payload."
    )
    rest = traffic.messages - sum(one.messages for one in traffic.shown)
    rows = [
        _bar_row(safe(one.name) or "<em>without a name</em>", one.messages, traffic.messages, one.payload_bytes)
        for one in traffic.shown
    ]
    if rest:
        others = several(traffic.publishers - len(traffic.shown), "other")
        rest_bytes = traffic.payload_bytes - sum(one.payload_bytes for one in traffic.shown)
        rows.append(_bar_row(others, rest, traffic.messages, rest_bytes))
    return section("traffic", "Publishers", lead, f'<div class="panel">{"".join(rows)}</div>')


def _bar_row(name: str, messages: int, all_messages: int, payload_bytes: int) -> str:
    share = 100 * messages / all_messages
    return (
        f'<div class="row"><div class="name">{name}</div><div class="bar"><i style="width:{share:.2f}%"></i></div>'
        f'<div class="fact">{several(messages, "message")}<br>{size(payload_bytes)}</div></div>'
    )


def _jobs_section(kinds: Sequence[JobKind]) -> str:
    if not kinds:
        lead = "Work that controllers submitted and workers did."
        return section("jobs", "Jobs", lead, nothing("No jobs were submitted."))
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
    lead = (
        "Look for red in the bars, which is failed jobs, and for lost attempts: their worker stopped answering, and "
        "another one took the task over. Times are the mean, the 95th percentile of the slowest hour, and the maximum."
    )
    return section("jobs", "Jobs", lead, table(heads, rows))


def _times(times: tuple[float | None, float | None, float | None]) -> str:
    return " · ".join(duration(one) for one in times) if any(one is not None for one in times) else NONE


def _quarantine_section(reasons: Sequence[QuarantineReason]) -> str:
    if not reasons:
        lead = "Messages that no decoder could read."
        content = nothing("Every message that should be a reading was parsed.")
        return section("quarantine", "Quarantine", lead, content)
    total = sum(reason.count for reason in reasons)
    lead = (
        "Look at the reason with the longest bar: <code>godwit pipeline quarantine</code> suggests what to do. "
        f"{several(total, 'message')} could not be parsed as numbers; silver/quarantine has their payloads."
    )
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
            f"{table(heads, examples, is_panel=False)}</details>"
        )
    return section("quarantine", "Quarantine", lead, f'<div class="panel">{"".join(blocks)}</div>')


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
