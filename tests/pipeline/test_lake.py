"""The lake: each batch once, snapshots for readers, invisible failed batches, repairs, and added columns."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from tests.pipeline.lakes import lake_of_0_5_0

from godwit.pipeline.datasets import bronze
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.files import FILES
from godwit.pipeline.lake import (
    TIMESTAMP,
    Lake,
    LakeTable,
    RowTimes,
    TableColumn,
    TableSpec,
)
from godwit.pipeline.time_spans import MAX_SPAN_GAP, MAX_SPANS, spans_condition, time_spans

SPEC = TableSpec(
    "silver/numbers",
    "one row per number",
    (TableColumn("id", pa.int64()), TableColumn("at", TIMESTAMP), TableColumn("value", pa.float64())),
    keys=("id",),
    checks={},
)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return Lake(str(tmp_path)).table(SPEC)


def numbers(spark: SparkSession, begin: int, end: int) -> DataFrame:
    return spark.range(begin, end, 1, 2).selectExpr("id", "timestamp_micros(id) at", "cast(id as double) value")


def arrow(ids: list[int], value: float) -> pa.Table:
    times = pa.array(ids, pa.timestamp("us", tz="UTC"))
    return pa.table({"value": [value] * len(ids), "id": ids, "at": times})  # in another order than the table's


def ids(table: LakeTable) -> list[int]:
    return sorted(table.arrow(["id"]).column("id").to_pylist())


def test_a_table_that_was_never_written(spark: SparkSession, table: LakeTable) -> None:
    assert (table.rows, table.version, table.has_reached({"q": 0})) == (0, None, False)
    assert table.frame(spark).columns == SPEC.schema.names
    assert table.frame(spark).count() == 0
    assert table.arrow(["id"]).schema.names == ["id"]
    table.compact()
    assert table.vacuum(0) == 0


def test_a_repeated_batch_is_written_once(spark: SparkSession, table: LakeTable) -> None:
    assert table.append(numbers(spark, 0, 5), {"q": 0})
    assert not table.append(numbers(spark, 0, 5), {"q": 0})
    assert table.append(numbers(spark, 5, 8), {"q": 3})  # numbers need not be consecutive
    assert not table.append(numbers(spark, 8, 9), {"q": 2})
    assert table.append(numbers(spark, 8, 9), {"another": 0})
    assert ids(table) == list(range(9))
    assert [row.id for row in table.frame(spark).orderBy("id").collect()] == list(range(9))
    again = table.lake.table(SPEC)
    assert again.has_reached({"q": 3})
    assert not again.has_reached({"q": 4})
    assert again.append_arrow(arrow([20], 1.0), {"q": 4})
    assert not again.append_arrow(arrow([20], 1.0), {"q": 4})
    assert table.rows == 10


def test_a_failed_batch_is_invisible(spark: SparkSession, table: LakeTable, tmp_path: Path) -> None:
    table.append(numbers(spark, 0, 5), {"q": 0})
    broken = numbers(spark, 0, 5).selectExpr("id", "at", "if(id = 4, raise_error('on purpose'), value) value")
    with pytest.raises(PySparkException, match="on purpose"):
        table.append(broken, {"q": 1})
    orphan = tmp_path / SPEC.name / FILES / "q-2-0" / "part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"of a driver that was killed before its commit")
    assert ids(table) == list(range(5))
    table.vacuum(0)
    assert not orphan.exists()
    assert ids(table) == list(range(5))


def test_upserts_replace_rows_by_their_keys(table: LakeTable) -> None:
    assert table.upsert(arrow([1, 2], 1.0), {"q": 0})
    assert table.upsert(arrow([2, 3], 2.0), {"q": 1})
    assert not table.upsert(arrow([1], 9.0), {"q": 1})
    found = {row["id"]: row["value"] for row in table.arrow().to_pylist()}
    assert found == {1: 1.0, 2: 2.0, 3: 2.0}


def test_watermarks_are_set_without_rows(table: LakeTable) -> None:
    assert table.append_arrow(SPEC.schema.empty_table(), {"q": 0})
    assert table.append_files([], {"r": 0})
    assert table.has_reached({"q": 0, "r": 0})
    assert (table.rows, table.file_addresses()) == (0, [])


def test_watermarks_of_other_writers_are_seen_at_once(table: LakeTable) -> None:
    other = table.lake.table(table.spec)
    assert other.watermark("q") is None
    for number in range(25):
        writer, reader = (table, other) if number % 2 else (other, table)
        assert writer.append_arrow(table.spec.schema.empty_table(), {"q": number, f"q{number}": 1})
        assert (writer.watermark("q"), reader.watermark("q")) == (number, number)
        assert reader.watermark(f"q{number}") == 1
    assert not table.has_reached({"q": 25})
    assert other.append_arrow(table.spec.schema.empty_table(), {"q": 25})
    assert table.has_reached({"q": 25})
    assert len(list((Path(table.address) / "_delta_log").glob("*.checkpoint.parquet"))) == 2


def test_an_older_table_gets_its_properties(tmp_path: Path, spark: SparkSession) -> None:
    """A checkpoint in the Delta log every ten transactions keeps the cost of a small step constant."""
    table = lake_of_0_5_0(tmp_path).table(bronze.SPEC)
    delta = table.snapshot()
    assert delta is not None
    assert "delta.checkpointInterval" not in delta.metadata().configuration
    table.bring_forward(spark)
    assert delta.metadata().configuration["delta.checkpointInterval"] == "10"
    version = table.version
    table.bring_forward(spark)
    assert table.version == version


def test_rows_with_the_same_keys(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table(replace(SPEC, keys=("id", "at"), time="at"))
    assert table.matching(arrow([1], 0.0)).num_rows == 0
    for batch, number in enumerate((1, 1_000, 2_000_000)):
        table.upsert(arrow([number, number + 1], 1.0), {"q": batch})
    assert table.matching(arrow([1_000, 2_000, 2_000_001], 0.0)).sort_by("id").column("id").to_pylist() == [
        1_000,
        2_000_001,
    ]
    files = set(tmp_path.glob("silver/numbers/*.parquet"))
    table.upsert(arrow([1_000, 999_999], 2.0), {"q": 3})
    assert {row["id"]: row["value"] for row in table.arrow().to_pylist()} == {
        1: 1.0, 2: 1.0, 1_000: 2.0, 1_001: 1.0, 999_999: 2.0, 2_000_000: 1.0, 2_000_001: 1.0,
    }  # fmt: skip
    used = {Path(uri) for uri in DeltaTable(table.address).file_uris()}
    assert len(files & used) == 2  # files with other times are unchanged


def test_compaction_keeps_rows_and_snapshots(spark: SparkSession, table: LakeTable) -> None:
    for batch in range(4):
        table.append_arrow(arrow([batch], 1.0), {"q": batch})
    reader = table.frame(spark)
    table.compact()
    assert len(table.frame(spark).inputFiles()) == 1
    assert ids(table) == [0, 1, 2, 3]
    assert reader.count() == 4  # the files of its snapshot exist until they are vacuumed


# -- repairs -----------------------------------------------------------------------------------------------------------


HOURS = TableSpec("gold/x", "an hour", (TableColumn("hour", TIMESTAMP), TableColumn("n", pa.int64())), (), {})


def at(hour: int) -> datetime:
    return datetime(2026, 11, 15, hour, tzinfo=UTC)


def hour_rows(**numbers: int) -> pa.Table:
    """Return a row for each argument: h3=7 is 7 at 3 o'clock."""
    found = [{"hour": at(int(name[1:])), "n": n} for name, n in numbers.items()]
    return pa.Table.from_pylist(found, HOURS.schema)


def content(table: LakeTable) -> dict[int, int]:
    return {row["hour"].hour: row["n"] for row in table.arrow().to_pylist()}


@pytest.fixture
def hours(tmp_path: Path) -> LakeTable:
    found = Lake(str(tmp_path)).table(HOURS)
    found.append_arrow(hour_rows(h1=1, h2=1, h3=1, h4=1), {"q": 0})
    return found


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows.to_pandas(), from_arrow_schema(HOURS.schema))


def test_a_range_is_replaced_with_fewer_rows(spark: SparkSession, hours: LakeTable) -> None:
    def replace_hours(
        begin: datetime | None, end: datetime | None, rows: pa.Table, **watermarks: int
    ) -> tuple[int, int]:
        return hours.replace_times(spark, RowTimes("hour", ((begin, end),)), frame(spark, rows), watermarks)

    assert replace_hours(at(2), at(4), hour_rows(h3=9)) == (2, 1)
    assert content(hours) == {1: 1, 3: 9, 4: 1}
    assert replace_hours(at(4), None, hour_rows(), r=1) == (1, 0)
    assert content(hours) == {1: 1, 3: 9}
    assert replace_hours(None, at(3), hour_rows(h2=5)) == (1, 1)
    assert content(hours) == {2: 5, 3: 9}
    assert replace_hours(None, None, hour_rows(h8=8), r=1) == (0, 0)  # it was done before
    assert content(hours) == {2: 5, 3: 9}
    assert replace_hours(None, None, hour_rows(h7=7)) == (2, 1)
    assert content(hours) == {7: 7}
    assert hours.has_reached({"q": 0, "r": 1})  # watermarks do not change


def test_rows_are_removed_once(hours: LakeTable) -> None:
    assert hours.remove(hour_rows(h2=1, h3=8), {"r": 0})  # all columns must be the same
    assert content(hours) == {1: 1, 3: 1, 4: 1}
    assert not hours.remove(hour_rows(h1=1), {"r": 0})
    assert content(hours) == {1: 1, 3: 1, 4: 1}
    assert hours.remove(hour_rows(h1=0, h4=0).select(["hour"]), {"r": 1})
    assert content(hours) == {3: 1}


def test_a_table_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table(HOURS)
    table.replace(hour_rows())
    assert not table.remove(hour_rows(h1=1), {"r": 0})
    assert table.replace_times(spark, RowTimes("hour", ((None, None),)), None, {"r": 0}) == (0, 0)
    assert table.expire(spark, at(3)) == 0
    table.maintain(spark, timedelta(hours=1))
    assert table.version is None
    table.replace(hour_rows(h1=1))
    assert content(table) == {1: 1}


# -- added columns -----------------------------------------------------------------------------------------------------

NEWER = replace(SPEC, columns=(*SPEC.columns[:1], TableColumn("note", pa.string()), *SPEC.columns[1:]))
"""SPEC of a later version, with an added column, which need not be the last."""


def notes(table: LakeTable) -> dict[int, str | None]:
    return {row["id"]: row["note"] for row in table.arrow().to_pylist()}


def with_note(ids: list[int], note: str) -> pa.Table:
    return arrow(ids, 2.0).append_column("note", pa.array([note] * len(ids)))


def test_an_added_column_is_null_in_older_rows(table: LakeTable) -> None:
    table.append_arrow(arrow([1, 2, 3], 1.0), {"q": 0})
    newer = table.lake.table(NEWER)
    assert notes(newer) == {1: None, 2: None, 3: None}
    assert newer.arrow().schema == NEWER.schema
    assert newer.arrow(["note"]).to_pylist() == [{"note": None}] * 3
    assert [one.to_pylist() for one in newer.scan(["note", "id"], pc.field("id") > 2)] == [[{"note": None, "id": 3}]]
    assert newer.matching(with_note([2], "x")).to_pylist()[0]["note"] is None
    assert newer.has_reached({"q": 0})
    assert newer.version == table.version  # reading does not change the table
    assert newer.append_arrow(with_note([4], "appended"), {"q": 1})
    assert newer.upsert(with_note([2, 5], "upserted"), {"q": 2})
    assert newer.remove(pa.table({"id": [3]}), {"q": 3})
    assert notes(newer) == {1: None, 2: "upserted", 4: "appended", 5: "upserted"}
    assert not newer.append_arrow(with_note([4], "again"), {"q": 1})
    newer.compact()
    newer.vacuum(0)
    assert notes(table.lake.table(NEWER)) == {1: None, 2: "upserted", 4: "appended", 5: "upserted"}


def test_bronze_of_0_5_0_gets_the_properties_of_messages(tmp_path: Path, spark: SparkSession) -> None:
    """Its columns ended with the payload."""
    lake = Lake(str(tmp_path))
    added = ("headers", "content_type", "reply_to", "correlation", "expires", "origin_log", "origin_offset")
    columns = tuple(one for one in bronze.SPEC.columns if one.name not in added)
    row = dict.fromkeys(bronze.SPEC.schema.names) | {"broker": "b", "topic": "t", "payload": b"x", "offset": 0}
    older = lake.table(replace(bronze.SPEC, columns=columns))
    older.append_arrow(pa.Table.from_pylist([row], older.spec.schema), {"q": 0})
    newer = lake.table(bronze.SPEC)
    headers = [("unit", "C"), ("tag", "1")]
    more = row | {
        "offset": 1,
        "headers": headers,
        "content_type": "text/plain",
        "correlation": b"7",
        "origin_offset": 5,
    }
    newer.append_arrow(pa.Table.from_pylist([more], bronze.SPEC.schema), {"q": 1})
    for _ in range(2):
        found = sorted(newer.arrow(["offset", *added]).to_pylist(), key=lambda one: one["offset"])
        assert found == [{name: one[name] for name in ("offset", *added)} for one in (row, more)]
        rows = newer.frame(spark).orderBy("offset").select("headers", "content_type").collect()
        assert [tuple(one) for one in rows] == [(None, None), (dict(headers), "text/plain")]
        newer.compact()


def test_a_replaced_range_gets_an_added_column(spark: SparkSession, hours: LakeTable) -> None:
    newer = hours.lake.table(replace(HOURS, columns=(*HOURS.columns, TableColumn("note", pa.string()))))
    rows = frame(spark, hour_rows(h3=9)).selectExpr("*", "'new' AS note")
    newer.replace_times(spark, RowTimes("hour", ((at(2), at(4)),)), rows, {})
    assert {row["hour"].hour: row["note"] for row in newer.arrow().to_pylist()} == {1: None, 3: "new", 4: None}


def test_spark_reads_and_appends_an_added_column(spark: SparkSession, table: LakeTable) -> None:
    table.append(numbers(spark, 0, 2), {"q": 0})
    newer = table.lake.table(NEWER)
    assert [(row.id, row.note, row.value) for row in newer.frame(spark).orderBy("id").collect()] == [
        (0, None, 0.0),
        (1, None, 1.0),
    ]
    assert newer.append(numbers(spark, 2, 3).selectExpr("*", "'new' AS note"), {"q": 1})
    rows = newer.frame(spark).orderBy("id").collect()
    assert [(row.id, row.note) for row in rows] == [(0, None), (1, None), (2, "new")]
    assert notes(newer) == {0: None, 1: None, 2: "new"}


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (SPEC.columns[:2], r"\(the column value is unknown\): use that version, or start a new lake with --lake"),
        (
            (*SPEC.columns[:2], TableColumn("value", pa.int64())),
            r"\(the column value has the type double, not long\): use that version",
        ),
    ],
    ids=["removed", "changed"],
)
def test_a_removed_or_changed_column_is_refused(
    table: LakeTable, columns: tuple[TableColumn, ...], complaint: str
) -> None:
    table.append_arrow(arrow([1], 1.0), {"q": 0})
    other = table.lake.table(replace(SPEC, columns=columns))
    rows = arrow([2], 1.0)
    for use in (lambda: other.rows, other.arrow, lambda: other.append_arrow(rows, {"q": 1})):
        with pytest.raises(PipelineError, match=complaint):
            use()
    assert ids(table) == [1]


# -- time spans --------------------------------------------------------------------------------------------------------


NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def days(*numbers: float) -> list[datetime]:
    return [NOON + timedelta(days=number) for number in numbers]


def test_a_wrong_clock_has_a_span_of_its_own() -> None:
    assert time_spans(days(0, -9000, 0.5, 1)) == [(days(-9000)[0], days(-9000)[0]), (NOON, days(1)[0])]
    assert time_spans([]) == []
    assert spans_condition("t", time_spans(days(0))).count("2026-11-15T12:00:00+00:00") == 2


@given(st.lists(st.integers(0, 400), min_size=1))
def test_a_few_spans_cover_all_times(numbers: list[int]) -> None:
    times = days(*[number / 3 for number in numbers])
    found = time_spans(times)
    assert len(found) <= MAX_SPANS
    assert all(any(begin <= at <= end for begin, end in found) for at in times)
    edges = [edge for span in found for edge in span]
    assert edges == sorted(edges)
    assert set(edges) <= set(times)
    assert all(later[0] - earlier[1] > MAX_SPAN_GAP for earlier, later in itertools.pairwise(found))
