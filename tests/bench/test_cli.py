"""`godwit bench` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from godwit.cli.main import build_app
from godwit.errors import GodwitError
from godwit_bench import anomalies, archive, forward, jobs, log, mqtt, nab, spark
from godwit_bench.report import Report, Result


def test_transport_prints_one_json_object() -> None:
    result = CliRunner().invoke(build_app(), ["bench", "transport", "--rounds", "1", "--seconds", "0.1", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {"bench", "machine", "results", "ratios"}
    assert report["ratios"][0]["name"] == "reliable_vs_raw_single"


def test_forward_prints_one_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def run(*, on_round: Callable[[str], None], on_install: Callable[[str], None], **options: object) -> Report:
        asked.update(options)
        on_round("something")
        on_install("apt-get install mosquitto")
        return Report("forward", {"cores": 2}, [Result("small_senders", 1.0, "messages/s")], [])

    monkeypatch.setattr(forward, "run", run)
    result = CliRunner().invoke(build_app(), ["bench", "forward", "--rounds", "2", "--seconds", "0.5", "--json"])
    assert result.exit_code == 0
    assert asked == {"rounds": 2, "seconds": 0.5}
    assert json.loads(result.stdout)["results"][0]["name"] == "small_senders"
    assert "installing it: apt-get install mosquitto" in result.stderr


def test_forward_without_a_peer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("godwit_bench.peers.find", lambda _: None)
    result = CliRunner().invoke(build_app(), ["bench", "forward"])
    assert isinstance(result.exception, GodwitError)  # which `godwit` turns into a line and exit code 1
    assert "sudo apt-get install" in str(result.exception)


@pytest.mark.parametrize("bench", [log, archive, jobs, mqtt, spark])
def test_a_benchmark_of_the_disk_gets_its_folder(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def run(*, on_round: Callable[[str], None], **options: object) -> Report:
        asked.update(options)
        on_round("something")
        return Report("disk", {"cores": 2}, [Result("figure", 1.0, "messages/s")], [])

    monkeypatch.setattr(bench, "run", run)
    name = bench.__name__.rpartition(".")[2]
    options = ["--rounds", "2", "--seconds", "0.5", "--json"]
    result = CliRunner().invoke(build_app(), ["bench", name, "--folder", str(tmp_path), *options])
    assert result.exit_code == 0
    asked.pop("on_install", None)
    assert asked == {"folder": tmp_path, "rounds": 2, "seconds": 0.5}
    assert json.loads(result.stdout)["results"][0]["name"] == "figure"
    result = CliRunner().invoke(build_app(), ["bench", name, "--folder", str(tmp_path / "nowhere")])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["transport"],
        ["forward"],
        ["log"],
        ["cluster"],
        ["clients"],
        ["archive"],
        ["jobs"],
        ["anomalies"],
        ["spark"],
        ["startup"],
    ],
)
def test_help_has_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(build_app(), ["bench", *command, "--help"])
    assert result.exit_code == 0
    assert "Example: godwit bench" in result.stdout


def test_anomalies_as_a_table_and_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []

    def run(folder: Path, on_round: Callable[[str], None]) -> list[anomalies.Comparison]:
        asked.append(folder)
        on_round("something")
        score = anomalies.Score(1000, [True, False], 1, 2)
        return [anomalies.Comparison("made up", dict.fromkeys(anomalies.METHODS, score))]

    monkeypatch.setattr(anomalies, "run", run)
    result = CliRunner().invoke(build_app(), ["bench", "anomalies", "--data", str(tmp_path)])
    assert result.exit_code == 0
    assert "window 2 of made up" in result.stdout
    result = CliRunner().invoke(build_app(), ["bench", "anomalies", "--data", str(tmp_path), "--json"])
    assert json.loads(result.stdout)["results"][0]["name"] == "made_up_detector_windows_hit"
    assert asked == [tmp_path, tmp_path]


def test_anomalies_with_nab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    series = nab.SeriesScore("family/one.csv", 1000, 1, 0.5, 1, 2, {})
    result = nab.NabResult([series], 0.5, {"standard": 75.0}, 0.1)
    monkeypatch.setattr(nab, "run", lambda _folder, _on_round: result)
    monkeypatch.setattr(nab, "run_settings", lambda _folder, _on_round: [nab.Setting("", 0.0, result)])
    command = ["bench", "anomalies", "--data", str(tmp_path / "none"), "--nab", str(tmp_path), "--held-out"]
    assert "held-out families: 75.0" in CliRunner().invoke(build_app(), command).stdout
    found = json.loads(CliRunner().invoke(build_app(), [*command, "--json"]).stdout)["results"]
    values = {one["name"]: one["value"] for one in found}
    assert (values["nab_standard_all"], values["false_per_1000"], values["nab_standard_held_out"]) == (75, 2, 75)
