"""The bridge world: runs in which both ends die and are restored, and planted faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from godwit.broker.relays import Relays
from godwit.client.relay import RelaySender
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.bridge import run_bridge


@pytest.mark.parametrize("seed", range(6))
def test_a_seed(seed: int) -> None:
    outcome = run_seed("bridge", seed)
    assert outcome.violation is None, outcome.violation
    assert "relayed" in outcome.summary


def test_a_seed_is_the_same_every_time() -> None:
    assert run_seed("bridge", 6).digest == run_seed("bridge", 6).digest
    assert WORLDS["bridge"] is run_bridge


# -- planted faults ---------------------------------------------------------------------------------------------------


def _forget_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub loses the marks with its process, and not with its log."""
    monkeypatch.setattr(Relays, "restore", lambda self, rows: None)


def _hide_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted messages are not reported."""
    monkeypatch.setattr(RelaySender, "_note_gaps", lambda self, piece: None)


@pytest.mark.parametrize("plant", [_forget_mark, _hide_gaps])
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(run_seed("bridge", seed).violation is not None for seed in range(30))
