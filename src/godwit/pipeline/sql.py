"""SQL over the lake: by DuckDB, in about a second and in bounded memory, or by Spark.

Each table is a view, bronze/messages is bronze_messages. The database of DuckDB is in memory and belongs to one query.
It can read the files of the tables and no others: external access is off and the settings are locked before the SQL is
parsed, and only a single SELECT statement is executed. See docs/decisions/0050-queries-run-on-duckdb.md.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from godwit.pipeline.datasets.catalog import ALL, view_name
from godwit.pipeline.errors import PipelineError, explained_store, is_store_error
from godwit.pipeline.lake import Lake, LakeTable, TableSpec
from godwit.pipeline.session import scratch_folder

if TYPE_CHECKING:  # a query by DuckDB does not import PySpark
    from pyspark.sql import DataFrame, SparkSession

MIN_MEMORY_MB: Final = 256
MAX_MEMORY_MB: Final = 4096
"""Bounds of the memory for a query, a quarter of the machine's. Beyond it, DuckDB writes temporary files."""
SPILL_PREFIX: Final = "godwit-query-"
"""Begins the names of folders for temporary files."""
BATCH_ROWS: Final = 10_000
SIGNAL_POLL_S: Final = 0.1
T = TypeVar("T")
SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # else names in SQL could be variables of this program
    "preserve_insertion_order": "false",
}
_BEFORE_SQL: Final = re.compile(r"(?:\s|\(|--[^\n]*|/\*.*?\*/)+", re.DOTALL)
_WORD: Final = re.compile(r"\w+")
_FIRST_WORDS: Final = frozenset(("select", "with", "from", "values", "table", "show", "describe", "desc", "explain"))
"""First words of statements of Spark that can be queries."""
_SPARK_SENTENCE: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]+")
"""The form of an error of Spark, at any place in a longer text."""
_CONTAINER_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AFTER_OFFSET: Final = (duckdb.token_type.numeric_const, duckdb.token_type.identifier)
SQL_TYPES: Final = {
    pa.map_(pa.string(), pa.string()): "MAP(VARCHAR, VARCHAR)",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
}


@dataclass(frozen=True)
class SqlResult:
    """The rows of a query. They are computed while they are iterated, within the block of `run_sql`."""

    columns: list[str]
    rows: Iterator[dict[str, Any]]


@contextmanager
def run_sql(lake: Lake, sql: str) -> Iterator[SqlResult]:
    """Execute a query for the time of the block.

    Raise PipelineError if the SQL is invalid, is not a query, or needs too much memory; also while rows are iterated.
    """
    with open_database(lake) as database:
        with short_errors():
            text = quote_offset(sql)
            _check_is_query(database, text)
            reader = interruptible(database, lambda: database.sql(text).to_arrow_reader(BATCH_ROWS))
        yield SqlResult(list(reader.schema.names), _rows(database, reader))


@contextmanager
def open_database(lake: Lake) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database with a view of each table, which cannot read anything else."""
    limits = {"memory_limit": f"{memory_mb()}MB"}
    with (
        scratch_folder(SPILL_PREFIX) as folder,
        duckdb.connect(config=SETTINGS | limits | {"temp_directory": str(folder)}) as database,
    ):
        with short_errors():  # a file may be missing or damaged
            _add_views(database, lake)
        yield database


def memory_mb() -> int:
    """Return the memory for a query: a quarter of this machine's or container's, within bounds."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such limit
        total = min(total, int(_CONTAINER_LIMIT.read_text(encoding="ascii")))
    return max(MIN_MEMORY_MB, min(total // 4 // 1024**2, MAX_MEMORY_MB))


def _add_views(database: duckdb.DuckDBPyConnection, lake: Lake) -> None:
    """Create the views, as snapshots of the tables; then forbid access to anything else."""
    allowed: list[str] = []
    for spec in ALL:
        allowed += _add_view(database, lake.table(spec))
    database.execute("SET TimeZone = 'UTC'")
    database.execute(f"SET allowed_paths = [{', '.join(map(quoted, allowed))}]")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


def _add_view(database: duckdb.DuckDBPyConnection, table: LakeTable) -> list[str]:
    """Create the view of a table. Return the files that it reads by itself."""
    name = view_name(table.spec)
    delta = table.snapshot()
    files = [] if delta is None else _files(table, delta)
    if delta is not None and files and ("://" in table.address or delta.metadata().partition_columns):
        # Through deltalake: DuckDB's own access to object stores is an extension that it would have to download.
        database.register(name, delta.to_pyarrow_dataset(schema=table.spec.schema))
        return []
    database.execute(f'CREATE VIEW "{name}" AS {view_sql(table.spec, files)}')
    return files


def view_sql(spec: TableSpec, files: Sequence[str]) -> str:
    """Return SQL for the rows of files of a table. Older files may lack columns, which are null then."""
    typed = ", ".join(f'CAST(NULL AS {SQL_TYPES[one.type]}) AS "{one.name}"' for one in spec.schema)
    found = f"SELECT {typed} WHERE false"
    if files:
        listed = ", ".join(map(quoted, files))
        found += f" UNION ALL BY NAME SELECT * FROM read_parquet([{listed}], union_by_name = true)"
    return found


def _files(table: LakeTable, delta: DeltaTable) -> list[str]:
    """Return the paths of a table's files. Those in the Delta log are encoded as in an address."""
    added = pa.table(delta.get_add_actions(flatten=True))
    return [f"{table.address}/{unquote(path)}" for path in added.column("path").to_pylist()]


def quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def quote_offset(sql: str) -> str:
    """Quote the column `offset`, which is a reserved word in DuckDB and not in Spark.

    The clause OFFSET is always followed by a number, a name or a parenthesis, and the column hardly ever.
    """
    data = sql.encode()
    tokens = duckdb.tokenize(sql)
    if not tokens:
        return sql
    ends = [at for at, _ in tokens[1:]] + [len(data)]
    found = bytearray()
    for index, ((at, kind), end) in enumerate(zip(tokens, ends, strict=True)):
        text = data[at:end]
        if kind == duckdb.token_type.keyword and text.strip().lower() == b"offset":
            next_at, next_kind = tokens[index + 1] if index + 1 < len(tokens) else (len(data), None)
            is_clause = next_kind in _AFTER_OFFSET or data[next_at : next_at + 1] in (b"(", b"$", b"?")
            text = text if is_clause else b'"offset"' + text[len("offset") :]
        found += text
    return (data[: tokens[0][0]] + found).decode()


def _check_is_query(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = database.extract_statements(sql)
    if len(statements) != 1:
        raise PipelineError(f"the SQL has {len(statements)} statements: give one")
    (statement,) = statements
    words = sql.split(None, 2)
    if statement.type == duckdb.StatementType.EXPLAIN and len(words) == 3:
        # EXPLAIN ANALYZE executes its statement
        rest = words[2] if words[1].lower() == "analyze" else " ".join(words[1:])
        if [one.type for one in database.extract_statements(rest)] == [duckdb.StatementType.SELECT]:
            return
    if statement.type != duckdb.StatementType.SELECT:
        raise _not_a_query(words[0])


def interruptible(database: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """Call DuckDB in another thread: in this one, Ctrl-C and signals would wait for the end of the query."""
    may_begin = threading.Event()
    is_cancelled = False

    def begin() -> T:
        may_begin.wait()
        if is_cancelled:
            raise CancelledError
        return call()

    with ThreadPoolExecutor(1, "godwit-query") as thread:
        future: Future[T] | None = None
        try:
            future = thread.submit(begin)
            may_begin.set()
            while True:
                with suppress(TimeoutError):
                    return future.result(SIGNAL_POLL_S)
                if future.done():
                    return future.result()
        except BaseException:
            is_cancelled = True  # has an effect if the signal came before the call could begin
            may_begin.set()
            while future is not None and not future.done():  # repeatedly: before the query began it has no effect
                database.interrupt()
                wait([future], SIGNAL_POLL_S)
            raise


def _rows(database: duckdb.DuckDBPyConnection, reader: pa.RecordBatchReader) -> Iterator[dict[str, Any]]:
    names = reader.schema.names

    def next_batch() -> pa.RecordBatch | None:
        return next(reader, None)

    with short_errors():
        while (batch := interruptible(database, next_batch)) is not None:
            columns = [_plain(column) for column in batch.columns]
            for row in zip(*columns, strict=True):
                yield dict(zip(names, row, strict=True))


def _plain(column: pa.Array) -> list[Any]:
    """Return the values of a column: times in UTC, sums of integers as int, intervals as text."""
    kind = column.type
    if pa.types.is_timestamp(kind):  # pyarrow's own conversion imports pandas, which takes half a second
        times_us = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()).to_pylist()
        return [None if one is None else _EPOCH + timedelta(microseconds=one) for one in times_us]
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return [None if one is None else int(one) for one in values]
    if kind == pa.month_day_nano_interval():
        return [None if one is None else interval_text(*one) for one in values]
    return values


def interval_text(months: int, days: int, nanoseconds: int) -> str:
    """Return an interval as DuckDB shows it: 1 month 2 days 03:00:00.5."""
    parts = [f"{number} {unit}{'' if abs(number) == 1 else 's'}" for number, unit in ((months, "month"), (days, "day"))]
    parts = [part for part in parts if not part.startswith("0 ")]
    seconds, rest = divmod(abs(nanoseconds) // 1000, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    clock += f".{rest:06d}".rstrip("0") if rest else ""
    if nanoseconds or not parts:
        parts.append(f"{'-' if nanoseconds < 0 else ''}{clock}")
    return " ".join(parts)


@contextmanager
def short_errors() -> Iterator[None]:
    """Raise DuckDB's errors as PipelineError in one sentence, with the tables if a table is unknown.

    While rows are iterated, the library between raises DuckDB's errors as OSError with the same text.
    """
    try:
        yield
    except BrokenPipeError:  # of the output
        raise
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError, OverflowError) as error:
        raise PipelineError(_sentence(error)) from None  # OverflowError: a time beyond the year 9999


def _sentence(error: Exception) -> str:
    text = str(error)
    first = next(iter(text.splitlines()), type(error).__name__).strip()
    if first.startswith("Catalog Error: Table with name "):
        name = first.removeprefix("Catalog Error: Table with name ").partition(" ")[0]
        return f"the table {name} does not exist: choose from {', '.join(view_name(spec) for spec in ALL)}"
    if "max_temp_directory_size" in text or "No space left on device" in text:
        return (
            f"the temporary files of the query do not fit into {tempfile.gettempdir()}: set TMPDIR to a folder on a "
            "larger disk, or select fewer rows or columns"
        )
    if isinstance(error, MemoryError) or first.startswith("Out of Memory Error"):
        return (
            f"the query needs more than {memory_mb():,} MB of memory, also with temporary files: select fewer rows or "
            "columns, or use --engine spark"
        )
    if first.startswith("Permission Error"):
        return f"a query reads the tables of the lake and nothing else ({first})"
    return explained_store(text) if is_store_error(text) else first


# -- by Spark ---------------------------------------------------------------------------------------------------------


def add_views(spark: SparkSession, lake: Lake) -> None:
    """Create or replace the views, as snapshots of the tables."""
    for spec in ALL:
        lake.table(spec).frame(spark).createOrReplaceTempView(view_name(spec))


def check_first_word(sql: str) -> None:
    """Raise PipelineError if the first word shows that a statement is not a query. Spark would first have to start."""
    begin = _BEFORE_SQL.match(sql)
    word = _WORD.match(sql, begin.end() if begin else 0)
    if word is not None and word[0].lower() not in _FIRST_WORDS:
        raise _not_a_query(word[0])


def _not_a_query(word: str) -> PipelineError:
    return PipelineError(f"{word.upper()} is not a query: use SELECT, WITH, SHOW or DESCRIBE, which change nothing")


def run_query(spark: SparkSession, lake: Lake, sql: str) -> DataFrame:
    """Return the result of a query by Spark.

    Raise PipelineError with Spark's first sentence if the SQL is invalid, and if it is not a query.
    """
    with _short_spark_errors():
        _check_is_spark_query(spark, sql)
    add_views(spark, lake)
    with _short_spark_errors():
        return spark.sql(sql)


def _check_is_spark_query(spark: SparkSession, sql: str) -> None:
    """Raise PipelineError for a statement that writes: INSERT OVERWRITE would replace the files behind a view."""
    first = next(iter(sql.split()), "").lower()
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    parser.parsePlan(sql)  # raises Spark's own error if the syntax is wrong
    if first not in ("show", "describe", "desc", "explain"):
        try:
            parser.parseQuery(sql)
        except Exception:
            raise _not_a_query(first) from None


def iterate_rows(result: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of a result of Spark, in bounded memory."""
    names = result.columns
    with _short_spark_errors():
        for row in result.toLocalIterator():
            yield dict(zip(names, row, strict=True))


@contextmanager
def _short_spark_errors() -> Iterator[None]:
    """Raise Spark's errors as PipelineError without plans and stacks, with the tables if a table is unknown."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        found = _SPARK_SENTENCE.search(str(error))
        sentence = found[0].partition(" SQLSTATE:")[0] if found else type(error).__name__
        if "TABLE_OR_VIEW_NOT_FOUND" in sentence:
            sentence = f"{sentence.partition('. ')[0]}: choose from {', '.join(view_name(spec) for spec in ALL)}"
        raise PipelineError(sentence) from None
