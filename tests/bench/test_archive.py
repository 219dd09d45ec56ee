"""The whole benchmark of the archive, run for real but briefly: what it reports, never how fast it was."""

from __future__ import annotations

from pathlib import Path

from godwit_bench import archive


def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    rounds: list[str] = []
    report = archive.run(folder=tmp_path, rounds=1, seconds=0.1, messages=20_000, on_round=rounds.append)
    assert report.bench == "archive"
    results = {result.name: result.value or 0.0 for result in report.results}
    assert rounds[-len(results) :] == list(results)
    assert all(results.values())
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "full_vs_bare_flight": results["full"] / results["bare_flight_full"],
        "single_vs_bare_flight": results["single"] / results["bare_flight_single"],
        "single_small_blocks_vs_bare_flight": results["single_small_blocks"] / results["bare_flight_single"],
        "forward_with_archive_vs_alone": results["forward_with_archive"] / results["forward_alone"],
    }
    assert list(tmp_path.iterdir()) == []
