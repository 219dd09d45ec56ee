"""The whole benchmark of the log, run for real but briefly: what it reports, never how fast it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from godwit_bench import log, peers


@pytest.mark.skipif(peers.find("nats-server") is None, reason="needs the program nats-server")
def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    rounds: list[str] = []
    report = log.run(folder=tmp_path, rounds=1, seconds=0.2, on_round=rounds.append, on_install=pytest.fail)
    assert report.bench == "log"
    ours = ["godwit_8k", "godwit_8k_ethernet", "log_alone_8k"]
    assert rounds == ["godwit", "jetstream", "jetstream_counted", *ours, "raw_disk"]
    results = {result.name: result.value or 0.0 for result in report.results}
    assert list(results) == rounds
    assert all(results.values())
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "vs_jetstream": results["godwit"] / results["jetstream"],
        "vs_jetstream_counted": results["godwit"] / results["jetstream_counted"],
        "vs_raw_disk": results["godwit_8k"] / results["raw_disk"],
        "ethernet_vs_raw_disk": results["godwit_8k_ethernet"] / results["raw_disk"],
        "log_alone_vs_raw_disk": results["log_alone_8k"] / results["raw_disk"],
    }
    assert list(tmp_path.iterdir()) == []
