"""A peer that turns up at a new address: checked before anything goes there.

The check sends a challenge to the new address, never more than three times what came from there, and waits for the
proved answer from that same address. Until then the connection stays where it was, and nothing else that comes from
the new address is taken. One candidate at a time.
"""

from __future__ import annotations

from typing import Final

from godwit.errors import DecodeError
from godwit.limits import AMPLIFICATION
from godwit.transport.handshake import close_mac, path_mac, same
from godwit.transport.parts import Parts
from godwit.transport.train import Address
from godwit.wire.frames import PROBE_BYTES, Close, PathProbe, PathResponse, decode_frames, encode_frame
from godwit.wire.packet import OVERHEAD_BYTES, decode_packet, expand_number

MAX_CHALLENGES: Final = 5
CHALLENGE_PACKET_BYTES: Final = OVERHEAD_BYTES + len(encode_frame(PathProbe(bytes(PROBE_BYTES))))


class Candidate:
    """An address that the peer may have moved to."""

    __slots__ = ("address", "challenge", "due_at", "received_bytes", "sent", "wait_s")

    def __init__(self, address: Address, challenge: bytes, now: float, wait_s: float) -> None:
        self.address = address
        self.challenge = challenge
        self.due_at = now
        self.wait_s = wait_s
        self.received_bytes = 0
        self.sent = 0


class Roaming:
    """Feed: on_packet. Drain: take_challenge, due_at."""

    __slots__ = ("_candidate", "_parts")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._candidate: Candidate | None = None

    def on_packet(self, packet: bytes, address: Address, now: float) -> bool:
        """A packet for this connection from an address that is not the peer's. True when it proves that the peer moved.

        Everything else is counted in the parts' `dropped`.
        """
        parts = self._parts
        try:
            _, truncated, content = decode_packet(packet)
            frames = decode_frames(content)
        except DecodeError as error:
            parts.dropped[error.reason] += 1
            return False
        candidate = self._candidate
        if candidate is not None and candidate.address == address:
            expected = path_mac(parts.key, parts.peer_role, candidate.challenge)
            for frame in frames:
                if isinstance(frame, PathResponse) and frame.challenge == candidate.challenge:
                    if same(frame.mac, expected):
                        self._candidate = None
                        return True
                    parts.dropped["forged_path_response"] += 1
        elif expand_number(truncated, parts.acknowledger.largest + 1) > parts.acknowledger.largest:
            wait_s = parts.recovery.round_trip.probe_timeout_s()
            candidate = self._candidate = Candidate(address, self._parts.entropy(PROBE_BYTES), now, wait_s)
        if candidate is not None and candidate.address == address:
            candidate.received_bytes += len(packet)
        parts.dropped["unproven_path"] += 1
        return False

    def proven_close(self, packet: bytes) -> Close | None:
        """The goodbye in a packet from anywhere, if it is the peer's. One that says goodbye answers no more probes."""
        try:
            frames = decode_frames(decode_packet(packet)[2])
        except DecodeError:
            return None
        for frame in frames:
            if isinstance(frame, Close):
                expected = close_mac(self._parts.key, self._parts.peer_role, frame.code, frame.reason)
                return frame if same(frame.mac, expected) else None
        return None

    def take_challenge(self, now: float) -> tuple[Address, bytes] | None:
        """The address and the frame that asks it, if it is time and so much may go to an unproven address."""
        candidate = self._candidate
        if candidate is None or now < candidate.due_at:
            return None
        if candidate.sent == MAX_CHALLENGES:
            self._candidate = None
            return None
        candidate.due_at = now + candidate.wait_s
        candidate.wait_s *= 2
        candidate.sent += 1
        if candidate.sent * CHALLENGE_PACKET_BYTES > AMPLIFICATION * candidate.received_bytes:
            return None
        return candidate.address, encode_frame(PathProbe(candidate.challenge))

    @property
    def due_at(self) -> float | None:
        return None if self._candidate is None else self._candidate.due_at
