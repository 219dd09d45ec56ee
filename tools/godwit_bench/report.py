"""The report of a benchmark: results, ratios against a named peer, and the machine it ran on."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table


class Result(msgspec.Struct, frozen=True):
    """One figure: the median over the rounds."""

    name: str
    value: float | None
    unit: str


class Ratio(msgspec.Struct, frozen=True):
    """A figure divided by a peer's figure from the same run; None when the peer is missing."""

    name: str
    value: float | None
    against: str


class Report(msgspec.Struct, frozen=True):
    """All results of a benchmark, in the form that `--json` prints."""

    bench: str
    machine: dict[str, str | int]
    results: list[Result]
    ratios: list[Ratio]


def merged(reports: Sequence[Report]) -> Report:
    """Return one report of the same benchmark with the results and ratios of all."""
    first = reports[0]
    results = [result for one in reports for result in one.results]
    return Report(first.bench, first.machine, results, [ratio for one in reports for ratio in one.ratios])


def machine() -> dict[str, str | int]:
    """Return the facts about the machine that are needed to compare figures."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
    }


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def interleaved(
    measures: Mapping[str, Callable[[], float]], rounds: int, on_round: Callable[[str], None]
) -> dict[str, list[float]]:
    """Run all measures one after another, `rounds` times, so that a disturbance affects all of them."""
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            on_round(name)
            figures[name].append(measure())
    return figures


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios per round: a machine that is slower for a while is so for both."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def print_report(report: Report, *, as_json: bool) -> None:
    """Print one JSON object, or a table."""
    if as_json:
        print(msgspec.json.encode(report).decode())
        return
    console = Console()
    facts = ", ".join(f"{value} cores" if name == "cores" else str(value) for name, value in report.machine.items())
    table = Table(title=f"godwit bench {report.bench}", caption=facts, title_justify="left", caption_justify="left")
    table.add_column("measured")
    table.add_column("value", justify="right")
    table.add_column("unit")
    for result in report.results:
        table.add_row(result.name, "missing" if result.value is None else _shown(result.value), result.unit)
    table.add_section()
    for ratio in report.ratios:
        value = "missing" if ratio.value is None else f"{ratio.value:.2f}"
        table.add_row(f"[bold]{ratio.name}", f"[bold]{value}", f"against {ratio.against}")
    console.print(table)


def _shown(value: float) -> str:
    """Return a figure with three digits if it is small, and else without a fraction."""
    return f"{value:.3g}" if abs(value) < 10 else f"{value:,.0f}"
