"""All tables of the pipeline in one list, and what each gold table is made of."""

from __future__ import annotations

from typing import Final

from godwit.pipeline.datasets import anomalies, bronze, devices, job_statistics, readings, traffic, windows
from godwit.pipeline.lake import TableSpec
from godwit.pipeline.merging import Merging

OF_MESSAGES: Final[tuple[Merging, ...]] = (devices.MERGING, traffic.MERGING, job_statistics.MERGING)
"""Gold that is made of bronze."""
OF_READINGS: Final[tuple[Merging, ...]] = windows.BY_LENGTH
"""Gold that is made of silver."""

ALL: Final[tuple[TableSpec, ...]] = (
    bronze.SPEC,
    readings.SPEC,
    readings.QUARANTINE,
    windows.SPEC,
    *[merging.spec for merging in OF_MESSAGES],
    anomalies.SPEC,
)


def view_name(spec: TableSpec) -> str:
    """As SQL calls it: bronze_messages."""
    return spec.name.replace("/", "_")
