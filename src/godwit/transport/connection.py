"""One peer: joins the parts of a connection and drives them. Sans-IO, as everything here.

    the application's calls   open_channel, send, consume, confirm, close
    feed                      receive (packets of a train), handle_timers
    drain                     next_train, next_timer; events go to the list that the endpoint gave
    look                      state, peer_address, statistics, buffered_bytes

The states are in state.py.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from crc32c import crc32c

from godwit.errors import ConnectionClosedError, UsageError
from godwit.transport import handshake, statistics
from godwit.transport.arq import SelectiveRepeat
from godwit.transport.budget import ReceiveBudget
from godwit.transport.events import Closed, Confirmed, Connected, Event, Origin, PathChanged, Received, Writable
from godwit.transport.farewell import Farewell
from godwit.transport.handshake import Role
from godwit.transport.inbound import Delivery, Inbound
from godwit.transport.parts import Parts
from godwit.transport.path import Roaming
from godwit.transport.receive import LimitError, NotAdmittedError
from godwit.transport.short_in import NOT_TAKEN, ONLY_ACK, ShortInbound
from godwit.transport.short_out import ShortOutbound
from godwit.transport.silence import Silence
from godwit.transport.state import State
from godwit.transport.statistics import Statistics
from godwit.transport.timers import Timers
from godwit.transport.train import Address, Train
from godwit.transport.transmit import Transmitter
from godwit.transport.unadmitted import UnadmittedConnections
from godwit.wire import frames as wire
from godwit.wire.control import Code
from godwit.wire.packet import INTACT, encode_packet
from godwit.wire.parameters import Parameters

__all__ = ["Connection", "State", "Statistics"]

MAX_CODE: Final = 0xFFFF


_OPEN: Final = State.OPEN
_CODES: Final = {LimitError: Code.LIMIT, NotAdmittedError: Code.NOT_LOGGED_IN}
"""What a connection is closed with whose peer broke the protocol; PROTOCOL for all other errors."""


class Connection:
    """Made by an endpoint only."""

    __slots__ = (
        "__weakref__", "_awake", "_budget", "_ended", "_events", "_farewell", "_inbound", "_parts", "_roaming",
        "_short_in", "_short_out", "_silence", "_timers", "_transmitter", "_unadmitted", "id", "is_awake",
        "peer_address", "rests_until", "role", "scheduled_at", "state",
    )  # fmt: skip

    def __init__(
        self,
        parts: Parts,
        address: Address,
        *,
        events: list[Event],
        awake: deque[Connection],
        budget: ReceiveBudget,
        unadmitted: UnadmittedConnections | None,
    ) -> None:
        """`unadmitted`: where it stands until the application admits it. None: it is admitted."""
        self.id = parts.connection_id
        """What the peer puts into its packets."""
        self.role: Role = parts.role
        self.peer_address = address
        self.state = State.CONNECTING
        self.scheduled_at: float | None = None
        """The endpoint's note: when it will look at the timers."""
        self.is_awake = False
        """Whether it stands in the endpoint's queue of those that may have something to send, or another timer."""
        self.rests_until = 0.0
        """After next_train: another call would give nothing, and no timer is due before this, unless one stands at an
        earlier time already. 0: unknown."""
        self._events = events
        self._awake = awake
        self._budget = budget
        self._unadmitted = unadmitted
        self._parts = parts
        parts.admit(unadmitted is None)
        self._roaming = Roaming(parts)
        self._farewell: Farewell
        self._ended: tuple[int, str]
        """Code and reason of the end. Not the event: that refers back to the connection."""
        # Set by establish.
        self._transmitter: Transmitter
        self._inbound: Inbound
        self._silence: Silence
        self._timers: Timers
        self._short_in: ShortInbound | None = None
        self._short_out: ShortOutbound | None = None

    def wake(self) -> None:
        """The endpoint is to ask it for trains and timers again."""
        if not self.is_awake:
            self.is_awake = True
            self._awake.append(self)

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
        self._timers = Timers(
            self._parts,
            transmitter=self._transmitter,
            inbound=self._inbound,
            roaming=self._roaming,
            silence=self._silence,
        )
        policy = self._parts.sending.policy
        if isinstance(policy, SelectiveRepeat):
            self._short_in = ShortInbound(self._parts, self._transmitter, policy)
            self._short_out = ShortOutbound(self._parts, self._transmitter, policy)
        if self.role == "client":
            self._parts.announcements.ping()  # the server hears at once that its accept arrived
        self._events.append(Connected(self, peer.application))
        self.wake()
        if excess:
            self.close(now, Code.LIMIT, excess)

    def on_repeated_connect(self, address: Address) -> None:
        """The client has not heard the accept, and perhaps fetched a new cookie from a new address, which proves it."""
        if self._parts.acknowledger.packets == 0:
            self.peer_address = address

    @property
    def is_admitted(self) -> bool:
        return self._unadmitted is None

    def admit(self) -> None:
        """Open all channels, because the application knows who the peer is: see EndpointConfig.needs_admission."""
        if self._unadmitted is not None and self.state is _OPEN:
            self._unadmitted.remove(self.id)
            self._unadmitted = None
            self._parts.admit()

    # -- the application's calls --------------------------------------------------------------------------------------

    def open_channel(self) -> int:
        """A new channel towards the peer: 1, 2, 3 and so on. Channel 0 is always there."""
        self._require_usable()
        return self._parts.sending.open_channel()

    def send(self, channel: int, body: bytes, *, reliable: bool = True, last: bool = False) -> bool:
        """Queues a record. `last` ends the channel behind it. Before the connection is open, records wait.

        An unreliable record goes reliably while a reliable one of its channel may still be under way before it. Gives
        whether it goes reliably.
        """
        if self.state is not _OPEN:
            self._require_usable()
        goes_reliably = self._parts.sending.send(channel, body, reliable=reliable, last=last)
        self.wake()
        return goes_reliably

    def consume(self, channel: int, body_bytes: int) -> None:
        """The application has taken a received record of this length: the peer may send as much again."""
        if self.state is not _OPEN:
            return  # nobody wants to hear of it any more
        if self._parts.receiving.consume(channel, body_bytes):
            self.wake()

    def confirm(self, channel: int, sequence: int, reached: int) -> None:
        """Tells the peer that everything on its channel up to `sequence` is safe, and how many the last one reached."""
        if self.state is not _OPEN:
            self._require_usable()
        self._parts.announcements.confirm(channel, sequence, reached)
        if not self.is_awake:
            self.wake()

    def close(self, now: float, code: int = Code.NORMAL, reason: str = "") -> None:
        """Ends the connection at once and tells the peer. What was not acknowledged yet may be lost."""
        if not 0 <= code <= MAX_CODE:
            raise UsageError(f"a code of {code}: it lies between 0 and {MAX_CODE}")
        self._end(State.CLOSING, now, code, reason, "local")

    def fail(self, now: float, code: int, reason: str, origin: Origin) -> None:
        """It has ended without a word of close: refused, reset or timed out."""
        self._end(State.DRAINING, now, code, reason, origin)

    def _end(self, state: State, now: float, code: int, reason: str, origin: Origin) -> None:
        if self.state is State.CONNECTING:
            state = State.CLOSED
        elif self.state is not State.OPEN:
            return
        else:
            parts = self._parts
            frame = b""
            if state is State.CLOSING:
                mac = handshake.close_mac(parts.key, self.role, code, reason)
                frame = wire.encode_frame(wire.Close(code, reason, mac))
            self._farewell = Farewell(frame, now, parts.recovery.round_trip.probe_timeout_s())
        self.state = state
        self._ended = code, reason
        self._parts.release()
        self._budget.update(self, 0, now)
        self._events.append(Closed(self, code, reason, origin))
        self.wake()

    def _require_usable(self) -> None:
        if self.state is not _OPEN and self.state is not State.CONNECTING:
            raise ConnectionClosedError(*self._ended)

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
        self._parts.receiving.settle()
        self._budget.update(self, self._parts.receiving.unfinished_bytes, now)
        self.wake()
        return at

    def receive_lone(self, packet: bytes, address: Address, now: float) -> None:
        """As receive, for a train of one packet that is long enough to be one."""
        short, out = self._short_in, self._short_out
        taken = NOT_TAKEN
        if short is not None and out is not None and self.state is _OPEN and address == self.peer_address:
            taken = short.receive(packet, self, now, self._events)
        if taken is NOT_TAKEN:
            self.receive(packet, 0, len(packet), address, now)
            return
        silence = self._silence
        silence.packets += 1
        silence.heard_at = now
        if taken is ONLY_ACK and self.role == "server" and out is not None and out.rests(now):
            return  # its timers have moved away, if at all (but a client that hears much has one more)
        if not self.is_awake:
            self.is_awake = True
            self._awake.append(self)

    def handle_timers(self, now: float) -> None:
        """Does what is due. Call it when next_timer has come."""
        if self.state is _OPEN:
            silence = self._silence
            if now >= silence.too_long_at:
                self.fail(now, Code.TIMEOUT, f"nothing was heard for {now - silence.heard_at:.1f} s", "timeout")
            else:
                self._timers.handle(now)
        elif self.state is not State.CLOSED and now >= self._farewell.ends_at:
            self.state = State.CLOSED
        self.wake()

    # -- drain --------------------------------------------------------------------------------------------------------

    def next_train(self, now: float) -> Train | None:
        """The next thing that may be sent now."""
        self.rests_until = 0.0
        if self.state is not _OPEN:
            frame = self._farewell.take(now) if self.state is State.CLOSING else None
            return self._lone(self.peer_address, frame) if frame else None
        short = self._short_out
        if short is not None:
            packet = short.packet(now)
            if packet is not None:
                self.rests_until = short.rests_until
                return Train(self.peer_address, packet, len(packet))
            if short.rests(now):
                self.rests_until = short.rests_until
                return self._next_challenge(now)
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
        challenge = self._roaming.take_challenge(now)
        return None if challenge is None else self._lone(*challenge)

    def _lone(self, address: Address, frame: bytes) -> Train:
        packet = encode_packet(self._parts.peer_id, self._transmitter.number(), frame)
        return Train(address, packet, len(packet))

    def next_timer(self) -> float | None:
        """When handle_timers and next_train want to be called, if nothing else happens before."""
        if self.state is _OPEN:
            return self._timers.next_timer()
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
            self.close(now, _CODES.get(type(delivery.violation), Code.PROTOCOL), str(delivery.violation))
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
        elif (close := self._roaming.proven_close(packet)) is not None:
            # Perhaps repeated by somebody else: so it ends the connection, but moves it nowhere.
            self._end(State.DRAINING, now, close.code, close.reason, "peer")
        elif self._roaming.on_packet(packet, address, now):
            self._move(address, now)
            # The packet that proves the address is the first one that is taken from there.
            self.receive(packet, 0, len(packet), address, now)
        self.wake()

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
    def binding(self) -> bytes:
        """32 bytes that both sides of this connection share, and no other connection: a proof of a name is made for
        them, so that it is worth nothing elsewhere."""
        if not hasattr(self, "_transmitter"):
            raise UsageError("the other side is not known yet: wait for the Connected event")
        return handshake.login_binding(self._parts.key)

    @property
    def has_unsent(self) -> bool:
        """Whether anything waits to be sent for the first time."""
        return self._parts.sending.waiting_bytes > 0

    @property
    def unsent_bytes(self) -> int:
        """How much waits to be sent for the first time."""
        return self._parts.sending.waiting_bytes

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
        return statistics.gather(self._parts, self._transmitter, self._inbound)
