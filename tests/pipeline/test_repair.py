"""Repairs in a real session: gold computed again, and quarantine parsed again, also after an interruption."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.classic.dataframe import DataFrame
from tests.archive import logs
from tests.pipeline.lakes import LOG, MINUTES, NOON, readings_by_hour, tables_at, three_hours
from tests.spark.archives import options, served

from godwit.pipeline.checks import run_checks
from godwit.pipeline.datasets import bronze, definitions, devices, readings, traffic, windows
from godwit.pipeline.decoders.selection import DecoderRule
from godwit.pipeline.errors import PipelineError
from godwit.pipeline.gold import Gold
from godwit.pipeline.lake import Lake
from godwit.pipeline.repair import REQUEUE, REQUEUE_ALL, rebuild, requeue, requeue_all, whole_hours
from godwit.pipeline.runner import RunConfig, TablesWriter
from godwit.wire.extension import Properties, encode_properties


def break_windows(lake: Lake) -> None:
    """Make every window count too many readings, and add one in an hour without readings."""
    wrong = lake.table(windows.SPEC).arrow().to_pylist()
    for row in wrong:
        row["count"] += 1000
    wrong.append(wrong[0] | {"window_start": NOON + timedelta(hours=2, minutes=1), "topic": "home/ghost"})
    lake.table(windows.SPEC).upsert(pa.Table.from_pylist(wrong, windows.SPEC.schema), {"wrong": 0})


def passes_the_driver(frame: DataFrame) -> NoReturn:
    raise AssertionError("rows pass through the driver")


def test_gold_is_computed_again_for_a_range(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = three_hours(tmp_path, spark)
    assert readings_by_hour(lake) == {12: 59, 13: 59, 14: 60}
    break_windows(lake)
    counts = rebuild(spark, lake, NOON + timedelta(hours=1, minutes=5), NOON + timedelta(hours=2, minutes=30))
    assert readings_by_hour(lake) == {12: 1059, 13: 59, 14: 60}
    assert counts[windows.SPEC.name] == 2 + 59 + 60
    assert "home/ghost" not in lake.table(windows.SPEC).arrow(["topic"])["topic"].to_pylist()
    (device,) = lake.table(devices.SPEC).arrow().to_pylist()
    assert device["messages"] == MINUTES
    assert [row["messages"] for row in lake.table(traffic.SPEC).arrow().to_pylist()] == [60, 60, 60]
    with monkeypatch.context() as patch:
        patch.setattr(DataFrame, "toArrow", passes_the_driver)
        rebuild(spark, lake, None, None)
    assert readings_by_hour(lake) == {12: 59, 13: 59, 14: 60}
    lake.table(bronze.SPEC).append_files([], {LOG: MINUTES + 1})  # a batch that the other tables do not have
    with pytest.raises(PipelineError, match="incomplete"):
        rebuild(spark, lake, None, None)


def test_ranges_are_widened_to_hours() -> None:
    at = NOON + timedelta(minutes=1)
    assert whole_hours(at, at) == (NOON, NOON + timedelta(hours=1))
    assert whole_hours(NOON, NOON + timedelta(hours=1)) == (NOON, NOON + timedelta(hours=1))
    assert whole_hours(None, None) == (None, None)


@pytest.mark.parametrize("max_keys", [0, 10])
def test_quarantine_is_parsed_again(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, max_keys: int
) -> None:
    monkeypatch.setattr("godwit.pipeline.repair.MAX_KEYS", max_keys)
    lake = three_hours(tmp_path, spark)
    silver, quarantine = lake.table(readings.SPEC), lake.table(readings.QUARANTINE)
    assert requeue(spark, lake) == (0, 2)
    # As after an update that can parse one of them.
    parse = readings.parse

    def parse_more(messages: Any, decoding: Any = None) -> Any:
        rows = messages.where("payload = cast('warm' AS binary)").drop("payload")
        rows = rows.selectExpr("*", "cast('25' AS binary) AS payload")
        return parse(rows.unionByName(messages.where("payload != cast('warm' AS binary)")))

    monkeypatch.setattr(readings, "parse", parse_more)
    # Interrupted: silver has the message, windows and quarantine have not changed yet.
    silver.append(readings.valid(parse_more(quarantine.frame(spark))), {REQUEUE: 0})
    assert (silver.rows, quarantine.rows, readings_by_hour(lake)[12]) == (MINUTES - 1, 2, 59)
    with pytest.raises(PipelineError, match="finish it with godwit pipeline requeue"):
        rebuild(spark, lake, None, None)
    assert requeue(spark, lake) == (1, 1)
    assert (silver.rows, quarantine.rows, readings_by_hour(lake)[12]) == (MINUTES - 1, 1, 60)
    assert quarantine.arrow(["offset"])["offset"].to_pylist() == [100]
    assert requeue(spark, lake) == (0, 1)
    assert (silver.rows, readings_by_hour(lake)[12]) == (MINUTES - 1, 60)


def test_a_lake_of_version_1_is_decoded_again(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silver and windows lack the columns of version 2, and silver has a wrong number."""
    lake = three_hours(tmp_path, spark)
    silver = lake.table(readings.SPEC)
    old = ["broker", "offset", "quantity", "topic", "event_time", "value", "unit", "received", "schema_version"]
    for spec, names in ((readings.SPEC, old), (windows.SPEC, [n for n in windows.SPEC.schema.names if n != "name"])):
        rows = lake.table(spec).arrow(names)
        if spec is readings.SPEC:
            rows = rows.set_column(8, "schema_version", pa.array([1] * rows.num_rows, pa.int32()))
        write_deltalake(lake.table(spec).address, rows, mode="overwrite", schema_mode="overwrite")
    lake = Lake(str(tmp_path))
    silver = lake.table(readings.SPEC)
    assert {row["name"] for row in silver.arrow().to_pylist()} == {None}
    # New messages: one fits a window that an older version began.
    new = lake.table(bronze.SPEC).arrow().slice(179, 1).to_pylist()[0] | {"offset": MINUTES}
    lake.table(bronze.SPEC).append_arrow(pa.Table.from_pylist([new], bronze.SPEC.schema), {LOG: MINUTES + 1})
    frame = readings.parse(lake.table(bronze.SPEC).frame(spark).where(f"offset = {MINUTES}"))
    silver.append(readings.valid(frame), {LOG: MINUTES + 1})
    lake.table(readings.QUARANTINE).append(readings.rejected(frame), {LOG: MINUTES + 1})
    tables_at(lake, {LOG: MINUTES + 1})
    Gold(lake).catch_up(spark)
    assert not [one for one in run_checks(lake) if one.wrong]
    assert readings_by_hour(lake) == {12: 59, 13: 59, 14: 61}
    rules = (DecoderRule("home/#", "number", {"quantity": "temperature", "unit": "°F"}),)
    with monkeypatch.context() as patch:
        patch.setattr(DataFrame, "toArrow", passes_the_driver)
        assert requeue_all(spark, lake, rules) == (MINUTES - 1, 2)
    (row,) = [one for one in silver.arrow().to_pylist() if one["offset"] == 5]
    assert (row["quantity"], round(row["value"], 3), row["unit_source"]) == ("temperature", -15.0, "configuration")
    assert {one["schema_version"] for one in silver.arrow().to_pylist()} == {2}
    assert readings_by_hour(lake) == {12: 59, 13: 59, 14: 61}
    assert not [one for one in run_checks(lake, rules) if one.wrong]
    # Interrupted: silver is replaced, the others are not.
    silver.append_arrow(readings.SPEC.schema.empty_table(), {REQUEUE_ALL: 1})
    with pytest.raises(PipelineError, match="finish it with godwit pipeline requeue --all"):
        requeue(spark, lake)
    with pytest.raises(PipelineError, match="finish it with godwit pipeline requeue --all"):
        rebuild(spark, lake, None, None)
    assert requeue_all(spark, lake) == (MINUTES - 1, 2)
    assert requeue(spark, lake) == (0, 2)


DISCOVERY = b'{"state_topic": "node/one", "unit_of_measurement": "\xc2\xb0F", "device_class": "temperature"}'


def test_definitions_are_used_by_later_messages(tmp_path: Path, spark: SparkSession) -> None:
    """A repeated batch, a batch with other bounds and a repair give the same rows."""
    sent = [
        ("node/one", b"50"),
        ("homeassistant/sensor/one/config", DISCOVERY),
        ("node/one", b"50"),
        ("node/one", b"59"),
    ]
    expected = [
        (0, "value", 50.0, "default"),
        (2, "temperature", 10.0, "definition"),
        (3, "temperature", 15.0, "definition"),
    ]

    def found(lake: Lake) -> list[tuple[int, str, float, str]]:
        rows = lake.table(readings.SPEC).arrow().sort_by("offset").to_pylist()
        return [(row["offset"], row["quantity"], round(row["value"], 6), row["unit_source"]) for row in rows]

    with served(tmp_path / "data") as place:
        place.store.append([logs.make_entry(topic, [payload]) for topic, payload in sent])
        for number, plans in enumerate((((0, 2), (0, 2), (2, 4)), ((0, 4),), ((0, 1), (1, 3), (1, 4)))):
            lake = Lake(str(tmp_path / str(number)))
            for begin, end in plans:
                writer = TablesWriter(spark, RunConfig(lake, options(place)))
                partitions = writer._planner.partitions({place.log: begin}, {place.log: end})
                writer.write(partitions, {place.log: end}, {})
            assert found(lake) == expected, plans
            rows = lake.table(definitions.SPEC).arrow().to_pylist()
            assert {row["offset"] for row in rows} == {1}
        tables_at(lake, {place.log: 4})
    assert requeue_all(spark, lake) == (3, 0)
    assert found(lake) == expected
    assert not [one for one in run_checks(lake) if one.wrong]


def test_content_types_choose_decoders(tmp_path: Path, spark: SparkSession) -> None:
    """Also when quarantine is decoded again, which has the content type of its messages."""
    sent = [
        ("application/senml+json", b'[{"n": "temperature", "u": "Cel", "v": 21.5}]'),
        ("application/cbor", b'{"temperature": 22.5}'),
        ("text/csv", b"23.5"),
        (None, b'{"temperature": 24.5}'),
    ]

    def found(lake: Lake) -> list[tuple[int, str, float]]:
        rows = lake.table(readings.SPEC).arrow().sort_by("offset").to_pylist()
        return [(row["offset"], row["decoder"], row["value"]) for row in rows]

    with served(tmp_path / "data") as place:
        extensions = [encode_properties(Properties(content_type=kind)) or None for kind, _ in sent]
        payloads = [payload for _, payload in sent]
        place.store.append(
            [
                logs.make_entry("home/kitchen", [one], extension=extension)
                for one, extension in zip(payloads, extensions, strict=True)
            ]
        )
        lake = Lake(str(tmp_path / "lake"))
        writer = TablesWriter(spark, RunConfig(lake, options(place)))
        writer.write(writer._planner.partitions({place.log: 0}, {place.log: 4}), {place.log: 4}, {})
        tables_at(lake, {place.log: 4})
    rejected = lake.table(readings.QUARANTINE).arrow().sort_by("offset").to_pylist()
    assert found(lake) == [(0, "senml", 21.5), (2, "number", 23.5), (3, "json", 24.5)]
    assert [(row["offset"], row["content_type"], row["reason"]) for row in rejected] == [
        (1, "application/cbor", "bad payload")
    ]
    rules: tuple[DecoderRule, ...] = (DecoderRule("#", "json", {}, "application/cbor"),)
    assert requeue(spark, lake, rules) == (1, 0)
    assert found(lake)[1] == (1, "json", 22.5)
    rules = (*rules, DecoderRule("home/#", "csv", {"columns": ["temperature_C"]}, "text/csv"))
    assert requeue_all(spark, lake, rules) == (4, 0)
    assert [name for _, name, _ in found(lake)] == ["senml", "json", "csv", "json"]
    assert not [one for one in run_checks(lake, rules) if one.wrong]


def test_messages_that_remain_in_quarantine_get_new_reasons(tmp_path: Path, spark: SparkSession) -> None:
    lake = three_hours(tmp_path, spark)
    silver, quarantine = lake.table(readings.SPEC), lake.table(readings.QUARANTINE)
    expected = quarantine.arrow(["offset", "reason", "detail"]).sort_by("offset").to_pylist()
    older = quarantine.frame(spark).withColumns({"reason": sf.lit("older"), "detail": sf.lit("reason")})
    quarantine.overwrite(older.localCheckpoint(), {"older": 0})
    rows = silver.rows
    assert requeue(spark, lake) == (0, 2)
    assert quarantine.arrow(["offset", "reason", "detail"]).sort_by("offset").to_pylist() == expected
    version = quarantine.version
    assert requeue(spark, lake) == (0, 2)
    assert quarantine.version == version, "nothing is written if no reason changed"
    assert silver.rows == rows
    assert requeue(spark, lake, (DecoderRule("#", "sentence", {}),))[1] == 2
    rebuild(spark, lake, None, None)
