"""Readings that can be believed, and that are the same from the same seed."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import fmean, pstdev

import msgspec

from godwit.cli.house import (
    DAY_US,
    DRIFT_CELSIUS,
    NOISE_CELSIUS,
    ROOMS,
    SECOND_US,
    WARMEST_US,
    Climate,
    RoomReading,
    Thermometer,
    house,
)

MIDNIGHT_US = 20_000 * DAY_US


def read(seed: int, count: int, *, step_us: int = SECOND_US) -> dict[str, list[RoomReading]]:
    return {
        sensor.room: [sensor.read() for _ in range(count)]
        for sensor in house(seed, start_us=MIDNIGHT_US, step_us=step_us)
    }


def test_a_seed_gives_the_same_readings() -> None:
    assert read(1, 50) == read(1, 50)
    assert read(1, 50) != read(2, 50)


def test_rooms_do_not_depend_on_each_other() -> None:
    sensors = house(1, start_us=MIDNIGHT_US)
    sensors[0].read()
    assert [sensors[1].read() for _ in range(10)] == read(1, 10)[sensors[1].room]


def test_numbers_and_times_run_on() -> None:
    for room, readings in read(3, 20, step_us=250_000).items():
        assert {reading.room for reading in readings} == {room}
        assert [reading.number for reading in readings] == list(range(20))
        assert [reading.time_us for reading in readings] == [MIDNIGHT_US + 250_000 * n for n in range(20)]


def test_there_are_several_rooms() -> None:
    assert list(read(1, 1)) == list(ROOMS)
    assert len(ROOMS) >= 5


def test_a_day_has_a_cold_morning_and_a_warm_afternoon() -> None:
    minute_us = 60 * SECOND_US
    sensor = Thermometer("attic", Climate(20.0, 5.0), Random(4), start_us=MIDNIGHT_US, step_us=minute_us)
    days = [[sensor.read().celsius for _ in range(24 * 60)] for _ in range(30)]
    hours = [fmean(day[60 * hour + minute] for day in days for minute in range(60)) for hour in range(24)]
    assert hours.index(max(hours)) in (15, 16, 17, 18)
    assert hours.index(min(hours)) in (3, 4, 5, 6)
    assert 8.0 < max(hours) - min(hours) < 11.0
    assert WARMEST_US < DAY_US


def test_temperatures_are_those_of_a_house() -> None:
    for room, readings in read(5, 2_000, step_us=10 * 60 * SECOND_US).items():
        climate = ROOMS[room]
        celsius = [reading.celsius for reading in readings]
        assert abs(fmean(celsius) - climate.mean_celsius) < 0.5
        assert max(abs(value - climate.mean_celsius) for value in celsius) < climate.swing_celsius + 5 * DRIFT_CELSIUS
        assert all(value == round(value, 2) for value in celsius)


def test_neighbouring_readings_differ_by_little_more_than_the_noise() -> None:
    for readings in read(6, 3_000).values():
        steps = [after.celsius - before.celsius for before, after in pairwise(readings)]
        assert NOISE_CELSIUS < pstdev(steps) < 3 * NOISE_CELSIUS


def test_the_drift_is_independent_of_how_often_it_is_read() -> None:
    spreads = []
    for step_us in (60 * SECOND_US, 3600 * SECOND_US):
        sensor = Thermometer("cellar", Climate(10.0, 0.0), Random(7), start_us=0, step_us=step_us)
        spreads.append(pstdev(sensor.read().celsius for _ in range(20_000)))
    for spread in spreads:
        assert 0.7 * DRIFT_CELSIUS < spread < 1.4 * DRIFT_CELSIUS


def test_a_reading_is_json_and_back() -> None:
    reading = house(1, start_us=MIDNIGHT_US)[0].read()
    assert msgspec.json.decode(msgspec.json.encode(reading), type=RoomReading) == reading
