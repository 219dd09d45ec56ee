"""The outcome of `godwit bench anomalies`: a table for people, and figures for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final

from rich.console import Console
from rich.table import Table

from godwit.pipeline.detector import PAUSE
from godwit_bench.anomalies import METHODS, RULE_DEVIATIONS, RULE_READINGS, Comparison, Score
from godwit_bench.report import Ratio, Report, Result, machine

EXPLAINED: Final = (
    "windows: labelled anomalies; an alarm outside all of them is false\n"
    "false readings: those called anomalous outside all of them\n"
    "The detector's parameters were chosen on these very series, the rule's were not.\n"
    f"rule: farther than {RULE_DEVIATIONS:g} deviations from the mean of the {RULE_READINGS} readings before\n"
    f"pausing: without alarms within {PAUSE} readings of another, as the detector does"
)


def figures(comparisons: Sequence[Comparison]) -> Report:
    """As `--json` prints them."""
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


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """One table, and a sentence on the windows."""
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
    table.add_section()
    left = [comparison.series, f"{scores[0].readings:,} readings"]
    for series, (measured, text) in zip(chain(left, repeat("")), measures.items(), strict=False):
        table.add_row(series, measured, *[text(score) for score in scores])


def _per_1000(score: Score, count: int) -> float:
    return 1000 * count / score.readings
