"""An attacking host: it guesses datagrams, or repeats and changes observed ones, with its own or a spoofed address.

A blind attacker knows addresses and the protocol, but no connection id: it must have no effect at all. An attacker that
observes the traffic may repeat datagrams and forge frames whose proof it cannot compute; it must not change the
delivered records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from godwit.impairment import flip_bits
from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport.events import Address
from godwit.wire import packet as f
from godwit.wire.packet import OVERHEAD_BYTES, encode_packet
from godwit_sim.network import Host, Network, Observer, addressed_to, challenges

BLIND = ("noise", "hello", "connect", "guess", "close", "empty")
SEEING = ("repeat", "flip", "cut")
FORGING = ("forged_close", "forged_reset", "forged_response")


@dataclass(frozen=True, slots=True)
class AttackPlan:
    """When the attacker sends, and which kinds of datagrams."""

    from_s: float
    until_s: float
    strikes: int
    kinds: tuple[str, ...]
    spoofs: bool
    """It also uses the addresses of other hosts as the source."""

    @property
    def sees(self) -> bool:
        return any(kind in SEEING or kind in FORGING for kind in self.kinds)

    @property
    def forges(self) -> bool:
        return any(kind in FORGING for kind in self.kinds)


class Attacker(Observer):
    """Carry out an attack plan. It observes the network only if a kind in its plan needs observed datagrams."""

    def __init__(self, network: Network, host: Host, victims: Sequence[Host], plan: AttackPlan, rng: Random) -> None:
        self._network = network
        self._host = host
        self._victims = victims
        self._plan = plan
        self._rng = rng
        self._seen: deque[tuple[Address, Address, bytes]] = deque(maxlen=64)
        self._asked: tuple[Address, list[bytes]] | None = None
        """The last sender of a datagram to the attacker, and the challenges in that datagram."""
        self.strikes = 0

    def schedule(self) -> None:
        plan = self._plan
        if plan.sees:
            self._network.observers.append(self)
        for _ in range(plan.strikes):
            self._network.at(self._rng.uniform(plan.from_s, plan.until_s), self._strike)

    def sent(self, host: Host, source: Address, destination: Address, datagram: bytes, now: float) -> None:
        if host is self._host:
            return
        if destination == self._host.address:
            self._asked = (source, challenges(datagram))
        else:
            self._seen.append((source, destination, datagram))

    def _strike(self) -> None:
        rng = self._rng
        kind = rng.choice(self._plan.kinds)
        if kind in BLIND:
            target = rng.choice(self._victims).address
            source = self._false_source(target)
            datagram = self._invent(kind)
        else:
            if not self._seen:
                return
            # Prefer the newest datagrams: a copy of one may overtake the original.
            seen_source, target, datagram = self._seen[-1] if rng.random() < 0.5 else rng.choice(self._seen)
            source = seen_source if self._plan.spoofs and rng.random() < 0.5 else self._host.address
            if kind == "forged_response" and self._asked is not None and self._asked[0] == target:
                source = self._host.address
            datagram = self._twist(kind, datagram)
        self.strikes += 1
        self._network.trace.note(self._network.now, f"attack {kind} {source} > {target}")
        self._network.inject(self._host, source, target, datagram)

    def _false_source(self, target: Address) -> Address:
        rng = self._rng
        if not self._plan.spoofs or rng.random() < 0.3:
            return self._host.address
        if rng.random() < 0.5:
            return ("198.51.100.7", rng.randint(1, 65535))  # an address without a host
        others = [victim.address for victim in self._victims if victim.address != target]
        return rng.choice(others) if others else self._host.address

    def _invent(self, kind: str) -> bytes:
        """Return a datagram that needs only knowledge of the protocol."""
        rng = self._rng
        connection_id = rng.choice((0, 0, 1, rng.getrandbits(64)))
        number = rng.choice((0, 1, rng.getrandbits(32)))
        match kind:
            case "noise":
                return rng.randbytes(rng.choice((1, 17, 18, 60, 1200, 1472)))
            case "hello":
                hello = f.encode_frame(f.HelloFrame(rng.getrandbits(64), rng.randbytes(f.NONCE_BYTES)))
                padded = hello.ljust(BASE_DATAGRAM_BYTES - OVERHEAD_BYTES, b"\0")
                return encode_packet(0, number, padded if rng.random() < 0.7 else hello)
            case "connect":
                parameters = rng.randbytes(rng.randint(0, 60))
                cookie, nonce = rng.randbytes(f.COOKIE_BYTES), rng.randbytes(f.NONCE_BYTES)
                frame = f.encode_frame(f.ConnectFrame(rng.getrandbits(64), nonce, cookie, parameters))
                return encode_packet(0, number, frame.ljust(BASE_DATAGRAM_BYTES - OVERHEAD_BYTES, b"\0"))
            case "guess":
                kinds = (f.PING, f.ACK, f.CREDIT, f.PATH_PROBE, f.DATA, f.DATA | f.WHOLE, rng.randrange(256))
                return encode_packet(connection_id, number, bytes([rng.choice(kinds)]) + rng.randbytes(40))
            case "close":
                return encode_packet(connection_id, number, self._unproved(rng.choice(FORGING)))
        return encode_packet(connection_id, number, b"")

    def _twist(self, kind: str, datagram: bytes) -> bytes:
        """Return a datagram made from an observed one."""
        rng = self._rng
        if kind == "flip":
            return flip_bits(datagram, rng)
        if kind == "cut":
            return datagram[: rng.randrange(len(datagram))]
        found = addressed_to(datagram)
        if kind == "repeat" or found is None:
            return datagram
        connection_id, number = found
        return encode_packet(connection_id, (number + rng.randint(0, 30)) & 0xFFFFFFFF, self._unproved(kind))

    def _unproved(self, kind: str) -> bytes:
        """Return a frame that needs a proof, with random bytes in place of the proof."""
        rng = self._rng
        match kind:
            case "forged_close":
                return f.encode_frame(f.CloseFrame(rng.randrange(1000), "forged", rng.randbytes(f.MAC_BYTES)))
            case "forged_reset":
                return f.encode_frame(f.ResetFrame(rng.randbytes(f.TOKEN_BYTES)))
        known = self._asked[1] if self._asked is not None else []
        challenge = next((one for one in known if len(one) == f.PROBE_BYTES), rng.randbytes(f.PROBE_BYTES))
        return f.encode_frame(f.PathResponseFrame(challenge, rng.randbytes(f.MAC_BYTES)))
