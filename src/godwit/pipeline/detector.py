"""Finds readings that are unlike the series they belong to: a detector for one series, with one set of parameters.

Three tests look at each reading. All of them learn from the series itself, count readings and not seconds, and are
built on medians, quantiles and maxima of blocks, so that the anomalies they see hardly change what they expect.

level    The median of the last RECENT readings, against what it was at the end of each of the last HISTORY blocks of
         BLOCK readings. The scale is the distance from the median of these to their TAIL quantile, for each side by
         itself, divided by what it is for a normal distribution: machines idle often and overheat seldom, so the sides
         differ. Beyond LEVEL_LIMIT of these deviations for RECENT readings in a row it is anomalous. A steady drift
         never is: it stays below two of them.
jump     How far a reading is from the median of the RECENT ones before it, against the farthest in each block of the
         history. Beyond JUMP_LIMIT times what all but the widest tenth of the blocks have it is anomalous.
stuck    The same value again and again, more than STUCK_LIMIT times as often as ever before, and BLOCK times.

A test that is over its limit begins an excursion. It ends after RECENT calm readings in a row: no level and no run over
the limit, and no move as wide as those that jumps are compared with. Until then the series is anomalous. An alarm is
raised for an excursion once, but not within PAUSE readings of the last one. What is worse than the last alarm by the
factor WORSE raises one at any time. So one event gives one alarm, or a few.

The numbers were chosen on the series that `godwit bench anomalies` shows; docs/ANOMALIES.md tells how much they matter.

The state has a greatest size. Runs on executors: standard library only.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

BLOCK: Final = 48
HISTORY: Final = 288
"""Blocks that are remembered: 48 days of a reading every five minutes."""
RECENT: Final = 12
JUMP_LEARNING: Final = 4
"""Blocks that must be known before a jump is told ..."""
LEVEL_LEARNING: Final = 36
"""... and before a level is, or that a sensor is stuck: it takes longer to know these."""
TAIL: Final = 0.1
TAIL_DEVIATIONS: Final = 1.2816
"""From the median of a normal distribution to its TAIL quantile."""
LEVEL_LIMIT: Final = 3.0
WIDEST: Final = 0.1
JUMP_LIMIT: Final = 5.0
JUMP_CALM: Final = 1.0
STUCK_LIMIT: Final = 10.0
RUN_FADES: Final = 0.99
"""What is left, a block later, of the longest run of one value."""
WORSE: Final = 2.0
PAUSE: Final = 288
LEAST_SCALE: Final = 1e-3
"""Of the value expected: a smaller scale is taken for this one, however still the series was."""
GREATEST: Final = 1e15
"""A value beyond it is not looked at, nor one that is no number."""

_VERSION: Final = 1
_HEAD: Final = "<BBHBBH??B6d"  # no struct.Struct: that cannot be sent to executors


class Alarm(NamedTuple):
    """A reading that somebody should know about."""

    time_us: int
    value: float
    expected: float
    """What the test takes for usual."""
    score: float
    """How far from it, as a multiple of the test's limit: at least 1."""
    reason: str
    """low level, high level, jump down, jump up, or stuck."""


class _Finding(NamedTuple):
    """What a test says of a reading."""

    score: float
    is_calm: bool
    expected: float
    reason: str


class Detector:
    """The memory of one series, whose readings come in the order of their times; what is late is taken as it comes."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._block_readings = 0
        """In the block that is not full yet ..."""
        self._block_move = 0.0
        """... and the widest move among them."""
        self._levels: deque[float] = deque(maxlen=HISTORY)
        self._moves: deque[float] = deque(maxlen=HISTORY)
        self._over_readings = 0
        """So many in a row had a level over the limit, counted up to RECENT."""
        self._last = 0.0
        self._step = 0.0
        """The smallest change there was, as the sensor shows no smaller one; 0: none yet."""
        self._run = 0.0
        self._longest_run = 0.0
        self._is_anomalous = False
        self._is_told = False
        """Whether an alarm was raised for the excursion."""
        self._calm_readings = 0
        self._since_alarm = PAUSE
        self._told_score = 0.0
        self._learn()

    @property
    def is_anomalous(self) -> bool:
        """Whether the last reading belongs to an excursion, one that raised an alarm or not."""
        return self._is_anomalous

    def update(self, time_us: int, value: float) -> Alarm | None:
        """Takes the next reading in. An alarm, if it is one."""
        if not abs(value) <= GREATEST:  # so written that it holds for NaN
            return None
        before = _median(self._recent) if self._recent else value
        self._count_run(value)
        self._recent.append(value)
        findings = [self._jump(value, before), self._level(), self._stuck()]
        self._remember(abs(value - before))
        return self._judged(time_us, value, findings)

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
        if len(self._levels) < LEVEL_LEARNING or not self._step:  # what never moved is not stuck
            return _NOTHING
        score = self._run / max(BLOCK, STUCK_LIMIT * self._longest_run)
        return _Finding(score, score < 1, self._usual_level, "stuck")

    def _at_least(self, scale: float, around: float) -> float:
        return max(scale, self._step, LEAST_SCALE * abs(around), 1e-9)

    # -- what comes of them -------------------------------------------------------------------------------------------

    def _judged(self, time_us: int, value: float, findings: list[_Finding]) -> Alarm | None:
        worst = max(findings, key=lambda one: one.score)
        if worst.score >= 1 and not self._is_anomalous:
            self._is_anomalous, self._is_told = True, False
        self._calm_readings = min(RECENT, self._calm_readings + 1) if all(one.is_calm for one in findings) else 0
        if self._calm_readings == RECENT:
            self._is_anomalous = False
        self._since_alarm = min(PAUSE, self._since_alarm + 1)
        is_due = not self._is_told and self._since_alarm == PAUSE
        is_worse = worst.score >= WORSE * self._told_score
        if worst.score < 1 or not (is_due or is_worse):
            return None
        self._is_told, self._told_score, self._since_alarm = True, worst.score, 0
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
        """What is usual, from all blocks."""
        levels, moves = sorted(self._levels), sorted(self._moves)
        self._usual_level = _quantile(levels, 0.5)
        self._scale_below = (self._usual_level - _quantile(levels, TAIL)) / TAIL_DEVIATIONS
        self._scale_above = (_quantile(levels, 1 - TAIL) - self._usual_level) / TAIL_DEVIATIONS
        self._usual_move = _quantile(moves, 1 - WIDEST)

    def to_bytes(self) -> bytes:
        """All of it, to go on with elsewhere: at most MAX_STATE_BYTES."""
        head = struct.pack(
            _HEAD,
            _VERSION,
            len(self._recent),
            len(self._levels),
            self._block_readings,
            self._over_readings,
            self._since_alarm,
            self._is_anomalous,
            self._is_told,
            self._calm_readings,
            self._block_move,
            self._last,
            self._step,
            self._run,
            self._longest_run,
            self._told_score,
        )
        numbers = [*self._recent, *self._levels, *self._moves]
        return head + struct.pack(f"<{len(numbers)}d", *numbers)

    @classmethod
    def from_bytes(cls, state: bytes) -> Detector:
        """What to_bytes gave. A state of another version is not used: the series is learned anew."""
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
            detector._is_told,
            detector._calm_readings,
            detector._block_move,
            detector._last,
            detector._step,
            detector._run,
            detector._longest_run,
            detector._told_score,
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
    """Between the two values nearest to it, in proportion; 0 of none."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    index = int(place)
    low, high = ordered[index], ordered[min(index + 1, len(ordered) - 1)]
    return low + (high - low) * (place - index)
