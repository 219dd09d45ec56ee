"""An adversary on the path between the hosts: it decides about each datagram, and keeps a copy of all of them.

It reads, drops, delays, repeats, reorders and changes datagrams, sends them from other addresses, and invents its own
with the identifiers and nonces that it has read. It has no keys. It can repair checksums, so that its changes reach the
code behind them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from godwit.errors import DecodeError
from godwit.impairment import ImpairedLink, LinkSettings, flip_bits
from godwit.transport.events import Address
from godwit.transport.protection import is_sealed
from godwit.wire import packet as f
from godwit.wire.packet import FLAG_PHASE, HEADER, decode_packet, encode_packet
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Host, Network, Observer

DEEDS = (
    "drop",
    "delay",
    "repeat",
    "replay",
    "tamper",
    "header",
    "phase",
    "cut",
    "extend",
    "splice",
    "elsewhere",
    "forge",
)
FORGERIES = ("close", "data", "reset", "refuse", "crypto", "accept", "connect", "sealed")
RECORDED = 400
LONGEST_DELAY_S = 1.5


@dataclass(frozen=True, slots=True)
class OnPathPlan:
    """What the adversary does, until when."""

    until_s: float
    share: float
    """Of the datagrams that it does not pass on as they are."""
    deeds: tuple[str, ...]
    blackouts: tuple[tuple[float, float], ...]
    """When nothing passes at all, from and until."""


class Adversary:
    """Carry out a plan on all links that belong to it."""

    def __init__(self, network: Network, host: Host, plan: OnPathPlan, rng: Random) -> None:
        self.plan = plan
        self.deeds: Counter[str] = Counter()
        """How often it did what."""
        self._network = network
        self._host = host
        """Its own address."""
        self._rng = rng
        self._recorded: deque[tuple[Address, Address, bytes]] = deque(maxlen=RECORDED)
        self._nonces: deque[tuple[int, bytes]] = deque(maxlen=8)
        """The latest ids and nonces of clients, from their hellos."""

    def handle(self, source: Address, destination: Address, datagram: bytes, now: float) -> list[tuple[float, bytes]]:
        """Return which bytes go on instead of a datagram, each with a delay."""
        self._record(source, destination, datagram)
        if now >= self.plan.until_s:
            return [(0.0, datagram)]
        if any(begin <= now < end for begin, end in self.plan.blackouts):
            self.deeds["blackout"] += 1
            return []
        if self._rng.random() >= self.plan.share:
            return [(0.0, datagram)]
        deed = self._rng.choice(self.plan.deeds)
        self.deeds[deed] += 1
        return self._act(deed, source, destination, datagram)

    def _record(self, source: Address, destination: Address, datagram: bytes) -> None:
        self._recorded.append((source, destination, datagram))
        frame = first_frame(datagram)
        if isinstance(frame, f.HelloFrame | f.ConnectFrame):
            self._nonces.append((frame.connection_id, frame.nonce))

    def _act(self, deed: str, source: Address, destination: Address, datagram: bytes) -> list[tuple[float, bytes]]:
        rng = self._rng
        passed = (0.0, datagram)
        match deed:
            case "drop":
                return []
            case "delay":
                return [(rng.uniform(0.0, LONGEST_DELAY_S), datagram)]
            case "repeat":
                return [passed, *((rng.uniform(0.0, LONGEST_DELAY_S), datagram) for _ in range(rng.randrange(1, 4)))]
            case "replay":
                old = [data for _, to, data in self._recorded if to == destination]
                return [passed, *((0.0, data) for data in rng.sample(old, min(len(old), 5)))]
            case "tamper":
                return [(0.0, repaired(flip_bits(datagram, rng))), *([passed] if rng.random() < 0.5 else [])]
            case "header":
                place = rng.randrange(min(HEADER.size, len(datagram)))
                changed = datagram[:place] + bytes((rng.randrange(256),)) + datagram[place + 1 :]
                return [(0.0, repaired(changed)), passed]
            case "phase":
                return [(0.0, bytes((datagram[0] ^ FLAG_PHASE,)) + datagram[1:]), passed]
            case "cut":
                return [(0.0, repaired(datagram[: rng.randrange(1, len(datagram))]))]
            case "extend":
                return [(0.0, repaired(datagram + rng.randbytes(rng.randrange(1, 40))))]
            case "splice":
                _, _, other = rng.choice(self._recorded)
                return [(0.0, datagram[: HEADER.size] + other[HEADER.size :]), passed]
            case "elsewhere":
                # Under its own address, and before the datagram itself, which may never come.
                self._send(self._host.address, destination, datagram)
                return [(0.01, datagram)] if rng.random() < 0.7 else []
        self._send(source, destination, self._forge(rng.choice(FORGERIES), datagram))
        return [passed]

    def _send(self, source: Address, destination: Address, datagram: bytes) -> None:
        self._network.at(self._network.now, self._network.inject, self._host, source, destination, datagram)

    def _forge(self, kind: str, datagram: bytes) -> bytes:
        """Return a datagram of its own for the receiver of another."""
        rng = self._rng
        connection_id = int.from_bytes(datagram[1:9], "big")
        number = (int.from_bytes(datagram[9 : HEADER.size], "big") + rng.randrange(4)) & 0xFFFFFFFF
        client_id, nonce = rng.choice(self._nonces) if self._nonces else (connection_id, rng.randbytes(f.NONCE_BYTES))
        match kind:
            case "sealed":
                header = HEADER.pack(rng.choice((0x11, 0x13)), connection_id, number)
                return header + rng.randbytes(rng.choice((17, 40, 200, 1400)))
            case "reset":
                return encode_packet(0, number, f.encode_frame(f.ResetFrame(rng.randbytes(f.TOKEN_BYTES))))
            case "refuse":
                refuse = f.RefuseFrame(nonce, rng.randrange(1, 120), "forged")
                return encode_packet(rng.choice((client_id, connection_id)), 0, f.encode_frame(refuse))
            case "crypto":
                body = rng.randbytes(rng.choice((1, 80, 1000)))
                crypto = f.CryptoFrame(rng.choice((0, rng.randrange(4000))), rng.choice((0, rng.randrange(4000))), body)
                return encode_packet(connection_id, 0, f.encode_frame(crypto))
            case "accept" | "connect":
                old = [data for _, _, data in self._recorded if is_handshake(data)]
                return repaired(flip_bits(rng.choice(old), rng)) if old else datagram
            case "data":
                frame: f.Frame = f.DataFrame(f.WHOLE, rng.randrange(6), number, 0, None, b"forged")
            case _:
                frame = f.CloseFrame(rng.randrange(1, 120), "forged", rng.randbytes(f.MAC_BYTES))
        return encode_packet(connection_id, number, f.encode_frame(frame))


class OnPathLink(ImpairedLink):
    """One direction of a path through the adversary."""

    def __init__(
        self,
        settings: LinkSettings,
        rng: Random,
        adversary: Adversary,
        addresses: Callable[[], tuple[Address, Address]],
    ) -> None:
        """`addresses` returns the present addresses of the two ends, the sender's first."""
        super().__init__(settings, rng)
        self._adversary = adversary
        self._addresses = addresses

    def offer(self, datagram: bytes, now: float) -> list[tuple[float, bytes]]:
        """Send one datagram; return when which bytes arrive."""
        deliveries = []
        for delay_s, data in self._adversary.handle(*self._addresses(), datagram, now):
            deliveries += [(arrives_at + delay_s, received) for arrives_at, received in super().offer(data, now)]
        return deliveries


class SecrecyWatcher(Observer):
    """Check that no content of a record is visible in a datagram. For worlds with a real cipher."""

    NAME = "secrecy"

    def __init__(self) -> None:
        self._contents: deque[bytes] = deque(maxlen=40)

    def content(self, body: bytes) -> None:
        """Note a record that is sent from now on."""
        if len(body) >= 24:
            self._contents.append(body[:24])

    def sent(self, host: Host, source: Address, destination: Address, datagram: bytes, now: float) -> None:
        for content in self._contents:
            if content in datagram:
                raise ViolationError(self.NAME, f"{host.name} sent a datagram in which a record can be read")


def first_frame(datagram: bytes) -> f.Frame | None:
    """Return the first frame of a plain packet; None for all others."""
    try:
        return f.decode_first_frame(decode_packet(datagram)[2])
    except DecodeError:
        return None


def is_handshake(datagram: bytes) -> bool:
    """Return whether a datagram is a connect or an accept."""
    return isinstance(first_frame(datagram), f.ConnectFrame | f.AcceptFrame)


def repaired(datagram: bytes) -> bytes:
    """Return a plain packet with a right checksum, and anything else as it is."""
    if len(datagram) <= HEADER.size + f.CHECKSUM.size or is_sealed(datagram) or datagram[0] != f.FIRST_BYTE:
        return datagram
    _, connection_id, number = HEADER.unpack_from(datagram)
    return encode_packet(connection_id, number, datagram[HEADER.size : -f.CHECKSUM.size])
