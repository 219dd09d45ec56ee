"""The transport benchmark in a short real run: its counts, never how fast it is."""

from __future__ import annotations

from godwit_bench import transport


def test_a_short_run_measures_everything() -> None:
    rounds: list[str] = []
    report = transport.run(rounds=1, seconds=0.2, on_round=rounds.append)
    assert report.bench == "transport"
    assert len(rounds) == 4
    assert len(report.results) == 5
    assert all(result.value for result in report.results)
    ratios = {ratio.name: ratio for ratio in report.ratios}
    single = ratios["reliable_vs_raw_single"]
    assert single.against == "raw UDP, one call a datagram"
    raw, _, ours, *_ = (result.value for result in report.results)
    assert ours is not None
    assert raw is not None
    assert single.value == ours / raw
