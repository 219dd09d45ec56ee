"""`godwit bench startup`: the figures, and commands that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.real import broker, needs_posix
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


ATTEMPTS = 10
"""A busy machine makes some runs slower, and none quicker than they are."""


@needs_posix
def test_the_command_line_starts_quickly(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert startup.write_lake(lake)
    with broker() as address:
        bounds_s = {
            ("--version",): 0.25,
            ("--help",): 0.25,
            ("pub", "bench/startup", "1", "--broker", address): 0.3,
            ("pipeline", "query", startup.QUERY, "--lake", str(lake)): 3.0,  # elapsed on an idle machine: less
        }
        for command, bound_s in bounds_s.items():
            measured: list[float] = []
            while not measured or (min(measured) >= bound_s and len(measured) < ATTEMPTS):
                measured.append(startup.cpu_s(*command))
            assert min(measured) < bound_s, (command, measured)


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
