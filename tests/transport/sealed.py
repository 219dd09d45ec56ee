"""A World whose endpoints seal: with the stand-ins, or with any suites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.transport.world import CLIENT, SERVER, Flying, Side, World

from godwit.net.tls import BrokerSealer, Identity, new_client_session, new_identity, ordered_suites
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import Connection
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Role
from godwit.transport.protection import PacketProtection, Suite, is_sealed
from godwit.transport.sealing import Sealer, TlsSession
from godwit_sim.sealing import CLEAR, StandInSealer

IDENTITY = new_identity()


class RealSealer:
    """TLS by OpenSSL, and the ciphers of cryptography. Clients accept every certificate."""

    def __init__(self, identity: Identity = IDENTITY) -> None:
        self._broker = BrokerSealer(identity)

    def suites(self) -> Sequence[Suite]:
        return ordered_suites()

    def new_session(self, role: Role, address: Address) -> TlsSession | None:
        return self._broker.new_session() if role == "server" else new_client_session(lambda chain: None)

    def plain_problem(self, address: Address) -> str:
        return "sealed only"


class SealedWorld(World):
    """Both endpoints seal. `client_sealer` and `server_sealer` are options of their StandInSealer.

    `sealer` takes the place of the stand-ins on both sides.
    """

    def __init__(
        self,
        seed: int = 1,
        *,
        suites: Sequence[Suite] = (CLEAR,),
        client_sealer: dict[str, Any] | None = None,
        server_sealer: dict[str, Any] | None = None,
        is_client_sealed: bool = True,
        is_server_sealed: bool = True,
        sealer: Sealer | None = None,
        **options: Any,
    ) -> None:
        super().__init__(seed, **options)
        self.sealer = sealer
        if is_client_sealed:
            self.seal(self.client, options.get("client") or EndpointConfig(), suites, client_sealer or {})
        if is_server_sealed:
            self.seal(self.server, options.get("server") or EndpointConfig(accepts=True), suites, server_sealer or {})

    def seal(self, side: Side, config: EndpointConfig, suites: Sequence[Suite], options: dict[str, Any]) -> None:
        sealer = self.sealer or StandInSealer(self.rng.randbytes, **{"suites": suites, **options})
        side.endpoint = Endpoint(config, entropy=self.rng.randbytes, sealer=sealer)

    def sealed_packets(self, source: tuple[str, int]) -> list[Flying]:
        return [flying for flying in self.log if flying.source == source and is_sealed(flying.data)]


def protection_of(connection: Connection) -> PacketProtection:
    protection = connection._components.protection
    assert protection is not None
    return protection


__all__ = ["CLIENT", "SERVER", "RealSealer", "SealedWorld", "protection_of"]
