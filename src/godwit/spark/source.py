"""`format("godwit")`: rows of the brokers' logs for spark.readStream and spark.read, and rows back to them."""

from __future__ import annotations

import warnings

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from godwit.spark.batches import BatchReader
from godwit.spark.options import OptionError, Place, read_options, write_options
from godwit.spark.reading import SCHEMA, check_columns
from godwit.spark.sink import BatchWriter, StreamWriter
from godwit.spark.streams import StreamReader


class GodwitSource(DataSource):
    """See docs/SPARK.md for the options."""

    parallelism = 2
    """Into how many partitions large reads are cut; `register` sets it to what the session has."""

    @classmethod
    def name(cls) -> str:
        return "godwit"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(dict(self.options), is_stream=False)
        _warn(options.place)
        return BatchReader(options, check_columns(schema), self.parallelism)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        options = read_options(dict(self.options), is_stream=True)
        _warn(options.place)
        return StreamReader(options, check_columns(schema), self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("a log is never overwritten: use mode('append')")
        options = write_options(dict(self.options))
        _warn(options.place)
        return BatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = write_options(dict(self.options))
        if options.query is not None:  # with a new checkpoint batches count from 0 again, and would be taken for done
            raise OptionError("a stream is known by its own id: leave the option query to batches")
        _warn(options.place)
        return StreamWriter(options, schema)


def _warn(place: Place) -> None:
    """Python prints the same warning once in a process."""
    if text := place.plain_token_warning():
        warnings.warn(text, stacklevel=2)
