"""`godwit bench anomalies --nab DIR`: the pipeline's detector on all series of the Numenta Anomaly Benchmark.

DIR is a checkout of https://github.com/numenta/NAB; it is cloned if the folder does not exist. Data, labels and the
scorer are those of the checkout. NAB's scorer chooses one threshold for all series, by the profile `standard`: a
detection in a labelled window counts up to 1, the earlier the more, each other one costs 0.11, and a window without
a detection costs 1. The first 15 % of a series, at most 750 readings, do not count. 100 is a perfect detector, and 0
one that detects nothing.

The detector sees each series once, reading by reading, with the parameters of `godwit.pipeline.detector`. A reading
that raises an alarm, at the begin of an event or when it becomes worse, has its score; all other readings have 0.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from godwit.errors import GodwitError
from godwit.pipeline import detector as detectors
from godwit.pipeline.detector import END, Detector
from godwit_bench.report import Ratio, Report, Result, machine

ADDRESS: Final = "https://github.com/numenta/NAB"
PROBATION: Final = 0.15
"""NAB's own setting: the share of a series that does not count."""
PROFILE: Final = "standard"
TUNED: Final = frozenset(f"realKnownCause/{name}_temperature_system_failure.csv" for name in ("ambient", "machine"))
"""The series on which the detector of Godwit 0.5 was tuned."""
PUBLISHED: Final = {
    "ARTime": "ARTime",
    "numenta": "Numenta HTM",
    "contextOSE": "CAD OSE",
    "knncad": "KNN CAD",
    "relativeEntropy": "Relative Entropy",
    "randomCutForest": "Random Cut Forest",
    "windowedGaussian": "Windowed Gaussian",
}
"""Detectors whose results are part of the checkout, by their folders."""


class NabSeries(NamedTuple):
    """A series with its labelled windows."""

    name: str
    """For example realTraffic/speed_6005.csv: its family and its file."""
    times: list[datetime]
    values: list[float]
    windows: list[tuple[datetime, datetime]]

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]


class NabCorpus(NamedTuple):
    """The content of a checkout."""

    series: list[NabSeries]
    sweeper: ModuleType
    costs: dict[str, dict[str, float]]
    """By profile."""
    published: dict[str, dict[str, float]]
    """By name of the detector and of the series: its score, not normalised."""


class Detections(NamedTuple):
    """The scores of the readings of each series, by its name, and the time that they took."""

    scores: dict[str, list[float]]
    seconds: float


class SeriesScore(NamedTuple):
    """The score of one series at the threshold for all series."""

    name: str
    readings: int
    windows: int
    score: float
    """Not normalised: 1 per window at best, -1 per window without a detection."""
    hit: int
    false_alarms: int
    """Alarms outside all windows, including readings that do not count for NAB."""
    published: dict[str, float]


class NabResult(NamedTuple):
    """All results of a run."""

    series: list[SeriesScore]
    threshold: float
    profiles: dict[str, float]
    """The normalised score of all series in each of NAB's profiles, each with a threshold of its own."""
    seconds: float

    def standard(self, names: Callable[[str], bool] = lambda _: True, detector: str | None = None) -> float:
        """Return the normalised score of some series; of a published detector if it is named."""
        chosen = [one for one in self.series if names(one.name)]
        total = sum(one.score if detector is None else one.published[detector] for one in chosen)
        return normalised(total, sum(one.windows for one in chosen))

    @property
    def readings(self) -> int:
        return sum(one.readings for one in self.series)

    @property
    def false_per_1000(self) -> float:
        return 1000 * sum(one.false_alarms for one in self.series) / self.readings


def normalised(score: float, windows: int) -> float:
    """Return 100 for a perfect score and 0 for no detections, as NAB does in the profile `standard`."""
    return 100 * (score + windows) / (2 * windows) if windows else 0.0


# -- the checkout -----------------------------------------------------------------------------------------------------


def fetch(folder: Path) -> None:
    """Clone NAB to the folder, unless it is there. Raise GodwitError if this fails."""
    if (folder / "nab" / "sweeper.py").exists():
        return
    git = shutil.which("git")
    help_text = f"clone {ADDRESS} by other means and give its folder as --nab"
    if folder.exists() and any(folder.iterdir()):
        raise GodwitError(f"{folder} is not a checkout of NAB, it has no nab/sweeper.py: {help_text}")
    if git is None:
        raise GodwitError(f"{folder} does not exist, and git is not installed: {help_text}")
    done = subprocess.run(
        [git, "clone", "--quiet", "--depth", "1", ADDRESS, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise GodwitError(f"NAB cannot be cloned to {folder} ({done.stderr.strip()}): {help_text}")


def read_corpus(folder: Path) -> NabCorpus:
    """Return series, labels, scorer and published results. Raise GodwitError if one of the files is missing."""
    try:
        labels = json.loads((folder / "labels" / "combined_windows.json").read_text(encoding="utf-8"))
        profiles = json.loads((folder / "config" / "profiles.json").read_text(encoding="utf-8"))
        series = [_read_series(folder, name, windows) for name, windows in sorted(labels.items())]
        sweeper = _load(folder / "nab" / "sweeper.py")
    except OSError as error:
        raise GodwitError(
            f"{error.filename} is not readable ({error.strerror}): give a checkout of NAB as --nab"
        ) from None
    costs = {name: profile["CostMatrix"] for name, profile in profiles.items()}
    return NabCorpus(series, sweeper, costs, dict(_published(folder)))


def _read_series(folder: Path, name: str, windows: Sequence[Sequence[str]]) -> NabSeries:
    with (folder / "data" / name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(row["timestamp"]) for row in rows]
    limits = [(datetime.fromisoformat(begin), datetime.fromisoformat(end)) for begin, end in windows]
    return NabSeries(name, times, [float(row["value"]) for row in rows], limits)


def _load(path: Path) -> ModuleType:
    path.stat()  # a missing file is an OSError
    spec = importlib.util.spec_from_file_location("nab_sweeper", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _published(folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    for name, title in PUBLISHED.items():
        path = folder / "results" / name / f"{name}_{PROFILE}_scores.csv"
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                rows = [row for row in csv.DictReader(file) if row["File"]]
            yield title, {row["File"]: float(row["Score"]) for row in rows}


# -- detection and scoring --------------------------------------------------------------------------------------------


def run(folder: Path, on_round: Callable[[str], None]) -> NabResult:
    """Fetch NAB if needed, run the detector on all series, and score it."""
    on_round("fetching NAB")
    fetch(folder)
    corpus = read_corpus(folder)
    return scored(corpus, detected(corpus, on_round))


def detected(corpus: NabCorpus, on_round: Callable[[str], None]) -> Detections:
    """Return the score of each reading: that of its alarm, or 0."""
    scores: dict[str, list[float]] = {}
    seconds = 0.0
    for series in corpus.series:
        on_round(series.name)
        times_us = [int(one.replace(tzinfo=UTC).timestamp()) * 1_000_000 for one in series.times]
        update = Detector().update
        begin = time.process_time()
        alarms = [update(time_us, value) for time_us, value in zip(times_us, series.values, strict=True)]
        seconds += time.process_time() - begin
        scores[series.name] = [0.0 if one is None or one.state == END else one.score for one in alarms]
    return Detections(scores, seconds)


def scored(corpus: NabCorpus, detections: Detections, *, all_profiles: bool = True) -> NabResult:
    """Score detections by NAB's rules: one threshold for all series."""
    names = list(corpus.costs) if all_profiles else [PROFILE]
    profiles = {name: _optimised(corpus, detections, name) for name in names}
    windows = sum(len(one.windows) for one in corpus.series)
    _, threshold = profiles[PROFILE]
    return NabResult(
        [_series_score(corpus, series, detections.scores[series.name], threshold) for series in corpus.series],
        threshold,
        {name: _relative(score, windows, corpus.costs[name]) for name, (score, _) in profiles.items()},
        detections.seconds,
    )


def _optimised(corpus: NabCorpus, detections: Detections, profile: str) -> tuple[float, float]:
    """Return the best score of all series together, and its threshold."""
    sweeper = _sweeper(corpus, profile)
    rows = [
        row
        for series in corpus.series
        for row in sweeper.calcSweepScore(series.times, detections.scores[series.name], series.windows, series.name)
    ]
    best = max(sweeper.calcScoreByThreshold(rows), key=lambda one: one.score)
    return best.score, best.threshold


def _relative(score: float, windows: int, costs: Mapping[str, float]) -> float:
    null = -costs["fnWeight"] * windows
    return 100 * (score - null) / (costs["tpWeight"] * windows - null) if windows else 0.0


def _series_score(corpus: NabCorpus, series: NabSeries, scores: list[float], threshold: float) -> SeriesScore:
    sweeper = _sweeper(corpus, PROFILE)
    _, best = sweeper.scoreDataSet(series.times, scores, series.windows, series.name, threshold)
    alarms = [at for at, score in zip(series.times, scores, strict=True) if score]
    outside = [at for at in alarms if not any(begin <= at <= end for begin, end in series.windows)]
    hit = sum(
        any(begin <= at <= end for at, score in zip(series.times, scores, strict=True) if score >= threshold)
        for begin, end in series.windows
    )
    return SeriesScore(
        series.name,
        len(series.values),
        len(series.windows),
        best.score,
        hit,
        len(outside),
        {title: of_series[series.name] for title, of_series in corpus.published.items()},
    )


def _sweeper(corpus: NabCorpus, profile: str) -> Any:
    return corpus.sweeper.Sweeper(probationPercent=PROBATION, costMatrix=corpus.costs[profile])


# -- other parameters -------------------------------------------------------------------------------------------------

ALTERNATIVES: Final[dict[str, tuple[float, ...]]] = {
    "MEMORY": (200, 1000),
    "LARGEST_EXCESS": (4.0, 16.0),
    "TRACKING": (1.0, 2.5),
    "MEAN_RATE": (1 / 1000, 1 / 10000),
    "JUMP_RATE": (0.2, 0.5),
    "LEVEL_RATE": (0.05, 0.15),
    "SLOT_RATE": (0.08, 0.3),
    "BETTER": (0.0, 0.6, 0.95),
    "DOUBT": (1, 4),
    "LEARNING": (150, 300),
    "LIMIT": (1.2, 1.4, 1.5),
    "PAUSE": (48, 150, 200),
    "WORSE": (1.5, 3.0, 1e9),
    "HABIT": (0.0, 0.1, 0.3),
    "HABIT_FADES": (2000, 8000),
}
"""Other values of the detector's parameters."""


class Setting(NamedTuple):
    """The result with one parameter changed, or with none."""

    parameter: str
    value: float
    result: NabResult


def run_settings(folder: Path, on_round: Callable[[str], None]) -> list[Setting]:
    """Run the detector with its own parameters, and with each alternative of each of them."""
    fetch(folder)
    corpus = read_corpus(folder)
    found = [Setting("", 0.0, scored(corpus, detected(corpus, on_round), all_profiles=False))]
    for parameter, values in ALTERNATIVES.items():
        for value in values:
            with _changed(parameter, value):
                result = scored(corpus, detected(corpus, lambda _: None), all_profiles=False)
            on_round(f"{parameter} = {value:g}: {result.standard():.1f}")
            found.append(Setting(parameter, value, result))
    return found


@contextmanager
def _changed(parameter: str, value: float) -> Iterator[None]:
    before = getattr(detectors, parameter)
    setattr(detectors, parameter, value)
    try:
        yield
    finally:
        setattr(detectors, parameter, before)


def held_out(settings: Sequence[Setting]) -> tuple[float, float, dict[str, Setting]]:
    """Score each family of series with the setting that is best on the other families.

    Return the score of all series, the false alarms per 1,000 readings, and the setting of each family. NAB's threshold
    is that of the setting on all series.
    """
    families = sorted({one.name.partition("/")[0] for one in settings[0].result.series})
    total, windows, false, readings = 0.0, 0, 0, 0
    chosen: dict[str, Setting] = {}
    for family in families:
        best = max(settings, key=partial(_score_without, family))
        chosen[family] = best
        for series in best.result.series:
            if series.name.startswith(f"{family}/"):
                total, windows = total + series.score, windows + series.windows
                false, readings = false + series.false_alarms, readings + series.readings
    return normalised(total, windows), 1000 * false / readings, chosen


def _score_without(family: str, setting: Setting) -> float:
    return setting.result.standard(lambda name: not name.startswith(f"{family}/"))


# -- report -----------------------------------------------------------------------------------------------------------


def is_untuned(name: str) -> bool:
    """Return whether the detector of Godwit 0.5 was not tuned on a series."""
    return name not in TUNED


def results(found: NabResult) -> Iterator[Result]:
    """Return the figures that `--json` prints."""
    yield Result("nab_standard_all", found.standard(), f"of 100, {len(found.series)} series")
    untuned = sum(is_untuned(one.name) for one in found.series)
    yield Result("nab_standard_untuned", found.standard(is_untuned), f"of 100, {untuned} series")
    for profile, score in found.profiles.items():
        if profile != PROFILE:
            yield Result(f"nab_{profile}_all", score, "of 100")
    yield Result("false_per_1000", found.false_per_1000, "alarms outside all windows, per 1,000 readings")
    windows = sum(one.windows for one in found.series)
    yield Result("nab_windows_hit", sum(one.hit for one in found.series), f"of {windows}")
    yield Result("nab_threshold", found.threshold, "score")
    yield Result("us_per_reading", 1e6 * found.seconds / found.readings, "us of CPU")


def held_out_results(settings: Sequence[Setting]) -> Iterator[Result]:
    """Return the figures of `held_out`, and the lowest and highest score of all settings."""
    score, false, _ = held_out(settings)
    yield Result("nab_standard_held_out", score, "of 100")
    yield Result("false_per_1000_held_out", false, "alarms outside all windows, per 1,000 readings")
    scores = [one.result.standard() for one in settings]
    yield Result("nab_standard_least", min(scores), f"of 100, {len(settings)} settings")
    yield Result("nab_standard_greatest", max(scores), f"of 100, {len(settings)} settings")


def figures(found: NabResult, more: Sequence[Result] = ()) -> Report:
    """Return the report that `--json` prints."""
    against = [
        Ratio(f"nab_standard_vs_{title.lower().replace(' ', '_')}", found.standard() / published, title)
        for title in found.series[0].published
        if (published := found.standard(detector=title)) > 0
    ]
    return Report("anomalies", machine(), [*results(found), *more], against)


def print_series(found: NabResult) -> None:
    """Print a table of all series beside the published detectors."""
    titles = list(found.series[0].published)
    table = Table(title="NAB, profile standard, 100 is perfect", title_justify="left")
    table.add_column("series")
    for heading in ("readings", "hit", "false", "Godwit", *titles):
        table.add_column(heading, justify="right")
    for one in found.series:
        scores = [one.score, *(one.published[title] for title in titles)]
        texts = [f"{normalised(score, one.windows):.0f}" if one.windows else f"{score:.2f}" for score in scores]
        table.add_row(one.name, f"{one.readings:,}", f"{one.hit} of {one.windows}", str(one.false_alarms), *texts)
    for label, names in (("all", lambda _: True), ("untuned", is_untuned)):
        scores = [found.standard(names), *(found.standard(names, title) for title in titles)]
        table.add_row(label, "", "", "", *[f"{score:.1f}" for score in scores])
    console = Console()
    console.print(table)
    console.print(
        f"{found.false_per_1000:.2f} false alarms per 1,000 readings, "
        f"{1e6 * found.seconds / found.readings:.1f} us of CPU per reading"
    )


def print_settings(settings: Sequence[Setting]) -> None:
    """Print the score of each setting, and of the held-out families."""
    console = Console()
    table = Table(title="other parameters", title_justify="left")
    for heading in ("parameter", "value", "score", "untuned", "hit", "false alarms/1k"):
        table.add_column(heading, justify="left" if heading == "parameter" else "right")
    for one in settings:
        hit = sum(series.hit for series in one.result.series)
        scores = [f"{one.result.standard():.1f}", f"{one.result.standard(is_untuned):.1f}"]
        value = f"{one.value:g}" if one.parameter else ""
        table.add_row(one.parameter or "as chosen", value, *scores, str(hit), f"{one.result.false_per_1000:.2f}")
    console.print(table)
    score, false, chosen = held_out(settings)
    for family, one in chosen.items():
        console.print(f"without {family}: best with {one.parameter or 'the chosen parameters'} {one.value:g}")
    console.print(f"held-out families: {score:.1f}, {false:.2f} false alarms per 1,000 readings")
