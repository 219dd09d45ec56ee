"""Spark and Godwit: `format("godwit")` to read brokers' logs and to write to them.

import godwit

godwit.spark.register(spark)
messages = spark.readStream.format("godwit").option("archive", "localhost:50001").load()

If godwit is installed for the Python of Spark's driver, `register` is not needed: PySpark finds the package
pyspark_godwit by its name.

This package also runs on executors, where godwit is not installed: it is sent to them by value, and imports only
itself, the standard library, pyarrow and pyspark.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register `format("godwit")` with a session, classic or of Spark Connect.

    The code is sent with it: neither the server of a Connect session nor executors need godwit. They need pyarrow and
    the minor version of Python of this process.
    """
    from godwit.spark import source

    pickle_by_value()
    kind = type(
        "GodwitSource", (source.GodwitSource,), {"parallelism": _parallelism(spark), "__module__": source.__name__}
    )
    spark.dataSource.register(kind)


def pickle_by_value() -> None:
    """Let Spark send classes of this package with their code instead of their names."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def _parallelism(spark: SparkSession) -> int | None:
    """Return the number of tasks that the session runs at once; None if only the driver knows it."""
    from pyspark.errors import PySparkAttributeError

    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:  # a session of Spark Connect
        text = spark.conf.get("spark.sql.leafNodeDefaultParallelism", None)
        text = text or spark.conf.get("spark.default.parallelism", None)
        return int(text) if text and text.isdecimal() else None
