"""The benchmark of the console in a short real run: its report, never how fast it is."""

from __future__ import annotations

from godwit_bench import console


def test_a_short_run_measures_both() -> None:
    rounds: list[str] = []
    report = console.run(rounds=1, seconds=0.1, on_round=rounds.append)
    assert report.bench == "console"
    assert rounds == ["alone", "with_console"]
    results = {result.name: result.value or 0.0 for result in report.results}
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "with_console_vs_alone": results["with_console"] / results["alone"]
    }
