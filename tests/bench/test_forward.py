"""The whole benchmark in a short real run: its report, never how fast it is."""

from __future__ import annotations

import pytest

from godwit.errors import GodwitError
from godwit_bench import forward, peers
from godwit_bench.report import median_ratio

MISSING = [program for program in peers.PROGRAMS if peers.find(program) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}")
def test_a_short_run_measures_everything() -> None:
    rounds: list[str] = []
    report = forward.run(
        rounds=1, seconds=0.1, connections=10, subscriptions=100, on_round=rounds.append, on_install=pytest.fail
    )
    assert report.bench == "forward"
    assert rounds == ["godwit", "zenoh_tcp", "nats", "small_senders", "small_senders_mosquitto", "100 subscriptions"]
    results = {result.name: result.value or 0.0 for result in report.results}
    assert all(results.values())
    assert next(result.unit for result in report.results if result.name == "small_senders") == "messages/s of 100 B"
    assert {ratio.name: ratio.value for ratio in report.ratios} == {
        "subscriptions_100k_vs_1": median_ratio(
            [results["forward_100_subscriptions"]], [results["forward_1_subscription"]]
        ),
        "vs_zenoh_tcp": results["godwit"] / results["zenoh_tcp"],
        "vs_nats": results["godwit"] / results["nats"],
        "small_senders_vs_mosquitto": results["small_senders"] / results["small_senders_mosquitto"],
    }


def test_a_missing_peer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find", lambda _: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(GodwitError, match="mosquitto and nats-server"):
        forward.run(rounds=1, seconds=0.1, on_round=pytest.fail, on_install=pytest.fail)
