"""What a report tells of devices and of quarantine."""

from __future__ import annotations

import json
from pathlib import Path

from tests.pipeline.report.lakes import LOG, at, put

from godwit.pipeline.datasets import devices, readings
from godwit.pipeline.lake import Lake
from godwit.pipeline.report import figures


def test_devices_that_fell_silent_come_first(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    rows = [
        {"broker": broker, "topic": topic, "publisher": "p", "messages": 100, "first_received": at(0)}
        | {"last_received": at(last_s), "interval_s": interval_s, "longest_gap_s": 1.0, "gaps": gaps}
        for broker, topic, last_s, interval_s, gaps in (
            ("a" * 32, "quick", 7200.0, 1.0, 0),
            ("a" * 32, "quiet", 7100.0, 1.0, 0),
            ("a" * 32, "rare", 6000.0, 600.0, 0),
            ("a" * 32, "holes", 7195.0, 1.0, 3),
            ("b" * 32, "other broker", 100.0, 1.0, 0),  # all of it ended then: that is no silence of the device
        )
    ]
    put(lake, devices.SPEC, rows)
    found = figures.read_devices(lake)
    assert (found.count, found.silent, found.with_gaps) == (5, 1, 1)
    assert [device.topic for device in found.shown[:2]] == ["quiet", "holes"]
    assert [device.is_silent for device in found.shown] == [True, False, False, False, False]


def test_quarantine_has_the_newest_of_each_reason(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    rows = [
        {"broker": LOG, "offset": number, "topic": "t", "received": at(number), "detail": str(number)}
        | {"reason": "no number" if number % 10 else "bad JSON", "payload": json.dumps(number).encode()}
        for number in range(100)
    ]
    put(lake, readings.QUARANTINE, rows[:60])
    put(lake, readings.QUARANTINE, rows[60:], batch=1)
    found = {reason.name: reason for reason in figures.read_quarantine(lake)}
    assert {name: reason.count for name, reason in found.items()} == {"no number": 90, "bad JSON": 10}
    assert [one.payload for one in found["no number"].examples] == [b"99", b"98", b"97"]
    assert [one.payload for one in found["bad JSON"].examples] == [b"90", b"80", b"70"]
