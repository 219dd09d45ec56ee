"""Checks that tables are consistent: each row by itself, rows among each other, and tables among each other.

A message that was lost or written twice is found here. Between batches, once gold is up to date, all checks hold;
during a batch some tables have its messages and others do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from godwit.pipeline.checkpoints import check_no_partial_batch
from godwit.pipeline.datasets import readings
from godwit.pipeline.datasets.catalog import ALL, view_name
from godwit.pipeline.datasets.definitions import DefinitionStore
from godwit.pipeline.datasets.job_statistics import TOPICS
from godwit.pipeline.datasets.windows import LENGTHS_S
from godwit.pipeline.decoders.catalog import decoder_set
from godwit.pipeline.decoders.selection import DecoderRule
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake, TableSpec
from godwit.pipeline.query import add_views


def _difference(counted: str, expected: str) -> str:
    """Return SQL for the sum of the differences of two queries, group by group. `n` is the count in both."""
    return (
        f"WITH counted AS ({counted}), expected AS ({expected}) "
        "SELECT coalesce(sum(abs(coalesce(counted.n, 0) - coalesce(expected.n, 0))), 0) "
        f"FROM counted FULL OUTER JOIN expected USING ({', '.join(_group_columns(counted))})"
    )


def _group_columns(counted: str) -> list[str]:
    """Return the columns of a query except the last, which is the count."""
    return [name.strip() for name in counted.removeprefix("SELECT ").partition(" FROM ")[0].split(", ")[:-1]]


_UNREAD: Final = """
    SELECT * FROM bronze_messages
    LEFT ANTI JOIN (SELECT broker, offset FROM silver_readings UNION SELECT broker, offset FROM silver_quarantine)
    USING (broker, offset)"""
"""Messages that are in neither table: definitions and statuses, which have no readings."""
ALL_READ: Final = "every message with readings or an error is in silver or in quarantine"
BETWEEN_TABLES: Final = {
    # (table, condition): SQL for the number of rows that violate it
    ("silver/readings", "every reading is of a message in bronze"): """
        SELECT count(*) FROM silver_readings LEFT ANTI JOIN bronze_messages USING (broker, offset)""",
    ("silver/quarantine", "no message in it is in silver, too"): """
        SELECT count(*) FROM silver_quarantine LEFT SEMI JOIN silver_readings USING (broker, offset)""",
    ("gold/windows", "windows of each length count every reading once"): _difference(
        "SELECT broker, topic, quantity, name, window_s, sum(count) AS n FROM "
        "(SELECT * EXCEPT (name), coalesce(name, '') AS name FROM gold_windows) GROUP BY ALL",
        "SELECT broker, topic, quantity, coalesce(name, '') AS name, window_s, count(*) AS n FROM silver_readings "
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
class CheckResult:
    """The result of one check."""

    table: str
    check: str
    wrong: int
    """Rows that violate the condition."""


def run_checks(spark: SparkSession, lake: Lake, rules: tuple[DecoderRule, ...] = ()) -> Iterator[CheckResult]:
    """Bring gold up to date, then yield the result of each check. `rules` are the configured decoders.

    The lake must be locked. Raise PipelineError if a batch is incomplete.
    """
    check_no_partial_batch(lake)
    Gold(lake).catch_up(spark)
    add_views(spark, lake)
    for spec in ALL:
        yield from _check_rows(spark, spec)
        yield CheckResult(spec.name, f"no two rows have the same {', '.join(spec.keys)}", _duplicates(spark, spec))
        if spec is readings.SPEC:
            yield CheckResult(spec.name, ALL_READ, _unread(spark, lake, rules))
        for (table, check), sql in BETWEEN_TABLES.items():
            if table == spec.name:
                yield CheckResult(table, check, int(spark.sql(sql).collect()[0][0]))


def _unread(spark: SparkSession, lake: Lake, rules: tuple[DecoderRule, ...]) -> int:
    """Return the number of messages that are in neither table of silver, and should be in one."""
    definitions = DefinitionStore(lake, decoder_set(rules)).rows_since()
    parsed = readings.parse(spark.sql(_UNREAD), readings.Decoding(rules, tuple(definitions)))
    return parsed.select("broker", "offset").distinct().count()


def _check_rows(spark: SparkSession, spec: TableSpec) -> Iterator[CheckResult]:
    counts = [sf.count_if(sf.expr(f"NOT coalesce({condition}, false)")) for condition in spec.checks.values()]
    found = spark.table(view_name(spec)).agg(*counts).collect()[0]
    for check, wrong in zip(spec.checks, found, strict=True):
        yield CheckResult(spec.name, check, int(wrong))


def _duplicates(spark: SparkSession, spec: TableSpec) -> int:
    """Return the number of rows beyond the first of each key."""
    groups = spark.table(view_name(spec)).groupBy(*spec.keys).count()
    found = groups.agg(sf.coalesce(sf.sum(sf.col("count") - 1), sf.lit(0))).collect()[0]
    return int(found[0])
