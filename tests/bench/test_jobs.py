"""The whole benchmark of jobs, run for real but briefly: what it reports, never how fast it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from godwit_bench import jobs, peers


@pytest.mark.skipif(peers.find("beanstalkd") is None, reason="needs the program beanstalkd")
def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    rounds: list[str] = []
    report = jobs.run(folder=tmp_path, rounds=1, seconds=0.2, on_round=rounds.append, on_install=pytest.fail)
    assert report.bench == "jobs"
    theirs = ["beanstalkd_1", "beanstalkd_4", "beanstalkd_16"]
    assert rounds == ["godwit", *theirs, "godwit_one_by_one", "beanstalkd_one_by_one"]
    results = {result.name: result.value or 0.0 for result in report.results}
    assert list(results) == rounds
    assert all(results.values())
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "vs_beanstalkd": results["godwit"] / max(results[name] for name in theirs),
        "one_by_one_vs_beanstalkd": results["godwit_one_by_one"] / results["beanstalkd_one_by_one"],
    }
    assert list(tmp_path.iterdir()) == []
