"""A house with a thermometer in each room: invented readings that look like real ones, from a seed.

A temperature is a room's own mean, a daily cycle (coldest at five in the morning, warmest at five in the afternoon), a
slow drift (weather, people, windows) and the noise of the sensor. Time is counted from reading to reading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Final

import msgspec

SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US
WARMEST_US: Final = 17 * 3600 * SECOND_US
"""After midnight, UTC."""
DRIFT_CELSIUS: Final = 0.6
"""How far the drift strays, as a standard deviation ..."""
DRIFT_MEMORY_US: Final = 3 * 3600 * SECOND_US
"""... and after what time little of it is left."""
NOISE_CELSIUS: Final = 0.04


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one sensor says once. `number` counts its readings from 0, so that a lost or repeated one shows."""

    room: str
    number: int
    time_us: int
    """Microseconds since the epoch."""
    celsius: float


class Climate(msgspec.Struct, frozen=True):
    """What makes one room unlike another."""

    mean_celsius: float
    swing_celsius: float
    """From the mean to the warmest hour."""


ROOMS: Final[Mapping[str, Climate]] = {
    "kitchen": Climate(21.5, 1.6),
    "living room": Climate(21.0, 1.0),
    "bedroom": Climate(18.5, 0.8),
    "attic": Climate(19.0, 4.5),
    "cellar": Climate(12.5, 0.2),
}


class Thermometer:
    """The sensor of one room. Each `read` is `step_us` later than the one before."""

    def __init__(self, room: str, climate: Climate, rng: Random, *, start_us: int, step_us: int = SECOND_US) -> None:
        self.room = room
        self._climate = climate
        self._rng = rng
        self._time_us = start_us
        self._step_us = step_us
        self._number = 0
        # A step of the drift: a part of it is forgotten, and chance adds as much as keeps its spread the same.
        self._kept = math.exp(-step_us / DRIFT_MEMORY_US)
        self._gust_celsius = DRIFT_CELSIUS * math.sqrt(1.0 - self._kept**2)
        self._drift_celsius = rng.gauss(0.0, DRIFT_CELSIUS)

    def read(self) -> Reading:
        """The next reading."""
        climate, rng = self._climate, self._rng
        cycle = math.cos((self._time_us - WARMEST_US) % DAY_US / DAY_US * math.tau)
        celsius = climate.mean_celsius + climate.swing_celsius * cycle + self._drift_celsius
        reading = Reading(self.room, self._number, self._time_us, round(celsius + rng.gauss(0.0, NOISE_CELSIUS), 2))
        self._number += 1
        self._time_us += self._step_us
        self._drift_celsius = self._drift_celsius * self._kept + rng.gauss(0.0, self._gust_celsius)
        return reading


def house(seed: int, *, start_us: int, step_us: int = SECOND_US) -> list[Thermometer]:
    """A thermometer for each of ROOMS; every one has its own chance, so that no room depends on another."""
    return [
        Thermometer(room, climate, Random(f"{seed} {room}"), start_us=start_us, step_us=step_us)
        for room, climate in ROOMS.items()
    ]
