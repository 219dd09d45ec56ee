"""SQL over the lake: each table is a view, bronze/messages is bronze_messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from godwit.pipeline.datasets.catalog import ALL, view_name
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake

_SENTENCE: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]+")
"""The form of an error of Spark, at any place in a longer text."""


def add_views(spark: SparkSession, lake: Lake) -> None:
    """Create or replace the views, as snapshots of the tables."""
    for spec in ALL:
        lake.table(spec).frame(spark).createOrReplaceTempView(view_name(spec))


def run_query(spark: SparkSession, lake: Lake, sql: str) -> DataFrame:
    """Return the result of a query.

    Raise PipelineError with Spark's first sentence if the SQL is invalid, and if it is not a query.
    """
    with _short_errors():
        _check_is_query(spark, sql)
    add_views(spark, lake)
    with _short_errors():
        return spark.sql(sql)


def _check_is_query(spark: SparkSession, sql: str) -> None:
    """Raise PipelineError for a statement that writes: INSERT OVERWRITE would replace the files behind a view."""
    first = next(iter(sql.split()), "").lower()
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    parser.parsePlan(sql)  # raises Spark's own error if the syntax is wrong
    if first not in ("show", "describe", "desc", "explain"):
        try:
            parser.parseQuery(sql)
        except Exception:
            raise PipelineError(
                f"{first.upper()} is not a query: use SELECT, WITH, SHOW or DESCRIBE, which change nothing"
            ) from None


def iterate_rows(result: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of a result, in bounded memory."""
    names = result.columns
    with _short_errors():
        for row in result.toLocalIterator():
            yield dict(zip(names, row, strict=True))


@contextmanager
def _short_errors() -> Iterator[None]:
    """Raise Spark's errors as PipelineError without plans and stacks, with the tables if a table is unknown."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        found = _SENTENCE.search(str(error))
        sentence = found[0].partition(" SQLSTATE:")[0] if found else type(error).__name__
        if "TABLE_OR_VIEW_NOT_FOUND" in sentence:
            sentence = f"{sentence.partition('. ')[0]}: choose from {', '.join(view_name(spec) for spec in ALL)}"
        raise PipelineError(sentence) from None
