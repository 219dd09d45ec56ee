"""The outcome for people and for programs."""

from __future__ import annotations

from typing import Any

import pytest

from godwit_bench.anomalies import METHODS, Comparison, Score
from godwit_bench.anomalies_report import figures, print_comparisons


def comparisons(*, hits: list[bool]) -> list[Comparison]:
    series = {"detector": Score(2000, hits, 1, 20), "rule": Score(2000, [True, True], 50, 50)}
    motes = {"detector": Score(4000, [True], 2, 30, 0.25, 0.99), "rule": Score(4000, [True], 40, 60, 0.125, 0.5)}
    return [
        Comparison(name, scores | {METHODS[2]: scores["rule"]._replace(false_alarms=10)})
        for name, scores in (("made up", series), ("motes", motes))
    ]


def test_a_table_names_the_windows_that_are_not_hit(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparisons(comparisons(hits=[True, False]))
    text = capsys.readouterr().out
    assert "The detector does not hit window 2 of made up." in text
    assert [word in text for word in ("1 of 2", "0.50", "25.00", "10.00", "0.25", "0.99")] == [True] * 6
    print_comparisons(comparisons(hits=[True, True]))
    assert "The detector hits all windows." in capsys.readouterr().out


def test_figures_for_programs() -> None:
    report = figures(comparisons(hits=[True, False]))
    found: dict[str, Any] = {result.name: (result.value, result.unit) for result in report.results}
    assert found["made_up_detector_windows_hit"] == (1, "of 2")
    assert found["made_up_rule_false_alarms"] == (25.0, "per 1,000 readings")
    assert found["motes_detector_recall"] == (0.99, "of rows")
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "false_alarms_vs_rule": 0.02,
        "false_alarms_vs_rule_with_pause": 0.1,
    }
