"""`format("godwit")`: the data source that Spark loads for reading and writing."""

from __future__ import annotations

import os
import warnings

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from godwit.spark.options import ArchiveAccess, OptionError, includes_headers, read_options, write_options
from godwit.spark.reader import ALL_COLUMNS, SCHEMA, BatchReader, StreamReader, check_columns
from godwit.spark.sink import BatchWriter, StreamWriter


class GodwitSource(DataSource):
    """The data source. docs/SPARK.md has its options; invalid ones raise OptionError."""

    parallelism: int | None = None
    """Partitions of a large read. `register` sets it to the session's default parallelism; if it is unknown, the number
    of the driver's processors is used."""

    @classmethod
    def name(cls) -> str:
        return "godwit"

    def schema(self) -> StructType:
        return ALL_COLUMNS if includes_headers(dict(self.options)) else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(dict(self.options), is_stream=False)
        _warn(options.access)
        return BatchReader(options, check_columns(schema), self._partitions())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        options = read_options(dict(self.options), is_stream=True)
        _warn(options.access)
        return StreamReader(options, check_columns(schema), self._partitions())

    def _partitions(self) -> int:
        return self.parallelism or os.cpu_count() or 2

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("a log is never overwritten: use mode('append')")
        options = write_options(dict(self.options))
        _warn(options.access)
        return BatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = write_options(dict(self.options))
        if options.query is not None:  # with a new checkpoint, batches count from 0 and would be ignored
            raise OptionError("a stream uses its own id: the option query is for df.write")
        _warn(options.access)
        return StreamWriter(options, schema)


def _warn(access: ArchiveAccess) -> None:
    """Warn of a token without encryption. Python prints the same warning once per process."""
    if text := access.plain_token_warning():
        warnings.warn(text, stacklevel=2)
