"""Anomalies end to end: a real archive, Spark's state in RocksDB, the table, and alerts in the brokers' logs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.archive import logs
from tests.archive.client import ArchiveClient
from tests.spark.archives import Served, options, served

from godwit import pipeline
from godwit.pipeline.datasets.anomalies import (
    SPEC,
    STATE_TTL,
    AlertPublisher,
    _SeriesProcessor,
    alert_messages,
    newest_rows,
    start,
)
from godwit.pipeline.detector import Alarm, Detector
from godwit.pipeline.lake import Lake
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


# -- the query ---------------------------------------------------------------------------------------------------------


ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STEP_US = 1_000_000
BEGIN_US = logs.NOW_US - 10_000 * STEP_US
TIMEOUT_S = 600
HALF = 300
JUMP_AT = HALF + 130
POISON = [b"NaN", b"\xff", b'{"t": 1e300}', b"[" * 100]
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
        json.dumps({"t": value, "time": (BEGIN_US + number * STEP_US) / 1e6}).encode() for number, value in numbers
    ]
    place.store.append([logs.make_entry(topic, payloads)])


def shuffled_in_tens(numbers: Sequence[tuple[int, float]], seed: int) -> list[tuple[int, float]]:
    """Shuffle each ten readings, as a network may do; never across micro-batches."""
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


@pytest.mark.soak
def test_alarms_reach_the_table_and_their_own_broker_once(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    lake = Lake(str(tmp_path / "lake"))
    checkpoint = tmp_path / "checkpoint"
    near, far, calm = values(1, 30.0), values(2, -30.0), values(3, 0.0)
    with served(tmp_path / "near") as one, served(tmp_path / "far", log_id=OTHER_LOG) as other:
        for begin, end in ((0, HALF), (HALF, 2 * HALF)):
            publish(one, "a/near", shuffled_in_tens(list(enumerate(near))[begin:end], begin))
            one.store.append([logs.make_entry("a/near", POISON)])
            publish(other, "a/far", list(enumerate(far))[begin:end])
            publish(other, "a/calm", list(enumerate(calm))[begin:end])
        # Two batches: the detectors learn from the first, and the second has the jumps.
        given = options(one, other, maxRowsPerTrigger=str(3 * HALF + len(POISON)))

        def run() -> None:
            query = start(spark, given, lake, str(checkpoint), {"availableNow": True})
            assert query.awaitTermination(TIMEOUT_S)

        run()
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

        # The driver died after the second batch was written, before Spark committed it.
        (checkpoint / "commits" / "1").unlink()
        (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
        before = [alerts(place) for place in (one, other)]
        run()
        assert (checkpoint / "commits" / "1").exists()
        assert rows(lake) == found
        assert [alerts(place) for place in (one, other)] == before


WITHOUT_GODWIT = """
import sys

class NoGodwit:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "godwit":
            raise ImportError(name)

sys.meta_path.insert(0, NoGodwit())
from types import SimpleNamespace
from pyspark import cloudpickle

states = []
ttl = []
state = SimpleNamespace(get=lambda: states[-1] if states else None, update=states.append)
processor = cloudpickle.loads(sys.stdin.buffer.read())
processor.init(SimpleNamespace(getValueState=lambda *given: ttl.append(given[2]) or state))
for begin in (0, 250):
    values = [(at, 60.0 if at == 400 else 20 + at % 7 / 10) for at in range(begin, begin + 250)]
    rows = (SimpleNamespace(offset=at, time_us=at, value=value, unit="C") for at, value in values)
    for row in processor.handleInputRows(("broker", "topic", "quantity"), rows, None):
        print(row.offset, row.alarm_offset, row.state, row.reason)
print(ttl)
"""


def test_detection_runs_where_godwit_is_not() -> None:
    cloudpickle.register_pickle_by_value(pipeline)  # type: ignore[no-untyped-call]
    try:
        shipped = cloudpickle.dumps(_SeriesProcessor())  # type: ignore[no-untyped-call]
    finally:
        cloudpickle.unregister_pickle_by_value(pipeline)  # type: ignore[no-untyped-call]
    done = subprocess.run([sys.executable, "-c", WITHOUT_GODWIT], input=shipped, capture_output=True, check=False)
    assert done.stderr.decode() == ""
    *lines, ttl = done.stdout.decode().splitlines()
    assert lines[0] == "400 400 begin jump up"
    assert all(line.startswith("400 4") for line in lines)
    assert ttl == f"[{STATE_TTL.total_seconds() * 1000:.0f}]"
