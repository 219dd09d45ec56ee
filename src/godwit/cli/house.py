"""A simulated house with thermometers, for `godwit demo` and `godwit sensors`. Everything follows from a seed.

A temperature is the sum of the room's own mean, a daily cycle (coldest at 5:00, warmest at 17:00 UTC), a slow drift
(weather, people, windows) and the noise of the sensor. Time is counted from reading to reading.

A sensor fails now and then, as real ones do:

    stuck    repeats one value for a while
    spike    sends one value that is far off
    drift    moves away from the true value until it is repaired
    silent   sends no readings for a while
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Final, Literal, TypeAlias, get_args

import msgspec

SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US
WARMEST_US: Final = 17 * 3600 * SECOND_US
"""Time of day of the highest temperature, UTC."""
DRIFT_CELSIUS: Final = 0.6
"""Standard deviation of the slow drift of a room."""
DRIFT_MEMORY_US: Final = 3 * 3600 * SECOND_US
"""Time constant of that drift."""
NOISE_CELSIUS: Final = 0.04

Fault: TypeAlias = Literal["stuck", "spike", "drift", "silent"]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
FAULT_READINGS: Final[Mapping[Fault, tuple[int, int]]] = {
    "stuck": (20, 120),
    "spike": (1, 1),
    "drift": (60, 300),
    "silent": (10, 60),
}
"""The shortest and the longest duration of a fault, in readings."""
SPIKE_CELSIUS: Final = (15.0, 60.0)
FAULT_DRIFT_CELSIUS: Final = 0.05
"""Change per reading of a sensor that drifts."""


class RoomReading(msgspec.Struct, frozen=True, gc=False):
    """One reading of one sensor. `number` counts its readings from 0, so that a lost or repeated one is noticed."""

    room: str
    number: int
    time_us: int
    """Microseconds since the epoch."""
    celsius: float


class Climate(msgspec.Struct, frozen=True):
    """The mean temperature of a room and its daily change."""

    mean_celsius: float
    swing_celsius: float
    """Difference between the mean and the warmest hour."""


ROOMS: Final[Mapping[str, Climate]] = {
    "kitchen": Climate(21.5, 1.6),
    "living room": Climate(21.0, 1.0),
    "bedroom": Climate(18.5, 0.8),
    "attic": Climate(19.0, 4.5),
    "cellar": Climate(12.5, 0.2),
}


class Thermometer:
    """The thermometer of one room. Each reading is `step_us` later than the one before."""

    def __init__(self, room: str, climate: Climate, rng: Random, *, start_us: int, step_us: int = SECOND_US) -> None:
        self.room = room
        self._climate = climate
        self._rng = rng
        self._time_us = start_us
        self._step_us = step_us
        self._number = 0
        # An Ornstein-Uhlenbeck process: a step keeps a part of the drift and adds noise, so its spread is constant.
        self._retained_share = math.exp(-step_us / DRIFT_MEMORY_US)
        self._step_celsius = DRIFT_CELSIUS * math.sqrt(1.0 - self._retained_share**2)
        self._drift_celsius = rng.gauss(0.0, DRIFT_CELSIUS)

    def read(self) -> RoomReading:
        """Return the next reading."""
        climate, rng = self._climate, self._rng
        cycle = math.cos((self._time_us - WARMEST_US) % DAY_US / DAY_US * math.tau)
        celsius = climate.mean_celsius + climate.swing_celsius * cycle + self._drift_celsius
        reading = RoomReading(self.room, self._number, self._time_us, round(celsius + rng.gauss(0.0, NOISE_CELSIUS), 2))
        self._number += 1
        self._time_us += self._step_us
        self._drift_celsius = self._drift_celsius * self._retained_share + rng.gauss(0.0, self._step_celsius)
        return reading


def house(seed: int, *, start_us: int, step_us: int = SECOND_US) -> list[Thermometer]:
    """Return a thermometer for each of ROOMS. Each has a random generator of its own: no room depends on another."""
    return [
        Thermometer(room, climate, Random(f"{seed} {room}"), start_us=start_us, step_us=step_us)
        for room, climate in ROOMS.items()
    ]


def rooms(count: int, seed: int) -> dict[str, Climate]:
    """Return `count` rooms: those of the house first, then numbered ones."""
    found = dict(list(ROOMS.items())[:count])
    for number in range(len(found) + 1, count + 1):
        rng = Random(f"{seed} climate {number}")
        found[f"room {number}"] = Climate(rng.uniform(16.0, 23.0), rng.uniform(0.2, 3.0))
    return found


class Sensor:
    """A thermometer that fails now and then. `faults_per_reading` is the probability that a fault begins."""

    def __init__(self, thermometer: Thermometer, rng: Random, *, faults_per_reading: float) -> None:
        self.room = thermometer.room
        self.fault: Fault | None = None
        """The fault that it has now."""
        self._thermometer = thermometer
        self._rng = rng
        self._faults_per_reading = faults_per_reading
        self._left = 0
        self._offset_celsius = 0.0
        self._slope_celsius = 0.0
        self._last_celsius = 0.0
        self._number = 0

    def read(self) -> RoomReading | None:
        """Return the next reading, or None while the sensor is silent. Missing readings have no number."""
        truth = self._thermometer.read()
        if self._left == 0:
            self.fault = None
            if self._rng.random() < self._faults_per_reading:
                self._fail()
        else:
            self._left -= 1
        if self.fault == "silent":
            return None
        if self.fault == "stuck" and self._number:
            celsius = self._last_celsius
        else:
            if self.fault == "drift":
                self._offset_celsius += self._slope_celsius
            celsius = round(truth.celsius + (self._offset_celsius if self.fault else 0.0), 2)
        self._last_celsius = celsius
        reading = msgspec.structs.replace(truth, number=self._number, celsius=celsius)
        self._number += 1
        return reading

    def _fail(self) -> None:
        rng = self._rng
        fault = rng.choice(FAULTS)
        self.fault = fault
        self._left = rng.randint(*FAULT_READINGS[fault]) - 1
        sign = rng.choice((-1.0, 1.0))
        self._offset_celsius = sign * rng.uniform(*SPIKE_CELSIUS) if fault == "spike" else 0.0
        self._slope_celsius = sign * FAULT_DRIFT_CELSIUS


def sensors(
    count: int, seed: int, *, start_us: int, step_us: int = SECOND_US, faults_per_reading: float = 0.0
) -> list[Sensor]:
    """Return a sensor for each of `count` rooms. Each has random generators of its own: no room depends on another."""
    return [
        Sensor(
            Thermometer(room, climate, Random(f"{seed} {room}"), start_us=start_us, step_us=step_us),
            Random(f"{seed} faults {room}"),
            faults_per_reading=faults_per_reading,
        )
        for room, climate in rooms(count, seed).items()
    ]
