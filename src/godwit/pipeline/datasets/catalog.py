"""The list of all tables."""

from __future__ import annotations

from typing import Final

from godwit.pipeline.datasets import (
    anomalies,
    bronze,
    definitions,
    devices,
    job_statistics,
    readings,
    traffic,
    windows,
)
from godwit.pipeline.gold_table import GoldTable
from godwit.pipeline.lake import TableSpec

GOLD_TABLES: Final[tuple[GoldTable, ...]] = (windows.TABLE, devices.TABLE, traffic.TABLE, job_statistics.TABLE)
"""The gold tables that are merged from bronze and silver."""
GOLD_MERGES: Final[tuple[GoldTable, ...]] = (*windows.BY_LENGTH, *GOLD_TABLES[1:])
"""The same in the units in which they are merged, in this order."""

ALL: Final[tuple[TableSpec, ...]] = (
    bronze.SPEC,
    readings.SPEC,
    readings.QUARANTINE,
    definitions.SPEC,
    *[one.spec for one in GOLD_TABLES],
    anomalies.SPEC,
)


def view_name(spec: TableSpec) -> str:
    """Return the name of a table in SQL: bronze_messages."""
    return spec.name.replace("/", "_")
