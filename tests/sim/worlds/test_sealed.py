"""The sealed transport world: good seeds, reproducible runs, planted faults, and real TLS with real ciphers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.transport.sealed import RealSealer

from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit_sim.network import Trace
from godwit_sim.sealing import CLEAR, ClearAead
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.sealed import SealedEndpoint, run_sealed
from godwit_sim.worlds.transport import run_transport


@pytest.mark.parametrize("seed", range(12))
def test_good_seeds(seed: int) -> None:
    outcome = run_seed("sealed", seed)
    assert outcome.violation is None, f"seed {seed}: {outcome.violation}"


def test_the_same_seed_is_the_same_run() -> None:
    assert run_seed("sealed", 3).digest == run_seed("sealed", 3).digest != run_seed("transport", 3).digest
    assert WORLDS["sealed"] is run_sealed


@pytest.mark.parametrize("world", [world for world in WORLDS if world != "cluster"])  # its brokers send no packets
def test_all_worlds_run_sealed(world: str) -> None:
    plain, sealed = run_seed(world, 1), run_seed(world, 1, sealed=True)
    assert sealed.violation is None
    assert (plain.digest == sealed.digest) is (world in ("sealed", "attacker")), "sealed in any case"


@pytest.mark.soak
def test_many_seeds() -> None:
    for seed in range(12, 500):
        assert run_seed("sealed", seed).violation is None, f"seed {seed}"


class RealEndpoint(SealedEndpoint):
    def __init__(self, config: EndpointConfig, *, entropy: Callable[[int], bytes], **options: Any) -> None:
        super().__init__(config, entropy=entropy, sealer=RealSealer())


@pytest.mark.parametrize("seed", range(4))
def test_a_world_with_real_tls_and_real_ciphers(seed: int) -> None:
    violation, _ = run_transport(seed, Trace(), RealEndpoint)
    assert violation is None, f"seed {seed}: {violation}"


class Careless(ClearAead):
    """A cipher that authenticates nothing."""

    def decrypt(self, nonce: bytes, data: bytes | memoryview, associated_data: bytes) -> bytes:
        return bytes(data[:-16])


def test_a_cipher_that_authenticates_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLEAR, "make", Careless)
    assert any(run_seed("sealed", seed).violation for seed in range(40))


def test_an_endpoint_that_does_not_seal_is_found() -> None:
    """The server refuses plain clients, so that no client of such an endpoint connects."""

    class Forgetful(Endpoint):
        def __init__(self, config: EndpointConfig, *, entropy: Callable[[int], bytes], **options: Any) -> None:
            sealer = RealSealer() if config.accepts else None
            super().__init__(config, entropy=entropy, sealer=sealer)

    violation, summary = run_transport(1, Trace(), Forgetful)
    assert violation is not None or " 0 records" in summary
