"""The comparison of detector and rule: on series worked out by hand, and on the real ones where they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from godwit.pipeline.detector import PAUSE
from godwit_bench import anomalies
from godwit_bench.anomalies import RULE_READINGS, judged, rule, run, runs, with_pause
from godwit_bench.anomalies_data import Mote, Series, Window

REAL = Path(__file__).parents[3] / "shared" / "data"


def wave(count: int) -> list[float]:
    """Mean 0, deviation 1."""
    return [1.0 if number % 2 else -1.0 for number in range(count)]


def test_the_rule_looks_at_the_readings_before() -> None:
    assert rule([*wave(RULE_READINGS), 3.0, 0.0]) == [False] * (RULE_READINGS + 2)
    assert rule([*wave(RULE_READINGS), 3.01, 0.0])[-2:] == [True, False]
    assert not any(rule([*wave(RULE_READINGS - 1), 100.0]))  # it has not seen enough


def test_a_pause_leaves_out_what_comes_soon_after() -> None:
    alarms = [True, True, *[False] * (PAUSE - 3), True, True, True]
    assert with_pause(alarms) == [True, False, *[False] * (PAUSE - 3), False, True, False]


def test_runs_of_labels() -> None:
    assert runs([True, True, False, True]) == [(0, 2), (3, 4)]
    assert runs([False, False]) == []


def test_scores_of_a_series_and_of_motes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    calm = [rng.gauss(20, 0.5) for _ in range(1000)]
    spiky = list(calm)
    spiky[500] = spiky[900] = 60.0
    times = list(range(1000))
    series = Series("made up", times, spiky, [Window(490, 510), Window(700, 710)])
    mote = Mote("mote", times, [calm, spiky], [499 <= number <= 500 for number in times])
    monkeypatch.setattr(anomalies, "read_nab", lambda _: [series])
    monkeypatch.setattr(anomalies, "read_motes", lambda _: [mote])
    told: list[str] = []
    of_series, of_motes = run(Path(), told.append)
    assert told == ["made up", "motes"]
    score = of_series.scores["detector"]
    assert (score.readings, score.hit, score.false_alarms) == (1000, [True, False], 1)
    anomalous = judged(times, spiky)["detector"].anomalous
    assert anomalous[500]
    assert score.false_readings == sum(anomalous[511:]) == 12 + 1  # the second spike, and until it is calm again
    by_row = of_motes.scores["detector"]
    assert (by_row.readings, by_row.hit, by_row.false_alarms) == (2000, [True], 1)
    assert by_row.recall == 0.5
    assert by_row.precision == 1 / sum(anomalous)
    assert of_motes.scores["rule"].recall == 0.5


@pytest.mark.skipif(not REAL.is_dir(), reason="the real series are not beside the project, in ../shared/data")
def test_on_real_series_all_windows_are_hit_with_few_false_alarms() -> None:
    ambient, machine, motes = run(REAL, lambda _: None)
    for found in (ambient, machine, motes):
        detector, by_rule, pausing = found.scores.values()
        assert all(detector.hit), found
        assert detector.false_alarms < pausing.false_alarms < by_rule.false_alarms
        assert detector.false_readings < by_rule.false_readings
        assert 1000 * detector.false_alarms / detector.readings < 0.3
    by_row, rows_by_rule = motes.scores["detector"], motes.scores["rule"]
    assert by_row.precision is not None
    assert by_row.recall is not None
    assert rows_by_rule.precision is not None
    assert rows_by_rule.recall is not None
    assert by_row.precision > 2 * rows_by_rule.precision
    assert by_row.recall > 0.95 > rows_by_rule.recall
