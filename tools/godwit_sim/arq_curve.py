"""The efficiency of the three ARQ disciplines over the loss rate: measured in the simulator, and by the textbook.

Efficiency is the share of the line's time that carries data for the first time. The textbook's formulas rest on
these assumptions: frames of one length, lost independently with probability p; acknowledgements take no time on the
line and are never lost; the sender always has something to send; and a loss is noticed exactly when the
acknowledgement would have come. `a` is the propagation time over the time of one frame on the line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from godwit.impairment import HEADER_BYTES, LinkSettings
from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport.config import EndpointConfig
from godwit.wire.parameters import Arq
from godwit_sim.scenarios import Transfer, TransferPlan

LOSSES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2)
BANDWIDTH_BITS_PER_S = 10e6
DELAY_S = 0.005
DATAGRAM_BYTES = BASE_DATAGRAM_BYTES
"""Go-back-n and stop-and-wait cut all fragments for this size, so selective repeat is measured with it too."""
WINDOW = 15
FRAME_S = (DATAGRAM_BYTES + HEADER_BYTES) * 8.0 / BANDWIDTH_BITS_PER_S
A = DELAY_S / FRAME_S

SENT_BYTES: Mapping[Arq, int] = {"selective-repeat": 6_000_000, "go-back-n": 3_000_000, "stop-and-wait": 1_000_000}
"""Enough for losses to average out."""


def stop_and_wait_efficiency(p: float, a: float) -> float:
    """One frame under way at a time: a frame and a round trip for each try, 1 / (1 - p) tries for each frame.

    Assumes that the time-out is exactly one round trip.
    """
    return (1.0 - p) / (1.0 + 2.0 * a)


def go_back_n_efficiency(p: float, a: float, window: int) -> float:
    """A loss costs everything that was sent behind it: 1 + 2a frames, or the window if that is shorter.

    Assumes that the receiver keeps nothing out of order and that the sender goes back as soon as a round trip is over.
    """
    if window >= 1.0 + 2.0 * a:
        return (1.0 - p) / (1.0 + 2.0 * a * p)
    return window * (1.0 - p) / ((1.0 + 2.0 * a) * (1.0 - p + window * p))


def selective_repeat_efficiency(p: float, a: float, window: float) -> float:
    """A loss costs one frame more, nothing else. Assumes a receiver that keeps whatever arrives."""
    return (1.0 - p) * min(1.0, window / (1.0 + 2.0 * a))


FORMULAS: Mapping[Arq, Callable[[float], float]] = {
    "selective-repeat": lambda p: selective_repeat_efficiency(p, A, float("inf")),
    "go-back-n": lambda p: go_back_n_efficiency(p, A, WINDOW),
    "stop-and-wait": lambda p: stop_and_wait_efficiency(p, A),
}


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One discipline at one loss rate."""

    arq: Arq
    loss: float
    measured: float
    textbook: float


def measure_curve(
    losses: Sequence[float] = LOSSES, seeds: Sequence[int] = (1, 2, 3), share_of_bytes: float = 1.0
) -> list[CurvePoint]:
    """All disciplines at all loss rates, each the mean over the seeds. Smaller shares are quicker and noisier."""
    points = []
    for arq, formula in FORMULAS.items():
        total_bytes = int(SENT_BYTES[arq] * share_of_bytes)
        for loss in losses:
            measured = sum(measure(arq, loss, seed, total_bytes) for seed in seeds) / len(seeds)
            points.append(CurvePoint(arq, loss, measured, formula(loss)))
    return points


def measure(arq: Arq, loss: float, seed: int, total_bytes: int) -> float:
    """The efficiency of one transfer once it is under way: from its first fifth delivered to its end."""
    plan = TransferPlan(
        up=LinkSettings(delay_s=DELAY_S, bandwidth_bits_per_s=BANDWIDTH_BITS_PER_S, queue_packets=100, loss=loss),
        down=LinkSettings(delay_s=DELAY_S),
        each_bytes=total_bytes,
        client=EndpointConfig(arq=arq, arq_window=WINDOW, max_datagram_bytes=DATAGRAM_BYTES),
        until_s=3600.0,
    )
    result = Transfer(plan, seed).run()
    progress = result.transfers[0]
    if result.violation or progress.finished_s is None or progress.warm_s is None:
        raise RuntimeError(f"{arq} at loss {loss}, seed {seed}: {result.violation or 'the transfer did not complete'}")
    line_bytes = result.unique_line_bytes * (1 - progress.warm_bytes / total_bytes)
    return line_bytes * 8.0 / BANDWIDTH_BITS_PER_S / (progress.finished_s - progress.warm_s)
