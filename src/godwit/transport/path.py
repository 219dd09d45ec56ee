"""A peer that turns up at a new address: checked before anything goes there.

The check sends a challenge to the new address, never more than three times what came from there, and waits for the
proved answer from that same address. Until then the connection stays where it was. One candidate at a time.
"""

from __future__ import annotations

from typing import Final

from godwit.limits import AMPLIFICATION
from godwit.transport.handshake import Role, path_mac, same
from godwit.transport.train import Address
from godwit.wire.frames import PathResponse

MAX_CHALLENGES: Final = 5


class PathCheck:
    """Of one candidate address."""

    __slots__ = ("_challenge", "_received_bytes", "_sent", "_sent_bytes", "_wait_s", "address", "due_at")

    def __init__(self, address: Address, challenge: bytes, now: float, wait_s: float) -> None:
        self.address = address
        self._challenge = challenge
        self._wait_s = wait_s
        self._received_bytes = 0
        self._sent_bytes = 0
        self._sent = 0
        self.due_at = now

    @property
    def is_over(self) -> bool:
        """It was asked often enough without an answer."""
        return self._sent >= MAX_CHALLENGES

    def on_received(self, size_bytes: int) -> None:
        self._received_bytes += size_bytes

    def take_challenge(self, packet_bytes: int, now: float) -> bytes | None:
        """The challenge, if it is time and such a packet may go to an unproven address."""
        if now < self.due_at:
            return None
        self.due_at = now + self._wait_s
        self._wait_s *= 2
        self._sent += 1
        if self._sent_bytes + packet_bytes > AMPLIFICATION * self._received_bytes:
            return None
        self._sent_bytes += packet_bytes
        return self._challenge

    def is_answered_by(self, response: PathResponse, key: bytes, sender: Role) -> bool:
        expected = path_mac(key, sender, self._challenge)
        return response.challenge == self._challenge and same(response.mac, expected)
