"""Tables of any size in little memory: read piece by piece, and summed up or thinned out on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

FOLD_ROWS: Final = 200_000
"""So many rows of partial sums are held before they are joined."""


class Totals:
    """Rows with the same keys become one. `ways`: how each other column is joined (sum, min, max)."""

    def __init__(self, keys: Sequence[str], ways: Mapping[str, str]) -> None:
        self._keys = list(keys)
        self._ways = dict(ways)
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        self._parts.append(self._folded(rows))
        self._rows += self._parts[-1].num_rows
        if self._rows > FOLD_ROWS and len(self._parts) > 1:
            self._parts = [self._folded(pa.concat_tables(self._parts))]
            self._rows = self._parts[0].num_rows

    def table(self) -> pa.Table | None:
        """None: there were no rows."""
        return self._folded(pa.concat_tables(self._parts)) if self._parts else None

    def rows(self, order: str | None = None, limit: int | None = None) -> list[dict[str, object]]:
        """The greatest by a column, or all."""
        table = self.table()
        if table is None:
            return []
        if order is not None:
            table = greatest(table, order, limit if limit is not None else table.num_rows)
        return table.to_pylist()  # type: ignore[no-any-return]

    def _folded(self, rows: pa.Table) -> pa.Table:
        found = rows.group_by(self._keys, use_threads=False).aggregate(list(self._ways.items()))
        joined = [found.column(f"{name}_{way}") for name, way in self._ways.items()]
        return pa.table([*[found.column(key) for key in self._keys], *joined], names=[*self._keys, *self._ways])


def greatest(table: pa.Table, column: str, count: int) -> pa.Table:
    """So many rows with the greatest values, the greatest first."""
    if not table.num_rows:
        return table
    return table.take(pc.select_k_unstable(table, k=min(count, table.num_rows), sort_keys=[(column, "descending")]))


def greatest_of(batches: Iterable[pa.Table], column: str, count: int) -> pa.Table | None:
    """The same of a table that comes in pieces. None: there were no rows."""
    kept: pa.Table | None = None
    for batch in batches:
        if batch.num_rows:
            together = batch if kept is None else pa.concat_tables([kept, batch])
            kept = greatest(together, column, count)
    return kept


def micros(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return times.cast(pa.int64())


def binned(times: pa.ChunkedArray, begin_us: int, width_us: int) -> pa.ChunkedArray:
    """Which of the bins of such a width, counted from `begin_us`, each time lies in."""
    return pc.divide(pc.subtract(micros(times), begin_us), width_us)
