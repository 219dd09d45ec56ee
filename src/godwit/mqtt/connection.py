"""One MQTT connection: login, subscriptions, keep alive, and the reason codes of everything that ends it.

    new --CONNECT--> login --welcome of the core--> open --DISCONNECT, error, close of the core--> closing
     |                 ^
     +-CONNECT, AUTH---+   with enhanced authentication (SCRAM-SHA-256)

Packets that follow the CONNECT wait for the welcome. A connection stops reading while too many of its messages wait for
the log.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from godwit.broker.dirty_state import TABLE_KEY
from godwit.broker.effects import Notice, refusal_notice
from godwit.broker.ports import Credentials, FilterRequest, PathStatus, Peer, RequestFailure
from godwit.broker.quotas import Bucket
from godwit.broker.session import Session
from godwit.broker.subscription import FilterTable
from godwit.limits import KIB, MAX_WILL_BYTES, REQUESTS_PER_S
from godwit.mqtt.encoding import (
    PINGRESP,
    encode_connack,
    encode_disconnect,
    encode_packet_properties,
    encode_suback,
    encode_text,
    encode_unsuback,
    encode_varint,
)
from godwit.mqtt.packets import (
    MAX_CACHED_TOPICS,
    MAX_PACKET_FILTERS,
    V3_1,
    V3_1_1,
    V5,
    AckPacket,
    AckRun,
    AuthPacket,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PacketError,
    PacketProperties,
    PacketReader,
    PacketType,
    PingPacket,
    Property,
    PublishPacket,
    PublishRun,
    Reason,
    SubscribePacket,
    UnsubscribePacket,
)
from godwit.mqtt.receiver import BRIDGE_STATE, MqttReceiver, encode_message_properties
from godwit.mqtt.scram import METHOD, NONCE_BYTES, ScramError, ScramExchange
from godwit.mqtt.sender import NO_LOCAL, RETAIN_AS_PUBLISHED, MqttOutbound
from godwit.wire.control import Will
from godwit.wire.control_base import Code
from godwit.wire.filters import GROUP_PREFIX

if TYPE_CHECKING:
    from godwit.mqtt.protocol import MqttProtocol

FOREVER_S: Final = 2**32 - 1
"""The session expiry of a client that wants to keep its session; the broker's limit applies."""
PACKET_OVERHEAD_BYTES: Final = 64 * KIB
"""The longest packet is this much longer than the longest message."""
MAX_PENDING_REPLIES: Final = 512
"""Replies to one client that wait for the log; then it is not read."""
MAX_WAITING_BYTES: Final = 256 * KIB
"""Bytes that are read of a client whose login, or whose messages, wait for the log."""
MAX_TURN_PACKETS: Final = 4096
"""Packets of one client that are handled in one turn: others have theirs in between."""
MAX_FILTER_BURST: Final = 2 * MAX_PACKET_FILTERS
"""Filters that a client may add or remove at once; more only at REQUESTS_PER_S."""
MAX_REASON_CHARACTERS: Final = 200
KEEP_ALIVE_FACTOR: Final = 1.5
ASSIGNED: Final = "auto-"
"""Prefix of client identifiers that the broker assigns."""
PUBREC_HEAD: Final = bytes((PacketType.PUBREC << 4,))
REASONS: Final = {
    Code.NORMAL: Reason.SUCCESS,
    Code.SHUTDOWN: Reason.SHUTDOWN,
    Code.PROTOCOL: Reason.PROTOCOL,
    Code.LIMIT: Reason.RATE,
    Code.BUSY: Reason.BUSY,
    Code.TIMEOUT: Reason.KEEP_ALIVE_TIMEOUT,
    Code.NOT_ALLOWED: Reason.NOT_AUTHORIZED,
    Code.NO_SUCH_TOPIC: Reason.NOT_AUTHORIZED,
    Code.BAD_TOPIC: Reason.BAD_TOPIC,
    Code.BAD_FILTER: Reason.BAD_FILTER,
    Code.TOO_LARGE: Reason.TOO_LARGE,
    Code.BAD_NAME: Reason.BAD_CLIENT_ID,
    Code.NAME_IN_USE: Reason.BAD_CLIENT_ID,
    Code.TAKEN_OVER: Reason.TAKEN_OVER,
    Code.KICKED: Reason.ADMINISTRATIVE,
    Code.TOO_MANY: Reason.QUOTA,
    Code.NOT_LOGGED_IN: Reason.KEEP_ALIVE_TIMEOUT,
    Code.STORAGE: Reason.IMPLEMENTATION,
}
"""The reason code of MQTT 5.0 for a code of the broker."""
RETURN_CODES: Final = {
    Reason.BAD_VERSION: 1,
    Reason.BAD_CLIENT_ID: 2,
    Reason.BUSY: 3,
    Reason.SHUTDOWN: 3,
    Reason.QUOTA: 3,
    Reason.NOT_AUTHORIZED: 5,
}
"""The return code of an older CONNACK. For other reasons the connection is closed without one."""


class MqttTransport(Protocol):
    """The stream under a connection: a socket, with or without TLS and WebSocket, or a test."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""

    def close(self) -> None:
        """Close the stream when everything is sent. The connection's `handle_lost` is called then."""

    def set_reading(self, is_reading: bool) -> None:
        """Pause reading, or continue."""

    def unsent_bytes(self) -> int:
        """Return how many bytes wait to be sent."""


class MqttCredentials(Credentials, kw_only=True):
    """User name and password, or a user name that is proved already."""

    password: bytes | None
    is_proved: bool = False
    """Whether a certificate or SCRAM has proved the user name."""

    def __repr__(self) -> str:
        """Return everything but the password."""
        return f"<MqttCredentials {self.name!r}, user {self.principal!r}>"

    def proves(self, secret: bytes) -> bool:
        return self.is_proved or (hmac.compare_digest(self.password or b"", secret) and self.password is not None)


class MqttConnection(Peer):
    """See the module's first lines."""

    __slots__ = (
        "_asked_keep_alive_s", "_certified_user", "_connect_packet", "_ends_expected", "_exchange", "_filter_changes",
        "_has_method", "_inbox", "_inbox_bytes", "_is_blocked", "_is_lost", "_is_new", "_is_reading", "_lost_reason",
        "_packets", "_protocol", "_reader", "_stream_bytes", "_stream_turn", "_user", "assigned_id", "broker",
        "held_bytes", "is_admitted", "is_bridge", "is_closing", "is_marked", "keep_alive_s", "last_us", "name", "out",
        "out_bytes", "outbound", "receiver", "settings", "table", "transport", "version", "wants_reasons",
        "window_bytes",
    )  # fmt: skip

    table: FilterTable
    receiver: MqttReceiver

    def __init__(
        self, protocol: MqttProtocol, transport: MqttTransport, address: str, host: str, certified_user: str | None
    ) -> None:
        super().__init__(address, host)
        self._certified_user = certified_user
        self._user: str | None = None
        """As it is named in access rules; None: the client identifier."""
        self._exchange: ScramExchange | None = None
        """An authentication that has begun."""
        self._connect_packet: ConnectPacket | None = None
        """A CONNECT that waits for its authentication."""
        self._has_method = False
        """Whether the client has used SCRAM: only then it may send AUTH later."""
        self._protocol = protocol
        self.broker = protocol.broker
        self.settings = protocol.settings
        self.transport = transport
        self.window_bytes = self.broker.settings.client_window_bytes
        self.version = 0
        self.name = ""
        self.assigned_id = ""
        self.is_bridge = False
        """Whether it is a bridge of Mosquitto: it gets none of its own messages back."""
        self.keep_alive_s = self._asked_keep_alive_s = 0
        self.last_us = 0
        """When the client sent something."""
        self.wants_reasons = True
        """Whether reason strings may be sent (`request problem information`)."""
        self.is_closing = False
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.is_marked = False
        """Whether it is marked for `flush`."""
        self._stream_bytes = 0
        """Bytes that waited in the stream when they were last asked for: within a turn they do not become more."""
        self._stream_turn = -1
        """The turn of that, see MqttProtocol.turn."""
        self.outbound = MqttOutbound(self)
        self._reader = PacketReader(protocol.topics)
        self._packets: list[Packet] = []
        """Read, and not handled yet."""
        self._inbox: list[bytes] = []
        self._inbox_bytes = 0
        self.held_bytes = 0
        """Bytes that were received and not handled, as counted in MqttProtocol.incomplete."""
        self._filter_changes: Bucket | None = None
        self._is_new = True
        self.is_admitted = False
        """Whether the CONNACK was sent."""
        self._is_blocked = False
        self._is_reading = True
        self._is_lost = False
        self._lost_reason = ""
        self._ends_expected = False

    # -- called by the stream, outside of a turn ----------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take bytes of the client; they are handled in the next turn."""
        if not self.is_closing:
            self._inbox.append(data)
            self._inbox_bytes += len(data)
            self._protocol.mark_input(self)

    def handle_drained(self) -> None:
        """The stream has sent all waiting bytes."""
        self._protocol.mark_input(self)

    def handle_lost(self, reason: str = "") -> None:
        """The stream has ended."""
        self._is_lost = True
        self._lost_reason = reason
        self._protocol.mark_input(self)

    def unsent_bytes(self) -> int:
        """Return how many bytes wait to be sent, here and in the stream."""
        if self._stream_turn != self._protocol.turn:
            self._stream_turn = self._protocol.turn
            self._stream_bytes = self.transport.unsent_bytes()
        return self.out_bytes + self._stream_bytes

    # -- the turn -----------------------------------------------------------------------------------------------------

    def run(self, now_us: int) -> None:
        """Handle everything that has arrived."""
        if self._is_new:
            self._is_new = False
            self.last_us = now_us
            self.broker.connect(self, now_us)
        if self._inbox:
            self.last_us = now_us
        try:
            self._handle_packets(now_us)
        except PacketError as error:
            self._refuse(error)
        if self._is_lost:
            self._end(now_us)
        elif self.is_admitted and not self.is_closing:
            self.outbound.send_queued()
            if self.behind:
                self._resume()
            if self.members:
                self.broker.resume_members(self)
        if self._is_blocked or not self._is_reading:
            self._set_reading()
        if self._inbox_bytes or self.held_bytes or not self._reader.is_empty:
            held_bytes = 0 if self._is_lost or self.is_closing else self._inbox_bytes + self._reader.held_bytes
            if held_bytes or self.held_bytes:
                self._protocol.incomplete[self.is_admitted].note(self, held_bytes)

    def _handle_packets(self, now_us: int) -> None:
        budget = MAX_TURN_PACKETS
        while True:
            self._is_blocked = self._must_wait() or self.unsent_bytes() > 2 * self.window_bytes
            if self._is_blocked:
                return
            if budget <= 0:
                self._is_blocked = True
                self._protocol.mark_input(self)
                return
            if not self._packets:
                data = self._inbox[0] if len(self._inbox) == 1 else b"".join(self._inbox)
                self._inbox.clear()
                self._inbox_bytes = 0
                self._packets = self._reader.feed(data, MAX_TURN_PACKETS)
                budget -= len(self._packets)
                if not self._packets:
                    if self._reader.error is not None:
                        raise self._reader.error
                    return
                if self.held_bytes:
                    self._protocol.incomplete[self.is_admitted].renew(self)
            self._handle_some(self._packets, now_us)
            if not self._packets and not self._inbox and self._reader.is_empty:
                return

    def _handle_some(self, packets: list[Packet], now_us: int) -> None:
        """Handle packets and remove them from the list, until one of them has to wait."""
        index = 0
        try:
            while index < len(packets) and not (index and self._must_wait()):
                packet = packets[index]
                if self._connect_packet is not None and not isinstance(packet, AuthPacket | DisconnectPacket):
                    raise PacketError(Reason.PROTOCOL, "only AUTH may follow before the login is complete")
                if type(packet) is PublishPacket or type(packet) is PublishRun:
                    index = self.receiver.handle_publishes(packets, index, now_us)
                elif type(packet) is AckRun:
                    index += 1
                    if not self.outbound.handle_pubacks(packet.packet_ids):
                        raise PacketError(Reason.PROTOCOL, "a PUBACK answers another kind of packet")
                else:
                    index += 1
                    self._handle(packet, now_us)
        finally:
            if index == len(packets):
                packets.clear()
            else:
                del packets[:index]

    def _must_wait(self) -> bool:
        """Return whether packets have to wait: for the welcome, or for the log. After the end they wait for ever."""
        if self.is_closing or not self.is_admitted:
            return self.is_closing or (self.version != 0 and self._connect_packet is None)
        if self.pending_replies > MAX_PENDING_REPLIES or self.receiver.held_bytes > self.window_bytes:
            return True
        return self.bucket is not None and self.bucket.due_us > self.broker.now_us

    @property
    def waits_for_broker(self) -> bool:
        """Whether the broker does not read from the client, for reasons of its own."""
        return self._is_blocked and self._must_wait()

    def check_input(self) -> None:
        """Handle waiting packets in the next turn, if they wait no longer."""
        if self._is_blocked and not self._must_wait():
            self._protocol.mark_input(self)

    def _set_reading(self) -> None:
        if self._is_blocked and self.bucket is not None and self.bucket.due_us > self.broker.now_us:
            credit = self.broker.deferred_credit
            if self not in credit.waiting:
                credit.add(self, self.check_input)
        is_reading = not (self._is_blocked and self._inbox_bytes + self._reader.held_bytes > MAX_WAITING_BYTES)
        if is_reading != self._is_reading and not self._is_lost:
            self._is_reading = is_reading
            self.transport.set_reading(is_reading)

    def _resume(self) -> None:
        """Let subscriptions that are behind continue, if there is room again."""
        if self.outbound.room() > self.window_bytes // 2:
            self.broker.resume(self)

    def write(self, data: bytes) -> None:
        """Send a packet at the end of the turn."""
        self.out.append(data)
        self.out_bytes += len(data)
        if not self.is_marked:
            self.mark_output()

    def encoded_topic(self, topic: str) -> bytes:
        """Return a topic with its length, as it is in a PUBLISH."""
        known = self._protocol.encoded_topics
        text = known.get(topic)
        if text is None:
            if len(known) >= MAX_CACHED_TOPICS:
                known.clear()
            text = known[topic] = encode_text(topic)
        return text

    def mark_output(self) -> None:
        """There is something to send, or the stream is to be closed: `flush` is called at the end of the turn."""
        if not self.is_marked:
            self.is_marked = True
            self._protocol.mark_output(self)

    def mark_stalled(self) -> None:
        """The next message has to wait because its packet identifier is in use."""
        self._protocol.stalled[self] = None

    def flush(self) -> None:
        """Hand the packets of a turn to the stream: a client gets its own message before the PUBACK for it, and after
        the PUBREC."""
        self.is_marked = False
        acks = self.receiver.take_acks() if self.is_admitted else b""
        if self.out or acks:
            if not self.out:
                data = acks
            else:
                if acks[:1] == PUBREC_HEAD:
                    self.out.insert(0, acks)
                else:
                    self.out.append(acks)
                data = b"".join(self.out)
                self.out.clear()
                self.out_bytes = 0
            if not self._is_lost:
                self.transport.write(data)
                self._stream_turn = -1
                if (self.behind or self.outbound.has_waiting) and self.outbound.room() > self.window_bytes // 2:
                    self._protocol.mark_input(self)  # it may all be sent already: then nothing else continues
        if self.is_closing and not self._is_lost:
            self.transport.close()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _refuse(self, error: PacketError) -> None:
        """End the connection because of a packet that is not valid."""
        if not self.is_closing:
            self._notify("closed", f"closed {self.name or self.address}: {error}", error.code)
        if error.is_silent:
            self._close_stream()
        else:
            self._finish(error.code, "", error.version)

    def close(self, code: Code, text: str) -> None:
        self._finish(REASONS.get(code, Reason.UNSPECIFIED), text, 0)

    def _finish(self, code: int, text: str, version: int) -> None:
        if self.is_closing:
            return
        version = self.version or version
        if self.is_admitted:
            if version == V5:
                self.write(self.with_reason(lambda shown: encode_disconnect(code, shown), text))
        elif version == V5:
            self.write(encode_connack(V5, session_present=False, code=code))
        elif code in RETURN_CODES and (version or code == Reason.BAD_VERSION):
            self.write(encode_connack(V3_1_1, session_present=False, code=RETURN_CODES[Reason(code)]))
        self._close_stream()

    def with_reason(self, encode: Callable[[str], bytes], text: str) -> bytes:
        """Return a packet with a reason string, or without one if the client does not want or accept it."""
        shown = text[:MAX_REASON_CHARACTERS] if self.wants_reasons else ""
        data = encode(shown)
        return encode("") if shown and len(data) > self.outbound.client_max_bytes else data

    def _close_stream(self) -> None:
        """Close the stream at the end of the turn."""
        self.is_closing = True
        self._release()
        self.mark_output()

    def _end(self, now_us: int) -> None:
        self._protocol.forget(self)
        self.is_closing = True
        self._release()
        reason = "" if self._ends_expected else self._lost_reason or "the connection was lost"
        self.broker.disconnect(self, now_us, was_expected=self._ends_expected, reason=reason)

    def _release(self) -> None:
        """Drop everything that a connection holds: its last packets may take a while, and timers keep it for hours."""
        self._inbox.clear()
        self._packets.clear()
        self._reader = PacketReader(self._protocol.topics)
        self.outbound.release()

    def stop(self, now_us: int) -> None:
        """The broker is being stopped."""
        self._finish(Reason.SHUTDOWN, "the broker is being stopped", 0)
        self._protocol.forget(self)
        self.broker.disconnect(self, now_us, was_expected=False, is_stopping=True)
        self.flush()

    # -- ports --------------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        return self.outbound.room() > 0

    def path(self) -> PathStatus:
        return PathStatus(protocol="mqtt")

    def ping(self) -> None:
        """MQTT has no ping from the server: a client that keeps its keep alive answers by that."""
        limit_us = self.keep_alive_s * KEEP_ALIVE_FACTOR * 1e6
        if not self.keep_alive_s or self.broker.now_us - self.last_us <= limit_us:
            self.broker.handle_alive(self)

    def handle_storage_error(self, text: str) -> None:
        """A state that the client waits for could not be stored: it asks again after a reconnect."""
        self.close(Code.STORAGE, text)

    def notify_gap(self, count: int) -> None:
        """Report that messages were deleted before they could be sent."""
        messages = "1 message" if count == 1 else f"{count} messages"
        self._notify("warning", f"{self.name} has missed up to {messages}, which retention has deleted", 0)

    def notify_refused(self, code: Code, text: str) -> None:
        """Report a message that was refused."""
        if code is Code.NOT_ALLOWED and self.session is not None:
            self.broker.effects.append(refusal_notice(self.session, code, text))

    def _notify(self, kind: str, text: str, code: int) -> None:
        fields = {"client": self.name or self.address, "host": self.host, **({"code": code} if code else {})}
        self.broker.effects.append(Notice(kind, text, fields))

    # -- packets ------------------------------------------------------------------------------------------------------

    def _handle(self, packet: Packet, now_us: int) -> None:
        if isinstance(packet, AckPacket):
            if packet.kind == PacketType.PUBREL:
                self.receiver.handle_pubrel(packet.packet_id)
            elif not self.outbound.handle_ack(packet.kind, packet.packet_id, packet.code):
                raise PacketError(Reason.PROTOCOL, f"packet {packet.packet_id} is answered by another kind of packet")
        elif isinstance(packet, PingPacket):
            self.write(PINGRESP)
        elif isinstance(packet, SubscribePacket):
            self._subscribe(packet)
        elif isinstance(packet, UnsubscribePacket):
            self._unsubscribe(packet)
        elif isinstance(packet, DisconnectPacket):
            self._disconnect(packet)
        elif isinstance(packet, ConnectPacket):
            self._connect(packet, now_us)
        else:
            assert isinstance(packet, AuthPacket)
            self._handle_auth(packet, now_us)

    def _connect(self, packet: ConnectPacket, now_us: int) -> None:
        self.version = packet.version
        values = packet.properties
        self.wants_reasons = bool(values.get(Property.REQUEST_PROBLEM_INFO, 1))
        if self._certified_user is not None:
            if not self._certified_user:
                raise PacketError(Reason.NOT_AUTHORIZED, "the certificate of the client has no common name")
            if Property.AUTH_METHOD in values:
                raise PacketError(Reason.BAD_AUTH_METHOD, "the certificate names the user: no other method is used")
            self._user = self._certified_user
            self._login(packet, b"", now_us)
        elif Property.AUTH_METHOD in values:
            self._connect_packet = packet
            self._begin_scram(values)
        else:
            self._user = packet.user
            self._login(packet, None, now_us)

    # -- enhanced authentication --------------------------------------------------------------------------------------

    def _begin_scram(self, values: PacketProperties) -> None:
        if values.get(Property.AUTH_METHOD) != METHOD:
            raise PacketError(Reason.BAD_AUTH_METHOD, f"the authentication method is not {METHOD}")
        exchange = ScramExchange(self._protocol.scram_salt, self._protocol.entropy(NONCE_BYTES))
        try:
            reply = exchange.begin(values.get(Property.AUTH_DATA, b""))
        except ScramError as error:
            raise PacketError(Reason.NOT_AUTHORIZED, f"{METHOD}: {error}") from None
        self._exchange = exchange
        self._write_auth(Reason.CONTINUE, reply)

    def _handle_auth(self, packet: AuthPacket, now_us: int) -> None:
        """Continue an authentication, or begin another one of the same user on an open connection."""
        values = packet.properties
        exchange = self._exchange
        if exchange is None:
            if not self._has_method or packet.code != Reason.REAUTHENTICATE:
                raise PacketError(Reason.PROTOCOL, "an AUTH without enhanced authentication")
            self._begin_scram(values)
            return
        if packet.code != Reason.CONTINUE or values.get(Property.AUTH_METHOD) != METHOD:
            raise PacketError(Reason.PROTOCOL, "an AUTH that does not continue the authentication")
        self._exchange = None
        limits = self.broker.login_limits
        if problem := limits.problem(exchange.user, self.host, now_us):
            raise PacketError(Reason.BUSY, f"{METHOD}: {problem}")
        secret = self.broker.settings.access.secret_of(exchange.user)
        try:
            reply = exchange.finish(values.get(Property.AUTH_DATA, b""), secret or self._protocol.scram_decoy)
        except ScramError as error:
            limits.add_failure(exchange.user, self.host, now_us)
            raise PacketError(Reason.NOT_AUTHORIZED, f"{METHOD} of {exchange.user!r}: {error}") from None
        if secret is None:
            limits.add_failure(exchange.user, self.host, now_us)
        if secret is None or (self.is_admitted and exchange.user != self._user):
            raise PacketError(Reason.NOT_AUTHORIZED, f"{METHOD}: {exchange.user!r} is not listed, or another user")
        if self.is_admitted:
            self._write_auth(Reason.SUCCESS, reply)
            return
        connect, self._connect_packet = self._connect_packet, None
        assert connect is not None
        self._user = exchange.user
        self._has_method = True
        self._login(connect, reply, now_us)

    def _write_auth(self, code: int, data: bytes) -> None:
        body = bytes((code,)) + encode_packet_properties({Property.AUTH_METHOD: METHOD, Property.AUTH_DATA: data})
        self.write(bytes((PacketType.AUTH << 4,)) + encode_varint(len(body)) + body)

    # -- the login ----------------------------------------------------------------------------------------------------

    def _login(self, packet: ConnectPacket, proof: bytes | None, now_us: int) -> None:
        """Hand a CONNECT to the core. `proof`: None if the password proves the user, else it is proved already, and
        these bytes are the last message of its authentication."""
        values = packet.properties
        settings = self.settings
        self.keep_alive_s = self._asked_keep_alive_s = packet.keep_alive_s
        if packet.version == V5 and settings.max_keep_alive_s:
            self.keep_alive_s = min(packet.keep_alive_s or settings.max_keep_alive_s, settings.max_keep_alive_s)
        outbound = self.outbound
        outbound.client_max_bytes = values.get(Property.MAXIMUM_PACKET_SIZE, 1 << 30)
        outbound.max_aliases = values.get(Property.TOPIC_ALIAS_MAXIMUM, 0)
        outbound.quota = settings.max_in_flight
        if packet.version == V5:
            outbound.quota = values.get(Property.RECEIVE_MAXIMUM, 65_535)
        will = will_extension = None
        will_delay_s = 0
        self.is_bridge = packet.is_bridge
        if packet.will is not None and not BRIDGE_STATE.fullmatch(packet.will.topic):
            if len(packet.will.payload) > MAX_WILL_BYTES:
                raise PacketError(Reason.TOO_LARGE, f"a will has at most {MAX_WILL_BYTES} bytes")
            qos: Any = packet.will.qos
            will = Will(topic=packet.will.topic, payload=packet.will.payload, qos=qos, retain=packet.will.retain)
            will_delay_s = packet.will.properties.get(Property.WILL_DELAY, 0)
            try:
                will_extension = encode_message_properties(packet.will.properties)
            except RequestFailure as failure:
                raise PacketError(Reason.QUOTA, failure.text) from None
        if not packet.client_id:
            self.assigned_id = ASSIGNED + self._protocol.entropy(10).hex()
        self.name = packet.client_id or self.assigned_id
        if packet.version == V5:
            expiry_s = values.get(Property.SESSION_EXPIRY, 0)
        else:
            expiry_s = 0 if packet.is_clean else FOREVER_S
        credentials = MqttCredentials(
            name=self.name,
            principal=self._user,
            has_principals=True,
            publishes_replaced_will=True,
            password=packet.password,
            is_proved=proof is not None,
            instance=self._protocol.instance_of(self.name),
            session_expiry_s=expiry_s,
            is_clean=packet.is_clean,
            will=will,
            will_extension=will_extension,
            will_delay_s=will_delay_s,
        )
        self._reader.max_bytes = self._max_packet_bytes()

        def welcome(session: Session, resumed: bool) -> None:
            more: dict[int, Any] = {}
            if session.expiry_s != expiry_s:
                more[Property.SESSION_EXPIRY] = session.expiry_s
            if values.get(Property.REQUEST_RESPONSE_INFO) and (root := self._response_information()):
                more[Property.RESPONSE_INFO] = root
            if self._has_method:
                more |= {Property.AUTH_METHOD: METHOD, Property.AUTH_DATA: proof}
            self._welcome(session, resumed, more)

        self.broker.login(self, credentials, welcome, now_us)

    def _max_packet_bytes(self) -> int:
        return self.settings.max_packet_bytes or self.broker.settings.max_message_bytes + PACKET_OVERHEAD_BYTES

    def _response_information(self) -> str:
        """Return the root of the client's topics for replies; empty without one."""
        if set(self.name) & set("/+#*"):
            return ""  # it is not one level of a topic
        return self.settings.response_information.replace("{client}", self.name)

    def _welcome(self, session: Session, resumed: bool, more: dict[int, Any]) -> None:
        """The login has succeeded: CONNACK, and then the pending messages of the session. `more`: its properties."""
        if self.is_closing:
            return
        is_present = resumed and TABLE_KEY in session.subscriptions
        settings = self.settings
        values: dict[int, Any] = {}
        if settings.topic_alias_maximum:
            values[Property.TOPIC_ALIAS_MAXIMUM] = settings.topic_alias_maximum
        if self.assigned_id:
            values[Property.ASSIGNED_CLIENT_ID] = self.assigned_id
        if self.keep_alive_s != self._asked_keep_alive_s:
            values[Property.SERVER_KEEP_ALIVE] = self.keep_alive_s
        values[Property.MAXIMUM_PACKET_SIZE] = self._max_packet_bytes()
        values[Property.RECEIVE_MAXIMUM] = settings.receive_maximum
        values |= more
        is_shown = is_present and self.version > V3_1
        connack = encode_connack(self.version, session_present=is_shown, code=0, properties=values)
        if len(connack) > self.outbound.client_max_bytes:
            self.is_closing = True  # it accepts not even this packet
            self.mark_output()
            return
        self.write(connack)
        self._protocol.incomplete[False].note(self, 0)
        self.is_admitted = True
        self.table = self.broker.open_table(self, self.outbound)
        self.receiver = MqttReceiver(self, session, self.table)
        self.outbound.begin_session(self._protocol.end_offset(), int.from_bytes(self._protocol.entropy(2), "big"))
        self._protocol.note_admitted(self.transport)
        self._protocol.watch(self)
        self._protocol.mark_input(self)

    def _require_filter_rate(self, count: int) -> None:
        """Raise PacketError if the client changes its subscriptions all the time."""
        now_us = self.broker.now_us
        if self._filter_changes is None:
            self._filter_changes = Bucket(REQUESTS_PER_S, MAX_FILTER_BURST, now_us)
        if not self._filter_changes.take(count, now_us):
            raise PacketError(Reason.RATE, f"more than {REQUESTS_PER_S} changes of subscriptions a second")

    def _subscribe(self, packet: SubscribePacket) -> None:
        self._require_filter_rate(len(packet.filters))
        identifier = packet.properties.get(Property.SUBSCRIPTION_ID, 0)
        requests: list[FilterRequest] = []
        for text, options in packet.filters:
            handling: Any = ("always", "if new", "never")[options >> 4 & 3]
            extra = NO_LOCAL | RETAIN_AS_PUBLISHED if self.is_bridge else 0
            if text.startswith(GROUP_PREFIX):  # without retained messages, and with QoS 1 at most
                handling, extra = "never", extra & RETAIN_AS_PUBLISHED
                options = options & ~3 | min(options & 3, 1)
            requests.append(FilterRequest(text, options & 0x0F | extra, identifier, handling))

        def reply(results: list[RequestFailure | None]) -> None:
            text = next((failure.text for failure in results if failure is not None), "")
            codes = [
                request.options & 3 if failure is None else self._subscribe_reason(failure)
                for request, failure in zip(requests, results, strict=True)
            ]
            shown = [code if self.version == V5 or code < 0x80 else 0x80 for code in codes]
            self.write(
                self.with_reason(lambda reason: encode_suback(self.version, packet.packet_id, shown, reason), text)
            )
            self.check_input()

        self.broker.add_filters(self.table, requests, reply, self.handle_storage_error)

    def _subscribe_reason(self, failure: RequestFailure) -> int:
        self.notify_refused(failure.code, failure.text)
        if failure.code is Code.NO_SUCH_TOPIC:  # nothing that the client lacks a right for
            return Reason.UNSPECIFIED
        return REASONS.get(failure.code, Reason.UNSPECIFIED)

    def _unsubscribe(self, packet: UnsubscribePacket) -> None:
        self._require_filter_rate(len(packet.filters))

        def reply(results: list[bool]) -> None:
            codes = [Reason.SUCCESS if existed else Reason.NO_SUBSCRIPTION for existed in results]
            self.write(encode_unsuback(self.version, packet.packet_id, codes))
            self.check_input()

        self.broker.remove_filters(self.table, packet.filters, reply, self.handle_storage_error)

    def _disconnect(self, packet: DisconnectPacket) -> None:
        expiry_s = packet.properties.get(Property.SESSION_EXPIRY)
        session = self.session
        if expiry_s is not None and session is not None:
            if expiry_s and not session.expiry_s:
                raise PacketError(Reason.PROTOCOL, "a session that ends with its connection cannot be kept")
            self.broker.change_expiry(session, expiry_s)
        self._ends_expected = packet.code == Reason.SUCCESS
        self._lost_reason = f"it disconnected with reason code {packet.code:#x}"
        self.is_closing = True
        self._is_lost = True  # nothing is sent any more
        self.transport.close()


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all MQTT listeners."""

    receive_maximum: int = 100
    """Messages of QoS 1 and 2 that a client may send before they are acknowledged (MQTT 5.0)."""
    topic_alias_maximum: int = 10
    """Topic aliases that a client may use."""
    max_packet_bytes: int = 0
    """The longest packet; 0: the longest message and 64 KiB."""
    max_keep_alive_s: int = 0
    """The longest keep alive of a client of MQTT 5.0; 0: any."""
    max_in_flight: int = 100
    """Messages of QoS 1 and 2 on their way to a client that cannot announce a limit (3.1 and 3.1.1)."""
    log_qos_0: bool = False
    """Whether messages of QoS 0 are logged too, whatever the rules for their topics."""
    user_from_certificate: bool = False
    """Whether the common name of a client's certificate is its user name, in place of a password."""
    response_information: str = ""
    """Sent to a client of MQTT 5.0 that asks for response information; {client} is its identifier."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect over WebSocket, as `https://dashboard.example`, see WebSocketStream."""
