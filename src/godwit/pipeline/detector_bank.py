"""Runs the detectors of many series together: the same results as godwit.pipeline.detector, several times faster.

Numbers of all series are arrays, and each pass processes the next reading of every series that has one left. Series
are sorted by their number of readings, so those of a pass are always the first ones. The few readings that may change
an event are then examined one by one, by the functions of the detector. When few series are left, their detectors
process the rest.

Each operation on numbers is the one of the detector, in its order: states and alarms are equal to the last bit.

This module runs on executors, which have numpy and no godwit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from godwit.pipeline.detector import (
    BETTER,
    BLOCK,
    ERROR_RATE,
    GAP_FACTOR,
    JUMP_RATE,
    LARGEST_EXCESS,
    LEARNING,
    LEAST_GAP_US,
    LEAST_SCALE,
    LEVEL_RATE,
    MAX_STATE_BYTES,
    MEAN_RATE,
    MEMORY,
    MOST_CROSSINGS,
    PAUSE,
    RARE,
    RUN_FADES,
    SLOT_DAYS,
    SLOT_RATE,
    SLOT_US,
    SLOTS,
    STUCK_RUN,
    TRACKING,
    Alarm,
    AlarmEvent,
    Detector,
    deviation_of,
    is_valid_state,
)

FEW: Final = 16
"""Series below which detectors are faster one by one."""
Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
_EVENT_HEAD: Final = (
    "habit_at",
    "active",
    "strong",
    "is_open",
    "reason",
    "begin_us",
    "peak_us",
    "active_us",
    "position",
)
_EVENT_NUMBERS: Final = ("habit", "reported", "peak", "begin_value", "begin_expected", "peak_value")
_TAILS: Final = ("jumps", "levels", "intervals")
_HEAD_TYPES: Final = ("u1", "<u8", "<u4", "<u4", "i1", "<u4", "?", "<i8", "<u8", "<u8", "<u8", "?", "u1", *["<i8"] * 4)
_HEAD_NAMES: Final = (
    *("version", "readings", "blocks", "crossings", "slot", "slot_readings", "is_above", "last_us"),
    *_EVENT_HEAD,
)
_NUMBER_NAMES: Final = (
    *("mean", "jump", "level", "slot_sum", "hour_error", "mean_error"),
    *[f"{tail}_{name}" for tail in _TAILS for name in ("usual", "excess", "largest")],
    *("last", "step", "run", "longest_run"),
    *_EVENT_NUMBERS,
)
_STATE: Final = [
    *zip(_HEAD_NAMES, _HEAD_TYPES, strict=True),
    *[(name, "<f8") for name in _NUMBER_NAMES],
    ("hours", "<f8", (SLOTS,)),
    ("days", "u1", (SLOTS,)),
]
"""The type of the bytes of a state, see Detector.to_bytes."""
_COUNTS: Final = ("readings", "blocks", "crossings", "slot", "slot_readings", "last_us", "active")
_NUMBERS: Final = tuple(name for name in _NUMBER_NAMES if name not in _EVENT_NUMBERS)


class DetectorBank:
    """The detectors of some series, which are numbered from 0."""

    def __init__(self, states: Sequence[bytes | None]) -> None:
        """`states` are results of Detector.to_bytes; None, or a state of another version, begins a new series."""
        new = Detector().to_bytes()
        known = [new if one is None or not is_valid_state(one) else one for one in states]
        self._states: npt.NDArray[Any] = np.frombuffer(bytearray(b"".join(known)), np.dtype(_STATE))

    def update(
        self, lengths: Integers, times_us: Integers, values: Floats, positions: Integers
    ) -> list[tuple[int, int, Alarm]]:
        """Process readings, sorted by series: `lengths` of each. Return alarms, with their series and index.

        All values must be numbers, and at most detector.GREATEST.
        """
        batch = _Batch(self._states, lengths, times_us, values, positions)
        batch.run()
        return batch.alarms

    def states(self) -> list[bytes]:
        """Return the state of each series."""
        data = self._states.tobytes()
        return [data[at : at + MAX_STATE_BYTES] for at in range(0, len(data), MAX_STATE_BYTES)]


class _Batch:
    """The readings of one update. Series have other numbers here: the one with the most readings is 0."""

    def __init__(
        self,
        states: npt.NDArray[Any],
        lengths: Integers,
        times_us: Integers,
        values: Floats,
        positions: Integers,
    ) -> None:
        self.alarms: list[tuple[int, int, Alarm]] = []
        self._states = states
        self._series: Integers = np.argsort(-lengths, kind="stable")
        self._lengths = lengths[self._series]
        self._begins = (np.cumsum(lengths) - lengths)[self._series]
        self._times, self._values, self._positions = times_us, values, positions
        mine = states[self._series]
        self._counts: dict[str, Integers] = {name: mine[name].astype(np.int64) for name in _COUNTS}
        self._numbers: dict[str, Floats] = {name: mine[name].copy() for name in _NUMBERS}
        self._is_above: npt.NDArray[np.bool_] = mine["is_above"].copy()
        self._is_open: npt.NDArray[np.bool_] = mine["is_open"].copy()
        self._hours: Floats = mine["hours"].copy()
        self._days: Integers = mine["days"].astype(np.int64)
        rows, slots = np.arange(len(mine)), np.maximum(self._counts["slot"], 0)
        self._hour_known: npt.NDArray[np.bool_] = self._days[rows, slots] >= SLOT_DAYS
        self._hour_mean: Floats = self._hours[rows, slots]
        """Of the current hour, from earlier days: whether it is known, and the mean."""
        self._events: dict[int, AlarmEvent] = {}
        """By series, the events that may have changed."""

    def run(self) -> None:
        """Process all readings."""
        longest = int(self._lengths[0]) if len(self._lengths) else 0
        # How many series have a reading in each pass.
        series = len(self._lengths) - np.searchsorted(self._lengths[::-1], np.arange(longest), side="right")
        passes = int(np.count_nonzero(series >= FEW))
        for number in range(passes):
            self._pass(number, int(series[number]))
        self._store()
        for at in range(int(series[passes]) if passes < longest else 0):
            self._finish(at, passes)

    def _finish(self, at: int, first: int) -> None:
        """Process the readings of one series from its reading number `first` on."""
        series, begin = int(self._series[at]), int(self._begins[at])
        detector = Detector.from_bytes(self._states[series].tobytes())
        rows = slice(begin + first, begin + int(self._lengths[at]))
        readings = zip(*[one[rows].tolist() for one in (self._times, self._values, self._positions)], strict=True)
        for index, (time_us, value, position) in enumerate(readings, rows.start):
            alarm = detector.update(time_us, value, position)
            if alarm is not None:
                self.alarms.append((series, index, alarm))
        self._states[series] = np.frombuffer(detector.to_bytes(), self._states.dtype)[0]

    def _store(self) -> None:
        """Write the numbers back to the states."""
        mine = self._states[self._series]
        for name, values in {**self._counts, **self._numbers}.items():
            mine[name] = values
        mine["is_above"], mine["hours"], mine["days"] = self._is_above, self._hours, self._days
        for at, event in self._events.items():
            for name in (*_EVENT_HEAD, *_EVENT_NUMBERS):
                mine[name][at] = getattr(event, name)
        self._states[self._series] = mine

    def _pass(self, number: int, count: int) -> None:
        """Process the next reading of the first `count` series."""
        counts, numbers = self._counts, self._numbers
        index = self._begins[:count] + number
        times, values = self._times[index], self._values[index]
        readings, last_us = counts["readings"][:count], counts["last_us"][:count]
        readings += 1
        intervals = np.maximum(times - last_us, 0)
        if number == 0:
            is_first = readings == 1
            np.copyto(numbers["mean"][:count], values, where=is_first)
            intervals[is_first] = 0
        self._count_runs(count, values)
        expected = self._smooth(count, times, values, readings)
        jump, level = numbers["jump"][:count], numbers["level"][:count]
        jumps, levels = np.abs(jump), np.abs(level)
        least = np.maximum(LEAST_SCALE * np.abs(numbers["mean"][:count]), JUMP_RATE * numbers["step"][:count])
        np.maximum(least, 1e-12, out=least)
        may_deviate = (jumps > numbers["jumps_usual"][:count]) | (levels > numbers["levels_usual"][:count])
        may_deviate |= numbers["run"][:count] >= STUCK_RUN
        may_deviate |= intervals >= np.maximum(GAP_FACTOR * numbers["intervals_usual"][:count], LEAST_GAP_US)
        may_deviate &= readings > LEARNING
        may_deviate |= self._is_open[:count] & (readings - counts["active"][:count] >= PAUSE)
        for at in np.flatnonzero(may_deviate).tolist():
            self._examine(at, int(index[at]), float(expected[at]), float(least[at]), int(intervals[at]))
        self._remember(count, readings, jumps, levels, intervals, least)
        last_us[:] = times

    def _count_runs(self, count: int, values: Floats) -> None:
        numbers = self._numbers
        last, run, step = numbers["last"][:count], numbers["run"][:count], numbers["step"][:count]
        longest = numbers["longest_run"][:count]
        change = np.abs(values - last)
        has_run = run > 0
        is_same = has_run & (change == 0)
        is_other = has_run & ~is_same
        np.copyto(step, np.where(step == 0, change, np.minimum(step, change)), where=is_other)
        np.maximum(longest, run, out=longest, where=is_other)
        np.copyto(last, values, where=~is_same)
        run += 1
        np.copyto(run, 1.0, where=~is_same)

    def _smooth(self, count: int, times: Integers, values: Floats, readings: Integers) -> Floats:
        """Update means and smoothed distances. Return the values that are expected now."""
        counts, numbers = self._counts, self._numbers
        slots = times // SLOT_US % SLOTS
        changed = np.flatnonzero(slots != counts["slot"][:count])
        if len(changed):
            self._next_slots(changed, slots[changed])
        share = 1 / readings
        numbers["slot_sum"][:count] += values
        counts["slot_readings"][:count] += 1
        mean = numbers["mean"][:count]
        expected = mean.copy()
        from_mean = from_expected = values - expected
        mean += np.maximum(share, MEAN_RATE) * from_mean
        known = self._hour_known[:count]
        if known.any():
            of_hour = self._hour_mean[:count]
            from_hour = values - of_hour
            hour_error, mean_error = numbers["hour_error"][:count], numbers["mean_error"][:count]
            np.add(hour_error, ERROR_RATE * (np.abs(from_hour) - hour_error), out=hour_error, where=known)
            np.add(mean_error, ERROR_RATE * (np.abs(from_mean) - mean_error), out=mean_error, where=known)
            is_better = known & (hour_error < BETTER * mean_error)
            expected = np.where(is_better, of_hour, expected)
            from_expected = np.where(is_better, from_hour, from_mean)
        jump, level = numbers["jump"][:count], numbers["level"][:count]
        jump += np.maximum(share, JUMP_RATE) * (from_expected - jump)
        level += np.maximum(share, LEVEL_RATE) * (from_mean - level)
        above, crossings = self._is_above[:count], counts["crossings"][:count]
        is_above = level > 0
        crossings += is_above != above
        np.minimum(crossings, MOST_CROSSINGS, out=crossings)
        above[:] = is_above
        return expected

    def _next_slots(self, changed: Integers, slots: Integers) -> None:
        """Add the readings of an hour to the mean of this hour, and begin another one, for some series."""
        counts, numbers = self._counts, self._numbers
        ended = changed[counts["slot_readings"][changed] > 0]
        past = counts["slot"][ended]
        days, before = self._days[ended, past], self._hours[ended, past]
        mean = numbers["slot_sum"][ended] / counts["slot_readings"][ended]
        self._hours[ended, past] = before + np.maximum(SLOT_RATE, 1 / (days + 1)) * (mean - before)
        self._days[ended, past] = np.minimum(255, days + 1)
        counts["slot"][changed], counts["slot_readings"][changed], numbers["slot_sum"][changed] = slots, 0, 0.0
        self._hour_known[changed] = self._days[changed, slots] >= SLOT_DAYS
        self._hour_mean[changed] = self._hours[changed, slots]

    def _examine(self, at: int, index: int, expected: float, least: float, interval: int) -> None:
        """Update the event of a series with its current reading."""
        numbers = self._numbers
        time_us, value = int(self._times[index]), float(self._values[index])
        readings = int(self._counts["readings"][at])
        decades, reason = 0.0, 0
        if readings > LEARNING:
            decades, reason, expected = deviation_of(
                readings,
                expected,
                float(numbers["mean"][at]),
                float(numbers["jump"][at]),
                float(numbers["level"][at]),
                least,
                (float(numbers["jumps_usual"][at]), float(numbers["jumps_excess"][at])),
                (float(numbers["levels_usual"][at]), float(numbers["levels_excess"][at])),
                int(self._counts["crossings"][at]),
                (float(numbers["run"][at]), float(numbers["step"][at]), float(numbers["longest_run"][at])),
                interval,
                float(numbers["intervals_usual"][at]),
            )
        event = self._events.get(at)
        if event is None:
            event = self._events[at] = self._event(at)
        before_us, position = int(self._counts["last_us"][at]), int(self._positions[index])
        alarm = event.update(readings, time_us, value, expected, decades, reason, before_us, position)
        self._is_open[at], self._counts["active"][at] = event.is_open, event.active
        if alarm is not None:
            self.alarms.append((int(self._series[at]), index, alarm))

    def _event(self, at: int) -> AlarmEvent:
        event, state = AlarmEvent(), self._states[self._series[at]]
        for name in (*_EVENT_HEAD, *_EVENT_NUMBERS):
            setattr(event, name, state[name].item())
        return event

    def _remember(
        self, count: int, readings: Integers, jumps: Floats, levels: Floats, intervals: Integers, least: Floats
    ) -> None:
        for tail, deviations in zip(_TAILS, (jumps, levels, intervals), strict=True):
            largest = self._numbers[f"{tail}_largest"][:count]
            np.maximum(largest, deviations, out=largest)
        full = np.flatnonzero(readings % BLOCK == 0)
        if len(full):
            self._counts["blocks"][full] += 1
            blocks = self._counts["blocks"][full]
            for tail in _TAILS:
                self._learn(tail, full, blocks, np.ones(len(full)) if tail == "intervals" else least[full])
            self._numbers["longest_run"][full] *= RUN_FADES

    def _learn(self, tail: str, full: Integers, blocks: Integers, least: Floats) -> None:
        """Use the current blocks of some series, and begin the next ones."""
        usual, excess, largest = [self._numbers[f"{tail}_{name}"] for name in ("usual", "excess", "largest")]
        old_usual, old_excess = usual[full], excess[full]
        beyond = largest[full] - old_usual
        largest[full] = 0.0
        rare_blocks = RARE * np.minimum(blocks, MEMORY)
        step = np.minimum(1.0, TRACKING / (rare_blocks + 1))
        is_beyond, is_first = beyond > 0, blocks == 1
        larger = old_excess + (np.minimum(beyond, LARGEST_EXCESS * old_excess) - old_excess) / (rare_blocks + 2)
        new_excess = np.where(is_beyond, larger, old_excess)
        new_usual = np.where(is_beyond, old_usual + larger * step * (1 - RARE), old_usual - old_excess * step * RARE)
        usual[full] = np.where(is_first, beyond, new_usual)
        excess[full] = np.maximum(np.where(is_first, beyond / 2, new_excess), least)
