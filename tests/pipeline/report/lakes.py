"""Tables with rows for tests of the report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from godwit.pipeline.lake import Lake, TableSpec

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LOG = "0f" * 16


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def put(lake: Lake, spec: TableSpec, rows: list[dict[str, Any]], batch: int = 0) -> None:
    """Write rows, with null for missing columns."""
    columns = {one.name: pa.array([row.get(one.name) for row in rows], one.type) for one in spec.schema}
    table = lake.table(spec)
    found = pa.table(columns, schema=spec.schema)
    if spec.name.startswith("gold/"):
        assert table.upsert(found, {"test": batch})
    else:
        assert table.append_arrow(found, {"test": batch})


def window(topic: str, start_s: float, window_s: int, number: float = 20.0, **more: Any) -> dict[str, Any]:
    shape = {"count": 60, "mean": number, "min": number - 1, "max": number + 1, "p50": number - 0.1}
    keys = {"broker": LOG, "topic": topic, "quantity": "temperature", "window_s": window_s, "window_start": at(start_s)}
    return {**keys, "unit": "°C", "squares": 1.0, "deviation": 0.1, **shape, **more}
