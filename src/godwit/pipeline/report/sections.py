"""The parts of the report as HTML, each from its own figures; one that has none says so in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from godwit.pipeline.report.figures import (
    BINS,
    MAX_MESSAGES_BINNED,
    Alarms,
    Device,
    Devices,
    Kind,
    Reason,
    Span,
    Traffic,
)
from godwit.pipeline.report.series import Measured, Series
from godwit.pipeline.report.svg import activity_plot, presence_strip, series_plot
from godwit.pipeline.report.text import (
    NONE,
    breakable,
    duration,
    moment,
    safe,
    safe_payload,
    several,
    short_moment,
    size,
    value,
    whole,
)

ALARMS_LISTED: Final = 15


def numbers(facts: Iterable[tuple[str, str, bool]]) -> str:
    """Large figures: (figure, what it is, whether it is bad news)."""
    boxes = [
        f"<div{' class=warn' if is_bad else ''}><b>{figure}</b><span>{what}</span></div>"
        for figure, what, is_bad in facts
    ]
    return f'<div class="numbers">{"".join(boxes)}</div>'


def activity(counts: Sequence[int], span: Span) -> str:
    if not any(counts):
        return ""
    begin_s, end_s = span.begin_us / 1e6, span.end_us / 1e6
    ends = f"<span>{moment(begin_s)}</span><span>{moment(end_s)} UTC</span>"
    return f'<div class="hero">{activity_plot(counts, begin_s, span.bin_us / 1e6)}</div><div class="ends">{ends}</div>'


def measured_section(measured: Measured, *, has_many_brokers: bool) -> str:
    title = '<h2 id="measured">What was measured</h2>'
    if not measured.shown:
        return title + nothing("No message has been read as a number yet, so there is nothing to draw.")
    step = duration(measured.step_us / 1e6)
    begin, end = (moment(at_us / 1e6, has_seconds=False) for at_us in (measured.begin_us, measured.end_us))
    lead = f"From {begin} to {end} UTC, by the time that readings were made; each step is {step} of them."
    if measured.count > len(measured.shown):
        lead += (
            f" Shown are {len(measured.shown)} of {whole(measured.count)} series: those with the most alarms, "
            "then those with the most readings."
        )
    if measured.before:
        lead += f" {several(measured.before, 'reading')} from before that {_is(measured.before)} left out."
    key = (
        '<p class="key"><span><i class="k-band"></i>least to greatest</span><span><i></i>median</span>'
        '<span><i class="k-mean"></i>mean</span><span><i class="k-alarm"></i>alarm</span></p>'
    )
    plots = "".join(_plot(series, measured, has_many_brokers) for series in measured.shown)
    return f'{title}<p class="soft">{lead}</p>{key}<div class="plots">{plots}</div>'


def _plot(series: Series, measured: Measured, has_many_brokers: bool) -> str:
    unit = f"{series.quantity}, {series.unit}" if series.unit else series.quantity
    facts = several(series.readings, "reading")
    if has_many_brokers:
        facts += f", broker {safe(series.broker, 8)}"
    if series.alarms:
        facts += f', <span class="bell">{several(len(series.alarms), "alarm")}</span>'
    return (
        f'<figure class="plot"><figcaption><b>{breakable(series.topic)}</b><span>{safe(unit, 40)}</span></figcaption>'
        f"{series_plot(series, measured)}<small>{facts}</small></figure>"
    )


def alarms_section(alarms: Alarms) -> str:
    title = '<h2 id="alarms">Alarms</h2>'
    if not alarms.newest:
        return title + nothing("Nothing unusual was found.")
    lead = f"{several(alarms.count, 'reading')} {_is(alarms.count)} unlike what came before in the same topic."
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
        ("why", ""),
    )
    return f'{title}<p class="soft">{lead}</p>{_table(heads, rows)}'


def devices_section(devices: Devices, span: Span | None, *, is_drawn: bool) -> str:
    title = '<h2 id="devices">Who is alive</h2>'
    if not devices.shown or span is None:
        return title + nothing("No device has been heard yet.")
    lead = (
        f"{several(devices.count, 'topic')}: {whole(devices.silent)} silent at the end, {whole(devices.with_gaps)} "
        "with gaps, which are pauses of more than a second and of more than five times the usual one. "
        "By the time received."
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


def _device(device: Device, span: Span) -> str:
    first, last = ((at_us - span.begin_us) // span.bin_us for at_us in (device.first_us, device.last_us))
    state = "silent" if device.is_silent else "alive"
    fact = f"every {duration(device.interval_s)}" if device.interval_s is not None else "heard once"
    if device.gaps:
        fact += f"<br>{several(device.gaps, 'gap')}, longest {duration(device.longest_gap_s)}"
    if device.is_silent:
        fact += f"<br>silent since {short_moment(device.last_us / 1e6, span.length_s)}"
    return (
        f'<div class="row {state}"><div class="name"><span class="dot" title="{state}"></span>'
        f"{safe(device.topic)}</div><div>{presence_strip(device.bins, BINS, first, last)}</div>"
        f'<div class="fact">{fact}</div></div>'
    )


def traffic_section(traffic: Traffic) -> str:
    title = '<h2 id="traffic">Who sends how much</h2>'
    if not traffic.shown:
        return title + nothing("No message has come in yet.")
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


def jobs_section(kinds: Sequence[Kind]) -> str:
    title = '<h2 id="jobs">Work</h2>'
    if not kinds:
        return title + nothing("No jobs were given to workers.")
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
            for name, word in (("attempts_failed", "failed"), ("tasks_returned", "handed back"), ("tasks_lost", "lost"))
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
    lead = "Times are: the mean, what 95 % of the tasks of the slowest hour stayed within, and the longest."
    return f'{title}<p class="soft">{lead}</p>{_table(heads, rows)}'


def _times(times: tuple[float | None, float | None, float | None]) -> str:
    return " · ".join(duration(one) for one in times) if any(one is not None for one in times) else NONE


def quarantine_section(reasons: Sequence[Reason]) -> str:
    title = '<h2 id="quarantine">Quarantine</h2>'
    if not reasons:
        return title + nothing("Every message that should be a reading could be read.")
    total = sum(reason.count for reason in reasons)
    lead = f"{several(total, 'message')} could not be read as numbers; what they said is kept in silver/quarantine."
    blocks = []
    for place, reason in enumerate(reasons):
        examples = [
            f"<tr><td>{moment(one.at_us / 1e6)}</td><td>{safe(one.topic)}</td><td>{safe(one.detail, 160)}</td>"
            f"<td><code>{safe_payload(one.payload)}</code></td></tr>"
            for one in reason.examples
        ]
        heads = (("received (UTC)", ""), ("topic", ""), ("what is wrong", ""), ("payload", ""))
        share = 100 * reason.count / total
        blocks.append(
            f"<details{' open' if place == 0 else ''}><summary>{safe(reason.name)}"
            f'<span class="bar"><i class="bad" style="width:{share:.2f}%"></i></span>{whole(reason.count)}</summary>'
            f"{_table(heads, examples, is_panel=False)}</details>"
        )
    return f'{title}<p class="soft">{lead}</p><div class="panel">{"".join(blocks)}</div>'


def nothing(sentence: str) -> str:
    return f'<p class="nothing">{sentence}</p>'


def _table(heads: Sequence[tuple[str, str]], rows: Sequence[str], *, is_panel: bool = True) -> str:
    head = "".join(f"<th{f' class={style}' if style else ''}>{title}</th>" for title, style in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="panel">{table}</div>' if is_panel else table


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
