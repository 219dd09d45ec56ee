"""Alarms from end to end: a real archive, Spark's state in RocksDB, the table, and alerts in the brokers' logs."""

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
from godwit.pipeline.datasets.anomalies import SPEC, _Detection, start
from godwit.pipeline.detector import Detector
from godwit.pipeline.lake import Lake

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STEP_US = 1_000_000
BEGIN_US = logs.NOW_US - 10_000 * STEP_US
PATIENCE_S = 600
HALF = 200
JUMP_AT = HALF + 130
POISON = [b"NaN", b"\xff", b'{"t": 1e300}', b"[" * 100]
OTHER_LOG = bytes(range(1, 17))


def values(seed: int, jump: float) -> list[float]:
    rng = random.Random(seed)
    return [
        round(21 + rng.gauss(0, 0.2) + (jump if JUMP_AT <= number < JUMP_AT + 20 else 0), 2) for number in range(400)
    ]


def publish(place: Served, topic: str, numbers: Sequence[tuple[int, float]]) -> None:
    """Readings (number, value) in this order, the number telling the time."""
    payloads = [
        json.dumps({"t": value, "time": (BEGIN_US + number * STEP_US) / 1e6}).encode() for number, value in numbers
    ]
    place.store.append([logs.make_entry(topic, payloads)])


def shuffled_in_tens(numbers: Sequence[tuple[int, float]], seed: int) -> list[tuple[int, float]]:
    """As from a network that holds some back; never across micro-batches."""
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
        # Two batches: the second has the jumps, and the first has taught the detectors.
        given = options(one, other, maxRowsPerTrigger=str(3 * HALF + len(POISON)))

        def run() -> None:
            query = start(spark, given, lake, str(checkpoint), {"availableNow": True})
            assert query.awaitTermination(PATIENCE_S)

        run()
        found = rows(lake)
        for topic, place, series in (("a/near", one, near), ("a/far", other, far)):
            mine = [row for row in found if row["topic"] == topic]
            assert [(row["event_time"], row["value"], row["reason"]) for row in mine] == expected(series) != []
            assert {(row["broker"], row["quantity"], row["unit"]) for row in mine} == {(place.log, "temperature", "°C")}
            assert [alert[:2] for alert in alerts(place)] == [(f"alerts/{topic}", "pipeline")] * len(mine)
            assert [alert[2]["value"] for alert in alerts(place)] == [row["value"] for row in mine]
        assert {row["topic"] for row in found} == {"a/near", "a/far"}

        # The driver died when all of the second batch was written, and Spark had not noted it.
        (checkpoint / "commits" / "1").unlink()
        (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
        before = [alerts(place) for place in (one, other)]
        run()
        assert (checkpoint / "commits" / "1").exists()
        assert rows(lake) == found
        assert [alerts(place) for place in (one, other)] == before


WITHOUT_GODWIT = """
import sys

class Nobody:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "godwit":
            raise ImportError(name)

sys.meta_path.insert(0, Nobody())
from types import SimpleNamespace
from pyspark import cloudpickle

kept = []
state = SimpleNamespace(get=lambda: kept[-1] if kept else None, update=kept.append)
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
        shipped = cloudpickle.dumps(_Detection())  # type: ignore[no-untyped-call]
    finally:
        cloudpickle.unregister_pickle_by_value(pipeline)  # type: ignore[no-untyped-call]
    done = subprocess.run([sys.executable, "-c", WITHOUT_GODWIT], input=shipped, capture_output=True, check=False)
    assert (done.stdout.decode(), done.stderr.decode()) == ("400 jump up\n", "")
