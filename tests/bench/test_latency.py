"""The whole benchmark in a short real run: its report, never how fast it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from godwit.errors import GodwitError
from godwit_bench import latency, peers
from godwit_bench.latency import RoundTrips, report, summarize

MISSING = [program for program in peers.PROGRAMS if peers.find(program) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}")
def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    rounds: list[str] = []
    done = latency.run(folder=tmp_path, rounds=1, seconds=0.1, on_round=rounds.append, on_install=pytest.fail)
    assert done.bench == "latency"
    assert len(rounds) == len(set(rounds)) == 12
    results = {result.name: result.value or 0.0 for result in done.results}
    assert all(results.values())
    assert set(results) == {f"{name}_{part}_us" for name in rounds for part in ("p50", "p99")} | {"q1_disk_p50_us"}
    assert all(results[f"{name}_p50_us"] <= results[f"{name}_p99_us"] for name in rounds)
    assert results["q1_disk_p50_us"] == results["godwit_q1_disk_p50_us"]
    assert list(tmp_path.iterdir()) == []


def test_ratios_are_those_of_the_best_peer_and_the_worse_case() -> None:
    peers_us = {"nats": 400.0, "zenoh_tcp": 200.0, "mosquitto_q0": 300.0, "mosquitto_q1": 500.0}
    ours_us = {"godwit_q0": 100.0, "godwit_q1": 250.0, "godwit_q0_blocking": 150.0, "godwit_q1_blocking": 300.0}
    others_us = {"raw_udp_relay": 50.0, "godwit_q1_disk": 1000.0}
    trips = {name: [RoundTrips(us, 2 * us)] for name, us in (peers_us | ours_us | others_us).items()}
    trips["nats"] = [RoundTrips(400.0, 100.0)]  # slow, but with the shortest tail
    ratios = {ratio.name: (ratio.value, ratio.against) for ratio in report(trips).ratios}
    assert ratios == {
        "q0_vs_best_peer": (0.5, "zenoh_tcp"),
        "q1_vs_best_peer": (0.5, "mosquitto_q1"),
        "p99_vs_best_peer": (2.0, "nats"),
        "blocking_vs_asyncio": (1.5, "godwit_q0"),
        "q0_vs_raw_udp_relay": (2.0, "raw_udp_relay"),
    }


def test_the_first_round_trips_are_not_counted() -> None:
    trips = summarize([1.0, *[1e-6] * 98, 5e-6])
    assert (trips.p50_us, trips.p99_us) == pytest.approx((1.0, 5.0))
    with pytest.raises(GodwitError, match="no round trip"):
        summarize([])


def test_a_missing_client_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "paho" else object())
    with pytest.raises(GodwitError, match="paho"):
        latency.run(folder=tmp_path, rounds=1, seconds=0.1, on_round=pytest.fail, on_install=pytest.fail)
