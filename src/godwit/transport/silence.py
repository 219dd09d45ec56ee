"""How long a peer has been silent, and what that means: ask whether it is there, or give it up."""

from __future__ import annotations

import math
from typing import Final

from godwit.limits import HANDSHAKE_TIMEOUT_S
from godwit.transport.handshake import Role

LULL_S: Final = 1.0
LULL_PACKETS: Final = 16
"""A client that heard at least so many packets and then nothing for a while asks: a NAT may have forgotten it, and its
server would go on sending to the old address until the next keep-alive."""


class Silence:
    """Feed: on_heard, on_asked. Look: too_long_at, ask_at, lulls_at."""

    __slots__ = ("_idle_timeout_s", "_keep_alive_s", "_packets_before_lull", "_role", "heard_at", "packets")

    def __init__(self, *, role: Role, now: float, idle_timeout_s: float, keep_alive_s: float) -> None:
        self._role = role
        self._idle_timeout_s = idle_timeout_s
        self._keep_alive_s = min(keep_alive_s, idle_timeout_s / 3)
        self.packets = 0
        """How many arrived."""
        self._packets_before_lull = 0
        self.heard_at = now

    def on_heard(self, packets: int, now: float) -> None:
        """`packets`: how many in all arrived by now. Without a new one, nothing was heard."""
        if packets > self.packets:
            self.packets = packets
            self.heard_at = now

    def on_asked(self) -> None:
        """A ping goes out: one for each lull."""
        self._packets_before_lull = self.packets

    def next_at(self, *, is_asking: bool) -> float:
        """The first of the three times. While something under way asks anyway, ask_at is none."""
        due = self.heard_at + (self._idle_timeout_s if is_asking else self._keep_alive_s)
        if self.packets == 0:
            due = min(due, self.too_long_at)
        return due if self._role == "server" else min(due, self.lulls_at)

    @property
    def too_long_at(self) -> float:
        """When to give the peer up; sooner for a client that was never heard after its connect."""
        if self._role == "server" and self.packets == 0:
            return self.heard_at + min(self._idle_timeout_s, HANDSHAKE_TIMEOUT_S)
        return self.heard_at + self._idle_timeout_s

    @property
    def ask_at(self) -> float:
        """When to ask whether the peer is there, if nothing under way asks already."""
        return self.heard_at + self._keep_alive_s

    @property
    def lulls_at(self) -> float:
        """When a stream of packets has stopped, and the client should ask."""
        heard = self.packets - self._packets_before_lull
        return self.heard_at + LULL_S if self._role == "client" and heard >= LULL_PACKETS else math.inf
