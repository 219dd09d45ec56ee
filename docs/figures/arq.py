"""Draw docs/figures/arq.svg: the efficiency of the three ARQ disciplines over the loss rate.

Points are measured in the simulator, lines are textbook formulas; both come from godwit_sim.arq_curve. The output
is reproducible, byte for byte. It takes about two minutes:

    .venv/bin/python docs/figures/arq.py
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from godwit.wire.parameters import Arq
from godwit_sim.arq_curve import (
    BANDWIDTH_BITS_PER_S,
    DATAGRAM_BYTES,
    DELAY_S,
    FORMULAS,
    LOSSES,
    SENT_BYTES,
    WINDOW,
    measure,
)

SEEDS = (1, 2, 3, 4, 5)
TARGET = Path(__file__).with_suffix(".svg")
STEPS = 200
COLOURS: dict[Arq, tuple[str, str]] = {
    "selective-repeat": ("#0072b2", "o"),
    "go-back-n": ("#d55e00", "s"),
    "stop-and-wait": ("#009e73", "^"),
}
"""Colours that colour-blind readers can distinguish, and a marker for prints in grey."""


def loses_a_window(p: float) -> float:
    """Return the efficiency of go-back-n if a loss costs the whole window.

    The window exceeds the capacity of the line, and the excess packets are in its queue.
    """
    return (1.0 - p) / (1.0 - p + WINDOW * p)


def draw(axes: Axes) -> None:
    rates = [max(LOSSES) * step / STEPS for step in range(STEPS + 1)]
    for arq, formula in FORMULAS.items():
        colour, marker = COLOURS[arq]
        axes.plot(rates, [formula(p) for p in rates], color=colour, linewidth=1.2, label=f"{arq}, textbook")
        means, below, above = [], [], []
        for loss in LOSSES:
            print(f"{arq} at {loss:.1%}", file=sys.stderr)
            values = [measure(arq, loss, seed, SENT_BYTES[arq]) for seed in SEEDS]
            mean = statistics.fmean(values)
            means.append(mean)
            below.append(max(mean - min(values), 0.0))  # equal values may differ from their mean by a rounding error
            above.append(max(max(values) - mean, 0.0))
            print(f"{arq:17} loss {loss:5.1%}  measured {mean:.3f} (-{below[-1]:.3f} +{above[-1]:.3f})", end="")
            print(f"  textbook {formula(loss):.3f}")
        axes.errorbar(
            LOSSES, means, yerr=(below, above), color=colour, marker=marker, markersize=5, linestyle="none",
            capsize=3, elinewidth=1.0, label=f"{arq}, measured",
        )  # fmt: skip
        if arq == "go-back-n":
            label = f"go-back-n, if a loss costs the window of {WINDOW}"
            axes.plot(
                rates, [loses_a_window(p) for p in rates], color=colour, linewidth=1.0, linestyle=":", label=label
            )


def main() -> None:
    # Text as text: it can be searched, and does not depend on the fonts of the machine that draws it.
    plt.rcParams.update({"svg.hashsalt": "godwit", "svg.fonttype": "none", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(8.0, 5.2), layout="constrained")
    draw(axes)
    link = f"{BANDWIDTH_BITS_PER_S / 1e6:g} Mbit/s, {DELAY_S * 1e3:g} ms each way, datagrams of {DATAGRAM_BYTES} bytes"
    axes.set_title(f"Efficiency of the three disciplines: {link},\ngo-back-n with a window of {WINDOW}", fontsize=11)
    axes.set_xlabel("datagrams lost on the way to the receiver, each on its own (%)")
    axes.set_ylabel("line time that carries data for the first time (%)")
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=""))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, symbol=""))
    axes.set_xlim(-0.004, max(LOSSES) + 0.004)
    axes.set_ylim(0.0, 1.05)
    axes.set_xticks([0.0, 0.05, 0.1, 0.15, 0.2])
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(
        title=f"points: the mean of {len(SEEDS)} runs, bars from the least to the most; lines: formulas",
        title_fontsize=8, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False,
    )  # fmt: skip
    figure.savefig(TARGET, metadata={"Date": None, "Creator": None})
    print(f"wrote {TARGET}", file=sys.stderr)


if __name__ == "__main__":
    main()
