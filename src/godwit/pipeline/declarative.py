"""Silver for Spark Declarative Pipelines: see examples/declarative.

The functions that define a declarative pipeline must not analyse a DataFrame, and `DataFrame.mapInArrow` of Spark
Connect does. A function of columns does not, so messages are parsed by one that returns arrays of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type

from godwit import pipeline
from godwit.pipeline.datasets import readings
from godwit.pipeline.datasets.readings import BatchDecoder, Decoding

_arrow_udf: Final[Callable[..., Any]] = vars(sf)["arrow_udf"]
"""PySpark's types lack it."""


def silver_readings(messages: DataFrame, *, has_content_type: bool = False) -> DataFrame:
    """Return the rows of silver/readings from rows of bronze/messages, of a batch or of a stream.

    `has_content_type`: whether they have the column, so that it helps to choose the decoder. The source adds it with
    the option `includeHeaders`; without analysing the DataFrame this is not known.
    """
    return readings.valid(_parsed(messages, has_content_type))


def silver_quarantine(messages: DataFrame, *, has_content_type: bool = False) -> DataFrame:
    """Return the rows of silver/quarantine from rows of bronze/messages, as `silver_readings` does."""
    return readings.rejected(_parsed(messages, has_content_type))


def _parsed(messages: DataFrame, has_content_type: bool) -> DataFrame:
    cloudpickle.register_pickle_by_value(pipeline)  # type: ignore[no-untyped-call]  # executors need not have godwit
    decoder = BatchDecoder(Decoding())
    names = (*readings.COLUMNS_READ, readings.CONTENT_TYPE) if has_content_type else readings.COLUMNS_READ

    def parse_columns(*columns: pa.Array) -> pa.Array:  # PySpark reads its annotations, those of a `partial` it cannot
        return _parse_columns(decoder, names, columns)

    parse = _arrow_udf(parse_columns, returnType=from_arrow_type(pa.list_(pa.struct(list(readings.PARSED)))))
    return messages.select(sf.inline(parse(*names)))


def _parse_columns(decoder: BatchDecoder, names: tuple[str, ...], columns: tuple[pa.Array, ...]) -> pa.Array:
    """Return one list for each message, on an executor: the first has the rows of all messages, the others none.

    Rows carry the keys of their messages, so it does not matter in which list they are.
    """
    batch = pa.RecordBatch.from_arrays(list(columns), names=list(names))
    (parsed,) = decoder(iter([batch]))
    ends = [0, *[parsed.num_rows] * len(columns[0])]
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), parsed.to_struct_array())
