"""Gold tables are merged, not watermarked: what comes is joined with what the table has, and put back.

Every such dataset is told by two functions. `partials` makes rows of messages or readings, `merged` makes one row of
several with the same keys; both have the table's columns, so that rows of the table and new ones are the same thing. A
device that was offline for a week is as welcome as a live one, and nothing is ever too late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from godwit.pipeline.lake import Marks, Table, TableSpec


@dataclass(frozen=True)
class Merging:
    """A gold dataset."""

    spec: TableSpec
    name: str
    """Of its marks in the table."""
    partials: Callable[[DataFrame], DataFrame]
    merged: Callable[[DataFrame], DataFrame]


def merge(table: Table, merging: Merging, rows: DataFrame, marks: Marks) -> bool:
    """Adds what these rows bring, and sets the marks, once. False: that had been done before."""
    if table.is_done(marks):
        return False
    names, schema = merging.spec.schema.names, merging.spec.schema
    # There are few groups, and they pass through the driver anyway, to be written.
    fresh = merging.partials(rows).select(*names).toArrow().cast(schema)
    if not fresh.num_rows:
        return table.upsert(fresh, marks)
    together = rows.sparkSession.createDataFrame(pa.concat_tables([table.matching(fresh), fresh]))
    return table.upsert(merging.merged(together).select(*names).toArrow(), marks)


def rebuilt(merging: Merging, rows: DataFrame) -> DataFrame:
    """The dataset from all of its rows at once."""
    return merging.merged(merging.partials(rows).select(*merging.spec.schema.names))
