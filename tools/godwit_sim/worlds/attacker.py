"""The transport world with sealed connections, and an adversary on the path that has no keys.

In addition to the checks of the transport world: no record is readable on the path, a connection that both sides have
opened ends only if an application closed it, a process died, or nothing passed for its idle timeout, and no server
opens a connection that its client has not asked for. The adversary can prevent handshakes while it acts, as with QUIC;
afterwards every client must get in.

TLS and the ciphers are stand-ins (godwit_sim.sealing). In every second seed the cipher hides the frames, and records
are looked for in all datagrams; in the others checkers can follow the frames.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from godwit.impairment import LinkSettings
from godwit.transport.admission import ReceiveBudget
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Closed
from godwit.transport.protection import Suite
from godwit.transport.sealing import Sealer
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, Trace
from godwit_sim.on_path import DEEDS, Adversary, OnPathLink, OnPathPlan, SecrecyWatcher
from godwit_sim.sealing import CLEAR, HIDING, StandInSealer
from godwit_sim.worlds.transport import End, TransportWorld, judge
from godwit_sim.worlds.transport_plan import TransportPlan, draw_plan

TROUBLES = (
    "rebind", "client_closes", "server_closes", "late_readers", "small_windows", "eager", "coarse_timers", "slow_wakes",
    "small_buffers", "server_dies", "client_dies", "jitter", "bandwidth",
)  # fmt: skip


class ClearEndpoint(Endpoint):
    """Seals with the stand-in cipher, and refuses plain connections."""

    suite: Suite = CLEAR

    def __init__(
        self,
        config: EndpointConfig,
        *,
        entropy: Callable[[int], bytes],
        budget: ReceiveBudget | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        """`sealer` is not used: the suite is chosen by the seed."""
        own = StandInSealer(entropy, suites=(self.suite,), plain="connections must be sealed")
        super().__init__(config, entropy=entropy, budget=budget, sealer=own)


class HidingEndpoint(ClearEndpoint):
    """Seals with the stand-in cipher that hides the frames."""

    suite = HIDING


def draw_attack(seed: int, plan: TransportPlan) -> OnPathPlan:
    """Draw what the adversary of this seed does."""
    rng = Random(f"on-path plan {seed}")
    until_s = plan.faults_end_s
    count = rng.choice((1, 3, len(DEEDS), len(DEEDS)))
    blackouts = []
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        begin_s = rng.uniform(0.0, until_s)
        blackouts.append((begin_s, begin_s + rng.choice((0.2, 2.0, 10.0))))
    return OnPathPlan(
        until_s=until_s,
        share=rng.choice((0.05, 0.2, 0.4)),
        deeds=tuple(rng.sample(DEEDS, count)),
        blackouts=tuple(blackouts),
    )


class AttackedWorld(TransportWorld):
    """One seed, with the adversary on all links between the clients and the server."""

    def __init__(self, plan: TransportPlan, attack: OnPathPlan, trace: Trace, endpoint: type[Endpoint]) -> None:
        self._attack = attack
        self._adversary: Adversary | None = None
        super().__init__(plan, trace, endpoint)
        self.secrecy = SecrecyWatcher()
        if endpoint is not ClearEndpoint:
            self.network.observers.append(self.secrecy)
            self.checkers.note_content = self.secrecy.content

    @property
    def adversary(self) -> Adversary:
        """The adversary, with an address of its own."""
        if self._adversary is None:
            host = self.network.add_host(Host("adversary", ("203.0.113.66", 6666)))
            rng = Random(f"{self.plan.seed} adversary")
            self._adversary = Adversary(self.network, host, self._attack, rng)
        return self._adversary

    def _join(self, source: Host, destination: Host, settings: LinkSettings) -> None:
        adversary = self.adversary
        rng = Random(f"{self.plan.seed} link {source.name} {destination.name}")
        link = OnPathLink(settings, rng, adversary, lambda: (source.address, destination.address))
        self.network.join(source, destination, link)
        own = self.network.hosts["adversary"]
        super()._join(own, destination, LinkSettings(delay_s=settings.delay_s / 2))

    def _check_time_out(self, host: Host, end: End, event: Closed, now: float) -> None:
        if not end.connected:
            return  # the adversary can prevent handshakes
        if event.origin == "refused":
            raise ViolationError("lifecycle", f"{end.name}: refused after it was connected, {event.reason!r}")
        if self._attack.blackouts:
            return
        super()._check_time_out(host, end, event, now)


def run_attacker(seed: int, trace: Trace) -> tuple[str | None, str]:
    """Run one seed; return the violation, if any, and a summary."""
    return run_attacked(seed, trace, (ClearEndpoint, HidingEndpoint)[seed % 2])


def run_attacked(seed: int, trace: Trace, endpoint: type[ClearEndpoint]) -> tuple[str | None, str]:
    """Run one seed with endpoints of a kind."""
    # A checker must read the answers from new addresses: clients move only if it can.
    plan = draw_plan(seed, TROUBLES if endpoint is ClearEndpoint else TROUBLES[1:])
    attack = draw_attack(seed, plan)
    trace.comment(0.0, f"plan {plan} {attack}")
    world = AttackedWorld(plan, attack, trace, endpoint)
    violation, summary = judge(world, trace)
    return violation, f"{summary}, {world.adversary.deeds.total()} attacks"
