"""The benchmarks of sealed connections in short real runs: their counts, never how fast they are."""

from __future__ import annotations

import sys

import pytest

from godwit_bench import sealed, transport
from godwit_bench.sealed import measure_handshakes, measure_memory, report_forward

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks need epoll and /proc")


def test_the_transport_sealed_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed.report_transport, "__kwdefaults__", {"handshakes": 3, "connections": 20})
    rounds: list[str] = []
    report = transport.run_sealed(rounds=1, seconds=0.2, on_round=rounds.append)
    assert [ratio.name for ratio in report.ratios] == ["sealed_vs_plain"]
    assert all((result.value or 0) > 0 for result in report.results[:8])
    names = [result.name for result in report.results]
    assert {"sealed", "sealed handshakes of a server", "sealed handshake, client", "sealed connection"} <= set(names)
    assert rounds[-2:] == ["handshakes", "memory"]


def test_a_broker_with_sealed_clients() -> None:
    report = report_forward(rounds=1, seconds=0.2, on_round=lambda _: None, connections=20)
    assert [ratio.name for ratio in report.ratios] == ["sealed_vs_plain", "sealed_small_senders_vs_plain"]
    assert all((result.value or 0) > 0 for result in report.results)


def test_handshakes_cost_time_on_both_sides() -> None:
    sealed, plain = (measure_handshakes(5, is_sealed=is_sealed) for is_sealed in (True, False))
    assert sealed.server_s > plain.server_s > 0
    assert sealed.client_s > plain.client_s > 0


def test_the_memory_of_connections() -> None:
    assert measure_memory(50, is_sealed=False) > 0
    assert measure_memory(50, is_sealed=True) > 0
