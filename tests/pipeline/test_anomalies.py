"""Anomalies end to end: a real archive, states in files, the table, and alerts in the brokers' logs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.archive import logs
from tests.archive.client import ArchiveClient
from tests.pipeline.lakes import LOG, tables_at, write_spark_checkpoint
from tests.spark.archives import Served, options, served

import godwit.pipeline
import godwit.spark
from godwit.pipeline import detection
from godwit.pipeline.checkpoints import ANOMALIES, checkpoint_address, read_checkpoint
from godwit.pipeline.datasets import readings
from godwit.pipeline.datasets.anomalies import SPEC, AlertPublisher, alert_messages, newest_rows
from godwit.pipeline.detection import Detection, DetectionTask
from godwit.pipeline.detector import Alarm, Detector
from godwit.pipeline.files import TableFile
from godwit.pipeline.lake import Lake
from godwit.pipeline.runner import RunConfig, TablesWriter
from godwit.spark.archive import ArchiveError

# -- alerts ------------------------------------------------------------------------------------------------------------


ALARM: dict[str, Any] = {
    "broker": "a" * 32,
    "offset": 7,
    "quantity": "temperature",
    "topic": "größe/küche",
    "event_time": datetime(2026, 11, 15, 12, tzinfo=UTC),
    "value": 61.25,
    "unit": "°C",
    "expected": 21.5,
    "score": 0.83123,
    "reason": "jump up",
    "state": "worse",
    "peak_time": datetime(2026, 11, 15, 12, 5, tzinfo=UTC),
    "peak_value": 70.5,
    "end_time": None,
    "name": "",
    "alarm_time": datetime(2026, 11, 15, 12, 5, tzinfo=UTC),
    "alarm_offset": 9,
    "alarm_value": 70.5,
    "alarm_expected": 21.75,
}


def test_the_message_of_an_alert() -> None:
    (row,) = alert_messages([ALARM]).to_pylist()
    assert row["topic"] == "alerts/größe/küche"
    assert json.loads(row["payload"]) == {
        "reason": "jump up",
        "topic": "größe/küche",
        "quantity": "temperature",
        "value": 70.5,
        "expected": 21.75,
        "unit": "°C",
        "score": 0.831,
        "time": "2026-11-15T12:05:00+00:00",
        "offset": 9,
        "state": "worse",
        "begin": "2026-11-15T12:00:00+00:00",
        "begin_offset": 7,
        "peak": 70.5,
        "peak_time": "2026-11-15T12:05:00+00:00",
    }


def test_the_message_about_the_end_of_an_event() -> None:
    ended = ALARM | {"state": "end", "end_time": datetime(2026, 11, 15, 12, 10, tzinfo=UTC)}
    (row,) = alert_messages([ended]).to_pylist()
    payload = json.loads(row["payload"])
    assert (payload["state"], payload["end"]) == ("end", "2026-11-15T12:10:00+00:00")


def test_an_event_has_one_row_from_its_last_alarm() -> None:
    began = ALARM | {"state": "begin", "score": 0.6, "peak_value": 61.25}
    other = ALARM | {"offset": 12}
    rows = newest_rows([began, other, ALARM]).to_pylist()
    assert [(row["offset"], row["state"], row["score"], row["value"]) for row in rows] == [
        (7, "worse", 0.83123, 61.25),
        (12, "worse", 0.83123, 61.25),
    ]
    assert list(rows[0]) == SPEC.schema.names


@pytest.mark.parametrize(
    ("topic", "alert"),
    [
        ("ä" * 508, "alerts/" + "ä" * 508),
        ("ä" * 509, "alerts/other"),  # 1,025 bytes
        ("/".join("a" * 63), "alerts/" + "/".join("a" * 63)),
        ("/".join("a" * 64), "alerts/other"),
    ],
)
def test_a_topic_without_room_for_the_prefix_is_in_the_payload(topic: str, alert: str) -> None:
    (row,) = alert_messages([ALARM | {"topic": topic}]).to_pylist()
    assert row["topic"] == alert
    assert json.loads(row["payload"])["topic"] == topic


def test_each_broker_has_its_address(tmp_path: Path) -> None:
    with served(tmp_path / "one") as one, served(tmp_path / "other", log_id=bytes(range(1, 17))) as other:
        publisher = AlertPublisher(options(one, other, topics="a/#", maxRowsPerTrigger="5"))
        assert publisher._address(other.log) == other.address.replace("grpc+tcp", "grpc")
        assert publisher._address(one.log) == one.address.replace("grpc+tcp", "grpc")
        with pytest.raises(ArchiveError, match="an alert is for log ffff, and none of the archives has"):
            publisher._address("ffff")


# -- the steps ---------------------------------------------------------------------------------------------------------


STEP_US = 1_000_000
BEGIN_US = logs.NOW_US - 10_000 * STEP_US
HALF = 300
JUMP_AT = HALF + 130
POISON = [b"NaN", b"\xff", b'{"temperature": 1e300}', b"[" * 100]
OTHER_LOG = bytes(range(1, 17))


def values(seed: int, jump: float) -> list[float]:
    """Return a series with a tenth of the jump, and later with all of it."""
    rng = random.Random(seed)
    usual = [21 + rng.gauss(0, 0.2) for _ in range(2 * HALF)]
    for number in range(JUMP_AT, JUMP_AT + 30):
        usual[number] += jump / 20 if number < JUMP_AT + 10 else jump
    return [round(value, 2) for value in usual]


def publish(place: Served, topic: str, numbers: Sequence[tuple[int, float]]) -> None:
    """Publish readings (number, value) in this order. The number determines the time."""
    payloads = [
        json.dumps({"temperature": value, "unit": "°C", "time": (BEGIN_US + number * STEP_US) / 1e6}).encode()
        for number, value in numbers
    ]
    place.store.append([logs.make_entry(topic, payloads)])


def shuffled_in_tens(numbers: Sequence[tuple[int, float]], seed: int) -> list[tuple[int, float]]:
    """Shuffle each ten readings, as a network may do; never across steps."""
    rng = random.Random(seed)
    tens = [list(numbers[first : first + 10]) for first in range(0, len(numbers), 10)]
    for ten in tens:
        rng.shuffle(ten)
    return [one for ten in tens for one in ten]


def alerts(place: Served) -> list[tuple[str, str, dict[str, Any]]]:
    with ArchiveClient(place.address) as client:
        logged = logs.listed(*client.read())
    return [
        (row["topic"], row["publisher"], json.loads(row["payload"]))
        for row in logged
        if row["topic"].startswith("alerts/")
    ]


def rows(lake: Lake) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.table(SPEC).arrow().to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["event_time"]))


def expected(series: list[float]) -> list[Alarm]:
    detector = Detector()
    found = [detector.update(BEGIN_US + number * STEP_US, value, number) for number, value in enumerate(series)]
    return [one for one in found if one is not None]


def at(time_us: int | None) -> datetime | None:
    return None if time_us is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)


class KilledError(Exception):
    """Raised in the place where a run is killed."""


def test_alarms_reach_the_table_and_their_own_broker_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    near, far, calm = values(1, 30.0), values(2, -30.0), values(3, 0.0)

    def killed(*_: Any) -> None:
        raise KilledError

    with served(tmp_path / "near") as one, served(tmp_path / "far", log_id=OTHER_LOG) as other:
        source = options(one, other)

        def detect() -> None:
            found = Detection(spark, lake, source)
            while found.step().messages:
                pass

        for begin, end in ((0, HALF), (HALF, 2 * HALF)):  # the detectors learn first, then come the jumps
            publish(one, "a/near", shuffled_in_tens(list(enumerate(near))[begin:end], begin))
            one.store.append([logs.make_entry("a/near", POISON)])
            publish(other, "a/far", list(enumerate(far))[begin:end])
            publish(other, "a/calm", list(enumerate(calm))[begin:end])
            assert TablesWriter(spark, RunConfig(lake, source)).step().messages
            if begin:
                # The run is killed before the transaction, then behind it, before the alerts.
                with monkeypatch.context() as patch:
                    patch.setattr(lake.table(SPEC).__class__, "upsert", killed)
                    with pytest.raises(KilledError):
                        detect()
                assert rows(lake) == []
                with monkeypatch.context() as patch:
                    patch.setattr(AlertPublisher, "publish", killed)
                    with pytest.raises(KilledError):
                        detect()
                assert rows(lake)
                assert alerts(one) == alerts(other) == []
            detect()
        found = rows(lake)
        for topic, place, series in (("a/near", one, near), ("a/far", other, far)):
            mine = [row for row in found if row["topic"] == topic]
            raised = expected(series)
            events = list({one.begin_position: one for one in raised}.values())
            assert {one.state for one in raised} == {"begin", "worse", "end"}
            assert [
                (row["event_time"], row["value"], row["reason"], row["state"], row["end_time"]) for row in mine
            ] == [(at(one.begin_us), one.begin_value, one.reason, one.state, at(one.end_us)) for one in events]
            assert {(row["broker"], row["quantity"], row["unit"]) for row in mine} == {(place.log, "temperature", "°C")}
            published = [alert for alert in alerts(place) if alert[0] == f"alerts/{topic}"]
            assert {alert[1] for alert in published} == {"pipeline"}
            assert [(alert[2]["value"], alert[2]["state"]) for alert in published] == [
                (one.value, one.state) for one in raised
            ]
            begins = {
                alert[2]["begin_offset"]: alert[2]["offset"] for alert in published if alert[2]["state"] == "begin"
            }
            assert begins == {row["offset"]: row["offset"] for row in mine}
        before = [alerts(place) for place in (one, other)]
        detect()
        assert rows(lake) == found
        assert [alerts(place) for place in (one, other)] == before
        checkpoint = read_checkpoint(lake, ANOMALIES)
        assert checkpoint is not None
        assert checkpoint.offsets == {
            place.log: lake.table(readings.SPEC).watermark(place.log) for place in (one, other)
        }
        assert len(list((tmp_path / "lake" / "_checkpoints" / "anomalies" / "states").glob("*.json"))) == 2


def test_alerts_are_published_once_if_a_step_is_planned_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each kill more readings arrive, so the next step has other bounds than the one that was begun."""
    lake = Lake(str(tmp_path / "lake"))
    near, far = values(1, 30.0), values(2, -30.0)
    publish_all = AlertPublisher.publish

    def killed(*_: Any) -> None:
        raise KilledError

    def killed_after_one_broker(self: AlertPublisher, alarms: list[dict[str, Any]], query: str, batch: int) -> None:
        brokers = {alarm["broker"] for alarm in alarms}
        assert len(brokers) == 2
        publish_all(self, [one for one in alarms if one["broker"] == min(brokers)], query, batch)
        raise KilledError

    with served(tmp_path / "near") as one, served(tmp_path / "far", log_id=OTHER_LOG) as other:
        source = options(one, other)

        def ingest(begin: int, end: int) -> None:
            publish(one, "a/near", list(enumerate(near))[begin:end])
            publish(other, "a/far", list(enumerate(far))[begin:end])
            assert TablesWriter(spark, RunConfig(lake, source)).step().messages

        def detect() -> None:
            found = Detection(spark, lake, source)
            while found.step().messages:
                pass

        ingest(0, JUMP_AT + 5)
        with monkeypatch.context() as patch:  # the states and the manifest of this step are written
            patch.setattr(lake.table(SPEC).__class__, "upsert", killed)
            with pytest.raises(KilledError):
                detect()
        ingest(JUMP_AT + 5, JUMP_AT + 20)
        with monkeypatch.context() as patch:
            patch.setattr(AlertPublisher, "publish", killed_after_one_broker)
            with pytest.raises(KilledError):
                detect()
        assert sorted(len(alerts(place)) > 0 for place in (one, other)) == [False, True]
        ingest(JUMP_AT + 20, 2 * HALF)
        detect()
        for place, series in ((one, near), (other, far)):
            raised = expected(series)
            assert [(alert[2]["value"], alert[2]["state"]) for alert in alerts(place)] == [
                (alarm.value, alarm.state) for alarm in raised
            ]
            events = {alarm.begin_position for alarm in raised}
            assert len([row for row in rows(lake) if row["broker"] == place.log]) == len(events)


def write_silver(lake: Lake, series: list[float], begin: int, topic: str = "a") -> None:
    """Append a reading a second to silver, as of messages at offsets from `begin`."""
    nothing: dict[str, Any] = dict.fromkeys(readings.SPEC.schema.names)
    found = [
        nothing
        | {
            "broker": LOG,
            "offset": number,
            "quantity": "t",
            "topic": topic,
            "value": value,
            "unit": "",
            "schema_version": 1,
        }
        | {"event_time": BEGIN_US + number * STEP_US, "received": BEGIN_US + number * STEP_US}
        for number, value in enumerate(series, begin)
    ]
    file = TableFile(lake.table(readings.SPEC).address, readings.SPEC.schema)
    file.write(pa.RecordBatch.from_pylist(found, readings.SPEC.schema))
    written = file.close()
    assert written is not None
    lake.table(readings.SPEC).append_files([written], {LOG: begin + len(series)})
    tables_at(lake, {LOG: begin + len(series)})


def test_detectors_without_states_learn_from_readings_that_were_processed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake of 0.5.0 has states in a checkpoint of Spark, up to an offset."""
    lake, series = Lake(str(tmp_path)), values(4, 30.0)
    write_silver(lake, series, 0)
    write_spark_checkpoint(lake, ANOMALIES, [f'{{"{LOG}": {JUMP_AT + 5}}}'], done=1)
    monkeypatch.setattr(AlertPublisher, "publish", lambda *_: None)
    assert Detection(spark, lake, {"archive": "127.0.0.1:9"}).step().messages == len(series)
    assert rows(lake) == []  # its alarm was raised before
    for path in (Path(checkpoint_address(lake, ANOMALIES)) / "states").glob("*.json"):
        path.unlink()
    write_silver(lake, values(5, 30.0), len(series), "b")
    Detection(spark, lake, {"archive": "127.0.0.1:9"}).step()
    assert [(row["topic"], row["offset"] - len(series)) for row in rows(lake)] == [("b", JUMP_AT)]


def test_states_have_a_time_to_live(tmp_path: Path) -> None:
    day_us = 86_400_000_000
    new_us = 2 * day_us + detection.STATE_DAYS * day_us
    states = {(LOG, "a", "t", ""): (day_us, b"old"), (LOG, "b", "t", ""): (new_us, b"new")}
    name = detection._write_states(str(tmp_path), states)
    assert list(detection._read_states(f"{tmp_path}/{name}")) == [(LOG, "b", "t", "")]


WITHOUT_GODWIT = """
import sys

class NoGodwit:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "godwit":
            raise ImportError(name)

sys.meta_path.insert(0, NoGodwit())
from pyspark import cloudpickle

task = cloudpickle.loads(sys.stdin.buffer.read())
for part in task.run(list(range(16))):
    for one in part["alarms"]:
        print(one["offset"], one["alarm_offset"], one["state"], one["reason"])
"""


def test_detection_runs_where_godwit_is_not(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    write_silver(lake, [60.0 if at == 400 else 20 + at % 7 / 10 for at in range(500)], 0)
    files = lake.table(readings.SPEC).file_addresses()
    task = DetectionTask(files, {LOG: (0, 500)}, {}, {}, str(tmp_path / "states"))
    packages = (godwit.pipeline, godwit.spark)
    for package in packages:
        cloudpickle.register_pickle_by_value(package)  # type: ignore[no-untyped-call]
    try:
        shipped = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
    finally:
        for package in packages:
            cloudpickle.unregister_pickle_by_value(package)  # type: ignore[no-untyped-call]
    done = subprocess.run([sys.executable, "-c", WITHOUT_GODWIT], input=shipped, capture_output=True, check=False)
    assert done.stderr.decode() == ""
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "400 400 begin jump up"
    assert all(line.startswith("400 4") for line in lines)
