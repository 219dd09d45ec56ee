"""SQL over the lake without Spark: results, limits of what SQL may do, and errors."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.cli.real import environment
from tests.pipeline.lakes import LOG, NOON

from godwit.pipeline import sql as sql_module
from godwit.pipeline.datasets import bronze, readings
from godwit.pipeline.datasets.catalog import ALL, view_name
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.lake import Lake
from godwit.pipeline.sql import interval_text, quote_offset, run_sql, short_errors


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(str(tmp_path / "it's a lake"))
    for first in (0, 3):
        rows = [
            {"broker": LOG, "offset": at, "topic": "home/one", "received": NOON, "payload": b'{"t": %d}' % at}
            for at in range(first, first + 3)
        ]
        found.table(bronze.SPEC).append_arrow(pa.Table.from_pylist(rows, bronze.SPEC.schema), {LOG: first + 3})
    return found


def ask(lake: Lake, sql: str) -> list[dict[str, Any]]:
    with run_sql(lake, sql) as result:
        return list(result.rows)


def first_file(lake: Lake) -> Path:
    return sorted(Path(lake.address).glob("bronze/messages/*.parquet"))[0]


def test_values_and_their_types(lake: Lake) -> None:
    columns = "count(*) n, sum(offset) total, min(received) AS first, max(received) - min(received) AS d"
    expected = {"n": 6, "total": 15, "first": NOON, "d": "00:00:00"}
    assert ask(lake, f"SELECT {columns} FROM bronze_messages") == [expected]
    columns = "payload, json_extract(decode(payload), '$.t')::INT t"
    (row,) = ask(lake, f"SELECT {columns} FROM bronze_messages WHERE offset = 4")
    assert row == {"payload": b'{"t": 4}', "t": 4}
    (row,) = ask(lake, "SELECT TIMESTAMP '2026-01-02 03:04:05' a, TIMESTAMPTZ '2026-01-02 03:04:05+02' b, [1] c")
    assert row["a"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)  # not the zone of this machine
    assert row["b"] == datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)
    assert row["c"] == [1]


def test_every_table_can_be_asked_before_it_exists(tmp_path: Path) -> None:
    for spec in ALL:
        with run_sql(Lake(str(tmp_path)), f"SELECT * FROM {view_name(spec)}") as result:
            assert result.columns == spec.schema.names
            assert list(result.rows) == []
    assert [row["name"] for row in ask(Lake(str(tmp_path)), "SHOW TABLES")] == sorted(map(view_name, ALL))
    described = ask(Lake(str(tmp_path)), "DESCRIBE bronze_messages")
    assert [row["column_name"] for row in described] == bronze.SPEC.schema.names


def test_a_column_that_older_files_lack_is_null(lake: Lake) -> None:
    path = first_file(lake)
    parquet.write_table(parquet.read_table(path).drop_columns(["retained"]), path)
    assert ask(lake, "SELECT count(retained) n, count(*) FILTER (retained IS NULL) m FROM bronze_messages") == [
        {"n": 0, "m": 6}
    ]


def test_a_query_reads_the_tables_and_changes_nothing(lake: Lake, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    target = tmp_path / "out.csv"
    file = first_file(lake)
    own = str(file).replace("'", "''")
    before = file.read_bytes()
    for sql in (
        f"SELECT * FROM '{secret}'",
        f"SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_parquet('https://example.com/x.parquet')",
    ):
        with pytest.raises(PipelineError, match=r"reads the tables of the lake and nothing else|extension|Error"):
            ask(lake, sql)
    for sql in (
        f"COPY (SELECT 1) TO '{target}'",
        f"COPY (SELECT 1) TO '{own}'",
        f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{own}'",
        f"EXPLAIN /* */ ANALYZE COPY (SELECT 1 AS x) TO '{own}'",
        f"ATTACH '{target}'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "DROP VIEW bronze_messages",
        "CREATE TABLE t AS SELECT 1",
        "PRAGMA database_list",
        "INSERT INTO bronze_messages SELECT * FROM bronze_messages",
    ):
        with pytest.raises(PipelineError, match=r"is not a query|Error"):
            ask(lake, sql)
    assert not target.exists()
    assert file.read_bytes() == before
    assert ask(lake, "EXPLAIN ANALYZE SELECT count(*) FROM bronze_messages")


def test_errors_are_one_sentence(lake: Lake) -> None:
    secret = 1  # not a table, although DuckDB could find variables of a program
    with pytest.raises(PipelineError, match="the table secret does not exist: choose from bronze_messages, silver"):
        ask(lake, "SELECT * FROM secret")
    assert secret
    for sql, text in (
        ("selekt", 'Parser Error: syntax error at or near "selekt"'),
        ("SELECT 1; SELECT 2", "the SQL has 2 statements: give one"),
        ("  ", "the SQL has 0 statements: give one"),
        ("SELECT nothing FROM bronze_messages", "Binder Error: Referenced column"),
        ("SELECT CAST(topic AS INT) FROM bronze_messages", "Conversion Error: Could not convert string 'home/one'"),
        ("SELECT 'infinity'::TIMESTAMPTZ", "date value out of range"),
    ):
        with pytest.raises(PipelineError) as caught:
            ask(lake, sql)
        assert str(caught.value).startswith(text)
        assert "\n" not in str(caught.value)


def test_errors_while_rows_are_iterated_are_one_sentence(lake: Lake) -> None:
    """They come from the library that passes rows on, as OSError."""
    text = "SELECT CASE WHEN range = 5000000 THEN error('so it is') END AS x FROM range(6000000)"
    with run_sql(lake, text) as result, pytest.raises(PipelineError, match="so it is"):
        for _ in result.rows:
            pass


def test_a_query_that_needs_too_much_memory_says_so(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_module, "MAX_MEMORY_MB", 16)
    monkeypatch.setattr(sql_module, "MIN_MEMORY_MB", 16)
    with pytest.raises(PipelineError, match="the query needs more than 16 MB of memory, also with temporary files"):
        ask(lake, "SELECT list(repeat('x', 100) || range) AS l FROM range(1000000)")


def test_a_full_disk_names_the_folder() -> None:
    text = 'IO Error: Could not write file "/tmp/duckdb_temp_storage-0.tmp": No space left on device'
    with pytest.raises(PipelineError, match="set TMPDIR to a folder on a larger disk"), short_errors():
        raise OSError(text)


def test_folders_of_killed_queries_are_deleted(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{sql_module.SPILL_PREFIX}left"
    left.mkdir()
    (left / "in-use").touch()
    assert ask(lake, "SELECT 1 AS one") == [{"one": 1}]
    assert list(tmp_path.glob(f"{sql_module.SPILL_PREFIX}*")) == []


def test_a_missing_file_is_named(lake: Lake) -> None:
    path = first_file(lake)
    path.unlink()
    with pytest.raises(PipelineError, match=path.name):
        ask(lake, "SELECT * FROM bronze_messages")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT offset", 'SELECT "offset"'),
        ("select b.Offset, max(offset) from t", 'select b."offset", max("offset") from t'),
        ("SELECT 1 LIMIT 2 OFFSET 3", "SELECT 1 LIMIT 2 OFFSET 3"),
        ("SELECT 1 OFFSET (1 + 1)", "SELECT 1 OFFSET (1 + 1)"),
        ("SELECT '°', offset/2 -- offset", "SELECT '°', \"offset\"/2 -- offset"),
        ("SELECT 'offset', \"offset\"", "SELECT 'offset', \"offset\""),
        ("SELECT x ORDER BY offset DESC OFFSET 5", 'SELECT x ORDER BY "offset" DESC OFFSET 5'),
    ],
)
def test_offset_is_a_column_unless_a_number_follows(sql: str, expected: str) -> None:
    assert quote_offset(sql) == expected


def test_intervals() -> None:
    assert interval_text(0, 0, 0) == "00:00:00"
    assert interval_text(1, 2, 3_661_500_000_000) == "1 month 2 days 01:01:01.5"
    assert interval_text(0, 0, -1_000_000_000) == "-00:00:01"


def test_ctrl_c_ends_a_long_query(lake: Lake) -> None:
    program = (
        "import sys\n"
        "from godwit.pipeline import sql\n"
        "from godwit.pipeline.lake import Lake\n"
        "call = sql.interruptible\n"
        "def begun(*arguments):\n"
        "    print('begun', flush=True)\n"
        "    return call(*arguments)\n"
        "sql.interruptible = begun\n"
        "text = 'SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b'\n"
        "with sql.run_sql(Lake(sys.argv[1]), text) as r:\n"
        "    list(r.rows)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, lake.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert error.strip().endswith("KeyboardInterrupt")


def test_ctrl_c_before_a_query_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query must not begin: nothing would interrupt it."""

    class Interrupted(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **fields: Any) -> Any:
            super().submit(*arguments, **fields)
            raise KeyboardInterrupt

    monkeypatch.setattr(sql_module, "ThreadPoolExecutor", Interrupted)
    begun: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        sql_module.interruptible(duckdb.connect(), lambda: begun.append("begun"))
    assert begun == []


def test_the_same_numbers_as_in_the_table(lake: Lake) -> None:
    assert ask(lake, "SELECT offset FROM bronze_messages ORDER BY offset") == [
        {"offset": at} for at in sorted(lake.table(bronze.SPEC).arrow(["offset"])["offset"].to_pylist())
    ]
    assert ask(lake, "SELECT count(*) AS n FROM silver_readings") == [{"n": lake.table(readings.SPEC).rows}]
