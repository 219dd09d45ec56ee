"""The client's side of the handshake: hello until a cookie comes, connect until an accept comes."""

from __future__ import annotations

from typing import Final

from godwit.limits import BASE_DATAGRAM_BYTES, HANDSHAKE_RETRY_S, HANDSHAKE_TIMEOUT_S, MAX_HANDSHAKE_RETRY_S
from godwit.transport import handshake
from godwit.transport.connection import Connection, State
from godwit.transport.train import Train
from godwit.wire.control import Code
from godwit.wire.frames import Accept, Connect, Cookie, Frame, Hello, Refuse, encode_frame
from godwit.wire.packet import OVERHEAD_BYTES, encode_packet
from godwit.wire.parameters import decode_parameters

TRIES_A_COOKIE: Final = 3


class Dial:
    """Of one connection that is not open yet. Feed: on_frame, handle_timers. Drain: next_train, next_timer."""

    def __init__(self, connection: Connection, nonce: bytes, parameters: bytes, now: float) -> None:
        self.connection = connection
        self.scheduled_at: float | None = None
        """The endpoint's note: when it will look at the timers."""
        self.rests_until = 0.0
        """As with a connection: never known here."""
        self.token = b""
        """Of the server's resets, once it has accepted."""
        self._nonce = nonce
        self._parameters = parameters
        self._cookie: bytes | None = None
        self._wait_s = HANDSHAKE_RETRY_S
        self._send_at = now
        self._sent_at = now
        self._sends = 0
        """How often the present step was sent: once, and its answer shows the round trip."""
        self._gives_up_at = now + HANDSHAKE_TIMEOUT_S

    @property
    def is_over(self) -> bool:
        """The connection will never be open."""
        return self.connection.state is State.CLOSED

    def on_frame(self, frame: Frame, now: float) -> str | None:
        """A frame from the server's address. Gives the reason to drop it, or None when it was of use."""
        match frame:
            case Cookie(cookie, nonce) if handshake.same(nonce, self._nonce):
                if self._cookie is not None and not self._doubts_cookie():
                    return "late_handshake"
                if self._cookie is None:
                    self._sends = 0
                self._cookie = cookie
                self._wait_s = HANDSHAKE_RETRY_S
                self._send_at = now
            case Accept():
                self._accepted(frame, now)
            case Refuse(nonce, code, reason) if handshake.same(nonce, self._nonce):
                self.connection.fail(now, code, reason, "refused")
            case _:
                return "unasked_handshake"
        return None

    def _accepted(self, frame: Accept, now: float) -> None:
        peer = decode_parameters(frame.parameters)
        self.token = frame.token
        self.connection.establish(
            peer_id=frame.connection_id,
            peer=peer,
            key=handshake.connection_key(self._nonce, frame.nonce),
            round_trip_s=now - self._sent_at if self._sends == 1 else None,
            now=now,
        )

    def _doubts_cookie(self) -> bool:
        """The address may have changed since, or the server have been restarted: then the cookie is worth nothing."""
        return self._sends >= TRIES_A_COOKIE

    def handle_timers(self, now: float) -> None:
        if now >= self._gives_up_at:
            step = "hello" if self._cookie is None else "connect"
            host, port, *_ = self.connection.peer_address
            reason = (
                f"no answer to {step} from {host} port {port} within {HANDSHAKE_TIMEOUT_S:g} s: "
                "check the address, the port and the firewall"
            )
            self.connection.fail(now, Code.TIMEOUT, reason, "timeout")
        self.connection.wake()

    def next_train(self, now: float) -> Train | None:
        if self.is_over or now < self._send_at:
            return None
        # A doubtful cookie is still tried, in turn with asking for a new one.
        says_hello = self._cookie is None or (self._doubts_cookie() and self._sends % 2 == 1)
        self._sends += 1
        self._sent_at = now
        self._send_at = now + self._wait_s
        self._wait_s = min(2 * self._wait_s, MAX_HANDSHAKE_RETRY_S)
        connection_id = self.connection.id
        if self._cookie is None or says_hello:
            frames = encode_frame(Hello(connection_id, self._nonce)).ljust(BASE_DATAGRAM_BYTES - OVERHEAD_BYTES, b"\0")
        else:
            frames = encode_frame(Connect(connection_id, self._nonce, self._cookie, self._parameters))
        packet = encode_packet(0, 0, frames)
        return Train(self.connection.peer_address, packet, len(packet))

    def next_timer(self) -> float:
        return min(self._send_at, self._gives_up_at)
