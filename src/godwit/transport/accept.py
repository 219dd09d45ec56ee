"""The server's side of the handshake, and the resets: what is answered to packets that belong to no connection.

Nothing is remembered of a client before it has sent its cookie back. What is answered to an address that has proven
nothing is never more than three times as long as what came from there: a cookie is shorter than a hello by far, and a
reset shorter than the packet that it answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from godwit.limits import BASE_DATAGRAM_BYTES, COOKIE_LIFETIME_S, MAX_CONNECTIONS, MAX_RESETS_PER_S
from godwit.transport import handshake
from godwit.transport.train import Address
from godwit.wire.frames import NONCE_BYTES, Accept, Connect, Cookie, Hello, Refuse, Reset, encode_frame
from godwit.wire.packet import OVERHEAD_BYTES, encode_packet

RESET_PACKET_BYTES: Final = OVERHEAD_BYTES + len(encode_frame(Reset(bytes(16))))


class Acceptor:
    """Stateless but for the connects that it has answered, which are remembered while their cookies live."""

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
        self._most_answered = 2 * max_connections + 1024
        self._answered: OrderedDict[tuple[int, bytes], tuple[float, bytes, int]] = OrderedDict()
        self._resets_since = 0.0
        self._resets = 0

    def on_hello(self, hello: Hello, packet_bytes: int, address: Address, now: float) -> bytes | None:
        """The packet with the cookie; None if the hello is too short to be answered."""
        if packet_bytes < BASE_DATAGRAM_BYTES or hello.connection_id == 0:
            return None
        cookie = handshake.make_cookie(self._secret, now, address, hello.connection_id, hello.nonce)
        return encode_packet(hello.connection_id, 0, encode_frame(Cookie(cookie, hello.nonce)))

    def is_proven(self, connect: Connect, address: Address, now: float) -> bool:
        """Whether the connect carries the cookie that its hello was given, at its address."""
        return connect.connection_id != 0 and handshake.check_cookie(
            self._secret, now, address, connect.connection_id, connect.nonce, connect.cookie
        )

    def repeated(self, connect: Connect, now: float) -> tuple[bytes, int] | None:
        """The packet that answered this client before, if one did, and the id of its connection (0: refused).

        The same client is known by its id and nonce, also when it had to fetch a new cookie for a new address.
        """
        answered = self._answered
        while answered and next(iter(answered.values()))[0] <= now:
            answered.popitem(last=False)
        known = answered.get((connect.connection_id, connect.nonce))
        return None if known is None else known[1:]

    def accept(self, connect: Connect, connection_id: int, parameters: bytes, now: float) -> tuple[bytes, bytes]:
        """The packet that accepts, and the connection's key."""
        nonce = self._entropy(NONCE_BYTES)
        token = handshake.reset_token(self._reset_key, connection_id)
        frame = encode_frame(Accept(connection_id, nonce, token, parameters))
        packet = encode_packet(connect.connection_id, 0, frame)
        self._remember(connect, packet, connection_id, now)
        return packet, handshake.connection_key(connect.nonce, nonce)

    def refuse(self, connect: Connect, code: int, reason: str, now: float) -> bytes:
        """The packet that refuses. A repeat of the connect, already under way, must not be accepted after all."""
        packet = encode_packet(connect.connection_id, 0, encode_frame(Refuse(connect.nonce, code, reason)))
        self._remember(connect, packet, 0, now)
        return packet

    def _remember(self, connect: Connect, packet: bytes, connection_id: int, now: float) -> None:
        # One second more than a cookie lives, because its age is counted in whole seconds.
        ends_at = now + COOKIE_LIFETIME_S + 1.0
        self._answered[connect.connection_id, connect.nonce] = (ends_at, packet, connection_id)
        while len(self._answered) > self._most_answered:
            self._answered.popitem(last=False)

    def reset(self, connection_id: int, packet_bytes: int, now: float) -> bytes | None:
        """The answer to a packet with an id that nobody has here; None if it would be too long or too often."""
        if now - self._resets_since >= 1.0:
            self._resets_since = now
            self._resets = 0
        if packet_bytes <= RESET_PACKET_BYTES or self._resets >= MAX_RESETS_PER_S:
            return None
        self._resets += 1
        token = handshake.reset_token(self._reset_key, connection_id)
        return encode_packet(0, 0, encode_frame(Reset(token)))
