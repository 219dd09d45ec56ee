"""Sums and the greatest of tables that come in pieces."""

from __future__ import annotations

import pyarrow as pa
import pytest

from godwit.pipeline.report.scans import Totals, greatest_of


def test_sums_of_pieces_are_sums_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("godwit.pipeline.report.scans.FOLD_ROWS", 3)
    totals = Totals(("key",), {"n": "sum", "most": "max"})
    pieces = [pa.table({"key": ["a", "b", "a"], "n": [1, 2, 3], "most": [turn, 0, -turn]}) for turn in range(5)]
    for piece in pieces:
        totals.add(piece)
    assert totals.rows("n") == [{"key": "a", "n": 20, "most": 4}, {"key": "b", "n": 10, "most": 0}]
    best = greatest_of(iter(pieces), "most", 2)
    assert best is not None
    assert best.column("most").to_pylist() == [4, 3]
    assert Totals(("key",), {"n": "sum"}).rows() == []
