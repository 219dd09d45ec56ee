"""The network path to the peer: migration to a new address, and the path MTU.

Migration: a packet from a new address causes a challenge to that address, never more bytes than three times those
received
from it. The connection moves when the proved reply arrives from the same address. Until then it stays where it was, and
nothing else from the new address is accepted. There is one candidate at a time.

Path MTU: found by probing (RFC 8899). The base of 1200 bytes always works. Once a connection has filled a datagram, it
probes
larger sizes with padding packets: first the largest that both sides accept, then by bisection. A connection that sends
little
does not probe, nor does a server with thousands of them. If full-size packets get lost later (a route with a smaller
MTU),
the size falls back to the base, and probing starts again after a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from godwit.errors import DecodeError
from godwit.limits import AMPLIFICATION, BASE_DATAGRAM_BYTES
from godwit.transport.events import Address
from godwit.transport.handshake import close_mac, path_mac, same
from godwit.transport.protection import EXTRA_BYTES
from godwit.wire.packet import (
    OVERHEAD_BYTES,
    PROBE_BYTES,
    CloseFrame,
    PathProbeFrame,
    PathResponseFrame,
    decode_frames,
    decode_packet,
    encode_frame,
    expand_number,
)

if TYPE_CHECKING:
    from godwit.transport.connection_state import Components

MAX_CHALLENGES: Final = 5
CHALLENGE_PACKET_BYTES: Final = OVERHEAD_BYTES + len(encode_frame(PathProbeFrame(bytes(PROBE_BYTES))))


class PathCandidate:
    """An address that the peer may have moved to."""

    __slots__ = ("address", "challenge", "due_at", "received_bytes", "sent", "wait_s")

    def __init__(self, address: Address, challenge: bytes, now: float, wait_s: float) -> None:
        self.address = address
        self.challenge = challenge
        self.due_at = now
        self.wait_s = wait_s
        self.received_bytes = 0
        self.sent = 0


class PathMigration:
    """Checks whether the peer has moved to a new address."""

    __slots__ = ("_components", "candidate")

    def __init__(self, components: Components) -> None:
        self._components = components
        self.candidate: PathCandidate | None = None

    def handle_packet(self, packet: bytes, address: Address, now: float) -> bool:
        """Handle a packet for this connection from another address. Return whether it proves that the peer has moved.

        All other packets are counted in `dropped`.
        """
        components = self._components
        try:
            _, truncated, content = decode_packet(packet)
            frames = decode_frames(content)
        except DecodeError as error:
            components.dropped[error.reason] += 1
            return False
        candidate = self.candidate
        if candidate is not None and candidate.address == address:
            expected = path_mac(components.key, components.peer_role, candidate.challenge)
            for frame in frames:
                if isinstance(frame, PathResponseFrame) and frame.challenge == candidate.challenge:
                    if same(frame.mac, expected):
                        self.candidate = None
                        return True
                    components.dropped["forged_path_response"] += 1
        elif expand_number(truncated, components.acknowledger.largest + 1) > components.acknowledger.largest:
            wait_s = components.recovery.round_trip.probe_timeout_s
            candidate = self.candidate = PathCandidate(address, self._components.entropy(PROBE_BYTES), now, wait_s)
        if candidate is not None and candidate.address == address:
            candidate.received_bytes += len(packet)
        components.dropped["unproven_path"] += 1
        return False

    def proven_close(self, packet: bytes) -> CloseFrame | None:
        """Return the close in a packet from any address if it is the peer's: a closing peer answers no more probes."""
        try:
            frames = decode_frames(decode_packet(packet)[2])
        except DecodeError:
            return None
        for frame in frames:
            if isinstance(frame, CloseFrame):
                expected = close_mac(self._components.key, self._components.peer_role, frame.code, frame.reason)
                return frame if same(frame.mac, expected) else None
        return None

    def next_challenge(self, now: float) -> tuple[Address, bytes] | None:
        """Return the address and the frame of a due challenge, if the amplification limit allows it, else None."""
        candidate = self.candidate
        if candidate is None or now < candidate.due_at:
            return None
        if candidate.sent == MAX_CHALLENGES:
            self.candidate = None
            return None
        candidate.due_at = now + candidate.wait_s
        candidate.wait_s *= 2
        candidate.sent += 1
        packet_bytes = CHALLENGE_PACKET_BYTES + (EXTRA_BYTES if self._components.protection is not None else 0)
        if candidate.sent * packet_bytes > AMPLIFICATION * candidate.received_bytes:
            return None
        return candidate.address, encode_frame(PathProbeFrame(candidate.challenge))


TRIES: Final = 3
"""The number of lost probes of one size before it counts as too large."""
CLOSE_ENOUGH_BYTES: Final = 16
"""The precision of the search."""
RETRY_S: Final = 60.0
"""The time until the next search, if one ended below the largest size."""
SOON_S: Final = 1.0
"""The time until the next search after a fall back to the base."""
SUSPICIOUS_LOSSES: Final = 8
"""The number of larger packets lost, with none newer received, that causes a fall back: small ones may still pass."""
SUSPICIOUS_PROBES: Final = 2
"""The number of probe timeouts in a row with larger packets in flight that causes a fall back."""


class PathMtu:
    """Searches for the largest datagram: call probe_bytes when sending, and report the fate of each probe."""

    __slots__ = (
        "_failures", "_in_flight", "_largest", "_lost_since", "_newest_acked", "_retry_at", "_too_large",
        "datagram_bytes", "is_wanted",
    )  # fmt: skip

    def __init__(self, largest_bytes: int) -> None:
        self.datagram_bytes = BASE_DATAGRAM_BYTES
        self.is_wanted = False
        """Whether larger datagrams would be used. Sizes are probed only then."""
        self._largest = largest_bytes
        self._too_large = largest_bytes + 1
        self._failures = 0
        self._in_flight = 0
        self._retry_at: float | None = None
        self._newest_acked = -1
        """The number of the newest received packet that is larger than the base."""
        self._lost_since = 0
        """The number of larger packets, newer than that one, that got lost."""

    def probe_bytes(self, now: float) -> int | None:
        """Return the size to probe now, or None."""
        if not self.is_wanted or self._in_flight:
            return None
        if self._retry_at is not None:
            if now < self._retry_at:
                return None
            self._retry_at = None
            self._too_large = self._largest + 1
        if self.datagram_bytes >= self._largest:
            return None
        if self._too_large > self._largest:
            return self._largest
        if self._too_large - self.datagram_bytes <= CLOSE_ENOUGH_BYTES:
            self._retry_at = now + RETRY_S
            return None
        return (self.datagram_bytes + self._too_large) // 2

    def handle_probe_sent(self, size_bytes: int) -> None:
        self._in_flight = size_bytes

    def handle_probe_acked(self, size_bytes: int) -> None:
        if size_bytes != self._in_flight:
            return  # sent on another path
        self._in_flight = 0
        self._failures = 0
        self.datagram_bytes = max(self.datagram_bytes, size_bytes)

    def handle_probe_lost(self, size_bytes: int) -> None:
        if size_bytes != self._in_flight:
            return
        self._in_flight = 0
        self._failures += 1
        if self._failures >= TRIES:
            self._failures = 0
            self._too_large = min(self._too_large, size_bytes)

    def handle_probe_timeouts(self, in_a_row: int, now: float) -> bool:
        """Handle probe timeouts. Return whether the size fell back to the base."""
        return in_a_row >= SUSPICIOUS_PROBES and self._fall_back(now)

    def handle_large_acked(self, number: int) -> None:
        """Note that a packet larger than the base has arrived."""
        if number > self._newest_acked:
            self._newest_acked = number
            self._lost_since = 0

    def handle_large_lost(self, number: int, now: float) -> bool:
        """Note that a packet larger than the base is lost. Return whether the size fell back to the base."""
        if number > self._newest_acked:
            self._lost_since += 1
        return self._lost_since >= SUSPICIOUS_LOSSES and self._fall_back(now)

    def _fall_back(self, now: float) -> bool:
        if self.datagram_bytes == BASE_DATAGRAM_BYTES:
            return False
        self._lost_since = 0
        self.datagram_bytes = BASE_DATAGRAM_BYTES
        self._too_large = self._largest + 1
        self._failures = 0
        # Usually the whole path failed for a moment, so the next search starts soon.
        self._retry_at = now + SOON_S
        return True
