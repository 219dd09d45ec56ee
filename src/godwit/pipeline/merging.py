"""Gold tables are merged, not watermarked: what a micro-batch adds is joined with what the table has, and put back.

Every such dataset is told by two functions. `partials` makes rows of a micro-batch, `merged` makes one row of several
with the same keys; both have the table's columns, so that rows of the table and rows of a batch are the same thing. A
device that was offline for a week is as welcome as a live one, and nothing is ever too late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from godwit.pipeline.lake import Table, TableSpec


@dataclass(frozen=True)
class Merging:
    """A gold dataset."""

    spec: TableSpec
    partials: Callable[[DataFrame], DataFrame]
    merged: Callable[[DataFrame], DataFrame]


def merge(table: Table, merging: Merging, batch_rows: DataFrame, query: str, batch: int) -> bool:
    """Adds what a micro-batch brings, once. False: that had been done before."""
    if table.is_done(query, batch):
        return False
    keys = list(merging.spec.keys)
    fresh = merging.partials(batch_rows).select(*merging.spec.schema.names).localCheckpoint()
    known = table.frame(batch_rows.sparkSession).join(sf.broadcast(fresh.select(*keys).distinct()), keys, "left_semi")
    together = merging.merged(known.select(*merging.spec.schema.names).unionByName(fresh))
    return table.upsert(together.select(*merging.spec.schema.names).toArrow(), query, batch)


def rebuilt(merging: Merging, rows: DataFrame) -> DataFrame:
    """The dataset from all of its rows at once."""
    return merging.merged(merging.partials(rows).select(*merging.spec.schema.names))
