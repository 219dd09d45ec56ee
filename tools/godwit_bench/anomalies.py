"""How well the pipeline's detector finds labelled anomalies, next to a rolling rule of three standard deviations.

Both see the same rows. An alarm outside every labelled window is false. The rule raises one at each reading that is
over its limit; as the detector raises one for an excursion, the rule is shown with the same pause between alarms, too.

The motes have a label for each row, so there it is rows that are compared: those that the rule's limit calls anomalous,
for any of the mote's quantities, and those during which the detector is in an excursion.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import compress
from pathlib import Path
from typing import Final, NamedTuple

from godwit.pipeline.detector import PAUSE, Detector
from godwit_bench.anomalies_data import Mote, Series, read_motes, read_nab

RULE_READINGS: Final = 288
RULE_DEVIATIONS: Final = 3.0
METHODS: Final = ("detector", "rule", "rule_with_pause")


class Verdict(NamedTuple):
    """What a method says of each reading."""

    alarms: list[bool]
    anomalous: list[bool]


class Score(NamedTuple):
    """How a method did on one series, or on all motes."""

    readings: int
    hit: list[bool]
    """For each labelled window: was there an alarm in it?"""
    false_alarms: int
    false_readings: int
    """Those called anomalous that are not labelled so; of motes, rows of readings."""
    precision: float | None = None
    recall: float | None = None


class Comparison(NamedTuple):
    """How all of them did."""

    series: str
    scores: dict[str, Score]


def run(folder: Path, on_round: Callable[[str], None]) -> list[Comparison]:
    """On all series of the folder, the motes together as one."""
    found = []
    for series in read_nab(folder):
        on_round(series.name)
        verdicts = judged(series.times_us, series.values)
        scores = {method: _windows_score(series, verdict) for method, verdict in verdicts.items()}
        found.append(Comparison(series.name, scores))
    on_round("motes")
    found.append(Comparison("motes", _motes_scores(read_motes(folder))))
    return found


def judged(times_us: Sequence[int], values: Sequence[float]) -> dict[str, Verdict]:
    """By each method."""
    over = rule(values)
    return {
        "detector": detected(times_us, values),
        "rule": Verdict(over, over),
        "rule_with_pause": Verdict(with_pause(over), over),
    }


def detected(times_us: Sequence[int], values: Sequence[float]) -> Verdict:
    detector = Detector()
    verdict = Verdict([], [])
    for time_us, value in zip(times_us, values, strict=True):
        verdict.alarms.append(detector.update(time_us, value) is not None)
        verdict.anomalous.append(detector.is_anomalous)
    return verdict


def rule(values: Sequence[float]) -> list[bool]:
    """Which are farther from the mean of those before them than three of their deviations."""
    before: deque[float] = deque(maxlen=RULE_READINGS)
    found = []
    for value in values:
        if len(before) == RULE_READINGS:
            mean = math.fsum(before) / RULE_READINGS
            variance = math.fsum((one - mean) ** 2 for one in before) / RULE_READINGS
            found.append(abs(value - mean) > RULE_DEVIATIONS * math.sqrt(variance))
        else:
            found.append(False)
        before.append(value)
    return found


def with_pause(alarms: Sequence[bool]) -> list[bool]:
    """Without those that come within PAUSE readings of one that is kept."""
    found = []
    since = PAUSE
    for alarm in alarms:
        since += 1
        found.append(alarm and since >= PAUSE)
        if found[-1]:
            since = 0
    return found


def _windows_score(series: Series, verdict: Verdict) -> Score:
    def in_a_window(time_us: int) -> bool:
        return any(begin <= time_us <= end for begin, end in series.windows)

    alarms_us = list(compress(series.times_us, verdict.alarms))
    hit = [any(begin <= time_us <= end for time_us in alarms_us) for begin, end in series.windows]
    false_alarms = sum(not in_a_window(time_us) for time_us in alarms_us)
    false_readings = sum(not in_a_window(time_us) for time_us in compress(series.times_us, verdict.anomalous))
    return Score(len(series.values), hit, false_alarms, false_readings)


def _motes_scores(motes: Sequence[Mote]) -> dict[str, Score]:
    verdicts = [[judged(mote.times_us, values) for values in mote.quantities] for mote in motes]
    scores = {}
    for method in METHODS:
        hit: list[bool] = []
        readings = false_alarms = right = wrong = missed = 0
        for mote, of_mote in zip(motes, verdicts, strict=True):
            for verdict in of_mote:
                readings += len(verdict[method].alarms)
                false_alarms += sum(
                    alarm and not label for alarm, label in zip(verdict[method].alarms, mote.labels, strict=True)
                )
            alarms = [any(row) for row in zip(*(one[method].alarms for one in of_mote), strict=True)]
            anomalous = [any(row) for row in zip(*(one[method].anomalous for one in of_mote), strict=True)]
            hit += [any(alarms[begin:end]) for begin, end in runs(mote.labels)]
            pairs = list(zip(anomalous, mote.labels, strict=True))
            right += pairs.count((True, True))
            wrong += pairs.count((True, False))
            missed += pairs.count((False, True))
        scores[method] = Score(readings, hit, false_alarms, wrong, _share(right, wrong), _share(right, missed))
    return scores


def runs(labels: Sequence[bool]) -> list[tuple[int, int]]:
    """From and up to where labels are set without a break."""
    both_sides = zip([False, *labels], [*labels, False], strict=True)
    edges = [index for index, (before, after) in enumerate(both_sides) if before != after]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part + rest else 0.0
