"""`godwit bench pub`, `sub` and `latency` against a broker of the user's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.real import (
    PATIENCE_S,
    address_of,
    broker,
    error_of,
    godwit,
    needs_posix,
    running,
    subscribed,
)

from godwit import sync as godwit_sync
from godwit.errors import GodwitError, UsageError
from godwit_bench import broker as broker_bench
from godwit_bench.report import Report
from godwit_tools import bench as bench_commands


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
    receiving.join(PATIENCE_S)
    (report,) = reports
    figures = {one.name: one.value for one in report.results}
    assert figures["messages"] == 600


def test_latency(address: str) -> None:
    found = measured("latency", "-n", "50", "--rate", "1000", "--broker", address)
    assert list(found) == [f"latency_{part}_ms" for part in ("p50", "p90", "p99", "p99.9", "max")]
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"] <= found["latency_max_ms"]


@pytest.mark.parametrize("command", ["pub", "latency"])
def test_a_retransmission_scheme(address: str, command: str) -> None:
    assert measured(command, "-n", "20", "--arq", "stop-and-wait", "--broker", address)


@pytest.mark.parametrize("command", ["pub", "sub", "latency"])
def test_bad_input_is_one_line(address: str, command: str) -> None:
    assert "unknown retransmission scheme 'hope'" in error_of("bench", command, "--arq", "hope", "--broker", address)
    assert "a/#" in error_of("bench", command, "--topic", "a/#/b", "--broker", address)


def test_no_broker() -> None:
    load = broker_bench.BrokerLoad(broker="127.0.0.1:9", messages=1, timeout_s=0.3)
    with pytest.raises(GodwitError, match="no broker answered"):
        broker_bench.publish(load, lambda text: None)


@pytest.mark.parametrize("command", ["pub", "sub", "latency"])
def test_a_refusal_is_one_line(tmp_path: Path, command: str) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('[[access.rule]]\nclients = ["*"]\nallow = ["publish"]\ntopics = ["a"]\n')
    with broker("--config", str(config)) as address:
        assert "may not" in error_of("bench", command, "--broker", address)


@needs_posix
@pytest.mark.parametrize("command", ["pub", "sub", "latency"])
def test_a_killed_broker_ends_it(command: str) -> None:
    options = ("-n", "100000000", "--topic", "a/b", "--timeout", "10")
    with running("broker", "--listen", "127.0.0.1:0", "--memory") as serving:
        address = address_of(serving)
        with running("bench", command, *options, "--broker", address) as bench:
            if command == "pub":
                with godwit_sync.connect(address, timeout_s=PATIENCE_S) as client, client.subscribe("a/b") as messages:
                    messages.get(timeout_s=PATIENCE_S)
                    serving.process.kill()
            else:
                subscribed(address, "a/b")
                serving.process.kill()
            assert bench.wait() == 1
            assert "and did not come back within 10 s: check that it runs" in bench.err.line()
            assert bench.err.rest() == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    def measure(**options: object) -> Report:
        raise AssertionError(f"it ran with {options}")

    with pytest.raises(UsageError, match="cannot be written to: name another one with --folder"):
        bench_commands._run(measure, as_json=True, folder=tmp_path / "missing")
