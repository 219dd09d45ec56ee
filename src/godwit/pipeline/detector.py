"""Detects readings that deviate from the series they belong to: a detector for one series, with fixed parameters.

Three tests examine each reading. All of them learn from the series itself, count readings instead of seconds, and use
medians, quantiles and maxima of blocks, so that anomalies hardly change the values they expect.

level    Compares the median of the last RECENT readings with its values at the end of each of the last HISTORY blocks
         of BLOCK readings. The scale is the distance from the median of these values to their TAIL quantile, divided by
         the same distance in a normal distribution. Each side has its own scale: machines idle often and rarely
         overheat. The level is anomalous beyond LEVEL_LIMIT deviations for RECENT readings in a row. A steady drift
         remains below two deviations.
jump     Compares the distance of a reading from the median of the RECENT readings before it with the largest such
         distance in each block of the history. It is anomalous beyond JUMP_LIMIT times the 90 % quantile of these.
stuck    Counts repetitions of one value. It is anomalous after BLOCK repetitions, if that is also more than STUCK_LIMIT
         times the longest run before.

A test that exceeds its limit begins an excursion, during which the series is anomalous. The excursion ends after RECENT
calm readings in a row: level and run are within their limits, and no distance is as large as those that jumps are
compared with. An excursion raises one alarm, at least PAUSE readings after the previous alarm. A score that exceeds the
previous alarm's by the factor WORSE raises an alarm at any time. One event therefore raises one alarm, or a few.

The parameters were chosen on the series of `godwit bench anomalies`; docs/ANOMALIES.md shows how much they matter.

The size of the state is bounded. This module runs on executors and uses the standard library only.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

BLOCK: Final = 48
HISTORY: Final = 288
"""Blocks in the history: 48 days with a reading every five minutes."""
RECENT: Final = 12
JUMP_LEARNING: Final = 4
"""Blocks of history before jumps are detected."""
LEVEL_LEARNING: Final = 36
"""Blocks of history before levels and stuck sensors are detected."""
TAIL: Final = 0.1
TAIL_DEVIATIONS: Final = 1.2816
"""From the median of a normal distribution to its TAIL quantile."""
LEVEL_LIMIT: Final = 3.0
WIDEST: Final = 0.1
JUMP_LIMIT: Final = 5.0
JUMP_CALM: Final = 1.0
STUCK_LIMIT: Final = 10.0
RUN_FADES: Final = 0.99
"""Factor by which the longest run of one value shrinks with each block."""
WORSE: Final = 2.0
PAUSE: Final = 288
LEAST_SCALE: Final = 1e-3
"""The smallest scale, as a fraction of the expected value."""
GREATEST: Final = 1e15
"""A value beyond it is ignored, and so is NaN."""

_VERSION: Final = 1
_HEAD: Final = "<BBHBBH??B6d"  # no struct.Struct: that cannot be sent to executors


class Alarm(NamedTuple):
    """An anomalous reading that should be reported."""

    time_us: int
    value: float
    expected: float
    """The value that the test considers normal."""
    score: float
    """The deviation as a multiple of the test's limit: at least 1."""
    reason: str
    """low level, high level, jump down, jump up, or stuck."""


class _Finding(NamedTuple):
    """The result of one test for one reading."""

    score: float
    is_calm: bool
    expected: float
    reason: str


class Detector:
    """The detector of one series. Readings should come in the order of their times; late ones are not sorted."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._block_readings = 0
        """Readings in the current block."""
        self._block_move = 0.0
        """The largest distance from the recent median in the current block."""
        self._levels: deque[float] = deque(maxlen=HISTORY)
        self._moves: deque[float] = deque(maxlen=HISTORY)
        self._over_readings = 0
        """Consecutive readings with a level over the limit, counted up to RECENT."""
        self._last = 0.0
        self._step = 0.0
        """The smallest change so far, an estimate of the sensor's resolution; 0 without a change."""
        self._run = 0.0
        self._longest_run = 0.0
        self._is_anomalous = False
        self._is_reported = False
        """Whether an alarm was raised for the excursion."""
        self._calm_readings = 0
        self._since_alarm = PAUSE
        self._reported_score = 0.0
        self._learn()

    @property
    def is_anomalous(self) -> bool:
        """Whether the last reading belongs to an excursion, with or without an alarm."""
        return self._is_anomalous

    def update(self, time_us: int, value: float) -> Alarm | None:
        """Process the next reading. Return an alarm if one is due."""
        if not abs(value) <= GREATEST:  # also true for NaN
            return None
        before = _median(self._recent) if self._recent else value
        self._count_run(value)
        self._recent.append(value)
        findings = [self._jump(value, before), self._level(), self._stuck()]
        self._remember(abs(value - before))
        return self._next_alarm(time_us, value, findings)

    # -- the tests ----------------------------------------------------------------------------------------------------

    def _jump(self, value: float, before: float) -> _Finding:
        if len(self._moves) < JUMP_LEARNING:
            return _NOTHING
        times = abs(value - before) / self._at_least(self._usual_move, before)
        reason = "jump up" if value > before else "jump down"
        return _Finding(times / JUMP_LIMIT, times < JUMP_CALM, before, reason)

    def _level(self) -> _Finding:
        if len(self._levels) < LEVEL_LEARNING:
            return _NOTHING
        usual, level = self._usual_level, _median(self._recent)
        scale = self._scale_above if level > usual else self._scale_below
        deviations = abs(level - usual) / self._at_least(scale, usual)
        is_over = deviations >= LEVEL_LIMIT
        self._over_readings = min(RECENT, self._over_readings + 1) if is_over else 0
        score = deviations / LEVEL_LIMIT if self._over_readings == RECENT else 0.0
        return _Finding(score, not is_over, usual, "high level" if level > usual else "low level")

    def _stuck(self) -> _Finding:
        if len(self._levels) < LEVEL_LEARNING or not self._step:  # a series that never changed is not stuck
            return _NOTHING
        score = self._run / max(BLOCK, STUCK_LIMIT * self._longest_run)
        return _Finding(score, score < 1, self._usual_level, "stuck")

    def _at_least(self, scale: float, around: float) -> float:
        return max(scale, self._step, LEAST_SCALE * abs(around), 1e-9)

    # -- alarms ------------------------------------------------------------------------------------------------------

    def _next_alarm(self, time_us: int, value: float, findings: list[_Finding]) -> Alarm | None:
        worst = max(findings, key=lambda one: one.score)
        if worst.score >= 1 and not self._is_anomalous:
            self._is_anomalous, self._is_reported = True, False
        self._calm_readings = min(RECENT, self._calm_readings + 1) if all(one.is_calm for one in findings) else 0
        if self._calm_readings == RECENT:
            self._is_anomalous = False
        self._since_alarm = min(PAUSE, self._since_alarm + 1)
        is_due = not self._is_reported and self._since_alarm == PAUSE
        is_worse = worst.score >= WORSE * self._reported_score
        if worst.score < 1 or not (is_due or is_worse):
            return None
        self._is_reported, self._reported_score, self._since_alarm = True, worst.score, 0
        return Alarm(time_us, value, worst.expected, worst.score, worst.reason)

    # -- memory -------------------------------------------------------------------------------------------------------

    def _count_run(self, value: float) -> None:
        change = abs(value - self._last)
        if self._run and not change:
            self._run += 1
            return
        if self._run:
            self._step = min(self._step or change, change)
            self._longest_run = max(self._longest_run, self._run)
        self._last, self._run = value, 1.0

    def _remember(self, move: float) -> None:
        self._block_readings += 1
        self._block_move = max(self._block_move, move)
        if self._block_readings == BLOCK:
            self._levels.append(_median(self._recent))
            self._moves.append(self._block_move)
            self._block_readings, self._block_move = 0, 0.0
            self._longest_run *= RUN_FADES
            self._learn()

    def _learn(self) -> None:
        """Compute the normal values from all blocks."""
        levels, moves = sorted(self._levels), sorted(self._moves)
        self._usual_level = _quantile(levels, 0.5)
        self._scale_below = (self._usual_level - _quantile(levels, TAIL)) / TAIL_DEVIATIONS
        self._scale_above = (_quantile(levels, 1 - TAIL) - self._usual_level) / TAIL_DEVIATIONS
        self._usual_move = _quantile(moves, 1 - WIDEST)

    def to_bytes(self) -> bytes:
        """Return the state, at most MAX_STATE_BYTES."""
        head = struct.pack(
            _HEAD,
            _VERSION,
            len(self._recent),
            len(self._levels),
            self._block_readings,
            self._over_readings,
            self._since_alarm,
            self._is_anomalous,
            self._is_reported,
            self._calm_readings,
            self._block_move,
            self._last,
            self._step,
            self._run,
            self._longest_run,
            self._reported_score,
        )
        numbers = [*self._recent, *self._levels, *self._moves]
        return head + struct.pack(f"<{len(numbers)}d", *numbers)

    @classmethod
    def from_bytes(cls, state: bytes) -> Detector:
        """Restore a detector from the result of `to_bytes`. A state of another version is ignored: it learns again."""
        detector = cls()
        if state[0] != _VERSION:
            return detector
        (
            _,
            recents,
            blocks,
            detector._block_readings,
            detector._over_readings,
            detector._since_alarm,
            detector._is_anomalous,
            detector._is_reported,
            detector._calm_readings,
            detector._block_move,
            detector._last,
            detector._step,
            detector._run,
            detector._longest_run,
            detector._reported_score,
        ) = struct.unpack_from(_HEAD, state)
        numbers = iter(struct.unpack_from(f"<{recents + 2 * blocks}d", state, struct.calcsize(_HEAD)))
        detector._recent.extend(islice(numbers, recents))
        detector._levels.extend(islice(numbers, blocks))
        detector._moves.extend(numbers)
        detector._learn()
        return detector


_NOTHING: Final = _Finding(0.0, True, 0.0, "")
MAX_STATE_BYTES: Final = struct.calcsize(_HEAD) + 8 * (RECENT + 2 * HISTORY)


def _median(values: Iterable[float]) -> float:
    return _quantile(sorted(values), 0.5)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile by linear interpolation; 0 without values."""
    if not ordered:
        return 0.0
    position = share * (len(ordered) - 1)
    index = int(position)
    low, high = ordered[index], ordered[min(index + 1, len(ordered) - 1)]
    return low + (high - low) * (position - index)
