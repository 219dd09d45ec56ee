"""The connections of one socket: routes packets to them, opens and removes them, schedules their timers.

    input     connect, receive (a train), handle_timers, and the calls on its connections
    output    events, next_train (or trains), next_timer
    getters   connections, dropped, ended, buffered_bytes

Read all output after any input. `now` is in monotonic seconds, from one clock. Bytes from the network never raise:
dropped packets are counted in `dropped` under the reasons that docs/PROTOCOL.md lists.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final

import msgspec

from godwit.errors import DecodeError, UsageError
from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    CONNECT_COST,
    HANDSHAKE_COST_A_TURN,
    LARGEST_DATAGRAM_BYTES,
    MAX_ANSWERS_WAITING,
    MAX_SEALING,
    TLS_STEPS_A_TURN,
)
from godwit.transport.admission import SHARE, HandshakeQueue, ReceiveBudget, UnadmittedConnections, host_of
from godwit.transport.config import EndpointConfig
from godwit.transport.connection import AwakeConnections, Connection
from godwit.transport.connection_state import Components, ResetTokens, TransportTotals
from godwit.transport.events import Address, ConnectionState, Event, Role, Train
from godwit.transport.handshake import Acceptor, Dial, same
from godwit.transport.protection import SMALLEST_SEALED_BYTES, Suite, is_sealed
from godwit.transport.sealed_connection import SealedConnection
from godwit.transport.sealing import HalfOpen, Sealer, SealingHandshake, TlsError, choose_suite
from godwit.wire import packet as wire
from godwit.wire.control_base import Code
from godwit.wire.packet import HEADER, SMALLEST_PACKET_BYTES, VERSION, decode_packet, encode_packet
from godwit.wire.parameters import Parameters, decode_parameters, encode_parameters

SECRET_BYTES: Final = 32
_OPEN: Final = ConnectionState.OPEN
_HELLO_IN_ALL_VERSIONS: Final = struct.Struct(">BQ16s")


class Endpoint:
    """A client's endpoint, or with `config.accepts` a server's, which may also connect to others.

    Arguments:
        config: its limits and options.
        entropy: returns the given number of random bytes.
        budget: the receive budget, if it is shared with other endpoints.
        sealer: how connections are sealed; None: all packets are plain.
    """

    def __init__(
        self,
        config: EndpointConfig,
        *,
        entropy: Callable[[int], bytes],
        budget: ReceiveBudget | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        """The number of dropped packets, by reason."""
        self.ended = TransportTotals()
        """The counters of connections that have ended and are removed."""
        self.now = -inf
        """The time of the latest input."""
        self._config = config
        self._entropy = entropy
        self._budget = budget or ReceiveBudget(entropy)
        self._unadmitted = UnadmittedConnections(config.max_connections)
        self._sealer = sealer
        self._sealing = UnadmittedConnections(min(SHARE * MAX_SEALING, config.max_connections))
        """The TLS handshakes of a server, limited like connections without a login."""
        self._tls_waiting: deque[HalfOpen] = deque()
        """Handshakes with bytes for TLS, beyond those of this turn."""
        self._tls_at = -inf
        """The time of the last turn with TLS computations, and their number in it."""
        self._tls_steps = 0
        self._connections: dict[int, Connection] = {}
        self._dials: dict[int, Dial | HalfOpen] = {}
        """Connections that are not open yet: of a client, and the half-open ones of a server."""
        self._reset_tokens = ResetTokens()
        self._hosts: dict[int, str] = {}
        """The host of each accepted connection, if connections per host are limited. Migration does not change it."""
        self._from_host: Counter[str] = Counter()
        self._acceptor = Acceptor(
            secret=entropy(SECRET_BYTES),
            reset_key=config.reset_key or entropy(SECRET_BYTES),
            entropy=entropy,
            max_connections=config.max_connections,
        )
        self.pending_events: list[Event] = []
        """What the next call of `events` returns; always the same list. A caller that polls often tests it first."""
        self.standby_text = ""
        """Why this endpoint, of a standby, refuses all clients; empty if it does not."""
        self._answers: deque[Train] = deque()
        self._handshakes = HandshakeQueue()
        self._handshakes_at = -inf
        """The time of the last turn with handshakes, and their cost in it."""
        self._handshake_cost = 0
        self._handshakes_blocked: tuple[float, int] | None = None
        """Until when no waiting handshake can be handled, and the number of removed unadmitted connections then: after
        another removal one may be."""
        self.awake = AwakeConnections()
        """Connections that may have something to send or a new timer, in order of their turns. While it is empty,
        next_train of a client returns None; that of a server may return an answer to a packet without a connection."""
        self._timers: list[tuple[float, int]] = []

    # -- input --------------------------------------------------------------------------------------------------------

    def connect(self, address: Address, now: float, *, application: bytes = b"") -> Connection:
        """Start a connection and return it.

        Records may be queued on it immediately. A Connected or a Closed event reports the outcome.

        Raises UsageError if `max_connections` are open.
        """
        if len(self._connections) + len(self._dials) >= self._config.max_connections:
            raise UsageError(
                f"{self._config.max_connections} connections are open: close one, or raise max_connections"
            )
        parameters = self._config.parameters(application)
        session = None if self._sealer is None else self._sealer.new_session("client", address)
        suites: Sequence[Suite] = ()
        if self._sealer is not None and session is not None:
            suites = self._sealer.suites()
            parameters = msgspec.structs.replace(parameters, seal=tuple(suite.code for suite in suites))
        components = self._new_components("client", parameters)
        connection = self._new_connection(components, address, is_sealed=session is not None)
        if session is not None:
            components.reset_tokens = self._reset_tokens
        nonce = self._entropy(wire.NONCE_BYTES)
        self._dials[connection.id] = Dial(
            connection,
            nonce,
            encode_parameters(parameters),
            now,
            session=session,
            suites=suites,
            components=components,
        )
        connection.wake()
        return connection

    def receive(self, train: Train, now: float) -> None:
        """Handle a train of packets from one address."""
        self.now = now
        data = train.data
        segment_bytes = train.segment_bytes
        connections = self._connections
        if SMALLEST_PACKET_BYTES <= len(data) <= segment_bytes:
            connection = connections.get(int.from_bytes(data[1:9], "big"))
            if connection is not None:
                connection.handle_lone_packet(data, train.address, now)
                return
        at = 0
        while at < len(data):
            connection = connections.get(int.from_bytes(data[at + 1 : at + 9], "big"))
            if connection is not None and min(segment_bytes, len(data) - at) >= SMALLEST_PACKET_BYTES:
                at = connection.handle_packets(data, at, segment_bytes, train.address, now)
            else:
                self._handle_stray(data[at : at + segment_bytes], train.address, now)
                at += segment_bytes

    def handle_timers(self, now: float) -> None:
        """Handle the timers that are due at `now`."""
        self.now = now
        timers = self._timers
        while timers and timers[0][0] <= now:
            due_at, connection_id = timers[0]
            owner = self._connections.get(connection_id) or self._dials.get(connection_id)
            if owner is None or owner.scheduled_at != due_at:
                heappop(timers)
                continue
            owner.scheduled_at = due = owner.idle_until if owner.idle_until > now else owner.next_timer()
            if due is not None and due > now:
                heapreplace(timers, (due, connection_id))
                continue
            heappop(timers)
            owner.scheduled_at = None
            owner.handle_timers(now)
        queue = self._handshakes
        if queue.hellos or queue.connects:  # without a call, because timers are frequent and handshakes rare
            self._handle_waiting(now)
        if self._tls_waiting:
            self._handle_tls_waiting(now)

    # -- output -------------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """Return and clear the events since the last call."""
        events = self.pending_events[:]
        self.pending_events.clear()
        return events

    def next_train(self, now: float) -> Train | None:
        """Return the next train to send, or None. A train that the caller does not send counts as lost."""
        awake = self.awake
        if self._answers:
            awake.is_interrupted = bool(awake)
            return self._answers.popleft()
        while awake:
            connection = awake[0]
            owner = connection if connection.state is _OPEN else self._dials.get(connection.id) or connection
            train = owner.next_train(now)
            if train is not None and not connection.idle_until:
                awake.rotate(-1)  # connections take turns
                awake.is_interrupted = True
                return train
            awake.popleft()
            connection.is_awake = False
            if connection.state is not _OPEN and owner.is_over:
                self._forget(connection.id)
            elif connection.scheduled_at is None or connection.scheduled_at > connection.idle_until:
                # A timer that is scheduled for an earlier time will schedule this one again.
                due = owner.idle_until if owner.idle_until > now else owner.next_timer()
                if due is not None and (owner.scheduled_at is None or due < owner.scheduled_at):
                    owner.scheduled_at = due
                    heappush(self._timers, (due, connection.id))
                    if len(self._timers) > 4 * (len(self._connections) + len(self._dials)) + 64:
                        self._drop_old_timers()
            if train is not None:
                awake.is_interrupted = bool(awake)
                return train
        awake.is_interrupted = False
        return None

    def trains(self, now: float) -> list[Train]:
        """Return all trains that may be sent now."""
        return list(iter(lambda: self.next_train(now), None))

    def next_timer(self) -> float | None:
        """Return when handle_timers is due if no other input comes first, or None."""
        timers = self._timers
        due_at = None
        while timers:
            first_at, connection_id = timers[0]
            owner = self._connections.get(connection_id) or self._dials.get(connection_id)
            if owner is not None and owner.scheduled_at == first_at:
                due_at = first_at
                break
            heappop(timers)
        queue = self._handshakes
        if self._tls_waiting:
            return self.now
        if not queue.hellos and not queue.connects:
            return due_at
        handshake_at = self.now
        if self._handshakes_blocked is not None and self._handshakes_blocked[1] == self._removals():
            handshake_at = max(handshake_at, self._handshakes_blocked[0])
        return handshake_at if due_at is None else min(due_at, handshake_at)

    # -- getters ------------------------------------------------------------------------------------------------------

    @property
    def connections(self) -> Mapping[int, Connection]:
        """The connections that are open or closing, by id."""
        return self._connections

    @property
    def buffered_bytes(self) -> int:
        """The bytes that all connections hold for their applications."""
        dialing = sum(dial.connection.buffered_bytes for dial in self._dials.values())
        return dialing + sum(connection.buffered_bytes for connection in self._connections.values())

    @property
    def waiting_handshakes(self) -> int:
        """The number of clients whose hello, connect or TLS handshake waits for its turn."""
        return len(self._handshakes) + len(self._tls_waiting)

    # -- connections --------------------------------------------------------------------------------------------------

    def _new_components(self, role: Role, discipline: Parameters) -> Components:
        connection_id = 0
        while connection_id == 0 or connection_id in self._connections or connection_id in self._dials:
            connection_id = int.from_bytes(self._entropy(8), "big")
        return Components(
            role=role,
            connection_id=connection_id,
            config=self._config,
            discipline=discipline,
            dropped=self.dropped,
            entropy=self._entropy,
        )

    def _new_connection(self, components: Components, address: Address, *, is_sealed: bool) -> Connection:
        needs_admission = components.role == "server" and self._config.needs_admission
        return (SealedConnection if is_sealed else Connection)(
            components,
            address,
            events=self.pending_events,
            awake=self.awake,
            budget=self._budget,
            unadmitted=self._unadmitted if needs_admission else None,
        )

    def _drop_old_timers(self) -> None:
        """Rebuild the heap without timers that an earlier one has replaced, before they become many."""
        owners: list[tuple[int, Dial | HalfOpen | Connection]] = [*self._dials.items(), *self._connections.items()]
        self._timers = [(owner.scheduled_at, key) for key, owner in owners if owner.scheduled_at is not None]
        heapify(self._timers)

    def _forget(self, connection_id: int) -> None:
        if self._dials.pop(connection_id, None) is not None:
            self._sealing.remove(connection_id)
            self._forget_host(connection_id)
            return
        connection = self._connections.pop(connection_id, None)
        if connection is None:
            return  # removed before
        connection.add_to(self.ended)
        connection.handle_removed()
        self._unadmitted.remove(connection_id)
        self._reset_tokens.remove(connection_id)
        self._forget_host(connection_id)

    def _forget_host(self, connection_id: int) -> None:
        host = self._hosts.pop(connection_id, None)
        if host is not None:
            self._from_host[host] -= 1
            if not self._from_host[host]:
                del self._from_host[host]

    # -- packets without an open connection ---------------------------------------------------------------------------

    def _handle_stray(self, packet: bytes, address: Address, now: float) -> None:
        if self._handshakes and len(packet) > HEADER.size and self._handshakes.is_repeat(packet, address, now):
            return
        try:
            reason = self._handle_unconnected(packet, address, now)
        except DecodeError as error:
            reason = error.reason
            if reason == "version" and self._config.accepts and len(packet) >= BASE_DATAGRAM_BYTES:
                self._refuse_version(packet, address)
        self._count_drop(reason)

    def _handle_unconnected(self, packet: bytes, address: Address, now: float) -> str | None:
        """Handle a packet without an open connection. Return the reason to drop it, or None if it was used."""
        if is_sealed(packet) and SMALLEST_SEALED_BYTES <= len(packet) <= LARGEST_DATAGRAM_BYTES:
            return self._handle_sealed_stray(packet, address, now)
        connection_id, _, content = decode_packet(packet)
        dial = self._dials.get(connection_id)
        if dial is None and connection_id != 0:
            if self._config.accepts:
                self._answer(address, self._acceptor.reset(connection_id, len(packet), now))
            return "unknown_connection"
        # Only the first frame is decoded, because any host can send such a packet.
        frame = wire.decode_first_frame(content)
        if isinstance(dial, HalfOpen):
            return self._handle_half_open_frame(dial, frame, address, now)
        if dial is not None:
            return self._handle_dial_frame(dial, frame, address, now)
        if isinstance(frame, wire.ResetFrame):
            return self._handle_reset(frame, address, now)
        if not self._config.accepts:
            return "unasked_handshake"
        if isinstance(frame, wire.HelloFrame):
            if len(packet) >= BASE_DATAGRAM_BYTES and self._must_wait(1, now):
                self._handshakes_blocked = None
                return None if self._handshakes.add_hello(frame, address, now) else "handshake_overflow"
            return self._handle_hello(frame, len(packet), address, now)
        if isinstance(frame, wire.ConnectFrame):
            if not self._acceptor.is_proven(frame, address, now):
                return "bad_cookie"
            # A client whose accept was lost has its slot already: its repeat waits for nothing.
            if self._acceptor.repeated(frame, now) is None and (
                self._must_wait(CONNECT_COST, now) or self._free_at(host_of(address), now) > now
            ):
                self._handshakes_blocked = None
                return None if self._handshakes.add_connect(frame, address, now) else "handshake_overflow"
            return self._handle_connect(frame, address, now)
        return "unasked_handshake"

    def _must_wait(self, cost: int, now: float) -> bool:
        """Return whether a handshake waits because others do, or because this turn has had enough of them."""
        if self._handshakes:
            return True
        if now != self._handshakes_at:
            self._handshakes_at = now
            self._handshake_cost = 0
        self._handshake_cost += cost
        return self._handshake_cost > HANDSHAKE_COST_A_TURN

    def _free_at(self, host: str, now: float) -> float:
        """Return when another connect of this host can be handled: now, or later."""
        return max(self._unadmitted.free_at(host, now), self._sealing.free_at(host, now))

    def _removals(self) -> int:
        return self._unadmitted.removals + self._sealing.removals

    def _handle_waiting(self, now: float) -> None:
        """Handle as many waiting handshakes as a turn allows. The next turn follows at once, see next_timer.

        Connects and hellos alternate: no more cookies are issued than connects are handled, and clients that send
        connects without end do not keep others from getting a cookie.
        """
        queue = self._handshakes
        cost = 0
        self._handshakes_blocked = None
        while cost < HANDSHAKE_COST_A_TURN:
            connect = queue.next_connect(self._free_at, now)
            if not isinstance(connect, float):
                cost += CONNECT_COST
                self._count_drop(self._handle_connect(*connect, now))
            hello = queue.next_hello(now)
            if hello is not None:
                cost += 1
                self._count_drop(self._handle_hello(hello[0], BASE_DATAGRAM_BYTES, hello[1], now))
            elif isinstance(connect, float):
                self._handshakes_blocked = connect, self._removals()
                return

    def _count_drop(self, reason: str | None) -> None:
        if reason is not None:
            self.dropped[reason] += 1

    def _handle_hello(self, frame: wire.HelloFrame, packet_bytes: int, address: Address, now: float) -> str | None:
        cookie = self._acceptor.handle_hello(frame, packet_bytes, address, now)
        self._answer(address, cookie)
        return "short_hello" if cookie is None else None

    def _answer(self, address: Address, packet: bytes | None) -> None:
        if packet is None:
            return
        if len(self._answers) >= MAX_ANSWERS_WAITING:
            self.dropped["answer_overflow"] += 1
        else:
            self._answers.append(Train(address, packet, len(packet)))

    def _handle_dial_frame(self, dial: Dial, frame: wire.Frame, address: Address, now: float) -> str | None:
        connection = dial.connection
        if address != connection.peer_address:
            return "wrong_address"
        if dial.is_over:
            return "late_handshake"
        reason = dial.handle_frame(frame, now)
        self._move_if_open(dial)
        connection.wake()
        return reason

    def _move_if_open(self, dial: Dial) -> None:
        connection = dial.connection
        if connection.state in (ConnectionState.OPEN, ConnectionState.CLOSING):
            del self._dials[connection.id]
            self._connections[connection.id] = connection
            if dial.token:
                self._reset_tokens.add(connection.id, dial.token)

    def _handle_reset(self, frame: wire.ResetFrame, address: Address, now: float) -> str | None:
        connection = self._connections.get(self._reset_tokens.connection_id(frame.token))
        if connection is None or connection.peer_address != address:
            return "forged_reset"
        connection.fail(now, Code.RESET, "the peer was restarted and does not know the connection", "reset")
        return None

    def _handle_connect(self, frame: wire.ConnectFrame, address: Address, now: float) -> str | None:
        """Accept or refuse a client whose cookie is right. Return the reason to count, or None."""
        again = self._acceptor.repeated(frame, now)
        if again is not None:
            packet, connection_id = again
            if connection_id in self._connections:
                self._connections[connection_id].handle_repeated_connect(address)
            elif isinstance(half_open := self._dials.get(connection_id), HalfOpen):
                half_open.handle_repeated_connect(address)
            self._answer(address, packet)
            return "repeated_connect"
        if self.standby_text:
            self._answer(address, self._acceptor.refuse(frame, Code.STANDBY, self.standby_text, now))
            return "standby"
        try:
            peer = decode_parameters(frame.parameters)
        except DecodeError as error:
            self._answer(address, self._acceptor.refuse(frame, Code.PROTOCOL, str(error), now))
            return error.reason
        if self._sealer is not None and isinstance(peer.seal, tuple):
            return self._accept_sealed(self._sealer, frame, peer, peer.seal, address, now)
        if self._sealer is not None and (problem := self._sealer.plain_problem(address)):
            self._answer(address, self._acceptor.refuse(frame, Code.SEALING, problem, now))
            return "plain_refused"
        reason = self._too_many(address) or self._make_room(address, now)
        if reason:
            self._answer(address, self._acceptor.refuse(frame, Code.BUSY, reason, now))
            return "busy"
        components = self._new_components("server", peer)
        connection = self._new_connection(components, address, is_sealed=False)
        parameters = encode_parameters(self._config.parameters(b""))
        packet, key = self._acceptor.accept(frame, connection.id, parameters, now)
        self._answer(address, packet)
        self._connections[connection.id] = connection
        if not connection.is_admitted:
            self._unadmitted.add(connection.id, address, now)
        self._note_host(connection.id, address)
        connection.establish(peer_id=frame.connection_id, peer=peer, key=key, round_trip_s=None, now=now)
        return None

    def _note_host(self, connection_id: int, address: Address) -> None:
        if self._config.max_connections_per_host is not None:
            host = self._hosts[connection_id] = host_of(address)
            self._from_host[host] += 1

    # -- sealed connections that are not open yet ---------------------------------------------------------------------

    def _accept_sealed(
        self,
        sealer: Sealer,
        frame: wire.ConnectFrame,
        peer: Parameters,
        offered: Sequence[int],
        address: Address,
        now: float,
    ) -> str | None:
        """Accept a client that seals, and begin the TLS handshake. Return the reason to count, or None."""
        suite = choose_suite(offered, sealer.suites())
        session = sealer.new_session("server", address)
        if suite is None or session is None:
            names = ", ".join(one.name for one in sealer.suites())
            problem = f"none of the ciphers that this client offers is known here: {names} are"
            self._answer(address, self._acceptor.refuse(frame, Code.SEALING, problem, now))
            return "no_common_cipher"
        reason = self._too_many(address) or self._make_room(address, now) or self._make_sealing_room(address, now)
        if reason:
            self._answer(address, self._acceptor.refuse(frame, Code.BUSY, reason, now))
            return "busy"
        components = self._new_components("server", peer)
        connection = self._new_connection(components, address, is_sealed=True)
        parameters = msgspec.structs.replace(self._config.parameters(b""), seal=(suite.code,))
        packet, context, token = self._acceptor.accept_sealed(frame, connection.id, encode_parameters(parameters), now)
        self._answer(address, packet)
        handshake = SealingHandshake("server", session, suite, context, components, None)
        half_open = HalfOpen(
            connection, handshake, peer=peer, peer_id=frame.connection_id, nonce=frame.nonce, token=token, now=now
        )
        self._dials[connection.id] = half_open
        self._sealing.add(connection.id, address, now)
        self._note_host(connection.id, address)
        connection.wake()
        return None

    def _make_sealing_room(self, address: Address, now: float) -> str:
        """Find a slot for a new TLS handshake, if necessary that of another. Return why that fails, or ""."""
        is_full = self._sealing.is_full()
        victim = self._sealing.victim(address, now, must_have=is_full)
        if victim is not None:
            self._abandon(self._dials[victim])
            self.dropped["evicted"] += 1
        elif is_full:
            return "too many clients are connecting: try again later"
        return ""

    def _abandon(self, half_open: Dial | HalfOpen) -> None:
        if isinstance(half_open, HalfOpen):
            half_open.abandon()
        self._forget(half_open.connection.id)

    def _handle_sealed_stray(self, packet: bytes, address: Address, now: float) -> str | None:
        """Handle a sealed packet without an open connection."""
        connection_id = int.from_bytes(packet[1:9], "big")
        dial = self._dials.get(connection_id)
        if isinstance(dial, Dial):
            if address != dial.connection.peer_address:
                return "wrong_address"
            reason = dial.handle_sealed(packet, now)
            self._move_if_open(dial)
            if connection_id in self._connections:
                dial.connection.handle_packets(packet, 0, len(packet), address, now)
            return reason
        if dial is not None:
            return "early_sealed"
        if self._config.accepts:
            self._answer(address, self._acceptor.reset(connection_id, len(packet), now))
        return "unknown_connection"

    def _handle_half_open_frame(
        self, half_open: HalfOpen, frame: wire.Frame, address: Address, now: float
    ) -> str | None:
        connection = half_open.connection
        if address != connection.peer_address:
            return "wrong_address"
        if half_open.is_over:
            return "late_handshake"
        if isinstance(frame, wire.RefuseFrame) and same(frame.nonce, half_open.nonce):
            self._abandon(half_open)
            return "client_refused"
        if not isinstance(frame, wire.CryptoFrame):
            return "unasked_handshake"
        was_waiting = bool(half_open.waiting)
        if half_open.handle_frame(frame, now) and not was_waiting:
            if now != self._tls_at:
                self._tls_at = now
                self._tls_steps = 0
            if self._tls_waiting or self._tls_steps >= TLS_STEPS_A_TURN:
                self._tls_waiting.append(half_open)
            else:
                self._tls_steps += 1
                return self._step_tls(half_open, now)
        connection.wake()
        return None

    def _handle_tls_waiting(self, now: float) -> None:
        """Continue as many TLS handshakes as a turn allows."""
        for _ in range(min(TLS_STEPS_A_TURN, len(self._tls_waiting))):
            half_open = self._tls_waiting.popleft()
            if not half_open.is_over:
                self._count_drop(self._step_tls(half_open, now))

    def _step_tls(self, half_open: HalfOpen, now: float) -> str | None:
        """Hand the bytes of a client to TLS. Open the connection if that completes the handshake."""
        connection = half_open.connection
        data = bytes(half_open.waiting)
        half_open.waiting.clear()
        handshake = half_open.handshake
        try:
            handshake.handle_data(data, now)
        except TlsError as error:
            refusal = wire.encode_frame(wire.RefuseFrame(half_open.nonce, Code.SEALING, str(error)))
            self._answer(connection.peer_address, encode_packet(half_open.peer_id, 0, refusal))
            self._abandon(half_open)
            return "tls_failed"
        if handshake.protection is not None:
            del self._dials[connection.id]
            self._sealing.remove(connection.id)
            self._connections[connection.id] = connection
            connection.peer_certificate = handshake.peer_certificate
            if not connection.is_admitted:
                self._unadmitted.add(connection.id, connection.peer_address, now)
            connection.establish(
                peer_id=half_open.peer_id,
                peer=half_open.peer,
                key=handshake.key,
                round_trip_s=handshake.stream.round_trip_s,
                now=now,
                protection=handshake.protection,
                token=half_open.token,
            )
        connection.wake()
        return None

    def _too_many(self, address: Address) -> str:
        """Return why no more connections are accepted from this host, or an empty string."""
        most_a_host = self._config.max_connections_per_host
        if most_a_host is not None and self._from_host[host_of(address)] >= most_a_host:
            return f"{most_a_host} connections from {address[0]} are open, which is the limit for one host: close one"
        return ""

    def _make_room(self, address: Address, now: float) -> str:
        """Find a slot for a new connection, if necessary that of one without a login. Return why there is none, or
        ""."""
        most = self._config.max_connections
        is_full = len(self._connections) + len(self._dials) >= most
        must_have = is_full or (self._config.needs_admission and self._unadmitted.is_full())
        victim = self._unadmitted.victim(address, now, must_have=must_have)
        if victim is not None:
            # Removed immediately, because a closing connection occupies a slot. Its late packets are answered with
            # resets.
            evicted = self._connections[victim]
            evicted.close(now, Code.BUSY, "it had no login, and others need its slot")
            close = evicted.next_train(now)
            if close is not None:
                self._answer(close.address, close.data)
            self._forget(victim)
            self.dropped["evicted"] += 1
        elif must_have:
            return f"{most} connections are open, or too many of them without a login: try again later"
        return ""

    def _refuse_version(self, packet: bytes, address: Address) -> None:
        """Answer a hello of another version with the version of this server. Its fields have the same layout in all
        versions."""
        kind, connection_id, nonce = _HELLO_IN_ALL_VERSIONS.unpack_from(packet, HEADER.size)
        if kind == wire.HELLO:
            reason = f"version {packet[0] >> 4} is not spoken here: use version {VERSION}"
            frame = wire.encode_frame(wire.RefuseFrame(nonce, Code.VERSION, reason))
            self._answer(address, encode_packet(connection_id, 0, frame))
