"""Spark and Godwit: `format("godwit")` to read brokers' logs and to write to them.

import godwit.spark

godwit.spark.register(spark)
messages = spark.readStream.format("godwit").option("archive", "localhost:50001").load()

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
    """Register `format("godwit")` with a session."""
    from pyspark import cloudpickle

    from godwit.spark import source

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    parallelism = max(1, spark.sparkContext.defaultParallelism)
    kind = type("GodwitSource", (source.GodwitSource,), {"parallelism": parallelism, "__module__": source.__name__})
    spark.dataSource.register(kind)
