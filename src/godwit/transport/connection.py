"""One connection to a peer: owns its components and drives them. Sans-IO, like the whole package.

    application   open_channel, send, consume, confirm, close
    input         handle_packets, handle_lone_packet, handle_timers
    output        next_train, next_timer; events are appended to the list of the endpoint
    getters       state, peer_address, statistics, buffered_bytes

The states and their transitions are described in events.py.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from crc32c import crc32c

from godwit.errors import ConnectionClosedError, UsageError
from godwit.transport import handshake
from godwit.transport.admission import ReceiveBudget, UnadmittedConnections
from godwit.transport.arq import SelectiveRepeat
from godwit.transport.connection_state import Components, Statistics, TransportTotals
from godwit.transport.events import (
    Address,
    ChannelConfirmed,
    Closed,
    Connected,
    ConnectionState,
    Event,
    Origin,
    PathChanged,
    PeerCertificate,
    Received,
    Role,
    Train,
    Writable,
)
from godwit.transport.fast_path import KIND_AT, NOT_HANDLED, ONLY_ACK, FastReceiver, FastSender
from godwit.transport.path import PathMigration
from godwit.transport.protection import PacketProtection
from godwit.transport.receive_channels import LimitError, NotAdmittedError
from godwit.transport.receiver import PacketReceiver, ReceivedFrames
from godwit.transport.timers import ClosingState, ConnectionTimers, IdleTimer
from godwit.transport.transmitter import Transmitter
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.packet import INTACT, PING, encode_packet
from godwit.wire.parameters import Arq, Parameters

__all__ = ["Connection"]

MAX_CODE: Final = 0xFFFF


_OPEN: Final = ConnectionState.OPEN
_CODES: Final = {LimitError: Code.LIMIT, NotAdmittedError: Code.NOT_LOGGED_IN}
"""The code of the close that answers a protocol violation; PROTOCOL for all other errors."""


class AwakeConnections(deque["Connection"]):
    """The connections of an endpoint that may have something to send or a new timer, in the order of their turns."""

    __slots__ = ("is_interrupted",)

    def __init__(self) -> None:
        super().__init__()
        self.is_interrupted = False
        """Whether the endpoint was not asked for all trains, so that connections wait here since then, or longer."""


class Connection:
    """One connection, created by an endpoint."""

    __slots__ = (
        "_awake", "_budget", "_closing", "_components", "_ended", "_events", "_fast_receiver",
        "_fast_sender", "_idle_timer", "_migration", "_receiver", "_timers", "_transmitter", "_unadmitted",
        "_unannounced", "id",
        "idle_until", "is_awake", "peer_address", "peer_certificate", "role", "scheduled_at", "state",
    )  # fmt: skip

    def __init__(
        self,
        components: Components,
        address: Address,
        *,
        events: list[Event],
        awake: AwakeConnections,
        budget: ReceiveBudget,
        unadmitted: UnadmittedConnections | None,
    ) -> None:
        """`unadmitted`: the endpoint's connections without a login, if the application must admit this one first."""
        self.id = components.connection_id
        """The connection id in packets from the peer."""
        self.role: Role = components.role
        self.peer_address = address
        self.state = ConnectionState.CONNECTING
        self.scheduled_at: float | None = None
        """The time of the timer that the endpoint has scheduled for it."""
        self.is_awake = False
        """Whether it is in the endpoint's queue of connections that may have something to send or a new timer."""
        self.idle_until = 0.0
        """Set by next_train: until this time another call returns nothing and no timer is due, except one that is
        scheduled
        already. 0: unknown."""
        self._events = events
        self._awake = awake
        self._budget = budget
        self._unadmitted = unadmitted
        self._components = components
        components.admit(unadmitted is None)
        self._migration = PathMigration(components)
        self._closing: ClosingState
        self._ended: tuple[int, str]
        """Code and reason of the close. Not the event, which refers to the connection."""
        # Set by establish.
        self._transmitter: Transmitter
        self._receiver: PacketReceiver
        self._idle_timer: IdleTimer
        self._timers: ConnectionTimers
        self._fast_receiver: FastReceiver | None = None
        self._fast_sender: FastSender | None = None
        self.peer_certificate: PeerCertificate | None = None
        """Of a server: the certificate of its client, if there is one."""
        self._unannounced: bytes | None = None
        """Of a sealed connection of a server until its first packet opens: the application's bytes of the connect. Only
        then it is certain that nothing in the connect was changed on the way."""

    def wake(self) -> None:
        """Have the endpoint ask for trains and timers again."""
        if not self.is_awake:
            self.is_awake = True
            self._awake.append(self)

    def _wake_first(self) -> None:
        """Have the endpoint ask this connection next: subscribers wait for data, nothing waits for acknowledgements.

        While connections wait because the socket was full, it takes its turn behind them: they may have data too.
        A connection that always has something to send is always awake, so it takes its turn among the others.
        """
        self.is_awake = True
        if self._awake.is_interrupted:
            self._awake.append(self)
        else:
            self._awake.appendleft(self)

    def establish(
        self,
        *,
        peer_id: int,
        peer: Parameters,
        key: bytes,
        round_trip_s: float | None,
        now: float,
        protection: PacketProtection | None = None,
        token: bytes = b"",
    ) -> None:
        """Open the connection: the handshake is complete.

        `protection`: the keys of a sealed connection. `token`: what a server sends to a client on it to prove resets.
        """
        self.state = ConnectionState.OPEN
        self._components.protection = protection
        if token:
            self._components.control_frames.send_token(token)
        config = self._components.config
        idle_timeout_s = min(config.idle_timeout_s, peer.idle_timeout_ms / 1000)
        self._idle_timer = IdleTimer(
            role=self.role, now=now, idle_timeout_s=idle_timeout_s, keep_alive_s=config.keep_alive_s
        )
        excess = self._components.handle_peer(peer_id=peer_id, peer=peer, key=key, round_trip_s=round_trip_s, now=now)
        self._transmitter = Transmitter(self._components, now)
        self._receiver = PacketReceiver(self._components, self._transmitter)
        self._timers = ConnectionTimers(
            self._components,
            transmitter=self._transmitter,
            receiver=self._receiver,
            migration=self._migration,
            idle_timer=self._idle_timer,
        )
        policy = self._components.send_channels.policy
        if isinstance(policy, SelectiveRepeat):
            self._fast_receiver = FastReceiver(self._components, self._transmitter, policy)
            self._fast_sender = FastSender(self._components, self._transmitter, policy)
        if self.role == "client":
            self._components.control_frames.ping()  # the server learns immediately that its accept arrived
        if protection is not None and self.role == "server":
            self._unannounced = peer.application
        else:
            self._events.append(Connected(self, peer.application))
        self.wake()
        if excess:
            self.close(now, Code.LIMIT, excess)

    def handle_repeated_connect(self, address: Address) -> None:
        """Update the address of a client that has not received the accept and connects again, from a proved address."""
        if self._components.acknowledger.packets == 0:
            self.peer_address = address

    @property
    def is_admitted(self) -> bool:
        return self._unadmitted is None

    def admit(self) -> None:
        """Open all channels, because the application has identified the peer: see EndpointConfig.needs_admission."""
        if self._unadmitted is not None and self.state is _OPEN:
            self._unadmitted.remove(self.id)
            self._unadmitted = None
            self._components.admit()

    # -- the application's calls --------------------------------------------------------------------------------------

    def open_channel(self) -> int:
        """Open a channel towards the peer and return its number: 1, 2, 3, ... Channel 0 is always open.

        Raises ChannelError if the peer accepts no more channels, ConnectionClosedError if the connection has ended.
        """
        self._require_usable()
        return self._components.send_channels.open_channel()

    def send(self, channel: int, body: bytes, *, reliable: bool = True, last: bool = False) -> bool:
        """Queue a record and return whether it is sent reliably. Before the connection is open, records are kept.

        Arguments:
            channel: the number of an open channel.
            body: the bytes of the record.
            reliable: whether to send it until it is acknowledged. An unreliable record is sent reliably while a
            reliable
                record of its channel may still be in flight before it.
            last: whether to end the channel after this record.

        Raises ChannelError, RecordTooLargeError or SendBufferFullError if the record is not accepted, and
        ConnectionClosedError if the connection has ended.
        """
        if self.state is not _OPEN:
            self._require_usable()
        goes_reliably = self._components.send_channels.send(channel, body, reliable=reliable, last=last)
        if not self.is_awake:
            self._wake_first()
        return goes_reliably

    def consume(self, channel: int, body_bytes: int) -> None:
        """Return the credit of a received reliable record of this length to the peer.

        Raises UsageError if no such record was received, or if it was consumed before.
        """
        if self.state is not _OPEN:
            return  # the credit has no use any more
        if self._components.receive_channels.consume(channel, body_bytes):
            self.wake()

    def confirm(self, channel: int, sequence: int, reached: int) -> None:
        """Confirm all records of the peer's channel up to `sequence`; the last one reached `reached` subscribers."""
        if self.state is not _OPEN:
            self._require_usable()
        self._components.control_frames.confirm(channel, sequence, reached)
        if not self.is_awake:
            self.wake()

    def ping(self) -> None:
        """Ask the peer for an acknowledgement."""
        if self.state is _OPEN:
            self._components.control_frames.ping()
            self.wake()

    def close(self, now: float, code: int = Code.NORMAL, reason: str = "") -> None:
        """End the connection immediately and notify the peer. Unacknowledged records may be lost.

        Raises UsageError if `code` is out of range.
        """
        if not 0 <= code <= MAX_CODE:
            raise UsageError(f"a code of {code}: it lies between 0 and {MAX_CODE}")
        self._end(ConnectionState.CLOSING, now, code, reason, "local")

    def fail(self, now: float, code: int, reason: str, origin: Origin) -> None:
        """End the connection without sending a close: it was refused, reset or timed out."""
        self._end(ConnectionState.DRAINING, now, code, reason, origin)

    def _end(self, state: ConnectionState, now: float, code: int, reason: str, origin: Origin) -> None:
        if self.state is ConnectionState.CONNECTING:
            state = ConnectionState.CLOSED
        elif self.state is not ConnectionState.OPEN:
            return
        else:
            components = self._components
            frame = b""
            if state is ConnectionState.CLOSING:
                mac = handshake.close_mac(components.key, self.role, code, reason)
                frame = wire.encode_frame(wire.CloseFrame(code, reason, mac))
            self._closing = ClosingState(frame, now, components.recovery.round_trip.probe_timeout_s)
        self.state = state
        self._ended = code, reason
        self._components.release()
        self._budget.update(self, 0, now)
        if self._unannounced is None:
            self._events.append(Closed(self, code, reason, origin))
        self.wake()

    def handle_removed(self) -> None:
        """Send and receive nothing more, because the endpoint has removed the connection.

        Until then a sealed connection needs its keys, for the close and for the packets that still arrive.
        """
        self.state = ConnectionState.CLOSED
        self._components.release_keys()

    def _require_usable(self) -> None:
        if self.state is not _OPEN and self.state is not ConnectionState.CONNECTING:
            raise ConnectionClosedError(*self._ended)

    # -- input --------------------------------------------------------------------------------------------------------

    def handle_packets(self, data: bytes, at: int, segment_bytes: int, address: Address, now: float) -> int:
        """Handle the packets of a train from offset `at` on that are for this connection. Return the offset after
        them."""
        if address != self.peer_address or self.state is not ConnectionState.OPEN:
            stop = min(at + segment_bytes, len(data))
            self._receive_elsewhere(data[at:stop], address, now)
            return stop
        received = ReceivedFrames()
        at = self._receiver.handle_packets(data, at, segment_bytes, now, received)
        self._handle_received(received, now)
        return at

    def _handle_received(self, received: ReceivedFrames, now: float) -> None:
        """Pass on the content of a train, and update timers and budget."""
        self._idle_timer.handle_packets(self._components.acknowledger.packets, now)
        self._publish(received, now)
        self._components.receive_channels.settle()
        unfinished_bytes = self._components.receive_channels.unfinished_bytes
        if unfinished_bytes != self._budget.held.get(self, 0):
            self._budget.update(self, unfinished_bytes, now)
        self.wake()

    def handle_lone_packet(self, packet: bytes, address: Address, now: float) -> None:
        """Handle a train of one packet, which has at least the size of the smallest packet."""
        short, out = self._fast_receiver, self._fast_sender
        taken = NOT_HANDLED
        if short is not None and out is not None and self.state is _OPEN and address == self.peer_address:
            if packet[KIND_AT] == PING:
                taken = short.handle_ping(packet, now)
            else:
                taken = short.handle_packet(packet, self, now, self._events)
        if taken is NOT_HANDLED:
            Connection.handle_packets(self, packet, 0, len(packet), address, now)  # a subclass has opened it already
            return
        idle_timer = self._idle_timer
        idle_timer.packets += 1
        idle_timer.last_received_at = now
        if taken is ONLY_ACK and self.role == "server" and out is not None and out.is_idle(now):
            return  # no timer has moved to an earlier time (a client has one more timer: see IdleTimer.pause_at)
        if not self.is_awake:
            self.is_awake = True
            self._awake.append(self)

    def handle_timers(self, now: float) -> None:
        """Handle the timers that are due at `now`."""
        if self.state is _OPEN:
            idle_timer = self._idle_timer
            if now >= idle_timer.timeout_at:
                self.fail(
                    now, Code.TIMEOUT, f"nothing was received for {now - idle_timer.last_received_at:.1f} s", "timeout"
                )
            else:
                self._timers.handle(now)
        elif self.state is not ConnectionState.CLOSED and self._closing.is_over(now):
            self.state = ConnectionState.CLOSED
        self.wake()

    # -- output -------------------------------------------------------------------------------------------------------

    def next_train(self, now: float) -> Train | None:
        """Return the next train to send, or None."""
        self.idle_until = 0.0
        if self.state is not _OPEN:
            frame = self._closing.next_frame(now) if self.state is ConnectionState.CLOSING else None
            return self._lone(self.peer_address, frame) if frame else None
        short = self._fast_sender
        if short is not None:
            packet = short.next_packet(now)
            if packet is not None:
                self.idle_until = short.idle_until
                return Train(self.peer_address, packet, len(packet))
            if short.is_idle(now):
                self.idle_until = short.idle_until
                return None if self._migration.candidate is None else self._next_challenge(now)
        train = self._transmitter.next_train(now)
        if train is None and self._timers.ask_for_credit(now):
            train = self._transmitter.next_train(now)
        if train is not None:
            return Train(self.peer_address, *train)
        probe = self._transmitter.mtu_probe(now)
        if probe is not None:
            return Train(self.peer_address, probe, len(probe))
        return self._next_challenge(now)

    def _next_challenge(self, now: float) -> Train | None:
        challenge = self._migration.next_challenge(now)
        return None if challenge is None else self._lone(*challenge)

    def _lone(self, address: Address, frame: bytes) -> Train:
        number = self._transmitter.number()
        protection = self._components.protection
        if protection is None:
            packet = encode_packet(self._components.peer_id, number, frame)
        else:
            packet = protection.seal_frames(frame, number)
        return Train(address, packet, len(packet))

    def next_timer(self) -> float | None:
        """Return when handle_timers or next_train is due if no other input comes first, or None."""
        if self.state is _OPEN:
            return self._timers.next_timer()
        if self.state in (ConnectionState.CLOSING, ConnectionState.DRAINING):
            return self._closing.next_timer()
        return None

    # -- received packets ---------------------------------------------------------------------------------------------

    def _publish(self, received: ReceivedFrames, now: float) -> None:
        """Append the events of a received train."""
        events = self._events
        for channel, number, body, reliable, last in received.records:
            events.append(Received(self, channel, number, body, reliable, last))
        for confirm in received.confirms:
            if self._components.send_channels.handle_confirm(confirm.channel, confirm.sequence):
                events.append(ChannelConfirmed(self, confirm.channel, confirm.sequence, confirm.reached))
            else:
                self._components.dropped["old_confirm"] += 1
        if received.writable:
            events.append(Writable(self))
        if received.violation is not None:
            self._components.dropped[received.violation.reason] += 1
            self.close(now, _CODES.get(type(received.violation), Code.PROTOCOL), str(received.violation))
        elif received.close is not None:
            self._end(ConnectionState.DRAINING, now, received.close.code, received.close.reason, "peer")

    def _receive_elsewhere(self, packet: bytes, address: Address, now: float) -> None:
        """Handle a packet from another address than the peer's, or on a connection that is not open."""
        if self.state is not ConnectionState.OPEN:
            if self.state is ConnectionState.CLOSING and address == self.peer_address and crc32c(packet) == INTACT:
                self._closing.handle_packet(now)
            self._components.dropped["closed_connection"] += 1
        elif self.role == "client":
            self._components.dropped["wrong_address"] += 1
        elif (close := self._migration.proven_close(packet)) is not None:
            # An attacker may have replayed it, so it ends the connection but does not move it.
            self._end(ConnectionState.DRAINING, now, close.code, close.reason, "peer")
        elif self._migration.handle_packet(packet, address, now):
            self._move(address, now)
            # The packet that proves the address is the first one that is accepted from it. It is open already.
            Connection.handle_packets(self, packet, 0, len(packet), address, now)
        self.wake()

    def _move(self, address: Address, now: float) -> None:
        self._idle_timer.last_received_at = now
        if address[0] != self.peer_address[0]:
            # Another host address is another path. Only a new port is a NAT rebinding on the same path.
            self._components.handle_new_path(now, None)
        self.peer_address = address
        self._components.control_frames.ping()
        self._events.append(PathChanged(self, address))

    # -- getters ------------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed and can be removed."""
        return self.state is ConnectionState.CLOSED

    @property
    def unanswered_since(self) -> float | None:
        """Since when nothing was received although packets in flight ask for it; None if none is in flight."""
        if self.state is not _OPEN or not self._components.recovery.sent.runs:
            return None
        return max(self._idle_timer.last_received_at, self._components.recovery.sent.runs[0].flight.sent_at)

    @property
    def last_received_at(self) -> float:
        """When the last packet arrived; of an open connection."""
        return self._idle_timer.last_received_at

    @property
    def probe_timeout_s(self) -> float:
        """How long an acknowledgement may take before a probe is sent; of an open connection."""
        return self._components.recovery.round_trip.probe_timeout_s

    @property
    def round_trip_s(self) -> float:
        """The smoothed round trip; of an open connection."""
        return self._components.recovery.round_trip.smoothed_s

    @property
    def buffered_bytes(self) -> int:
        """The bytes that the connection holds for the application, in both directions."""
        return self._components.send_channels.buffered_bytes + self._components.receive_channels.held_bytes

    @property
    def binding(self) -> bytes:
        """The 32 bytes that both sides of this connection share and no other connection has: login proofs are bound to
        them.

        Raises UsageError before the connection is open.
        """
        if not hasattr(self, "_transmitter"):
            raise UsageError("the peer is not known yet: wait for the Connected event")
        return handshake.login_binding(self._components.key)

    @property
    def has_unsent(self) -> bool:
        """Whether anything was queued and never sent."""
        return self._components.send_channels.waiting_bytes > 0

    @property
    def unsent_bytes(self) -> int:
        """The bytes that were queued and never sent."""
        return self._components.send_channels.waiting_bytes

    @property
    def train_payload_bytes(self) -> int:
        """The record length that fills one train, which has the lowest cost per byte.

        Raises UsageError before the connection is open.
        """
        if self.state is ConnectionState.CONNECTING:
            raise UsageError("the path is not known yet: wait for the Connected event")
        return self._transmitter.train_payload_bytes()

    def add_to(self, totals: TransportTotals) -> None:
        """Add the counters of the connection to those of an endpoint."""
        if not hasattr(self, "_transmitter"):
            return
        components, transmitter = self._components, self._transmitter
        totals.packets_sent += transmitter.packets_sent
        totals.packets_received += components.acknowledger.packets
        totals.packets_lost += self._receiver.packets_lost
        totals.packets_spuriously_lost += components.recovery.spurious
        totals.bytes_sent += transmitter.bytes_sent
        totals.fragments_resent += transmitter.fragments_resent
        totals.unreliable_dropped += components.send_channels.unreliable_dropped

    @property
    def arq(self) -> Arq:
        """The retransmission scheme of both directions, which the client chooses."""
        components = self._components
        if components.role == "client" or not hasattr(self, "_transmitter"):
            return components.config.arq
        return components.peer.arq

    @property
    def statistics(self) -> Statistics:
        """The figures of the connection; all zero before it is open."""
        if not hasattr(self, "_transmitter"):
            return Statistics()
        components = self._components
        transmitter = self._transmitter
        return Statistics(
            packets_sent=transmitter.packets_sent,
            packets_received=components.acknowledger.packets,
            packets_lost=self._receiver.packets_lost,
            packets_spuriously_lost=components.recovery.spurious,
            bytes_sent=transmitter.bytes_sent,
            fragments_resent=transmitter.fragments_resent,
            unreliable_dropped=components.send_channels.unreliable_dropped,
            round_trip_s=components.recovery.round_trip.smoothed_s,
            shortest_trip_s=components.congestion.shortest_trip_s,
            bandwidth_bytes_per_s=components.congestion.bandwidth_bytes_per_s,
            window_bytes=components.congestion.window_bytes,
            in_flight_bytes=components.congestion.in_flight_bytes,
            datagram_bytes=transmitter.datagram_bytes(),
        )
