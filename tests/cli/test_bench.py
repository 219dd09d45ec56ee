"""`godwit bench` from the command line."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from godwit.cli.main import build_app


def test_transport_prints_one_json_object() -> None:
    result = CliRunner().invoke(build_app(), ["bench", "transport", "--rounds", "1", "--seconds", "0.1", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {"bench", "machine", "results", "ratios"}
    assert report["ratios"][0]["name"] == "reliable_vs_raw_single"


def test_help_has_an_example() -> None:
    for arguments in (["bench", "--help"], ["bench", "transport", "--help"]):
        result = CliRunner().invoke(build_app(), arguments)
        assert result.exit_code == 0
        assert "Example: godwit bench" in result.stdout
