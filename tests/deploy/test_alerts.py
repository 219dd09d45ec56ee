"""The alerts of a cluster, on series as its nodes export them: promtool evaluates the rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.metrics.http_client import PROMTOOL, needs_promtool

ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yml"
NODES = ("one", "two", "three")
UP, ENGINE = "up", "godwit_cluster_engine_up"
ACTIVE = 'godwit_cluster_state{state="active"}'
ALL, NONE, GONE = "1x30", "0x30", "1x5 _x25"
"""The samples of a series: one each minute, or none after the first six."""


@needs_promtool
@pytest.mark.parametrize(
    ("given", "firing"),
    [
        ({UP: (ALL, ALL, ALL), ACTIVE: (ALL, NONE, NONE), ENGINE: (ALL, ALL, ALL)}, {}),
        # A takeover, with its former active node lost.
        (
            {UP: ("1x5 0x25", ALL, ALL), ACTIVE: (GONE, "0x5 1x25", NONE), ENGINE: (GONE, ALL, ALL)},
            {"GodwitClusterNodeDown": 1},
        ),
        # All nodes answer, and none is active.
        (
            {UP: (ALL, ALL, ALL), ACTIVE: ("1x5 0x25", NONE, NONE), ENGINE: ("1x5 0x25", "1x5 0x25", "1x5 0x25")},
            {"GodwitClusterDown": 1, "GodwitClusterNodeDetached": 3},
        ),
        # No node answers.
        (
            {UP: ("1x5 0x25",) * 3, ACTIVE: (GONE, "0x5 _x25", "0x5 _x25"), ENGINE: (GONE, GONE, GONE)},
            {"GodwitClusterDown": 1, "GodwitClusterNodeDown": 3},
        ),
        # The server of the engine beside the active node is down.
        (
            {UP: (ALL, ALL, ALL), ACTIVE: (ALL, NONE, NONE), "godwit_cluster_ready": ("1x5 0x25", ALL, ALL)},
            {"GodwitClusterNodeNotReady": 1},
        ),
        # One node that was away for longer than the others is counted once, not by each of them.
        (
            {UP: (ALL, ALL, ALL), ACTIVE: (ALL, NONE, NONE), "godwit_cluster_nodes_away": (ALL, ALL, ALL)},
            {"GodwitClusterNodeAway": 1},
        ),
        (
            {UP: (ALL, ALL, ALL), ACTIVE: (ALL, NONE, NONE), "godwit_cluster_epoch": ("1+1x20",) * 3},
            {"GodwitClusterUnstable": 1},
        ),
    ],
    ids=["healthy", "takeover", "no engine", "all down", "not ready", "away", "unstable"],
)
def test_alerts_of_a_cluster(tmp_path: Path, given: dict[str, tuple[str, str, str]], firing: dict[str, int]) -> None:
    series = []
    for name, values in given.items():
        metric, _, labels = name.rstrip("}").partition("{")
        for node, samples in zip(NODES, values, strict=True):
            text = ", ".join(['job="godwit-cluster"', f'instance="{node}"', *([labels] if labels else [])])
            series.append({"series": f"{metric}{{{text}}}", "values": samples})
    expected = [{"labels": f'{{alertname="{name}"}}', "value": count} for name, count in firing.items()]
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    test = {"expr": query, "eval_time": "20m", "exp_samples": expected}
    file = {
        "rule_files": [ALERTS.name],
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [test]}],
    }
    shutil.copy(ALERTS, tmp_path)
    (tmp_path / "test.yml").write_text(yaml.safe_dump(file))
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
