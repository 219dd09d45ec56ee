"""Sketches of gold tables on the driver: the functions of Spark SQL that make and read them, on Arrow arrays.

The library is Apache DataSketches, which Spark contains too: both read each other's sketches.

    KLL           quantiles; exact up to K values, beyond that within about 1.3 % of the rank
    HyperLogLog   the number of distinct texts, with a standard error of 1.6 %

A null or empty list of values makes an empty sketch, as in Spark.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import datasketches
import pyarrow as pa

K: Final = 200
LG_K: Final = 12
"""The parameters that Spark uses by default: the size of a KLL sketch, and the binary logarithm of an HLL sketch's."""
_HLL_TYPE: Final = datasketches.tgt_hll_type.HLL_8
_CACHED: Final = 4096
"""Sketches that are kept parsed: several columns are made from each."""


def kll_of_values(values: pa.ChunkedArray) -> pa.Array:
    """Return a KLL sketch for each list of numbers, which has no nulls in it."""
    found = []
    for chunk in values.chunks:
        numbers = chunk.values.to_numpy(zero_copy_only=False).copy()  # the library accepts writable arrays only
        ends = chunk.offsets.to_pylist()
        for begin, end in pairwise(ends):  # a null list is empty
            sketch = datasketches.kll_doubles_sketch(K)
            sketch.update(numbers[begin:end])
            found.append(sketch.serialize())
    return pa.array(found, pa.binary())


def kll_of_sketches(sketches: pa.ChunkedArray) -> pa.Array:
    """Return the union of each list of KLL sketches."""
    found = []
    for parts in sketches.to_pylist():
        union = datasketches.kll_doubles_sketch(K)
        for part in parts or ():
            if part is not None:
                union.merge(_kll(part))
        found.append(union.serialize())
    return pa.array(found, pa.binary())


def kll_quantile(sketches: pa.ChunkedArray, ranks: pa.ChunkedArray) -> pa.Array:
    """Return the value at a rank from 0 to 1 of each KLL sketch; null if it is empty."""
    found = []
    for data, rank in zip(sketches.to_pylist(), ranks.to_pylist(), strict=True):
        sketch = None if data is None else _kll(data)
        found.append(None if sketch is None or sketch.is_empty() else sketch.get_quantile(rank, True))
    return pa.array(found, pa.float64())


def kll_count(sketches: pa.ChunkedArray) -> pa.Array:
    """Return the number of values of each KLL sketch."""
    return pa.array([None if one is None else _kll(one).n for one in sketches.to_pylist()], pa.int64())


def hll_of_values(values: pa.ChunkedArray) -> pa.Array:
    """Return an HLL sketch for each list of texts."""
    found = []
    for texts in values.to_pylist():
        sketch = datasketches.hll_sketch(LG_K, _HLL_TYPE)
        for text in texts or ():
            if text:  # as in Spark, an empty text does not count
                sketch.update(text)
        found.append(sketch.serialize_updatable())
    return pa.array(found, pa.binary())


def hll_of_sketches(sketches: pa.ChunkedArray) -> pa.Array:
    """Return the union of each list of HLL sketches."""
    found = []
    for parts in sketches.to_pylist():
        union = datasketches.hll_union(LG_K)
        for part in parts or ():
            if part is not None:
                union.update(datasketches.hll_sketch.deserialize(part))
        found.append(union.get_result(_HLL_TYPE).serialize_updatable())
    return pa.array(found, pa.binary())


def hll_estimate(sketches: pa.ChunkedArray) -> pa.Array:
    """Return the number of distinct texts of each HLL sketch."""
    found = [
        None if one is None else round(datasketches.hll_sketch.deserialize(one).get_estimate())
        for one in sketches.to_pylist()
    ]
    return pa.array(found, pa.int64())


@lru_cache(_CACHED)
def _kll(data: bytes) -> Any:
    return datasketches.kll_doubles_sketch.deserialize(data)
