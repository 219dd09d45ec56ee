"""`godwit bench startup`: the figures, and commands that fail."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from godwit.cli.main import build_app
from godwit.errors import GodwitError
from godwit_bench import startup


def test_all_figures_are_measured() -> None:
    result = CliRunner().invoke(build_app(), ["bench", "startup", "--rounds", "1", "--json"])
    assert result.exit_code == 0, result.output
    figures = {one["name"]: one["value"] for one in json.loads(result.stdout)["results"]}
    assert list(figures) == ["version_cpu_s", "help_cpu_s", "pub_cpu_s", "query_s"]
    assert all(value > 0 for value in figures.values())


def test_a_query_that_cannot_be_measured_is_missing() -> None:
    figures = {"version_cpu_s": [0.3, 0.1, 0.2], "help_cpu_s": [0.1], "pub_cpu_s": [0.2]}
    assert [(one.name, one.value) for one in startup.results(figures)] == [
        ("version_cpu_s", 0.2),
        ("help_cpu_s", 0.1),
        ("pub_cpu_s", 0.2),
        ("query_s", None),
    ]


def test_a_command_that_fails_ends_the_measurement() -> None:
    with pytest.raises(GodwitError, match="godwit pub failed: godwit: "):
        startup.cpu_s("pub", "a/#", "1")
