"""The flow diagrams of docs/PROTOCOL.md are the ones that the code draws now."""

from __future__ import annotations

import runpy
from pathlib import Path

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"


def test_the_figures_are_up_to_date() -> None:
    drawn = runpy.run_path(str(FIGURES / "flows.py"))["figures"]()
    page = (FIGURES.parent / "PROTOCOL.md").read_text(encoding="utf-8")
    for name, content in drawn.items():
        assert (FIGURES / name).read_text(encoding="utf-8") == content, "run `python docs/figures/flows.py`"
        assert f"](figures/{name})" in page
    assert "LOST" in drawn["flow-retransmit.svg"]
    assert "again, first in" in drawn["flow-stop-and-wait.svg"]
    assert "lease" in drawn["flow-job.svg"]
