"""`godwit bench pub`, `sub` and `latency` against a broker of the user's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from tests.cli.real import broker, godwit, subscribed

from godwit.errors import GodwitError
from godwit_bench import broker as broker_bench
from godwit_bench.report import Report


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with broker() as found:
        yield found


def measured(*arguments: str) -> dict[str, float]:
    result = godwit("bench", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return {one["name"]: one["value"] for one in json.loads(result.stdout)["results"]}


@pytest.mark.parametrize("qos", ["0", "1"])
def test_pub(address: str, qos: str) -> None:
    found = measured("pub", "-n", "501", "--size", "10", "-c", "2", "--qos", qos, "--broker", address)
    assert found["messages"] == 501
    assert found["messages_per_s"] > 0
    assert found["megabytes_per_s"] == pytest.approx(found["messages_per_s"] * 10 / 1e6)


def test_sub_receives_what_pub_sends(address: str) -> None:
    load = broker_bench.BrokerLoad(broker=address, topic="bench/both", clients=2, messages=300, size=10)
    reports: list[Report] = []
    receiving = threading.Thread(target=lambda: reports.append(broker_bench.subscribe(load, lambda text: None)))
    receiving.start()
    subscribed(address, "bench/both")
    broker_bench.publish(load, lambda text: None)
    receiving.join(20)
    (report,) = reports
    figures = {one.name: one.value for one in report.results}
    assert figures["messages"] == 600


def test_latency(address: str) -> None:
    found = measured("latency", "-n", "50", "--rate", "1000", "--broker", address)
    assert list(found) == [f"latency_{part}_ms" for part in ("p50", "p90", "p99", "p99.9", "max")]
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"] <= found["latency_max_ms"]


def test_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_bench, "CONNECT_TIMEOUT_S", 0.3)
    load = broker_bench.BrokerLoad(broker="127.0.0.1:9", messages=1)
    with pytest.raises(GodwitError, match="no broker answered"):
        broker_bench.publish(load, lambda text: None)
