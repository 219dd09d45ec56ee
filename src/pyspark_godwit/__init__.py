"""Registers `format("godwit")` with every Spark session, without code.

PySpark imports the modules named pyspark_* that the driver's Python finds, before the first Python data source is
used, and registers their `DefaultSource`. The class is sent to executors by value, so godwit need not be installed
there. An import that fails would disable all other data sources, too: without pyarrow `DefaultSource` is left out.
"""

from __future__ import annotations

try:
    import pyarrow.flight  # noqa: F401
except ImportError:
    pass
else:
    import godwit.spark
    from godwit.spark.source import GodwitSource as DefaultSource

    godwit.spark.pickle_by_value()
    __all__ = ["DefaultSource"]
