"""`godwit bench anomalies`: the pipeline's detector against a rolling rule of three deviations, on labelled data.

The data are the temperature series of NAB, and the motes of Suthaharan and others. Both methods see the same rows. An
alarm outside every labelled window is false. The rule raises an alarm at each reading over its limit. As the detector
raises one alarm per event, and another one if it becomes worse, the rule is also shown with the same pause between
alarms.

The motes have a label for each row, so rows are compared there: the rows that the rule calls anomalous, for any of the
mote's quantities, and the rows during which the detector is in an event. The latter have a score, the highest of the
event so far: the precision at a recall of RECALL is that of the rows with the highest scores.
"""

from __future__ import annotations

import csv
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, compress, repeat
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from rich.console import Console
from rich.table import Table

from godwit.errors import GodwitError
from godwit.pipeline.detector import END, PAUSE, Detector
from godwit_bench.report import Ratio, Report, Result, machine

# -- data -------------------------------------------------------------------------------------------------------------

NAB: Final = {
    "ambient temperature": "ambient_temperature_system_failure.csv",
    "machine temperature": "machine_temperature_system_failure.csv",
}
MOTES: Final = Path("suthaharan_multihop") / "data.csv"
QUANTITIES: Final = ("humidity", "temperature")
MOTE_INTERVAL_US: Final = 5_000_000
"""Their readings are numbered and have no times; they were taken every five seconds."""


class Window(NamedTuple):
    """A labelled anomaly with its first and last time, both included."""

    begin_us: int
    end_us: int


class Series(NamedTuple):
    """Readings of one quantity."""

    name: str
    times_us: list[int]
    values: list[float]
    windows: list[Window]


class Mote(NamedTuple):
    """Readings of one sensor node, with a label for each row."""

    name: str
    times_us: list[int]
    quantities: list[list[float]]
    labels: list[bool]


def read_nab(folder: Path) -> list[Series]:
    """Return both series, with their labelled windows."""
    with _open(folder / "nab" / "combined_windows.json") as file:
        labelled = json.load(file)
    found = []
    for name, file_name in NAB.items():
        rows = list(_rows(folder / "nab" / file_name))
        windows = [Window(_time_us(begin), _time_us(end)) for begin, end in labelled[f"realKnownCause/{file_name}"]]
        times_us = [_time_us(row["timestamp"]) for row in rows]
        found.append(Series(name, times_us, [float(row["value"]) for row in rows], windows))
    return found


def read_motes(folder: Path) -> list[Mote]:
    """Return all four motes, in the order of their numbers."""
    motes: dict[str, Mote] = {}
    for row in _rows(folder / MOTES):
        mote = motes.setdefault(row["mote_id"], Mote(f"mote {row['mote_id']}", [], [[] for _ in QUANTITIES], []))
        mote.times_us.append(int(row["reading"]) * MOTE_INTERVAL_US)
        mote.labels.append(row["label"] == "1")
        for values, quantity in zip(mote.quantities, QUANTITIES, strict=True):
            values.append(float(row[quantity]))
    return [motes[number] for number in sorted(motes)]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with _open(path) as file:
        yield from csv.DictReader(file)


def _open(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise GodwitError(
            f"{path} cannot be read ({error.strerror}): give the folder with nab and suthaharan_multihop as --data"
        ) from None


def _time_us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)


# -- comparison -------------------------------------------------------------------------------------------------------

RULE_READINGS: Final = 288
RULE_DEVIATIONS: Final = 3.0
METHODS: Final = ("detector", "rule", "rule_with_pause")
RECALL: Final = 0.9


class Verdict(NamedTuple):
    """The verdict of a method on each reading."""

    alarms: list[bool]
    anomalous: list[float]
    """0 if it is not, else a score."""


class Score(NamedTuple):
    """The score of a method on one series, or on all motes."""

    readings: int
    hit: list[bool]
    """For each labelled window: whether there was an alarm in it."""
    false_alarms: int
    false_readings: int
    """Unlabelled readings called anomalous; for motes, rows of readings."""
    precision: float | None = None
    recall: float | None = None
    precision_at_recall: float | None = None
    """Of the rows with the highest scores, as many as have the recall RECALL; 0 if all rows together have less."""


class Comparison(NamedTuple):
    """The scores of all methods."""

    series: str
    scores: dict[str, Score]


def run(folder: Path, on_round: Callable[[str], None]) -> list[Comparison]:
    """Compare the methods on all series of the folder, the motes together as one."""
    found = []
    for series in read_nab(folder):
        on_round(series.name)
        verdicts = judged(series.times_us, series.values)
        scores = {method: _windows_score(series, verdict) for method, verdict in verdicts.items()}
        found.append(Comparison(series.name, scores))
    on_round("motes")
    found.append(Comparison("motes", _motes_scores(read_motes(folder))))
    return found


def judged(times_us: Sequence[int], values: Sequence[float]) -> dict[str, Verdict]:
    """Return the verdict of each method."""
    over = rule(values)
    scores = [float(one) for one in over]
    return {
        "detector": detected(times_us, values),
        "rule": Verdict(over, scores),
        "rule_with_pause": Verdict(with_pause(over), scores),
    }


def detected(times_us: Sequence[int], values: Sequence[float]) -> Verdict:
    detector = Detector()
    verdict = Verdict([], [])
    for time_us, value in zip(times_us, values, strict=True):
        alarm = detector.update(time_us, value)
        verdict.alarms.append(alarm is not None and alarm.state != END)
        verdict.anomalous.append(detector.event_score)
    return verdict


def rule(values: Sequence[float]) -> list[bool]:
    """Return which values are more than three deviations from the mean, both of the values before them."""
    before: deque[float] = deque(maxlen=RULE_READINGS)
    found = []
    for value in values:
        if len(before) == RULE_READINGS:
            mean = math.fsum(before) / RULE_READINGS
            variance = math.fsum((one - mean) ** 2 for one in before) / RULE_READINGS
            found.append(abs(value - mean) > RULE_DEVIATIONS * math.sqrt(variance))
        else:
            found.append(False)
        before.append(value)
    return found


def with_pause(alarms: Sequence[bool]) -> list[bool]:
    """Return the alarms without each that is within PAUSE readings of an earlier one."""
    found = []
    since = PAUSE
    for alarm in alarms:
        since += 1
        found.append(alarm and since >= PAUSE)
        if found[-1]:
            since = 0
    return found


def _windows_score(series: Series, verdict: Verdict) -> Score:
    def in_a_window(time_us: int) -> bool:
        return any(begin <= time_us <= end for begin, end in series.windows)

    alarms_us = list(compress(series.times_us, verdict.alarms))
    hit = [any(begin <= time_us <= end for time_us in alarms_us) for begin, end in series.windows]
    false_alarms = sum(not in_a_window(time_us) for time_us in alarms_us)
    false_readings = sum(not in_a_window(time_us) for time_us in compress(series.times_us, verdict.anomalous))
    return Score(len(series.values), hit, false_alarms, false_readings)


def _motes_scores(motes: Sequence[Mote]) -> dict[str, Score]:
    verdicts = [[judged(mote.times_us, values) for values in mote.quantities] for mote in motes]
    scores = {}
    for method in METHODS:
        hit: list[bool] = []
        ranked: list[tuple[float, bool]] = []
        readings = false_alarms = right = wrong = missed = 0
        for mote, of_mote in zip(motes, verdicts, strict=True):
            for verdict in of_mote:
                readings += len(verdict[method].alarms)
                false_alarms += sum(
                    alarm and not label for alarm, label in zip(verdict[method].alarms, mote.labels, strict=True)
                )
            alarms = [any(row) for row in zip(*(one[method].alarms for one in of_mote), strict=True)]
            row_scores = [max(row) for row in zip(*(one[method].anomalous for one in of_mote), strict=True)]
            hit += [any(alarms[begin:end]) for begin, end in runs(mote.labels)]
            ranked += zip(row_scores, mote.labels, strict=True)
            pairs = [(score > 0, label) for score, label in zip(row_scores, mote.labels, strict=True)]
            right += pairs.count((True, True))
            wrong += pairs.count((True, False))
            missed += pairs.count((False, True))
        rates = _share(right, wrong), _share(right, missed), precision_at_recall(ranked)
        scores[method] = Score(readings, hit, false_alarms, wrong, *rates)
    return scores


def precision_at_recall(rows: Sequence[tuple[float, bool]]) -> float:
    """Return the best precision of rows (score, label) over a score, with at least the recall RECALL."""
    labelled = sum(label for _, label in rows)
    best, right = 0.0, 0
    ordered = sorted(rows, key=lambda row: -row[0])
    for count, (score, label) in enumerate(ordered, 1):
        right += label
        is_last = count == len(ordered) or ordered[count][0] < score
        if score > 0 and is_last and right >= RECALL * labelled:
            best = max(best, right / count)
    return best


def runs(labels: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the begin and the end of each run of set labels."""
    both_sides = zip([False, *labels], [*labels, False], strict=True)
    edges = [index for index, (before, after) in enumerate(both_sides) if before != after]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part + rest else 0.0


# -- report -----------------------------------------------------------------------------------------------------------

EXPLAINED: Final = (
    "windows: labelled anomalies; an alarm outside all of them is false\n"
    "false readings: those called anomalous outside all of them\n"
    "The parameters of the detector were chosen on NAB, which has the two temperatures; those of the rule were given.\n"
    f"rule: farther than {RULE_DEVIATIONS:g} deviations from the mean of the {RULE_READINGS} readings before\n"
    f"pausing: without alarms within {PAUSE} readings of another, as the detector does"
)


def figures(comparisons: Sequence[Comparison]) -> Report:
    """Return the figures that `--json` prints."""
    results = [result for comparison in comparisons for result in _results(comparison)]
    labelled = [one.scores for one in comparisons if one.scores["detector"].precision is None]
    ratios = [
        Ratio(f"false_alarms_vs_{method}", _false(labelled, "detector") / max(1, _false(labelled, method)), method)
        for method in METHODS[1:]
    ]
    return Report("anomalies", machine(), results, ratios)


def _false(scores: Sequence[dict[str, Score]], method: str) -> int:
    return sum(one[method].false_alarms for one in scores)


def _results(comparison: Comparison) -> Iterator[Result]:
    for method, score in comparison.scores.items():
        name = f"{comparison.series}_{method}".replace(" ", "_")
        yield Result(f"{name}_windows_hit", sum(score.hit), f"of {len(score.hit)}")
        yield Result(f"{name}_false_alarms", _per_1000(score, score.false_alarms), "per 1,000 readings")
        yield Result(f"{name}_false_readings", _per_1000(score, score.false_readings), "per 1,000 readings")
        if score.precision is not None:
            yield Result(f"{name}_precision", score.precision, "of rows")
            yield Result(f"{name}_recall", score.recall, "of rows")
            yield Result(f"{name}_precision_at_recall_90", score.precision_at_recall, "of rows")


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print one table, and a sentence on the windows."""
    console = Console()
    table = Table(title="godwit bench anomalies", title_justify="left", caption=EXPLAINED, caption_justify="left")
    for heading in ("series", "measured"):
        table.add_column(heading)
    for heading in ("detector", "rule", "rule, pausing"):
        table.add_column(heading, justify="right")
    for comparison in comparisons:
        _add_rows(table, comparison)
    console.print(table)
    missed = [
        f"window {number} of {comparison.series}"
        for comparison in comparisons
        for number, is_hit in enumerate(comparison.scores["detector"].hit, 1)
        if not is_hit
    ]
    console.print(f"The detector does not hit {', '.join(missed)}." if missed else "The detector hits all windows.")


def _add_rows(table: Table, comparison: Comparison) -> None:
    scores = [comparison.scores[method] for method in METHODS]
    measures: dict[str, Callable[[Score], str]] = {
        "windows hit": lambda one: f"{sum(one.hit)} of {len(one.hit)}",
        "false alarms": lambda one: f"{one.false_alarms:,}",
        "false alarms/1k": lambda one: f"{_per_1000(one, one.false_alarms):.2f}",
    }
    if scores[0].precision is None:
        measures["false readings/1k"] = lambda one: f"{_per_1000(one, one.false_readings):.2f}"
    else:
        measures["precision by row"] = lambda one: f"{one.precision:.2f}"
        measures["recall by row"] = lambda one: f"{one.recall:.2f}"
        measures[f"precision at recall {RECALL:g}"] = lambda one: f"{one.precision_at_recall or 0:.2f}"
    table.add_section()
    left = [comparison.series, f"{scores[0].readings:,} readings"]
    for series, (measured, text) in zip(chain(left, repeat("")), measures.items(), strict=False):
        table.add_row(series, measured, *[text(score) for score in scores])


def _per_1000(score: Score, count: int) -> float:
    return 1000 * count / score.readings
