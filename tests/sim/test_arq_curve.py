"""The textbook's formulas at points that can be worked out by hand, and a quick measurement against them."""

from __future__ import annotations

import pytest

from godwit_sim.arq_curve import (
    FORMULAS,
    go_back_n_efficiency,
    measure_curve,
    selective_repeat_efficiency,
    stop_and_wait_efficiency,
)


def test_without_loss_only_the_window_matters() -> None:
    assert stop_and_wait_efficiency(0.0, 2.0) == pytest.approx(0.2)
    assert go_back_n_efficiency(0.0, 2.0, 5) == 1.0
    assert go_back_n_efficiency(0.0, 2.0, 3) == pytest.approx(0.6)
    assert selective_repeat_efficiency(0.0, 2.0, 5) == 1.0
    assert selective_repeat_efficiency(0.0, 2.0, 3) == pytest.approx(0.6)


def test_with_loss() -> None:
    assert stop_and_wait_efficiency(0.1, 2.0) == pytest.approx(0.18)
    assert go_back_n_efficiency(0.1, 2.0, 5) == pytest.approx(0.9 / 1.4)
    assert go_back_n_efficiency(0.1, 2.0, 3) == pytest.approx(3 * 0.9 / (5 * 1.2))
    assert selective_repeat_efficiency(0.1, 2.0, 7) == pytest.approx(0.9)


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1, 0.2])
def test_the_order_of_the_disciplines(loss: float) -> None:
    best, middle, worst = (FORMULAS[arq](loss) for arq in ("selective-repeat", "go-back-n", "stop-and-wait"))
    assert best >= middle > worst


def test_a_window_of_one_is_stop_and_wait() -> None:
    for loss in (0.0, 0.1, 0.3):
        assert go_back_n_efficiency(loss, 3.0, 1) == pytest.approx(stop_and_wait_efficiency(loss, 3.0))


def test_measured_points_lie_near_the_textbook() -> None:
    points = measure_curve(losses=(0.0, 0.05), seeds=(1,), share_of_bytes=0.2)
    assert [(point.arq, point.loss) for point in points] == [
        (arq, loss) for arq in ("selective-repeat", "go-back-n", "stop-and-wait") for loss in (0.0, 0.05)
    ]
    for point in points:
        assert 0.4 * point.textbook < point.measured < 1.1 * point.textbook, point
