"""Draw docs/figures/tutorial.svg: the readings of the tutorial's simulated rooms, from a fixed seed.

python docs/figures/tutorial.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

from godwit.cli.house import SECOND_US, sensors

TARGET: Final = Path(__file__).with_name("tutorial.svg")
SEED, ROOMS, PER_SECOND, DURATION_S, FAULTS_PER_THOUSAND = 1, 5, 20, 120, 2


def draw(target: Path) -> None:
    """Draw the readings of all rooms over time, of each second the lowest and the highest."""
    mpl.rcParams["svg.hashsalt"] = "godwit"
    figure, axes = plt.subplots(figsize=(8, 3.6))
    faults = FAULTS_PER_THOUSAND / 1000
    step_us = SECOND_US // PER_SECOND
    for sensor in sensors(ROOMS, SEED, start_us=0, step_us=step_us, faults_per_reading=faults):
        points: list[tuple[float, float]] = []
        for _ in range(DURATION_S):
            readings = [one for one in (sensor.read() for _ in range(PER_SECOND)) if one is not None]
            ends = {one.celsius: one for one in readings}
            shown = {ends[found(ends)].time_us: ends[found(ends)] for found in (min, max) if ends}
            points += [(time_us / SECOND_US, one.celsius) for time_us, one in sorted(shown.items())]
        axes.plot(*zip(*points, strict=True), label=sensor.room, lw=1)
    axes.set(xlabel="seconds", ylabel="°C")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=ROOMS, fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(TARGET)
