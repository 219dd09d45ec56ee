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
from godwit.pipeline.datasets.anomalies import SPEC, AlertPublisher, _SeriesProcessor, alert_messages, start
from godwit.pipeline.detector import Detector
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
    "score": 3.14159,
    "reason": "jump up",
}


def test_the_message_of_an_alert() -> None:
    (row,) = alert_messages([ALARM]).to_pylist()
    assert row["topic"] == "alerts/größe/küche"
    assert json.loads(row["payload"]) == {
        "reason": "jump up",
        "topic": "größe/küche",
        "quantity": "temperature",
        "value": 61.25,
        "expected": 21.5,
        "unit": "°C",
        "score": 3.14,
        "time": "2026-11-15T12:00:00+00:00",
        "offset": 7,
    }


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
HALF = 200
JUMP_AT = HALF + 130
POISON = [b"NaN", b"\xff", b'{"temperature": 1e300}', b"[" * 100]
OTHER_LOG = bytes(range(1, 17))


def values(seed: int, jump: float) -> list[float]:
    rng = random.Random(seed)
    return [
        round(21 + rng.gauss(0, 0.2) + (jump if JUMP_AT <= number < JUMP_AT + 20 else 0), 2) for number in range(400)
    ]


def publish(place: Served, topic: str, numbers: Sequence[tuple[int, float]]) -> None:
    """Publish readings (number, value) in this order. The number determines the time."""
    payloads = [
        json.dumps({"temperature": value, "time": (BEGIN_US + number * STEP_US) / 1e6}).encode()
        for number, value in numbers
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


def expected(series: list[float]) -> list[tuple[datetime, float, str]]:
    detector = Detector()
    found = [detector.update(BEGIN_US + number * STEP_US, value) for number, value in enumerate(series)]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return [(epoch + timedelta(microseconds=one.time_us), one.value, one.reason) for one in found if one]


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
            assert [(row["event_time"], row["value"], row["reason"]) for row in mine] == expected(series) != []
            assert {(row["broker"], row["quantity"], row["unit"]) for row in mine} == {(place.log, "temperature", "°C")}
            assert [alert[:2] for alert in alerts(place)] == [(f"alerts/{topic}", "pipeline")] * len(mine)
            assert [alert[2]["value"] for alert in alerts(place)] == [row["value"] for row in mine]
        assert {row["topic"] for row in found} == {"a/near", "a/far"}

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
state = SimpleNamespace(get=lambda: states[-1] if states else None, update=states.append)
processor = cloudpickle.loads(sys.stdin.buffer.read())
processor.init(SimpleNamespace(getValueState=lambda *_: state))
for begin in (0, 250):
    values = [(at, 60.0 if at == 400 else 20 + at % 7 / 10) for at in range(begin, begin + 250)]
    rows = (SimpleNamespace(offset=at, time_us=at, value=value, unit="C") for at, value in values)
    for row in processor.handleInputRows(("broker", "topic", "quantity"), rows, None):
        print(row.offset, row.reason)
"""


def test_detection_runs_where_godwit_is_not() -> None:
    cloudpickle.register_pickle_by_value(pipeline)  # type: ignore[no-untyped-call]
    try:
        shipped = cloudpickle.dumps(_SeriesProcessor())  # type: ignore[no-untyped-call]
    finally:
        cloudpickle.unregister_pickle_by_value(pipeline)  # type: ignore[no-untyped-call]
    done = subprocess.run([sys.executable, "-c", WITHOUT_GODWIT], input=shipped, capture_output=True, check=False)
    assert (done.stdout.decode(), done.stderr.decode()) == ("400 jump up\n", "")
