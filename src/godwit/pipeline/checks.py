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
from godwit.pipeline.datasets.job_statistics import TOPICS
from godwit.pipeline.datasets.readings import NOT_READINGS
from godwit.pipeline.datasets.windows import LENGTHS_S
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.query import add_views


def _difference(counted: str, wanted: str) -> str:
    """How far two countings are apart, group by group; `n` is the count in both."""
    return (
        f"WITH counted AS ({counted}), wanted AS ({wanted}) "
        "SELECT coalesce(sum(abs(coalesce(counted.n, 0) - coalesce(wanted.n, 0))), 0) "
        f"FROM counted FULL OUTER JOIN wanted USING ({', '.join(_columns(counted))})"
    )


def _columns(counted: str) -> list[str]:
    """By which it is grouped: all but the count, which is the last."""
    return [name.strip() for name in counted.removeprefix("SELECT ").split(", ")[:-1]]


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
    ("gold/windows", "windows of each length count every reading once"): _difference(
        "SELECT broker, topic, quantity, window_s, sum(count) AS n FROM gold_windows GROUP BY ALL",
        "SELECT broker, topic, quantity, window_s, count(*) AS n FROM silver_readings "
        f"CROSS JOIN (SELECT explode(array{LENGTHS_S}) AS window_s) GROUP BY ALL",
    ),
    ("gold/devices", "devices count every message once, but the broker's own"): _difference(
        "SELECT broker, topic, sum(messages) AS n FROM gold_devices GROUP BY ALL",
        "SELECT broker, topic, count(*) AS n FROM bronze_messages WHERE NOT startswith(topic, '$') GROUP BY ALL",
    ),
    ("gold/traffic", "publishers count every message once, in its hour"): _difference(
        "SELECT broker, publisher, hour, sum(messages) AS n FROM gold_traffic GROUP BY ALL",
        "SELECT broker, publisher, date_trunc('hour', received) AS hour, count(*) AS n FROM bronze_messages "
        "GROUP BY ALL",
    ),
    ("gold/job_statistics", "every job submitted is counted once"): _difference(
        "SELECT broker, kind, sum(jobs_submitted) AS n FROM gold_job_statistics GROUP BY ALL",
        f"SELECT broker, substring(topic, {len(TOPICS) + 1}) AS kind, "
        "count_if(get_json_object(cast(payload AS string), '$.event') = 'submitted') AS n "
        f"FROM bronze_messages WHERE startswith(topic, '{TOPICS}') GROUP BY ALL",
    ),
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
