"""The requests of the page about the pipeline. The tables are read in a thread.

Access rules of the broker do not cover the lake. Its page needs the right to kick, as the other pages for operators do.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any, Final

import msgspec

from godwit.console.connection import BrowserConnection, PageRequestError
from godwit.console.lake import ConsoleLake
from godwit.console.tail import payload_form

MAX_BATCHES: Final = 12
MAX_SHOWN: Final = 12
MAX_MESSAGES: Final = 100
MAX_TOPICS: Final = 10
PREVIEW_BYTES: Final = 500


class PipelineQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to read of the lake: status, charts or quarantine."""

    part: str
    reason: str = ""
    """With quarantine: only messages with this reason."""


class RequeueQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A request without arguments."""


async def pipeline(browser: BrowserConnection, query: PipelineQuery) -> Any:
    """Return a part of the page."""
    lake = _lake_of(browser)
    if query.part == "status":

        async def read() -> Any:
            return await asyncio.to_thread(_status, lake)

        found = await browser.cached("pipeline", read)
        return {**found, "requeue": lake.requeue_state()}
    if query.part == "charts":
        return await browser.cached("charts", lambda: asyncio.to_thread(_charts, lake.address))
    if query.part == "quarantine":
        return await browser.cached(
            f"quarantine {query.reason}", lambda: asyncio.to_thread(_quarantine, lake.address, query.reason)
        )
    raise PageRequestError("The console does not know this part of the page.")


async def requeue(browser: BrowserConnection, _: RequeueQuery) -> Any:
    """Begin to decode the quarantine again."""
    lake = _lake_of(browser)
    if lake.is_requeuing:
        raise PageRequestError("The quarantine is being decoded already.")
    lake.start_requeue()
    return lake.requeue_state()


def _lake_of(browser: BrowserConnection) -> ConsoleLake:
    if browser.lake is None:
        raise PageRequestError("This console knows no tables: start it with --lake DIR.")
    if not browser.link.is_operator:
        raise PageRequestError("This page needs the right to kick.")
    return browser.lake


def _status(shown: ConsoleLake) -> dict[str, Any]:
    from godwit.pipeline.datasets import bronze
    from godwit.pipeline.errors import PipelineError
    from godwit.pipeline.lake import Lake
    from godwit.pipeline.status import status_of

    address = shown.address
    lake = Lake(address)
    if not lake.exists():
        raise PageRequestError(f"There are no tables at {address} yet: start godwit pipeline run --lake {address}.")
    try:
        found = asdict(status_of(lake, shown.source))
        snapshot = lake.table(bronze.SPEC).snapshot()
    except PipelineError as error:
        raise PageRequestError(str(error)) from None
    batches = []
    for one in [] if snapshot is None else snapshot.history(MAX_BATCHES):
        if one.get("operation") == "CREATE TABLE":
            continue
        metrics = one.get("operationMetrics") or {}
        # Of a batch of the pipeline, of deltalake and of Spark.
        rows = one.get("num_added_rows") or metrics.get("num_added_rows") or metrics.get("numOutputRows")
        batches.append(
            {
                "at_us": int(one.get("timestamp", 0)) * 1000,
                "operation": one.get("operation"),
                "rows": None if rows is None else int(rows),
            }
        )
    return {**found, "batches": batches, "read_us": time.time_ns() // 1000, "lake": address}


def _charts(address: str) -> dict[str, Any]:
    from godwit.pipeline.lake import Lake
    from godwit.pipeline.report.figures import read_alarms
    from godwit.pipeline.report.series import read_series

    lake = Lake(address)
    alarms = read_alarms(lake)
    found = read_series(lake, alarms)
    series = [
        {
            "topic": one.topic,
            "quantity": one.quantity,
            "unit": one.unit,
            "readings": one.readings,
            "points": [(point.at_us, point.mean) for point in one.points],
            "alarms": [(alarm.at_us, alarm.value, alarm.reason) for alarm in one.alarms],
        }
        for one in found.shown[:MAX_SHOWN]
    ]
    return {"series": series, "count": found.count, "readings": found.readings, "alarms": alarms.count}


def _quarantine(address: str, reason: str) -> dict[str, Any]:
    from godwit.pipeline.datasets import readings
    from godwit.pipeline.lake import Lake
    from godwit.pipeline.quarantine import summarize

    lake = Lake(address)
    reasons = [
        {
            "reason": one.reason,
            "meaning": one.meaning,
            "messages": one.messages,
            "topics": one.topics.most_common(MAX_TOPICS),
            "detail": one.detail,
            "suggestion": one.suggestion,
        }
        for one in summarize(lake)
    ]
    messages: list[dict[str, Any]] = []
    for rows in lake.table(readings.QUARANTINE).scan(["reason", "topic", "detail", "payload", "publisher", "offset"]):
        for row in rows.to_pylist():
            if reason in ("", row["reason"]):
                row["payload"] = payload_form(row["payload"] or b"", PREVIEW_BYTES)
                messages.append(row)
        messages = messages[-MAX_MESSAGES:]
    return {"reasons": reasons, "messages": messages[::-1]}
