"""Rows of a table put right afterwards: what streams never do, and repairs must."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from godwit.pipeline.lake import Marks, Table, marking
from godwit.pipeline.spans import in_sql


def replace(table: Table, rows: pa.Table, where: str | None) -> None:
    """Puts rows in the place of all that fulfil the condition, or of all, in one step."""
    if table.version is None and not rows.num_rows:
        return
    schema = table.spec.schema
    write_deltalake(
        table.address,
        rows.select(schema.names).cast(schema),
        mode="overwrite",
        predicate=where,
    )


def remove(table: Table, rows: pa.Table, marks: Marks) -> bool:
    """Takes out the rows that have the same values in all columns of `rows`, and sets the marks, once."""
    if table.version is None or table.is_done(marks):
        return False
    delta = DeltaTable(table.address)
    same = " AND ".join(f'target."{name}" = source."{name}"' for name in rows.column_names)
    merge = delta.merge(
        rows, predicate=same, source_alias="source", target_alias="target", commit_properties=marking(marks)
    )
    merge.when_matched_delete().execute()
    return True


def between(column: str, start: datetime | None, end: datetime | None) -> str | None:
    """The condition on a column with times, from `start` on and before `end`."""
    parts = [f'"{column}" {sign} {in_sql(at)}' for sign, at in ((">=", start), ("<", end)) if at is not None]
    return " AND ".join(parts) or None
