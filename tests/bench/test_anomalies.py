"""Labelled series from files, the comparison of detector and rule, and their report.

The series are computed by hand, and the real ones are used where they are available.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import GodwitError
from godwit.pipeline.detector import PAUSE
from godwit_bench import anomalies
from godwit_bench.anomalies import (
    METHODS,
    NAB,
    RULE_READINGS,
    Comparison,
    Mote,
    Score,
    Series,
    Window,
    figures,
    judged,
    precision_at_recall,
    print_comparisons,
    read_motes,
    read_nab,
    rule,
    run,
    runs,
    with_pause,
)

REAL = Path(__file__).parents[3] / "shared" / "data"


def at_us(hour: int) -> int:
    return int(datetime(2014, 1, 1, hour, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nab").mkdir()
    labelled = {
        f"realKnownCause/{name}": [["2014-01-01 01:00:00.000000", "2014-01-01 02:00:00.000000"]]
        for name in NAB.values()
    }
    (tmp_path / "nab" / "combined_windows.json").write_text(json.dumps(labelled))
    for name in NAB.values():
        (tmp_path / "nab" / name).write_text("timestamp,value\n2014-01-01 00:00:00,1.5\n2014-01-01 01:00:00,2\n")
    (tmp_path / "suthaharan_multihop").mkdir()
    motes = "reading,mote_id,indoor,humidity,temperature,label\n1,2,0,40,20,0\n1,1,0,41,21,0\n2,1,0,42,22,1\n"
    (tmp_path / "suthaharan_multihop" / "data.csv").write_text(motes)
    return tmp_path


def test_series_have_their_windows(folder: Path) -> None:
    found = read_nab(folder)
    assert [one.name for one in found] == list(NAB)
    assert found[0].times_us == [at_us(0), at_us(1)]
    assert found[0].values == [1.5, 2.0]
    assert found[0].windows == [Window(at_us(1), at_us(2))]


def test_motes_are_separated(folder: Path) -> None:
    one, two = read_motes(folder)
    assert (one.name, two.name) == ("mote 1", "mote 2")
    assert one.quantities == [[41.0, 42.0], [21.0, 22.0]]
    assert one.labels == [False, True]
    assert two.quantities == [[40.0], [20.0]]


def test_a_folder_without_data_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GodwitError, match="give the folder with nab and suthaharan_multihop as --data"):
        read_nab(tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real series are not beside the project, in ../shared/data")
def test_the_real_ones_are_whole() -> None:
    assert [(len(one.values), len(one.windows)) for one in read_nab(REAL)] == [(7267, 2), (22695, 4)]
    motes = read_motes(REAL)
    assert sum(len(mote.labels) for mote in motes) == 18_760
    assert sum(sum(mote.labels) for mote in motes) == 158


def wave(count: int) -> list[float]:
    """Mean 0, deviation 1."""
    return [1.0 if number % 2 else -1.0 for number in range(count)]


def test_the_rule_looks_at_the_readings_before() -> None:
    assert rule([*wave(RULE_READINGS), 3.0, 0.0]) == [False] * (RULE_READINGS + 2)
    assert rule([*wave(RULE_READINGS), 3.01, 0.0])[-2:] == [True, False]
    assert not any(rule([*wave(RULE_READINGS - 1), 100.0]))  # it has not seen enough


def test_a_pause_leaves_out_alarms_soon_after() -> None:
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
    verdict = judged(times, spiky)["detector"]
    outside = [*verdict.alarms[:490], *verdict.alarms[511:700], *verdict.alarms[711:]]
    assert (score.readings, score.hit, score.false_alarms) == (1000, [True, False], sum(outside))
    assert verdict.alarms[500]
    assert verdict.alarms[900]
    anomalous = [one > 0 for one in verdict.anomalous]
    assert anomalous[500]
    assert score.false_readings == sum(anomalous[:490]) + sum(anomalous[511:700]) + sum(anomalous[711:])
    by_row = of_motes.scores["detector"]
    assert (by_row.readings, by_row.hit) == (2000, [True])
    assert by_row.recall == 0.5
    assert by_row.precision_at_recall == 0
    assert of_motes.scores["rule"].recall == 0.5


def test_precision_at_a_recall() -> None:
    rows = [(0.9, True)] * 8 + [(0.8, True), (0.8, False)] + [(0.7, False)] * 5 + [(0.0, True)]
    assert precision_at_recall(rows) == 0.9
    assert precision_at_recall([*rows, (0.0, True)]) == 0


@pytest.mark.skipif(not REAL.is_dir(), reason="the real series are not beside the project, in ../shared/data")
def test_on_real_series_all_windows_are_hit_with_few_false_alarms() -> None:
    ambient, machine, motes = run(REAL, lambda _: None)
    for found in (ambient, machine, motes):
        detector, by_rule, pausing = found.scores.values()
        assert all(detector.hit), found
        assert detector.false_alarms < pausing.false_alarms < by_rule.false_alarms
        assert 1000 * detector.false_alarms / detector.readings < 1
    by_row, rows_by_rule = motes.scores["detector"], motes.scores["rule"]
    assert by_row.recall is not None
    assert by_row.precision_at_recall is not None
    assert by_row.recall > 0.95
    assert by_row.precision_at_recall > 0.7
    assert rows_by_rule.precision_at_recall == 0


def comparisons(*, hits: list[bool]) -> list[Comparison]:
    series = {"detector": Score(2000, hits, 1, 20), "rule": Score(2000, [True, True], 50, 50)}
    motes = {"detector": Score(4000, [True], 2, 30, 0.25, 0.99, 0.75), "rule": Score(4000, [True], 40, 60, 0.125, 0.5)}
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
    assert found["motes_detector_precision_at_recall_90"] == (0.75, "of rows")
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "false_alarms_vs_rule": 0.02,
        "false_alarms_vs_rule_with_pause": 0.1,
    }
