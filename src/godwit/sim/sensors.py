"""Sensors as real buildings have them: any number of rooms, and now and then a fault. Everything follows from a seed.

stuck    the same value for a while
spike    one value that is far off
drift    wanders away from the truth for a while, then somebody repairs it
silent   no readings for a while
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from godwit.sim.rooms import ROOMS, SECOND_US, Climate, Reading, Thermometer

Fault: TypeAlias = Literal["stuck", "spike", "drift", "silent"]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
FAULT_READINGS: Final[Mapping[Fault, tuple[int, int]]] = {
    "stuck": (20, 120),
    "spike": (1, 1),
    "drift": (60, 300),
    "silent": (10, 60),
}
"""For how many readings a fault lasts, from and to."""
SPIKE_CELSIUS: Final = (15.0, 60.0)
DRIFT_CELSIUS: Final = 0.05
"""A reading."""


def rooms(count: int, seed: int) -> dict[str, Climate]:
    """The rooms of a house, and behind them as many numbered ones as are wanted."""
    found = dict(list(ROOMS.items())[:count])
    for number in range(len(found) + 1, count + 1):
        rng = Random(f"{seed} climate {number}")
        found[f"room {number}"] = Climate(rng.uniform(16.0, 23.0), rng.uniform(0.2, 3.0))
    return found


class Sensor:
    """A thermometer that fails now and then; `faults_per_reading` is how often one begins."""

    def __init__(self, thermometer: Thermometer, rng: Random, *, faults_per_reading: float) -> None:
        self.room = thermometer.room
        self.fault: Fault | None = None
        """What is wrong with it at present."""
        self._thermometer = thermometer
        self._rng = rng
        self._faults_per_reading = faults_per_reading
        self._left = 0
        self._offset_celsius = 0.0
        self._slope_celsius = 0.0
        self._last_celsius = 0.0
        self._number = 0

    def read(self) -> Reading | None:
        """The next reading; None while it is silent. Readings that are not made have no number."""
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
        self._slope_celsius = sign * DRIFT_CELSIUS


def sensors(
    count: int, seed: int, *, start_us: int, step_us: int = SECOND_US, faults_per_reading: float = 0.0
) -> list[Sensor]:
    """A sensor for each of so many rooms; every one has its own chance, so that no room depends on another."""
    return [
        Sensor(
            Thermometer(room, climate, Random(f"{seed} {room}"), start_us=start_us, step_us=step_us),
            Random(f"{seed} faults {room}"),
            faults_per_reading=faults_per_reading,
        )
        for room, climate in rooms(count, seed).items()
    ]
