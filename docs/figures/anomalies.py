"""Draw docs/figures/anomalies.svg: five made-up series, and the events that the detector reports in them.

The output is reproducible, byte for byte. It takes a few seconds:

    .venv/bin/python docs/figures/anomalies.py
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

from godwit.pipeline.detector import Detector

TARGET = Path(__file__).with_suffix(".svg")
DAY = 288
"""Readings of a day: one every five minutes."""
STEP_US = 300_000_000
DAYS = 21
SHOWN = 5
"""Days at the end that are drawn."""


class Example(NamedTuple):
    """A series: the number of each reading, which determines its time, and its value."""

    title: str
    numbers: Sequence[int]
    values: Sequence[float]


class Found(NamedTuple):
    """An event: days from its begin to its end, and how it was reported."""

    begin: float
    end: float
    reason: str
    score: float


def examples() -> list[Example]:
    """Return the series, each with one anomaly in the last days."""
    count = DAYS * DAY
    numbers = range(count)
    rng = random.Random(1)

    def daily(deviation: float = 0.4) -> list[float]:
        return [21 + 3 * math.sin(2 * math.pi * number / DAY) + rng.gauss(0, deviation) for number in numbers]

    def at(days: float) -> int:
        return int(days * DAY)

    without_peak = daily()
    for number in range(at(18), at(18.5)):
        without_peak[number] = min(without_peak[number], 21 + rng.gauss(0, 0.4))
    shifted = [20 + rng.gauss(0, 0.5) + (1.5 if number >= at(18) else 0) for number in numbers]
    spiky = daily()
    spiky[at(18.6)] += 9
    stuck = daily()
    stuck[at(18) : at(18.7)] = [stuck[at(18)]] * (at(18.7) - at(18))
    gap = [number for number in numbers if not at(17.9) <= number < at(18.4)]
    with_gap = daily()
    return [
        Example("a day without its peak: no value is unusual, but the time of day is", numbers, without_peak),
        Example("a level shift: an event, then the new level is normal", numbers, shifted),
        Example("a single reading", numbers, spiky),
        Example("a stuck sensor", numbers, stuck),
        Example("a gap", gap, [with_gap[number] for number in gap]),
    ]


def events(example: Example) -> list[Found]:
    """Return the events in the part that is drawn."""
    detector = Detector()
    found: dict[int, Found] = {}
    for number, value in zip(example.numbers, example.values, strict=True):
        alarm = detector.update(number * STEP_US, value, number)
        if alarm is not None:
            begin = alarm.begin_us / STEP_US / DAY
            until = alarm.end_us if alarm.end_us is not None else alarm.time_us
            found[alarm.begin_position] = Found(begin, until / STEP_US / DAY, alarm.reason, alarm.score)
    return [one for one in found.values() if one.begin >= DAYS - SHOWN]


def draw() -> None:
    """Write the figure."""
    mpl.rcParams.update(
        {"svg.hashsalt": "godwit", "font.size": 9, "svg.fonttype": "none", "path.simplify_threshold": 0.5}
    )
    shown = examples()
    figure, panels = plt.subplots(len(shown), 1, figsize=(8, 9), sharex=True, constrained_layout=True)
    for axes, example in zip(panels, shown, strict=True):
        days = [number / DAY for number in example.numbers]
        first = next(index for index, day in enumerate(days) if day >= DAYS - SHOWN)
        line = list(zip(days[first:], example.values[first:], strict=True))
        for before, after in pairwise(range(first, len(days))):
            if example.numbers[after] > example.numbers[before] + 1:
                line.insert(after - first, (days[after], math.nan))
        axes.plot(*zip(*line, strict=True), linewidth=0.6, color="#0072b2")
        for one in events(example):
            axes.axvspan(one.begin, max(one.end, one.begin + 0.02), color="#d55e00", alpha=0.35, linewidth=0)
            axes.annotate(
                f"{one.reason}, {one.score:.2f}",
                (one.begin, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(2, -9),
                textcoords="offset points",
                fontsize=7.5,
            )
        axes.set_title(example.title, loc="left", fontsize=9)
        axes.margins(x=0)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.25 * (high - low))
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[-1].set_xlabel("day")
    figure.savefig(TARGET, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw()
