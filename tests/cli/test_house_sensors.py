"""Sensors with faults: believable, numbered, the same for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest

from godwit.cli.house import FAULTS, ROOMS, SECOND_US, house, rooms, sensors


@pytest.mark.parametrize("count", [1, 3, 5, 12])
def test_as_many_rooms_as_wanted(count: int) -> None:
    found = rooms(count, 1)
    assert len(found) == count
    assert list(found)[:5] == list(ROOMS)[:count]
    assert all(10.0 < climate.mean_celsius < 25.0 for climate in found.values())


def test_without_faults_they_read_what_the_thermometers_do() -> None:
    good = house(7, start_us=0)
    for sensor, thermometer in zip(sensors(5, 7, start_us=0), good, strict=True):
        assert [sensor.read() for _ in range(50)] == [thermometer.read() for _ in range(50)]
        assert sensor.fault is None


def test_the_same_seed_gives_the_same_readings_and_faults() -> None:
    def run(seed: int) -> list[object]:
        return [one.read() for one in sensors(3, seed, start_us=0, faults_per_reading=0.05) for _ in range(300)]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_every_fault_shows() -> None:
    sensor = sensors(1, 3, start_us=0, faults_per_reading=0.02)[0]
    truth = sensors(1, 3, start_us=0)[0]
    seen: Counter[str] = Counter()
    numbers = []
    before = None
    for step in range(20_000):
        reading, true = sensor.read(), truth.read()
        assert true is not None
        fault = sensor.fault
        seen[str(fault)] += 1
        if reading is None:
            assert fault == "silent"
            continue
        numbers.append(reading.number)
        assert reading.time_us == step * SECOND_US
        off = abs(reading.celsius - true.celsius)
        if fault is None:
            assert off < 0.02
        elif fault == "spike":
            assert off > 10.0
        elif fault == "stuck":
            assert reading.celsius == before
        before = reading.celsius
    assert set(seen) == {"None", *FAULTS}
    assert seen["None"] > sum(seen.values()) / 4
    assert numbers == list(range(len(numbers)))
