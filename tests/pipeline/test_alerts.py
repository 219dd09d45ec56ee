"""Alarms as messages, without Spark: topics, payloads, and which broker they go to."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.spark.archives import options, served

from godwit.pipeline.alerts import Alerts, messages
from godwit.spark.archive import ArchiveError

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


def test_an_alert_says_what_happened_where() -> None:
    (row,) = messages([ALARM]).to_pylist()
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
def test_a_topic_without_room_for_the_prefix_is_told_in_the_payload(topic: str, alert: str) -> None:
    (row,) = messages([ALARM | {"topic": topic}]).to_pylist()
    assert row["topic"] == alert
    assert json.loads(row["payload"])["topic"] == topic


def test_each_broker_has_its_address(tmp_path: Path) -> None:
    with served(tmp_path / "one") as one, served(tmp_path / "other", log_id=bytes(range(1, 17))) as other:
        alerts = Alerts(options(one, other, topics="a/#", maxRowsPerTrigger="5"))
        assert alerts._address(other.log) == other.address.replace("grpc+tcp", "grpc")
        assert alerts._address(one.log) == one.address.replace("grpc+tcp", "grpc")
        with pytest.raises(ArchiveError, match="an alert is for log ffff, and none of the archives has"):
            alerts._address("ffff")
