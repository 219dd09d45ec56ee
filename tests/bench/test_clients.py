"""`godwit bench clients`: the clients in one process, and a short run with real brokers."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from godwit.cli.main import build_app
from godwit.errors import GodwitError
from godwit_bench import client_swarm, clients
from godwit_bench.client_swarm import Swarm
from godwit_bench.processes import ProcessGroup, free_port, receive_reply

WITHIN_S = 120.0


def until() -> float:
    return time.monotonic() + WITHIN_S


def test_all_figures_are_measured(tmp_path: Path) -> None:
    options = ["--clients", "30", "--seconds", "0.5", "--folder", str(tmp_path), "--json"]
    result = CliRunner().invoke(build_app(), ["bench", "clients", *options])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    figures = {one["name"]: one["value"] for one in report["results"]}
    assert list(figures) == [
        "clients",
        "idle_cpu_percent_10k",
        "storm_back_s_10k",
        "storm_broker_cpu_s",
        "pair_longest_wait_ms",
        "resume_256_filters_s",
    ]
    assert figures["clients"] == 30
    assert all(value > 0 for value in figures.values())
    assert not list(tmp_path.iterdir())


def test_clients_log_in_once_and_return_to_a_broker_that_was_restarted(tmp_path: Path) -> None:
    with ProcessGroup() as processes, ExitStack() as stack:
        broker, port = clients._start_broker(processes, tmp_path / "data")
        swarm = stack.enter_context(Swarm(port, 12, seed=1))
        swarm.connect_first(until())
        assert (swarm.online, swarm.lost) == (12, 0)
        broker.send(clients.STOP)
        receive_reply(broker, str)
        swarm.run_until(lambda: swarm.online == 0, until())
        assert swarm.lost == 12
        broker, _ = clients._start_broker(processes, tmp_path / "data", port)
        swarm.run_until(lambda: swarm.online == 12, until())
        assert clients._cpu_s(broker) > 0


def test_held_clients_return_only_when_they_are_released(tmp_path: Path) -> None:
    with ProcessGroup() as processes, ExitStack() as stack:
        broker, port = clients._start_broker(processes, tmp_path / "data")
        swarm = stack.enter_context(Swarm(port, 3, seed=1))
        swarm.connect_first(until())
        swarm.is_held = True
        broker.send(clients.STOP)
        receive_reply(broker, str)
        swarm.run_until(lambda: swarm.online == 0, until())
        clients._start_broker(processes, tmp_path / "data", port)
        assert not swarm._due
        swarm.release()
        assert len(swarm._due) == 3
        swarm.run_until(lambda: swarm.online == 3, until())


def test_time_that_is_over_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_swarm, "AT_ONCE", 1)
    with Swarm(free_port(), 2, seed=1) as swarm:
        with pytest.raises(GodwitError, match="0 of 2 clients are connected"):
            swarm.connect_first(time.monotonic())
        with pytest.raises(GodwitError, match="run it again on a quieter machine"):
            swarm.run_until(lambda: False, time.monotonic() - 1)
