"""SQL over the lake: each table is a view, bronze/messages is bronze_messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from godwit.pipeline.datasets.catalog import ALL, view_name
from godwit.pipeline.lake import Lake
from godwit.pipeline.problems import PipelineError

_SENTENCE: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]+")
"""As Spark writes its errors, wherever in a page of text."""


def add_views(spark: SparkSession, lake: Lake) -> None:
    """As the tables are now."""
    for spec in ALL:
        lake.table(spec).frame(spark).createOrReplaceTempView(view_name(spec))


def ask(spark: SparkSession, lake: Lake, sql: str) -> DataFrame:
    """The answer. PipelineError with Spark's first words if the question is wrong, or if it is an order."""
    with _explained():
        _check_question(spark, sql)
    add_views(spark, lake)
    with _explained():
        return spark.sql(sql)


def _check_question(spark: SparkSession, sql: str) -> None:
    """The views are files, and INSERT OVERWRITE would replace them."""
    first = next(iter(sql.split()), "").lower()
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    parser.parsePlan(sql)  # what is wrong with its syntax is told in Spark's words
    if first not in ("show", "describe", "desc", "explain"):
        try:
            parser.parseQuery(sql)
        except Exception:
            raise PipelineError(f"a query asks the lake, and changes nothing: {first.upper()} is no question") from None


def all_rows(answer: DataFrame) -> Iterator[dict[str, Any]]:
    """One after another, in bounded memory."""
    names = answer.columns
    with _explained():
        for row in answer.toLocalIterator():
            yield dict(zip(names, row, strict=True))


@contextmanager
def _explained() -> Iterator[None]:
    """What is wrong with a question, without plans and stacks; and which tables there are, if that is it."""
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
