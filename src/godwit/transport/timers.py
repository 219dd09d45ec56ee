"""The timers of a connection: losses, probes, keep-alive, requests for credit, the idle timeout, and closing."""

from __future__ import annotations

import math
from typing import Final

from godwit.limits import HANDSHAKE_TIMEOUT_S, MAX_PROBE_INTERVAL_S
from godwit.transport.connection_state import Components
from godwit.transport.events import Role
from godwit.transport.path import PathMigration
from godwit.transport.receiver import PacketReceiver
from godwit.transport.transmitter import Transmitter

BLOCKED_RETRY_S: Final = 1.0
"""A blocked sender asks for credit again at this interval, in case the frame or the reply was lost."""
PROBE_PACKETS: Final = 2
"""The number of packets to send when the probe timer fires (RFC 9002, 6.2.4)."""


class ConnectionTimers:
    """The timers of an open connection."""

    __slots__ = ("_ask_again_at", "_components", "_idle_timer", "_migration", "_receiver", "_transmitter")

    def __init__(
        self,
        components: Components,
        *,
        transmitter: Transmitter,
        receiver: PacketReceiver,
        migration: PathMigration,
        idle_timer: IdleTimer,
    ) -> None:
        self._components = components
        self._transmitter = transmitter
        self._receiver = receiver
        self._migration = migration
        self._idle_timer = idle_timer
        self._ask_again_at: float | None = None

    def handle(self, now: float) -> None:
        """Handle all timers that are due, except the idle timeout."""
        components = self._components
        idle_timer = self._idle_timer
        loss_timer = components.recovery.loss_timer
        if loss_timer is not None and now >= loss_timer:
            self._receiver.detect_losses(now)
        probe_timer = components.recovery.probe_timer
        if probe_timer is not None and now >= probe_timer:
            self._probe(now)
        if (probe_timer is None and now >= idle_timer.keep_alive_at) or now >= idle_timer.pause_at:
            idle_timer.handle_ping_sent()
            components.control_frames.ping()
        if self._ask_again_at is not None and now >= self._ask_again_at:
            self._ask_again_at = None
            components.control_frames.block(components.send_channels.blocked)

    def _probe(self, now: float) -> None:
        """Send the oldest packet in flight again: no acknowledgement has arrived for the probe timeout."""
        components = self._components
        recovery = components.recovery
        oldest = recovery.oldest()
        recovery.handle_probe(now)
        if oldest is not None:
            components.send_channels.policy.handle_probe(oldest.fragments)
            components.control_frames.repeat(oldest.control_keys)
        self._transmitter.probes_due = PROBE_PACKETS
        if not components.send_channels.has_frames():
            components.control_frames.ping()
        if components.mtu.handle_probe_timeouts(recovery.probes_sent, now):
            components.congestion.handle_datagram_size(components.mtu.datagram_bytes)

    def ask_for_credit(self, now: float) -> bool:
        """Ask for credit when a channel first runs out of it, and again at intervals. Return whether there is a frame
        to send.

        The receiver returns credit in larger steps than a long record can wait for.
        """
        send_channels = self._components.send_channels
        self._ask_again_at = (self._ask_again_at or now + BLOCKED_RETRY_S) if send_channels.blocked else None
        if not send_channels.newly_blocked:
            return False
        self._components.control_frames.block(send_channels.newly_blocked)
        send_channels.newly_blocked = {}
        return True

    def next_timer(self) -> float:
        """Return when a timer, or another attempt to send, is due."""
        recovery = self._components.recovery
        probe_timer = recovery.probe_timer if recovery.sent.runs else None
        candidate = self._migration.candidate
        timer = self._idle_timer.next_at(is_asking=probe_timer is not None)
        for other in (
            probe_timer,
            self._components.acknowledger.due_at,
            recovery.loss_timer,
            self._transmitter.paced_until,
            self._ask_again_at,
            None if candidate is None else candidate.due_at,
        ):
            if other is not None and other < timer:
                timer = other
        return timer


PAUSE_S: Final = 1.0
PAUSE_PACKETS: Final = 16
"""A client that received at least PAUSE_PACKETS packets and then none for PAUSE_S sends a ping: its NAT may have
dropped
the mapping, and the server would keep sending to the old address until the next keep-alive."""


SERVER_PATIENCE: Final = 1.5
"""A server sends a keep-alive this many times later than a client: then clients send all of them, one for each interval
and not one from each side, and the server only replies."""
COARSE_S: Final = 1 / 16
"""The timers of idle connections of a server are rounded up to multiples of this (a power of two, so that the result is
exact): one call of the event loop handles those of many connections. These are about 40 with 10,000 clients; a longer
interval would have more, and packets of other connections wait for all of them."""
LEAST_COARSE_KEEP_ALIVE_S: Final = 1.0
"""Shorter intervals are kept exactly."""


class IdleTimer:
    """The time since the last packet from the peer: when to send a keep-alive, and when to give up."""

    __slots__ = (
        "_idle_timeout_s", "_is_coarse", "_keep_alive_s", "_packets_before_pause", "_role", "last_received_at",
        "packets",
    )  # fmt: skip

    def __init__(self, *, role: Role, now: float, idle_timeout_s: float, keep_alive_s: float) -> None:
        self._role = role
        self._idle_timeout_s = idle_timeout_s
        self._keep_alive_s = min(keep_alive_s, idle_timeout_s / 3)
        if role == "server":
            self._keep_alive_s *= SERVER_PATIENCE
        self._is_coarse = role == "server" and self._keep_alive_s >= LEAST_COARSE_KEEP_ALIVE_S
        self.packets = 0
        """The number of packets received."""
        self._packets_before_pause = 0
        self.last_received_at = now

    def handle_packets(self, packets: int, now: float) -> None:
        """Note the total number of packets received so far."""
        if packets > self.packets:
            self.packets = packets
            self.last_received_at = now

    def handle_ping_sent(self) -> None:
        """Note that a ping was sent: one for each pause."""
        self._packets_before_pause = self.packets

    def next_at(self, *, is_asking: bool) -> float:
        """Return the earliest of the three times, without keep_alive_at if a packet in flight asks the peer anyway."""
        due = self.last_received_at + (self._idle_timeout_s if is_asking else self._keep_alive_s)
        if self.packets == 0:
            due = min(due, self.timeout_at)
        elif self._is_coarse:
            return math.ceil(due / COARSE_S) * COARSE_S
        return due if self._role == "server" else min(due, self.pause_at)

    @property
    def timeout_at(self) -> float:
        """When the peer has timed out; earlier for a client that sent nothing after its connect."""
        if self._role == "server" and self.packets == 0:
            return self.last_received_at + min(self._idle_timeout_s, HANDSHAKE_TIMEOUT_S)
        return self.last_received_at + self._idle_timeout_s

    @property
    def keep_alive_at(self) -> float:
        """When to ping the peer, unless a packet in flight asks it already."""
        return self.last_received_at + self._keep_alive_s

    @property
    def pause_at(self) -> float:
        """When a stream of packets has paused and the client should ping."""
        heard = self.packets - self._packets_before_pause
        return self.last_received_at + PAUSE_S if self._role == "client" and heard >= PAUSE_PACKETS else math.inf


REPEATS: Final = 3
"""The number of times a close is sent unprompted, because it is not acknowledged."""
LINGER_PROBE_TIMEOUTS: Final = 3
MAX_ANSWERS: Final = 16
"""The largest number of late packets that are answered with the close."""


class ClosingState:
    """The close of a connection: sent a few times, then late packets are recognised for a while (RFC 9000, 10.2)."""

    __slots__ = ("_answers", "_frame", "_interval_s", "_next_at", "_said", "ends_at")

    def __init__(self, frame: bytes, now: float, probe_timeout_s: float) -> None:
        self._frame = frame
        # After the process was suspended the measured round trip can be minutes: that must not occupy a slot.
        self._interval_s = min(probe_timeout_s, MAX_PROBE_INTERVAL_S)
        self._next_at: float | None = now if frame else None
        self._said = 0
        self._answers = 0
        self.ends_at = now + LINGER_PROBE_TIMEOUTS * self._interval_s

    def handle_packet(self, now: float) -> None:
        """Answer a late packet: the peer has not received the close."""
        if self._answers < MAX_ANSWERS:
            self._answers += 1
            self._next_at = now

    def next_frame(self, now: float) -> bytes | None:
        """Return the close frame if it is due, else None. It is empty, and never due, if the peer closed."""
        if self._next_at is None or now < self._next_at:
            return None
        if not self._said:
            self.ends_at = now + LINGER_PROBE_TIMEOUTS * self._interval_s
        self._said += 1
        self._next_at = now + self._interval_s if self._said < REPEATS else None
        return self._frame

    def is_over(self, now: float) -> bool:
        """Return whether the connection can be forgotten: not before the close was sent, however late that is."""
        return now >= self.ends_at and (self._said > 0 or not self._frame)

    def next_timer(self) -> float:
        return self.ends_at if self._next_at is None else min(self._next_at, self.ends_at)
