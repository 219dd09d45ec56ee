"""The marks on an axis."""

from __future__ import annotations

import pytest

from godwit.pipeline.report.svg import ticks


@pytest.mark.parametrize(
    ("least", "greatest", "wanted"),
    [
        (0.0, 10.0, [0, 5, 10]),
        (19.2, 22.9, [19, 20, 21, 22, 23]),
        (5.0, 5.0, None),
        (0.0, 0.0, None),
        (-1e15, 1e15, None),
    ],
)
def test_ticks_are_round_and_hold_all(least: float, greatest: float, wanted: list[float] | None) -> None:
    found = ticks(least, greatest)
    assert found[0] <= least
    assert found[-1] >= greatest
    assert 2 <= len(found) <= 7
    assert wanted is None or found == pytest.approx(wanted)
