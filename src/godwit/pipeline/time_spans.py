"""Spans of time that cover the times of some rows, and the files that may have rows in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, TypeAlias

import pyarrow.compute as pc

MAX_SPANS: Final = 8
MAX_SPAN_GAP: Final = timedelta(days=1)
"""Times that are no further apart than this are in one span."""
TimeSpan: TypeAlias = tuple[datetime, datetime]
"""First and last time, both included."""
STATISTICS_MS: Final = timedelta(milliseconds=1)
"""Times in statistics of files that deltalake has written are rounded down to this."""


def time_spans(times: Iterable[datetime]) -> list[TimeSpan]:
    """Return at most MAX_SPANS spans, in order, that cover all of these times.

    One span would do if all clocks were right; a single device with a clock that is off by years would make it cover
    the whole table.
    """
    ordered = sorted(set(times))
    gaps = [(later - earlier, later) for earlier, later in itertools.pairwise(ordered)]
    widest = sorted((gap for gap in gaps if gap[0] > MAX_SPAN_GAP), reverse=True)[: MAX_SPANS - 1]
    begins = sorted([ordered[0], *[later for _, later in widest]]) if ordered else []
    ends = [max(at for at in ordered if at < begin) for begin in begins[1:]] + ordered[-1:]
    return list(zip(begins, ends, strict=True))


def spans_condition(column: str, spans: Iterable[TimeSpan]) -> str:
    """Return the SQL condition that a column is in one of the spans."""
    parts = [f"({column} >= {_sql_time(begin)} AND {column} <= {_sql_time(end)})" for begin, end in spans]
    return f"({' OR '.join(parts)})"


def spans_filter(column: str, spans: Iterable[TimeSpan]) -> pc.Expression:
    """Return the condition for pyarrow that a column is in one of the spans."""
    return reduce(or_, [(pc.field(column) >= begin) & (pc.field(column) <= end) for begin, end in spans])


def overlap(
    file: Mapping[str, Any], column: str, spans: Sequence[tuple[datetime | None, datetime | None]]
) -> Literal["whole", "partly", "none"]:
    """Return which rows of a file have a time in one of the spans, according to its statistics.

    A span begins with a time and ends before another one; None means without a bound.
    """
    if (None, None) in spans:
        return "whole"
    first, last = file.get(f"min.{column}"), file.get(f"max.{column}")
    if first is None or last is None:
        return "none" if file.get(f"null_count.{column}") == file["num_records"] else "partly"
    last += STATISTICS_MS
    found: Literal["whole", "partly", "none"] = "none"
    for begin, end in spans:
        if (begin is None or begin <= first) and (end is None or last < end):
            return "partly" if file.get(f"null_count.{column}") else "whole"
        if (begin is None or begin <= last) and (end is None or first < end):
            found = "partly"
    return found


def _sql_time(at: datetime) -> str:
    """Return a literal in the tables' own unit: Delta compares no other with them."""
    return f"arrow_cast('{at.astimezone(UTC).isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
