"""The transport world with sealed connections: the same plans, faults, attackers and checkers.

TLS and the cipher are stand-ins (godwit_sim.sealing), so that a seed is one run on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

from godwit.transport.admission import ReceiveBudget
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.sealing import Sealer
from godwit_sim.network import Trace
from godwit_sim.sealing import StandInSealer
from godwit_sim.worlds.transport import run_transport


class SealedEndpoint(Endpoint):
    """An endpoint that seals all of its connections, and refuses plain ones."""

    def __init__(
        self,
        config: EndpointConfig,
        *,
        entropy: Callable[[int], bytes],
        budget: ReceiveBudget | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        sealer = sealer or StandInSealer(entropy, plain="connections must be sealed")
        super().__init__(config, entropy=entropy, budget=budget, sealer=sealer)


def run_sealed(seed: int, trace: Trace) -> tuple[str | None, str]:
    """Run one seed of the transport world, sealed."""
    return run_transport(seed, trace, SealedEndpoint)
