"""What is due on an open connection, and when: losses, probes, keep-alive, asking for credit."""

from __future__ import annotations

from typing import Final

from godwit.transport.inbound import Inbound
from godwit.transport.parts import Parts
from godwit.transport.path import Roaming
from godwit.transport.silence import Silence
from godwit.transport.transmit import Transmitter

BLOCKED_RETRY_S: Final = 1.0
"""A sender without credit asks again at this interval, in case the word was lost."""
PROBE_PACKETS: Final = 2
"""So many packets go when the probe timer fires (RFC 9002, 6.2.4)."""


class Timers:
    """Feed: handle, ask_for_credit. Look: next_timer."""

    __slots__ = ("_ask_again_at", "_inbound", "_parts", "_roaming", "_silence", "_transmitter")

    def __init__(
        self, parts: Parts, *, transmitter: Transmitter, inbound: Inbound, roaming: Roaming, silence: Silence
    ) -> None:
        self._parts = parts
        self._transmitter = transmitter
        self._inbound = inbound
        self._roaming = roaming
        self._silence = silence
        self._ask_again_at: float | None = None

    def handle(self, now: float) -> None:
        """Does what is due, but for the end of a silence that is too long."""
        parts = self._parts
        silence = self._silence
        loss_timer = parts.recovery.loss_timer
        if loss_timer is not None and now >= loss_timer:
            self._inbound.detect_losses(now)
        probe_timer = parts.recovery.probe_timer
        if probe_timer is not None and now >= probe_timer:
            self._probe(now)
        if (probe_timer is None and now >= silence.ask_at) or now >= silence.lulls_at:
            silence.on_asked()
            parts.announcements.ping()
        if self._ask_again_at is not None and now >= self._ask_again_at:
            self._ask_again_at = None
            parts.announcements.block(parts.sending.blocked)

    def _probe(self, now: float) -> None:
        """Nothing was heard for too long: the oldest thing under way is said again, and the peer must answer."""
        parts = self._parts
        recovery = parts.recovery
        oldest = recovery.oldest()
        recovery.on_probe(now)
        if oldest is not None:
            parts.sending.policy.on_probe(oldest.fragments)
            parts.announcements.repeat(oldest.said)
        self._transmitter.probes_due = PROBE_PACKETS
        if not parts.sending.has_frames():
            parts.announcements.ping()
        if parts.mtu.on_probe_timeouts(recovery.probes_sent, now):
            parts.congestion.on_datagram_size(parts.mtu.datagram_bytes)

    def ask_for_credit(self, now: float) -> bool:
        """A channel that has come to the end of its credit says so at once, and then again: the receiver gives credit
        back in larger steps than a long record can wait for. True when there is something to say."""
        sending = self._parts.sending
        self._ask_again_at = (self._ask_again_at or now + BLOCKED_RETRY_S) if sending.blocked else None
        if not sending.newly_blocked:
            return False
        self._parts.announcements.block(sending.newly_blocked)
        sending.newly_blocked = {}
        return True

    def next_timer(self) -> float:
        """When handle, or a new try to send, is due."""
        recovery = self._parts.recovery
        probe_timer = recovery.probe_timer
        timer = self._silence.next_at(is_asking=probe_timer is not None)
        for other in (
            probe_timer,
            self._parts.acknowledger.due_at,
            recovery.loss_timer,
            self._transmitter.paced_until,
            self._ask_again_at,
            self._roaming.due_at,
        ):
            if other is not None and other < timer:
                timer = other
        return timer
