"""What must hold of the tables, and whether it does: of each row, of rows among each other, and between tables.

A message that came twice or not at all would show here, so that nobody has to take our word for it. Between batches
everything holds, once gold has followed; in the middle of one some tables know it and others do not yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from godwit.pipeline.checkpoints import check_whole
from godwit.pipeline.datasets.catalog import ALL, view_name
from godwit.pipeline.datasets.readings import NOT_READINGS
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.query import add_views

_IS_READ: Final = " AND ".join(f"NOT startswith(topic, '{prefix}')" for prefix in NOT_READINGS)
BETWEEN: Final = {
    # table, what must hold: how many rows it does not hold for
    ("silver/readings", "every message is in silver or in quarantine"): f"""
        SELECT count(*) FROM bronze_messages
        LEFT ANTI JOIN (SELECT broker, offset FROM silver_readings UNION SELECT broker, offset FROM silver_quarantine)
        USING (broker, offset) WHERE {_IS_READ}""",
    ("silver/readings", "every reading is of a message in bronze"): """
        SELECT count(*) FROM silver_readings LEFT ANTI JOIN bronze_messages USING (broker, offset)""",
    ("silver/quarantine", "no message in it is in silver, too"): """
        SELECT count(*) FROM silver_quarantine LEFT SEMI JOIN silver_readings USING (broker, offset)""",
    ("gold/windows", "windows of a length count every reading once"): """
        SELECT coalesce(sum(abs(n - (SELECT count(*) FROM silver_readings))), (SELECT count(*) FROM silver_readings))
        FROM (SELECT sum(count) AS n FROM gold_windows GROUP BY window_s)""",
    ("gold/devices", "devices count every message once, but the broker's own"): """
        SELECT abs((SELECT coalesce(sum(messages), 0) FROM gold_devices)
        - (SELECT count(*) FROM bronze_messages WHERE NOT startswith(topic, '$')))""",
    ("gold/traffic", "publishers count every message once"): """
        SELECT abs((SELECT coalesce(sum(messages), 0) FROM gold_traffic) - (SELECT count(*) FROM bronze_messages))""",
}


@dataclass(frozen=True)
class Result:
    """Of one check."""

    table: str
    check: str
    wrong: int
    """Rows that it does not hold for."""


def checked(spark: SparkSession, lake: Lake) -> Iterator[Result]:
    """One result after another. PipelineError if a batch is half done. Nobody may write at the same time."""
    check_whole(lake)
    Gold(lake).catch_up(spark)
    add_views(spark, lake)
    for spec in ALL:
        yield from _rows(spark, spec)
        yield Result(spec.name, f"no two rows have the same {', '.join(spec.keys)}", _twins(spark, spec))
        for (table, check), sql in BETWEEN.items():
            if table == spec.name:
                yield Result(table, check, int(spark.sql(sql).collect()[0][0]))


def _rows(spark: SparkSession, spec: TableSpec) -> Iterator[Result]:
    counts = [sf.count_if(sf.expr(f"NOT coalesce({condition}, false)")) for condition in spec.checks.values()]
    found = spark.table(view_name(spec)).agg(*counts).collect()[0]
    for check, wrong in zip(spec.checks, found, strict=True):
        yield Result(spec.name, check, int(wrong))


def _twins(spark: SparkSession, spec: TableSpec) -> int:
    """How many rows are there besides the first of their kind."""
    groups = spark.table(view_name(spec)).groupBy(*spec.keys).count()
    found = groups.agg(sf.coalesce(sf.sum(sf.col("count") - 1), sf.lit(0))).collect()[0]
    return int(found[0])
