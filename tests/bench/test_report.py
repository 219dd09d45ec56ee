"""The reports of benchmarks: the JSON object, and the table."""

from __future__ import annotations

import json

import pytest

from godwit_bench.report import Ratio, Report, Result, interleaved, machine, median_ratio, print_report

REPORT = Report(
    "example",
    {"python": "3.11", "cores": 2},
    [Result("ours", 1234.5, "messages/s"), Result("theirs", None, "messages/s")],
    [Ratio("ours_vs_theirs", None, "theirs"), Ratio("ours_vs_limit", 0.912, "the limit")],
)


def test_json_has_the_agreed_form(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "bench": "example",
        "machine": {"python": "3.11", "cores": 2},
        "results": [
            {"name": "ours", "value": 1234.5, "unit": "messages/s"},
            {"name": "theirs", "value": None, "unit": "messages/s"},
        ],
        "ratios": [
            {"name": "ours_vs_theirs", "value": None, "against": "theirs"},
            {"name": "ours_vs_limit", "value": 0.912, "against": "the limit"},
        ],
    }


def test_the_table_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, as_json=False)
    out = capsys.readouterr().out
    assert "godwit bench example" in out
    assert "missing" in out
    assert "0.91" in out
    assert "1,234" in out
    assert "2 cores" in out


def test_a_small_figure_keeps_its_digits(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(Report("small", {"cores": 2}, [Result("startup", 0.1234, "s")], []), as_json=False)
    assert "0.123" in capsys.readouterr().out


def test_rounds_are_interleaved() -> None:
    order: list[str] = []
    slow = iter((1.0, 100.0, 2.0))
    fast = iter((5.0, 6.0, 7.0))
    figures = interleaved({"slow": lambda: next(slow), "fast": lambda: next(fast)}, 3, order.append)
    assert figures == {"slow": [1.0, 100.0, 2.0], "fast": [5.0, 6.0, 7.0]}
    assert order == ["slow", "fast"] * 3


def test_a_ratio_is_taken_round_by_round() -> None:
    # The machine was half as fast in the second round, which does not affect the ratio.
    assert median_ratio([10.0, 5.0, 11.0], [20.0, 10.0, 20.0]) == 0.5


def test_the_machine_is_described() -> None:
    facts = machine()
    assert facts["cores"]
    assert facts["python"]
    assert facts["processor"]
