"""Detects readings that deviate from the series they belong to: a detector for one series, with fixed parameters.

Four tests examine each reading. All of them learn from the series itself.

jump     The distance of the readings from the value that is expected now, smoothed over about three readings. The
         expected value is the mean of this hour on earlier days, if that has predicted the series clearly better than
         the mean of all readings, and else the mean of all readings.
level    The distance from the mean of all readings, smoothed over about ten readings.
stuck    The number of equal readings in a row, compared with the longest such run so far.
gap      The time since the previous reading, compared with the longest usual interval.

A deviation is expressed in decades: 10 ** -decades is the expected frequency of a block of BLOCK readings with such a
deviation. Two numbers per test describe the largest deviations of the blocks: a value that the share RARE of them
exceeds, and by how much they exceed it on average. Beyond it the frequency falls as in a generalised Pareto
distribution. A block with an anomaly changes both numbers a little, so a lasting change becomes normal.

    score = decades / (1 + decades)

The score of a reading is from 0 to 1. An event begins with a reading over the limit, and ends before the first PAUSE
readings in a row that are calm. It raises an alarm when it begins, when it becomes worse by the factor WORSE, and when
it has ended. Each event raises the limit of the following ones for a while: a series that often deviates must deviate
farther.

docs/ANOMALIES.md shows how the parameters were chosen, and how much they matter. The state has a fixed size. This
module runs on executors and uses the standard library only.
"""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

BLOCK: Final = 24
RARE: Final = 0.05
MEMORY: Final = 400
"""Blocks that the two numbers of a test remember: 33 days with a reading every five minutes."""
SHAPE: Final = 0.2
"""Of the generalised Pareto distribution: 0 falls exponentially; a larger one makes far deviations less surprising."""
LARGEST_EXCESS: Final = 8.0
"""A block counts at most as much as this multiple of the average excess."""
TRACKING: Final = 1.5
MEAN_RATE: Final = 1 / 3000
JUMP_RATE: Final = 0.3
LEVEL_RATE: Final = 0.1
SLOTS: Final = 24
"""Hours of the day."""
SLOT_US: Final = 3_600_000_000
SLOT_RATE: Final = 0.15
SLOT_DAYS: Final = 2
"""Days before the mean of an hour is used."""
ERROR_RATE: Final = 0.005
BETTER: Final = 0.8
"""The mean of the hour is used if its average error is below this share of the other one's."""
LEARNING: Final = 200
"""Readings before anything is reported."""
DOUBT: Final = 2
"""A series that has crossed its mean this often has half of its decades: how far it wanders is not known yet."""
STUCK_LEARNING: Final = 1000
STUCK_RUN: Final = 2 * BLOCK
STUCK_FACTOR: Final = 10.0
STUCK_DECADES: Final = 2.0
RUN_FADES: Final = 0.995
"""Factor by which the longest run of one value shrinks with each block."""
GAP_FACTOR: Final = 10.0
LEAST_GAP_US: Final = 60_000_000
"""A shorter interval is not a gap, however often readings come."""
LIMIT: Final = 1.3
CALM: Final = 0.9
"""A reading below this share of LIMIT is calm."""
STRONG: Final = 2.0
"""Decades from which the readings of an event are called anomalous: once in 2,400 readings."""
RELEASE: Final = 12
"""Weaker readings after which the series is not anomalous any more; the event may continue."""
PAUSE: Final = 4 * BLOCK
WORSE: Final = 2.0
HABIT: Final = 0.2
"""Decades that an event adds to the limit."""
HABIT_FADES: Final = 4000
"""Readings in which this addition falls to 37 %."""
LEAST_SCALE: Final = 3e-4
"""The smallest average excess, as a fraction of the mean."""
GREATEST: Final = 1e15
"""A value beyond it is ignored, and so is NaN."""

BEGIN: Final = "begin"
IS_WORSE: Final = "worse"
END: Final = "end"
REASONS: Final = ("jump up", "jump down", "high level", "low level", "stuck", "gap")

_STUCK: Final = 4
_GAP: Final = 5
_LEAST_DECADES: Final = -math.log10(RARE)
_SHAPE_DECADES: Final = 1 / (SHAPE * math.log(10))
MOST_CROSSINGS: Final = 1_000_000
_VERSION: Final = 2
_HEAD: Final = "<BQIIbI?qQQQ?Bqqqq"  # no struct.Struct: that cannot be sent to executors
_NUMBERS: Final = 6 + 3 * 3 + 6 + 4 + SLOTS
MAX_STATE_BYTES: Final = struct.calcsize(_HEAD) + 8 * _NUMBERS + SLOTS


def is_valid_state(state: bytes) -> bool:
    """Return whether a state is one of this version."""
    return len(state) == MAX_STATE_BYTES and state[0] == _VERSION


def score_of(decades: float) -> float:
    """Return the score for an expected frequency of 10 ** -decades per block."""
    return decades / (1 + decades)


class Alarm(NamedTuple):
    """A message about an event. The first three fields describe the reading that raised it."""

    time_us: int
    value: float
    expected: float
    score: float
    """Above 0 and below 1: at the begin of the reading, later the highest of the event."""
    reason: str
    """One of REASONS: at the begin of the reading, later that of the highest score."""
    state: str
    """BEGIN, IS_WORSE or END."""
    begin_us: int
    """When the event began: the time of the alarm with the state BEGIN; for a gap, of the reading before it."""
    begin_position: int
    """The position of the reading that began the event, as given to `update`."""
    begin_value: float
    begin_expected: float
    peak_us: int
    """The time of the highest score."""
    peak_value: float
    end_us: int | None
    """The time of the last reading of the event that was not calm; None until it has ended."""


def _tail_decades(deviation: float, usual: float, excess: float, least: float) -> float:
    """Return the decades of a deviation; 0 if it is not rare. `least` is the smallest excess."""
    beyond = deviation - usual
    if beyond <= 0:
        return 0.0
    scale = excess if excess > least else least
    return math.log(1 + SHAPE * beyond / scale) * _SHAPE_DECADES + _LEAST_DECADES


def _stuck_decades(readings: int, run: float, step: float, longest_run: float) -> float:
    if readings < STUCK_LEARNING or run < STUCK_RUN or not step:
        return 0.0  # a series that never changed is not stuck
    times = run / max(STUCK_RUN, STUCK_FACTOR * longest_run)
    return STUCK_DECADES * times if times >= 1 else 0.0


def _gap_decades(interval: int, usual: float) -> float:
    if usual <= 0 or interval < GAP_FACTOR * usual or interval < LEAST_GAP_US:
        return 0.0
    return math.log10(interval / usual) + _LEAST_DECADES


def deviation_of(
    readings: int,
    expected: float,
    mean: float,
    jump: float,
    level: float,
    least: float,
    jumps: tuple[float, float],
    levels: tuple[float, float],
    crossings: int,
    run: tuple[float, float, float],
    interval: int,
    usual_interval: float,
) -> tuple[float, int, float]:
    """Return the decades of a reading, the number of the reason, and the value that was expected.

    `jump` and `level` are signed; `jumps` and `levels` have the usual deviation and the excess; `run` has the current
    run of one value, the smallest change, and the longest run.
    """
    decades = _tail_decades(abs(jump), *jumps, least)
    reason = 0 if jump > 0 else 1
    of_level = _tail_decades(abs(level), *levels, least)
    if of_level > decades:
        decades, reason, expected = of_level, 2 if level > 0 else 3, mean
    decades *= crossings / (crossings + DOUBT)
    stuck, gap = _stuck_decades(readings, *run), _gap_decades(interval, usual_interval)
    if max(stuck, gap) > decades:
        decades, reason = max(stuck, gap), _STUCK if stuck >= gap else _GAP
    return decades, reason, expected


class _TailEstimate:
    """The largest deviations of blocks: how often a series deviates how far."""

    __slots__ = ("excess", "largest", "usual")

    def __init__(self) -> None:
        self.usual = 0.0
        """The share RARE of the blocks exceeds it."""
        self.excess = 0.0
        """By how much, on average."""
        self.largest = 0.0
        """The largest deviation of the current block."""

    def learn(self, blocks: int, least: float) -> None:
        """Use the current block, number `blocks` of the series, and begin the next one."""
        beyond, self.largest = self.largest - self.usual, 0.0
        if blocks == 1:
            self.usual, self.excess = beyond, max(beyond / 2, least)
            return
        rare_blocks = RARE * min(blocks, MEMORY)
        step = min(1.0, TRACKING / (rare_blocks + 1))
        if beyond > 0:
            self.excess += (min(beyond, LARGEST_EXCESS * self.excess) - self.excess) / (rare_blocks + 2)
            self.usual += self.excess * step * (1 - RARE)
        else:
            self.usual -= self.excess * step * RARE
        self.excess = max(self.excess, least)


class AlarmEvent:
    """The current or the last event of a series, and how many there were."""

    __slots__ = (
        "active", "active_us", "begin_expected", "begin_us", "begin_value", "habit", "habit_at", "is_open", "peak",
        "peak_us", "peak_value", "position", "reason", "reported", "strong",
    )  # fmt: skip

    def __init__(self) -> None:
        self.habit = 0.0
        """How many events there were, the older ones fading: at the reading `habit_at`."""
        self.habit_at = 0
        self.is_open = False
        """Whether there is an event that has not ended."""
        self.active = 0
        """The number of the event's last reading that was not calm."""
        self.strong = 0
        """The number of its last strong reading; 0 without one."""
        self.reported = 0.0
        """Decades of the last alarm."""
        self.peak = 0.0
        self.reason = 0
        self.begin_us = self.peak_us = self.active_us = self.position = 0
        self.begin_value = self.begin_expected = self.peak_value = 0.0

    def update(
        self,
        readings: int,
        time_us: int,
        value: float,
        expected: float,
        decades: float,
        reason: int,
        before_us: int,
        position: int,
    ) -> Alarm | None:
        """Process a reading, number `readings` of the series. Return an alarm if one is due.

        `before_us` is the time of the reading before it.
        """
        if decades >= CALM * LIMIT:
            begin_us = before_us if reason == _GAP else time_us
            return self._deviates(readings, time_us, value, expected, decades, reason, begin_us, position)
        if self.is_open and readings - self.active >= PAUSE:
            self.is_open = False
            return self._alarm(time_us, value, expected, END, self.active_us)
        return None

    def _deviates(
        self,
        readings: int,
        time_us: int,
        value: float,
        expected: float,
        decades: float,
        reason: int,
        begin_us: int,
        position: int,
    ) -> Alarm | None:
        """Process a reading that is not calm."""
        if not self.is_open:
            habit = self.habit * math.exp((self.habit_at - readings) / HABIT_FADES)
            if decades < LIMIT + HABIT * habit:
                return None
            self.habit, self.habit_at = habit + 1, readings
            self.is_open = True
            self.begin_us, self.position = begin_us, position
            self.begin_value, self.begin_expected = value, expected
            self.reported = self.peak = 0.0
            self.strong = 0
            state = BEGIN
        else:
            state = IS_WORSE
        self.active, self.active_us = readings, time_us
        if decades >= STRONG:
            self.strong = readings
        if decades > self.peak:
            self.peak, self.reason, self.peak_us, self.peak_value = decades, reason, time_us, value
        if decades < WORSE * self.reported:
            return None
        self.reported = decades
        return self._alarm(time_us, value, expected, state, None)

    def _alarm(self, time_us: int, value: float, expected: float, state: str, end_us: int | None) -> Alarm:
        return Alarm(
            time_us,
            value,
            expected,
            score_of(self.peak),
            REASONS[self.reason],
            state,
            self.begin_us,
            self.position,
            self.begin_value,
            self.begin_expected,
            self.peak_us,
            self.peak_value,
            end_us,
        )


class Detector:
    """The detector of one series. Readings should come in the order of their times; late ones are not sorted."""

    def __init__(self) -> None:
        self._readings = 0
        self._blocks = 0
        self._crossings = 0
        self._is_above = False
        self._mean = 0.0
        self._jump = 0.0
        self._level = 0.0
        """Smoothed distances from the expected value and from the mean."""
        self._jumps = _TailEstimate()
        self._levels = _TailEstimate()
        self._intervals = _TailEstimate()
        self._slot = -1
        self._slot_readings = 0
        self._slot_sum = 0.0
        self._hours = [0.0] * SLOTS
        """The mean of each hour of the day, over the days before."""
        self._days = bytearray(SLOTS)
        """Days that each of them knows, at most 255."""
        self._hour_error = 0.0
        self._mean_error = 0.0
        self._last_us = 0
        self._last = 0.0
        self._step = 0.0
        """The smallest change so far, an estimate of the sensor's resolution; 0 without a change."""
        self._run = 0.0
        self._longest_run = 0.0
        self._event = AlarmEvent()
        self._decades = 0.0
        """Of the last reading. Not part of the state."""

    @property
    def score(self) -> float:
        """The score of the last reading."""
        return score_of(self._decades)

    @property
    def is_anomalous(self) -> bool:
        """Whether one of the last RELEASE readings was strong and belongs to the current event."""
        return self._event.is_open and 0 <= self._readings - self._event.strong < RELEASE

    @property
    def event_score(self) -> float:
        """The highest score of the event so far if the series is anomalous, else 0."""
        return score_of(self._event.peak) if self.is_anomalous else 0.0

    def update(self, time_us: int, value: float, position: int = 0) -> Alarm | None:
        """Process the next reading. Return an alarm if one is due.

        `position` identifies the reading: alarms name that of the reading that began the event.
        """
        self._decades = 0.0
        if not abs(value) <= GREATEST:  # also true for NaN
            return None
        readings = self._readings = self._readings + 1
        if readings == 1:
            self._mean = value
        interval = time_us - self._last_us if readings > 1 and time_us > self._last_us else 0
        self._count_run(value)
        expected = self._smooth(time_us, value)
        jump, level = abs(self._jump), abs(self._level)
        least = max(LEAST_SCALE * abs(self._mean), JUMP_RATE * self._step, 1e-12)
        decades, reason = 0.0, 0
        if self._blocks and readings > LEARNING:
            jumps, levels = self._jumps, self._levels
            decades, reason, expected = deviation_of(
                readings,
                expected,
                self._mean,
                self._jump,
                self._level,
                least,
                (jumps.usual, jumps.excess),
                (levels.usual, levels.excess),
                self._crossings,
                (self._run, self._step, self._longest_run),
                interval,
                self._intervals.usual,
            )
        self._decades = decades
        self._remember(jump, level, interval, least)
        before_us, self._last_us = self._last_us, time_us
        return self._event.update(readings, time_us, value, expected, decades, reason, before_us, position)

    # -- memory -------------------------------------------------------------------------------------------------------

    def _smooth(self, time_us: int, value: float) -> float:
        """Update means and smoothed distances. Return the value that is expected now."""
        share = 1 / self._readings
        slot = time_us // SLOT_US % SLOTS
        if slot != self._slot:
            self._next_slot(slot)
        self._slot_sum += value
        self._slot_readings += 1
        expected = self._mean
        from_mean = from_expected = value - expected
        self._mean += (share if share > MEAN_RATE else MEAN_RATE) * from_mean
        if self._days[slot] >= SLOT_DAYS:
            from_hour = value - self._hours[slot]
            self._hour_error += ERROR_RATE * (abs(from_hour) - self._hour_error)
            self._mean_error += ERROR_RATE * (abs(from_mean) - self._mean_error)
            if self._hour_error < BETTER * self._mean_error:
                expected, from_expected = self._hours[slot], from_hour
        self._jump += (share if share > JUMP_RATE else JUMP_RATE) * (from_expected - self._jump)
        self._level += (share if share > LEVEL_RATE else LEVEL_RATE) * (from_mean - self._level)
        if (self._level > 0) != self._is_above:
            self._is_above = not self._is_above
            self._crossings = min(MOST_CROSSINGS, self._crossings + 1)
        return expected

    def _count_run(self, value: float) -> None:
        change = abs(value - self._last)
        if self._run and not change:
            self._run += 1
            return
        if self._run:
            self._step = min(self._step or change, change)
            self._longest_run = max(self._longest_run, self._run)
        self._last, self._run = value, 1.0

    def _next_slot(self, slot: int) -> None:
        """Add the readings of an hour to the mean of this hour, and begin another one."""
        if self._slot_readings:
            past, days = self._slot, self._days[self._slot]
            mean = self._slot_sum / self._slot_readings
            self._hours[past] += max(SLOT_RATE, 1 / (days + 1)) * (mean - self._hours[past])
            self._days[past] = min(255, days + 1)
        self._slot, self._slot_readings, self._slot_sum = slot, 0, 0.0

    def _remember(self, jump: float, level: float, interval: int, least: float) -> None:
        jumps, levels, intervals = self._jumps, self._levels, self._intervals
        if jump > jumps.largest:
            jumps.largest = jump
        if level > levels.largest:
            levels.largest = level
        if interval > intervals.largest:
            intervals.largest = float(interval)
        if self._readings % BLOCK:
            return
        self._blocks += 1
        jumps.learn(self._blocks, least)
        levels.learn(self._blocks, least)
        intervals.learn(self._blocks, 1.0)
        self._longest_run *= RUN_FADES

    # -- the state ----------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return the state: MAX_STATE_BYTES."""
        event = self._event
        head = struct.pack(
            _HEAD,
            _VERSION,
            self._readings,
            self._blocks,
            self._crossings,
            self._slot,
            self._slot_readings,
            self._is_above,
            self._last_us,
            event.habit_at,
            event.active,
            event.strong,
            event.is_open,
            event.reason,
            event.begin_us,
            event.peak_us,
            event.active_us,
            event.position,
        )
        tails = [n for one in self._tails() for n in (one.usual, one.excess, one.largest)]
        numbers = [
            *(self._mean, self._jump, self._level, self._slot_sum, self._hour_error, self._mean_error),
            *tails,
            *(self._last, self._step, self._run, self._longest_run, event.habit, event.reported),
            *(event.peak, event.begin_value, event.begin_expected, event.peak_value),
            *self._hours,
        ]
        return head + struct.pack(f"<{_NUMBERS}d", *numbers) + bytes(self._days)

    @classmethod
    def from_bytes(cls, state: bytes) -> Detector:
        """Restore a detector from the result of `to_bytes`. A state of another version is ignored: it learns again."""
        self = cls()
        event = self._event
        if not is_valid_state(state):
            return self
        (
            _,
            self._readings,
            self._blocks,
            self._crossings,
            self._slot,
            self._slot_readings,
            self._is_above,
            self._last_us,
            event.habit_at,
            event.active,
            event.strong,
            event.is_open,
            event.reason,
            event.begin_us,
            event.peak_us,
            event.active_us,
            event.position,
        ) = struct.unpack_from(_HEAD, state)
        numbers = struct.unpack_from(f"<{_NUMBERS}d", state, struct.calcsize(_HEAD))
        (self._mean, self._jump, self._level, self._slot_sum, self._hour_error, self._mean_error) = numbers[:6]
        for number, tail in enumerate(self._tails()):
            tail.usual, tail.excess, tail.largest = numbers[6 + 3 * number : 9 + 3 * number]
        (self._last, self._step, self._run, self._longest_run, event.habit, event.reported) = numbers[15:21]
        (event.peak, event.begin_value, event.begin_expected, event.peak_value) = numbers[21:25]
        self._hours = list(numbers[25:])
        self._days = bytearray(state[-SLOTS:])
        return self

    def _tails(self) -> tuple[_TailEstimate, _TailEstimate, _TailEstimate]:
        return self._jumps, self._levels, self._intervals
