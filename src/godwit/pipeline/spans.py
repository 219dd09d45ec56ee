"""A few spans of time that hold all of some times: what lies outside need not be looked at.

One span would do if all clocks were right. With a device whose clock is off by years it would hold everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final, TypeAlias

import pyarrow.compute as pc

MAX_SPANS: Final = 8
FAR: Final = timedelta(days=1)
"""Times that lie no further apart are in one span."""
Span: TypeAlias = tuple[datetime, datetime]


def spans(times: Iterable[datetime]) -> list[Span]:
    """In order, both ends included."""
    ordered = sorted(set(times))
    gaps = [(later - earlier, later) for earlier, later in itertools.pairwise(ordered)]
    widest = sorted((gap for gap in gaps if gap[0] > FAR), reverse=True)[: MAX_SPANS - 1]
    begins = sorted([ordered[0], *[later for _, later in widest]]) if ordered else []
    ends = [max(at for at in ordered if at < begin) for begin in begins[1:]] + ordered[-1:]
    return list(zip(begins, ends, strict=True))


def as_filter(column: str, wanted: list[Span]) -> pc.Expression:
    """For Arrow."""
    return reduce(or_, [(pc.field(column) >= begin) & (pc.field(column) <= end) for begin, end in wanted])


def as_condition(column: str, wanted: list[Span]) -> str:
    """For Delta."""
    parts = [f"({column} >= {in_sql(begin)} AND {column} <= {in_sql(end)})" for begin, end in wanted]
    return f"({' OR '.join(parts)})"


def in_sql(at: datetime) -> str:
    """In the unit of the tables: others are not compared with it."""
    return f"arrow_cast('{at.astimezone(UTC).isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
