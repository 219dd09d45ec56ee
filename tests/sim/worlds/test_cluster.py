"""The cluster world: runs with all faults, engines that break their promises, and planted faults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from godwit.cluster.node import ClusterNode
from godwit.cluster.records import CLAIM, Fold, RecordPart
from godwit.cluster.replica import CommittedAppend, Replica
from godwit_sim.network import Trace
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.cluster import ClusterWorld, run_cluster


@pytest.mark.parametrize("seed", range(8))
def test_a_seed(seed: int) -> None:
    outcome = run_seed("cluster", seed)
    assert outcome.violation is None, outcome.violation
    assert "confirmed" in outcome.summary


def test_a_seed_is_the_same_every_time() -> None:
    assert run_seed("cluster", 9).digest == run_seed("cluster", 9).digest
    assert WORLDS["cluster"] is run_cluster


def test_broken_promises_stop_nodes() -> None:
    """Of each kind at least one seed has a node that was stopped."""
    stopped: dict[str, str] = {}
    for seed in range(80):
        world = ClusterWorld(seed, Trace())
        if world.violation is None or world.violation in stopped:
            continue
        violation, _ = run_cluster(seed, Trace(partial(note, stopped, world.violation)))
        assert violation is None
        if len(stopped) == 4:
            break
    assert set(stopped) == {"suffix", "flip", "hole", "anew"}


def note(stopped: dict[str, str], kind: str, line: str) -> None:
    if " stopped: " in line and "Seed it" not in line:
        stopped[kind] = line


# -- planted faults ---------------------------------------------------------------------------------------------------


def _count_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a deposed broker count."""

    def counts(self: Fold, part: RecordPart) -> bool:
        return part.epoch > self.epoch if part.kind == CLAIM else self.epoch > 0

    monkeypatch.setattr(Fold, "_counts", counts)


def _answer_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends are confirmed when they are proposed."""
    propose = Replica._propose

    def early(self: Replica, group: list, now: float) -> None:  # type: ignore[type-arg]
        offset = self._next_offset
        propose(self, group, now)
        for one in group:
            self.early.append(CommittedAppend(one.token, offset))  # type: ignore[attr-defined]
            offset += sum(entry.count for entry in one.entries)

    work = Replica.work

    def answer(self: Replica, now: float) -> list:  # type: ignore[type-arg]
        self.early = []  # type: ignore[attr-defined]
        work(self, now)
        return self.early  # type: ignore[attr-defined,no-any-return]

    monkeypatch.setattr(Replica, "_propose", early)
    monkeypatch.setattr(Replica, "work", answer)


def _trust_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node does not notice that records are lost."""
    monkeypatch.setattr(ClusterNode, "_check_less", lambda self, last, now: False)
    monkeypatch.setattr(ClusterNode, "_on_beat", lambda self, data, now: None)


@pytest.mark.parametrize("plant", [_count_everything, _answer_early])
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(run_seed("cluster", seed).violation is not None for seed in range(60))


def test_trust_in_an_engine_that_loses_records_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _trust_the_engine(monkeypatch)
    seeds = [seed for seed in range(200) if ClusterWorld(seed, Trace()).violation in ("suffix", "anew")]
    assert any(run_seed("cluster", seed).violation is not None for seed in seeds)
