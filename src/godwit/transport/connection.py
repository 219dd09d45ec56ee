"""One peer: joins the parts of a connection and drives them. Sans-IO, as everything here.

    the application's calls   open_channel, send, consume, confirm, close
    feed                      receive (packets of a train), handle_timers
    drain                     next_train, next_timer; events go to the list that the endpoint gave
    look                      state, peer_address, statistics, buffered_bytes

    CONNECTING --accepted--> OPEN --close()------------------------> CLOSING --time--> CLOSED
         |                    \\-----peer closed, reset, silence---> DRAINING --time--> CLOSED
         \\--refused, silence, close()----------------------------------------------> CLOSED

CLOSING answers what still comes with its close again; DRAINING is silent. Both only wait for stray packets to die out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec
from crc32c import crc32c

from godwit.errors import ConnectionClosedError, UsageError
from godwit.transport import handshake
from godwit.transport.config import EndpointConfig
from godwit.transport.events import Closed, Confirmed, Connected, Event, Origin, PathChanged, Received, Writable
from godwit.transport.farewell import Farewell
from godwit.transport.handshake import Role
from godwit.transport.inbound import Delivery, Inbound
from godwit.transport.parts import Parts
from godwit.transport.path import Roaming
from godwit.transport.receive import LimitError
from godwit.transport.silence import Silence
from godwit.transport.train import Address, Train
from godwit.transport.transmit import Transmitter
from godwit.wire import frames as wire
from godwit.wire.control import Code
from godwit.wire.packet import INTACT, encode_packet
from godwit.wire.parameters import Parameters

BLOCKED_RETRY_S: Final = 1.0
"""A sender without credit asks again at this interval, in case the word was lost."""
MAX_CODE: Final = 0xFFFF
PROBE_PACKETS: Final = 2
"""So many packets go when the probe timer fires (RFC 9002, 6.2.4)."""


class State(Enum):
    """Of a connection; the module's first lines draw the transitions."""

    CONNECTING = "connecting"
    OPEN = "open"
    CLOSING = "closing"
    DRAINING = "draining"
    CLOSED = "closed"


class Statistics(msgspec.Struct, frozen=True):
    """What happened on a connection so far, and what it knows of its path."""

    packets_sent: int = 0
    packets_received: int = 0
    packets_lost: int = 0
    packets_spuriously_lost: int = 0
    bytes_sent: int = 0
    fragments_resent: int = 0
    unreliable_dropped: int = 0
    round_trip_s: float = 0.0
    shortest_trip_s: float = 0.0
    bandwidth_bytes_per_s: float = 0.0
    window_bytes: int = 0
    in_flight_bytes: int = 0
    datagram_bytes: int = 0


class Connection:
    """Made by an endpoint only."""

    def __init__(
        self,
        *,
        config: EndpointConfig,
        role: Role,
        connection_id: int,
        address: Address,
        discipline: Parameters,
        events: list[Event],
        dropped: Counter[str],
        entropy: Callable[[int], bytes],
        wake: Callable[[Connection], None],
    ) -> None:
        self.id = connection_id
        """What the peer puts into its packets."""
        self.role: Role = role
        self.peer_address = address
        self.state = State.CONNECTING
        self.scheduled_at: float | None = None
        """The endpoint's note: when it will look at the timers."""
        self._events = events
        self._wake = wake
        self._parts = Parts(
            role=role, connection_id=connection_id, config=config, discipline=discipline, dropped=dropped
        )
        self._roaming = Roaming(self._parts, entropy)
        self._ask_again_at: float | None = None
        self._farewell: Farewell
        self._closed: Closed
        # Set by establish.
        self._transmitter: Transmitter
        self._inbound: Inbound
        self._silence: Silence

    def establish(self, *, peer_id: int, peer: Parameters, key: bytes, round_trip_s: float | None, now: float) -> None:
        """The handshake is done."""
        self.state = State.OPEN
        config = self._parts.config
        idle_timeout_s = min(config.idle_timeout_s, peer.idle_timeout_ms / 1000)
        self._silence = Silence(
            role=self.role, now=now, idle_timeout_s=idle_timeout_s, keep_alive_s=config.keep_alive_s
        )
        excess = self._parts.on_peer(peer_id=peer_id, peer=peer, key=key, round_trip_s=round_trip_s, now=now)
        self._transmitter = Transmitter(self._parts, now)
        self._inbound = Inbound(self._parts, self._transmitter)
        if self.role == "client":
            self._parts.announcements.ping()  # the server hears at once that its accept arrived
        self._events.append(Connected(self, peer.application))
        self._wake(self)
        if excess:
            self.close(now, Code.LIMIT, excess)

    def on_repeated_connect(self, address: Address) -> None:
        """The client has not heard the accept, and perhaps fetched a new cookie from a new address, which proves it."""
        if self._parts.acknowledger.packets == 0:
            self.peer_address = address

    # -- the application's calls --------------------------------------------------------------------------------------

    def open_channel(self) -> int:
        """A new channel towards the peer: 1, 2, 3 and so on. Channel 0 is always there."""
        self._require_usable()
        return self._parts.sending.open_channel()

    def send(self, channel: int, body: bytes, *, reliable: bool = True, last: bool = False) -> None:
        """Queues a record. `last` ends the channel behind it. Before the connection is open, records wait."""
        self._require_usable()
        self._parts.sending.send(channel, body, reliable=reliable, last=last)
        self._wake(self)

    def consume(self, channel: int, body_bytes: int) -> None:
        """The application has taken a received record of this length: the peer may send as much again."""
        if self.state is not State.OPEN:
            return  # nobody wants to hear of it any more
        self._parts.receiving.consume(channel, body_bytes)
        if self._parts.receiving.has_grants:
            self._wake(self)

    def confirm(self, channel: int, sequence: int, reached: int) -> None:
        """Tells the peer that everything on its channel up to `sequence` is safe, and how many the last one reached."""
        self._require_usable()
        self._parts.announcements.confirm(channel, sequence, reached)
        self._wake(self)

    def close(self, now: float, code: int = Code.NORMAL, reason: str = "") -> None:
        """Ends the connection at once and tells the peer. What was not acknowledged yet may be lost."""
        if not 0 <= code <= MAX_CODE:
            raise UsageError(f"a code of {code}: it lies between 0 and {MAX_CODE}")
        if self.state is State.CONNECTING:
            self._end(State.CLOSED, now, code, reason, "local")
        elif self.state is State.OPEN:
            self._end(State.CLOSING, now, code, reason, "local")

    def fail(self, now: float, code: int, reason: str, origin: Origin) -> None:
        """It has ended without a word of close: refused, reset or timed out."""
        if self.state is State.CONNECTING:
            self._end(State.CLOSED, now, code, reason, origin)
        elif self.state is State.OPEN:
            self._end(State.DRAINING, now, code, reason, origin)

    def _end(self, state: State, now: float, code: int, reason: str, origin: Origin) -> None:
        if state is not State.CLOSED:
            parts = self._parts
            frame = b""
            if state is State.CLOSING:
                mac = handshake.close_mac(parts.key, self.role, code, reason)
                frame = wire.encode_frame(wire.Close(code, reason, mac))
            self._farewell = Farewell(frame, now, parts.recovery.round_trip.probe_timeout_s())
        self.state = state
        self._closed = Closed(self, code, reason, origin)
        self._events.append(self._closed)
        self._wake(self)

    def _require_usable(self) -> None:
        if self.state not in (State.CONNECTING, State.OPEN):
            raise ConnectionClosedError(self._closed.code, self._closed.reason)

    # -- feed ---------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, at: int, segment_bytes: int, address: Address, now: float) -> int:
        """Takes packets of a train from `at` on, while they are for this connection. Gives where it stopped."""
        if address != self.peer_address or self.state is not State.OPEN:
            stop = min(at + segment_bytes, len(data))
            self._receive_elsewhere(data[at:stop], address, now)
            return stop
        delivery = Delivery()
        at = self._inbound.receive(data, at, segment_bytes, now, delivery)
        self._silence.on_heard(self._parts.acknowledger.packets, now)
        self._publish(delivery, now)
        self._wake(self)
        return at

    def handle_timers(self, now: float) -> None:
        """Does what is due. Call it when next_timer has come."""
        if self.state is State.OPEN:
            self._handle_open_timers(now)
        elif self.state is not State.CLOSED and now >= self._farewell.ends_at:
            self.state = State.CLOSED
        self._wake(self)

    def _handle_open_timers(self, now: float) -> None:
        parts = self._parts
        silence = self._silence
        if now >= silence.too_long_at:
            self.fail(now, Code.TIMEOUT, f"nothing was heard for {now - silence.heard_at:.1f} s", "timeout")
            return
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

    # -- drain --------------------------------------------------------------------------------------------------------

    def next_train(self, now: float) -> Train | None:
        """The next thing that may be sent now."""
        if self.state is not State.OPEN:
            frame = self._farewell.take(now) if self.state is State.CLOSING else None
            return self._lone(self.peer_address, frame) if frame else None
        train = self._transmitter.next_train(now)
        if train is None and self._ask_for_credit(now):
            train = self._transmitter.next_train(now)
        if train is not None:
            return Train(self.peer_address, *train)
        probe = self._transmitter.mtu_probe(now)
        if probe is not None:
            return Train(self.peer_address, probe, len(probe))
        challenge = self._roaming.take_challenge(now)
        return None if challenge is None else self._lone(*challenge)

    def _ask_for_credit(self, now: float) -> bool:
        """A channel that has come to the end of its credit says so at once, and then again: the receiver gives credit
        back in larger steps than a long record can wait for."""
        sending = self._parts.sending
        self._ask_again_at = (self._ask_again_at or now + BLOCKED_RETRY_S) if sending.blocked else None
        if not sending.newly_blocked:
            return False
        self._parts.announcements.block(sending.newly_blocked)
        sending.newly_blocked = {}
        return True

    def _lone(self, address: Address, frame: bytes) -> Train:
        packet = encode_packet(self._parts.peer_id, self._transmitter.number(), frame)
        return Train(address, packet, len(packet))

    def next_timer(self) -> float | None:
        """When handle_timers and next_train want to be called, if nothing else happens before."""
        if self.state is State.OPEN:
            parts = self._parts
            recovery = parts.recovery
            timers = (
                self._silence.too_long_at,
                parts.acknowledger.due_at,
                recovery.loss_timer,
                recovery.probe_timer or self._silence.ask_at,
                self._transmitter.paced_until,
                self._ask_again_at,
                self._roaming.due_at,
                self._silence.lulls_at,
            )
            return min([timer for timer in timers if timer is not None])
        if self.state in (State.CLOSING, State.DRAINING):
            return self._farewell.next_timer()
        return None

    # -- the parts of receiving ---------------------------------------------------------------------------------------

    def _publish(self, delivery: Delivery, now: float) -> None:
        """Turns what a train brought into events."""
        events = self._events
        for channel, number, body, reliable, last in delivery.records:
            events.append(Received(self, channel, number, body, reliable, last))
        for confirm in delivery.confirms:
            if self._parts.sending.on_confirm(confirm.channel, confirm.sequence):
                events.append(Confirmed(self, confirm.channel, confirm.sequence, confirm.reached))
            else:
                self._parts.dropped["old_confirm"] += 1
        if delivery.writable:
            events.append(Writable(self))
        if delivery.violation is not None:
            self._parts.dropped[delivery.violation.reason] += 1
            code = Code.LIMIT if isinstance(delivery.violation, LimitError) else Code.PROTOCOL
            self.close(now, code, str(delivery.violation))
        elif delivery.close is not None:
            self._end(State.DRAINING, now, delivery.close.code, delivery.close.reason, "peer")

    def _receive_elsewhere(self, packet: bytes, address: Address, now: float) -> None:
        """A packet from an address that is not the peer's, or on a connection that is not open."""
        if self.state is not State.OPEN:
            if self.state is State.CLOSING and address == self.peer_address and crc32c(packet) == INTACT:
                self._farewell.on_packet(now)
            self._parts.dropped["closed_connection"] += 1
        elif self.role == "client":
            self._parts.dropped["wrong_address"] += 1
        elif self._roaming.on_packet(packet, address, now):
            self._move(address, now)
            # The packet that proves the address is the first one that is taken from there.
            self.receive(packet, 0, len(packet), address, now)
        self._wake(self)

    def _move(self, address: Address, now: float) -> None:
        self._silence.heard_at = now
        if address[0] != self.peer_address[0]:
            # Another host address: another path. A new port alone is a NAT that forgot, and the path is the same.
            self._parts.on_new_path(now, None)
        self.peer_address = address
        self._parts.announcements.ping()
        self._events.append(PathChanged(self, address))

    # -- look ---------------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Nothing will happen on it any more."""
        return self.state is State.CLOSED

    @property
    def buffered_bytes(self) -> int:
        """What it holds for the application in either direction."""
        return self._parts.sending.buffered_bytes + self._parts.receiving.held_bytes

    @property
    def train_payload_bytes(self) -> int:
        """How long a record should be to fill one train: the size that costs least per byte."""
        if self.state is State.CONNECTING:
            raise UsageError("the path is not known yet: wait for the Connected event")
        return self._transmitter.train_payload_bytes()

    @property
    def statistics(self) -> Statistics:
        """None of it is known before the connection is open."""
        if not hasattr(self, "_transmitter"):
            return Statistics()
        parts = self._parts
        return Statistics(
            packets_sent=self._transmitter.packets_sent,
            packets_received=parts.acknowledger.packets,
            packets_lost=self._inbound.packets_lost,
            packets_spuriously_lost=parts.recovery.spurious,
            bytes_sent=self._transmitter.bytes_sent,
            fragments_resent=self._transmitter.fragments_resent,
            unreliable_dropped=parts.sending.unreliable_dropped,
            round_trip_s=parts.recovery.round_trip.smoothed_s,
            shortest_trip_s=parts.congestion.shortest_trip_s,
            bandwidth_bytes_per_s=parts.congestion.bandwidth_bytes_per_s,
            window_bytes=parts.congestion.window_bytes,
            in_flight_bytes=parts.congestion.in_flight_bytes,
            datagram_bytes=self._transmitter.datagram_bytes(),
        )
