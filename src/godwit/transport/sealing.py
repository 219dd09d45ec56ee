"""The TLS handshake of a sealed connection, between the accept and the first sealed packet.

    client                                                        server
      CONNECT  parameters with seal: (suites)            ----->
                                                         <-----   ACCEPT  parameters with seal: (suite,), token: zeros
      CRYPTO   client hello                              ----->
                                                         <-----   CRYPTO  server hello .. finished
      [is this the expected broker?]
      CRYPTO   finished                                  ----->   [keys]
                                                         <-----   sealed: TOKEN, PING
      [connected: the server has the same keys]

TLS itself comes from outside (Sealer and TlsSession), because it needs a library and randomness. Its bytes travel in
CRYPTO frames (CryptoStream): offset, number of bytes received from the other side, bytes. All bytes that are not
acknowledged are repeated when a timer fires: a handshake has three flights of one to three packets. Packets with CRYPTO
frames are plain packets with the number 0 and the id of the receiver.

The keys of packets are exported from TLS (RFC 8446, 7.5) with the connect and the accept as context: if anything in
them was changed on the way, the two sides have different keys, and no connection opens.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from godwit.errors import DecodeError, GodwitError
from godwit.limits import BASE_DATAGRAM_BYTES, HALF_OPEN_TIMEOUT_S, MAX_CRYPTO_BYTES, MAX_CRYPTO_PIECES
from godwit.transport.events import Address, ConnectionState, PeerCertificate, Role, Train
from godwit.transport.protection import SECRET_BYTES, PacketProtection, Suite
from godwit.wire.packet import (
    COOKIE_BYTES,
    CRYPTO_HEADER,
    OVERHEAD_BYTES,
    ConnectFrame,
    CryptoFrame,
    encode_frame,
    encode_packet,
)
from godwit.wire.parameters import Parameters

if TYPE_CHECKING:
    from godwit.transport.connection import Connection
    from godwit.transport.connection_state import Components

EXPORTER_LABEL: Final = b"EXPORTER-godwit-1-packets"
CRYPTO_ROOM_BYTES: Final = BASE_DATAGRAM_BYTES - OVERHEAD_BYTES - CRYPTO_HEADER.size
SHORTEST_RETRY_S: Final = 0.05
FIRST_RETRY_S: Final = 0.25
LONGEST_RETRY_S: Final = 1.0
RETRY_ROUND_TRIPS: Final = 3
_LENGTH: Final = struct.Struct(">H")


class TlsError(GodwitError):
    """The TLS handshake failed, or the peer's certificate is not accepted. The peer receives the text, too."""


class TlsSession(Protocol):
    """One TLS 1.3 handshake: bytes in, bytes out."""

    def start(self) -> bytes:
        """Return the first bytes to send: of a server none."""

    def receive(self, data: bytes) -> bytes:
        """Handle bytes of the peer and return those to send. Raises TlsError if the handshake has failed."""

    def is_done(self) -> bool:
        """Return whether the handshake is complete on this side."""

    def check_peer(self) -> PeerCertificate | None:
        """Raise TlsError if the peer is not the expected one. Called once, when the handshake is complete.

        Return the certificate of a client that has one.
        """

    def export(self, label: bytes, length: int, context: bytes) -> bytes:
        """Return keying material of the complete handshake (RFC 8446, 7.5)."""


class Sealer(Protocol):
    """What an endpoint needs to seal connections."""

    def suites(self) -> Sequence[Suite]:
        """Return the suites that can be used, the preferred one first."""

    def new_session(self, role: Role, address: Address) -> TlsSession | None:
        """Return a new session; None for a client that connects to this address without sealing."""

    def plain_problem(self, address: Address) -> str:
        """Return why this client may not connect without sealing, or an empty string."""


def choose_suite(offered: Sequence[int], available: Sequence[Suite]) -> Suite | None:
    """Return the first suite of the client's list that the server has, or None."""
    by_code = {suite.code: suite for suite in available}
    for code in offered:
        if code in by_code:
            return by_code[code]
    return None


def handshake_context(connect: ConnectFrame, accept: bytes) -> bytes:
    """Return the digest of a connect and of the frame that accepts it: the context of the exported keys.

    Without the cookie: a client whose address changes fetches another one, and the server then repeats its accept.
    """
    bare = ConnectFrame(connect.connection_id, connect.nonce, bytes(COOKIE_BYTES), connect.parameters)
    digest = hashlib.sha256(b"godwit 1 handshake")
    for frame in (encode_frame(bare), accept):
        digest.update(_LENGTH.pack(len(frame)) + frame)
    return digest.digest()


class CryptoStream:
    """The bytes of a TLS handshake in both directions, over a path that loses, repeats and reorders."""

    __slots__ = (
        "_acknowledged", "_is_ack_due", "_out", "_pieces", "_received", "_retry_s", "_send_at", "_sent", "_sent_at",
        "_wait_s", "round_trip_s",
    )  # fmt: skip

    def __init__(self, round_trip_s: float | None) -> None:
        self._out = bytearray()
        self._acknowledged = 0
        self._sent = 0
        """How many bytes of `_out` were sent at least once."""
        self._sent_at: float | None = None
        """When the last of them were sent, if once only: then their acknowledgement shows the round trip."""
        self._received = 0
        """How many bytes of the peer were handed over, in order."""
        self._pieces: dict[int, bytes] = {}
        """Bytes beyond a gap, by offset."""
        self._is_ack_due = False
        self._send_at: float | None = None
        self._retry_s = self._wait_s = FIRST_RETRY_S
        self.round_trip_s: float | None = None
        """The shortest sample: a longer one may have a repeat of the peer in it."""
        if round_trip_s is not None:
            self.handle_round_trip(round_trip_s)

    def handle_round_trip(self, sample_s: float) -> None:
        """Handle a sample of the round trip, which sets the pause before the first repeat."""
        trip_s = sample_s if self.round_trip_s is None else min(sample_s, self.round_trip_s)
        self.round_trip_s = trip_s
        self._retry_s = self._wait_s = min(max(RETRY_ROUND_TRIPS * trip_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)

    def write(self, data: bytes, now: float) -> None:
        """Queue bytes for the peer."""
        if data:
            self._out += data
            self._send_at = now
            self._wait_s = self._retry_s

    def handle_frame(self, frame: CryptoFrame, now: float) -> bytes:
        """Handle a frame of the peer. Return the bytes that are new and in order.

        Raises DecodeError if the stream is too long or in too many pieces, or acknowledges bytes that were not sent.
        """
        if frame.acknowledged > self._sent:
            raise DecodeError("crypto", "bytes are acknowledged that were never sent")
        if frame.acknowledged > self._acknowledged:
            self._acknowledged = frame.acknowledged
            if self._sent_at is not None:
                self.handle_round_trip(now - self._sent_at)
                self._sent_at = None
            self._wait_s = self._retry_s
            if self._acknowledged == len(self._out):
                self._send_at = None
        if not frame.body:
            return b""
        stop = frame.offset + len(frame.body)
        if stop > MAX_CRYPTO_BYTES:
            raise DecodeError("crypto", f"a handshake of more than {MAX_CRYPTO_BYTES} bytes")
        if stop <= self._received:
            self._is_ack_due = True  # the peer repeats it because it lacks the acknowledgement
            return b""
        if frame.offset > self._received:
            self._is_ack_due = True
            if len(self._pieces) >= MAX_CRYPTO_PIECES and frame.offset not in self._pieces:
                raise DecodeError("crypto", f"more than {MAX_CRYPTO_PIECES} parts wait for an earlier one")
            if len(frame.body) > len(self._pieces.get(frame.offset, b"")):
                self._pieces[frame.offset] = frame.body
            return b""
        data = frame.body[self._received - frame.offset :]
        self._received += len(data)
        while self._pieces:
            offset = min(self._pieces)
            if offset > self._received:
                break
            piece = self._pieces.pop(offset)[self._received - offset :]
            self._received += len(piece)
            data += piece
        return data

    def next_frames(self, now: float) -> list[CryptoFrame]:
        """Return the frames to send now, one for each packet; all except the last are full."""
        is_due = self._send_at is not None and now >= self._send_at
        if not is_due:
            if not self._is_ack_due:
                return []
            self._is_ack_due = False
            return [CryptoFrame(len(self._out), self._received, b"")]
        # Bytes that were never sent go alone. Otherwise all that are not acknowledged are repeated.
        start = self._sent if self._sent < len(self._out) else self._acknowledged
        frames = [
            CryptoFrame(offset, self._received, bytes(self._out[offset : offset + CRYPTO_ROOM_BYTES]))
            for offset in range(start, len(self._out), CRYPTO_ROOM_BYTES)
        ]
        self._sent_at = now if self._sent < len(self._out) else None
        self._sent = len(self._out)
        self._is_ack_due = False
        self._send_at = now + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_RETRY_S)
        return frames

    def next_timer(self) -> float | None:
        """Return when next_frames has something to send, or None. An acknowledgement is sent at once."""
        return self._send_at


class SealingHandshake:
    """The TLS handshake of one connection, on either side. Endpoint and Dial drive it."""

    __slots__ = (
        "_components", "_context", "_role", "_session", "_suite", "key", "peer_certificate", "protection",
        "stream",
    )  # fmt: skip

    def __init__(
        self,
        role: Role,
        session: TlsSession,
        suite: Suite,
        context: bytes,
        components: Components,
        round_trip_s: float | None,
    ) -> None:
        self._role = role
        self._session = session
        self._suite = suite
        self._context = context
        self._components = components
        self.stream = CryptoStream(round_trip_s)
        self.key = b""
        """The key of proofs on the connection, once the handshake is complete."""
        self.protection: PacketProtection | None = None
        """The keys of packets, once the handshake is complete."""
        self.peer_certificate: PeerCertificate | None = None

    def start(self, now: float) -> None:
        """Begin: a client sends its hello."""
        self.stream.write(self._session.start(), now)

    def handle_data(self, data: bytes, now: float) -> None:
        """Handle bytes of the stream. Raises TlsError if the handshake has failed."""
        if self.protection is not None:
            return  # TLS may send more after its handshake; nothing of it is used
        output = self._session.receive(data)
        if self._session.is_done():
            self.peer_certificate = self._session.check_peer()
            material = self._session.export(EXPORTER_LABEL, 3 * SECRET_BYTES, self._context)
            client_secret, server_secret = material[:SECRET_BYTES], material[SECRET_BYTES : 2 * SECRET_BYTES]
            self.key = material[2 * SECRET_BYTES :]
            self.protection = PacketProtection(
                self._suite, self._role, client_secret, server_secret, self._components, now
            )
        self.stream.write(output, now)

    def next_packets(self, peer_id: int, now: float) -> tuple[bytes, int] | None:
        """Return the datagrams to send now and the size of all except the last, or None."""
        frames = self.stream.next_frames(now)
        if not frames:
            return None
        packets = [encode_packet(peer_id, 0, encode_frame(frame)) for frame in frames]
        return b"".join(packets), len(packets[0])


class HalfOpen:
    """A connection of a server between its accept and the end of the TLS handshake.

    Like a Dial, it takes the place of its connection for timers and trains.
    """

    def __init__(
        self,
        connection: Connection,
        handshake: SealingHandshake,
        *,
        peer: Parameters,
        peer_id: int,
        nonce: bytes,
        token: bytes,
        now: float,
    ) -> None:
        self.connection = connection
        self.handshake = handshake
        self.peer = peer
        self.peer_id = peer_id
        self.nonce = nonce
        """The client's, which proves that a refusal is an answer to it, and that one of the client is the client's."""
        self.token = token
        self.scheduled_at: float | None = None
        """The time of the timer that the endpoint has scheduled for it."""
        self.idle_until = 0.0
        """As in Connection; always 0 here."""
        self.waiting = bytearray()
        """Bytes of the client that wait for their turn."""
        self._accepted_at: float | None = now
        self._timeout_at = now + HALF_OPEN_TIMEOUT_S

    @property
    def is_over(self) -> bool:
        """Whether the handshake has failed."""
        return self.connection.state is ConnectionState.CLOSED

    def handle_frame(self, frame: CryptoFrame, now: float) -> bool:
        """Handle a frame of the client. Return whether there are bytes for TLS now. Raises DecodeError."""
        if self._accepted_at is not None:
            self.handshake.stream.handle_round_trip(now - self._accepted_at)
            self._accepted_at = None
        self.waiting += self.handshake.stream.handle_frame(frame, now)
        return bool(self.waiting)

    def handle_repeated_connect(self, address: Address) -> None:
        """Handle a client that connects again: which of the two accepts it will reply to is not known."""
        self._accepted_at = None
        self.connection.handle_repeated_connect(address)

    def handle_timers(self, now: float) -> None:
        """Give up after HALF_OPEN_TIMEOUT_S."""
        if now >= self._timeout_at:
            self.abandon()
        self.connection.wake()

    def abandon(self) -> None:
        """End it without an event: the application has never seen this connection."""
        self.connection.state = ConnectionState.CLOSED

    def next_train(self, now: float) -> Train | None:
        """Return the packets of the handshake that are due, or None."""
        if self.is_over:
            return None
        packets = self.handshake.next_packets(self.peer_id, now)
        return None if packets is None else Train(self.connection.peer_address, *packets)

    def next_timer(self) -> float:
        """Return when handle_timers or next_train is due."""
        at = self.handshake.stream.next_timer()
        return self._timeout_at if at is None else min(at, self._timeout_at)
