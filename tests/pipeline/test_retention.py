"""Rows that expire, compaction and vacuum on schedule, and repairs and checks of the other rows."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.archive import logs
from tests.pipeline.lakes import LOG, MINUTES, NOON, RecordingListener, readings_by_hour, three_hours
from tests.spark.archives import options, served

from godwit.pipeline import lake as lake_module
from godwit.pipeline.checks import ALL_READ, run_checks
from godwit.pipeline.configuration import load_retention, retention_of
from godwit.pipeline.datasets import anomalies, bronze, definitions, devices, readings, traffic, windows
from godwit.pipeline.detection import Detection
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import TIMESTAMP, Lake, LakeTable, TableColumn, TableSpec, _tier_bytes
from godwit.pipeline.repair import expired_notices, rebuild, rebuild_notice, rebuilt_since, requeue_all
from godwit.pipeline.runner import RunConfig, TablesWriter, run, unread_ranges
from godwit.pipeline.status import status_of

HOUR = timedelta(hours=1)

# -- the configuration -------------------------------------------------------------------------------------------------


def retention(text: str) -> dict[str, timedelta]:
    return retention_of(tomllib.loads(text), text)


def test_a_table_counts_more_than_its_layer() -> None:
    text = (
        '[pipeline.retention]\nsilver = "2y"\n"silver.quarantine" = "4w"\n"bronze" = "90d"\n"gold/traffic" = "36 h"\n'
    )
    assert retention(text) == {
        "silver/readings": timedelta(days=730),
        "silver/quarantine": timedelta(days=28),
        "bronze/messages": timedelta(days=90),
        "gold/traffic": timedelta(hours=36),
    }


@pytest.mark.parametrize(
    "text",
    [
        '[pipeline.retention]\nsilver.readings = "1y"',
        '[pipeline.retention]\nreadings = "1y"',
        '[pipeline.retention]\nsilver_readings = "1y"',
        '[pipeline.retention.silver]\nreadings = "1y"',
        '[pipeline]\nretention.silver.readings = "1y"',
    ],
)
def test_names_of_a_table(text: str) -> None:
    assert retention(text) == {"silver/readings": timedelta(days=365)}


def test_without_a_section_rows_are_kept() -> None:
    assert retention("") == retention("[pipeline]") == load_retention(None) == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            '# days\n\n[pipeline.retention]\nbronze = "90"',
            'line 4: .*bronze = .90. is not a duration: .*such as "90d"',
        ),
        ("[pipeline.retention]\nbronze = 90", "line 2: .* is not a duration"),
        ('[pipeline.retention]\nbronze = "30m"', "line 2: .* is not a duration"),  # months or minutes
        ('[pipeline.retention]\nbronze = "0d"', "line 2: .* is out of range"),
        ('[pipeline.retention]\nbronze = "999999999y"', "line 2: .* is out of range"),
        ('\n[pipeline.retention]\n\nbronz = "9d"', "line 4: .*bronz is not a table or a layer: did you mean bronze?"),
        ('[pipeline.retention]\nsilver.readngs = "9d"', "line 2: .*did you mean silver.readings?"),
        ('[pipeline.retention]\ndefinitions = "1d"', "line 2: .*definitions do not expire"),
        ('[pipeline.retention]\nreadings = "1d"\n"silver.readings" = "2d"', "line 3: .* is given twice"),
        ("[pipeline]\nretention = 3", "line 2: .*write .pipeline.retention."),
    ],
)
def test_errors_name_the_line(text: str, error: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    with pytest.raises(PipelineError, match=f"pipeline.toml: {error}"):
        load_retention(file)


# -- one table ---------------------------------------------------------------------------------------------------------


SPEC = TableSpec(
    "silver/x",
    "an hour",
    (TableColumn("broker", pa.string()), TableColumn("offset", pa.int64()), TableColumn("at", TIMESTAMP)),
    ("offset",),
    {},
    expires_by="at",
)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return Lake(str(tmp_path)).table(SPEC)


def append(table: LakeTable, hours: Sequence[int], batch: int) -> None:
    """Append a row for each of these hours after noon, which is also its offset, as one file."""
    rows = [{"broker": LOG, "offset": hour, "at": NOON + hour * HOUR} for hour in hours]
    table.append_arrow(pa.Table.from_pylist(rows, SPEC.schema), {"q": batch})


def offsets(table: LakeTable) -> list[int]:
    return sorted(table.arrow(["offset"])["offset"].to_pylist())


def test_whole_files_expire_and_others_within_a_day(spark: SparkSession, table: LakeTable) -> None:
    append(table, [0, 1], 0)
    append(table, [2, 3, 30], 1)
    append(table, [40], 2)
    old = table.frame(spark)
    files = table.file_addresses()
    assert table.expire(spark, NOON) == 0
    assert table.expired_before is None
    assert table.expire(spark, NOON + 3.5 * HOUR) == 2  # the second file has rows that are kept, too
    assert offsets(table) == [2, 3, 30, 40]
    assert table.expired_before == NOON + 3 * HOUR
    assert set(table.file_addresses()) < set(files)  # none was copied
    assert table.expire(spark, NOON + 26 * HOUR) == 0
    assert table.expire(spark, NOON + 27.9 * HOUR) == 2  # its first row expired a day ago
    assert offsets(table) == [30, 40]
    assert table.expired_before == NOON + 27 * HOUR
    assert old.count() == 6  # readers keep their snapshot
    assert table.has_reached({"q": 2})
    (added,) = [
        one
        for one in pa.table(DeltaTable(table.address).get_add_actions(flatten=True)).to_pylist()
        if one["min.offset"] == 30
    ]
    assert (added["num_records"], added["min.at"], added["max.at"]) == (1, NOON + 30 * HOUR, NOON + 30 * HOUR)
    assert table.expire(spark, NOON + 100 * HOUR) == 2
    assert (table.rows, table.file_addresses()) == (0, [])
    append(table, [200], 3)
    append(table, [200], 3)
    assert offsets(table) == [200]


def test_rows_that_others_need_do_not_expire(spark: SparkSession, table: LakeTable) -> None:
    for batch, hours in enumerate(([0, 1], [2, 3], [4, 5])):
        append(table, hours, batch)
    assert table.expire(spark, NOON + 100 * HOUR, {LOG: (3, 2**63 - 1)}) == 2
    assert offsets(table) == [2, 3, 4, 5]
    assert table.expired_before == NOON + 2 * HOUR
    assert table.expire(spark, NOON + 100 * HOUR, {"b" * 32: (0, 2**63 - 1)}) == 4


def test_a_row_without_a_time_does_not_expire(spark: SparkSession, table: LakeTable) -> None:
    rows = [{"broker": LOG, "offset": 0, "at": NOON}, {"broker": LOG, "offset": 1, "at": None}]
    table.append_arrow(pa.Table.from_pylist(rows, SPEC.schema), {"q": 0})
    table.append_arrow(pa.Table.from_pylist(rows[1:] * 2, SPEC.schema), {"q": 1})
    assert table.expire(spark, NOON + 100 * HOUR) == 1
    assert offsets(table) == [1, 1, 1]


def test_expired_rows_are_not_merged_again(spark: SparkSession, table: LakeTable) -> None:
    append(table, [0, 1, 50], 0)
    table.expire(spark, NOON + 40 * HOUR)
    late = [{"broker": LOG, "offset": hour, "at": NOON + hour * HOUR} for hour in (1, 51)]
    assert table.upsert(pa.Table.from_pylist(late, SPEC.schema), {"m": 0})
    assert offsets(table) == [50, 51]


def test_compaction_and_vacuum_on_schedule(
    spark: SparkSession, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "COMPACT_EVERY", 5)
    for batch in range(4):  # the table is created by a transaction, too
        append(table, [batch], batch)
        table.maintain(spark)
    assert (len(table.file_sizes), table.compacted, table.vacuumed) == (4, None, None)
    append(table, [4], 4)
    before = datetime.now(UTC)
    table.maintain(spark)
    assert (len(table.file_sizes), table.vacuumed) == (1, None)  # an hour has not passed since it was created
    assert table.compacted is not None
    assert table.compacted >= before - timedelta(seconds=1)
    version = table.version
    table.maintain(spark)
    table.maintain(spark, is_idle=True)
    assert table.version == version
    for batch in range(5, 10):
        append(table, [batch], batch)
    monkeypatch.setattr(lake_module, "HOUR", timedelta(0))
    table.maintain(spark)
    assert (len(table.file_sizes), table.vacuumed is None) == (1, False)
    # Once a day, however few transactions there are: compaction only if there are any.
    append(table, [10], 10)
    table.maintain(spark)
    assert len(table.file_sizes) == 2
    monkeypatch.setattr(lake_module, "DAY", timedelta(0))
    table.maintain(spark)
    compacted = table.compacted
    assert len(table.file_sizes) == 1
    vacuumed = table.vacuumed
    table.maintain(spark)
    assert table.compacted == compacted
    assert table.vacuumed is not None
    assert vacuumed is not None
    assert table.vacuumed > vacuumed
    assert offsets(table) == list(range(11))


def test_a_compaction_copies_in_proportion_to_new_rows() -> None:
    mib = 1024 * 1024
    assert [_tier_bytes(number) // mib for number in (1, 9, 10, 11, 20, 100, 110, 1000)] == [
        1,
        1,
        10,
        1,
        10,
        100,
        10,
        1000,
    ]


# -- the lake ----------------------------------------------------------------------------------------------------------


def wrong(lake: Lake) -> dict[tuple[str, str], int]:
    return {(one.table, one.check): one.wrong for one in run_checks(lake, is_complete=True) if one.wrong}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy files that have expired rows at once, not after a day."""
    monkeypatch.setattr(lake_module, "DAY", timedelta(0))


def break_windows(lake: Lake) -> None:
    rows = lake.table(windows.SPEC).arrow().to_pylist()
    wrong = [row | {"count": row["count"] + 1000} for row in rows]
    lake.table(windows.SPEC).upsert(pa.Table.from_pylist(wrong, windows.SPEC.schema), {"wrong": 0})


@pytest.mark.usefixtures("at_once")
def test_gold_survives_its_rows(tmp_path: Path, spark: SparkSession) -> None:
    lake = three_hours(tmp_path, spark)
    definition = [{"broker": LOG, "offset": 3, "decoder": "home_assistant", "key": "k", "definition": "{}"}]
    lake.table(definitions.SPEC).append_arrow(pa.Table.from_pylist(definition, definitions.SPEC.schema), {LOG: MINUTES})
    later = {"topic": "home/new", "received": NOON + 2.5 * HOUR}
    assert wrong(lake) == {}
    bronze_table, silver, quarantine = [lake.table(one) for one in (bronze.SPEC, readings.SPEC, readings.QUARANTINE)]
    assert bronze_table.expire(spark, NOON + 2 * HOUR) == 120
    assert wrong(lake) == {}
    assert silver.expire(spark, NOON + HOUR) == 59
    assert wrong(lake) == {}
    assert quarantine.expire(spark, NOON + 2 * HOUR) == 2
    assert wrong(lake) == {}
    assert (bronze_table.rows, silver.rows, quarantine.rows) == (60, MINUTES - 2 - 59, 0)
    # A row that has not expired is still missed.
    kept = silver.arrow()
    last = kept.filter(pa.compute.equal(kept["offset"], MINUTES - 1))
    silver.remove(last.select(["broker", "offset"]), {"wrong": 0})
    assert wrong(lake)[("silver/readings", ALL_READ)] == 1
    assert ("gold/windows", "windows of each length count every reading once") in wrong(lake)
    silver.append_arrow(last, {"right": 0})
    assert wrong(lake) == {}
    # Gold is computed again as far as the rows are there, and remains elsewhere.
    assert readings_by_hour(lake) == {12: 59, 13: 59, 14: 60}
    break_windows(lake)
    since = rebuilt_since(lake)
    assert since == {
        "gold/windows": NOON + 2 * HOUR,  # five minutes after 13:00 is the next full hour
        "gold/devices": NOON + 2 * HOUR,
        "gold/traffic": NOON + 2 * HOUR,
        "gold/job_statistics": NOON + 2 * HOUR,
    }
    assert rebuild_notice("gold/windows", since["gold/windows"]) == (
        "gold/windows: rows from before 2026-11-15T14:00Z are not computed again: they, or rows of silver/readings "
        "that they were made from, have expired"
    )
    assert "devices that sent messages before 2026-11-15T14:00Z" in rebuild_notice(
        "gold/devices", since["gold/devices"]
    )
    counts = rebuild(spark, lake, None, None)
    assert counts == {"gold/windows": 61, "gold/devices": 0, "gold/traffic": 1, "gold/job_statistics": 0}
    assert readings_by_hour(lake) == {12: 1059, 13: 1059, 14: 60}
    (device,) = lake.table(devices.SPEC).arrow().to_pylist()
    assert device["messages"] == MINUTES
    assert [row["messages"] for row in lake.table(traffic.SPEC).arrow().to_pylist()] == [60, 60, 60]
    assert rebuild(spark, lake, None, NOON + HOUR)["gold/windows"] == 0
    # A device whose messages are all there is computed again.
    new = bronze_table.arrow().slice(0, 1).to_pylist()[0] | later | {"offset": MINUTES}
    bronze_table.append_arrow(pa.Table.from_pylist([new], bronze.SPEC.schema), {"new": 0})
    assert rebuild(spark, lake, NOON, None)["gold/devices"] == 1
    messages = {row["topic"]: row["messages"] for row in lake.table(devices.SPEC).arrow().to_pylist()}
    assert messages == {"home/one": MINUTES, "home/new": 1}
    # Silver of messages that are gone remains, and rows that expired do not come back.
    assert requeue_all(spark, lake) == (59 + 60 + 1, 0)
    assert sorted(silver.arrow(["offset"])["offset"].to_pylist()) == [at for at in range(60, MINUTES + 1) if at != 100]
    assert readings_by_hour(lake)[12] == 1059
    assert expired_notices(lake, is_all=True)[0] == (
        "messages received before 2026-11-15T14:00Z have expired from bronze/messages and are not decoded again; their "
        "readings remain as they are"
    )
    assert len(expired_notices(lake, is_all=True)) == 2
    assert expired_notices(lake, is_all=False) == [
        "messages received before 2026-11-15T14:00Z have expired from silver/quarantine and are not decoded again"
    ]
    assert lake.table(definitions.SPEC).arrow().to_pylist() == definition


@pytest.mark.usefixtures("at_once")
def test_gold_expires_by_its_own_time(tmp_path: Path, spark: SparkSession) -> None:
    lake = three_hours(tmp_path, spark)
    for spec in (windows.SPEC, traffic.SPEC):
        assert lake.table(spec).expire(spark, NOON + 1.5 * HOUR)
    assert set(readings_by_hour(lake)) == {13, 14}
    assert wrong(lake) == {}
    rebuild(spark, lake, None, None)
    assert set(readings_by_hour(lake)) == {13, 14}
    assert requeue_all(spark, lake) == (MINUTES - 2, 2)
    assert set(readings_by_hour(lake)) == {13, 14}
    assert wrong(lake) == {}
    assert lake.table(devices.SPEC).expire(spark, NOON + 4 * HOUR) == 1
    assert wrong(lake) == {}


def test_a_run_keeps_what_gold_and_detectors_have_not_processed(tmp_path: Path, spark: SparkSession) -> None:
    """All messages are years old: they expire when everything that is made from them is there."""
    lake = Lake(str(tmp_path / "lake"))
    keep = dict.fromkeys((bronze.SPEC.name, readings.SPEC.name, readings.QUARANTINE.name), timedelta(days=90))

    def rows() -> list[int]:
        return [lake.table(spec).rows for spec in (bronze.SPEC, readings.SPEC, readings.QUARANTINE)]

    with served(tmp_path / "data") as place:

        def publish(*payloads: bytes) -> None:
            place.store.append([logs.make_entry("home/one", payloads)])

        source = options(place)
        config = RunConfig(lake, source, is_once=True, retention=keep)
        publish(b"20", b"21", b"warm")
        writer = TablesWriter(spark, RunConfig(lake, source, retention=keep))
        assert writer.step().messages == 3
        assert rows() == [3, 2, 0]  # nothing is made from quarantine
        Gold(lake).catch_up(spark)
        assert unread_ranges(lake, bronze.SPEC) == {}
        assert unread_ranges(lake, readings.SPEC) == {place.log: (0, 2**63 - 1)}
        Detection(spark, lake, source).step()
        assert unread_ranges(lake, readings.SPEC) == {}
        listener = RecordingListener()
        publish(b"22")
        assert run(spark, config, listener).rows["gold"] == 1
        assert rows() == [0, 0, 0]
        publish(b"23", b"cold")
        assert run(spark, config, listener).rows == {"tables": 2, "anomalies": 2, "gold": 2}
        assert rows() == [0, 0, 0]
        assert run(spark, config, listener).rows == {"tables": 0, "anomalies": 0, "gold": 0}
        found = {one.table: one for one in status_of(lake, source).tables}
    counts = lake.table(windows.SPEC).arrow().to_pylist()
    assert [(row["window_s"], row["count"]) for row in sorted(counts, key=lambda row: row["window_s"])] == [
        (60, 4),
        (3600, 4),
    ]
    assert [row["messages"] for row in lake.table(devices.SPEC).arrow().to_pylist()] == [6]
    assert wrong(lake) == {}
    status = found["bronze/messages"]
    assert (status.rows, status.files, status.bytes) == (0, 0, 0)
    assert status.expired_before_us is not None
    assert found["gold/windows"].files > 0
    assert found[anomalies.SPEC.name].expired_before_us is None
