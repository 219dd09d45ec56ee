"""The benchmark NAB: reading a checkout, scoring with a scorer from it, held-out families, and the report.

The checkout is a small imitation, with a scorer that counts. The real one is used if GODWIT_NAB names its folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit.pipeline import detector as detectors
from godwit_bench import nab
from godwit_bench.nab import NabResult, SeriesScore, Setting, fetch, figures, held_out, print_series, read_corpus, run

SCORER = """
from collections import namedtuple
Row = namedtuple("Row", "threshold score")

class Sweeper:
    def __init__(self, probationPercent, costMatrix):
        self.costs = costMatrix

    def calcSweepScore(self, times, scores, windows, name):
        return [(score, any(a <= t <= b for a, b in windows)) for t, score in zip(times, scores)]

    def calcScoreByThreshold(self, rows):
        limits = sorted({score for score, _ in rows} | {1.1}, reverse=True)
        return [Row(limit, self.total(rows, limit)) for limit in limits]

    def total(self, rows, limit):
        found = [inside for score, inside in rows if score >= limit]
        return (1.0 if any(found) else -1.0) - self.costs["fpWeight"] * found.count(False)

    def scoreDataSet(self, times, scores, windows, name, threshold):
        rows = self.calcSweepScore(times, scores, windows, name)
        return None, Row(threshold, self.total(rows, threshold))
"""
BEGIN = datetime(2014, 1, 1)
SPIKE = 700


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = random.Random(1)
    values = [rng.gauss(20, 0.5) for _ in range(1000)]
    values[SPIKE] = 80.0
    times = [BEGIN + timedelta(minutes=5) * number for number in range(1000)]
    files = {
        "nab/sweeper.py": SCORER,
        "config/profiles.json": json.dumps(
            {"standard": {"CostMatrix": {"tpWeight": 1.0, "fnWeight": 1.0, "fpWeight": 0.11}}}
        ),
        "labels/combined_windows.json": json.dumps(
            {"family/one.csv": [[f"{times[SPIKE - 10]}.000000", f"{times[SPIKE + 10]}.000000"]]}
        ),
        "data/family/one.csv": "timestamp,value\n"
        + "".join(f"{at},{value}\n" for at, value in zip(times, values, strict=True)),
        "results/ARTime/ARTime_standard_scores.csv": "Detector,Profile,File,Score\nARTime,standard,family/one.csv,0.5\n"
        "Totals,,,0.5\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_checkout_is_read_and_scored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds: list[str] = []
    result = run(folder, rounds.append)
    assert rounds == ["fetching NAB", "family/one.csv"]
    (one,) = result.series
    assert (one.name, one.readings, one.windows, one.hit, one.published) == (
        "family/one.csv",
        1000,
        1,
        1,
        {"ARTime": 0.5},
    )
    assert result.standard() == result.profiles["standard"] == 100
    assert result.standard(detector="ARTime") == 75
    found = {one.name: one.value for one in figures(result).results}
    assert found["nab_standard_all"] == found["nab_standard_untuned"] == 100
    assert found["false_per_1000"] == one.false_alarms
    assert [ratio.name for ratio in figures(result).ratios] == ["nab_standard_vs_artime"]
    print_series(result)
    assert "family/one.csv" in capsys.readouterr().out


def test_a_folder_that_is_not_a_checkout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    with pytest.raises(GodwitError, match=r"is not a checkout of NAB, it has no nab/sweeper\.py: clone https"):
        fetch(tmp_path)


def test_a_missing_checkout_is_cloned_or_the_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nab, "ADDRESS", str(tmp_path / "nowhere"))
    with pytest.raises(GodwitError, match="NAB cannot be cloned to"):
        fetch(tmp_path / "new")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(GodwitError, match="git is not installed"):
        fetch(tmp_path / "new")


def test_a_checkout_without_labels_is_an_error(folder: Path) -> None:
    (folder / "labels" / "combined_windows.json").unlink()
    with pytest.raises(GodwitError, match=r"combined_windows\.json is not readable"):
        read_corpus(folder)


def setting(name: str, **scores: float) -> Setting:
    series = [SeriesScore(f"{family}/x.csv", 1000, 1, score, 1, 2, {}) for family, score in scores.items()]
    return Setting(name, 1.0, NabResult(series, 0.5, {}, 0.1))


def test_a_held_out_family_has_the_setting_that_is_best_on_the_others() -> None:
    settings = [setting("ONE", a=1.0, b=0.0, c=0.2), setting("TWO", a=-1.0, b=0.8, c=0.3)]
    score, false, chosen = held_out(settings)
    assert {family: one.parameter for family, one in chosen.items()} == {"a": "TWO", "b": "ONE", "c": "ONE"}
    assert score == pytest.approx(100 * (-1.0 + 0.0 + 0.2 + 3) / 6)
    assert false == 2


def test_other_parameters_are_used_and_taken_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nab, "ALTERNATIVES", {"LIMIT": (1e9,)})
    before = detectors.LIMIT
    chosen, never = nab.run_settings(folder, lambda _: None)
    assert before == detectors.LIMIT
    assert (chosen.result.standard(), never.result.standard()) == (100, 0)
    assert {one.name for one in nab.held_out_results([chosen, never])} >= {"nab_standard_held_out"}


@pytest.mark.skipif("GODWIT_NAB" not in os.environ, reason="GODWIT_NAB names no checkout of NAB")
def test_the_score_of_the_real_one() -> None:
    result = run(Path(os.environ["GODWIT_NAB"]), lambda _: None)
    assert len(result.series) == 58
    assert result.standard(detector="ARTime") == pytest.approx(74.9, abs=0.1)
    assert result.standard() > 68
    assert result.standard(nab.is_untuned) > 68
    assert result.false_per_1000 < 0.6
