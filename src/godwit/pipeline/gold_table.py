"""Gold tables: aggregates that are updated by merging, in any order and however late messages arrive.

A gold table is defined by its columns. Each column has one SQL expression that aggregates rows of the source (bronze
or silver), and one that combines rows of the gold table itself. New source rows are aggregated, the results are
combined with the stored rows of the same keys, and the combined rows replace these. A device that was offline for a
week is treated like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from godwit.pipeline.lake import HOUR, LakeTable, RowTimes, TableColumn, TableSpec, Watermarks
from godwit.pipeline.time_spans import time_spans


@dataclass(frozen=True)
class GoldColumn(TableColumn):
    """A column of a gold table, with SQL expressions for its value, which both Spark and DuckDB evaluate.

    A key has none. Another column has either `aggregate` and `combine`, or `derived` alone.
    """

    aggregate: str = ""
    """From a group of source rows, as `GoldTable.prepare` returns them: count(*)."""
    combine: str = ""
    """From a group of rows of the table with the same keys: sum(messages)."""
    derived: str = ""
    """From the other columns of the same row: hll_sketch_estimate(topics_sketch)."""


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows


@dataclass(frozen=True)
class GoldTable:
    """A gold table and how its rows are made."""

    spec: TableSpec
    """All columns are GoldColumns."""
    name: str
    """Begins the names of its watermarks. It is stored in lakes and must not change."""
    source: TableSpec
    source_time: str
    """Column of the source by which a rebuild selects rows of a time range."""
    rows_sql: str
    """The same as `prepare` as a query of DuckDB, over the view `source`."""
    parts_sql: str = "SELECT * FROM parts"
    """The same as `prepare_combine` as a query of DuckDB, over the view `parts`."""
    prepare: Callable[[DataFrame], DataFrame] = _unchanged
    """Selects the source rows, and adds the key columns and other inputs of the `aggregate` expressions."""
    prepare_combine: Callable[[DataFrame], DataFrame] = _unchanged
    """Adds inputs of the `combine` expressions to rows of the table."""
    topics_from: str = ""
    """Rows of the source whose topics do not begin with this text are not used."""

    def aggregate(self, source_rows: DataFrame) -> DataFrame:
        """Return rows of this table from rows of the source."""
        return self._grouped(self.prepare(source_rows), {one.name: one.aggregate for one in self.columns})

    def combine(self, rows: DataFrame) -> DataFrame:
        """Return one row for each group of rows of this table that have the same keys."""
        return self._grouped(self.prepare_combine(rows), {one.name: one.combine for one in self.columns})

    def compute(self, source_rows: DataFrame) -> DataFrame:
        """Return the content of the whole table from all rows of the source."""
        return self.combine(self.aggregate(source_rows))

    def merge_on_executors(self, table: LakeTable, source_rows: DataFrame, watermarks: Watermarks) -> bool:
        """Merge new rows of the source into the stored table, and set the watermarks, in one transaction.

        This is for any number of rows: none of them passes through the driver, and all stored rows of the hours that
        change are written again. Steps of a run use godwit.pipeline.gold_database.

        Return False, and write nothing, if all watermarks had been reached before.
        """
        time = self.spec.time
        assert time is not None
        if table.has_reached(watermarks):
            return False
        spark = source_rows.sparkSession
        fresh = self.aggregate(source_rows)
        if (before := table.expired_before) is not None:
            fresh = fresh.where(sf.col(time) >= sf.lit(before))
        fresh = fresh.localCheckpoint()
        hours = fresh.select(sf.floor(sf.unix_seconds(time) / 3600).alias("hour")).distinct().collect()
        spans = time_spans(datetime.fromtimestamp(3600 * row["hour"], UTC) for row in hours)
        if not spans:
            return table.upsert(self.spec.schema.empty_table(), watermarks)
        changed = RowTimes(time, tuple((begin, end + HOUR) for begin, end in spans))
        stored = table.frame(spark).where(_within(time, changed))
        for key in self.spec.columns:
            if key.missing is not None:
                stored = stored.withColumn(key.name, sf.coalesce(key.name, sf.lit(key.missing)))
        table.replace_times(spark, changed, self.combine(stored.unionByName(fresh)), watermarks)
        return True

    @property
    def columns(self) -> Sequence[GoldColumn]:
        """The columns of the table."""
        return [one for one in self.spec.columns if isinstance(one, GoldColumn)]

    def _grouped(self, rows: DataFrame, expressions: dict[str, str]) -> DataFrame:
        """Return one row for each group of rows with the same keys."""
        plain = [sf.expr(sql).alias(name) for name, sql in expressions.items() if sql]
        found = rows.groupBy(*self.spec.keys).agg(*plain)
        derived = {one.name: sf.expr(one.derived) for one in self.columns if one.derived}
        if derived:
            found = found.withColumns(derived)
        return found.select(*self.spec.schema.names)


def _within(column: str, times: RowTimes) -> Column:
    """Return the condition that a column is in one of the spans, which have both bounds."""
    at = sf.col(column)
    return reduce(Column.__or__, [(at >= sf.lit(begin)) & (at < sf.lit(end)) for begin, end in times.spans])
