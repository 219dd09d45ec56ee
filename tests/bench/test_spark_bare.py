"""The bare source has the rows of Godwit's source, in as many partitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.archives import options, served

from godwit.spark.options import read_options
from godwit.spark.reader import SCHEMA, BatchReader
from godwit_bench.spark_bare import BareSource, RangeServer, rows_of


@contextmanager
def bare_of(rows: pa.Table) -> Iterator[dict[str, str]]:
    """Yield the options of a source with these rows."""
    with RangeServer("grpc://127.0.0.1:0", rows) as server:
        yield {"address": f"grpc://127.0.0.1:{server.port}", "rows": str(rows.num_rows), "pieces": "3"}


def test_it_has_the_rows_of_our_source(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(700)
        place.add(300, "b")
        ours = BatchReader(read_options(options(place), is_stream=False), tuple(SCHEMA.names), 2)
        expected = [row for piece in ours.partitions() for batch in ours.read(piece) for row in batch.to_pylist()]
        rows = rows_of(place.address)
        assert rows.to_pylist() == expected
        with bare_of(rows) as given:
            reader: Any = BareSource(given).reader(SCHEMA)
            pieces = reader.partitions()
            assert [piece.end - piece.start for piece in pieces] == [333, 333, 334]
            found = [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
    assert found == expected


def test_a_stream_is_one_batch() -> None:
    stream = BareSource({"address": "grpc://127.0.0.1:1", "rows": "10", "pieces": "2"}).streamReader(SCHEMA)
    begin = stream.initialOffset()
    end: dict[str, Any] = stream.latestOffset(begin, ReadAllAvailable())
    assert len(stream.partitions(begin, end)) == 2
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    assert stream.partitions(end, end) == []
