"""Aggregates new rows of bronze and silver for gold tables, and combines them with stored rows, by DuckDB.

The columns of gold tables are defined by SQL expressions that both Spark and DuckDB evaluate. Spark computes whole
tables, see godwit.pipeline.repair. For the steps of a run, DuckDB in the driver's process is faster: it reads the few
columns that it needs from the new files, and nothing is planned, compiled or sent elsewhere.

Functions of Spark for sketches are macros here: godwit.pipeline.sketches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import pyarrow as pa
from pyarrow import dataset

from godwit.pipeline import sketches
from godwit.pipeline.files import file_system
from godwit.pipeline.gold_table import GoldColumn, GoldTable
from godwit.pipeline.lake import LakeTable, Ranges, TableSpec
from godwit.pipeline.session import scratch_folder
from godwit.pipeline.sql import SETTINGS, SPILL_PREFIX, SQL_TYPES, memory_mb, quote_offset, quoted, view_sql

_FUNCTIONS: Final[tuple[tuple[Callable[..., pa.Array], list[str], str], ...]] = (
    (sketches.kll_of_values, ["DOUBLE[]"], "BLOB"),
    (sketches.kll_of_sketches, ["BLOB[]"], "BLOB"),
    (sketches.kll_quantile, ["BLOB", "DOUBLE"], "DOUBLE"),
    (sketches.kll_count, ["BLOB"], "BIGINT"),
    (sketches.hll_of_values, ["VARCHAR[]"], "BLOB"),
    (sketches.hll_of_sketches, ["BLOB[]"], "BLOB"),
    (sketches.hll_estimate, ["BLOB"], "BIGINT"),
)
_MACROS: Final = {
    "kll_sketch_agg_double(v)": "kll_of_values(list(v) FILTER (v IS NOT NULL))",
    "kll_merge_agg_double(s)": "kll_of_sketches(list(s))",
    "kll_sketch_get_quantile_double(s, r)": "kll_quantile(s, r)",
    "kll_sketch_get_n_double(s)": "kll_count(s)",
    "hll_sketch_agg(v)": "hll_of_values(list(DISTINCT v))",
    "hll_union_agg(s)": "hll_of_sketches(list(s))",
    "hll_sketch_estimate(s)": "hll_estimate(s)",
    "unix_micros(t)": "epoch_us(t)",
    "count_if(c)": "count(*) FILTER (WHERE c)",  # that of DuckDB is null if all values are
}
"""Functions of Spark that DuckDB lacks, or that differ there."""
_SOURCE: Final = "source"
_FILES: Final = "files"
_FRESH: Final = "fresh"
_STORED: Final = "stored"
_PARTS: Final = "parts"
"""Names of views. GoldTable.rows_sql reads `source`, and GoldTable.parts_sql reads `parts`."""


class GoldDatabase:
    """A database in memory for one step."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database

    def read(self, source: LakeTable, ranges: Ranges) -> None:
        """Make the rows of a source in these ranges of offsets the input of `merged`."""
        files = source.file_addresses(ranges)
        if files and "://" in source.address:
            self._database.register(_FILES, _parquet_dataset(files, source.spec.schema))
            rows = _FILES
        else:
            rows = f"({view_sql(source.spec, files)})"
        within = " OR ".join(
            f"""(broker = {quoted(log)} AND "offset" >= {begin} AND "offset" < {end})"""
            for log, (begin, end) in ranges.items()
        )
        self._database.execute(f"CREATE OR REPLACE TEMP VIEW {_SOURCE} AS SELECT * FROM {rows} WHERE {within}")

    def merged(self, gold: GoldTable, table: LakeTable) -> pa.Table:
        """Return the rows of a stored table that the rows of the source change or add."""
        fresh = self._grouped(gold, gold.rows_sql, {one.name: one.aggregate for one in gold.columns})
        stored = table.matching(fresh) if fresh.num_rows else fresh
        if stored.num_rows:
            keys = ", ".join(f'"{key}"' for key in gold.spec.keys)
            self._database.register(_FRESH, fresh)
            self._database.register(_STORED, stored)
            self._database.execute(
                f"CREATE OR REPLACE TEMP VIEW {_PARTS} AS SELECT * FROM {_STORED} "
                f"UNION ALL SELECT * FROM {_FRESH} SEMI JOIN {_STORED} USING ({keys})"
            )
            changed = self._grouped(gold, gold.parts_sql, {one.name: one.combine for one in gold.columns})
            added = self._rows(gold.spec, f"SELECT * FROM {_FRESH} ANTI JOIN {_STORED} USING ({keys})")
            fresh = pa.concat_tables([changed, added])
        return self._derived(gold, fresh)

    def _grouped(self, gold: GoldTable, rows_sql: str, expressions: Mapping[str, str]) -> pa.Table:
        """Return one row for each group of rows with the same keys. Derived columns are null."""
        keys = gold.spec.keys
        columns = [
            _typed(one, f'"{one.name}"' if one.name in keys else expressions[one.name] or "NULL")
            for one in gold.columns
        ]
        by = ", ".join(f'"{key}"' for key in keys)
        return self._rows(gold.spec, f"SELECT {', '.join(columns)} FROM ({rows_sql}) GROUP BY {by}")

    def _derived(self, gold: GoldTable, rows: pa.Table) -> pa.Table:
        """Return rows with the values of their derived columns."""
        self._database.register(_FRESH, rows)
        columns = [_typed(one, one.derived or f'"{one.name}"') for one in gold.columns]
        return self._rows(gold.spec, f"SELECT {', '.join(columns)} FROM {_FRESH}")

    def _rows(self, spec: TableSpec, sql: str) -> pa.Table:
        return self._database.sql(quote_offset(sql)).to_arrow_table().cast(spec.schema)


def _typed(column: GoldColumn, sql: str) -> str:
    return f'CAST({sql} AS {SQL_TYPES[column.type]}) AS "{column.name}"'


def _parquet_dataset(addresses: Sequence[str], schema: pa.Schema) -> dataset.Dataset:
    """Return files of an object store, to which DuckDB itself has no access without an extension."""
    system, _ = file_system(addresses[0])
    paths = [file_system(one)[1] for one in addresses]
    options = dataset.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    return dataset.dataset(paths, schema, dataset.ParquetFileFormat(read_options=options), system)


@contextmanager
def open_gold_database() -> Iterator[GoldDatabase]:
    """Open a database for the time of the block."""
    with (
        scratch_folder(SPILL_PREFIX) as folder,
        duckdb.connect(
            config=SETTINGS | {"memory_limit": f"{memory_mb()}MB", "temp_directory": str(folder)}
        ) as database,
    ):
        database.execute("SET TimeZone = 'UTC'")
        for function, parameters, result in _FUNCTIONS:
            create: Any = database.create_function
            create(function.__name__, function, parameters, result, type="arrow", null_handling="special")
        for signature, body in _MACROS.items():
            database.execute(f"CREATE MACRO {signature} AS {body}")
        yield GoldDatabase(database)
