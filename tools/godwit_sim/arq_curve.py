"""The efficiency of the three ARQ disciplines over the loss rate: measured in the simulator, and by the textbook.

Efficiency is the share of the line's time that carries data for the first time. The textbook's formulas assume: frames
of one length, lost independently with probability p; acknowledgements that take no time on the line and are never lost;
a sender that always has something to send; and a loss that is noticed exactly when the acknowledgement would have
arrived. `a` is the propagation time divided by the transmission time of one frame.
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
"""Bytes to send, enough for losses to average out."""


def stop_and_wait_efficiency(p: float, a: float) -> float:
    """Return the efficiency with one frame in flight: each of the 1 / (1 - p) attempts costs a frame and a round trip.

    The formula assumes that the timeout is exactly one round trip.
    """
    return (1.0 - p) / (1.0 + 2.0 * a)


def go_back_n_efficiency(p: float, a: float, window: int) -> float:
    """Return the efficiency when a loss costs all frames sent after it: 1 + 2a, or the window if that is smaller.

    The formula assumes that the receiver discards frames that are out of order, and that the sender goes back after
    exactly one round trip.
    """
    if window >= 1.0 + 2.0 * a:
        return (1.0 - p) / (1.0 + 2.0 * a * p)
    return window * (1.0 - p) / ((1.0 + 2.0 * a) * (1.0 - p + window * p))


def selective_repeat_efficiency(p: float, a: float, window: float) -> float:
    """Return the efficiency when a loss costs one more frame and the receiver stores frames that are out of order."""
    return (1.0 - p) * min(1.0, window / (1.0 + 2.0 * a))


FORMULAS: Mapping[Arq, Callable[[float], float]] = {
    "selective-repeat": lambda p: selective_repeat_efficiency(p, A, float("inf")),
    "go-back-n": lambda p: go_back_n_efficiency(p, A, WINDOW),
    "stop-and-wait": lambda p: stop_and_wait_efficiency(p, A),
}


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The efficiency of one discipline at one loss rate."""

    arq: Arq
    loss: float
    measured: float
    textbook: float


def measure_curve(
    losses: Sequence[float] = LOSSES, seeds: Sequence[int] = (1, 2, 3), share_of_bytes: float = 1.0
) -> list[CurvePoint]:
    """Measure all disciplines at all loss rates and return the means over the seeds.

    A smaller `share_of_bytes` is faster and noisier.
    """
    points = []
    for arq, formula in FORMULAS.items():
        total_bytes = int(SENT_BYTES[arq] * share_of_bytes)
        for loss in losses:
            measured = sum(measure(arq, loss, seed, total_bytes) for seed in seeds) / len(seeds)
            points.append(CurvePoint(arq, loss, measured, formula(loss)))
    return points


def measure(arq: Arq, loss: float, seed: int, total_bytes: int) -> float:
    """Return the efficiency of one transfer, measured from the delivery of its first fifth to its end.

    Raises RuntimeError if the transfer does not complete.
    """
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
