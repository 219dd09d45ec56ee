"""The handshake: cookies, keys and proofs, the server's side (Acceptor) and the client's side (Dial).

The client repeats hello until it receives a cookie, then connect until it receives an accept. The acceptor stores
nothing about a client before the client has returned its cookie, and never sends an unproven address more than three
times the bytes received from it: a cookie is much shorter than a hello, and a reset is shorter than the packet that it
answers.

An observer of the handshake can compute every value here; all other parties are kept out. See "Handshake" and "Keys and
proofs" in docs/PROTOCOL.md.
"""

from __future__ import annotations

import hmac
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from godwit.limits import (
    BASE_DATAGRAM_BYTES,
    COOKIE_LIFETIME_S,
    HANDSHAKE_RETRY_S,
    HANDSHAKE_TIMEOUT_S,
    MAX_CONNECTIONS,
    MAX_HANDSHAKE_RETRY_S,
    MAX_RESETS_PER_S,
    SEALING_TIMEOUT_S,
)
from godwit.transport.events import Address, ConnectionState, Role, Train
from godwit.transport.protection import Suite
from godwit.transport.sealing import SealingHandshake, TlsError, TlsSession, choose_suite, handshake_context
from godwit.wire.control_base import Code
from godwit.wire.packet import (
    COOKIE_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    OVERHEAD_BYTES,
    TOKEN_BYTES,
    AcceptFrame,
    ConnectFrame,
    CookieFrame,
    CryptoFrame,
    Frame,
    HelloFrame,
    RefuseFrame,
    ResetFrame,
    encode_frame,
    encode_packet,
    encode_reason,
)
from godwit.wire.parameters import Parameters, decode_parameters

if TYPE_CHECKING:
    from godwit.transport.connection import Connection
    from godwit.transport.connection_state import Components

_TIME: Final = struct.Struct(">I")
_ID: Final = struct.Struct(">Q")
_CODE: Final = struct.Struct(">H")


def make_cookie(secret: bytes, now: float, address: Address, connection_id: int, nonce: bytes) -> bytes:
    """Return the cookie that answers a hello from this address: only a receiver at that address can return it."""
    issued = _TIME.pack(int(now) & 0xFFFFFFFF)
    return issued + _cookie_proof(secret, issued, address, connection_id, nonce)


def check_cookie(secret: bytes, now: float, address: Address, connection_id: int, nonce: bytes, cookie: bytes) -> bool:
    """Return whether this cookie was issued for this address and hello, within its lifetime."""
    issued = cookie[: _TIME.size]
    age_s = (int(now) - _TIME.unpack(issued)[0]) & 0xFFFFFFFF
    expected = _cookie_proof(secret, issued, address, connection_id, nonce)
    return age_s <= COOKIE_LIFETIME_S and hmac.compare_digest(cookie[_TIME.size :], expected)


def _cookie_proof(secret: bytes, issued: bytes, address: Address, connection_id: int, nonce: bytes) -> bytes:
    # The address has no fixed length, so it goes last: different inputs cannot produce the same bytes.
    content = issued + _ID.pack(connection_id) + nonce + repr(address).encode()
    return hmac.digest(secret, b"cookie" + content, "sha256")[:MAC_BYTES]


def connection_key(client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the key of the proofs on one connection."""
    return hmac.digest(client_nonce + server_nonce, b"godwit 1 connection key", "sha256")


def login_binding(key: bytes) -> bytes:
    """Return the value that login proofs are bound to, so that they are valid on this connection only."""
    return hmac.digest(key, b"godwit 1 login", "sha256")


def path_mac(key: bytes, sender: Role, challenge: bytes) -> bytes:
    """Return the proof of a path response."""
    return hmac.digest(key, b"path" + _role(sender) + challenge, "sha256")[:MAC_BYTES]


def close_mac(key: bytes, sender: Role, code: int, reason: str) -> bytes:
    """Return the proof of a close."""
    content = b"close" + _role(sender) + _CODE.pack(code) + encode_reason(reason)
    return hmac.digest(key, content, "sha256")[:MAC_BYTES]


def reset_token(reset_key: bytes, connection_id: int) -> bytes:
    """Return the proof that a server with this key issued this connection id."""
    return hmac.digest(reset_key, b"reset" + _ID.pack(connection_id), "sha256")[:TOKEN_BYTES]


def same(one: bytes, other: bytes) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(one, other)


def _role(sender: Role) -> bytes:
    return b"c" if sender == "client" else b"s"


RESET_PACKET_BYTES: Final = OVERHEAD_BYTES + len(encode_frame(ResetFrame(bytes(16))))


class Acceptor:
    """The server's side: stateless, except for its replies to connects, which it remembers for the lifetime of a
    cookie."""

    def __init__(
        self,
        *,
        secret: bytes,
        reset_key: bytes,
        entropy: Callable[[int], bytes],
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._secret = secret
        self._reset_key = reset_key
        self._entropy = entropy
        self._max_answered = 2 * max_connections + 1024
        self._answered: OrderedDict[tuple[int, bytes], tuple[float, bytes, int]] = OrderedDict()
        self._resets_since = 0.0
        self._resets = 0

    def handle_hello(self, hello: HelloFrame, packet_bytes: int, address: Address, now: float) -> bytes | None:
        """Return the packet with the cookie, or None if the hello is too short or has no connection id."""
        if packet_bytes < BASE_DATAGRAM_BYTES or hello.connection_id == 0:
            return None
        cookie = make_cookie(self._secret, now, address, hello.connection_id, hello.nonce)
        return encode_packet(hello.connection_id, 0, encode_frame(CookieFrame(cookie, hello.nonce)))

    def is_proven(self, connect: ConnectFrame, address: Address, now: float) -> bool:
        """Return whether the connect carries the cookie that was issued to its hello, at its address."""
        return connect.connection_id != 0 and check_cookie(
            self._secret, now, address, connect.connection_id, connect.nonce, connect.cookie
        )

    def repeated(self, connect: ConnectFrame, now: float) -> tuple[bytes, int] | None:
        """Return the packet that answered this client before and the id of its connection (0: refused), or None.

        A client is recognised by its id and nonce, even if it fetched a new cookie for a new address.
        """
        answered = self._answered
        while answered and next(iter(answered.values()))[0] <= now:
            answered.popitem(last=False)
        known = answered.get((connect.connection_id, connect.nonce))
        return None if known is None else known[1:]

    def accept(self, connect: ConnectFrame, connection_id: int, parameters: bytes, now: float) -> tuple[bytes, bytes]:
        """Return the packet that accepts the client, and the key of the connection."""
        nonce = self._entropy(NONCE_BYTES)
        token = reset_token(self._reset_key, connection_id)
        frame = encode_frame(AcceptFrame(connection_id, nonce, token, parameters))
        packet = encode_packet(connect.connection_id, 0, frame)
        self._remember(connect, packet, connection_id, now)
        return packet, connection_key(connect.nonce, nonce)

    def accept_sealed(
        self, connect: ConnectFrame, connection_id: int, parameters: bytes, now: float
    ) -> tuple[bytes, bytes, bytes]:
        """Return the packet that accepts the client, the context of its keys, and the token of resets.

        The packet does not have the token: an observer could end the connection with it.
        """
        frame = encode_frame(AcceptFrame(connection_id, self._entropy(NONCE_BYTES), bytes(TOKEN_BYTES), parameters))
        packet = encode_packet(connect.connection_id, 0, frame)
        self._remember(connect, packet, connection_id, now)
        return packet, handshake_context(connect, frame), reset_token(self._reset_key, connection_id)

    def refuse(self, connect: ConnectFrame, code: int, reason: str, now: float) -> bytes:
        """Return the packet that refuses the client. A repeat of its connect then receives the same packet."""
        packet = encode_packet(connect.connection_id, 0, encode_frame(RefuseFrame(connect.nonce, code, reason)))
        self._remember(connect, packet, 0, now)
        return packet

    def _remember(self, connect: ConnectFrame, packet: bytes, connection_id: int, now: float) -> None:
        # One second longer than the lifetime of a cookie, because its age is counted in whole seconds.
        ends_at = now + COOKIE_LIFETIME_S + 1.0
        self._answered[connect.connection_id, connect.nonce] = (ends_at, packet, connection_id)
        while len(self._answered) > self._max_answered:
            self._answered.popitem(last=False)

    def reset(self, connection_id: int, packet_bytes: int, now: float) -> bytes | None:
        """Return the reset that answers a packet with an unknown id; None if it would be too long or too frequent."""
        if now - self._resets_since >= 1.0:
            self._resets_since = now
            self._resets = 0
        if packet_bytes <= RESET_PACKET_BYTES or self._resets >= MAX_RESETS_PER_S:
            return None
        self._resets += 1
        token = reset_token(self._reset_key, connection_id)
        return encode_packet(0, 0, encode_frame(ResetFrame(token)))


TRIES_A_COOKIE: Final = 3
_REFUSALS_BEFORE_KEYS: Final = frozenset((Code.BUSY, Code.PROTOCOL, Code.STANDBY))
"""The codes after which a client connects again in any case."""


class Dial:
    """The client's side, for one connection that is not open yet."""

    def __init__(
        self,
        connection: Connection,
        nonce: bytes,
        parameters: bytes,
        now: float,
        *,
        session: TlsSession | None = None,
        suites: Sequence[Suite] = (),
        components: Components | None = None,
    ) -> None:
        """`session`: TLS for a connection that is to be sealed with one of `suites`; None for a plain one."""
        self.connection = connection
        self._session = session
        self._suites = suites
        self._components = components
        self._sealing: SealingHandshake | None = None
        self._accept: AcceptFrame | None = None
        self._refusal: Train | None = None
        """The last packet to the server, if this client does not accept its certificate."""
        self.scheduled_at: float | None = None
        """The time of the timer that the endpoint has scheduled for it."""
        self.idle_until = 0.0
        """As in Connection; always 0 here."""
        self.token = b""
        """The token of the server's resets, once it has accepted."""
        self._nonce = nonce
        self._parameters = parameters
        self._cookie: bytes | None = None
        self._pace = 1.0 + nonce[0] / 512
        """Multiplies its pauses: clients that began together repeat their packets at different times."""
        self._wait_s = HANDSHAKE_RETRY_S
        self._send_at = now
        self._sent_at = now
        self._sends = 0
        """How often the current step was sent. If once, its answer yields a round trip sample."""
        self._timeout_at = now + HANDSHAKE_TIMEOUT_S

    @property
    def is_over(self) -> bool:
        """Whether the connection failed and will never be open."""
        return self.connection.state is ConnectionState.CLOSED

    def handle_frame(self, frame: Frame, now: float) -> str | None:
        """Handle a frame from the server's address. Return the reason to drop it, or None if it was used."""
        match frame:
            case CookieFrame(cookie, nonce) if same(nonce, self._nonce):
                if self._cookie is not None and not self._is_cookie_doubtful():
                    return "late_handshake"
                if self._cookie is None:
                    self._sends = 0
                self._cookie = cookie
                self._wait_s = HANDSHAKE_RETRY_S
                self._send_at = now
            case AcceptFrame() if self._sealing is not None:
                return "late_handshake"
            case AcceptFrame():
                self._accepted(frame, now)
            case CryptoFrame() if self._sealing is not None:
                self._handle_crypto(self._sealing, frame, now)
            case RefuseFrame(nonce, code, reason) if same(nonce, self._nonce):
                if self._session is not None and code not in _REFUSALS_BEFORE_KEYS:
                    code = Code.SEALING  # nothing proves that the server sent it
                self.connection.fail(now, code, reason, "refused")
            case _:
                return "unasked_handshake"
        return None

    def _accepted(self, frame: AcceptFrame, now: float) -> None:
        peer = decode_parameters(frame.parameters)
        if self._session is not None:
            self._begin_sealing(self._session, frame, peer, now)
            return
        self.token = frame.token
        self.connection.establish(
            peer_id=frame.connection_id,
            peer=peer,
            key=connection_key(self._nonce, frame.nonce),
            round_trip_s=now - self._sent_at if self._sends == 1 else None,
            now=now,
        )

    # -- sealing ------------------------------------------------------------------------------------------------------

    def _begin_sealing(self, session: TlsSession, frame: AcceptFrame, peer: Parameters, now: float) -> None:
        """Begin the TLS handshake. A server that does not seal is refused: never use plain packets instead."""
        chosen = peer.seal if isinstance(peer.seal, tuple) else ()
        suite = choose_suite(chosen[:1], self._suites)
        host, port, *_ = self.connection.peer_address
        if suite is None:
            self.connection.fail(
                now,
                Code.SEALING,
                f"the broker at {host} port {port} does not seal its packets: upgrade it, or, if the network is "
                f"trusted, connect to udp://{host}:{port}",
                "refused",
            )
            return
        connect = ConnectFrame(self.connection.id, self._nonce, bytes(COOKIE_BYTES), self._parameters)
        self._accept = frame
        assert self._components is not None
        self._sealing = SealingHandshake(
            "client",
            session,
            suite,
            handshake_context(connect, encode_frame(frame)),
            self._components,
            now - self._sent_at if self._sends == 1 else None,
        )
        self._timeout_at = now + SEALING_TIMEOUT_S
        self._sealing.start(now)

    def _handle_crypto(self, sealing: SealingHandshake, frame: CryptoFrame, now: float) -> None:
        data = sealing.stream.handle_frame(frame, now)
        if not data:
            return
        try:
            sealing.handle_data(data, now)
        except TlsError as error:
            assert self._accept is not None
            refusal = encode_frame(RefuseFrame(self._nonce, Code.SEALING, str(error)))
            packet = encode_packet(self._accept.connection_id, 0, refusal)
            self._refusal = Train(self.connection.peer_address, packet, len(packet))
            self.connection.fail(now, Code.SEALING, str(error), "refused")

    def handle_sealed(self, packet: bytes, now: float) -> str | None:
        """Open the connection, if this packet opens: then the server has the same keys. Return why it is dropped.

        The caller hands the packet to the connection.
        """
        sealing = self._sealing
        if sealing is None or sealing.protection is None or self._accept is None:
            return "early_sealed"
        if sealing.protection.open(packet, 0, now) is None:
            return None  # counted there
        self.connection.establish(
            peer_id=self._accept.connection_id,
            peer=decode_parameters(self._accept.parameters),
            key=sealing.key,
            round_trip_s=sealing.stream.round_trip_s,
            now=now,
            protection=sealing.protection,
        )
        return None

    def _is_cookie_doubtful(self) -> bool:
        """Return whether the cookie may be void because the address changed or the server restarted."""
        return self._sends >= TRIES_A_COOKIE

    def handle_timers(self, now: float) -> None:
        if now >= self._timeout_at:
            step = "hello" if self._cookie is None else "connect"
            timeout_s = HANDSHAKE_TIMEOUT_S
            if self._sealing is not None:
                step = "the TLS handshake"
                timeout_s = SEALING_TIMEOUT_S
            host, port, *_ = self.connection.peer_address
            reason = (
                f"no answer to {step} from {host} port {port} within {timeout_s:g} s: "
                "check the address, the port and the firewall"
            )
            self.connection.fail(now, Code.TIMEOUT, reason, "timeout")
        self.connection.wake()

    def next_train(self, now: float) -> Train | None:
        if self._refusal is not None:
            train, self._refusal = self._refusal, None
            return train
        if not self.is_over and self._sealing is not None and self._accept is not None:
            packets = self._sealing.next_packets(self._accept.connection_id, now)
            return None if packets is None else Train(self.connection.peer_address, *packets)
        if self.is_over or now < self._send_at:
            return None
        # A doubtful cookie is still tried, alternating with a hello for a new one.
        says_hello = self._cookie is None or (self._is_cookie_doubtful() and self._sends % 2 == 1)
        self._sends += 1
        self._sent_at = now
        self._send_at = now + self._wait_s * self._pace
        self._wait_s = min(2 * self._wait_s, MAX_HANDSHAKE_RETRY_S)
        connection_id = self.connection.id
        if self._cookie is None or says_hello:
            frames = encode_frame(HelloFrame(connection_id, self._nonce)).ljust(
                BASE_DATAGRAM_BYTES - OVERHEAD_BYTES, b"\0"
            )
        else:
            frames = encode_frame(ConnectFrame(connection_id, self._nonce, self._cookie, self._parameters))
        packet = encode_packet(0, 0, frames)
        return Train(self.connection.peer_address, packet, len(packet))

    def next_timer(self) -> float:
        if self._sealing is not None:
            at = self._sealing.stream.next_timer()
            return self._timeout_at if at is None else min(at, self._timeout_at)
        return min(self._send_at, self._timeout_at)
